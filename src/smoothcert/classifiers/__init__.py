"""Base classifiers: sealed ones, ensembles, consensus, denoised classifiers."""

from smoothcert.classifiers.composite import Composite
from smoothcert.classifiers.consensus import Consensus
from smoothcert.classifiers.denoised import Denoised, denoised_ensemble
from smoothcert.classifiers.ensemble import VOTES, Ensemble

__all__ = ["VOTES", "Composite", "Consensus", "Denoised", "Ensemble", "denoised_ensemble"]
