"""Certification procedures and the smoothed classifier they run on."""

from __future__ import annotations

from smoothcert.certify.anytime import Anytime
from smoothcert.certify.base import Procedure, Task, answer
from smoothcert.certify.cohen import Cohen
from smoothcert.certify.smoothed import Smoothed
from smoothcert.certify.staged import Staged

PROCEDURES: dict[str, type[Procedure]] = {Cohen.name: Cohen, Staged.name: Staged, Anytime.name: Anytime}
"""Every procedure by name; a new one is one file and one entry here."""

__all__ = ["PROCEDURES", "Anytime", "Cohen", "Procedure", "Smoothed", "Staged", "Task", "answer"]
