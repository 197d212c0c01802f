"""Diffusion models as denoisers, in one step (Carlini et al., ICLR 2023) or by sampling (Xiao et al., ICLR 2023)."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from smoothcert.files import parse_json
from smoothcert.models.loaded import LoadedModel
from smoothcert.models.unet import import_diffusers
from smoothcert.specifiers import Specifier
from smoothcert.types import CheckpointError, StrPath, UsageError


def timestep(alphas: Tensor, level: float) -> int:
    """Return the step t whose noise is nearest to a level: (1 − ᾱ_t)/ᾱ_t = σ², for images in [−1, 1] (2σ)².

    Args:
        alphas: ᾱ_t for each step t, decreasing.
        level: The standard deviation σ of the noise, for images in [0, 1].

    Raises:
        UsageError: The level is beyond the last step.
    """
    levels = ((1 - alphas.double()) / alphas.double()).sqrt()
    if 2 * level > float(levels[-1]):
        most = float(levels[-1]) / 2
        raise UsageError(f"the diffusion model knows noise up to a standard deviation of {most:.3g}, not {level:g}.")
    return int((levels - 2 * level).abs().argmin())


class DiffusionDenoiser(nn.Module):
    """Predict the clean image from x_t = √ᾱ_t (x + δ), where t is the step with the noise level of δ.

    With one step, the prediction of x₀ is the answer. With more, ancestral sampling (Ho, Jain and Abbeel, 2020, Eq. 7)
    on as many equally spaced steps from t to 0 draws an image from the model, as in DensePure (Xiao et al., ICLR 2023).
    Its random numbers are a fixed function of the seed and the noisy copy, so the denoiser is a fixed function of one
    row, as a certificate needs.

    Args:
        network: Maps (x_t, t) to the noise, the image or the velocity, for images in [−1, 1].
        alphas: ᾱ_t for each step t.
        level: The standard deviation of the noise, for images in [0, 1].
        prediction: ``"epsilon"``, ``"sample"`` or ``"v_prediction"``.
        steps: The reverse steps; each is a forward pass.
        seed: The number of the drawn image, with more than one step.

    Raises:
        UsageError: The prediction is unknown, or the number of steps exceeds those up to the noise level.
    """

    def __init__(
        self,
        network: nn.Module,
        alphas: Tensor,
        level: float,
        prediction: str = "epsilon",
        *,
        steps: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if prediction not in ("epsilon", "sample", "v_prediction"):
            raise UsageError(f"prediction must be epsilon, sample or v_prediction, not {prediction!r}.")
        self.network, self.level, self.prediction, self.seed = network, level, prediction, seed
        self.step = timestep(alphas, level)
        if not 1 <= steps <= self.step + 1:
            raise UsageError(f"steps must be at least 1 and at most {self.step + 1} at this noise level, not {steps}.")
        self.chain = [self.step - place * (self.step + 1) // steps for place in range(steps)]
        self.alphas = [float(alphas[step]) for step in self.chain]

    def forward(self, x: Tensor) -> Tensor:
        state = math.sqrt(self.alphas[0]) * (2 * x - 1)
        clean = self._clean(state, 0)
        drawn = noise_of_rows(x, len(self.chain) - 1, self.seed)
        for place, unit in enumerate(drawn, start=1):
            before, after = self.alphas[place - 1], self.alphas[place]
            beta = 1 - before / after
            mean = (math.sqrt(after) * beta * clean + math.sqrt(before / after) * (1 - after) * state) / (1 - before)
            state = mean + math.sqrt((1 - after) / (1 - before) * beta) * unit
            clean = self._clean(state, place)
        return (clean + 1) / 2

    def _clean(self, state: Tensor, place: int) -> Tensor:
        """Predict x₀ from x_t."""
        signal, noise = math.sqrt(self.alphas[place]), math.sqrt(1 - self.alphas[place])
        predicted = self.network(state, torch.full((len(state),), self.chain[place], device=state.device))
        predicted = predicted if isinstance(predicted, Tensor) else predicted.sample
        if self.prediction == "epsilon":
            predicted = (state - noise * predicted) / signal
        elif self.prediction == "v_prediction":
            predicted = signal * state - noise * predicted
        clean: Tensor = predicted.clamp(-1, 1)
        return clean


def noise_of_rows(x: Tensor, count: int, seed: int) -> Sequence[Tensor]:
    """Return tensors of standard normal numbers like a batch; a row of them depends on that row and the seed only."""
    if count == 0:
        return ()
    if torch.compiler.is_compiling() or torch._C._get_tracing_state():  # which would record these numbers as constants
        raise UsageError("a diffusion model with several steps cannot be compiled or exported; use runtime='eager'.")
    rows = (x.detach().float() + 0.0).cpu().numpy()  # −0.0 becomes 0.0, which has other bytes
    drawn = np.empty((len(rows), count, *rows.shape[1:]), dtype=np.float32)
    for row, numbers in zip(rows, drawn, strict=True):
        key = hashlib.blake2b(row.tobytes(), digest_size=16, salt=seed.to_bytes(8, "little")).digest()
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
        generator.standard_normal(out=numbers, dtype=np.float32)
    return torch.from_numpy(drawn).to(x).unbind(dim=1)


def is_diffusion(path: Path) -> bool:
    """Return whether a folder holds a UNet of ``diffusers``, alone or in a pipeline."""
    return any(_class_name(folder) == "UNet2DModel" for folder in (path, path / "unet"))


def each_seed(specifier: StrPath) -> list[str]:
    """Return a specifier for each image that a diffusion model draws: ``seeds=K`` becomes ``seed=0`` to ``seed=K-1``.

    Other specifiers are returned unchanged.

    Raises:
        UsageError: ``seeds`` is not a whole number above 0, or there is only one step, which draws nothing.
    """
    text = os.fspath(specifier)
    given = Specifier.parse(text)
    options = dict(given.options)
    if "seeds" not in options or not is_diffusion(Path(given.text).expanduser()):
        return [text]
    count = _whole(options, "seeds", 1, least=1)
    if "seed" in options:
        raise UsageError(f"'{text}' gives seed and seeds; give one of them.")
    if _whole(options, "steps", 1, least=1) < 2:
        raise UsageError(f"'{text}' has seeds but one step, which draws nothing; give steps of at least 2 too.")
    kept = [f"{name}={value}" for name, value in options.items() if name != "seeds"]
    return [",".join([given.text, *kept, f"seed={seed}"]) for seed in range(count)]


def load_diffusion(path: Path, options: Mapping[str, Any]) -> LoadedModel:
    """Load a folder of ``diffusers``: a pipeline with ``unet`` and ``scheduler``, or a UNet alone.

    Args:
        path: The folder.
        options: ``level``, the standard deviation of the noise for images in [0, 1]; ``steps`` and ``seed`` of the
            reverse process (1 and 0).

    Raises:
        UsageError: An option is invalid, the level is missing or beyond the last step, or ``diffusers`` is not
            installed.
        CheckpointError: The folder is damaged.
    """
    if "seeds" in options:
        raise UsageError(
            f"'{path}' with seeds is several denoisers, but one is needed here; give seed, or a list of denoisers."
        )
    unknown = set(options) - {"level", "steps", "seed"}
    if unknown:
        raise UsageError(
            f"a diffusion model has no option {', '.join(sorted(unknown))}; it takes level, steps, seed and seeds."
        )
    level = options.get("level")
    if level is None:
        raise UsageError(
            f"'{path}' is a diffusion model, which is told the noise level; give --sigma, or as in {path},level=0.25."
        )
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < math.inf:
        raise UsageError(f"level must be a number above 0, as in {path},level=0.25; got {level!r}.")
    drawn = {"steps": _whole(options, "steps", 1, least=1), "seed": _whole(options, "seed", 0, least=0)}
    diffusers = import_diffusers()
    folder = path if _class_name(path) == "UNet2DModel" else path / "unet"
    try:
        network = diffusers.UNet2DModel.from_pretrained(
            folder, use_safetensors=True, local_files_only=True, low_cpu_mem_usage=False
        )
        network.register_to_config(_name_or_path="")  # the model is the same wherever the folder lies
        schedule = path / "scheduler"
        scheduler = (
            diffusers.DDPMScheduler.from_pretrained(schedule) if schedule.is_dir() else diffusers.DDPMScheduler()
        )
    except Exception as error:  # the configuration and the weights fail in many ways
        raise CheckpointError(f"'{path}' cannot be loaded as a diffusion model: {error}") from error
    kind = scheduler.config.prediction_type
    model = DiffusionDenoiser(network.eval(), scheduler.alphas_cumprod, float(level), kind, **drawn)
    files = {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted([*folder.glob("*.safetensors"), *path.rglob("*.json")])
    }
    source = {"diffusion": str(path), "level": level, "step": model.step, **drawn, "files": files}
    return LoadedModel(model=model.eval(), name=path.name, source=source)


def _whole(options: Mapping[str, Any], name: str, default: int, least: int) -> int:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise UsageError(f"{name} of a diffusion model must be a whole number of at least {least}, got {value!r}.")
    return value


def _class_name(folder: Path) -> Any:
    try:
        config = parse_json((folder / "config.json").read_text())
    except (OSError, ValueError):
        return None
    return config.get("_class_name") if isinstance(config, dict) else None
