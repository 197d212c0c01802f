"""Certify a dataset into a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from smoothcert.certify import Cohen, Procedure, Smoothed
from smoothcert.certify.inputs import CheckedInput
from smoothcert.classifiers.identity import code_origins
from smoothcert.data.inputs import Indexable, data_fingerprint, labelled_input
from smoothcert.evaluate.cluster import Cluster, require_members
from smoothcert.evaluate.driver import Evaluation, fill_run, session_facts
from smoothcert.sampling import BLOCK
from smoothcert.sampling.seeds import fresh_seed
from smoothcert.store.parts import parts_of, read_part
from smoothcert.store.pending import read_pending
from smoothcert.store.rows import certificate_row
from smoothcert.store.run import Run, load_run
from smoothcert.store.selection import select, take_shard
from smoothcert.types import Guarantee, StrPath, UsageError


def certify_dataset(
    smoothed: Smoothed,
    dataset: Indexable,
    procedure: Procedure | None = None,
    *,
    run: StrPath,
    every: int = 1,
    start: int = 0,
    stop: int | None = None,
    shard: tuple[int, int] | None = None,
    seed: int | None = None,
    progress: bool = True,
    source: Mapping[str, Any] | None = None,
    cluster: Cluster | None = None,
) -> Run:
    """Certify inputs ``start``, ``start + every``, … of a dataset and store every certificate in a run folder.

    The same call on an unfinished folder continues it, and ends with the same rows.

    Args:
        dataset: Anything with a length and (input, label) pairs by index.
        procedure: How to certify; ``Cohen()`` by default.
        run: The run folder; created if missing.
        stop: The end of the inputs, exclusive; the dataset's length by default.
        shard: (i, k) for the i-th of k disjoint runs over these inputs, i from 1; ``merge_runs`` unites them.
        seed: The seed of the noise. By default the seed of the existing run, or else a fresh one from the operating
            system, which the run records. Set it only to repeat a run: certificates are valid for models and inputs
            that were chosen without knowing the noise.
        source: Where the model came from (checkpoint file and hash), recorded in ``run.json``.
        cluster: The Ray cluster whose workers certify; by default this process does. Only this process writes.

    Raises:
        UsageError: If no input is selected, an input or the model's output is invalid, or a shard is given for a
            classifier with a memory.
        RunError: If the folder cannot be written or holds a run with another configuration.
    """
    procedure = procedure or Cohen()
    indices = select(len(dataset), every=every, start=start, stop=stop)
    own = indices if shard is None else take_shard(indices, *shard)
    if shard is not None and smoothed.memory is not None:
        raise UsageError("a memory needs all inputs in one run, in their order; certify without a shard.")
    sealed = smoothed.sealed()
    probe = CheckedInput(smoothed.check(labelled_input(dataset, indices[0])[0], procedure), sealed)
    if seed is None:
        seed = known_seed(run)
    config = run_config("certification", smoothed, probe, procedure, seed, cluster)
    config["data"] = data_fingerprint(dataset, indices)
    config["inputs"] = {"every": every, "start": start, "stop": stop}
    if shard is not None:
        config["inputs"]["shard"] = list(shard)
    noise_seed = fresh_seed() if seed is None else seed
    evaluation = Evaluation(smoothed, procedure, probe, indices[0], noise_seed, len(own))
    return fill_run(
        run,
        dataset,
        own,
        config,
        session_facts(smoothed.device, probe, source),
        lambda inputs, like, count: replace(evaluation, count=count).running(inputs, like, cluster),
        lambda one, index, label: certificate_row(one.answer, label, one.seconds, one.consensus, one.sigma),
        title="certify",
        progress=progress,
        cluster=cluster,
        resume=lambda answered: None if smoothed.memory is None else smoothed.memory.resume(answered),
        early=procedure.decides_early,
    )


def run_config(
    kind: str, smoothed: Smoothed, probe: CheckedInput, procedure: Procedure, seed: int | None, cluster: Cluster | None
) -> dict[str, Any]:
    """Return the part of a run's configuration that does not depend on the dataset."""
    if cluster is not None and cluster.spread:
        require_members(smoothed.model)
    sigma = {}
    if smoothed.sigma is not None:
        guarantee = Guarantee.POINTWISE if smoothed.memory is None else Guarantee.MEMORY
        sigma = {"sigma": smoothed.sigma.config(), "guarantee": guarantee.value}
    noises = [expert.noise for expert in smoothed.experts if isinstance(expert, Smoothed)]
    plugins = code_origins(smoothed.noise, procedure, *noises)
    return {
        "kind": kind,
        **smoothed.routed(procedure).run_config(),
        "noise": smoothed.noise.config(),
        **sigma,
        **({"plugins": plugins} if plugins else {}),
        "stream": {
            "block": BLOCK,
            "device": cluster.device if cluster else smoothed.device.type,
            "dtype": str(probe.tensor.dtype).removeprefix("torch."),
        },
        "seed": seed,
        "model": probe.sealed.sealed_identity,
        "precision": smoothed.precision,
        "num_classes": smoothed.num_classes,
        "input_range": list(smoothed.input_range) if smoothed.input_range else None,
    }


def known_seed(run: StrPath) -> int | None:
    """Return the seed of the run in a folder, or a fresh one; None for a run merged from several seeds."""
    folder = Path(run)
    if (folder / "run.json").exists():
        return load_run(run).settings.seed
    rows = read_pending(folder).rows  # rows may exist without run.json
    for part in parts_of(folder):
        rows += read_part(part, ["index", "seed"]).to_pylist()
    seeds = {row.get("seed") for row in rows}
    if len(seeds) > 1:
        return None
    seed = seeds.pop() if seeds else None
    return fresh_seed() if seed is None else seed
