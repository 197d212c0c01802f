"""Mean samples of Staged and Anytime, selection included, next to Wald's bound and to the best possible test.

The true p are those at which Wald's bound takes the values of a grid, above and below the threshold Φ(r/σ), as far as
such p exist. Samples and decisions of Staged are in closed form; those of Anytime are exact by dynamic programming.
Simulation checks both. A decision is correct when it certifies above the threshold and refutes (Staged: aborts) below
it. Anytime may use as many samples as all stages of Staged together.

Wald's bound holds for a known p. The floor is the least mean of (mean samples) / (Wald's bound) over the points of one
radius, of any test of one known class that does not know p, with these errors at the threshold, n_max and looks: the
modified Kiefer–Weiss problem (Kiefer and Weiss, 1957), solved by backward induction (Arrow, Blackwell and Girshick,
1949). It may leave more inputs undecided at n_max than Anytime.

The median input of a stored run is that of its inputs whose mean samples are the median, where the shares of its votes
are taken as the true p. Usage: python benchmarks/samples.py [RUN ...]; by default those at σ = 0.5 in ``zoo``.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import optimize, signal, special, stats

from smoothcert import load_run
from smoothcert.stats.sequential import Boundary, boundary, check_times, operating_characteristics, wald_bound
from smoothcert.stats.staged import StageBoundaries, stage_boundaries, staged_characteristics

RADII = (0.25, 0.5, 1.0, 2.0, 3.0)
"""Target radii in units of sigma."""
STAGES = (100, 1_000, 10_000, 120_000)
N_MAX = sum(STAGES)
N0 = 100
"""Selection samples of Staged."""
ALPHA = BETA = 0.001
WALD = (12, 17, 25, 35, 50, 70, *np.geomspace(100, N_MAX / 2, 10).tolist())
STORED = Path(__file__).parents[1] / "zoo"
STORED_RADII = (0.5, 1.0, 2.0)
RUNS = {"anytime": 5_000, "staged": 100_000}


@dataclass(frozen=True)
class Point:
    """One true probability, with mean samples and shares of correct decisions."""

    r: float
    p: float
    above: bool
    wald: float
    staged: float
    staged_correct: float
    anytime: float
    anytime_correct: float


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
    ends = operating_characteristics(boundary(threshold, ALPHA, BETA, N_MAX), p)
    return Point(
        r=r,
        p=p,
        above=above,
        wald=wald_bound(p, threshold, ALPHA, BETA),
        staged=N0 + staged.expected_samples,
        staged_correct=float((staged.certify if above else staged.abort).sum()),
        anytime=ends.expected_n,
        anytime_correct=ends.certify if above else ends.refute,
    )


def least_mean(threshold: float, points: list[Point]) -> float:
    """The floor of a radius: the largest value of the dual problem over the prices of the two errors."""
    prices = np.array([1.0 / ALPHA, 1.0 / BETA])
    best = 0.0
    for _ in range(15):
        cost, best_test = cheapest(threshold, points, *prices.tolist())
        errors = np.array(operating_characteristics(best_test, threshold)[:2]) / (ALPHA, BETA)
        best = max(best, cost - float(prices @ (ALPHA, BETA)))  # a lower bound at any prices
        if np.all(np.abs(np.log(errors)) < 0.01):
            break
        prices *= errors**0.9
    return best


def cheapest(threshold: float, points: list[Point], certify: float, refute: float) -> tuple[float, Boundary]:
    """The test with the least mean over the points plus the price of each error times its probability, and that cost.

    Everything is an expectation at p = threshold, so samples at other p are weighted by their likelihood ratio.
    """
    n = check_times(N_MAX)
    shift = special.logit([point.p for point in points]) - special.logit(threshold)
    weight = -np.log([point.wald * len(points) for point in points])
    width = 8.0 * np.sqrt(n * threshold * (1.0 - threshold)) + 40.0
    low = np.maximum(np.floor(n * threshold - width), 0).astype(np.int64)
    high = np.minimum(np.ceil(n * threshold + width), n).astype(np.int64)
    up, down, after = np.empty_like(n), np.empty_like(n), np.empty(0)

    def expected(k: np.ndarray, look: int, votes: int) -> np.ndarray:
        """The mean cost at a look that comes ``votes`` votes after the counts k."""
        pmf = stats.binom.pmf(np.arange(votes + 1), votes, threshold)
        inner = np.arange(k[0], k[-1] + votes + 1) - low[look]
        padded = np.where(
            inner < 0, refute, np.where(inner < len(after), after[np.clip(inner, 0, len(after) - 1)], certify)
        )
        return signal.convolve(padded, pmf[::-1], mode="valid")

    for look in range(len(n) - 1, -1, -1):
        k = np.arange(low[look], high[look] + 1)
        go = np.zeros(len(k))
        if look + 1 < len(n):
            votes = int(n[look + 1] - n[look])
            ratio = weight + k[:, None] * shift - n[look] * np.log1p(threshold * np.expm1(shift))
            go = votes * np.exp(special.logsumexp(ratio, axis=1)) + expected(k, look + 1, votes)
        stop = np.where(k > n[look] * threshold, certify, refute)
        after, going = np.minimum(go, stop), k[go < stop]
        first, last = (going[0], going[-1]) if len(going) else (k[stop == certify][0], k[stop == certify][0] - 1)
        down[look], up[look] = first - 1, last + 1
    cost = float(int(n[0]) * np.exp(weight).sum() + expected(np.zeros(1, dtype=np.int64), 0, int(n[0]))[0])
    return cost, Boundary(threshold, ALPHA, BETA, n, up, down)


def simulate_anytime(threshold: float, p: float, rng: np.random.Generator) -> np.ndarray:
    """Samples used in each run."""
    stop = boundary(threshold, ALPHA, BETA, N_MAX)
    used, k, before = list[int](), np.zeros(RUNS["anytime"], dtype=np.int64), 0
    for n, certify, refute in zip(stop.n.tolist(), stop.certify, stop.refute, strict=True):
        k, before = k + rng.binomial(n - before, p, len(k)), n
        going = (k < certify) & (k > refute) & (n < N_MAX)
        used += [n] * int(np.sum(~going))
        k = k[going]
    return np.array(used)


def simulate_staged(bounds: StageBoundaries, p: float, rng: np.random.Generator) -> np.ndarray:
    """Samples used in each run."""
    runs = RUNS["staged"]
    used, going = np.full(runs, float(N0)), np.ones(runs, dtype=bool)
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


def median_input(folder: Path, r: float) -> float:
    """The mean samples of Anytime for the median input of a stored run, at the radius r σ."""
    test = boundary(float(special.ndtr(r)), ALPHA, BETA, N_MAX)
    shares = [(max(row["counts"]) + 0.5) / (row["n"] + 1) for row in load_run(folder).rows()]
    return float(np.median([operating_characteristics(test, p).expected_n for p in shares]))


def summary(points: list[Point]) -> dict[str, float]:
    """Figures over points: ratios to Wald's bound from 100 samples on, and samples beyond it below."""
    wald, staged, anytime = (
        np.array([getattr(each, name) for each in points]) for name in ("wald", "staged", "anytime")
    )
    large = wald > 99
    return {
        "anytime_over_wald_median": float(np.median(anytime[large] / wald[large])),
        "anytime_over_wald": float(np.mean(anytime[large] / wald[large])),
        "anytime_over_wald_max": float(np.max(anytime[large] / wald[large])),
        "anytime_beyond_small_wald": float(np.mean((anytime - wald)[~large])) if np.any(~large) else 0.0,
        "anytime_beyond_small_wald_max": float(np.max((anytime - wald)[~large])) if np.any(~large) else 0.0,
        "staged_over_wald": float(np.mean(staged[large] / wald[large])),
        "staged_over_anytime": float(np.mean(staged / anytime)),
        "staged_over_anytime_min": float(np.min(staged / anytime)),
    }


def main() -> None:
    begin = time.perf_counter()
    points = [measure(r, p) for r in RADII for p in probabilities(float(special.ndtr(r)))]
    gain = [point.anytime_correct - point.staged_correct for point in points]
    over_all = {r: float(np.mean([point.anytime / point.wald for point in points if point.r == r])) for r in RADII}
    floor = {r: least_mean(float(special.ndtr(r)), [point for point in points if point.r == r]) for r in RADII}
    runs = [Path(name) for name in sys.argv[1:]] or sorted(STORED.glob("*-0.50"))
    medians = {run.name: {r: median_input(run, r) for r in STORED_RADII} for run in runs}
    result = {
        "benchmark": "samples",
        "alpha": ALPHA,
        "beta": BETA,
        "n_max": N_MAX,
        "points": len(points),
        "total": summary(points),
        "mean_over_wald": over_all,
        "floor": floor,
        "correct": {
            "anytime": float(np.mean([point.anytime_correct for point in points])),
            "staged": float(np.mean([point.staged_correct for point in points])),
            "least_gain": min(gain),
        },
        "simulated_deviation": simulated(points),
        "median_input": medians,
        "grid": [vars(point) for point in points],
    }
    print(json.dumps(result | {"seconds": round(time.perf_counter() - begin, 1)}))
    table = Table(title=f"Mean samples at α = β = {ALPHA:g}, n_max = {N_MAX:,}, averaged over the points")
    columns = ("p", "points", "Staged ÷ Wald", "Anytime ÷ Wald", "− Wald < 100", "Staged ÷ Anytime", "correct: S", "A")
    for column in ("r/σ", *columns):
        table.add_column(column, justify="right")
    for r in RADII:
        for above in (False, True):
            group = [point for point in points if point.r == r and point.above == above]
            figures = summary(group)
            table.add_row(
                f"{r:g}",
                "above" if above else "below",
                str(len(group)),
                f"{figures['staged_over_wald']:.2f}",
                f"{figures['anytime_over_wald']:.2f}",
                f"{figures['anytime_beyond_small_wald']:.0f}",
                f"{figures['staged_over_anytime']:.2f}",
                f"{np.mean([point.staged_correct for point in group]):.4f}",
                f"{np.mean([point.anytime_correct for point in group]):.4f}",
            )
    Console().print(table)
    for r in RADII:
        print(f"r/σ = {r:g}: mean of samples ÷ Wald {over_all[r]:.3f}, floor of any test {floor[r]:.3f}")
    for name, samples in medians.items():
        print(f"median input of {name}: " + ", ".join(f"{samples[r]:.0f} samples at r/σ = {r:g}" for r in STORED_RADII))


if __name__ == "__main__":
    main()
