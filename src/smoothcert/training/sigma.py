"""A noise scale for each training input, with any method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Generator, Tensor, nn

from smoothcert.files import replacing
from smoothcert.noise import Noise
from smoothcert.sampling.seeds import MODELLING, block_seed
from smoothcert.training.settings import DataDependentSigma
from smoothcert.types import SmoothcertError, StrPath

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SIGMAS = "sigmas.safetensors"
"""The file of the scales in the folder of a training."""

_KEY = "sigma"


class InputSigmas:
    """The noise scale of each training input, kept from epoch to epoch (Alfarra et al., 2022, Algorithm 2).

    The noise that improves a scale depends on the seed, the epoch and the input, not on the batch or on the number of
    processes. The start value is the scale of the training's noise. ``values`` has the scales by the index of the
    input, in double precision on the CPU.
    """

    def __init__(
        self, settings: DataDependentSigma, noise: Noise, inputs: int, seed: int, device: torch.device | str = "cpu"
    ) -> None:
        self._settings, self._start, self._seed, self._device = settings, settings.start(noise), seed, device
        self.values = torch.full((inputs,), self._start, dtype=torch.float64)

    def update(self, model: nn.Module, x: Tensor, rows: Tensor, epoch: int) -> Tensor | None:
        """Improve the scales of a batch ``x`` of inputs with these indices, and return them.

        The result is None if all of them are still that of the noise.
        """
        settings = self._settings
        if epoch >= settings.warmup and settings.steps > 0:
            # block 0 is for certification
            seeds = [block_seed(self._seed, index, MODELLING, epoch + 1) for index in rows.tolist()]
            generators = [Generator(device=self._device).manual_seed(seed) for seed in seeds]
            found = settings.solver()(model, x, self.values[rows].to(x), generators)
            self.values[rows] = found.to(self.values).clamp(*settings.interval)
        values = self.values[rows]
        return None if bool((values == self._start).all()) else values.to(x)

    def exchange(self, fabric: Fabric, parts: Sequence[Tensor]) -> None:
        """Share the scales of all processes after an epoch; ``parts`` has the indices of this process."""
        if fabric.world_size == 1:
            return
        ours = torch.zeros_like(self.values)
        for rows in parts:
            ours[rows] = self.values[rows]
        found = fabric.all_reduce(ours.to(fabric.device), reduce_op="max")  # exact, as scales are positive
        assert isinstance(found, Tensor)
        found = found.to(self.values)
        self.values.copy_(torch.where(found > 0, found, self.values))


def save_sigmas(path: Path, sigmas: Tensor) -> None:
    """Write the scales of all training inputs atomically."""
    with replacing(path) as temporary:
        safetensors.torch.save_file({_KEY: sigmas.detach().cpu().contiguous().clone()}, temporary)


def load_sigmas(path: StrPath) -> Tensor:
    """Load the final noise scale of each training input, from its file or the folder of the training.

    Held-out inputs have the scale of the noise.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_sigmas(Path(folder) / SIGMAS, torch.tensor([0.25, 0.5]))
        ...     load_sigmas(folder)
        tensor([0.2500, 0.5000])
    """
    file = Path(path) / SIGMAS if Path(path).is_dir() else Path(path)
    try:
        return safetensors.torch.load_file(file)[_KEY]
    except FileNotFoundError:
        raise SmoothcertError(
            f"'{file}' is missing; only a training with data_dependent_sigma writes noise scales."
        ) from None
    except (OSError, KeyError, SafetensorError) as error:
        raise SmoothcertError(f"'{file}' does not hold noise scales ({error}); train again.") from error
