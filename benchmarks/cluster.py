"""What a Ray cluster costs: two workers of one CPU against two processes with a shard each, in alternation.

Both certify the same digits with the same runtime and batch size; the clock runs from the start of the first command to
the end of the last, so starting processes and the cluster counts. The rows must be the same.

Usage: python benchmarks/cluster.py [--inputs 500] [--n 20000] [--turns 3]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from smoothcert import load_run
from smoothcert.store import merge_runs
from smoothcert.training.recipes import load_recipe
from smoothcert.training.run import train_recipe


def command(model: Path, run: Path, chosen: argparse.Namespace, *more: str) -> list[str]:
    what = ["certify", model, "--data", "digits", "--stop", chosen.inputs, "--n", chosen.n, "--run", run]
    how = ["--runtime", "eager", "--batch-size", 200]
    return [sys.executable, "-m", "smoothcert", *map(str, [*what, *how, *more])]


def seconds(commands: list[list[str]]) -> float:
    """The time until all of some commands, started at once, have ended."""
    begin = time.perf_counter()
    running = [subprocess.Popen(one, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for one in commands]
    said = [process.communicate()[1] for process in running]
    took = time.perf_counter() - begin
    for process, text in zip(running, said, strict=True):
        if process.returncode:
            raise SystemExit(text.decode())
    return took


def rows(run: Path) -> list[dict[str, object]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in load_run(run).rows()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=500, help="test digits to certify")
    parser.add_argument("--n", type=int, default=20_000, help="samples of each")
    parser.add_argument("--turns", type=int, default=3, help="how often each way runs")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        train_recipe(load_recipe("digits-gaussian-0.25-quick"), folder / "model", progress=False)
        local, over_ray = [], []
        for turn in range(chosen.turns):
            parts = [folder / f"part-{turn}-{i}" for i in (1, 2)]
            shards = [["--shard", f"{i}/2", "--threads", "1"] for i in (1, 2)]
            given = [command(folder / "model", run, chosen, *shard) for run, shard in zip(parts, shards, strict=True)]
            local.append(seconds(given))
            run = folder / f"ray-{turn}"
            over_ray.append(seconds([command(folder / "model", run, chosen, "--ray", "--ray-workers", "2")]))
            same = rows(run) == rows(merge_runs(parts, folder / f"merged-{turn}").path)
            print(f"turn {turn + 1}: shards {local[-1]:.1f} s, Ray {over_ray[-1]:.1f} s, same rows: {same}", flush=True)
            if not same:
                return 1
            for path in (*parts, run):
                shutil.rmtree(path)
    ratios = [ray / plain for ray, plain in zip(over_ray, local, strict=True)]
    result = {"benchmark": "cluster", "shards": local, "ray": over_ray, "ratio": statistics.median(ratios)}
    print(json.dumps(result))
    print(f"Ray takes {statistics.median(ratios):.3f} × the time of two processes (median of {chosen.turns} turns).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
