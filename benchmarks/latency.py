"""Seconds of single requests on one thread: certify with a deadline of 50 ms, and predict.

A LeNet is trained for a few epochs on the digits, scaled to the size of MNIST. Easy requests are the inputs that can be
certified: those for which CERTIFY with 2,000 samples proves the radius. Forward passes of one block take turns with the
requests, so that the table shows what the machine could do meanwhile.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from smoothcert import Anytime, Cohen, Gaussian, Outcome, Smoothed, data, models
from smoothcert.sampling import BLOCK
from smoothcert.training import train

SIGMA, RADIUS, DEADLINE = 0.25, 0.25, 0.05
REQUESTS = 200


def digits(split: str) -> list[tuple[torch.Tensor, int]]:
    """The digits, of 28 × 28 pixels."""
    rows = list(data.load("digits", split=split))
    images = F.interpolate(torch.stack([x for x, _ in rows]), size=28, mode="bilinear").clamp(0, 1)
    return [(x, y) for x, (_, y) in zip(images, rows, strict=True)]


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def milliseconds(times: list[float]) -> dict[str, float]:
    return {f"p{q}": round(1000 * float(np.percentile(times, q)), 1) for q in (50, 90, 99)}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = models.build("lenet")
    settings = {"epochs": 6, "batch_size": 64, "rate": 0.05, "holdout": 100}
    train(model, digits("train"), noise=Gaussian(SIGMA), progress=False, **settings)
    model.eval()
    inputs = [x for x, _ in digits("test")][:REQUESTS]
    known = Smoothed(model, Gaussian(SIGMA)).certify(inputs, Cohen(n=2_000), seed=0)
    certified = [certificate.radius >= RADIUS for certificate in known]
    smoothed = Smoothed(model, Gaussian(SIGMA))  # has not chosen a runtime for a long run, such as a compiled one
    procedure = Anytime(radius=RADIUS, deadline=DEADLINE)
    smoothed.certify(inputs[0], procedure)
    smoothed.predict(inputs[0])
    block = torch.rand(BLOCK, *inputs[0].shape)
    times: dict[str, list[float]] = {"certify": [], "predict": [], "forward": []}
    outcomes, predictions = [], []
    for x in inputs:
        times["certify"].append(seconds(lambda x=x: outcomes.append(smoothed.certify(x, procedure).outcome)))
        times["predict"].append(seconds(lambda x=x: predictions.append(smoothed.predict(x))))
        with torch.inference_mode():
            times["forward"].append(seconds(lambda: model(block)))
    decided = [outcome is not Outcome.UNDECIDED for outcome in outcomes]
    easy = [done for done, can in zip(decided, certified, strict=True) if can]
    results = {
        "load": os.getloadavg()[0],
        "milliseconds": {name: milliseconds(each) for name, each in times.items()},
        "decided": sum(decided) / len(decided),
        "easy requests": len(easy),
        "easy requests decided": sum(easy) / len(easy),
        "predicted": sum(not each.abstained for each in predictions) / len(predictions),
        "median votes of predict": float(np.median([each.n for each in predictions])),
    }
    print(json.dumps({"benchmark": "latency", "results": results}))
    table = Table(title=f"Milliseconds per request (load {results['load']:.1f}, one thread)")
    for column in ("request", "p50", "p90", "p99", "decided"):
        table.add_column(column, justify="right")
    shares = {
        "certify": f"{results['decided']:.1%}, easy ones {results['easy requests decided']:.1%}",
        "predict": f"{results['predicted']:.1%}",
        "forward": "",
    }
    names = {"certify": f"certify, deadline {1000 * DEADLINE:.0f}", "forward": f"forward pass of {BLOCK} copies"}
    for name, found in results["milliseconds"].items():
        table.add_row(names.get(name, name), *map(str, found.values()), shares[name])
    Console().print(table)


if __name__ == "__main__":
    main()
