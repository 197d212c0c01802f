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

from smoothcert.certify import Procedure
from smoothcert.certify.bounds import BoundedProcedure
from smoothcert.classifiers.sealed import Sealed
from smoothcert.doctor.findings import Finding, error, info, warning
from smoothcert.doctor.inputs import Sample
from smoothcert.noise import Noise
from smoothcert.types import PLAIN, UsageError

COPIES = 200
"""Noisy copies of each input."""

_QUANTILES = 40  # that represent the distribution of p over inputs
_GUESSING = 0.01  # p-value below which accuracy counts as better than guessing
_DROP = 0.25  # loss of accuracy under noise that is worth a warning
_MANY = 0.75  # share of inputs without a certificate that is worth a warning


@dataclass(frozen=True)
class Trial:
    """Votes of noisy copies of some inputs."""

    counts: Tensor  # votes by input and class
    copies: int  # noisy copies of each input
    y: Tensor
    rate: float  # copies per second, noise included

    @property
    def invalid(self) -> float:
        """The share of copies whose logits are not finite."""
        return 1 - float(self.counts.sum()) / (self.copies * len(self.counts))

    def probabilities(self) -> NDArray[np.float64]:
        """Return quantiles of the top class's probability over inputs.

        Few copies leave the probability of an input open, so each contributes its posterior under Jeffreys' prior.
        """
        top = self.counts.max(dim=1).values.double().numpy()[:, None]
        levels = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
        likely = scipy.stats.beta.ppf(levels[None, :], top + 0.5, self.copies - top + 0.5)
        return np.asarray(np.quantile(likely, levels), dtype=np.float64)


def try_votes(sealed: Sealed, sample: Sample, noise: Noise, copies: int, batch_size: int) -> Trial:
    """Sample votes of noisy copies of inputs."""
    generator = torch.Generator(device=sealed.device).manual_seed(secrets.randbits(63))
    counts = []
    begin = time.perf_counter()
    for x in sample.x:
        wide = x.to(device=sealed.device, dtype=torch.promote_types(x.dtype, torch.float32))
        votes = []
        for done in range(0, copies, batch_size):
            rows = noise.sample(wide, wide.new_empty((min(batch_size, copies - done), *wide.shape)), generator)
            with torch.inference_mode():
                logits = sealed.run(rows)
            valid = logits.isfinite().all(dim=1)
            votes.append(torch.bincount(logits[valid].argmax(dim=1), minlength=logits.shape[1]).cpu())
        counts.append(torch.stack(votes).sum(dim=0))
    rate = copies * len(sample) / (time.perf_counter() - begin)
    return Trial(torch.stack(counts), copies, sample.y, rate)


def check_accuracy(right: Tensor, sample: Sample, num_classes: int) -> Finding:
    """Check whether a model without noise is better than guessing."""
    detail = f"Without noise, {float(right.double().mean()):.1%} of {len(sample)} inputs are classified correctly"
    if _better_than_guessing(right, sample.y, num_classes):
        return info("accuracy", f"{detail}.")
    return error(
        "accuracy",
        f"{detail}, which is no better than guessing.",
        "Check that the weights are trained, that they belong to this dataset, and how inputs are scaled.",
    )


def _better_than_guessing(right: Tensor, y: Tensor, num_classes: int) -> bool:
    """Test whether answers are right more often than always the most frequent label, or a random class."""
    guess = max(float(torch.bincount(y.clamp(min=0)).max()) / len(y), 1 / num_classes)
    return bool(scipy.stats.binomtest(int(right.sum()), len(right), min(guess, 1.0), "greater").pvalue < _GUESSING)


def check_training(noise: Noise, trained: Noise | None) -> Finding:
    """Compare the planned noise with that of the training."""
    if trained is None:
        return info("noise", f"The model does not record the noise of its training; planned: {noise}.")
    if _distribution(trained) == _distribution(noise):
        return info("noise", f"The planned noise is that of the training: {noise}.")
    detail = f"The model was trained with {trained}, but {noise} is planned."
    return warning("noise", detail, "Certify with the noise of the training, or train for the planned one.")


def _distribution(noise: Noise) -> dict[str, Any]:
    """Return the settings of a noise without its grid, which makes no difference to training."""
    return {key: value for key, value in noise.config().items() if key != "grid"}


def check_noisy_accuracy(trial: Trial, clean: float, noise: Noise) -> Iterator[Finding]:
    """Compare accuracy under noise with accuracy without."""
    if trial.invalid:
        detail = f"{trial.invalid:.1%} of noisy copies get logits that are not finite; they vote for no class."
        yield warning("logits", detail, "Find out where the model overflows; compute in float32.")
    votes = trial.counts.gather(1, trial.y[:, None].clamp(0, trial.counts.shape[1] - 1)).double().sum()
    share = float(votes) / (trial.copies * len(trial.y))
    smooth = trial.counts.argmax(dim=1) == trial.y
    detail = (
        f"Under {noise}, {share:.1%} of copies of {len(trial.y)} inputs are classified correctly, and "
        f"{float(smooth.double().mean()):.1%} of the inputs by a majority of their copies"
    )
    advice = "Train with the planned noise (smoothcert train), put a denoiser in front (--denoiser), or use less noise."
    if not _better_than_guessing(smooth, trial.y, trial.counts.shape[1]):
        detail += ": no better than guessing, so nothing useful is certified."
        yield error("accuracy under noise", detail, advice)
    elif clean - share > _DROP:
        yield warning("accuracy under noise", f"{detail}; without noise it is {clean:.1%}.", advice)
    else:
        yield info("accuracy under noise", f"{detail}.")


def check_forecast(trial: Trial, procedure: Procedure, noise: Noise, dimension: int) -> list[Finding]:
    """Forecast for how many inputs the procedure will prove nothing."""
    # The radius to prove: 0 for a procedure that finds the largest.
    radius = min(procedure.targets, default=0.0 if procedure.fixed_samples else None)
    if radius is None:
        return [info("forecast", f"The procedure {procedure.name} cannot be forecast with these settings.")]
    p = trial.probabilities().tolist()

    def missed(procedure: Procedure) -> float:
        threshold = float(noise.threshold(radius, noise.resolve_norm(procedure.norm), dimension))
        chances = procedure.forecast(threshold, p)[1] if threshold < 1 else ()
        return 1 - float(np.mean([chance.certify for chance in chances])) if chances else 1.0

    try:
        share = missed(procedure)
        if procedure.fixed_samples:
            planned: int = procedure.config()["n"]
            budgets: list[Any] = [{"n": n} for n in (planned // 10, planned, 10 * planned) if 100 <= n <= 10_000_000]
            shares = ", ".join(
                f"{_percent(missed(replace(procedure, **each)))} at n = {each['n']:,}" for each in budgets
            )
            detail = f"Inputs without a certificate (abstentions), by forecast: {shares or _percent(share)}"
        else:
            detail = f"{_percent(share).capitalize()} of inputs will not be certified at radius {radius:g}, by forecast"
    except (UsageError, NotImplementedError):
        return []  # invalid settings were reported already, and not every procedure has a forecast
    plain = " with the plain bound" if isinstance(procedure, BoundedProcedure) and procedure.bound != PLAIN else ""
    detail += f"{plain} ({trial.copies} copies of {len(trial.y)} inputs)."
    if share < _MANY:
        return [info("forecast", detail)]
    advice = "Use less noise or a smaller target radius, or a model trained for this noise, before a long run."
    return [warning("forecast", detail, advice)]


def _percent(value: float) -> str:
    return "under 1%" if value < 0.01 else f"{value:.0%}"
