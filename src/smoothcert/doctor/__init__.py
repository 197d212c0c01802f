"""Checks before a long run: what would invalidate its certificates or waste its time."""

from smoothcert.doctor.examine import examine
from smoothcert.doctor.findings import Finding, Level

__all__ = ["Finding", "Level", "examine"]
