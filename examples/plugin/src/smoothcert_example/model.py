"""A classifier of digits, and a denoiser."""

from torch import nn

from smoothcert.models import ModelInfo


def build_mlp(num_classes, in_channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * 64, 64), nn.ReLU(), nn.Linear(64, num_classes))


def build_blur(num_classes, in_channels):
    """One convolution for each channel, which starts as a mean of nine pixels."""
    blur = nn.Conv2d(in_channels, in_channels, 3, padding=1, groups=in_channels, bias=False)
    nn.init.constant_(blur.weight, 1 / 9)
    return blur


DIGITS_MLP = ModelInfo("digits-mlp", build_mlp, input_shape=(1, 8, 8), num_classes=10)
BLUR = ModelInfo("blur", build_blur, input_shape=(1, 8, 8), num_classes=10)
