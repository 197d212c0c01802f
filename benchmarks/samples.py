"""Mean samples of Staged and Anytime next to Wald's bound, over true probabilities on both sides of the threshold.

The true p are those at which Wald's bound takes values evenly spaced on a logarithmic scale, above and below the
threshold Φ(r/σ), as far as such p exist. Samples and decisions of Staged are in closed form; those of Anytime are exact
by dynamic programming, averaged over the selection votes that inform its prior (those of probability above 10⁻⁴).
Simulation checks both at some of the points. A decision is correct when it certifies above the threshold and refutes
(Staged: aborts) below it. Anytime may use as many samples as all stages of Staged together.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import optimize, special, stats

from smoothcert.stats.evalues import JEFFREYS, Prior
from smoothcert.stats.sequential import boundary, operating_characteristics, wald_bound
from smoothcert.stats.staged import StageBoundaries, stage_boundaries, staged_characteristics

RADII = (0.5, 1.0, 2.0, 3.0)
"""Target radii in units of sigma."""
STAGES = (100, 1_000, 10_000, 120_000)
N_MAX = sum(STAGES)
N0 = 100
ALPHA = BETA = 0.001
WALD = np.geomspace(50, 2 * N_MAX, 13)
RUNS = {"anytime": 1_000, "staged": 100_000}


@dataclass(frozen=True)
class Point:
    """One true probability, with mean estimation samples and shares of correct decisions."""

    r: float
    p: float
    above: bool
    wald: float
    staged: float
    staged_correct: float
    anytime: float
    anytime_correct: float
    jeffreys: float

    @property
    def counts(self) -> bool:
        return 100 <= self.wald <= N_MAX / 2


def probabilities(threshold: float) -> list[float]:
    """The p below and above the threshold at which Wald's bound takes the values of the grid."""
    found = []
    for low, high in ((1e-12, threshold), (threshold, 1.0 - 1e-15)):
        for bound in WALD:

            def excess(p: float, bound: float = bound) -> float:
                return 1.0 / wald_bound(p, threshold, ALPHA, BETA) - 1.0 / bound

            if excess(low) * excess(high) < 0:
                found.append(float(optimize.brentq(excess, low, high, xtol=1e-15)))
    return found


def measure(r: float, p: float) -> Point:
    threshold = float(special.ndtr(r))
    above = p > threshold
    staged = staged_characteristics(stage_boundaries(threshold, STAGES, ALPHA, BETA), p)
    k0 = np.arange(N0 + 1)
    weights = stats.binom.pmf(k0, N0, p)
    k0, weights = k0[weights > 1e-4], weights[weights > 1e-4] / weights[weights > 1e-4].sum()
    stops = [boundary(threshold, ALPHA, BETA, N_MAX, Prior.informed(k, N0)) for k in k0.tolist()]
    ends = [operating_characteristics(stop, p) for stop in stops]
    plain = operating_characteristics(boundary(threshold, ALPHA, BETA, N_MAX, JEFFREYS), p)
    return Point(
        r=r,
        p=p,
        above=above,
        wald=wald_bound(p, threshold, ALPHA, BETA),
        staged=staged.expected_samples,
        staged_correct=float((staged.certify if above else staged.abort).sum()),
        anytime=float(weights @ [end.expected_n for end in ends]),
        anytime_correct=float(weights @ [end.certify if above else end.refute for end in ends]),
        jeffreys=plain.expected_n,
    )


def simulate_anytime(threshold: float, p: float, rng: np.random.Generator) -> np.ndarray:
    """Samples used in each run; runs draw their selection votes, too."""
    used = []
    for k0, runs in zip(*np.unique(rng.binomial(N0, p, RUNS["anytime"]), return_counts=True), strict=True):
        stop = boundary(threshold, ALPHA, BETA, N_MAX, Prior.informed(int(k0), N0))
        k, before = np.zeros(runs, dtype=np.int64), 0
        for n, certify, refute in zip(stop.n.tolist(), stop.certify, stop.refute, strict=True):
            k, before = k + rng.binomial(n - before, p, len(k)), n
            going = (k < certify) & (k > refute) & (n < N_MAX)
            used += [n] * int(np.sum(~going))
            k = k[going]
    return np.array(used)


def simulate_staged(bounds: StageBoundaries, p: float, rng: np.random.Generator) -> np.ndarray:
    """Samples used in each run."""
    runs = RUNS["staged"]
    used, going = np.zeros(runs), np.ones(runs, dtype=bool)
    for n, certify, abort in zip(bounds.stages.tolist(), bounds.certify, bounds.abort, strict=True):
        used += n * going
        k = rng.binomial(n, p, runs)
        going &= (k < certify) & (k > abort)
    return used


def simulated(points: list[Point]) -> dict[str, float]:
    """Largest deviation of the simulated mean samples from the computed ones, relative."""
    rng = np.random.default_rng(0)
    worst = {"anytime": 0.0, "staged": 0.0}
    for point in points:
        threshold = float(special.ndtr(point.r))
        anytime = simulate_anytime(threshold, point.p, rng)
        staged = simulate_staged(stage_boundaries(threshold, STAGES, ALPHA, BETA), point.p, rng)
        for name, used, mean in (("anytime", anytime, point.anytime), ("staged", staged, point.staged)):
            worst[name] = max(worst[name], float(abs(used.mean() / mean - 1.0)))
    return worst


def summary(points: list[Point], selection: int) -> dict[str, float]:
    """Figures over the points, ``selection`` samples added to both procedures' means, not to Wald's bound."""
    wald = np.array([point.wald for point in points])
    staged, anytime, plain = (
        selection + np.array([getattr(point, name) for point in points]) for name in ("staged", "anytime", "jeffreys")
    )
    return {
        "anytime_over_wald": float(np.mean(anytime / wald)),
        "anytime_over_wald_max": float(np.max(anytime / wald)),
        "jeffreys_over_wald": float(np.mean(plain / wald)),
        "staged_over_wald": float(np.mean(staged / wald)),
        "staged_over_anytime": float(np.mean(staged / anytime)),
        "staged_over_anytime_min": float(np.min(staged / anytime)),
    }


def main() -> None:
    begin = time.perf_counter()
    points = [measure(r, p) for r in RADII for p in probabilities(float(special.ndtr(r)))]
    counted = [point for point in points if point.counts]
    gain = [point.anytime_correct - point.staged_correct for point in counted]
    result = {
        "benchmark": "samples",
        "alpha": ALPHA,
        "beta": BETA,
        "n_max": N_MAX,
        "points": len(counted),
        "estimation": summary(counted, 0),
        "with_selection": summary(counted, N0),
        "correct": {
            "anytime": float(np.mean([point.anytime_correct for point in counted])),
            "staged": float(np.mean([point.staged_correct for point in counted])),
            "least_gain": min(gain),
        },
        "simulated_deviation": simulated(counted),
        "grid": [vars(point) for point in points],
    }
    print(json.dumps(result | {"seconds": round(time.perf_counter() - begin, 1)}))
    table = Table(title=f"Mean estimation samples at α = β = {ALPHA:g}, n_max = {N_MAX:,}, averaged over the points")
    for column in ("r/σ", "p", "points", "Staged ÷ Wald", "Anytime ÷ Wald", "Staged ÷ Anytime", "correct: S", "A"):
        table.add_column(column, justify="right")
    for r in RADII:
        for above in (False, True):
            group = [point for point in counted if point.r == r and point.above == above]
            figures = summary(group, 0)
            table.add_row(
                f"{r:g}",
                "above" if above else "below",
                str(len(group)),
                f"{figures['staged_over_wald']:.2f}",
                f"{figures['anytime_over_wald']:.2f}",
                f"{figures['staged_over_anytime']:.2f}",
                f"{np.mean([point.staged_correct for point in group]):.4f}",
                f"{np.mean([point.anytime_correct for point in group]):.4f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
