"""Checks with noisy copies: accuracy under noise, and how many inputs a procedure will certify."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from smoothcert.certify import Anytime, Cohen, Procedure
from smoothcert.certify.plan import expected_samples, plan
from smoothcert.classifiers.sealed import Sealed
from smoothcert.doctor.findings import Finding, Level
from smoothcert.doctor.inputs import Sample
from smoothcert.noise import Noise
from smoothcert.types import UsageError

COPIES = 200
"""Noisy copies of each input."""

_QUANTILES = 40  # that stand for the distribution of p over inputs
_GUESSING = 0.01  # p-value from which accuracy counts as better than guessing
_DROP = 0.25  # of accuracy under noise, from which the model is said not to suit the noise
_MANY = 0.75  # share of inputs without a certificate that is worth a warning


@dataclass(frozen=True)
class Trial:
    """Votes of noisy copies of some inputs.

    Attributes:
        counts: Votes by input and class.
        copies: Noisy copies of each input.
        y: The labels.
        rate: Copies per second, noise included.
    """

    counts: Tensor
    copies: int
    y: Tensor
    rate: float

    @property
    def invalid(self) -> float:
        """The share of copies whose logits are not finite."""
        return 1 - float(self.counts.sum()) / (self.copies * len(self.counts))

    def probabilities(self) -> NDArray[np.float64]:
        """Values that stand for the distribution of the top class's probability over inputs.

        Few copies do not tell an input's probability: each stands for what is likely by its votes (Jeffreys' prior).
        """
        top = self.counts.max(dim=1).values.double().numpy()[:, None]
        levels = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
        likely = scipy.stats.beta.ppf(levels[None, :], top + 0.5, self.copies - top + 0.5)
        return np.asarray(np.quantile(likely, levels), dtype=np.float64)


def try_votes(sealed: Sealed, sample: Sample, noise: Noise, copies: int, batch_size: int) -> Trial:
    """Let noisy copies of inputs vote."""
    generator = torch.Generator(device=sealed.device).manual_seed(secrets.randbits(63))
    counts = []
    begin = time.perf_counter()
    for x in sample.x:
        wide = x.to(device=sealed.device, dtype=torch.promote_types(x.dtype, torch.float32))
        votes = torch.zeros(0)
        for size in _sizes(copies, batch_size):
            rows = noise.sample(wide, wide.new_empty((size, *wide.shape)), generator)
            with torch.inference_mode():
                logits = sealed.run(rows)
            valid = logits.isfinite().all(dim=1)
            new = torch.bincount(logits[valid].argmax(dim=1), minlength=logits.shape[1]).cpu()
            votes = new if not len(votes) else votes + new
        counts.append(votes)
    rate = copies * len(sample) / (time.perf_counter() - begin)
    return Trial(torch.stack(counts), copies, sample.y, rate)


def _sizes(copies: int, most: int) -> Iterator[int]:
    while copies > 0:
        yield min(copies, most)
        copies -= most


def check_accuracy(right: Tensor, sample: Sample, num_classes: int) -> Finding:
    """Whether a model without noise is better than guessing."""
    share = float(right.double().mean())
    said = f"Without noise, {share:.1%} of {len(sample)} inputs are classified correctly"
    if better_than_guessing(right, sample.y, num_classes):
        return Finding(Level.INFO, "accuracy", f"{said}.")
    return Finding(
        Level.ERROR,
        "accuracy",
        f"{said}, which is no better than guessing.",
        "Check that the weights are trained, that they belong to this dataset, and how inputs are scaled.",
    )


def better_than_guessing(right: Tensor, y: Tensor, num_classes: int) -> bool:
    """Whether answers are right more often than the most frequent label, or any class, would be."""
    guess = max(float(torch.bincount(y.clamp(min=0)).max()) / len(y), 1 / num_classes)
    return bool(scipy.stats.binomtest(int(right.sum()), len(right), min(guess, 1.0), "greater").pvalue < _GUESSING)


def check_training(noise: Noise, trained: Noise | None) -> Finding:
    """Compare the planned noise with that of the training."""
    if trained is None:
        return Finding(
            Level.INFO, "noise", f"The model does not say which noise it was trained with; planned: {noise}."
        )
    if _distribution(trained) == _distribution(noise):
        return Finding(Level.INFO, "noise", f"The planned noise is that of the training: {noise}.")
    return Finding(
        Level.WARNING,
        "noise",
        f"The model was trained with {trained}, but {noise} is planned.",
        "Certify with the noise of the training, or train for the planned one.",
    )


def _distribution(noise: Noise) -> dict[str, Any]:
    """What decides the noise but for how exactly it is drawn, which makes no difference to training."""
    return {key: value for key, value in noise.config().items() if key != "grid"}


def check_noisy_accuracy(trial: Trial, clean: float, noise: Noise) -> Iterator[Finding]:
    """Compare accuracy under noise with accuracy without."""
    if trial.invalid:
        yield Finding(
            Level.WARNING,
            "logits",
            f"{trial.invalid:.1%} of noisy copies get logits that are not finite; they vote for no class.",
            "Find out where the model overflows; compute in float32.",
        )
    votes = trial.counts.gather(1, trial.y[:, None].clamp(0, trial.counts.shape[1] - 1)).double().sum()
    share = float(votes) / (trial.copies * len(trial.y))
    smooth = trial.counts.argmax(dim=1) == trial.y
    said = (
        f"Under {noise}, {share:.1%} of copies of {len(trial.y)} inputs are classified correctly, and "
        f"{float(smooth.double().mean()):.1%} of the inputs by a majority of their copies"
    )
    advice = (
        "Train with the planned noise (smoothcert train), put a denoiser in front (--denoiser), or take less noise."
    )
    if not better_than_guessing(smooth, trial.y, trial.counts.shape[1]):
        yield Finding(
            Level.ERROR,
            "accuracy under noise",
            f"{said}: no better than guessing, so nothing useful is certified.",
            advice,
        )
    elif clean - share > _DROP:
        yield Finding(Level.WARNING, "accuracy under noise", f"{said}; without noise it is {clean:.1%}.", advice)
    else:
        yield Finding(Level.INFO, "accuracy under noise", f"{said}.")


def check_forecast(trial: Trial, procedure: Procedure, noise: Noise, dimension: int) -> Iterator[Finding]:
    """Forecast for how many inputs the procedure will prove nothing."""
    p = trial.probabilities()
    radius = _target(procedure)
    if radius is None:
        yield Finding(Level.INFO, "forecast", f"There is no forecast for the procedure {procedure.name} as it is set.")
        return
    missed = _missed(procedure, noise, p, radius, dimension)
    if isinstance(procedure, Cohen):
        others = {
            n: _missed(replace(procedure, n=n), noise, p, radius, dimension)
            for n in (procedure.n // 10, procedure.n, 10 * procedure.n)
            if 100 <= n <= 10_000_000
        }
        shares = ", ".join(f"{_share(share)} at n = {n:,}" for n, share in others.items())
        said = f"Inputs without a certificate (abstentions), by forecast: {shares or _share(missed)}"
    else:
        said = f"{_share(missed).capitalize()} of inputs will not be certified at radius {radius:g}, by forecast"
    said += f" ({trial.copies} copies of {len(trial.y)} inputs)."
    if missed >= _MANY:
        yield Finding(
            Level.WARNING,
            "forecast",
            said,
            "Take less noise or a smaller target radius, or a model trained for this noise, before a long run.",
        )
    else:
        yield Finding(Level.INFO, "forecast", said)


def _share(value: float) -> str:
    return "under 1%" if value < 0.01 else f"{value:.0%}"


def samples_per_input(trial: Trial | None, procedure: Procedure, noise: Noise, dimension: int) -> float:
    """How many samples an input will take; what the procedure expects where its plan does not tell."""
    try:
        if trial is not None:
            return expected_samples(procedure, noise, trial.probabilities(), dimension=dimension)
    except UsageError:
        pass
    return float(procedure.expected_samples)


def _target(procedure: Procedure) -> float | None:
    """The radius whose proof is forecast: 0 for a procedure that finds the largest."""
    return min(procedure.targets, default=0.0 if isinstance(procedure, Cohen) else None)


def _missed(procedure: Procedure, noise: Noise, p: NDArray[np.float64], radius: float, dimension: int) -> float:
    if isinstance(procedure, Anytime):
        procedure = replace(procedure, radius=radius)
    made = plan(procedure, noise, radius=radius, probabilities=p.tolist(), dimension=dimension)
    return 1 - float(np.mean([chance.certify for chance in made.chances])) if made.chances else 1.0
