"""Certificates of attacked inputs, from a run or made here, and contradictions between them and the attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track

from smoothcert.attack.pgd import AttackResult
from smoothcert.certify import Cohen, Smoothed
from smoothcert.classifiers.identity import model_identity
from smoothcert.data import Dataset
from smoothcert.data.inputs import data_fingerprint
from smoothcert.store import Run
from smoothcert.store.selection import select
from smoothcert.types import Norm, SmoothcertError, UsageError, radius_text

_MOST_CASES = 10


class Certified(NamedTuple):
    """A certificate: this class (or ``ABSTAIN``) within this ℓ2 radius, with error probability ``alpha``."""

    label: int
    radius: float
    alpha: float


def certified_by_run(run: Run, smoothed: Smoothed, dataset: Dataset, indices: Sequence[int]) -> dict[int, Certified]:
    """Return the certificates of a run for these inputs.

    Raises:
        UsageError: If the run is about another classifier or dataset, or lacks one of the inputs.
    """
    _refuse_other(run, smoothed, dataset)
    rows = run.table(["index", "predict", "radius", "alpha", "norm"]).to_pylist()
    if {row["norm"] for row in rows} - {Norm.L2.value}:
        raise UsageError(f"{run.path} has radii in another norm than ℓ2, the norm of the attack.")
    certified = {row["index"]: Certified(row["predict"], row["radius"], row["alpha"]) for row in rows}
    missing = [index for index in indices if index not in certified]
    if missing:
        raise UsageError(
            f"{run.path} has no row for {len(missing)} of the {len(indices)} inputs chosen, such as {missing[0]}; "
            "certify them, or choose other inputs."
        )
    return certified


def certify_inputs(
    smoothed: Smoothed, dataset: Dataset, indices: Sequence[int], procedure: Cohen, seed: int
) -> dict[int, Certified]:
    """Certify these inputs, with a progress bar on stderr."""
    inputs = ((index, dataset[index][0]) for index in indices)
    answers = smoothed.run(inputs, procedure, procedure.certify, seed=seed, count=len(indices))
    shown = track(answers, "certify", len(indices), console=Console(stderr=True))
    return {job.index: Certified(answer.label, answer.radius, answer.alpha) for job, answer in shown}


def refuse_contradictions(results: Sequence[AttackResult], certified: Mapping[int, Certified], alpha: float) -> None:
    """Raise a SmoothcertError if the attack contradicts a certificate."""
    found = {
        r.index: r for r in reversed(results) if r.contradicts(certified[r.index].label, certified[r.index].radius)
    }
    if not found:
        return
    cases = [
        f"input {index} (class {certified[index].label} proved within {radius_text(certified[index].radius)}, "
        f"class {found[index].prediction.label} found at {found[index].distance:.3f})"
        for index in sorted(found)
    ]
    more = f" and {len(cases) - _MOST_CASES} more" if len(cases) > _MOST_CASES else ""
    raise SmoothcertError(
        f"CONTRADICTION of certificate and attack at {', '.join(cases[:_MOST_CASES])}{more}; each certificate may be "
        f"wrong with probability {max(certified[index].alpha for index in found):g} and each answer of PREDICT with "
        f"{alpha:g}, so {len(found)} of {len({result.index for result in results})} inputs are either such rare "
        "errors, or certificates of another model, or a bug."
    )


def _refuse_other(run: Run, smoothed: Smoothed, dataset: Dataset) -> None:
    """Refuse a run whose certificates are not about this smoothed classifier on this dataset."""
    config = run.config
    if config["kind"] != "certification":
        raise UsageError(f"{run.path} is an {config['kind']} log, which does not record its model; leave out --run.")
    if "shard" in config["inputs"]:
        raise UsageError(f"{run.path} is one shard of a run; merge all shards with `smoothcert merge` first.")
    identity = model_identity(smoothed.model)
    about = {
        "model": (config["model"], {key: identity[key] for key in config["model"] if key in identity}),
        "noise": (_without_grid(config["noise"]), _without_grid(smoothed.noise.config())),
        "precision": ({"name": config["precision"]}, {"name": smoothed.precision}),
        "dataset": (
            {name: config["data"][name] for name in ("name", "split", "size")},
            {"name": dataset.name, "split": dataset.split, "size": len(dataset)},
        ),
    }
    for what, sides in about.items():
        if sides[0] != sides[1]:
            there, here = (" ".join(str(value)[:12] for value in side.values()) for side in sides)
            raise UsageError(
                f"{run.path} is about another {what} ({there} there, {here} here); give the right run, or no --run."
            )
    if config["data"] != data_fingerprint(dataset, select(len(dataset), **config["inputs"])):
        raise UsageError(f"{run.path} is about other inputs under the name {dataset.name}; leave out --run.")


def _without_grid(noise: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the grid: the attack may go to points between those of a grid."""
    return {key: value for key, value in noise.items() if key != "grid"}
