"""The command line: thin, over the library's public functions. Commands are imported when they are called."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smoothcert.types import SmoothcertError

_STOPPED = 130  # the exit code of a command stopped by Ctrl-C
_CONTINUES = "stopped; the same command continues where this one ended."
_format_warning = warnings.formatwarning


def main() -> None:
    """Run the command line: an error is one sentence on stderr; exit code 2 for wrong use, 1 otherwise."""
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    try:
        warnings.formatwarning = _warning
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark
        with exiting_on_interrupt():
            from smoothcert.cli.app import run

        code = run(arguments)
        if code == _STOPPED:  # how newer versions of typer report Ctrl-C
            raise KeyboardInterrupt
        return code
    except SmoothcertError as error:
        return _fail(str(error), error.exit_code)
    except BrokenPipeError:
        # The reader has gone. Python flushes stdout once more at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except BaseException as error:
        if _interrupted(error):
            return _fail(_CONTINUES, _STOPPED)
        if isinstance(error, MemoryError) or re.search("(can't|cannot) allocate|out of memory", str(error)):
            return _fail("there is not enough memory; give a smaller --batch-size.", 1)
        if isinstance(error, OSError) and error.filename is not None:
            return _fail(f"{os.fsdecode(error.filename)} cannot be used ({error.strerror or error}).", 1)
        raise


@contextmanager
def exiting_on_interrupt() -> Iterator[None]:
    """Exit on Ctrl-C while modules are imported: an exception there leaves libraries half-initialised."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    previous = signal.signal(signal.SIGINT, lambda *_: os._exit(_fail(_CONTINUES, _STOPPED)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _interrupted(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, or was raised because of it."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
            return True
        error = error.__cause__ or error.__context__
    return False


def _fail(message: str, code: int) -> int:
    print(f"smoothcert: {message}", file=sys.stderr, flush=True)
    return code


def _warning(message: Any, category: type[Warning], filename: str, *place: Any, **line: Any) -> str:
    """Format a warning of this package as one sentence, without the line of code."""
    if Path(filename).is_relative_to(Path(__file__).parents[1]):
        return f"smoothcert: {message}\n"
    return _format_warning(message, category, filename, *place, **line)
