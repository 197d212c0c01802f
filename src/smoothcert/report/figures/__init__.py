"""Figures of runs and logs."""

from smoothcert.types import UsageError

try:
    import matplotlib as _  # noqa: F401
except ImportError as _error:
    raise UsageError('figures need matplotlib; pip install "smoothcert[report]".') from _error
