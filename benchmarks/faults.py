"""Does a run survive anything? Strike small runs with random faults, resume, compare with a run that was left alone.

A row counts as reported once ``append`` returned; a journal outside the run folder notes it. After a fault the same
call is made again. It must end with the rows of the unbroken run; it may refuse first, and then what its sentence asks
for is done. A reported row that has to be computed again is lost, unless the fault destroyed bytes and that was said.
Exits with 1 if a row is lost or doubled, a run ends otherwise, or destroyed bytes go unnoticed.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from smoothcert import Cohen, Gaussian, Smoothed, certify_dataset, data
from smoothcert.evaluate.cluster import Cluster
from smoothcert.sampling.runtimes import unprepared
from smoothcert.store import pending, run
from smoothcert.store.parts import parts_of, read_part, write_part
from smoothcert.types import RunError

INPUTS = 60
ROWS_PER_PART = 7  # so that parts are written often


Prepare = Callable[[], None]


@dataclass
class Bench:
    """What all attempts share.

    Attributes:
        work: A folder for journals, in addition to the run folders.
        smoothed: The classifier of this fault; never run in this process, so that forks of it are safe.
        seconds: How long an unbroken attempt takes.
        disk: A small disk, for a fault that fills it.
        cluster: The Ray cluster that certifies, for a fault that strikes one.
    """

    work: Path
    smoothed: Smoothed
    dataset: Any
    seconds: float = 1.0
    disk: Path | None = None
    cluster: Cluster | None = None

    def start(self, folder: Path, prepare: Prepare | None = None) -> multiprocessing.process.BaseProcess:
        """Set a process to certify into a folder; ``prepare`` is called in it first."""
        process = multiprocessing.get_context("fork").Process(target=self._certify, args=(folder, prepare))
        process.start()
        return process

    def attempt(self, folder: Path, prepare: Prepare | None = None) -> dict[str, Any]:
        """Certify into a folder and wait; gives what the process wrote at its end, nothing if it was killed."""
        (self.work / "answer").unlink(missing_ok=True)
        process = self.start(folder, prepare)
        process.join(120)
        answer = self.work / "answer"
        return json.loads(answer.read_text()) if answer.exists() else {}

    def reported(self) -> list[int]:
        """The inputs whose rows were reported as written, once for every time."""
        journal = self.work / "journal"
        return [int(line) for line in journal.read_text().split()] if journal.exists() else []

    def _certify(self, folder: Path, prepare: Prepare | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        journal = os.open(self.work / "journal", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        answer: dict[str, Any] = {}
        run.ROWS_PER_PART = ROWS_PER_PART
        append = run.RunWriter.append

        def noted(writer: run.RunWriter, row: run.Row) -> None:
            append(writer, row)
            os.write(journal, b"%d\n" % row["index"])

        run.RunWriter.append = noted  # type: ignore[method-assign]
        try:
            if prepare is not None:
                prepare()
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always", UserWarning)
                options: dict[str, Any] = {"stop": INPUTS, "seed": 0, "progress": False, "cluster": self.cluster}
                done = certify_dataset(self.smoothed, self.dataset, Cohen(n=300), run=folder, **options)
            answer["said"] = [str(warning.message) for warning in said if "pending.jsonl" in str(warning.message)]
            rows = [{key: value for key, value in row.items() if key != "seconds"} for row in done.rows()]
            answer["rows"] = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
            stored = [index for part in parts_of(folder) for index in read_part(part)["index"].to_pylist()]
            answer["doubled"] = len(stored) - len(set(stored))
        except RunError as error:
            answer["error"] = str(error)
        except KeyboardInterrupt:
            answer["error"] = "stopped"
        except Exception as error:  # the bench must show it, whatever it is
            answer["error"] = f"{type(error).__name__}: {error}"
        (self.work / "answer").write_text(json.dumps(answer))
        os._exit(0)


Strike = Callable[[Bench, Path, random.Random], bool]
"""Starts a run in a folder and harms it; false if it came too late for that."""


def kill_later(how: signal.Signals) -> Strike:
    def strike(bench: Bench, folder: Path, pick: random.Random) -> bool:
        process = bench.start(folder)
        time.sleep(pick.uniform(0, bench.seconds))
        alive = process.is_alive()
        if alive:
            os.kill(process.pid, how)
        process.join(120)
        return alive

    return strike


def stop_after(bench: Bench, folder: Path, pick: random.Random) -> bool:
    """Leave an unfinished run behind, with parts and pending rows."""
    count = pick.choice([n for n in range(ROWS_PER_PART + 1, INPUTS) if n % ROWS_PER_PART])

    def prepare() -> None:
        append = run.RunWriter.append

        def last(writer: run.RunWriter, row: run.Row) -> None:
            append(writer, row)
            if len(writer.done) == count:
                os.kill(os.getpid(), signal.SIGKILL)

        run.RunWriter.append = last  # type: ignore[method-assign]

    return not bench.attempt(folder, prepare)


def kill_in_seal(bench: Bench, folder: Path, pick: random.Random) -> bool:
    """Kill between any two steps of moving pending rows into a part."""
    seal, step = pick.randrange(INPUTS // ROWS_PER_PART), pick.choice(["aside", "renamed", "uncounted", "cleared"])

    def prepare() -> None:
        def writing(path: Path, table: Any, config: str | None) -> None:
            last = int(path.stem.removeprefix("part-")) == seal
            if last and step == "aside":
                path.with_name(f".{path.name}.{os.getpid()}.tmp").write_bytes(b"PAR1")
                os.kill(os.getpid(), signal.SIGKILL)
            write_part(path, table, config)
            if last and step == "renamed":
                os.kill(os.getpid(), signal.SIGKILL)
            if last:
                pending.PendingFile.clear = clear  # type: ignore[method-assign]

        def clear(file: pending.PendingFile) -> None:
            file._write_count(0)
            if step == "cleared":
                file._file.truncate(file._head)
            os.kill(os.getpid(), signal.SIGKILL)

        run.write_part = writing  # type: ignore[assignment]

    return not bench.attempt(folder, prepare)


def fill_disk(bench: Bench, folder: Path, pick: random.Random) -> bool:
    """Let the disk be full from some moment on: a small one, or by a limit on the size of files."""
    if bench.disk is not None:
        ballast = bench.disk / "ballast"
        free = shutil.disk_usage(bench.disk).free
        ballast.write_bytes(bytes(max(0, free - 4096 * pick.randrange(4, 40))))
        answer = bench.attempt(folder)
        ballast.unlink()
    else:
        import resource

        size = pick.randrange(500, 12_000)
        answer = bench.attempt(folder, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
    error = answer.get("error")
    if error is not None and "free space" not in error:
        raise AssertionError(f"a full disk was answered by: {error}")
    return error is not None


def cut_part(bench: Bench, folder: Path, pick: random.Random) -> bool:
    stop_after(bench, folder, pick)
    part = parts_of(folder)[-1]
    os.truncate(part, pick.randrange(part.stat().st_size))
    return True


def cut_pending(bench: Bench, folder: Path, pick: random.Random) -> bool:
    stop_after(bench, folder, pick)
    file = folder / pending.NAME
    os.truncate(file, pick.randrange(1, file.stat().st_size))
    return True


def flip_byte(bench: Bench, folder: Path, pick: random.Random) -> bool:
    stop_after(bench, folder, pick)
    file = pick.choice([folder / "run.json", folder / pending.NAME, pick.choice(parts_of(folder))])
    content = bytearray(file.read_bytes())
    content[pick.randrange(len(content))] ^= pick.randrange(1, 256)
    file.write_bytes(content)
    return True


def delete_temporary(bench: Bench, folder: Path, pick: random.Random) -> bool:
    stop_after(bench, folder, pick)
    temporaries = [folder / f".{name}.1.tmp" for name in ("run.json", "part-000009.parquet", pending.NAME)]
    for temporary in temporaries:
        temporary.write_bytes(pick.randbytes(100))
    pick.choice(temporaries).unlink()
    return True


class Pause(torch.nn.Module):
    """Takes its time, so that a run over a cluster is not done before something happens to it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.1)
        return x


def kill_over_ray(victim: str) -> Strike:
    """Kill the driver of a run over a cluster of two workers, or one of these; the run itself must survive that."""

    def strike(bench: Bench, folder: Path, pick: random.Random) -> bool:
        bench.cluster = Cluster(workers=2)
        (bench.work / "answer").unlink(missing_ok=True)
        process = bench.start(folder)
        bench.cluster = None
        while process.is_alive() and not bench.reported():
            time.sleep(0.01)
        time.sleep(pick.uniform(0, 1.5))
        victims = [process.pid] if victim == "driver" else workers_below(process.pid)
        struck = process.is_alive() and bool(victims)
        if struck:
            os.kill(pick.choice(victims), signal.SIGKILL)
        process.join(120)
        finished = (bench.work / "answer").exists()
        if struck and victim == "worker" and not finished:
            raise AssertionError("a run did not survive the loss of a worker")
        return struck and (victim == "worker" or not finished)

    return strike


def workers_below(pid: int | None) -> list[int]:
    """The Ray workers of a driver: children of its raylet."""
    parents = {}
    for entry in Path("/proc").iterdir():
        try:
            name = (entry / "cmdline").read_bytes()
            parents[int(entry.name)] = (int((entry / "stat").read_text().rpartition(")")[2].split()[1]), name)
        except (OSError, ValueError):
            continue
    found = [(one, parent) for one, (parent, name) in parents.items() if name.startswith(b"ray::Worker")]
    return [one for one, parent in found if parents.get(parent, (0, b""))[0] == pid]


@dataclass(frozen=True)
class Fault:
    """A way to harm a run.

    Attributes:
        strike: How.
        destroys: Whether it destroys what was written; that must be said.
        over_ray: Whether it strikes a run over a cluster, which takes long to start, and is tried less often.
    """

    strike: Strike
    destroys: bool = False
    over_ray: bool = False


FAULTS = {
    "kill -9 at any moment": Fault(kill_later(signal.SIGKILL)),
    "kill -9 while a part is written": Fault(kill_in_seal),
    "SIGTERM": Fault(kill_later(signal.SIGTERM)),
    "Ctrl-C": Fault(kill_later(signal.SIGINT)),
    "full disk": Fault(fill_disk),
    "last part cut short": Fault(cut_part, destroys=True),
    "pending rows cut short": Fault(cut_pending, destroys=True),
    "one byte changed": Fault(flip_byte, destroys=True),
    "temporary file deleted": Fault(delete_temporary),
    "kill -9 of a Ray worker": Fault(kill_over_ray("worker"), over_ray=True),
    "kill -9 of the driver over Ray": Fault(kill_over_ray("driver"), over_ray=True),
}
"""What is tried; another fault is one more entry."""


def obey(sentence: str) -> bool:
    """Do what a refusal asks for; false if it is not clear what."""
    if found := re.match(r"(.+) is damaged in line (\d+); delete that line( and line 1,)?", sentence):
        lines = {int(found[2]), 1} if found[3] else {int(found[2])}
    elif found := re.match(r"(.+) has lost \d+ of the \d+ rows .*; delete its line 1,", sentence):
        lines = {1}
    elif found := re.match(r"(.+) is damaged \(.*\); delete it and run the same", sentence):
        Path(found[1]).unlink()
        return True
    else:
        return False
    file = Path(found[1])
    kept = [line for number, line in enumerate(file.read_bytes().split(b"\n"), 1) if number not in lines]
    file.write_bytes(b"\n".join(kept))
    return True


@dataclass
class Tally:
    """How often a fault struck, and what came of it."""

    times: int = 0
    silent: int = 0
    said: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: list[str] = field(default_factory=list)


def strike(bench: Bench, name: str, folder: Path, pick: random.Random, whole: str, tally: Tally) -> None:
    """Harm a run, resume it, and see whether it ends as the unbroken one."""
    fault = FAULTS[name]
    struck = False
    while not struck:
        shutil.rmtree(folder, ignore_errors=True)
        (bench.work / "journal").unlink(missing_ok=True)
        struck = fault.strike(bench, folder, pick)
    before = bench.reported()
    answer: dict[str, Any] = {}
    said: list[str] = []
    for _ in range(5):
        answer = bench.attempt(folder)
        said += answer.get("said", [])
        if "error" not in answer:
            break
        said.append(answer["error"])
        if not obey(answer["error"]):
            break
    again = set(before) & set(bench.reported()[len(before) :])
    tally.times += 1
    tally.said += bool(said)
    tally.silent += not said
    tally.lost += 0 if fault.destroys and said else len(again)
    tally.doubled += answer.get("doubled", 0) + len(before) - len(set(before))
    if answer.get("rows") != whole:
        tally.wrong.append(answer.get("error", "the rows differ from those of the unbroken run"))
    elif fault.destroys and not said:
        tally.wrong.append("destroyed bytes went unnoticed")
    elif said and not fault.destroys:
        tally.wrong.append(f"nothing was destroyed, but it said: {said[0]}")


def small_disk(place: Path) -> Path | None:
    """A file system of half a megabyte, where the system lets us make one."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError:
        return None
    return place if done.returncode == 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200, help="how many")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the small disk is taken away again
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    smoothed = Smoothed(model, Gaussian(0.25), runtime=unprepared(model, 500))
    pick = random.Random(chosen.seed)
    patient = Smoothed(torch.nn.Sequential(model, Pause()), Gaussian(0.25), batch_size=500)
    rounds = (
        [name for name, fault in FAULTS.items() if turn % 3 == 0 or not fault.over_ray] for turn in itertools.count()
    )
    names = list(itertools.islice(itertools.chain.from_iterable(rounds), chosen.faults))
    tallies = {name: Tally() for name in FAULTS}
    memory = Path("/dev/shm")  # no fault here cuts the power, so there is no need to wait for a disk
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:
        bench = Bench(Path(place), smoothed, data.load("digits", split="test"))
        disk = small_disk(bench.work / "disk") if os.name == "posix" else None
        try:
            bench.attempt(bench.work / "first")
            begin = time.perf_counter()
            whole = bench.attempt(bench.work / "whole")["rows"]
            bench.seconds = time.perf_counter() - begin
            bench.smoothed = patient  # another model, which its rows name
            whole_over_ray = bench.attempt(bench.work / "patient")["rows"]
            with Progress(console=Console(stderr=True), auto_refresh=False) as bar:  # no thread next to the forks
                task = bar.add_task("faults", total=len(names))
                for number, name in enumerate(names):
                    on_disk = disk is not None and name == "full disk"
                    bench.disk = disk if on_disk else None
                    over_ray = FAULTS[name].over_ray
                    bench.smoothed = patient if over_ray else smoothed
                    folder = (disk if on_disk and disk else bench.work) / f"run-{number}"
                    strike(bench, name, folder, pick, whole_over_ray if over_ray else whole, tallies[name])
                    shutil.rmtree(folder, ignore_errors=True)
                    bar.update(task, advance=1, refresh=True)
        finally:
            if disk is not None:
                subprocess.run(["umount", str(disk)], check=False)
    sys.exit(show(tallies))


def show(tallies: dict[str, Tally]) -> int:
    """Print what was found; gives the exit code."""
    table = Table(title=f"{sum(tally.times for tally in tallies.values())} faults")
    for column in ("fault", "times", "resumed silently", "said what is damaged", "lost rows", "doubled rows"):
        table.add_column(column, justify="left" if column == "fault" else "right")
    for name, tally in tallies.items():
        counts = (tally.times, tally.silent, tally.said, tally.lost, tally.doubled)
        table.add_row(name, *map(str, counts))
    Console().print(table)
    wrong = [f"{name}: {sentence}" for name, tally in tallies.items() for sentence in tally.wrong]
    print("\n".join(wrong) or "Every run ended with the rows of the unbroken one.")
    return int(bool(wrong) or any(tally.lost or tally.doubled for tally in tallies.values()))


if __name__ == "__main__":
    main()
