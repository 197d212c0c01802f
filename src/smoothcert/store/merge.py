"""Unite the shards of a run into the run that one process would have written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from smoothcert.data.subset import select, take_shard, whole_selection
from smoothcert.store.run import Run, differences, load_run, refuse_existing, write_run
from smoothcert.store.run_json import refuse_other_answers
from smoothcert.types import RunError, UsageError


def merge_runs(runs: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]) -> Run:
    """Unite all shards of a run.

    The result has the configuration of a run without shards, so certifying without a shard finds it finished. Its rows
    are those of such a run.

    Args:
        runs: The run folders of the shards, in any order.
        output: The folder of the united run; new or empty.

    Returns:
        The united run.

    Raises:
        UsageError: If a run is named twice or is no shard.
        RunError: If shards are missing, unfinished, damaged, overlapping or of different configurations, or the output
            exists.
    """
    folder = Path(output)
    refuse_existing(folder)
    shards = _by_number([load_run(path) for path in runs])
    first = shards[min(shards)]
    whole = {**_unsharded(first.config), "seed": _common_seed(list(shards.values()))}
    owners: dict[int, Path] = {}
    for number, run in sorted(shards.items()):
        found = run.table(["index"])["index"].to_pylist()
        for index in found:
            if index in owners:
                raise RunError(f"input {index} is in {owners[index]} and in {run.path}; certify one of them anew.")
            owners[index] = run.path
        _refuse_incomplete(run, found, number)
    sessions = [
        {"shard": run.config["inputs"]["shard"], **session}
        for _, run in sorted(shards.items())
        for session in run.sessions
    ]
    refuse_other_answers(folder, sessions[:1], sessions[1:])
    pieces = (piece for _, run in sorted(shards.items()) for piece in run.pieces() if len(piece))
    return write_run(folder, pieces, whole, sessions)


def _by_number(runs: Sequence[Run]) -> dict[int, Run]:
    """The shards by their number, after checking that they are all of one run."""
    if not runs:
        raise UsageError("name the run folders of all shards.")
    first = runs[0]
    shards: dict[int, Run] = {}
    for run in runs:
        if run.settings.inputs.shard is None:
            raise UsageError(f"{run.path} is no shard; merge unites runs certified with --shard.")
        known = run.settings.inputs.as_dict().keys() == {"every", "start", "stop", "shard"}
        if not known or run.settings.data is None or run.settings.data.size is None:
            raise RunError(f"{run.path / 'run.json'} is damaged: it does not tell its inputs; restore it.")
        other = differences(_comparable(first.config), _comparable(run.config))
        if other:
            raise RunError(
                f"{first.path} and {run.path} are no shards of one run ({other}); give the shards of one run."
            )
        number, _ = run.config["inputs"]["shard"]
        if number in shards:
            raise UsageError(f"{shards[number].path} and {run.path} are both shard {number}; give each shard once.")
        shards[number] = run
    count = first.config["inputs"]["shard"][1]
    missing = [f"{number}/{count}" for number in islice(range(1, count + 1), 20 + len(shards)) if number not in shards]
    if missing:
        several, more = len(missing) > 1, ", …" if count > 20 + len(shards) else ""
        raise RunError(
            f"shard{'s' * several} {', '.join(missing)}{more} {'are' if several else 'is'} missing; certify with "
            f"--shard {missing[0]}, or name {'their' if several else 'its'} run too."
        )
    return shards


def _refuse_incomplete(run: Run, found: Sequence[int], number: int) -> None:
    config = run.config
    count = config["inputs"]["shard"][1]
    own = take_shard(select(config["data"]["size"], **whole_selection(config)), number, count)
    strangers = [index for index in found if index not in own]
    if strangers:
        raise RunError(
            f"{run.path} holds input {strangers[0]}, which is not in shard {number}/{count}; certify it anew."
        )
    there = set(found)
    lacking = len(own) - len(there)  # counted, not listed: a damaged run may claim any number of inputs
    if lacking:
        first = islice((index for index in own if index not in there), 5)
        named = ", ".join(map(str, first)) + (", …" if lacking > 5 else "")
        raise RunError(
            f"{run.path} is unfinished: {lacking} of its {len(own)} inputs are missing ({named}); run its certify "
            "command again to finish it."
        )


def _unsharded(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**config, "inputs": whole_selection(config)}


def _common_seed(runs: Sequence[Run]) -> int | None:
    """The seed of all shards, or None where they have different ones, each of which its rows tell."""
    seeds = {run.settings.seed for run in runs}
    return seeds.pop() if len(seeds) == 1 else None


def _comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration but for the number of the shard, and the seed, which shards may draw themselves."""
    rest = {key: value for key, value in config.items() if key != "seed"}
    return {**rest, "inputs": {**config["inputs"], "shard": config["inputs"]["shard"][1]}}
