"""What early decisions saved: stages, samples and time of a run against a fixed number of samples."""

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
    """How a run with early decisions spent its samples.

    Attributes:
        inputs: The number of inputs.
        certified: Share of all inputs certified at the (largest) target.
        refuted: Share given up.
        undecided: Share left open.
        certified_in_stage: ASC_j, the share of all inputs certified in stage j; empty without stages.
        abstained_in_stage: ASA_j, the share of all inputs that ended in stage j without a certificate.
        mean_samples: Mean samples per input, selection included.
        sample_factor: SampleRF, how many times more samples the fixed number takes.
        time_factor: TimeRF, how many times longer the fixed number takes: from the reference run, or else at this run's
            own time per sample.
        consensus: KCR, the share of noisy copies that the first members of a consensus decided; None without one.
    """

    inputs: int
    certified: float
    refuted: float
    undecided: float
    certified_in_stage: tuple[float, ...]
    abstained_in_stage: tuple[float, ...]
    mean_samples: float
    sample_factor: float
    time_factor: float
    consensus: float | None = None


def savings(run: Run, *, n: int = 100_000, reference: Run | None = None) -> Savings:
    """Compare a run with certifying at a fixed number of samples (Horváth et al., 2022, §6 and Tables 3 and 4).

    Args:
        run: A run of any procedure.
        n: The fixed number of estimation samples; the reference run's own when one is given.
        reference: A run with a fixed number of samples over the same inputs, for real times.
    """
    rows = run.table(_NEEDED).to_pylist()
    if not rows or "outcome" not in rows[0]:
        raise UsageError(f"{run.path} has no rows that tell how many samples they took.")
    total, samples = len(rows), sum(row["n"] + row["n0"] for row in rows)
    seconds = sum(row["seconds"] for row in rows)
    fixed_samples = sum(n + row["n0"] for row in rows)
    fixed_seconds = seconds * fixed_samples / samples
    if reference is not None:
        others = reference.table(_NEEDED).to_pylist()
        if [row["index"] for row in others] != [row["index"] for row in rows]:
            raise UsageError(f"{reference.path} is about other inputs than {run.path}; compare runs of the same.")
        fixed_samples = sum(row["n"] + row["n0"] for row in others)
        fixed_seconds = sum(row["seconds"] for row in others)
    outcomes = Counter(row["outcome"] for row in rows)
    stages = Counter((len(row["stages"]), row["outcome"] == "certified") for row in rows if row["stages"])
    last = max((stage for stage, _ in stages), default=0)
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
        consensus=_consensus(rows),
    )


def _consensus(rows: Sequence[Mapping[str, Any]]) -> float | None:
    shares = [(row["consensus"], row["n"] + row["n0"]) for row in rows if row.get("consensus") is not None]
    return sum(share * samples for share, samples in shares) / sum(n for _, n in shares) if shares else None


def savings_text(found: Savings, reference: str = "the fixed number") -> str:
    """The savings against a reference, in a few lines."""
    lines = [
        f"{found.certified:.1%} certified, {found.refuted:.1%} refuted, {found.undecided:.1%} undecided "
        f"of {found.inputs} inputs; {found.mean_samples:,.0f} samples per input, "
        f"{found.sample_factor:.1f} × fewer and {found.time_factor:.1f} × faster than {reference}."
    ]
    if found.consensus is not None:
        lines.append(f"  {consensus_text(found)}")
    for stage, (certified, abstained) in enumerate(
        zip(found.certified_in_stage, found.abstained_in_stage, strict=True), 1
    ):
        lines.append(f"  stage {stage}: {certified:.1%} certified (ASC), {abstained:.1%} abstained (ASA)")
    return "\n".join(lines)


def consensus_text(found: Savings) -> str:
    """The share that a consensus decided, as a line; empty without one."""
    if found.consensus is None:
        return ""
    return f"{found.consensus:.1%} of the noisy copies were decided by the first members alone (KCR)."
