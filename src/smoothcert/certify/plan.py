"""What a certification will cost and can reach, before any sample is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smoothcert.certify.base import Procedure
from smoothcert.certify.forecast import Chance, Decision
from smoothcert.certify.simultaneous import simultaneous
from smoothcert.noise import Noise
from smoothcert.stats import samples_needed
from smoothcert.types import Norm, UsageError


@dataclass(frozen=True)
class Plan:
    """What a procedure can reach under a noise.

    Attributes:
        largest_radius: The radius certified when every vote agrees.
        threshold: The probability the target radius needs; None without a target.
        needed: The budget (for Staged: the last stage) that can certify the target; None without a target.
        decisions: Counts that decide, per stage or check; all checks for Anytime.
        chances: How inputs end, by true probability.
        norm: The norm of the radii.
    """

    largest_radius: float
    threshold: float | None
    needed: int | None
    decisions: tuple[Decision, ...]
    chances: tuple[Chance, ...]
    norm: Norm


def plan(
    procedure: Procedure,
    noise: Noise,
    *,
    radius: float | None = None,
    probabilities: Sequence[float] | None = None,
    norm: Norm | str | None = None,
    dimension: int | None = None,
) -> Plan:
    """Work out what a certification will cost.

    Args:
        procedure: How to certify; its target radius is the one planned for.
        noise: The noise.
        radius: The target, for procedures without one of their own.
        probabilities: True probabilities of the guessed class to show; spread around the threshold by default.
        norm: Norm of the radius; the procedure's by default, else the noise's own.
        dimension: Number of coordinates of an input, for norms that depend on it.

    Returns:
        The plan.

    Raises:
        UsageError: If the procedure cannot be planned or has several targets, or the noise does not certify the norm.
    """
    if len(procedure.targets) > 1:
        raise UsageError("a plan is about one target radius; give one.")
    radius = procedure.targets[0] if procedure.targets else radius
    reach = procedure.reach
    norm = noise.resolve_norm(norm or procedure.norm)
    largest = float(noise.radius(reach, norm, dimension))
    if radius is None:
        return Plan(largest, None, None, (), (), norm)
    threshold = float(noise.threshold(radius, norm, dimension))
    if threshold >= 1:
        return Plan(largest, threshold, None, (), (), norm)
    shown = tuple(probabilities) if probabilities is not None else spread_around(threshold)
    needed = samples_needed(threshold, procedure.level)
    decisions, chances = procedure.forecast(threshold, shown)
    return Plan(largest, threshold, needed, decisions, chances, norm)


def expected_samples(
    procedure: Procedure,
    noise: Noise,
    probabilities: Sequence[float] | NDArray[np.float64],
    *,
    norm: Norm | str | None = None,
    dimension: int | None = None,
) -> float:
    """The mean samples of an input, selection included, over inputs whose guessed classes have these probabilities.

    Args:
        procedure: How to certify.
        noise: The noise.
        probabilities: A true probability for each input, for example from a pilot.
        norm: As for :func:`plan`.
        dimension: As for :func:`plan`.

    Returns:
        The mean.

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
    made = plan(procedure, noise, probabilities=values.tolist(), norm=norm, dimension=dimension)
    if not made.chances:
        raise UsageError("the samples of a procedure that decides early depend on its target; give a radius.")
    return float(procedure.n0 + np.average([chance.samples for chance in made.chances], weights=times))


@dataclass(frozen=True)
class SimultaneousCost:
    """What it costs that the statements about all inputs hold together.

    Attributes:
        share: The alpha of one input.
        single: The largest radius with alpha for each input, when every vote agrees.
        together: The largest radius with the share for each input, at as many samples.
        factor: How many times the samples keep the largest radius, when every vote agrees.
        norm: The norm of the radii.
    """

    share: float
    single: float
    together: float
    factor: float
    norm: Norm


def simultaneous_cost(
    procedure: Procedure,
    noise: Noise,
    count: int,
    *,
    norm: Norm | str | None = None,
    dimension: int | None = None,
) -> SimultaneousCost:
    """Compare certifying each of ``count`` inputs at alpha with certifying all of them together at alpha.

    Args:
        procedure: How to certify, with the alpha for all inputs together.
        noise: The noise.
        count: The number of inputs.
        norm: As for :func:`plan`.
        dimension: As for :func:`plan`.

    Returns:
        The cost.

    Raises:
        UsageError: As :func:`plan` and :func:`~smoothcert.certify.simultaneous.simultaneous`.

    Example:
        >>> from smoothcert import Cohen, Gaussian
        >>> cost = simultaneous_cost(Cohen(n=100_000, alpha=0.001), Gaussian(0.5), 500)
        >>> print(f"{cost.share:g}: {cost.single:.3f}, {cost.together:.3f}, {cost.factor:.2f}")
        2e-06: 1.906, 1.825, 1.90
    """
    shared = simultaneous(procedure, count)
    reaches = [plan(each, noise, norm=norm, dimension=dimension, probabilities=()) for each in (procedure, shared)]
    return SimultaneousCost(
        share=shared.alpha,
        single=reaches[0].largest_radius,
        together=reaches[1].largest_radius,
        factor=math.log(shared.level) / math.log(procedure.level),
        norm=reaches[0].norm,
    )


def spread_around(threshold: float) -> tuple[float, ...]:
    """Probabilities on both sides of a threshold, closer together near it (evenly spaced in log-odds)."""
    odds = np.log(threshold / (1 - threshold)) + np.array([-2, -1, -0.5, -0.2, 0.0, 0.2, 0.5, 1, 2])
    return tuple((1 / (1 + np.exp(-odds))).tolist())
