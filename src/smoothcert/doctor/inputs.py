"""Checks of the inputs: values, shapes, labels, and whether the dataset returns the same ones every time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smoothcert.data.inputs import Indexable, labelled_input
from smoothcert.doctor.findings import Clock, Finding, error, info, warning
from smoothcert.models.normalize import PRESETS
from smoothcert.tensors import as_tensor

_SLACK = 0.02  # how far rounding and resampling may move values out of [0, 1]
_SHARE = 0.1  # of the time for reading inputs


@dataclass(frozen=True)
class Sample:
    """The examined inputs, spread over those of the planned run; all have the same shape and type."""

    indices: tuple[int, ...]
    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.indices)

    def first(self, count: int) -> Sample:
        """Return a smaller sample, spread as evenly."""
        return self._only(torch.linspace(0, len(self) - 1, min(count, len(self))).round().long())

    def split(self, count: int) -> tuple[Sample, Sample]:
        """Return ``count`` of the inputs and all others, both spread over the dataset."""
        chosen = torch.zeros(len(self), dtype=torch.bool)
        chosen[torch.linspace(0, len(self) - 1, min(count, len(self) - 1)).round().long()] = True
        return self._only(chosen.nonzero().flatten()), self._only((~chosen).nonzero().flatten())

    def _only(self, places: Tensor) -> Sample:
        return Sample(tuple(self.indices[place] for place in places.tolist()), self.x[places], self.y[places])


def draw_sample(dataset: Indexable, indices: Sequence[int], count: int, clock: Clock) -> tuple[Sample, list[Finding]]:
    """Read some of the inputs, and report what is wrong with reading them."""
    most = min(count, len(indices))
    chosen = [indices[place * len(indices) // most] for place in range(most)]
    random.Random(0).shuffle(chosen)  # so that those read in time are spread over the dataset too
    pairs: list[tuple[int, Tensor, int]] = []
    for index in chosen:
        pairs.append((index, *_read(dataset, index)))
        if clock.left < (1 - _SHARE) * clock.seconds and len(pairs) >= 2:
            break
    pairs.sort(key=lambda pair: pair[0])
    shape, dtype = pairs[0][1].shape, pairs[0][1].dtype
    fitting = [(index, x, y) for index, x, y in pairs if x.shape == shape and x.dtype == dtype]
    found: list[Finding] = []
    if len(fitting) < len(pairs):
        other = next(index for index, x, _ in pairs if x.shape != shape or x.dtype != dtype)
        detail = f"Input {other} has another shape or type than input {pairs[0][0]} ({tuple(shape)})."
        found.append(error("shapes", detail, "Resize or crop all inputs to the shape that the model was trained on."))
    for index, x, label in fitting[:5]:
        again, same = _read(dataset, index)
        if not torch.equal(again, x) or same != label:
            detail = f"Reading input {index} twice returns different inputs, as with random augmentation."
            advice = "Certify a dataset that always returns the same input for an index; leave out random transforms."
            found.append(error("data", detail, advice))
            break
    numbers, tensors, labels = zip(*fitting, strict=True)
    return Sample(numbers, torch.stack(tensors), torch.tensor(labels)), found


def _read(dataset: Indexable, index: int) -> tuple[Tensor, int]:
    x, label = labelled_input(dataset, index)
    return as_tensor(x).detach().clone(), label


def check_values(sample: Sample, input_range: tuple[float, float] | None, normalises: bool) -> Finding:
    """Compare the values of inputs with the declared range; ``normalises``: the model has a normalisation layer."""
    x = sample.x
    if not x.is_floating_point():
        detail = f"Inputs are whole numbers ({str(x.dtype).removeprefix('torch.')})."
        return error("values", detail, "Convert them to floating point: x.float() / 255 for 8-bit images.")
    if not bool(x.isfinite().all()):
        invalid = sample.indices[int((~x.isfinite().flatten(1).all(dim=1)).nonzero()[0])]
        return error("values", f"Input {invalid} has NaN or infinite values.", "Repair or leave out such inputs.")
    low, high = float(x.min()), float(x.max())
    spans = f"Values span [{low:.4g}, {high:.4g}]"
    if input_range is None:
        return info("values", f"{spans}; the classifier declares no range.")
    outside = float(((x < input_range[0] - 1e-6) | (x > input_range[1] + 1e-6)).double().mean())
    declared = f"[{input_range[0]:g}, {input_range[1]:g}]"
    if outside:
        what, advice = _explained(x, normalises)
        detail = f"{spans}, {outside:.1%} of them outside {declared}, which certify refuses{what}."
        return error("values", detail, advice)
    if high - low < 0.02 * (input_range[1] - input_range[0]):
        detail = f"{spans}, a tiny part of {declared}, as if they had been divided by 255 twice."
        return error("values", detail, f"Scale inputs to {declared}.")
    return info("values", f"{spans}, inside {declared}.")


def _explained(x: Tensor, normalises: bool) -> tuple[str, str]:
    """Describe values outside [0, 1], and what to do about them."""
    name = looks_like(x)
    if name == "8-bit":
        return "; they look like 8-bit values", "Divide inputs by 255, and σ with them: noise and radii are in [0, 1]."
    if name == "[-1, 1]":
        advice = "Give inputs in [0, 1], (x + 1) / 2, and make 2 x - 1 the first layer of the model."
        return "; they look scaled to [-1, 1]", advice
    if name is None:
        return "", "Rescale inputs to [0, 1], or declare another input_range: noise and radii are in the same units."
    what = f"; they look normalised with the statistics of {name}"
    if normalises:
        what += ", and the model has a normalisation layer too, so they are normalised twice"
        return what, "Give inputs in [0, 1] without normalisation; the layer of the model does it."
    return what, "Give inputs in [0, 1], and make normalisation the first layer of the model (models.Normalize)."


def looks_like(x: Tensor) -> str | None:
    """Guess what scaled values out of [0, 1]: ``"8-bit"``, ``"[-1, 1]"``, the name of a preset, or None."""
    low, high = float(x.min()), float(x.max())
    if low >= 0 and 2 < high <= 255:
        return "8-bit"
    if -1 - _SLACK <= low < -0.5 and 0.5 < high <= 1 + _SLACK:
        return "[-1, 1]"
    found: dict[str, float] = {}
    for name, (mean, std) in PRESETS.items():
        if x.ndim == 4 and x.shape[1] == len(mean):
            back = x * x.new_tensor(std).reshape(-1, 1, 1) + x.new_tensor(mean).reshape(-1, 1, 1)
            bottom, top = float(back.min()), float(back.max())
            if bottom >= -_SLACK and top <= 1 + _SLACK and top - bottom > 0.5:
                found[name] = abs(bottom) + abs(1 - top)
    return min(found, key=lambda name: found[name], default=None)


def check_labels(sample: Sample, num_classes: int | None) -> Iterator[Finding]:
    """Look for labels that the model does not have, and for a selection with a single label."""
    low, high = int(sample.y.min()), int(sample.y.max())
    if low < 0 or (num_classes is not None and high >= num_classes):
        classes = "" if num_classes is None else f", but the model has classes 0 to {num_classes - 1}"
        advice = "Use the dataset that the model was trained for, with labels in the same order."
        yield error("labels", f"Labels go from {low} to {high}{classes}.", advice)
    elif len(sample) > 20 and low == high:
        advice = "Spread the inputs over the dataset with --every instead of --start and --stop."
        yield warning("labels", f"All {len(sample)} examined inputs have label {low}.", advice)
