"""What a certification will cost and can reach, before any sample is drawn."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from smoothcert.certify.anytime import Anytime
from smoothcert.certify.base import Procedure
from smoothcert.certify.cohen import Cohen
from smoothcert.certify.simultaneous import simultaneous
from smoothcert.certify.staged import Staged
from smoothcert.noise import Noise
from smoothcert.stats import (
    LAST_LOOK,
    anytime_lower_bound,
    boundary,
    lower_bound,
    operating_characteristics,
    samples_needed,
    stage_boundaries,
    staged_characteristics,
    wald_bound,
)
from smoothcert.stats.binomial import IntArray
from smoothcert.types import Norm, UsageError


@dataclass(frozen=True)
class Decision:
    """A moment of decision: with ``n`` samples, ``certify`` or more votes certify, ``refute`` or fewer refute."""

    n: int
    certify: int | None
    refute: int | None


@dataclass(frozen=True)
class Chance:
    """How an input ends whose guessed class has true probability ``p``.

    Attributes:
        p: The true probability.
        certify: Chance that the target is certified.
        refute: Chance that it is refuted.
        undecided: Chance that the samples run out.
        samples: Mean estimation samples.
        wald: Wald's lower bound on that mean, for any test with these error probabilities; infinite at the threshold.
        stages: For Staged, the chance to certify, to abort and to go on in each stage, as shares of all inputs.
    """

    p: float
    certify: float
    refute: float
    undecided: float
    samples: float
    wald: float
    stages: tuple[tuple[float, float, float], ...] = ()


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
        UsageError: If the procedure is none of Cohen, Staged and Anytime, or has several targets, or the noise does not
            certify the norm.
    """
    if isinstance(procedure, Anytime) and len(procedure.radii) > 1:
        raise UsageError("a plan is about one target radius; give one.")
    if isinstance(procedure, Cohen):
        reach = lower_bound(procedure.n, procedure.n, procedure.alpha)
    elif isinstance(procedure, Staged):
        radius = procedure.radius
        reach = lower_bound(procedure.stages[-1], procedure.stages[-1], procedure.alpha / len(procedure.stages))
    elif isinstance(procedure, Anytime):
        radius = procedure.radii[0] if procedure.radii else radius
        reach = anytime_lower_bound(procedure.n_max, procedure.n_max, procedure.alpha, last=True)
    else:
        raise UsageError(f"there is no plan for the procedure {procedure.name}.")
    norm = noise.resolve_norm(norm or procedure.norm)
    largest = float(noise.radius(reach, norm, dimension))
    if radius is None:
        return Plan(largest, None, None, (), (), norm)
    threshold = float(noise.threshold(radius, norm, dimension))
    if threshold >= 1:
        return Plan(largest, threshold, None, (), (), norm)
    shown = tuple(probabilities) if probabilities is not None else spread_around(threshold)
    if isinstance(procedure, Cohen):
        needed = samples_needed(threshold, procedure.alpha)
        decisions, chances = _cohen(procedure, threshold, shown)
    elif isinstance(procedure, Staged):
        needed = samples_needed(threshold, procedure.alpha / len(procedure.stages))
        decisions, chances = _staged(procedure, threshold, shown)
    else:
        needed = samples_needed(threshold, LAST_LOOK * procedure.alpha)
        decisions, chances = _anytime(procedure, threshold, shown)
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
        >>> from smoothcert.noise import Gaussian
        >>> expected_samples(Cohen(n=1000), Gaussian(0.5), [0.9, 0.99])
        1100.0
        >>> expected_samples(Anytime(radius=0.5), Gaussian(0.5), [0.9, 0.99]) < 500
        True
    """
    if isinstance(procedure, Cohen):
        return float(procedure.n0 + procedure.n)
    values, times = np.unique(np.asarray(probabilities, float), return_counts=True)
    made = plan(procedure, noise, probabilities=values.tolist(), norm=norm, dimension=dimension)
    if not made.chances:
        raise UsageError("the samples of a procedure that decides early depend on its target; give a radius.")
    assert isinstance(procedure, (Staged, Anytime))
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
        >>> from smoothcert.noise import Gaussian
        >>> cost = simultaneous_cost(Cohen(n=100_000, alpha=0.001), Gaussian(0.5), 500)
        >>> print(f"{cost.share:g}: {cost.single:.3f}, {cost.together:.3f}, {cost.factor:.2f}")
        2e-06: 1.906, 1.825, 1.90
    """
    shared = simultaneous(procedure, count)
    reaches = [plan(each, noise, norm=norm, dimension=dimension, probabilities=()) for each in (procedure, shared)]
    part = 1 / len(procedure.stages) if isinstance(procedure, Staged) else 1.0
    part = LAST_LOOK if isinstance(procedure, Anytime) else part
    return SimultaneousCost(
        share=shared.alpha,
        single=reaches[0].largest_radius,
        together=reaches[1].largest_radius,
        factor=math.log(part * shared.alpha) / math.log(part * procedure.alpha),
        norm=reaches[0].norm,
    )


def spread_around(threshold: float) -> tuple[float, ...]:
    """Probabilities on both sides of a threshold, closer together near it (evenly spaced in log-odds)."""
    odds = np.log(threshold / (1 - threshold)) + np.array([-2, -1, -0.5, -0.2, 0.0, 0.2, 0.5, 1, 2])
    return tuple((1 / (1 + np.exp(-odds))).tolist())


Planned = tuple[tuple[Decision, ...], tuple[Chance, ...]]


def _cohen(procedure: Cohen, threshold: float, probabilities: Sequence[float]) -> Planned:
    n = procedure.n
    enough = bisect_right(range(n + 1), threshold, key=lambda count: float(lower_bound(count, n, procedure.alpha)))
    chances = []
    for p in probabilities:
        certify = float(scipy.stats.binom.sf(enough - 1, n, p))
        chances.append(Chance(p, certify, 0.0, 1 - certify, n, wald_bound(p, threshold, procedure.alpha)))
    return (Decision(n, enough if enough <= n else None, None),), tuple(chances)


def _staged(procedure: Staged, threshold: float, probabilities: Sequence[float]) -> Planned:
    counts = stage_boundaries(threshold, procedure.stages, procedure.alpha, procedure.beta)
    chances = []
    for p in probabilities:
        ends = staged_characteristics(counts, p)
        certify, abort = float(ends.certify.sum()), float(ends.abort.sum())
        wald = wald_bound(p, threshold, procedure.alpha, procedure.beta)
        each = tuple(zip(ends.certify.tolist(), ends.abort.tolist(), ends.go_on.tolist(), strict=True))
        chances.append(Chance(p, certify, abort, float(ends.go_on[-1]), ends.expected_samples, wald, each))
    return _decisions(counts.stages, counts.certify, counts.abort), tuple(chances)


def _anytime(procedure: Anytime, threshold: float, probabilities: Sequence[float]) -> Planned:
    test = boundary(threshold, procedure.alpha, procedure.beta, procedure.n_max)
    chances = []
    for p in probabilities:
        ends = operating_characteristics(test, p)
        wald = wald_bound(p, threshold, procedure.alpha, procedure.beta)
        chances.append(Chance(p, ends.certify, ends.refute, ends.undecided, ends.expected_n, wald))
    return _decisions(test.n, test.certify, test.refute), tuple(chances)


def _decisions(n: IntArray, certify: IntArray, refute: IntArray) -> tuple[Decision, ...]:
    return tuple(
        Decision(size, enough if enough <= size else None, few if few >= 0 else None)
        for size, enough, few in zip(n.tolist(), certify.tolist(), refute.tolist(), strict=True)
    )
