"""Denoised smoothing: a classifier behind a denoiser."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from smoothcert.classifiers.composite import Composite
from smoothcert.classifiers.copying import Forward
from smoothcert.classifiers.ensemble import Ensemble
from smoothcert.types import UsageError


class Denoised(Composite):
    """A classifier of denoised inputs (Salman, Sun, Yang, Kapoor and Kolter, 2020, §3).

    Smoothing needs a base classifier that is accurate under noise. A denoiser makes any classifier so without changing
    it, even a black-box one. The two together are the base classifier that is certified.

    Args:
        classifier: A module or any callable from a batch to logits, or to votes such as those of a remote service; it
            normalises its inputs itself.
        denoiser: A module or callable from a batch of noisy inputs to one of the same shape, in the same range.
        frozen: Whether the classifier stays in evaluation mode when the whole is put in training mode, so that its
            batch statistics do not move. Weights are trainable either way: give an optimizer those of the denoiser.

    Raises:
        UsageError: If either cannot be called; when run, if the denoiser changes the shape of a batch.

    Example:
        >>> import torch
        >>> model = Denoised(nn.Sequential(nn.Flatten(), nn.Linear(9, 2)), nn.AvgPool2d(3, stride=1, padding=1))
        >>> model(torch.rand(5, 1, 3, 3)).shape
        torch.Size([5, 2])
    """

    def __init__(self, classifier: Forward, denoiser: Forward, *, frozen: bool = True) -> None:
        super().__init__()
        for part, name in ((classifier, "classifier"), (denoiser, "denoiser")):
            if not callable(part):
                raise UsageError(f"the {name} must be callable on a batch of inputs, got {type(part).__name__}.")
        self.denoiser = denoiser
        self.classifier = classifier
        self.frozen = frozen
        self.training = isinstance(denoiser, nn.Module) and denoiser.training
        if frozen and isinstance(classifier, nn.Module):
            classifier.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(denoise(self.denoiser, x))

    def parts(self) -> list[Forward]:
        """Return the denoiser and the denoised parts of the classifier; each must be a fixed function of one row."""
        inner = self.classifier.parts() if isinstance(self.classifier, Composite) else []
        return [self.denoiser, *(Denoised(part, self.denoiser, frozen=False) for part in inner)]

    def train(self, mode: bool = True) -> Denoised:
        """Set the mode of the denoiser, and that of the classifier unless it is frozen."""
        super().train(mode)
        if self.frozen and isinstance(self.classifier, nn.Module):
            self.classifier.eval()
        return self


def denoised_ensemble(
    classifier: Forward, denoisers: Sequence[Forward], vote: str = "soft", weights: Sequence[float] | None = None
) -> Ensemble:
    """Combine one classifier behind several denoisers (Horváth, Müller, Fischer and Vechev, 2022, App. H.3.6).

    The classifier is shared, not copied. The other arguments are those of ``Ensemble``.

    Example:
        >>> import torch
        >>> classifier = nn.Sequential(nn.Flatten(), nn.Linear(9, 2))
        >>> blurs = [nn.Identity(), nn.AvgPool2d(3, stride=1, padding=1)]
        >>> denoised_ensemble(classifier, blurs)(torch.rand(5, 1, 3, 3)).shape
        torch.Size([5, 2])
    """
    return Ensemble([Denoised(classifier, denoiser) for denoiser in denoisers], vote, weights)


def denoise(denoiser: Forward, x: Tensor) -> Tensor:
    """Denoise a batch.

    Raises:
        UsageError: If the denoiser changes its shape.
    """
    denoised = denoiser(x)
    if denoised.shape != x.shape:
        raise UsageError(
            f"a denoiser must keep the shape of a batch, but made {tuple(denoised.shape)} of {tuple(x.shape)}; "
            "resize or pad its output."
        )
    return denoised
