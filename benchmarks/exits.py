"""Do commands end as they should? Start many processes under load and count their exit codes.

A process can print the right answer and still crash while the interpreter shuts down, where threads of a library
outlive what they use. Each process is one ordinary command or one that must be refused, with as many threads as
libraries start on a machine with many cores, which makes such crashes more frequent. Exits with 1 if one of them ends
with another code than it should, such as -6 (SIGABRT) or -11 (SIGSEGV).
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from smoothcert import models
from smoothcert.store.parts import parts_of

THREADS = 32


@dataclass(frozen=True)
class Case:
    """A command and the exit code it should end with; ``{new}`` stands for a path that does not exist yet."""

    command: str
    code: int = 0


CASES = (
    Case("table {run}"),
    Case("table {run} {run} --intervals -o {new}"),
    Case("table {run} --radii nonsense", 2),
    Case("table {damaged}", 1),
    Case("info {run}"),
    Case("info {damaged}", 1),
    Case("export {run} -o {new}"),
    Case("export {run} -o {new}/log", 1),
    Case("certify {model} --data digits --n 100 --every 100 --run {run}"),
    Case("certify {model} --data digits --n 100 --stop 2 --run {new}"),
    Case("certify {model} --data digits --n 200 --every 100 --run {run}", 1),
    Case("compare {run} {damaged}", 1),
)


def prepare(work: Path) -> dict[str, str]:
    """Make a checkpoint, a finished run, and a damaged copy of it."""
    model, run, damaged = work / "model.safetensors", work / "run", work / "damaged"
    torch.manual_seed(0)
    models.save_checkpoint(model, models.build("digits-cnn"), models.CheckpointInfo.of("digits-cnn", sigma=0.25))
    places = {"model": str(model), "run": str(run), "damaged": str(damaged)}
    done = start(CASES[8], {**places, "new": ""})
    if done.returncode:
        raise SystemExit(f"the run to read could not be made: {done.stderr}")
    shutil.copytree(run, damaged)
    part = parts_of(damaged)[0]
    os.truncate(part, part.stat().st_size // 2)
    return places


def start(case: Case, places: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command in a process."""
    command = [sys.executable, "-m", "smoothcert", *case.command.format(**places).split()]
    many = {**os.environ, "OMP_NUM_THREADS": str(THREADS)}  # PyTorch and Arrow both go by it
    return subprocess.run(command, env=many, capture_output=True, text=True, check=False)


def count(work: Path, times: int, jobs: int) -> dict[Case, Counter[int]]:
    """The exit codes of each command, over ``times`` processes, ``jobs`` of them at a time."""
    places = prepare(work)
    codes: dict[Case, Counter[int]] = {case: Counter() for case in CASES}

    def one(numbered: tuple[int, Case]) -> tuple[Case, subprocess.CompletedProcess[str]]:
        number, case = numbered
        return case, start(case, {**places, "new": str(work / f"new-{number}")})

    def results() -> Iterator[tuple[Case, subprocess.CompletedProcess[str]]]:
        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(one, enumerate(itertools.islice(itertools.cycle(CASES), times)))

    for case, done in track(results(), "processes", total=times, console=Console(stderr=True)):
        codes[case][done.returncode] += 1
        if done.returncode != case.code:
            last = (done.stderr.strip().splitlines() or [""])[-1]
            print(f"{case.command}: ended with {done.returncode} instead of {case.code}: {last}", flush=True)
    return codes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=500, help="processes in all")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), help="processes at a time")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        codes = count(Path(work), chosen.times, chosen.jobs)
    table = Table("command", "should end with", "ended with", title=f"{chosen.times} processes")
    for case, found in codes.items():
        ended = ", ".join(f"{code}: {times}" for code, times in sorted(found.items()))
        table.add_row(case.command, str(case.code), ended)
    Console(width=140).print(table)
    wrong = sum(times for case, found in codes.items() for code, times in found.items() if code != case.code)
    print(f"{wrong} of {chosen.times} processes ended with another code than they should.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
