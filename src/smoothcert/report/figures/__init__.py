"""Figures of runs and logs."""
