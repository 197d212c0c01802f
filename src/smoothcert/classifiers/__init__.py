"""Classifiers made of others: ensembles, consensus, denoised."""

from smoothcert.classifiers.consensus import Consensus
from smoothcert.classifiers.ensemble import VOTES, Ensemble

__all__ = ["VOTES", "Consensus", "Ensemble"]
