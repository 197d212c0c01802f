"""Can a file hurt? Read mutated files of every kind, and see that each is read or refused in a sentence of ours.

Case k of a kind depends on the seed, the kind and k only. A case fails if another error than ours comes out, if it
takes longer than ten seconds or more than a gigabyte, if the process dies, or if anything is run, imported, connected
to, or written outside the case's folder. Exits with 1 if any case fails.
"""

from __future__ import annotations

import os

# One thread and one allocator, so that address space tells what a case takes; before anything reads these.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", ARROW_DEFAULT_MEMORY_POOL="system", MALLOC_ARENA_MAX="2")

import argparse
import multiprocessing
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fuzzing.harness import Kind, Stock, Tally, Verdict, case_files, run_cases, write_files
from fuzzing.kinds import KINDS

FAILURES = ("crash", "hang", "memory", "executed")


def stock_up(kinds: tuple[Kind, ...], place: Path) -> dict[str, Stock]:
    """The files to begin with, made in a process of their own, so that the workers' parent never runs a thread."""
    here, there = multiprocessing.get_context("fork").Pipe()
    process = multiprocessing.get_context("fork").Process(target=_stock_up, args=(there, kinds, place))
    process.start()
    there.close()
    try:
        stocks: dict[str, Stock] = here.recv()
    except EOFError:
        sys.exit("the files to begin with could not be made, see above")
    process.join()
    return stocks


def _stock_up(pipe: Connection, kinds: tuple[Kind, ...], place: Path) -> None:
    stocks = {}
    for number, kind in enumerate(kinds):
        work = place / f"seeds-{number}"
        work.mkdir()
        stocks[kind.name] = Stock(kind.seeds(work), kind.hostile())
        for files in stocks[kind.name].seeds:  # a real file that is refused would test nothing
            write_files(place / "seed", files)
            kind.read(place / "seed")
    pipe.send(stocks)


def show(tallies: dict[str, Tally], seed: int, seconds: float) -> int:
    """Print what was found; gives the exit code."""
    total = sum(tally.cases for tally in tallies.values())
    table = Table(title=f"{total} cases, seed {seed}, {seconds:.0f} s")
    columns = ("files", "cases", "accepted", "refused, by type", *FAILURES, "seconds", "slowest")
    for column in columns:
        table.add_column(column, justify="left" if column.startswith(("files", "refused")) else "right")
    for name, tally in tallies.items():
        refused = ", ".join(f"{kind} {count}" for kind, count in tally.refused.most_common())
        failures = [str(tally.sorts[sort]) for sort in FAILURES]
        spent = [f"{tally.seconds:.0f}", f"{tally.slowest[0]:.1f} s (case {tally.slowest[1]})"]
        table.add_row(name, str(tally.cases), str(tally.sorts["accepted"]), refused, *failures, *spent)
    Console(width=max(170, Console().width) if not sys.stdout.isatty() else None).print(table)
    failed = 0
    for name, tally in tallies.items():
        for (sort, what, where), cases in sorted(tally.failures.items()):
            failed += len(cases)
            print(f"{name}: {sort}, {what}, at {where} ({len(cases)} times)")
            print(f"    replay: python benchmarks/fuzz.py --seed {seed} --only '{name}' --case {min(cases)}")
    print("No case failed." if not failed else f"{failed} cases failed.")
    return int(failed > 0)


def replay(kind: Kind, stock: Stock, seed: int, case: int, place: Path) -> None:
    """Read the files of one case in this process, so that its error shows as it is."""
    folder = place / "case"
    write_files(folder, case_files(kind, stock, seed, case))
    for file in sorted(folder.rglob("*")):
        print(f"{file} ({file.stat().st_size} bytes)" if file.is_file() else file)
    kind.read(folder)
    print("accepted")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", action="append", choices=[kind.name for kind in KINDS], help="a kind; may be repeated"
    )
    parser.add_argument("--case", type=int, help="read one case in this process and show its error")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=10.0, help="seconds after which a case counts as a hang")
    chosen = parser.parse_args()
    kinds = tuple(kind for kind in KINDS if chosen.only is None or kind.name in chosen.only)
    if chosen.case is not None and len(kinds) != 1:
        parser.error("--case needs --only, to tell the kind")
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    memory = Path("/dev/shm")  # nothing here needs to outlive this
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        place = Path(name)
        stocks = stock_up(kinds, place)
        if chosen.case is not None:
            replay(kinds[0], stocks[kinds[0].name], chosen.seed, chosen.case, place)
            return
        begin = time.perf_counter()
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as bar:  # no thread next to the forks
            task = bar.add_task("fuzz", total=chosen.cases * len(kinds))
            counted = 0

            def done(verdict: Verdict) -> None:
                nonlocal counted
                counted += 1
                if verdict.sort in FAILURES:
                    bar.console.print(f"{verdict.kind}, case {verdict.case}: {verdict.sort}", highlight=False)
                bar.update(task, advance=1, description=verdict.kind, refresh=counted % 200 == 0)

            tallies = run_cases(
                kinds,
                stocks,
                {kind.name: [range(chosen.cases)] for kind in kinds},
                place=place,
                seed=chosen.seed,
                workers=chosen.workers,
                limit=chosen.limit,
                done=done,
            )
        code = show(tallies, chosen.seed, time.perf_counter() - begin)
    sys.exit(code)


if __name__ == "__main__":
    main()
