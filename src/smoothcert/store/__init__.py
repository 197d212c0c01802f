"""Run folders and logs of earlier systems, behind one :class:`Result`."""

from smoothcert.store.logs import Log, LogKind, read_log, write_log
from smoothcert.store.merge import merge_runs
from smoothcert.store.outcomes import Metadata, Origin, Outcomes
from smoothcert.store.result import Result, find_results, labelled, load_result
from smoothcert.store.run import Run, flat_config, load_run, open_run, write_run

__all__ = [
    "Log",
    "LogKind",
    "Metadata",
    "Origin",
    "Outcomes",
    "Result",
    "Run",
    "find_results",
    "flat_config",
    "labelled",
    "load_result",
    "load_run",
    "merge_runs",
    "open_run",
    "read_log",
    "write_log",
    "write_run",
]
