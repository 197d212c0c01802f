"""Training methods, each a pure loss over (model, x, y, noise, state) in one file."""

from smoothcert.plugins import Registry
from smoothcert.training.methods.base import Method, Passes, State
from smoothcert.training.methods.catrs import CatRS
from smoothcert.training.methods.consistency import Consistency
from smoothcert.training.methods.gaussian import NoiseAugmentation
from smoothcert.training.methods.macer import Macer
from smoothcert.training.methods.smoothadv import SmoothAdv
from smoothcert.training.methods.smoothmix import SmoothMix
from smoothcert.training.methods.stability import Stability

METHODS: Registry[type[Method]] = Registry(
    "methods",
    "training method",
    Method,
    {method.name: method for method in (NoiseAugmentation, Stability, SmoothAdv, Macer, Consistency, SmoothMix, CatRS)},
)
"""Every method by name."""

__all__ = [
    "METHODS",
    "CatRS",
    "Consistency",
    "Macer",
    "Method",
    "NoiseAugmentation",
    "Passes",
    "SmoothAdv",
    "SmoothMix",
    "Stability",
    "State",
]
