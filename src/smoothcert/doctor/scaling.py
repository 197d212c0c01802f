"""Does the model expect inputs that are scaled in another way?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from smoothcert.classifiers.sealed import Sealed
from smoothcert.doctor.findings import Finding, Level
from smoothcert.doctor.inputs import Sample
from smoothcert.models.normalize import PRESETS

MATTERS = 0.1
"""Another scaling is reported from this gain in accuracy on."""

_SURE = 1e-3  # probability that chance alone makes one of the scalings look better


@dataclass(frozen=True)
class Scaling:
    """Another way to scale inputs.

    Attributes:
        change: Makes inputs as the model may expect them from those given.
        means: What is wrong if the model is right about such inputs only.
        advice: What to do then.
    """

    change: Callable[[Tensor], Tensor]
    means: str
    advice: str


def scalings(x: Tensor) -> list[Scaling]:
    """Ways to scale images, given as (inputs, channels, …), that are in use."""
    found = [
        Scaling(
            lambda z: 2 * z - 1,
            "the model expects inputs scaled to [-1, 1]",
            "Make 2 x - 1 the first layer of the model.",
        ),
        Scaling(
            lambda z: 255 * z,
            "the model expects values from 0 to 255",
            "Make 255 x the first layer of the model.",
        ),
        Scaling(
            lambda z: z / 255,
            "the model expects inputs divided by 255",
            "Divide inputs by 255, so that they are in [0, 1].",
        ),
        Scaling(
            lambda z: (z + 1) / 2,
            "inputs are scaled to [-1, 1], but the model expects [0, 1] or does that scaling too",
            "Scale inputs once: leave it to the first layer of the model.",
        ),
        Scaling(
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
                lambda z, m=m, s=s: (z - m) / s,  # type: ignore[misc]
                f"normalisation is missing; the model expects inputs normalised with {name}",
                "Put models.Normalize(mean, std) in front of the network, or save its checkpoint with normalize=… "
                "Do not normalise the inputs themselves: noise and radii are in [0, 1].",
            ),
            Scaling(
                lambda z, m=m, s=s: z * s + m,  # type: ignore[misc]
                f"inputs are normalised twice, with {name}",
                "Normalise once: as the first layer of the model, for inputs in [0, 1].",
            ),
        ]
    return found


def check_scaling(sealed: Sealed, sample: Sample, right: Tensor) -> Iterator[Finding]:
    """Classify the inputs scaled in other ways; say so if one of them gives a much better accuracy.

    Args:
        sealed: The classifier.
        sample: The inputs.
        right: Where the classifier is right about them as given.
    """
    tried = scalings(sample.x)
    best, gain = None, -1.0
    given = float(right.double().mean())
    for scaling in tried:
        changed = top_classes(sealed, scaling.change(sample.x)) == sample.y
        more = float(changed.double().mean()) - given
        won, lost = int((changed & ~right).sum()), int((right & ~changed).sum())
        sure = won > lost and stats.binomtest(won, won + lost).pvalue < _SURE / len(tried)
        if more > gain and (sure or more < MATTERS):
            best, gain = scaling, more
    if best is not None and gain >= MATTERS:
        yield Finding(
            Level.ERROR,
            "scaling",
            f"It seems that {best.means}: {given + gain:.0%} of {len(sample)} inputs are then right, {given:.0%} as "
            "given.",
            best.advice,
        )
    else:
        yield Finding(
            Level.INFO, "scaling", f"None of {len(tried)} other ways to scale inputs gives a much better accuracy."
        )


def top_classes(sealed: Sealed, x: Tensor, rows: int = 50) -> Tensor:
    """The class of each input without noise; -1 where the logits are not finite."""
    with torch.inference_mode():
        logits = torch.cat([sealed(part.to(sealed.device)).cpu() for part in torch.split(x, rows)])
    return torch.where(logits.isfinite().all(dim=1), logits.argmax(dim=1), -1)


def _shown(values: list[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
