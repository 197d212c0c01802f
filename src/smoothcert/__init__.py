"""Certified robustness by randomized smoothing."""

__version__ = "0.1.0"
