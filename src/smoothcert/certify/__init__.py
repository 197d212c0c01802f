"""Certification procedures and the smoothed classifier they run on."""

from __future__ import annotations

from smoothcert.certify.aces import Aces
from smoothcert.certify.anytime import Anytime
from smoothcert.certify.base import Procedure, Task, answer
from smoothcert.certify.cohen import Cohen
from smoothcert.certify.memory import Memory
from smoothcert.certify.smoothed import Smoothed
from smoothcert.certify.staged import Staged
from smoothcert.plugins import Registry

PROCEDURES: Registry[type[Procedure]] = Registry(
    "procedures", "procedure", Procedure, {procedure.name: procedure for procedure in (Cohen, Staged, Anytime, Aces)}
)
"""Every procedure by name; a new one here is one file and one entry."""

__all__ = [
    "PROCEDURES",
    "Aces",
    "Anytime",
    "Cohen",
    "Memory",
    "Procedure",
    "Smoothed",
    "Staged",
    "Task",
    "answer",
]
