"""Base classifiers: sealed ones, ensembles, consensus, denoised classifiers."""

from smoothcert.classifiers.composite import Composite
from smoothcert.classifiers.consensus import Consensus
from smoothcert.classifiers.denoised import Denoised, denoised_ensemble
from smoothcert.classifiers.ensemble import VOTES, Ensemble
from smoothcert.classifiers.pair import Pair

__all__ = ["VOTES", "Composite", "Consensus", "Denoised", "Ensemble", "Pair", "denoised_ensemble"]
