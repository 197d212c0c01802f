"""Certify a dataset into a run folder: resumable, with a progress bar."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from torch import Tensor

from smoothcert.certify import Procedure, Smoothed
from smoothcert.certify.inputs import as_tensor
from smoothcert.certify.remote import Certifying, Decided
from smoothcert.certify.smoothed import fresh_seed
from smoothcert.progress import Bar
from smoothcert.sampling import BLOCK
from smoothcert.sampling.copies import input_digest
from smoothcert.sampling.ray import Cluster
from smoothcert.sampling.spread import require_members, spread
from smoothcert.store.parts import parts_of, read_part
from smoothcert.store.pending import read_pending
from smoothcert.store.run import Run, RunWriter, certificate_row, load_run, open_run
from smoothcert.types import ABSTAIN, Certificate, Outcome, RunError, UsageError

USUAL_SAMPLES = 100_000
"""Samples per input in the papers; what early decisions are compared with."""


COMPARED_INPUTS = 16
"""About how many inputs of a run are read again when it is continued, to notice other data."""


class Indexable(Protocol):
    """A dataset: a length, and pairs (input, label) by index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[Any, Any]: ...


def certify_dataset(
    smoothed: Smoothed,
    dataset: Indexable,
    procedure: Procedure,
    *,
    run: str | os.PathLike[str],
    every: int = 1,
    start: int = 0,
    stop: int | None = None,
    shard: tuple[int, int] | None = None,
    seed: int | None = None,
    progress: bool = True,
    source: Mapping[str, Any] | None = None,
    cluster: Cluster | None = None,
) -> Run:
    """Certify inputs ``start``, ``start + every``, … of a dataset and keep every certificate in a run folder.

    The same call on a folder that was left unfinished continues it, and ends with the same rows.

    Args:
        smoothed: The smoothed classifier.
        dataset: Anything with a length and (input, label) pairs by index.
        procedure: How to certify.
        run: The run folder, made when missing.
        every: Take every this many-th input.
        start: The first input.
        stop: The end of the inputs, exclusive; the dataset's length by default.
        shard: (i, k) for the i-th of k disjoint runs over these inputs, i from 1; ``merge_runs`` unites them.
        seed: The seed of the noise. By default that of the run where there is one, and else a fresh one, drawn from the
            operating system and kept in the run. Give one only to repeat a run: certificates are valid for models and
            inputs that were chosen without knowing the noise.
        progress: Whether to show a progress bar on stderr.
        source: Where the model came from (checkpoint file and hash), kept in ``run.json``.
        cluster: The Ray cluster whose workers certify, instead of this process; it alone writes all the same.

    Returns:
        The finished run.

    Raises:
        UsageError: If nothing is selected, an input or the model's output is not as it must be, or a shard is asked of
            a classifier with a memory.
        RunError: If the folder cannot be written or holds a run of another configuration.
    """
    indices = select(len(dataset), every=every, start=start, stop=stop)
    own = indices if shard is None else take_shard(indices, *shard)
    if shard is not None and smoothed.in_order:
        raise UsageError("a memory needs all inputs in one run, in their order; certify without a shard.")
    if cluster is not None and cluster.spread:
        require_members(smoothed.model)
    probe = smoothed.check(labelled_input(dataset, indices[0])[0], procedure)
    sealed = smoothed.sealed()
    if seed is None:
        seed = known_seed(run)
    config = {
        "kind": "certification",
        "procedure": procedure.config(),
        "noise": smoothed.noise.config(),
        **smoothed.extra_config(),
        "stream": {
            "block": BLOCK,
            "device": cluster.device if cluster else smoothed.device.type,
            "dtype": str(probe.dtype).removeprefix("torch."),
        },
        "seed": seed,
        "model": sealed.sealed_identity,
        "precision": smoothed.precision,
        "num_classes": smoothed.num_classes,
        "input_range": list(smoothed.input_range) if smoothed.input_range else None,
        "data": data_fingerprint(dataset, indices),
        "inputs": {"every": every, "start": start, "stop": stop, **({} if shard is None else {"shard": list(shard)})},
    }
    session = {**_session(smoothed, source), "probe": sealed.probe(probe.shape), "dimension": probe.numel()}
    with (
        nullcontext() if cluster is None else cluster.connected(),
        open_run(run, config, session) as writer,
        _bar(progress) as bar,
    ):
        strangers = writer.done - set(own)
        if strangers:
            raise RunError(f"{run} holds rows for inputs that are not selected, such as {min(strangers)}.")
        before = writer.run.table(["index", "outcome", "label", "predict", "input"]).to_pylist() if writer.done else []
        _refuse_other_data(run, dataset, before)
        smoothed.resume(sum(row.get("predict", ABSTAIN) != ABSTAIN for row in before))
        outcomes = Counter(_outcome(row.get("outcome"), row.get("predict"), row.get("label")) for row in before)
        task = bar.add_task("certify", total=len(own), completed=len(writer.done), detail="")
        begin, answered, drawn = time.perf_counter(), 0, 0
        labels: dict[int, int] = {}
        left = len(own) - len(writer.done)

        def inputs() -> Iterator[tuple[int, Any]]:
            for index in own:
                if index not in writer.done:
                    x, labels[index] = labelled_input(dataset, index)
                    yield index, as_tensor(x).clone()  # a dataset may give every input in the same memory

        work = Certifying(smoothed, procedure, probe, fresh_seed() if seed is None else seed, left)
        with _answers(work, inputs(), writer, cluster) as answers:
            for index, decided in answers:
                certificate = decided.certificate
                sigma = None if decided.noise is None else decided.noise.scale
                label = labels.pop(index)
                writer.append(certificate_row(certificate, label, decided.seconds, decided.consensus, sigma))
                outcomes[_outcome(certificate.outcome.value, certificate.label, label)] += 1
                answered, drawn = answered + 1, drawn + certificate.samples
                early = answered if procedure.decides_early else None
                detail = _detail(outcomes, drawn, time.perf_counter() - begin, early)
                bar.update(task, advance=1, detail=detail)
        writer.seal()
    return load_run(run)


def known_seed(run: str | os.PathLike[str]) -> int | None:
    """The seed of the run in a folder, or a fresh one where there is none yet; None for one merged of several.

    Raises:
        RunError: If a file of the run is damaged.
    """
    folder = Path(run)
    if (folder / "run.json").exists():
        return load_run(run).settings.seed
    rows = read_pending(folder).rows  # where run.json was lost, the rows tell
    for part in parts_of(folder):
        rows = [*rows, *read_part(part, ["index", "seed"]).to_pylist()]
    seeds = {row.get("seed") for row in rows}
    if len(seeds) > 1:
        return None
    seed = seeds.pop() if seeds else None
    return fresh_seed() if seed is None else seed


def _refuse_other_data(run: str | os.PathLike[str], dataset: Indexable, rows: Sequence[Mapping[str, Any]]) -> None:
    """Refuse to go on with other inputs than those some rows were made of.

    Raises:
        RunError: If an input has changed.
    """
    known = [row for row in rows if row.get("input")]
    for row in known[:: max(len(known) // COMPARED_INPUTS, 1)]:
        x = as_tensor(dataset[row["index"]][0])
        if input_digest(x.to(torch.promote_types(x.dtype, torch.float32))) != row["input"]:
            raise RunError(
                f"input {row['index']} of the dataset is not the one that {run} was certified on; give the same data, "
                "or choose another run folder."
            )


@contextmanager
def _answers(
    work: Certifying, inputs: Iterator[tuple[int, Any]], writer: RunWriter, cluster: Cluster | None
) -> Iterator[Iterator[tuple[int, Decided]]]:
    """Certificates of all inputs that are left, made here or on a cluster, in the way an earlier session did it."""
    if not work.count:
        yield iter(())
        return
    like = next((s["runtime"] for s in writer.run.info["sessions"] if "runtime" in s), None)
    if cluster is None:
        writer.annotate(runtime=work.begin(like))
        yield work.answers(inputs)
        return
    smoothed, order = work.smoothed, deque[tuple[int, Tensor]]()
    if cluster.spread:
        options = {"batch_size": smoothed.batch_size, "precision": smoothed.precision, "runtime": smoothed.runtime}
        samples = work.count * work.procedure.expected_samples
        with spread(cluster, smoothed.model, work.probe, samples=samples, like=like, **options) as runtime:
            writer.annotate(runtime=runtime.notes["member"], cluster=asdict(cluster))
            yield replace(work, smoothed=smoothed.run_by(runtime)).answers(inputs)
        return

    def noted() -> Iterator[tuple[int, Any]]:
        for index, x in inputs:
            if smoothed.in_order:
                order.append((index, smoothed.check(x)))
            yield index, x

    each = replace(work, smoothed=smoothed.for_workers(), count=-(-work.count // (cluster.workers or 2)))
    with cluster.team(each, work.count, like=like) as team:
        writer.annotate(runtime=team.settings, cluster=asdict(cluster))
        yield _settled(smoothed, team.run(noted(), work.count), order)


def _settled(
    smoothed: Smoothed, decided: Iterator[tuple[int, Decided]], order: deque[tuple[int, Tensor]]
) -> Iterator[tuple[int, Decided]]:
    """What workers decided, as the classifier gives it out."""
    kept: dict[int, Decided] = {}

    def certificates() -> Iterator[tuple[int, Certificate]]:
        for index, one in decided:
            kept[index] = one
            yield index, one.certificate

    for index, certificate in smoothed.settled(certificates(), order):
        yield index, replace(kept.pop(index), certificate=certificate)


def select(size: int, *, every: int, start: int, stop: int | None) -> range:
    """The indices of a dataset of ``size`` inputs that are to be certified.

    Raises:
        UsageError: If none are.
    """
    if every < 1 or start < 0:
        raise UsageError(f"every must be at least 1 and start at least 0, got every={every}, start={start}.")
    indices = range(start, size if stop is None else min(stop, size), every)
    if not indices:
        raise UsageError(f"no input selected: the dataset has {size} inputs, start is {start}, stop is {stop}.")
    return indices


def take_shard(indices: range, number: int, count: int) -> range:
    """The inputs of one of several shards: every ``count``-th, so that all shards are alike.

    Args:
        indices: The inputs of all shards.
        number: Which shard, from 1.
        count: How many shards there are.

    Returns:
        Its inputs.

    Raises:
        UsageError: If there is no such shard, or nothing in it.

    Example:
        >>> list(take_shard(range(0, 70, 10), 2, 3))
        [10, 40]
    """
    if not 1 <= number <= count:
        raise UsageError(f"there is no shard {number}/{count}; shards are numbered from 1/{count} to {count}/{count}.")
    if count > len(indices):
        raise UsageError(f"{len(indices)} inputs make no {count} shards; take at most {len(indices)}.")
    return indices[number - 1 :: count]


def whole_selection(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of :func:`select` that a run was made with; of all its shards if it is one."""
    return {name: value for name, value in config["inputs"].items() if name != "shard"}


def data_fingerprint(dataset: Indexable, indices: Sequence[int]) -> dict[str, Any]:
    """Name, size and a hash of three of the selected inputs: enough to notice another dataset on resume."""
    digest = hashlib.sha256()
    for index in sorted({indices[0], indices[len(indices) // 2], indices[-1]}):
        x, label = dataset[index]
        digest.update(np.ascontiguousarray(as_tensor(x).cpu().numpy()).tobytes())
        digest.update(str(int(label)).encode())
    return {
        "name": getattr(dataset, "name", type(dataset).__name__),
        "split": getattr(dataset, "split", None),
        "size": len(dataset),
        "sha256": digest.hexdigest(),
    }


def _session(smoothed: Smoothed, source: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            "smoothcert": version("smoothcert"),
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "numpy", "scipy")},
        },
        "device": str(smoothed.device),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "source": dict(source) if source else None,
    }


def labelled_input(dataset: Indexable, index: int) -> tuple[Any, int]:
    """An input of a dataset and its label.

    Raises:
        UsageError: If the dataset gives anything else by index.
    """
    try:
        found: Any = dataset[index]
    except TypeError as error:
        kind = type(dataset).__name__
        more = "; give its .dataset" if hasattr(dataset, "dataset") else ""
        raise UsageError(f"a {kind} does not give (input, label) pairs by index{more} ({error}).") from error
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        parts = f" of {len(found)} parts" if isinstance(found, (tuple, list)) else ""
        raise UsageError(
            f"input {index} of the dataset is a {type(found).__name__}{parts}, not an (input, label) pair; wrap the "
            "dataset so that it gives pairs."
        )
    try:
        return found[0], int(found[1])
    except (TypeError, ValueError) as error:
        raise UsageError(f"the label of input {index} is {found[1]!r}, not the number of a class.") from error


WRONG = "certified but wrong"


def _outcome(outcome: str | None, predict: int | None, label: int | None) -> str | None:
    """What the bar counts an answer as: one with a wrong class is not a success, whatever its radius."""
    return WRONG if outcome == Outcome.CERTIFIED.value and predict != label else outcome


def _detail(outcomes: Counter[str | None], drawn: int, seconds: float, answered: int | None) -> str:
    """What the bar says beside the number of inputs: outcomes, speed, and what early decisions save."""
    parts = [f"{outcomes[name]} {name}" for name in ("certified", WRONG, "refuted") if outcomes[name]]
    parts.append(f"{drawn / seconds / 1000:,.1f}k/s")
    if answered is not None:
        parts.append(f"{1 - drawn / (answered * USUAL_SAMPLES):.1%} saved")
    return " · ".join(parts)


def _bar(enabled: bool) -> Bar:
    return Bar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=8),
        MofNCompleteColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeRemainingColumn(),
        shown=enabled,
    )
