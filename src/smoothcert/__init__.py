"""Certified robustness by randomized smoothing: train, certify, combine and compare.

Names and packages are imported when they are first used, so that ``import smoothcert`` takes no time.

Example:
    >>> import torch
    >>> import smoothcert as sc
    >>> model = torch.nn.Linear(4, 2)
    >>> smoothed = sc.Smoothed(model, sc.Gaussian(0.5))
    >>> certificate = smoothed.certify(torch.full((4,), 0.5), sc.Cohen(1_000))
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smoothcert import attack, classifiers, data, doctor, evaluate, models, noise, report, stats, store, training
    from smoothcert.attack import AttackResult, AttackSettings, attack_dataset, attack_input
    from smoothcert.certify import Aces, Anytime, Cohen, Memory, Procedure, Smoothed, Staged
    from smoothcert.certify.engine import Engine
    from smoothcert.certify.simultaneous import simultaneous
    from smoothcert.classifiers import Consensus, Denoised, Ensemble, denoised_ensemble
    from smoothcert.compositions import load_model, load_smoothed
    from smoothcert.evaluate import Cluster, certify_dataset, count_votes, recertify
    from smoothcert.models import (
        CheckpointInfo,
        from_numpy,
        load_checkpoint,
        load_denoiser,
        open_model,
        quantize,
        save_checkpoint,
    )
    from smoothcert.noise import Discrete, Gaussian, Noise, Uniform
    from smoothcert.plugins import register
    from smoothcert.sampling.sigma import GridSigma, OptimizeSigma
    from smoothcert.serve.client import Client
    from smoothcert.store import Log, Run, load_run, merge_runs, read_log, write_log
    from smoothcert.training import Method, TrainingSettings, train, train_denoiser
    from smoothcert.training.methods import (
        CatRS,
        Consistency,
        Macer,
        NoiseAugmentation,
        SmoothAdv,
        SmoothMix,
        Stability,
    )
    from smoothcert.types import (
        ABSTAIN,
        Arithmetic,
        Certificate,
        CheckpointError,
        DataError,
        Guarantee,
        LogError,
        Norm,
        Outcome,
        Prediction,
        Routing,
        RunError,
        SmoothcertError,
        UsageError,
        Votes,
    )

__version__ = "0.1.0"

_PACKAGES = {
    "attack": "AttackResult AttackSettings attack_dataset attack_input",
    "certify": "Aces Anytime Cohen Memory Procedure Smoothed Staged",
    "certify.engine": "Engine",
    "certify.simultaneous": "simultaneous",
    "classifiers": "Consensus Denoised Ensemble denoised_ensemble",
    "compositions": "load_model load_smoothed",
    "evaluate": "Cluster certify_dataset count_votes recertify",
    "models": "CheckpointInfo from_numpy load_checkpoint load_denoiser open_model quantize save_checkpoint",
    "noise": "Discrete Gaussian Noise Uniform",
    "plugins": "register",
    "sampling.sigma": "GridSigma OptimizeSigma",
    "serve.client": "Client",
    "store": "Log Run load_run merge_runs read_log write_log",
    "training": "Method TrainingSettings train train_denoiser",
    "training.methods": "CatRS Consistency Macer NoiseAugmentation SmoothAdv SmoothMix Stability",
    "types": (
        "ABSTAIN Arithmetic Certificate CheckpointError DataError Guarantee LogError Norm Outcome "
        "Prediction Routing RunError SmoothcertError UsageError Votes"
    ),
}
"""The public names of each package, separated by spaces."""

_MODULES = "attack classifiers data doctor evaluate models noise report stats store training"

__all__ = [
    "ABSTAIN",
    "Aces",
    "Anytime",
    "Arithmetic",
    "AttackResult",
    "AttackSettings",
    "CatRS",
    "Certificate",
    "CheckpointError",
    "CheckpointInfo",
    "Client",
    "Cluster",
    "Cohen",
    "Consensus",
    "Consistency",
    "DataError",
    "Denoised",
    "Discrete",
    "Engine",
    "Ensemble",
    "Gaussian",
    "GridSigma",
    "Guarantee",
    "Log",
    "LogError",
    "Macer",
    "Memory",
    "Method",
    "Noise",
    "NoiseAugmentation",
    "Norm",
    "OptimizeSigma",
    "Outcome",
    "Prediction",
    "Procedure",
    "Routing",
    "Run",
    "RunError",
    "SmoothAdv",
    "SmoothMix",
    "SmoothcertError",
    "Smoothed",
    "Stability",
    "Staged",
    "TrainingSettings",
    "Uniform",
    "UsageError",
    "Votes",
    "attack",
    "attack_dataset",
    "attack_input",
    "certify_dataset",
    "classifiers",
    "count_votes",
    "data",
    "denoised_ensemble",
    "doctor",
    "evaluate",
    "from_numpy",
    "load_checkpoint",
    "load_denoiser",
    "load_model",
    "load_run",
    "load_smoothed",
    "merge_runs",
    "models",
    "noise",
    "open_model",
    "quantize",
    "read_log",
    "recertify",
    "register",
    "report",
    "save_checkpoint",
    "simultaneous",
    "stats",
    "store",
    "train",
    "train_denoiser",
    "training",
    "write_log",
]


def __getattr__(name: str) -> Any:
    if name in (*_MODULES.split(), "hub"):  # hub needs an optional package
        return _import_module(f"smoothcert.{name}")
    for package, names in _PACKAGES.items():
        if name in names.split():
            return globals().setdefault(name, getattr(_import_module(f"smoothcert.{package}"), name))
    raise AttributeError(f"module 'smoothcert' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
