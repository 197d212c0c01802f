"""The progress bar of a training."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from smoothcert.progress import Bar


class Display:
    """One bar over all epochs, with what was measured last, on stderr.

    Args:
        epochs: The number of epochs.
        shown: Whether to show anything.
    """

    def __init__(self, epochs: int, *, shown: bool) -> None:
        self._epochs, self._shown = epochs, shown
        self._bar = Bar(
            TextColumn("train"),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[epoch]}/{task.total:.0f}: {task.fields[text]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            shown=shown,
        )
        self._task = self._bar.add_task("train", total=epochs, epoch=0, text="")
        self._measured = ""

    def begin(self, epoch: int, history: list[dict[str, float]]) -> None:
        """Say where training goes on."""
        self._measured = _text(history[-1]) if history else ""
        self._bar.update(self._task, completed=epoch, epoch=epoch, text=self._measured)

    def step(self, epoch: int, share: float, loss: float) -> None:
        """Show the loss of a step."""
        if self._shown:
            text = f"loss {loss:.3f}{self._measured and ', ' + self._measured}"
            self._bar.update(self._task, completed=epoch + share, epoch=epoch + 1, text=text)

    def epoch_done(self, row: Mapping[str, float]) -> None:
        """Show what was measured in an epoch."""
        self._measured = _text(row)
        text = f"loss {row['loss']:.3f}{self._measured and ', ' + self._measured}"
        self._bar.update(self._task, completed=row["epoch"], epoch=int(row["epoch"]), text=text)

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


def _text(row: Mapping[str, float]) -> str:
    if "accuracy" not in row:
        return ""
    return f"right {row['accuracy']:.1%}, certified {row['certified']:.1%}"
