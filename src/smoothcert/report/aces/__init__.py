"""ACES evaluated from stored votes or published logs, at any threshold and without new samples."""

from smoothcert.report.aces.composition import (
    TABULATED,
    Components,
    Single,
    check_comparable,
    components_from_votes,
    compose,
    natural_accuracy,
    pareto,
    predictions,
    selection_counts,
    signed_selection_radius,
)
from smoothcert.report.aces.loading import load_components, load_single

__all__ = [
    "TABULATED",
    "Components",
    "Single",
    "check_comparable",
    "components_from_votes",
    "compose",
    "load_components",
    "load_single",
    "natural_accuracy",
    "pareto",
    "predictions",
    "selection_counts",
    "signed_selection_radius",
]
