"""Seconds and memory until smoothcert answers: imports, the command line, the first certificate, and one prediction.

Every measurement but the last is a new process with warm files. The processes take turns, and the table shows medians.
The plain loop classifies as many noisy copies as the first certificate draws. ``predict`` decides one clear input, in
turns with forward passes of as many copies as it drew.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

LENET = """
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
from smoothcert import models
model, x = models.build("lenet").eval(), torch.rand(1, 28, 28)
"""

MAKE_RUN = """
import sys, torch
import smoothcert as sc
linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
digits = sc.data.load("digits", split="test")
sc.certify_dataset(sc.Smoothed(linear, sc.Gaussian(0.25)), digits, sc.Cohen(n=1_000), run=sys.argv[1], seed=1)
"""

CERTIFY = f"""{LENET}
import smoothcert as sc
sc.Smoothed(model, sc.Gaussian(0.25)).certify(x, sc.Cohen(n=1_000))
"""

LOOP = f"""{LENET}
with torch.inference_mode():
    for count in (100, 500, 500):
        model(x + 0.25 * torch.randn(count, *x.shape)).argmax(1).bincount(minlength=10)
"""

PREDICT = f"""{LENET}
import json, statistics, time
import smoothcert as sc
from smoothcert.sampling import BLOCK
smoothed = sc.Smoothed(model, sc.Gaussian(0.25))
rows, found = torch.rand(BLOCK, *x.shape), {{"predict": [], "forwards": []}}
for _ in range(220):
    begin = time.perf_counter()
    prediction = smoothed.predict(x)
    middle = time.perf_counter()
    with torch.inference_mode():
        for _ in range(prediction.n // BLOCK):
            model(rows)
    end = time.perf_counter()
    found["predict"].append(middle - begin)
    found["forwards"].append(end - middle)
print(json.dumps({{name: statistics.median(times[20:]) for name, times in found.items()}} | {{"n": prediction.n}}))
"""


def measured(command: list[str]) -> tuple[float, float]:
    """Run a command; return its seconds and its largest memory in MB."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    if process.returncode is None:
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} failed with exit code {process.returncode}.")
    return seconds, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7, help="processes of each kind")
    turns = parser.parse_args().turns
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        subprocess.run([sys.executable, "-c", MAKE_RUN, str(run)], check=True, capture_output=True)
        commands = {
            "import torch": ["-c", "import torch"],
            "import smoothcert": ["-c", "import smoothcert"],
            "import both": ["-c", "import torch, smoothcert"],
            "smoothcert --help": ["-m", "smoothcert", "--help"],
            "smoothcert table RUN": ["-m", "smoothcert", "table", str(run)],
            "smoothcert compare RUN RUN": ["-m", "smoothcert", "compare", str(run), str(run)],
            "plain loop, n = 1,000": ["-c", LOOP],
            "first certificate, n = 1,000": ["-c", CERTIFY],
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for turn in range(turns + 1):
            for name, arguments in commands.items():
                result = measured([sys.executable, *arguments])
                if turn:  # the first turn reads the files from the disk and compiles them
                    found[name].append(result)
    seconds = {name: median(each for each, _ in results) for name, results in found.items()}
    memory = {name: median(each for _, each in results) for name, results in found.items()}
    printed = subprocess.run([sys.executable, "-c", PREDICT], check=True, capture_output=True, text=True).stdout
    one = json.loads(printed)
    results = {"load": os.getloadavg()[0], "seconds": seconds, "megabytes": memory, "predict": one}
    print(json.dumps({"benchmark": "start", "results": results}))

    from rich.console import Console  # after the measurements: a process starts with the memory of this one
    from rich.table import Table

    table = Table(title=f"Fresh processes, medians of {turns} (load {results['load']:.1f})")
    for column in ("process", "seconds", "÷ import torch", "MB"):
        table.add_column(column, justify="left" if column == "process" else "right")
    for name, each in seconds.items():
        table.add_row(name, f"{each:.2f}", f"{each / seconds['import torch']:.2f}", f"{memory[name]:.0f}")
    Console().print(table)
    took, needed = 1000 * one["predict"], 1000 * one["forwards"]
    print(f"predict on one input, {one['n']} votes: {took:.1f} ms; their forward passes: {needed:.1f} ms")


if __name__ == "__main__":
    main()
