"""The findings of an examination."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial


class Level(str, Enum):
    """How serious a finding is."""

    INFO = "info"
    """Nothing to do."""

    WARNING = "warning"
    """The run would be valid, but prove less or take longer than necessary."""

    ERROR = "error"
    """Do not start the run: its certificates would be refused, invalid, or about a model that does not work."""


@dataclass(frozen=True)
class Finding:
    """The result of one check; ``title`` names the check and never changes, ``advice`` is empty if nothing is to do."""

    level: Level
    title: str
    detail: str
    advice: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the finding as plain values."""
        return {**asdict(self), "level": self.level.value}


info, warning, error = (partial(Finding, level) for level in Level)


class Clock:
    """A time budget in seconds."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds
        self.seconds = seconds

    @property
    def left(self) -> float:
        """Seconds until the budget is used up; never negative."""
        return max(self._end - time.perf_counter(), 0.0)


def refusal(title: str, refused: Exception) -> Finding:
    """Turn an exception of this package into a finding; its text after the last semicolon is the advice."""
    what, _, advice = str(refused).rpartition("; ")
    return error(title, _sentence(what or advice), _sentence(advice if what else ""))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""
