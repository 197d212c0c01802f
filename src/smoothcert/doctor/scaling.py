"""Does the model expect inputs that are scaled in another way?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from smoothcert.classifiers.sealed import Sealed
from smoothcert.doctor.findings import Finding, Level
from smoothcert.doctor.inputs import Sample
from smoothcert.models.normalize import PRESETS
from smoothcert.noise import Noise

SHOWS, MATTERS = 0.03, 0.1
"""Gains in accuracy from which another scaling is a warning, and an error."""

_CLOSE = 0.02  # gains that cannot be told apart
_SURE = 1e-3  # probability that chance alone makes one of the scalings look better


@dataclass(frozen=True)
class Scaling:
    """Another way to scale inputs.

    Attributes:
        name: What it does, in few words.
        change: Makes inputs as the model may expect them from those given.
        means: What is wrong if the model is right about such inputs only.
        advice: What to do then.
    """

    name: str
    change: Callable[[Tensor], Tensor]
    means: str
    advice: str


def scalings(x: Tensor) -> list[Scaling]:
    """Ways to scale images, given as (inputs, channels, …), that are in use."""
    found = [
        Scaling(
            "[-1, 1]",
            lambda z: 2 * z - 1,
            "the model expects inputs scaled to [-1, 1]",
            "Make 2 x - 1 the first layer of the model.",
        ),
        Scaling(
            "0 to 255",
            lambda z: 255 * z,
            "the model expects values from 0 to 255",
            "Make 255 x the first layer of the model.",
        ),
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
            "Scale inputs once: leave it to the first layer of the model.",
        ),
        Scaling(
            "inverted",
            lambda z: 1 - z,
            "the model expects inverted inputs, 1 - x",
            "Make 1 - x the first layer of the model.",
        ),
    ]
    if x.ndim != 4:
        return found
    channels = x.shape[1]
    if channels == 3:
        found.append(
            Scaling(
                "channels reversed",
                lambda z: z.flip(1),
                "the model expects channels in the order blue, green, red",
                "Make x.flip(1) the first layer of the model.",
            )
        )
    own = (x.double().mean(dim=(0, 2, 3)).tolist(), x.double().std(dim=(0, 2, 3)).clamp(min=1e-6).tolist())
    known = {f"the preset {name!r}": preset for name, preset in PRESETS.items() if len(preset[0]) == channels}
    for name, (mean, std) in {**known, f"mean {_shown(own[0])} and deviation {_shown(own[1])}": own}.items():
        m, s = (torch.tensor(values).reshape(-1, 1, 1).to(x) for values in (mean, std))
        found += [
            Scaling(
                f"normalised with {name}",
                lambda z, m=m, s=s: (z - m) / s,  # type: ignore[misc]
                f"normalisation is missing; the model expects inputs normalised with {name}",
                "Put models.Normalize(mean, std) in front of the network, or save its checkpoint with normalize=… "
                "Do not normalise the inputs themselves: noise and radii are in [0, 1].",
            ),
            Scaling(
                f"normalisation with {name} undone",
                lambda z, m=m, s=s: z * s + m,  # type: ignore[misc]
                f"inputs are normalised twice, with {name}",
                "Normalise once: as the first layer of the model, for inputs in [0, 1].",
            ),
        ]
    return found


def check_scaling(sealed: Sealed, sample: Sample, noise: Noise) -> Finding:
    """Classify inputs and noisy copies scaled in other ways; say so if one of them gives a better accuracy.

    Args:
        sealed: The classifier.
        sample: The inputs.
        noise: The planned noise. Under it, models are more sensitive to their scaling than without.
    """
    noisy = torch.stack([noise.sample(x, x.new_empty((1, *x.shape)))[0] for x in sample.x])
    x, y = torch.cat([sample.x, noisy]), torch.cat([sample.y, sample.y])
    right = top_classes(sealed, x) == y
    given = float(right.double().mean())
    tried = scalings(sample.x)
    better: list[tuple[float, Scaling]] = []
    for scaling in tried:
        changed = top_classes(sealed, scaling.change(x)) == y
        gain = float(changed.double().mean()) - given
        won, lost = int((changed & ~right).sum()), int((right & ~changed).sum())
        if gain >= SHOWS and stats.binomtest(won, won + lost).pvalue < _SURE / len(tried):
            better.append((gain, scaling))
    if not better:
        return Finding(
            Level.INFO, "scaling", f"None of {len(tried)} other ways to scale inputs gives a better accuracy."
        )
    better.sort(key=lambda each: -each[0])
    gain, best = better[0]
    close = [scaling.name for other, scaling in better[1:] if other > gain - _CLOSE]
    return Finding(
        Level.ERROR if gain >= MATTERS else Level.WARNING,
        "scaling",
        f"It seems that {best.means}: {given + gain:.0%} of {len(sample)} inputs and as many noisy copies are then "
        f"classified correctly, {given:.0%} as given."
        + f" Nearly as good: {', '.join(close[:3])}; see how the model was trained."
        * bool(close),
        best.advice,
    )


def top_classes(sealed: Sealed, x: Tensor, rows: int = 50) -> Tensor:
    """The class of each input without noise; -1 where the logits are not finite."""
    with torch.inference_mode():
        logits = torch.cat([sealed(part.to(sealed.device)).cpu() for part in torch.split(x, rows)])
    return torch.where(logits.isfinite().all(dim=1), logits.argmax(dim=1), -1)


def _shown(values: list[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
