"""What an examination finds."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from enum import Enum


class Level(str, Enum):
    """How serious a finding is."""

    INFO = "info"
    """Nothing to do."""

    WARNING = "warning"
    """The run would be valid, but prove less or take longer than it need."""

    ERROR = "error"
    """Do not start the run: its certificates would be refused, invalid, or about a model that does not work."""


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        level: How serious it is.
        title: The check, in one or two words that stay the same.
        detail: What was found.
        advice: What to do about it; empty where there is nothing to do.
    """

    level: Level
    title: str
    detail: str
    advice: str = ""

    def as_dict(self) -> dict[str, str]:
        """The finding as plain values."""
        return {**asdict(self), "level": self.level.value}


class Clock:
    """Divides a time budget among checks."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds
        self.seconds = seconds

    @property
    def left(self) -> float:
        """Seconds until the budget is used up; never negative."""
        return max(self._end - time.perf_counter(), 0.0)


def refusal(title: str, error: Exception) -> Finding:
    """The finding that an error of this package makes: what is wrong, and after the last semicolon what to do."""
    what, _, advice = str(error).rpartition("; ")
    if not what:
        what, advice = advice, ""
    return Finding(Level.ERROR, title, _sentence(what), _sentence(advice))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""
