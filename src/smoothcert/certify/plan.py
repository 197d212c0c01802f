"""What a certification will cost and can reach, before any sample is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from smoothcert.certify.base import Procedure
from smoothcert.certify.forecast import Chance, Decision
from smoothcert.certify.simultaneous import simultaneous
from smoothcert.noise import Noise
from smoothcert.stats import samples_needed
from smoothcert.types import Norm, UsageError


@dataclass(frozen=True)
class Plan:
    """What a procedure can reach under a noise; the optional fields are empty without a target.

    Attributes:
        largest_radius: The radius certified if every vote agrees.
        norm: The norm of the radii.
        threshold: The probability that the target radius needs.
        needed: The budget (for Staged: the last stage) that can certify the target; None if no budget can.
        decisions: Counts that decide, for each stage or check.
        chances: How inputs end, by true probability.
    """

    largest_radius: float
    norm: Norm
    threshold: float | None = None
    needed: int | None = None
    decisions: tuple[Decision, ...] = ()
    chances: tuple[Chance, ...] = ()


def plan(
    procedure: Procedure,
    noise: Noise,
    *,
    radius: float | None = None,
    probabilities: Sequence[float] | None = None,
    dimension: int | None = None,
) -> Plan:
    """Compute what a certification will cost.

    Args:
        procedure: How to certify.
        noise: The noise.
        radius: The target, for procedures without one.
        probabilities: True probabilities of the guessed class to show; spread around the threshold by default.
        dimension: Number of coordinates of an input, for norms that depend on it.

    Raises:
        UsageError: If the procedure cannot be planned or has several targets, or the noise does not certify the norm.
    """
    if len(procedure.targets) > 1:
        raise UsageError("a plan is about one target radius; give one.")
    radius = procedure.targets[0] if procedure.targets else radius
    reach = procedure.reach
    norm = noise.resolve_norm(procedure.norm)
    largest = float(noise.radius(reach, norm, dimension))
    if radius is None:
        return Plan(largest, norm)
    threshold = float(noise.threshold(radius, norm, dimension))
    if threshold >= 1:
        return Plan(largest, norm, threshold)
    if probabilities is None:  # closer together near the threshold
        probabilities = scipy.special.expit(
            scipy.special.logit(threshold) + np.array([-2, -1, -0.5, -0.2, 0.0, 0.2, 0.5, 1, 2])
        ).tolist()
    needed = samples_needed(threshold, procedure.level)
    return Plan(largest, norm, threshold, needed, *procedure.forecast(threshold, probabilities))


def expected_samples(
    procedure: Procedure,
    noise: Noise,
    probabilities: Sequence[float] | NDArray[np.float64],
    *,
    dimension: int | None = None,
) -> float:
    """Return the mean samples of an input, selection included, where the guessed classes have these probabilities.

    Raises:
        UsageError: As :func:`plan`; or if a procedure that decides early has no target.

    Example:
        >>> from smoothcert import Anytime, Cohen, Gaussian
        >>> expected_samples(Cohen(n=1000), Gaussian(0.5), [0.9, 0.99])
        1100.0
        >>> expected_samples(Anytime(radius=0.5), Gaussian(0.5), [0.9, 0.99]) < 500
        True
    """
    if not procedure.decides_early:
        return float(procedure.expected_samples)
    values, times = np.unique(np.asarray(probabilities, float), return_counts=True)
    made = plan(procedure, noise, probabilities=values.tolist(), dimension=dimension)
    if not made.chances:
        raise UsageError("the samples of a procedure that decides early depend on its target; give a radius.")
    return float(procedure.n0 + np.average([chance.samples for chance in made.chances], weights=times))


@dataclass(frozen=True)
class SimultaneousCost:
    """What it costs that the statements about all inputs hold together.

    Attributes:
        share: The alpha of one input.
        single: The largest radius with alpha for each input.
        together: The largest radius with the share for each input and as many samples.
        factor: The factor of samples that keeps the largest radius.
        norm: The norm of the radii.
    """

    share: float
    single: float
    together: float
    factor: float
    norm: Norm


def simultaneous_cost(
    procedure: Procedure, noise: Noise, count: int, *, dimension: int | None = None
) -> SimultaneousCost:
    """Compare certifying each of ``count`` inputs at alpha with certifying all of them together at alpha.

    Raises:
        UsageError: As :func:`plan` and :func:`~smoothcert.certify.simultaneous.simultaneous`.

    Example:
        >>> from smoothcert import Cohen, Gaussian
        >>> cost = simultaneous_cost(Cohen(n=100_000, alpha=0.001), Gaussian(0.5), 500)
        >>> print(f"{cost.share:g}: {cost.single:.3f}, {cost.together:.3f}, {cost.factor:.2f}")
        2e-06: 1.906, 1.825, 1.90
    """
    shared = simultaneous(procedure, count)
    alone, together = (plan(each, noise, dimension=dimension, probabilities=()) for each in (procedure, shared))
    factor = math.log(shared.level) / math.log(procedure.level)
    return SimultaneousCost(shared.alpha, alone.largest_radius, together.largest_radius, factor, alone.norm)
