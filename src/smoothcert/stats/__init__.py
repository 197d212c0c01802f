"""Statistics without models: bounds and tests on counts of votes. NumPy and SciPy only."""

from smoothcert.stats.binomial import lower_bound, top_class_p_value, upper_bound
from smoothcert.stats.dimension import scale_limit, worst_case_probability
from smoothcert.stats.margins import Margins
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
from smoothcert.stats.variance import (
    Agreement,
    Covariances,
    RadiusDistribution,
    VarianceModel,
    compare_with_votes,
    component_covariances,
    estimate_variance,
    expected_radius,
    radius_distribution,
    soft_voting_margins,
    variance_ratio,
)

__all__ = [
    "LAST_LOOK",
    "Agreement",
    "Covariances",
    "Margins",
    "RadiusDistribution",
    "VarianceModel",
    "anytime_lower_bound",
    "boundary",
    "check_times",
    "compare_with_votes",
    "component_covariances",
    "estimate_variance",
    "expected_radius",
    "last_stage_size",
    "lower_bound",
    "nested_boundaries",
    "operating_characteristics",
    "radius_distribution",
    "samples_needed",
    "scale_limit",
    "soft_voting_margins",
    "stage_boundaries",
    "staged_characteristics",
    "top_class_p_value",
    "upper_bound",
    "variance_ratio",
    "wald_bound",
    "worst_case_probability",
]
