"""The runner-up bound on stored runs: samples and ACR of Anytime with either bound, and the stored votes recomputed.

The shares of the 100,000 votes of an input are the true probabilities of its classes; noisy copies are then drawn from
them. Every input is certified with its budget alone, and with each target radius. The plain bound and the runner-up
bound have the same seeds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from smoothcert import Anytime, Gaussian
from smoothcert.certify import Task, answer
from smoothcert.report.recompute import recompute
from smoothcert.sampling import Draw
from smoothcert.store import find_results
from smoothcert.store.result import vote_matrix
from smoothcert.types import BOUNDS, Certificate, Outcome, Votes

RUNS = Path(__file__).parent / "mnist" / "runs"
RADII = (0.25, 0.5, 1.0, 1.5)
BUDGETS = (1_000, 10_000, 100_000)
N_MAX = 100_000
"""The budget of an input with a target."""


def drawn(shares: np.ndarray, rng: np.random.Generator) -> Callable[[Draw], tuple[Votes, ...]]:
    """Votes of a classifier whose classes have these probabilities; the last share is that of invalid copies."""
    return lambda request: (Votes(n=request.n, counts=tuple(rng.multinomial(request.n, shares)[:-1].tolist())),)


def certify(every: np.ndarray, sigma: float, procedure: Anytime) -> list[Certificate]:
    """Certify one input for each row of shares."""
    found = []
    for index, shares in enumerate(every):
        task = Task(Gaussian(sigma), every.shape[1] - 1, 1, seed=0, index=index)
        found.append(answer(procedure.certify(task), drawn(shares, np.random.default_rng(index))))
    return found


def correct(found: Sequence[Certificate], labels: np.ndarray) -> np.ndarray:
    return np.array([each.label for each in found]) == labels


def measure(shares: np.ndarray, labels: np.ndarray, sigma: float, bound: str) -> dict[str, object]:
    """ACR for each budget; mean samples, and the shares certified, of the right class, and refuted, for each radius."""
    acr, targets = {}, {}
    for budget in BUDGETS:
        found = certify(shares, sigma, Anytime(n_max=budget, bound=bound))
        acr[budget] = float(np.mean(correct(found, labels) * np.array([each.radius for each in found])))
    for r in RADII:
        begin = time.perf_counter()
        found = certify(shares, sigma, Anytime(r * sigma, n_max=N_MAX, bound=bound))
        samples = np.array([each.samples for each in found])
        certified = np.array([each.outcome is Outcome.CERTIFIED for each in found])
        targets[r] = {
            "samples": float(samples.mean()),
            "median": float(np.median(samples)),
            "certified": float(np.mean(certified & correct(found, labels))),
            "refuted": float(np.mean([each.outcome is Outcome.REFUTED for each in found])),
            "ms": 1e3 * (time.perf_counter() - begin) / len(found),
        }
    return {"acr": acr, "targets": targets}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, default=sorted(RUNS.iterdir()))
    parser.add_argument("--every", type=int, default=1, help="use every N-th input")
    options = parser.parse_args()
    rows = []
    for result in find_results(options.runs):
        table = result.table()
        counts = vote_matrix(result.path, "counts", table["counts"])
        n = table["n"].to_numpy()
        shares = np.column_stack([counts, n - counts.sum(axis=1)]) / n[:, None]
        noise, labels = result.settings.build_noise(), table["label"].to_numpy()
        assert isinstance(noise, Gaussian)
        stored = {bound: recompute(result, bound=bound) for bound in BOUNDS}
        row = {"run": result.name, "inputs": len(labels), "sigma": noise.sigma}
        row["stored"] = {bound: float(np.mean(each.correct * each.radius)) for bound, each in stored.items()}
        for bound in BOUNDS:
            row[bound] = measure(shares[:: options.every], labels[:: options.every], noise.sigma, bound)
        rows.append(row)
        print(json.dumps(row))
    for what, pick in [
        *((f"ACR, n_max = {budget:,}", lambda found, b=budget: found["acr"][b]) for budget in BUDGETS),
        *((f"samples at r = {r} sigma", lambda found, r=r: found["targets"][r]["samples"]) for r in RADII),
        *((f"median at r = {r} sigma", lambda found, r=r: found["targets"][r]["median"]) for r in RADII),
        *((f"certified at r = {r} sigma", lambda found, r=r: found["targets"][r]["certified"]) for r in RADII),
        *((f"ms at r = {r} sigma", lambda found, r=r: found["targets"][r]["ms"]) for r in RADII),
    ]:
        before, after = (np.array([pick(row[bound]) for row in rows]) for bound in BOUNDS)
        print(f"{what:28}", *(f"{a:.4g} → {b:.4g} ({b / a - 1:+.1%})" for a, b in zip(before, after, strict=True)))


if __name__ == "__main__":
    main()
