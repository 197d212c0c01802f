"""Check whether the model expects inputs that are scaled in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import scipy
import torch
from torch import Tensor

from smoothcert.classifiers.sealed import Sealed
from smoothcert.doctor.findings import Finding, error, info, warning
from smoothcert.doctor.inputs import Sample
from smoothcert.models.normalize import PRESETS
from smoothcert.noise import Noise

SHOWS, MATTERS = 0.03, 0.1
"""Gains in accuracy from which another scaling is a warning, and an error."""

_CLOSE = 0.02  # gains that cannot be distinguished
_SURE = 1e-3  # probability that the best scaling looks better by chance


class Scaling(NamedTuple):
    """A common scaling of inputs, and what to report if the model is right about such inputs only."""

    name: str
    change: Callable[[Tensor], Tensor]
    means: str
    advice: str


def scalings(x: Tensor) -> list[Scaling]:
    """Return the common ways to scale images of shape (inputs, channels, …)."""

    def expects(name: str, change: Callable[[Tensor], Tensor], what: str, layer: str) -> Scaling:
        return Scaling(name, change, f"the model expects {what}", f"Make {layer} the first layer of the model.")

    found = [
        expects("[-1, 1]", lambda z: 2 * z - 1, "inputs scaled to [-1, 1]", "2 x - 1"),
        expects("0 to 255", lambda z: 255 * z, "values from 0 to 255", "255 x"),
        expects("inverted", lambda z: 1 - z, "inverted inputs, 1 - x", "1 - x"),
        Scaling(
            "divided by 255",
            lambda z: z / 255,
            "the model expects inputs divided by 255",
            "Divide inputs by 255, so that they are in [0, 1].",
        ),
        Scaling(
            "[-1, 1] undone",
            lambda z: (z + 1) / 2,
            "inputs are scaled to [-1, 1], but the model expects [0, 1] or does that scaling too",
            "Scale inputs once: in the first layer of the model.",
        ),
    ]
    if x.ndim != 4:
        return found
    channels = x.shape[1]
    if channels == 3:
        what = "channels in the order blue, green, red"
        found.append(expects("channels reversed", lambda z: z.flip(1), what, "x.flip(1)"))
    own = (x.double().mean(dim=(0, 2, 3)).tolist(), x.double().std(dim=(0, 2, 3)).clamp(min=1e-6).tolist())
    known = [(f"the preset {name!r}", name, preset) for name, preset in PRESETS.items() if len(preset[0]) == channels]
    values = "/".join(":".join(f"{value:.3g}" for value in part) for part in own)
    for name, option, (mean, std) in [
        *known,
        (f"mean {_shown(own[0])} and deviation {_shown(own[1])}", values, own),
    ]:
        m, s = (torch.tensor(part).reshape(-1, 1, 1).to(x) for part in (mean, std))
        found += [
            Scaling(
                f"normalised with {name}",
                lambda z, m=m, s=s: (z - m) / s,  # type: ignore[misc]
                f"normalisation is missing; the model expects inputs normalised with {name}",
                f"Load it with --normalize {option} (in Python load_model(…, normalize=…), or put "
                "models.Normalize(mean, std) in front). Do not normalise the inputs: noise and radii are in [0, 1].",
            ),
            Scaling(
                f"normalisation with {name} undone",
                lambda z, m=m, s=s: z * s + m,  # type: ignore[misc]
                f"inputs are normalised twice, with {name}",
                "Normalise once: as the first layer of the model, for inputs in [0, 1].",
            ),
        ]
    return found


def check_scaling(sealed: Sealed, sample: Sample, noise: Noise, screened: int) -> Finding:
    """Look for another scaling of inputs and noisy copies with better accuracy.

    All scalings are tried on ``screened`` inputs, and the best is tested on the others. Under noise, models are more
    sensitive to scaling than without.
    """
    tried = scalings(sample.x)
    first, others = sample.split(screened)
    x, y = _with_copies(first, noise)
    given = _accuracy(top_classes(sealed, x) == y)
    gains = [_accuracy(top_classes(sealed, scaling.change(x)) == y) - given for scaling in tried]
    gain, best = max(zip(gains, tried, strict=True), key=lambda each: each[0])
    close = [scaling.name for each, scaling in zip(gains, tried, strict=True) if each > gain - _CLOSE]
    if gain >= SHOWS:
        x, y = _with_copies(others, noise)
        right, changed = top_classes(sealed, x) == y, top_classes(sealed, best.change(x)) == y
        given, gain = _accuracy(right), _accuracy(changed) - _accuracy(right)
        won, lost = int((changed & ~right).sum()), int((right & ~changed).sum())
        if gain >= SHOWS and scipy.stats.binomtest(won, won + lost).pvalue < _SURE:
            detail = (
                f"It seems that {best.means}: {given + gain:.0%} of {len(others)} inputs and as many noisy copies are "
                f"then classified correctly, {given:.0%} as given."
            )
            also = [name for name in close if name != best.name][:3]
            if also:
                detail += f" Nearly as good: {', '.join(also)}; see how the model was trained."
            return (error if gain >= MATTERS else warning)("scaling", detail, best.advice)
    detail = f"None of {len(tried)} other ways to scale inputs gives a better accuracy ({len(sample)} inputs tried)."
    return info("scaling", detail)


def _with_copies(sample: Sample, noise: Noise) -> tuple[Tensor, Tensor]:
    """Return inputs and a noisy copy of each, and their labels."""
    copies = torch.stack([noise.sample(x, x.new_empty((1, *x.shape)))[0] for x in sample.x])
    return torch.cat([sample.x, copies]), torch.cat([sample.y, sample.y])


def _accuracy(right: Tensor) -> float:
    return float(right.double().mean())


def top_classes(sealed: Sealed, x: Tensor, rows: int = 50) -> Tensor:
    """Return the class of each input without noise; -1 where the logits are not finite."""
    with torch.inference_mode():
        logits = torch.cat([sealed(part.to(sealed.device)).cpu() for part in torch.split(x, rows)])
    return torch.where(logits.isfinite().all(dim=1), logits.argmax(dim=1), -1)


def _shown(values: list[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
