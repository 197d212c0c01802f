"""Statistics without models: bounds and tests on counts of votes. NumPy and SciPy only."""

from smoothcert.stats.binomial import lower_bound, top_class_p_value, upper_bound
from smoothcert.stats.evalues import Prior
from smoothcert.stats.sequential import (
    LAST_LOOK,
    anytime_lower_bound,
    boundary,
    check_times,
    nested_boundaries,
    operating_characteristics,
    wald_bound,
)
from smoothcert.stats.staged import last_stage_size, samples_needed, stage_boundaries, staged_characteristics

__all__ = [
    "LAST_LOOK",
    "Prior",
    "anytime_lower_bound",
    "boundary",
    "check_times",
    "last_stage_size",
    "lower_bound",
    "nested_boundaries",
    "operating_characteristics",
    "samples_needed",
    "stage_boundaries",
    "staged_characteristics",
    "top_class_p_value",
    "upper_bound",
    "wald_bound",
]
