"""The clean decisions of a classifier that can only be asked: each training input is asked about once, and kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from smoothcert.files import replacing
from smoothcert.training.sources import Source
from smoothcert.types import SmoothcertError, UsageError

FILE = "decisions.safetensors"
_KEY = "smoothcert-decisions"
_UNKNOWN = -1
_PARTS = 100


def clean_decisions(
    classifier: Callable[[Tensor], Tensor],
    source: Source,
    *,
    num_classes: int,
    batch_size: int,
    folder: Path | None = None,
) -> Tensor:
    """The class that a classifier gives to each training input without noise.

    In a folder, what was asked is written down about every hundredth of the way and never asked again.

    Args:
        classifier: A callable from a batch to logits or votes, of shape (batch, classes).
        source: The training inputs.
        num_classes: The number of classes it must have.
        batch_size: Inputs per call.
        folder: Where the decisions are kept; nowhere when not given.

    Returns:
        One class per input, on the CPU.

    Raises:
        UsageError: If the classifier gives another shape, or the folder holds the decisions on other inputs.
        SmoothcertError: If a logit is not finite, or what is kept is damaged.
    """
    kept = _Kept(folder, _fingerprint(source), len(source), num_classes)
    left = (kept.decisions == _UNKNOWN).nonzero()[:, 0]
    batches = torch.split(left, batch_size)
    every = max(len(source) // (_PARTS * batch_size), 1)
    try:
        for number, ((x, _), rows) in enumerate(zip(source.batches(batches, seed=0), batches, strict=True)):
            kept.decisions[rows] = _asked(classifier, x, num_classes)
            if number % every == 0:
                kept.save()
    finally:
        if len(left):
            kept.save()
    return kept.decisions


def _asked(classifier: Callable[[Tensor], Tensor], x: Tensor, num_classes: int) -> Tensor:
    with torch.no_grad():
        logits = classifier(x)
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if shape != (len(x), num_classes):
        raise UsageError(
            f"the classifier must give {num_classes} logits for each of {len(x)} inputs, as the surrogates do, but "
            f"gave {shape}; use surrogates with its classes."
        )
    if not bool(torch.isfinite(logits).all()):
        raise SmoothcertError("the classifier gave logits that are not finite for a clean input; check its answers.")
    return logits.argmax(dim=1).cpu()


@dataclass
class _Kept:
    """Decisions as far as they are known, and the file they are kept in."""

    folder: Path | None
    fingerprint: str
    inputs: int
    num_classes: int

    def __post_init__(self) -> None:
        self.decisions = torch.full((self.inputs,), _UNKNOWN, dtype=torch.long)
        if self.folder is not None and (self.folder / FILE).exists():
            self._load(self.folder / FILE)

    def save(self) -> None:
        if self.folder is None or bool((self.decisions == _UNKNOWN).all()):
            return  # a classifier that does not fit leaves no folder behind
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self.folder / FILE) as temporary:
            safetensors.torch.save_file({"decisions": self.decisions}, temporary, {_KEY: self._about()})

    def _about(self) -> str:
        return json.dumps({"inputs": self.fingerprint, "num_classes": self.num_classes})

    def _load(self, file: Path) -> None:
        try:
            with safetensors.safe_open(file, framework="pt") as content:
                about, decisions = (content.metadata() or {})[_KEY], content.get_tensor("decisions")
        except Exception as error:  # the parser has an error class of its own
            raise SmoothcertError(f"'{file}' is damaged ({error}); delete it to ask the classifier again.") from error
        if about != self._about() or decisions.shape != self.decisions.shape:
            raise UsageError(f"'{file}' holds the decisions on other inputs or classes; use another folder.")
        self.decisions = decisions.long()


def _fingerprint(source: Source) -> str:
    """A hash of a hundred inputs, evenly spaced, which may have to be read from disk."""
    some = torch.arange(min(_PARTS, len(source))) * len(source) // min(_PARTS, len(source))
    x, _ = next(iter(source.batches([some], seed=0)))
    return hashlib.sha256(x.cpu().contiguous().numpy().tobytes()).hexdigest()
