"""Wall-clock of certifying 200 digits at the radius r = σ: fixed n = 100 000, Staged, and Anytime, in one process.

All three use one prepared runtime and the same pool; preparing (measuring runtimes) is timed apart. For Anytime the
occupancy of batches is recorded until 98 % of the inputs are answered.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace

import torch
from rich.console import Console
from rich.table import Table

from smoothcert import Anytime, Certificate, Cohen, Gaussian, Procedure, Smoothed, Staged, data, models
from smoothcert.training import train
from smoothcert.types import Outcome

SIGMA = 0.25
INPUTS = 200


def occupancy(history: list[tuple[int, int]], batch_size: int) -> float:
    """Share of filled rows in the batches that ran before 98 % of the inputs were answered."""
    early = [rows for answered, rows in history if answered < 0.98 * INPUTS]
    return sum(early) / (len(early) * batch_size)


def main() -> None:
    torch.manual_seed(0)
    model = models.build("digits-cnn")
    train_digits = data.load("digits", split="train")
    train(model, train_digits, noise=Gaussian(SIGMA), epochs=40, batch_size=64, rate=0.1, holdout=0, progress=False)
    digits = data.load("digits", split="test")
    begin = time.perf_counter()
    runtime = Smoothed(model, Gaussian(SIGMA)).prepare(digits[0][0], samples=INPUTS * 100_000)
    preparing = time.perf_counter() - begin
    answers: list[Certificate] = []
    history: list[tuple[int, int]] = []

    def counted(batch: torch.Tensor) -> torch.Tensor:
        history.append((len(answers), len(batch)))
        return runtime.run(batch)

    smoothed = Smoothed(model, Gaussian(SIGMA), runtime=replace(runtime, run=counted))
    procedures: dict[str, Procedure] = {
        "anytime": Anytime(radius=SIGMA),
        "staged": Staged(radius=SIGMA, beta=0.001),
        "cohen": Cohen(),
    }
    results: dict[str, dict[str, float]] = {}
    for name, procedure in procedures.items():
        answers.clear()
        history.clear()
        inputs = [(index, digits[index][0]) for index in range(INPUTS)]
        begin = time.perf_counter()
        for _, certificate in smoothed.run(inputs, procedure, procedure.certify):
            answers.append(certificate)
        seconds = time.perf_counter() - begin
        held = sum(c.radius >= SIGMA for c in answers)
        results[name] = {
            "seconds": seconds,
            "samples per input": sum(c.samples for c in answers) / INPUTS,
            "drawn per input": sum(rows for _, rows in history) / INPUTS,  # with those drawn ahead in vain
            "certified at r": held,
            "refuted": sum(c.outcome is Outcome.REFUTED for c in answers),
            "undecided": sum(c.outcome is Outcome.UNDECIDED for c in answers),
            "occupancy": occupancy(history, runtime.batch_size),
        }
    speedup = {name: results["cohen"]["seconds"] / r["seconds"] for name, r in results.items()}
    report = {"preparing": preparing, "runtime": runtime.name, "results": results, "speedup": speedup}
    print(json.dumps({"benchmark": "dataset", **report}))
    table = Table(title=f"{INPUTS} digits at r = σ = {SIGMA:g} ({runtime.name}, batches of {runtime.batch_size})")
    for column in ("procedure", "seconds", "× faster", "samples", "drawn", "certified at r", "refuted", "occupancy"):
        table.add_column(column, justify="right")
    for name, r in results.items():
        table.add_row(
            name,
            f"{r['seconds']:.2f}",
            f"{speedup[name]:.1f}",
            f"{r['samples per input']:,.0f}",
            f"{r['drawn per input']:,.0f}",
            f"{r['certified at r']}",
            f"{r['refuted']}",
            f"{r['occupancy']:.1%}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
