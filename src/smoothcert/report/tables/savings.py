"""Samples and time that early decisions saved against a fixed number of samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smoothcert.store import Run
from smoothcert.types import UsageError

_NEEDED = ["index", "outcome", "n", "n0", "seconds", "stages", "consensus"]


@dataclass(frozen=True)
class Savings:
    """How a run with early decisions used its samples; shares are of all inputs."""

    inputs: int
    certified: float  # at the (largest) target radius
    refuted: float
    undecided: float
    certified_in_stage: tuple[float, ...]  # ASC_j, the share certified in stage j; empty without stages
    abstained_in_stage: tuple[float, ...]  # ASA_j, the share that ended in stage j without a certificate
    mean_samples: float  # per input, selection included
    sample_factor: float  # SampleRF, the samples of the fixed number divided by those of the run
    time_factor: float  # TimeRF, the same for the time: of the reference, or else from this run's time per sample
    consensus: float | None  # KCR, the share of noisy copies that the first members decided; None without a consensus


def savings(run: Run, *, n: int = 100_000, reference: Run | None = None) -> Savings:
    """Compare a run with certifying at a fixed number of samples (Horváth et al., 2022, §6 and Tables 3 and 4).

    The fixed number of estimation samples is ``n``, or that of a ``reference`` run over the same inputs, whose measured
    time then counts.
    """
    rows = run.table(_NEEDED).to_pylist()
    if not rows or "outcome" not in rows[0]:
        raise UsageError(f"{run.path} has no rows that record their samples.")
    total, samples = len(rows), _samples(rows)
    seconds = sum(row["seconds"] for row in rows)
    fixed_samples = sum(n + row["n0"] for row in rows)
    fixed_seconds = seconds * fixed_samples / samples
    if reference is not None:
        others = reference.table(_NEEDED).to_pylist()
        if [row["index"] for row in others] != [row["index"] for row in rows]:
            raise UsageError(f"{reference.path} is about other inputs than {run.path}; compare runs of the same.")
        fixed_samples = _samples(others)
        fixed_seconds = sum(row["seconds"] for row in others)
    outcomes = Counter(row["outcome"] for row in rows)
    stages = Counter((len(row["stages"]), row["outcome"] == "certified") for row in rows if row["stages"])
    last = max((stage for stage, _ in stages), default=0)
    voted = [row for row in rows if row.get("consensus") is not None]
    return Savings(
        inputs=total,
        certified=outcomes["certified"] / total,
        refuted=outcomes["refuted"] / total,
        undecided=outcomes["undecided"] / total,
        certified_in_stage=tuple(stages[stage, True] / total for stage in range(1, last + 1)),
        abstained_in_stage=tuple(stages[stage, False] / total for stage in range(1, last + 1)),
        mean_samples=samples / total,
        sample_factor=fixed_samples / samples,
        time_factor=fixed_seconds / seconds if seconds > 0 else float("inf"),
        consensus=sum(row["consensus"] * _samples([row]) for row in voted) / _samples(voted) if voted else None,
    )


def _samples(rows: Sequence[Mapping[str, Any]]) -> int:
    return sum(row["n"] + row["n0"] for row in rows)


def savings_text(found: Savings, reference: str = "the fixed number") -> str:
    """Write the savings against a reference in a few lines."""
    lines = [
        f"{found.certified:.1%} certified, {found.refuted:.1%} refuted, {found.undecided:.1%} undecided "
        f"of {found.inputs} inputs; {found.mean_samples:,.0f} samples per input, "
        f"{found.sample_factor:.1f} × fewer and {found.time_factor:.1f} × faster than {reference}."
    ]
    if found.consensus is not None:
        lines.append(f"  {consensus_text(found)}")
    stages = zip(found.certified_in_stage, found.abstained_in_stage, strict=True)
    for stage, (certified, abstained) in enumerate(stages, 1):
        lines.append(f"  stage {stage}: {certified:.1%} certified (ASC), {abstained:.1%} abstained (ASA)")
    return "\n".join(lines)


def consensus_text(found: Savings) -> str:
    """Write the share that a consensus decided as a sentence; empty without one."""
    if found.consensus is None:
        return ""
    return f"{found.consensus:.1%} of the noisy copies were decided by the first members alone (KCR)."
