"""What would invalidate certificates or waste a long run, found within a minute before it starts."""

from smoothcert.doctor.examine import examine
from smoothcert.doctor.findings import Finding, Level

__all__ = ["Finding", "Level", "examine"]
