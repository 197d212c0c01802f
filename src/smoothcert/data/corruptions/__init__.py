"""Corruptions of images that are plain array operations, for datasets whose corrupted version nobody published.

The kinds are those of Hendrycks and Dietterich (Benchmarking neural network robustness to common corruptions and
perturbations, ICLR 2019) and of Mu and Gilmer (MNIST-C: a robustness benchmark for computer vision, 2019); how they are
computed and how strong each severity is are our own. So results are not to be set beside those on MNIST-C or
CIFAR-10-C. Lengths are given for images whose shorter side has 32 pixels, and grow with it.
"""

from smoothcert.data.corruptions.base import SEVERITIES, Corruption
from smoothcert.data.corruptions.registry import CORRUPTIONS
from smoothcert.data.corruptions.view import Corrupted

__all__ = ["CORRUPTIONS", "SEVERITIES", "Corrupted", "Corruption"]
