"""Certified robustness by randomized smoothing: train, certify, combine and compare.

Names are imported when they are first used, so that ``import smoothcert`` takes no time.

Example:
    >>> import torch
    >>> import smoothcert as sc
    >>> model = torch.nn.Linear(4, 2)
    >>> smoothed = sc.Smoothed(model, sc.Gaussian(0.5))
    >>> certificate = smoothed.certify(torch.full((4,), 0.5), sc.Cohen(n=1_000))
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smoothcert import data, models
    from smoothcert.certify import Aces, Anytime, Cohen, Memory, Procedure, Smoothed, Staged
    from smoothcert.classifiers import Consensus, Denoised, Ensemble
    from smoothcert.evaluate import certify_dataset
    from smoothcert.models import from_numpy, load_model
    from smoothcert.noise import Discrete, Gaussian, Noise, Uniform
    from smoothcert.sampling.sigma import GridSigma, OptimizeSigma
    from smoothcert.store import Run, load_run, read_log, write_log
    from smoothcert.types import ABSTAIN, Certificate, Guarantee, Norm, Prediction, SmoothcertError

__version__ = "0.1.0"

_PACKAGES = {
    "certify": ("Aces", "Anytime", "Cohen", "Memory", "Procedure", "Smoothed", "Staged"),
    "classifiers": ("Consensus", "Denoised", "Ensemble"),
    "models": ("from_numpy", "load_model"),
    "noise": ("Discrete", "Gaussian", "Noise", "Uniform"),
    "evaluate": ("certify_dataset",),
    "sampling.sigma": ("GridSigma", "OptimizeSigma"),
    "store": ("Run", "load_run", "read_log", "write_log"),
    "types": ("ABSTAIN", "Certificate", "Guarantee", "Norm", "Prediction", "SmoothcertError"),
}

__all__ = [
    "ABSTAIN",
    "Aces",
    "Anytime",
    "Certificate",
    "Cohen",
    "Consensus",
    "Denoised",
    "Discrete",
    "Ensemble",
    "Gaussian",
    "GridSigma",
    "Guarantee",
    "Memory",
    "Noise",
    "Norm",
    "OptimizeSigma",
    "Prediction",
    "Procedure",
    "Run",
    "SmoothcertError",
    "Smoothed",
    "Staged",
    "Uniform",
    "certify_dataset",
    "data",
    "from_numpy",
    "load_model",
    "load_run",
    "models",
    "read_log",
    "write_log",
]


def __getattr__(name: str) -> Any:
    if name in ("data", "models"):
        return _import_module(f"smoothcert.{name}")
    for package, names in _PACKAGES.items():
        if name in names:
            return globals().setdefault(name, getattr(_import_module(f"smoothcert.{package}"), name))
    raise AttributeError(f"module 'smoothcert' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
