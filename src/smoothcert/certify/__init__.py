"""Certification procedures and the smoothed classifier they run on."""

from __future__ import annotations

from smoothcert.certify.base import Procedure, Task, answer
from smoothcert.certify.cohen import Cohen
from smoothcert.certify.smoothed import Smoothed

PROCEDURES: dict[str, type[Procedure]] = {Cohen.name: Cohen}
"""Every procedure by name; a new one is one file and one entry here."""

__all__ = ["PROCEDURES", "Cohen", "Procedure", "Smoothed", "Task", "answer"]
