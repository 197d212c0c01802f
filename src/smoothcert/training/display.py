"""The progress bar of a training."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from smoothcert.progress import Bar


class Display(Bar):
    """One bar over all epochs on stderr, with the latest measurements."""

    def __init__(self, epochs: int, *, shown: bool) -> None:
        super().__init__(
            TextColumn("train"),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[epoch]}/{task.total:.0f}: {task.fields[text]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            shown=shown,
        )
        self._training = self.add_task("train", total=epochs, epoch=0, text="")
        self._measured = ""

    def show(self, epochs: float, loss: float, row: Mapping[str, float] | None = None) -> None:
        """Show the loss after this many epochs, and the measurements of a completed epoch."""
        if row is not None and "accuracy" in row:
            self._measured = f", accuracy {row['accuracy']:.1%}, certified {row['certified']:.1%}"
        if not self.disable:
            text = f"loss {loss:.3f}{self._measured}"
            self.update(self._training, completed=epochs, epoch=math.ceil(epochs), text=text)
