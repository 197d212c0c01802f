"""Models of Hugging Face ``transformers`` and of ``timm``."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from smoothcert.files import parse_json
from smoothcert.models.loaded import LoadedModel
from smoothcert.models.normalize import Normalization
from smoothcert.types import CheckpointError, UsageError

CONFIG, WEIGHTS, LIBRARY = "config.json", "model.safetensors", "smoothcert"
"""The files of a folder that ``save_pretrained`` writes, and the library in the configuration of ours."""


class LogitsOf(nn.Module):
    """A model of ``transformers``, whose output holds the logits among other things."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(pixel_values=x).logits
        return logits


def is_huggingface(path: Path) -> bool:
    """Return whether a folder holds a model that ``save_pretrained`` of another library wrote."""
    return (path / CONFIG).is_file() and any(path.glob("*.safetensors")) and not _is_ours(path / CONFIG)


def _is_ours(config: Path) -> bool:
    """Return whether ``smoothcert.hub`` wrote a configuration."""
    try:
        found = parse_json(config.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("library_name") == LIBRARY


def own_checkpoint(name: str, revision: str | None) -> Path | None:
    """Return the checkpoint that ``smoothcert.hub`` saved in a folder or on the hub; None for other models."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder / WEIGHTS if _is_ours(folder / CONFIG) else None
    try:
        hub = importlib.import_module("huggingface_hub")
        config, weights = (partial(hub.hf_hub_download, name, each) for each in (CONFIG, WEIGHTS))
        return Path(weights(revision=revision)) if _is_ours(Path(config(revision=revision))) else None
    except Exception:  # no such file, or no network
        return None


def load_huggingface(text: str, options: Mapping[str, Any]) -> LoadedModel:
    """Load an image classifier of ``transformers`` with the preprocessing that its folder names.

    Only weights in safetensors files are read, and no code of the repository is run.

    Args:
        text: A folder, or ``hf:NAME`` for the hub.
        options: Arguments of ``from_pretrained``, such as ``revision``.

    Raises:
        UsageError: ``transformers`` is not installed.
        CheckpointError: If the model does not exist or is not an image classifier.
    """
    name = text.removeprefix("hf:")
    folder = Path(name).expanduser()
    transformers = _package("transformers", "hf")
    place = str(folder) if folder.is_dir() else name
    try:
        model = transformers.AutoModelForImageClassification.from_pretrained(
            place, use_safetensors=True, trust_remote_code=False, local_files_only=folder.is_dir(), **options
        )
    except Exception as error:  # the hub, the configuration and the weights fail in many ways
        said = str(error).strip().partition("\n")[0]
        raise CheckpointError(f"'{text}' is not an image classifier that can be loaded: {said}") from error
    config = model.config
    size = getattr(config, "image_size", None)
    shape = _input_shape(getattr(config, "num_channels", 3), size)
    processing = _preprocessing(folder, place, folder.is_dir(), options) or {}
    side = processing.get("crop_size" if processing.get("do_center_crop") else "size")
    names = [config.id2label[label] for label in sorted(config.id2label)]
    return LoadedModel(
        model=LogitsOf(model).eval(),
        name=Path(name).name,
        source=_recorded(text, folder, config, options),
        num_classes=config.num_labels,
        input_shape=_input_shape(getattr(config, "num_channels", 3), side) or shape,
        class_names=None if names == [f"LABEL_{i}" for i in range(len(names))] else tuple(names),
        normalize=_normalization(processing, getattr(config, "num_channels", 3)),
        preprocessing="file" if processing else "unknown",
    )


def load_timm(text: str, options: Mapping[str, Any]) -> LoadedModel:
    """Load ``timm:NAME`` with the weights and the normalisation that ``timm`` has for it.

    Args:
        text: ``timm:`` and the name of a model.
        options: Arguments of ``timm.create_model``; ``pretrained`` is true by default.
    """
    timm = _package("timm", "timm")
    try:
        model = timm.create_model(text.removeprefix("timm:"), **{"pretrained": True, **options})
    except Exception as error:  # unknown names, downloads and weights fail in many ways
        raise CheckpointError(f"'{text}' cannot be loaded: {str(error).strip().partition(chr(10))[0]}") from error
    known = model.pretrained_cfg
    return LoadedModel(
        model=model.eval(),
        name=text.removeprefix("timm:"),
        source={"timm": text.removeprefix("timm:"), "arguments": dict(options)},
        num_classes=model.num_classes,
        input_shape=tuple(known["input_size"]),
        normalize=(tuple(known["mean"]), tuple(known["std"])),
        preprocessing="file",
    )


def _package(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f'these models need {name}; pip install "smoothcert[{extra}]".') from error


def _preprocessing(folder: Path, place: str, local: bool, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the configuration of the image processor, or None without one."""
    file: Path | None = folder / "preprocessor_config.json"
    if not local:
        try:
            hub = importlib.import_module("huggingface_hub")
            file = Path(hub.hf_hub_download(place, "preprocessor_config.json", revision=options.get("revision")))
        except Exception:  # a model without a processor, or no network
            file = None
    if file is None or not file.is_file():
        return None
    try:
        found = parse_json(file.read_text())
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged: {error}.") from error
    return found if isinstance(found, dict) else None


def _normalization(processing: Mapping[str, Any], channels: int) -> Normalization | None:
    """Return what a processor does to 8-bit values as the (mean, std) of values in [0, 1].

    It multiplies by a factor, 1/255 unless it says otherwise, may subtract 1, and may normalise the result.
    """
    if not processing:
        return None
    scale = 255 * processing.get("rescale_factor", 1 / 255) if processing.get("do_rescale", True) else 255.0
    offset = 1.0 if processing.get("rescale_offset") else 0.0
    given = processing.get("do_normalize", True) and "image_mean" in processing
    mean = processing["image_mean"] if given else [0.0] * channels
    std = processing["image_std"] if given else [1.0] * channels
    found = tuple((value + offset) / scale for value in mean), tuple(value / scale for value in std)
    return None if found == ((0.0,) * channels, (1.0,) * channels) else found


def _input_shape(channels: int, size: Any) -> tuple[int, int, int] | None:
    if isinstance(size, Mapping):
        size = (size.get("height"), size.get("width"))
    sides = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, list | tuple) else ()
    return (channels, *sides) if len(sides) == 2 and all(isinstance(side, int) for side in sides) else None


def _recorded(text: str, folder: Path, config: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Describe where the model comes from: the hashes of local files, or the commit on the hub."""
    recorded: dict[str, Any] = {"huggingface": text, "arguments": dict(options)}
    if folder.is_dir():
        files = [*sorted(folder.glob("*.safetensors")), folder / "config.json"]
        recorded["files"] = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    else:
        recorded["commit"] = getattr(config, "_commit_hash", None)
    plain: dict[str, Any] = json.loads(json.dumps(recorded, default=str))
    return plain
