"""Output on stderr: progress bars (without a terminal, a line at the start and one every minute), and silence."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID


class Bar(Progress):
    """A progress bar that also reports progress without a terminal."""

    def __init__(self, *columns: str | ProgressColumn, shown: bool) -> None:
        super().__init__(*columns, console=Console(stderr=True), disable=not shown)
        self._next_line = 0.0

    def update(self, task_id: TaskID, **values: Any) -> None:
        """Update a task, and print a line if there is no terminal and a minute has passed."""
        super().update(task_id, **values)
        if not self.disable and not self.console.is_terminal and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + 60.0
            self.console.print(self.get_renderable())


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and log messages."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
