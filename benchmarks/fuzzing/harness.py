"""Run cases in watched processes: what a reader answers, and whether it hangs, grows, dies or does more than read."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fuzzing.formats import Change
from fuzzing.mutate import change_bytes
from smoothcert.types import SmoothcertError

Files = dict[str, bytes]
"""The files of a case, by their path in its folder."""

MEMORY = 1 << 30
"""What a case may take next to what the process had before."""

BATCH = 50
BOMBS = 0.01  # the share of cases that begin with a hostile file


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        name: Its name in the table.
        seeds: Makes real files, each of which the reader must accept; called once, in an empty folder.
        read: Reads the files in a folder and uses what it gets as a user would.
        changes: Structural changes by pattern of the file name; other files are changed as bytes.
        hostile: Makes files that were not written by any honest program; each is tried as it is, and changed.
        tokens: Words of the format.
        share: The share of structural changes.
    """

    name: str
    seeds: Callable[[Path], list[Files]]
    read: Callable[[Path], Any]
    changes: Mapping[str, Change] = field(default_factory=dict)
    hostile: Callable[[], list[Files]] = list
    tokens: Sequence[bytes] = ()
    share: float = 0.5


@dataclass(frozen=True)
class Stock:
    """The files that the cases of a kind begin with."""

    seeds: list[Files]
    hostile: list[Files]


@dataclass(frozen=True)
class Verdict:
    """What came of a case.

    Attributes:
        kind: The name of the kind.
        case: The number of the case.
        sort: ``accepted``, ``refused``, or a failure: ``crash``, ``hang``, ``memory``, ``executed``.
        what: The type of the error, or what happened.
        where: The innermost place of ours.
        seconds: How long it took.
    """

    kind: str
    case: int
    sort: str
    what: str = ""
    where: str = ""
    seconds: float = 0.0


def case_files(kind: Kind, stock: Stock, seed: int, case: int) -> Files:
    """The files of a case, which depend on nothing else."""
    if case < len(stock.hostile):
        return stock.hostile[case]
    pick = random.Random(f"{seed}/{kind.name}/{case}")
    hostile = bool(stock.hostile) and pick.random() < BOMBS
    files = dict(pick.choice(stock.hostile if hostile else stock.seeds))
    others = pick.choice(stock.seeds)
    for name in pick.sample(sorted(files), min(len(files), pick.choice((1, 1, 1, 2)))):
        change = next((change for pattern, change in kind.changes.items() if fnmatch(name, pattern)), None)
        if change is not None and not hostile and pick.random() < kind.share:
            try:
                files[name] = change(files[name], pick)
            except Exception:  # what cannot be written as such a file any more, or is none
                files[name] = change_bytes(files[name], pick, kind.tokens)
        elif pick.random() < 0.01 and len(files) > 1:
            del files[name]
        else:
            files[name] = change_bytes(files[name], pick, kind.tokens, others.get(name, b""))
    return files


def write_files(folder: Path, files: Files) -> None:
    """Write the files of a case into a fresh folder."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


class TimedOut(BaseException):
    """Raised in a case that takes too long; no reader may catch it."""


class Escaped(BaseException):
    """Raised by a reader that finds files changed where it may not write."""


class Watch:
    """Notes what Python reports about itself while a case runs: programs, connections, imports, writes elsewhere."""

    FORBIDDEN = frozenset(
        {
            "os.system",
            "os.exec",
            "os.posix_spawn",
            "os.spawn",
            "os.fork",
            "os.symlink",  # no reader of ours makes any, and without them the name of a file tells where it is
            "os.link",
            "os.forkpty",
            "os.startfile",
            "os.putenv",
            "subprocess.Popen",
            "socket.connect",
            "socket.bind",
            "socket.sendto",
            "socket.getaddrinfo",
            "ctypes.dlopen",
            "pickle.find_class",
            "code.__new__",
            "function.__new__",
        }
    )
    PATHS: Mapping[str, tuple[int, ...]] = {
        "os.remove": (0,),
        "os.rename": (0, 1),
        "os.rmdir": (0,),
        "os.mkdir": (0,),
        "os.chmod": (0,),
        "os.truncate": (0,),
        "shutil.rmtree": (0,),
    }
    COMPILERS = ("typing.py", "dataclasses.py", os.path.join("collections", "__init__.py"))
    WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def __init__(self) -> None:
        self.folder: str | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    def start(self, folder: Path) -> None:
        self.seen = []
        self.folder = os.path.realpath(folder)

    def stop(self) -> list[str]:
        self.folder = None
        return self.seen

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & self.WRITING and not self._inside(path):
                self.seen.append(f"open for writing {path!r}")
        elif event in self.FORBIDDEN:
            self.seen.append(f"{event} {arguments!r}"[:200])
        elif event == "import":
            if str(arguments[0]).partition(".")[0] not in sys.modules:
                self.seen.append(f"import {arguments[0]}")
        elif event == "compile":
            # Type hints and named tuples are compiled from text; text of a file would be compiled by somebody else.
            library = sys._getframe(1).f_code.co_filename.endswith(self.COMPILERS)
            if arguments[1] in ("<string>", b"<string>") and arguments[0] is not None and not library:
                self.seen.append(f"compile {arguments[0]!r}"[:200])
        elif event in self.PATHS and not (
            isinstance(arguments[-1], int) and arguments[-1] >= 0 and event != "os.chmod"
        ):
            outside = [arguments[place] for place in self.PATHS[event] if not self._inside(arguments[place])]
            self.seen += [f"{event} {path!r}" for path in outside]

    def _inside(self, path: Any) -> bool:
        if isinstance(path, int) or self.folder is None:
            return True
        place = os.path.abspath(os.fsdecode(path))
        return place == os.devnull or place == self.folder or place.startswith(self.folder + os.sep)


def judge(kind: Kind, case: int, folder: Path, watch: Watch, limit: float) -> Verdict:
    """Let the reader read a folder, and say what came of it."""
    begin = time.perf_counter()
    sort, what, where = "accepted", "", ""
    watch.start(folder)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        try:
            kind.read(folder)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            seen = watch.stop()
    except TimedOut as error:
        sort, what, where = "hang", f"over {limit:g} s", place_of(error)
    except Escaped as error:
        sort, what, where = "executed", str(error), place_of(error)
    except BaseException as error:  # the point of all this is to see whatever comes
        what, where = type(error).__name__, place_of(error)
        if _out_of_memory(error):
            sort = "memory"
        else:
            sort = "refused" if isinstance(error, SmoothcertError) else "crash"
            what = what if sort == "refused" else f"{what}: {str(error)[:120]}"
    if seen:
        sort, what = "executed", seen[0]
    return Verdict(kind.name, case, sort, what, where, time.perf_counter() - begin)


def place_of(error: BaseException) -> str:
    """The innermost place of smoothcert that an error passed."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}smoothcert{os.sep}" in frame.filename]
    frame = (ours or frames)[-1]
    short = frame.filename.rpartition(f"{os.sep}smoothcert{os.sep}")[2].rpartition("/site-packages/")[2]
    return f"{short}:{frame.lineno} {frame.name}"


def _out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, even if the reader made a sentence of it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError) or "allocate memory" in str(seen) or "out of memory" in str(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _virtual_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:  # macOS, where the limit is not enforced anyway
        return 1 << 36


def work(
    pipe: Connection,
    kinds: Sequence[Kind],
    stocks: Mapping[str, Stock],
    folder: Path,
    seed: int,
    limit: float,
    now: Any,
) -> None:
    """The life of a worker: batches of cases come in, verdicts go out; ``now`` tells the case it is at, since when."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _time_out)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)  # image libraries talk
    warnings.simplefilter("ignore")
    watch = Watch()
    by_name = {kind.name: kind for kind in kinds}
    warm: str | None = None
    while (batch := pipe.recv()) is not None:
        name, start, stop = batch
        kind, stock = by_name[name], stocks[name]
        if warm != name:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            for files in stock.seeds:  # loads what the reader loads lazily
                write_files(folder, files)
                kind.read(folder)
            resource.setrlimit(resource.RLIMIT_AS, (_virtual_bytes() + MEMORY, resource.RLIM_INFINITY))
            warm = name
        for case in range(start, stop):
            now[0], now[1] = case, time.monotonic()
            write_files(folder, case_files(kind, stock, seed, case))
            now[1] = time.monotonic()
            pipe.send(judge(kind, case, folder, watch, limit))
        now[0] = -1
        pipe.send(None)


def _time_out(*_: object) -> None:
    raise TimedOut


@dataclass
class Tally:
    """What came of all cases of a kind."""

    cases: int = 0
    sorts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)
    seconds: float = 0.0
    slowest: tuple[float, int] = (0.0, 0)

    def add(self, verdict: Verdict) -> None:
        self.cases += 1
        self.sorts[verdict.sort] += 1
        self.seconds += verdict.seconds
        self.slowest = max(self.slowest, (verdict.seconds, verdict.case))
        if verdict.sort == "refused":
            self.refused[verdict.what] += 1
        elif verdict.sort != "accepted":
            key = (verdict.sort, verdict.what.partition(":")[0], verdict.where)
            self.failures.setdefault(key, []).append(verdict.case)


class _Worker:
    """A process with its pipe, its batch and the case it is at."""

    def __init__(self, number: int, arguments: tuple[Any, ...], place: Path, seed: int, limit: float) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.now = context.RawArray("d", [-1.0, 0.0])
        self.batch: tuple[str, int, int] | None = None
        self.reported = -1
        folder = place / f"worker-{number}" / "case"
        whole = (theirs, *arguments, folder, seed, limit, self.now)
        self.process = context.Process(target=work, args=whole, daemon=True)
        self.process.start()
        theirs.close()

    def give(self, batch: tuple[str, int, int]) -> None:
        self.batch, self.reported = batch, batch[1] - 1
        self.now[0] = -1
        self.pipe.send(batch)

    @property
    def stuck(self) -> float:
        """For how long it has been at its case."""
        return time.monotonic() - self.now[1] if self.now[0] >= 0 else 0.0


def run_cases(
    kinds: Sequence[Kind],
    stocks: Mapping[str, Stock],
    cases: Mapping[str, Iterable[range]],
    *,
    place: Path,
    seed: int = 0,
    workers: int = 2,
    limit: float = 10.0,
    done: Callable[[Verdict], None] = lambda _: None,
) -> dict[str, Tally]:
    """Run cases of some kinds in worker processes, and replace those that die.

    Args:
        kinds: The kinds.
        stocks: Their files to begin with, by name.
        cases: The cases to run, by name.
        place: A folder for the workers' folders.
        seed: The seed of the mutations.
        workers: How many processes.
        limit: Seconds after which a case counts as a hang.
        done: Called with every verdict.

    Returns:
        What came of them, by name.
    """
    tallies = {kind.name: Tally() for kind in kinds}
    todo: deque[tuple[str, int, int]] = deque()
    for kind in kinds:
        for span in cases[kind.name]:
            todo.extend((kind.name, at, min(at + BATCH, span.stop)) for at in range(span.start, span.stop, BATCH))

    def settle(verdict: Verdict) -> None:
        tallies[verdict.kind].add(verdict)
        done(verdict)

    def hire(number: int) -> _Worker:
        return _Worker(number, (kinds, stocks), place, seed, limit)

    crew = [hire(number) for number in range(min(workers, len(todo)))]
    try:
        while todo or any(worker.batch for worker in crew):
            for worker in crew:
                if worker.batch is None and todo:
                    worker.give(todo.popleft())
            wait([worker.pipe for worker in crew if worker.batch], timeout=0.5)
            for number, worker in enumerate(crew):
                alive = _collect(worker, settle)
                if worker.batch and alive and worker.stuck > limit + 2:  # deaf to its own alarm
                    worker.process.kill()
                    worker.process.join()
                    alive = _collect(worker, settle)
                if worker.batch and not alive:
                    worker.process.join()
                    kind, _, stop = worker.batch
                    settle(_obituary(worker, kind, limit))
                    if worker.reported + 2 < stop:
                        todo.appendleft((kind, worker.reported + 2, stop))
                    crew[number] = hire(number)
    finally:
        for worker in crew:
            worker.process.kill()
            worker.process.join()
    return tallies


def _collect(worker: _Worker, settle: Callable[[Verdict], None]) -> bool:
    """Take what a worker has sent; false once it is dead."""
    try:
        while worker.batch and worker.pipe.poll():
            verdict = worker.pipe.recv()
            if verdict is None:
                worker.batch = None
            else:
                worker.reported = verdict.case
                settle(verdict)
    except (EOFError, ConnectionResetError):
        return False
    return worker.process.is_alive() or worker.pipe.poll()


def _obituary(worker: _Worker, kind: str, limit: float) -> Verdict:
    """The verdict on the case that a worker died of."""
    case, code = worker.reported + 1, worker.process.exitcode
    if worker.stuck > limit + 2:
        return Verdict(kind, case, "hang", f"over {limit:g} s, deaf to signals", seconds=limit)
    return Verdict(kind, case, "crash", f"the process ended with {code}", "in native code, or before any case")
