"""Runs on disk, and the logs of earlier systems."""

from smoothcert.store.logs import Log, LogKind, read_log, write_log
from smoothcert.store.merge import merge_runs
from smoothcert.store.run import Run, flat_config, load_run, open_run, write_run

__all__ = [
    "Log",
    "LogKind",
    "Run",
    "flat_config",
    "load_run",
    "merge_runs",
    "open_run",
    "read_log",
    "write_log",
    "write_run",
]
