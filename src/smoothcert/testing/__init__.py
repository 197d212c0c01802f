"""Contract tests for noises, procedures, training methods and the other parts that a plug-in can add.

Each function raises an AssertionError that names what is violated. They need no test framework, and take seconds.

Example:
    >>> from smoothcert import Gaussian
    >>> check_noise(Gaussian(0.5))
"""

from smoothcert.testing.methods import check_method
from smoothcert.testing.noises import check_noise
from smoothcert.testing.parts import check_dataset, check_denoiser, check_model
from smoothcert.testing.procedures import check_procedure

__all__ = ["check_dataset", "check_denoiser", "check_method", "check_model", "check_noise", "check_procedure"]
