"""Unite the shards of a run, or the records of the replicas of a service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from smoothcert.store.run import Run, differences, load_run, refuse_existing, write_run
from smoothcert.store.run_json import refuse_other_answers
from smoothcert.store.selection import select, take_shard, whole_selection
from smoothcert.types import RunError, StrPath, UsageError


def merge_runs(runs: Sequence[StrPath], output: StrPath) -> Run:
    """Unite all shards of a run, in any order, into the run that one process would have written.

    Records of a service are united as well, such as those of its replicas.

    Raises:
        UsageError: If a run is named twice or is not a shard.
        RunError: If shards are missing, unfinished, damaged, overlapping or of different configurations, or the output
            exists.
    """
    folder = Path(output)
    refuse_existing(folder)
    loaded = [load_run(path) for path in runs]
    if loaded and all("served" in run.config for run in loaded):
        return _merge_records(loaded, folder)
    shards = _in_order(loaded)
    seeds = {run.settings.seed for run in shards}
    config = {
        **shards[0].config,
        "inputs": whole_selection(shards[0].config),
        "seed": seeds.pop() if len(seeds) == 1 else None,  # otherwise each row has its seed
    }
    for run in shards:
        _check_inputs(run)
    sessions = [{"shard": run.config["inputs"]["shard"], **session} for run in shards for session in run.sessions]
    refuse_other_answers(folder, sessions[:1], sessions[1:])
    pieces = (piece for run in shards for piece in run.pieces() if len(piece))
    return write_run(folder, pieces, config, sessions)


def _merge_records(records: Sequence[Run], folder: Path) -> Run:
    """Unite records of one service; each answer has its own number."""
    first, holders = records[0], dict[int, Run]()
    for run in records:
        if other := differences(first.config, run.config):
            raise RunError(f"{first.path} and {run.path} are not records of one service ({other}); merge one service.")
        for index in run.table(["index"])["index"].to_pylist():
            if index in holders:
                raise RunError(f"{holders[index].path} and {run.path} both hold answer {index}; give each record once.")
            holders[index] = run
    if not holders:
        raise RunError(f"{first.path} and the other records hold no answer; there is nothing to merge.")
    sessions = [session for run in records for session in run.sessions]
    refuse_other_answers(folder, sessions[:1], sessions[1:])
    return write_run(folder, (piece for run in records for piece in run.pieces() if len(piece)), first.config, sessions)


def _in_order(runs: Sequence[Run]) -> list[Run]:
    """Check that runs are all shards of one run, and sort them by number."""
    if not runs:
        raise UsageError("name the run folders of all shards.")
    first = runs[0]
    shards: dict[int, Run] = {}
    for run in runs:
        inputs, data = run.settings.inputs, run.settings.data
        if inputs.shard is None:
            raise UsageError(f"{run.path} is not a shard; merge unites runs certified with --shard.")
        if inputs.as_dict().keys() != {"every", "start", "stop", "shard"} or data is None or data.size is None:
            raise RunError(f"{run.path / 'run.json'} is damaged: it does not record its inputs; restore it.")
        other = differences(_comparable(first.config), _comparable(run.config))
        if other:
            raise RunError(
                f"{first.path} and {run.path} are not shards of one run ({other}); give the shards of one run."
            )
        number = inputs.shard[0]
        if number in shards:
            raise UsageError(f"{shards[number].path} and {run.path} are both shard {number}; give each shard once.")
        shards[number] = run
    count = first.config["inputs"]["shard"][1]
    missing = [f"{number}/{count}" for number in islice(range(1, count + 1), 20 + len(shards)) if number not in shards]
    if missing:
        named = ", ".join(missing) + (", …" if count > 20 + len(shards) else "")
        raise RunError(f"missing shards: {named}; certify with --shard {missing[0]}, or name its run too.")
    return [run for _, run in sorted(shards.items())]


def _check_inputs(run: Run) -> None:
    """Refuse a shard with missing inputs, or with inputs of other shards."""
    found = run.table(["index"])["index"].to_pylist()
    number, count = run.config["inputs"]["shard"]
    own = take_shard(select(run.config["data"]["size"], **whole_selection(run.config)), number, count)
    unknown = [index for index in found if index not in own]
    if unknown:
        raise RunError(
            f"{run.path} holds input {unknown[0]}, which is not in shard {number}/{count}; certify it again."
        )
    lacking = len(own) - len(found)  # counted, not listed: a damaged run may claim any number of inputs
    if lacking:
        present = set(found)
        first = islice((index for index in own if index not in present), 5)
        named = ", ".join(map(str, first)) + (", …" if lacking > 5 else "")
        raise RunError(
            f"{run.path} is unfinished: {lacking} of its {len(own)} inputs are missing ({named}); run its certify "
            "command again to finish it."
        )


def _comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without the number of the shard and the seed, which shards may draw themselves."""
    rest = {key: value for key, value in config.items() if key != "seed"}
    return {**rest, "inputs": {**config["inputs"], "shard": config["inputs"]["shard"][1]}}
