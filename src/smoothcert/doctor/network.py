"""Checks of the network without calling it, except for the inputs of its normalisation layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from smoothcert.classifiers.copying import depends_on_mode
from smoothcert.classifiers.identity import modules_in, modules_reached
from smoothcert.classifiers.sealed import Sealed
from smoothcert.doctor.findings import Finding, error, info, warning
from smoothcert.doctor.inputs import Sample
from smoothcert.models.normalize import Normalize

_SLACK, _FAR = 1e-3, 0.3  # denoisers return values a little outside of [0, 1]


def normalizations(model: Any) -> list[Normalize]:
    """Return all ``Normalize`` layers in a model."""
    return [module for module in [*modules_in(model), *modules_reached(model)] if isinstance(module, Normalize)]


def check_normalization(sealed: Sealed, sample: Sample) -> Iterator[Finding]:
    """Look for a normalisation layer behind another one, whose inputs are then no longer in [0, 1].

    Such a model may still classify well, because many networks hardly depend on the scale of their inputs.
    """
    if float(sample.x.min()) < -_SLACK or float(sample.x.max()) > 1 + _SLACK:
        return  # already reported
    if not sealed.private:
        return  # hooks are for a private copy only
    spans: list[tuple[float, float]] = []

    def note(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        spans.append((float(given[0].min()), float(given[0].max())))

    hooks = [layer.register_forward_pre_hook(note) for layer in normalizations(sealed.model)]
    try:
        with torch.inference_mode():
            sealed.model(sample.x[:20].to(device=sealed.device, dtype=sealed.dtype))
    finally:
        for hook in hooks:
            hook.remove()
    for low, high in spans:
        if low < -_FAR or high > 1 + _FAR:
            yield warning(
                "normalisation",
                f"A normalisation layer of the model receives values in [{low:.2f}, {high:.2f}] instead of [0, 1], "
                "as if the model normalised twice.",
                "Leave out one of the layers, unless the model was trained with both.",
            )
            return


def check_network(model: Any) -> Iterator[Finding]:
    """Check weights, statistics of batch normalisation, and the mode of the modules of a model."""
    modules = [*modules_in(model), *modules_reached(model)]
    if not modules:
        yield info("network", "The model is a function without visible modules; only its answers are checked.")
        return
    weights = [
        (f"{type(module).__name__}.{name}", tensor)
        for module in modules
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and not nn.parameter.is_lazy(tensor)
    ]
    invalid = list(dict.fromkeys(name for name, tensor in weights if not bool(tensor.isfinite().all())))
    if invalid:
        detail = f"There are NaN or infinite weights in {', '.join(invalid[:3])}."
        yield error("weights", detail, "Use a checkpoint from before the training diverged.")
    norms = [module for module in modules if isinstance(module, _BatchNorm)]
    fresh = [module for module in norms if _untouched(module)]
    if fresh:
        yield warning(
            "batch norm",
            f"{len(fresh)} of {len(norms)} BatchNorm layers have their initial running statistics (0 and 1).",
            "Check that the checkpoint has running_mean and running_var, or run the model over training data once in "
            "training mode.",
        )
    training = sorted({type(module).__name__ for module in modules if module.training and depends_on_mode(module)})
    if training:
        yield warning(
            "mode",
            f"The model is in training mode ({', '.join(training)}); smoothcert certifies a copy in evaluation mode.",
            "Call model.eval() after training, so that your evaluation is about the same classifier.",
        )


def _untouched(module: _BatchNorm) -> bool:
    mean, var = module.running_mean, module.running_var
    return mean is not None and var is not None and bool((mean == 0).all()) and bool(torch.eq(var, 1).all())
