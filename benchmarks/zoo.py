"""Write the cards and the index of the zoo from its models and their runs.

Usage: python benchmarks/zoo.py
"""

from __future__ import annotations

import json
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

import numpy as np

from smoothcert import load_run
from smoothcert.models import describe
from smoothcert.models.zoo import CARD, INDEX, MODEL, ZooFile, ZooIndex, write_index
from smoothcert.report.intervals import acr_interval, wilson_interval
from smoothcert.report.metrics import average_certified_radius, certified_counts, radii_or_default
from smoothcert.report.recompute import outcomes_of
from smoothcert.store import Run

ROOT = Path(__file__).parents[1]
ZOO = ROOT / "zoo"
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
LARGEST = 2_000_000
"""The size of a model, in bytes."""

MINUTES = Path(__file__).parent / "minutes.json"
"""Minutes of training by model, measured with nothing else running (``--time``)."""


def card(folder: Path) -> dict[str, Any]:
    """Describe a model and its certification; intervals are 95 % intervals over the test sample."""
    described = describe(folder / MODEL)
    extra = described.info.extra
    return {
        "name": folder.name,
        "license": "Apache-2.0",
        "architecture": described.info.architecture,
        "parameters": described.parameters,
        "sha256": described.sha256,
        "noise": described.info.noise,
        "recipe": extra["recipe"],
        "epochs": extra["epoch"],
        "training_minutes": minutes().get(folder.name),
        "certification": certification(load_run(folder)),
    }


def certification(run: Run) -> dict[str, Any]:
    outcomes = outcomes_of(run)
    radii = radii_or_default([outcomes], None)
    config, total = run.config, len(outcomes)
    counts = [int(count) for count in certified_counts(outcomes, radii)]
    p_lower = np.quantile(run.table(["p_lower"])["p_lower"].to_numpy(), LEVELS, method="inverted_cdf")
    return {
        "data": {name: config["data"][name] for name in ("name", "split", "sha256")},
        "inputs": {**config["inputs"], "number": total},
        "noise": config["noise"],
        "procedure": config["procedure"],
        "seed": config["seed"],
        "acr": _rounded(average_certified_radius(outcomes)),
        "acr_interval": [_rounded(value) for value in acr_interval(outcomes)],
        "certified_accuracy": [
            {"radius": radius, "share": count / total, "interval": [_rounded(v) for v in wilson_interval(count, total)]}
            for radius, count in zip(radii, counts, strict=True)
        ],
        "p_lower_quantiles": {f"{level:g}": _down(p) for level, p in zip(LEVELS, p_lower.tolist(), strict=True)},
    }


def _rounded(value: float) -> float:
    return round(float(value), 6)


def _down(value: float) -> float:
    return float(Decimal(repr(value)).quantize(Decimal("0.000001"), rounding=ROUND_FLOOR))


def minutes() -> dict[str, float]:
    """The minutes of training measured before, by model."""
    found: dict[str, float] = json.loads(MINUTES.read_text())
    return found


def complete(folder: Path) -> bool:
    return (folder / MODEL).exists() and (folder / "run.json").exists()


def write_zoo(zoo: Path = ZOO) -> None:
    """Write the card of every model that has a run, and the index."""
    models = {}
    for folder in sorted(filter(complete, zoo.iterdir())):
        if (size := (folder / MODEL).stat().st_size) > LARGEST:
            raise SystemExit(f"{folder.name} has {size} bytes, more than {LARGEST}.")
        (folder / "pending.jsonl").unlink(missing_ok=True)  # empty after a run
        (folder / CARD).write_text(json.dumps(card(folder), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        files = sorted(file for file in folder.iterdir() if not file.name.startswith("."))
        models[folder.name] = {file.name: ZooFile.of(file.read_bytes()) for file in files}
    write_index(ZooIndex(models=models), zoo)
    print(f"{zoo / INDEX}: {len(models)} models")


if __name__ == "__main__":
    write_zoo()
