"""The runner-up bound on stored runs: ACR and samples of Anytime with either bound, and the stored votes recomputed.

The shares of the 100,000 votes of an input are taken as the true probabilities of its classes, and the votes of Anytime
are drawn from them. A simulated model has ten classes, a top class of 30 to 95 % and a random division of the rest.
Each input is certified with a budget alone, and with a budget of 100,000 and each target radius.
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

RUNS = Path(__file__).parents[1] / "zoo"
RADII = (0.25, 0.5, 1.0, 1.5)
BUDGETS = (1_000, 10_000, 100_000)
N_MAX = 100_000
"""The budget of an input with a target."""


def drawn(shares: np.ndarray, rng: np.random.Generator) -> Callable[[Draw], tuple[Votes, ...]]:
    """Votes of a classifier whose classes have these probabilities; the last share is that of invalid copies."""
    return lambda request: (Votes(n=request.n, counts=tuple(rng.multinomial(request.n, shares)[:-1].tolist())),)


def certify(every: np.ndarray, sigma: float, procedure: Anytime, repeats: int) -> list[Certificate]:
    """Certify one input for each row of shares, several times."""
    found = []
    for index, shares in enumerate(np.repeat(every, repeats, axis=0)):
        task = Task(Gaussian(sigma), every.shape[1] - 1, 1, seed=0, index=index)
        found.append(answer(procedure.certify(task), drawn(shares, np.random.default_rng(index))))
    return found


def measure(shares: np.ndarray, labels: np.ndarray, sigma: float, bound: str, repeats: int) -> dict[str, float]:
    """ACR for each budget; for each radius mean and median samples, and the shares certified and undecided."""
    wanted, figures = np.repeat(labels, repeats), {}

    def correct(found: Sequence[Certificate]) -> np.ndarray:
        return np.array([each.label for each in found]) == wanted

    for budget in BUDGETS:
        found = certify(shares, sigma, Anytime(n_max=budget, bound=bound), repeats)
        figures[f"ACR, {budget:,} samples"] = float(np.mean(correct(found) * [each.radius for each in found]))
    for r in RADII:
        certify(shares[:1], sigma, Anytime(r * sigma, n_max=N_MAX, bound=bound), 1)  # makes the tables
        begin = time.process_time()
        found = certify(shares, sigma, Anytime(r * sigma, n_max=N_MAX, bound=bound), repeats)
        figures[f"{r:g} σ, ms"] = 1e3 * (time.process_time() - begin) / len(found)
        samples = np.array([each.samples for each in found])
        figures |= {f"{r:g} σ, mean samples": float(samples.mean()), f"{r:g} σ, median": float(np.median(samples))}
        for outcome in (Outcome.CERTIFIED, Outcome.UNDECIDED):
            share = np.mean([each.outcome is outcome for each in found] & (correct(found) | (outcome != "certified")))
            figures[f"{r:g} σ, {outcome.value} %"] = 100 * float(share)
    return figures


def simulated(inputs: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Shares of ten classes, and the likeliest class of each input."""
    rng = np.random.default_rng(0)
    top = rng.uniform(0.3, 0.95, inputs)
    shares = np.column_stack([top, rng.dirichlet(np.ones(9), inputs) * (1 - top)[:, None], np.zeros(inputs)])
    return shares, shares.argmax(axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, default=sorted(RUNS.glob("*-0.50")))
    parser.add_argument("--repeats", type=int, default=4, help="streams of votes for each input")
    options = parser.parse_args()
    models = {"simulated": (*simulated(), 0.5)}
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for result in find_results(options.runs):
        table = result.table()
        counts, n = vote_matrix(result.path, "counts", table["counts"]), table["n"].to_numpy()
        shares = np.column_stack([counts, n - counts.sum(axis=1)]) / n[:, None]
        noise = result.settings.build_noise()
        assert isinstance(noise, Gaussian)
        models[result.name] = shares, table["label"].to_numpy(), noise.sigma
        stored = {bound: recompute(result, bound=bound) for bound in BOUNDS}
        rows[result.name] = {
            bound: {"ACR, stored votes": float(np.mean(each.correct * each.radius))} for bound, each in stored.items()
        }
    for name, model in models.items():
        row = rows.setdefault(name, {bound: {} for bound in BOUNDS})
        for bound in BOUNDS:
            row[bound] |= measure(*model, bound, options.repeats)
        print(json.dumps({"benchmark": "runner_up", "model": name, **row}))
    print("\n| " + " | ".join(["", *models]) + " |\n|" + "---|" * (len(models) + 1))
    for what in rows[next(iter(rows))][BOUNDS[0]]:
        cells = (
            " → ".join(f"{row[bound][what]:.4g}" for bound in BOUNDS if what in row[bound])
            for row in (rows[name] for name in models)
        )
        print("| " + " | ".join([what, *cells]) + " |")


if __name__ == "__main__":
    main()
