"""Statistics without models: bounds and tests on counts of votes. NumPy and SciPy only."""

from smoothcert.stats.binomial import lower_bound, top_class_p_value, upper_bound

__all__ = ["lower_bound", "top_class_p_value", "upper_bound"]
