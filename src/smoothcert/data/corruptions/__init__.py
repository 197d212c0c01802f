"""Corruptions of images as array operations, for datasets without a published corrupted version.

The kinds are those of Hendrycks and Dietterich (Benchmarking neural network robustness to common corruptions and
perturbations, ICLR 2019) and of Mu and Gilmer (MNIST-C: a robustness benchmark for computer vision, 2019), but the
implementation and the strength of each severity differ, so do not compare results with those on MNIST-C or CIFAR-10-C.
Lengths are for images whose shorter side has 32 pixels, and scale with it.
"""

from smoothcert.data.corruptions.base import SEVERITIES, Corruption, check_severity
from smoothcert.data.corruptions.view import CORRUPTIONS, Corrupted

__all__ = ["CORRUPTIONS", "SEVERITIES", "Corrupted", "Corruption", "check_severity"]
