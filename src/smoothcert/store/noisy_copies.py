"""Draw the noisy copies of a stored certificate again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from smoothcert.data.inputs import Indexable, data_fingerprint
from smoothcert.noise import Gaussian, Noise
from smoothcert.sampling import BLOCK, ESTIMATION, RECERTIFICATION
from smoothcert.sampling.copies import NoisyCopies, input_digest
from smoothcert.store.run import Run
from smoothcert.store.selection import select, whole_selection
from smoothcert.types import RunError, UsageError


def noisy_copies(run: Run, row: Mapping[str, Any], x: Tensor, count: int) -> Tensor:
    """Draw the first noisy copies of an input among its estimation samples again.

    Args:
        row: The input's row of ``run.rows()``.
        x: The input, as the classifier received it.
        count: How many copies, at most those that were drawn.

    Returns:
        The copies (count, shape of x), on the CPU.
    """
    noise = _noise(run, row)
    drawn = row["stages"][0]["n"] if row.get("stages") else row.get("n")
    if noise is None or drawn is None or drawn < 1:
        raise UsageError(f"input {row['index']} of {run.path} was answered without noisy copies; choose another one.")
    stream, seed = run.settings.stream, row.get("seed")
    seed = run.settings.seed if seed is None else seed  # rows of earlier versions have no seed
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if row.get("input") not in (None, input_digest(x)):
        raise RunError(f"input {row['index']} is not the one that {run.path} was certified on; give the same data.")
    if stream.block != BLOCK:
        raise RunError(f"{run.path} drew noise in blocks of {stream.block}, not of {BLOCK}; certify it again.")
    if seed is None:
        raise RunError(f"{run.path} does not record the seed of its noise for input {row['index']}; certify it again.")
    try:
        x = x.to(stream.device or "").contiguous()
    except (RuntimeError, AssertionError, KeyError, TypeError) as error:
        raise UsageError(
            f"{run.path} drew its noise on {stream.device}, which is missing here; show it on such a device."
        ) from error
    rows = torch.empty((min(count, drawn), *x.shape), dtype=x.dtype, device=x.device)
    stage = ESTIMATION if row.get("original") is None else RECERTIFICATION
    NoisyCopies(x).fill(rows, x, noise, seed=seed, index=row["index"], stage=stage, start=0)
    return rows.cpu()


def check_data(run: Run, dataset: Indexable) -> None:
    """Refuse a dataset with another size or other inputs than the run's fingerprint."""
    known = run.settings.data
    if known is None:
        raise UsageError(f"{run.path} does not record its data, so its inputs cannot be shown.")
    if len(dataset) == known.size:
        indices = select(len(dataset), **whole_selection(run.config))
        if data_fingerprint(dataset, indices)["sha256"] == known.sha256:
            return
    split = f" ({known.split})" if known.split else ""
    name = getattr(dataset, "name", type(dataset).__name__)
    raise UsageError(
        f"{run.path} was certified on {known.name}{split} with {known.size} inputs, and this {name} with "
        f"{len(dataset)} is another dataset; give the one it was certified on."
    )


def _noise(run: Run, row: Mapping[str, Any]) -> Noise | None:
    """Build the noise of an input: the run's, the input's, or that of the expert that answered."""
    settings = run.settings
    if settings.experts is not None:
        choice = row.get("choice")
        known = isinstance(choice, int) and 0 <= choice < len(settings.experts)
        config = settings.experts[choice or 0].get("noise") if known else None
        return settings.build_noise(config) if isinstance(config, Mapping) else None
    if row.get("sigma") is not None:
        noise = settings.noise.as_dict() if settings.noise is not None else {}
        return settings.build_noise({"name": Gaussian.name, **noise, "sigma": row["sigma"]})
    return settings.build_noise()
