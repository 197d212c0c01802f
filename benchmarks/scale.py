"""Where a run over a million ImageNet images would break: what one driver can lease and write, and what it must read.

Measures on this machine, for images of 3×224×224 and 1 000 classes: samples per second of a ResNet-50 on one core;
inputs per second that one driver leases to two Ray workers which answer at once, images included; rows per second that
the writer keeps; the size of a row on disk and in memory; and how long a run takes to open again.

Usage: python benchmarks/scale.py [--rows 3000]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from smoothcert import Cohen, Gaussian, load_run, models
from smoothcert.certify import Task, answer
from smoothcert.evaluate.cluster import Cluster, worker_pool
from smoothcert.sampling.runtimes import prepare
from smoothcert.store.rows import certificate_row
from smoothcert.store.run import open_run
from smoothcert.types import Votes

CLASSES, SHAPE = 1000, (3, 224, 224)


class Instant:
    """Work that takes no time."""

    def begin(self, like: Mapping[str, Any] | None) -> Mapping[str, Any]:
        return {}

    def answers(self, inputs: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
        for index, _ in inputs:
            yield index, row(index)


def row(index: int) -> dict[str, Any]:
    """A row of a run with 1 000 classes and n = 100 000, most of whose votes go to a few of them."""
    rng = np.random.default_rng(index)
    shares = rng.dirichlet(np.full(CLASSES, 0.01))

    def draw(request: Any) -> tuple[Votes]:
        counts = rng.multinomial(request.n, shares)
        steps = [10**power for power in range(1, 7) if 10**power < request.n]
        return (
            Votes(request.n, tuple(counts.tolist()), {n: tuple(rng.multinomial(n, shares).tolist()) for n in steps}),
        )

    task = Task(Gaussian(0.5), CLASSES, int(np.prod(SHAPE)), 0, index)
    return certificate_row(answer(Cohen().certify(task), draw), 0, 1.0)


def resnet_rate() -> float:
    torch.set_num_threads(1)
    model = models.build("resnet50").eval()
    return float(prepare(model, torch.rand(SHAPE), samples=50_000, runtime="eager").notes["rates"]["eager"])


def lease_rate(count: int) -> float:
    """Inputs per second over Ray; the clock starts when the first worker has begun."""
    image = torch.rand(SHAPE)
    with worker_pool(Cluster(workers=2), Instant(), count) as pool:
        begin = time.perf_counter()
        answered = sum(1 for _ in pool.run(((index, image.clone()) for index in range(count)), count))
        assert answered == count
        return count / (time.perf_counter() - begin)


def write_rates(folder: Path, count: int) -> dict[str, float]:
    made = [row(index) for index in range(count)]
    begin = time.perf_counter()
    with open_run(folder, {"kind": "certification"}, {}) as writer:
        for one in made:
            writer.append(one)
        writer.seal()
    took = time.perf_counter() - begin
    parts = sum(part.stat().st_size for part in folder.glob("*.parquet"))
    pending = np.mean([len(json.dumps(one)) for one in made[:100]])
    return {"rows per second": count / took, "bytes of a row": parts / count, "of a pending row": float(pending)}


def open_cost(folder: Path, columns: list[str] | None) -> dict[str, float]:
    """Seconds to read a run, and the memory that its table takes."""
    begin = time.perf_counter()
    table = load_run(folder).table(columns)
    return {"seconds": time.perf_counter() - begin, "bytes": float(table.nbytes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=3000, help="rows to write and to lease")
    chosen = parser.parse_args()
    found: dict[str, Any] = {"benchmark": "scale", "resnet50 samples per second of a core": resnet_rate()}
    found["leased inputs per second"] = lease_rate(chosen.rows)
    with tempfile.TemporaryDirectory() as work:
        found |= write_rates(Path(work) / "run", chosen.rows)
        for name, columns in (("resume", ["outcome", "predict"]), ("all votes", None)):
            cost = open_cost(Path(work) / "run", columns)
            found[f"{name}: seconds per million rows"] = cost["seconds"] / chosen.rows * 1e6
            found[f"{name}: bytes per row"] = cost["bytes"] / chosen.rows
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
