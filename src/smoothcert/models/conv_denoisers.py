"""Published denoisers that are stacks of convolutions: DnCNN, FFDNet and bias-free networks.

================================================  ===========================================  =========================
network                                           tensors                                      computes
================================================  ===========================================  =========================
DnCNN (Zhang et al., 2017), batch norm merged     ``model.0``, ``model.2``, …                  x − f(x)
FFDNet (Zhang et al., 2018)                       the same; 4c + 1 channels in, 4c out         f of half-size x and σ
DnCNN, also bias-free (Mohan et al., 2020)        ``first_layer``, ``hidden_layer_list``, …    x − f(x)
================================================  ===========================================  =========================

A network is recognised by its tensors; nothing else is needed to rebuild it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smoothcert.types import CheckpointError, UsageError

_NUMBERED = re.compile(r"model\.(\d+)\.(weight|bias)")
_EPS = 1e-5  # of the normalisation layers of Mohan et al.


class ConvDenoiser(nn.Module):
    """Convolutions with ReLU between them, whose output is subtracted from the image.

    Args:
        kernels: The weight (out, in, size, size) of each convolution, and its bias or None.
    """

    def __init__(self, kernels: Sequence[tuple[Tensor, Tensor | None]]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for weight, bias in kernels:
            outputs, inputs, size, _ = weight.shape
            conv = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=bias is not None)
            conv.load_state_dict({"weight": weight} if bias is None else {"weight": weight, "bias": bias})
            layers += [conv, nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        noise: Tensor = self.layers(x)
        return x - noise


class FFDNet(ConvDenoiser):
    """A denoiser that is told the noise level (Zhang, Zuo and Zhang, 2018, §III).

    The image is split into four half-size ones, to which a channel with the noise level is added.

    Args:
        kernels: As in ``ConvDenoiser``.
        level: The standard deviation of the noise.
    """

    def __init__(self, kernels: Sequence[tuple[Tensor, Tensor | None]], level: float) -> None:
        super().__init__(kernels)
        self.level = level

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        even = F.pad(x, (0, width % 2, 0, height % 2), mode="replicate")
        small = F.pixel_unshuffle(even, 2)
        level = small.new_full((len(x), 1, *small.shape[-2:]), self.level)
        return F.pixel_shuffle(self.layers(torch.cat([small, level], dim=1)), 2)[..., :height, :width]


def conv_denoiser(tensors: Mapping[str, Tensor], source: str, *, level: float | None = None) -> nn.Module | None:
    """Rebuild a denoiser from its tensors; return None if they are of another kind of network.

    Args:
        tensors: The state dict, without prefixes.
        source: Its origin, for errors.
        level: The noise level for a network that is told it.

    Raises:
        CheckpointError: The convolutions do not follow one another.
        UsageError: The network needs the noise level.
    """
    kernels = _numbered(tensors) if all(_NUMBERED.fullmatch(name) for name in tensors) else _listed(tensors)
    if kernels is None:
        return None
    for (before, _), (after, _) in itertools.pairwise(kernels):
        if before.shape[0] != after.shape[1]:
            raise CheckpointError(
                f"{source} has convolutions whose channels do not match: {before.shape[0]} and {after.shape[1]}."
            )
    inputs, outputs = kernels[0][0].shape[1], kernels[-1][0].shape[0]
    if inputs == outputs:
        return ConvDenoiser(kernels).eval()
    if inputs != outputs + 1 or outputs % 4:
        raise CheckpointError(f"{source} maps {inputs} to {outputs} channels, as no known denoiser does.")
    if level is None:
        raise UsageError(f"{source} is an FFDNet, which is told the noise level; give it, as in FILE,level=0.25.")
    return FFDNet(kernels, level).eval()


def _numbered(tensors: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor | None]] | None:
    numbers = sorted({int(name.split(".")[1]) for name in tensors})
    kernels = [(tensors.get(f"model.{n}.weight"), tensors.get(f"model.{n}.bias")) for n in numbers]
    return _checked(kernels) if numbers == list(range(0, 2 * len(numbers), 2)) else None


def _listed(tensors: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor | None]] | None:
    """Read the networks of Mohan et al.; their normalisation layers are merged into the convolutions."""
    depth = len([name for name in tensors if re.fullmatch(r"hidden_layer_list\.\d+\.weight", name)])
    names = ["first_layer", *(f"hidden_layer_list.{i}" for i in range(depth)), "last_layer"]
    kernels = _checked([(tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")) for name in names])
    if kernels is None:
        return None
    for i in range(depth):
        norm = {
            key: tensors.get(f"bn_layer_list.{i}.{key}") for key in ("weight", "bias", "running_mean", "running_var")
        }
        if any(value is None for value in norm.values()):
            return None
        kernels[i + 1] = _merged(*kernels[i + 1], **norm)  # type: ignore[arg-type]
    return kernels


def _merged(
    kernel: Tensor, shift: Tensor | None, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Multiply the scale of a normalisation into a convolution; without a shift the layer is bias-free."""
    if shift is None:
        return kernel * (weight / (running_var.sqrt() + _EPS))[:, None, None, None], None
    scale = weight / (running_var + _EPS).sqrt()
    return kernel * scale[:, None, None, None], (shift - running_mean) * scale + bias


def _checked(kernels: Sequence[tuple[Tensor | None, Tensor | None]]) -> list[tuple[Tensor, Tensor | None]] | None:
    fitting = [(weight, bias) for weight, bias in kernels if weight is not None and weight.ndim == 4]
    return fitting if fitting and len(fitting) == len(kernels) else None
