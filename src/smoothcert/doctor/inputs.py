"""Checks of the inputs: values, shapes, labels, and whether the dataset always gives the same ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smoothcert.data.subset import Indexable
from smoothcert.doctor.findings import Clock, Finding, Level
from smoothcert.models.normalize import PRESETS
from smoothcert.types import UsageError

_SLACK = 0.02  # how far rounding and resampling may move values out of [0, 1]
_SHARE = 0.1  # of the time may go into reading inputs


@dataclass(frozen=True)
class Sample:
    """The inputs that are looked at, spread over those of the planned run: all of one shape and type."""

    indices: tuple[int, ...]
    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.indices)

    def first(self, count: int) -> Sample:
        """A smaller sample, spread as evenly."""
        return self._only(torch.linspace(0, len(self) - 1, min(count, len(self))).round().long())

    def split(self, count: int) -> tuple[Sample, Sample]:
        """``count`` of the inputs and all others, both spread over the dataset."""
        places = torch.zeros(len(self), dtype=torch.bool)
        places[torch.linspace(0, len(self) - 1, min(count, len(self) - 1)).round().long()] = True
        return self._only(places.nonzero().flatten()), self._only((~places).nonzero().flatten())

    def _only(self, places: Tensor) -> Sample:
        return Sample(tuple(self.indices[place] for place in places.tolist()), self.x[places], self.y[places])


def draw_sample(dataset: Indexable, indices: Sequence[int], count: int, clock: Clock) -> tuple[Sample, list[Finding]]:
    """Some of the inputs, and what is wrong with reading them.

    Raises:
        UsageError: If the first input is not a tensor of numbers.
    """
    most = min(count, len(indices))
    chosen = [indices[place * len(indices) // most] for place in range(most)]
    random.Random(0).shuffle(chosen)  # so that those read in time are spread over the dataset too
    pairs: list[tuple[int, Tensor, int]] = []
    found: list[Finding] = []
    for index in chosen:
        x, label = dataset[index]
        try:
            tensor = torch.as_tensor(x).detach().clone()
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"input {index} is a {type(x).__name__}; a dataset must give tensors or arrays."
            ) from error
        pairs.append((index, tensor, int(label)))
        if clock.left < (1 - _SHARE) * clock.seconds and len(pairs) >= 2:
            break
    pairs.sort(key=lambda pair: pair[0])
    shape, dtype = pairs[0][1].shape, pairs[0][1].dtype
    fitting = [(index, x, y) for index, x, y in pairs if x.shape == shape and x.dtype == dtype]
    if len(fitting) < len(pairs):
        other = next(index for index, x, _ in pairs if x.shape != shape or x.dtype != dtype)
        found.append(
            Finding(
                Level.ERROR,
                "shapes",
                f"Input {other} has another shape or type than input {pairs[0][0]} ({tuple(shape)}).",
                "Resize or crop all inputs to the shape that the model was trained on.",
            )
        )
    found += _changing(dataset, fitting[:5])
    numbers, tensors, labels = zip(*fitting, strict=True)
    return Sample(numbers, torch.stack(tensors), torch.tensor(labels)), found


def _changing(dataset: Indexable, known: Sequence[tuple[int, Tensor, int]]) -> Iterator[Finding]:
    for index, x, label in known:
        again, same = dataset[index]
        if not torch.equal(torch.as_tensor(again), x) or int(same) != label:
            yield Finding(
                Level.ERROR,
                "data",
                f"The dataset gives another input {index} when it is asked again, as random augmentation does.",
                "Certify a dataset that always gives the same input for an index; leave out random transforms.",
            )
            return


def check_values(sample: Sample, input_range: tuple[float, float] | None, normalises: bool) -> Iterator[Finding]:
    """Compare the values of inputs with the range that the classifier declares.

    Args:
        sample: The inputs.
        input_range: The range; None where it declares none.
        normalises: Whether a normalisation layer is known to be in the model.
    """
    x = sample.x
    if not x.is_floating_point():
        yield Finding(
            Level.ERROR,
            "values",
            f"Inputs are whole numbers ({str(x.dtype).removeprefix('torch.')}).",
            "Convert them to floating point: x.float() / 255 for 8-bit images.",
        )
        return
    if not bool(x.isfinite().all()):
        wrong = sample.indices[int((~x.isfinite().flatten(1).all(dim=1)).nonzero()[0])]
        yield Finding(
            Level.ERROR, "values", f"Input {wrong} holds NaN or infinite values.", "Repair or leave out such inputs."
        )
        return
    low, high = float(x.min()), float(x.max())
    spans = f"Values span [{low:.4g}, {high:.4g}]"
    if input_range is None:
        yield Finding(Level.INFO, "values", f"{spans}; the classifier declares no range.")
        return
    outside = float(((x < input_range[0] - 1e-6) | (x > input_range[1] + 1e-6)).double().mean())
    declared = f"[{input_range[0]:g}, {input_range[1]:g}]"
    if outside:
        what, advice = _explained(x, normalises)
        detail = f"{spans}, {outside:.1%} of them outside {declared}, which certify refuses{what}."
        yield Finding(Level.ERROR, "values", detail, advice)
    elif high - low < 0.02 * (input_range[1] - input_range[0]):
        yield Finding(
            Level.ERROR,
            "values",
            f"{spans}, next to nothing of {declared}, as if they had been divided by 255 twice.",
            f"Scale inputs to {declared}.",
        )
    else:
        yield Finding(Level.INFO, "values", f"{spans}, inside {declared}.")


def _explained(x: Tensor, normalises: bool) -> tuple[str, str]:
    """What values outside [0, 1] look like, and what to do about them."""
    name = looks_like(x)
    if name == "8-bit":
        return "; they look like 8-bit values", "Divide inputs by 255, and σ with them: noise and radii are in [0, 1]."
    if name == "[-1, 1]":
        return (
            "; they look scaled to [-1, 1]",
            "Give inputs in [0, 1], (x + 1) / 2, and make 2 x - 1 the first layer of the model.",
        )
    if name is None:
        return "", "Rescale inputs to [0, 1], or declare another input_range: noise and radii are in the same units."
    layer = "the model has a normalisation layer too, so they are normalised twice" if normalises else ""
    advice = "Give inputs in [0, 1] without normalisation" + (
        "; the model's layer does it."
        if normalises
        else ", and make it the first layer of the model (models.Normalize)."
    )
    return f"; they look normalised with the statistics of {name}{', and ' * bool(layer)}{layer}", advice


def looks_like(x: Tensor) -> str | None:
    """What scaling brought values out of [0, 1]: ``"8-bit"``, ``"[-1, 1]"``, the name of a preset, or None."""
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
    """Look for labels that the model does not have, and for a selection with one label only."""
    low, high = int(sample.y.min()), int(sample.y.max())
    if low < 0 or (num_classes is not None and high >= num_classes):
        classes = "" if num_classes is None else f", but the model has classes 0 to {num_classes - 1}"
        yield Finding(
            Level.ERROR,
            "labels",
            f"Labels go from {low} to {high}{classes}.",
            "Use the dataset that the model was trained for, with labels in the same order.",
        )
    elif len(sample) > 20 and low == high:
        yield Finding(
            Level.WARNING,
            "labels",
            f"All {len(sample)} inputs looked at have label {low}.",
            "Spread the inputs over the dataset with --every instead of --start and --stop.",
        )
