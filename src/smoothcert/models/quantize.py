"""Quantise a model to int8: another model, in an ONNX file, which is certified like any other."""

from __future__ import annotations

import copy
import importlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smoothcert.files import saving
from smoothcert.models.loading import load_model
from smoothcert.models.sources.onnx_file import METADATA_KEY, OnnxModel, export_onnx
from smoothcert.noise import Noise, invalid_rows
from smoothcert.progress import quiet
from smoothcert.types import StrPath, UsageError

_BATCH = 32  # noisy copies per calibration batch
_SCHEME = {"weights": "int8, 7 bits per channel", "activations": "uint8, static"}


def quantize(model: nn.Module, inputs: Sequence[Tensor], noise: Noise, path: StrPath, *, seed: int = 0) -> nn.Module:
    """Quantise weights and activations to int8, write the result as an ONNX file, and load it.

    The file is a model with its own identity: certificates are about the quantised function, not about the original.
    The ranges of activations are measured once, on a noisy copy of each input, because activations under noise are
    larger than those of clean inputs. Ranges measured while the model runs (dynamic quantisation) are not offered:
    they depend on all rows of a batch, so the model would not be a fixed function of one row. Weights have 7 bits, so
    that no sum overflows on CPUs without VNNI instructions, which would make the model another function there.

    Args:
        model: A float32 classifier that PyTorch can export to ONNX, or one loaded from an ONNX file.
        inputs: Inputs of the training data, without a batch dimension; some hundred are enough.
        noise: The noise that the model will be certified under, which the file records.
        path: The file, which ends in ``.onnx``.
        seed: The seed of the noise for calibration, which no certificate uses.

    Raises:
        UsageError: An argument is invalid, ONNX Runtime is not installed, or the model cannot be exported.
        SmoothcertError: The file cannot be written.
    """
    path = Path(path)
    if path.suffix != ".onnx":
        raise UsageError(f"a quantised model is saved as an .onnx file, not as '{path.name}'.")
    if not len(inputs):
        raise UsageError("there are no inputs to measure the ranges of activations with; give some of the training.")
    try:
        onnx: Any = importlib.import_module("onnx")
        tools: Any = importlib.import_module("onnxruntime.quantization")
        shapes: Any = importlib.import_module("onnxruntime.quantization.shape_inference")
    except ImportError as error:
        raise UsageError('quantisation needs ONNX Runtime; pip install "smoothcert[onnx]".') from error
    copies = _noisy_copies(inputs, noise, seed)
    with tempfile.TemporaryDirectory() as folder, quiet():
        exported, prepared, quantised = (Path(folder) / f"{name}.onnx" for name in ("float", "prepared", "int8"))
        exported.write_bytes(_as_onnx(model, copies[:3]))
        try:
            shapes.quant_pre_process(exported, prepared)  # merges batch normalisation, without which int8 is slow
            tools.quantize_static(
                prepared,
                quantised,
                _reader(tools, onnx.load(prepared).graph.input[0].name, copies),
                quant_format=tools.QuantFormat.QDQ,
                activation_type=tools.QuantType.QUInt8,
                weight_type=tools.QuantType.QInt8,
                per_channel=True,
                reduce_range=True,
            )
            result = onnx.load(quantised)
        except Exception as error:  # ONNX Runtime has a class for each kind of failure
            said = str(error).strip().partition("\n")[0]
            raise UsageError(f"ONNX Runtime cannot quantise this model ({said}); certify it as it is.") from error
    onnx.helper.set_model_props(
        result, {METADATA_KEY: json.dumps({"noise": noise.config(), "quantized": {**_SCHEME, "copies": len(copies)}})}
    )
    with saving(path) as temporary:
        temporary.write_bytes(result.SerializeToString())
    return load_model(path)


def _noisy_copies(inputs: Sequence[Tensor], noise: Noise, seed: int) -> Tensor:
    """Draw a valid noisy copy of each input."""
    generator = torch.Generator().manual_seed(seed)
    copies = torch.stack([x.detach().cpu().float() for x in inputs])
    for x, row in zip(copies.clone(), copies, strict=True):
        noise.check(x)
        noise.sample(x, row[None], generator)
    return copies[~invalid_rows(copies)]


def _as_onnx(model: nn.Module, batch: Tensor) -> bytes:
    if isinstance(model, OnnxModel):
        return model.content.cpu().numpy().tobytes()
    types = {weight.dtype for weight in model.parameters() if weight.is_floating_point()} - {torch.float32}
    if types:
        raise UsageError(f"quantisation starts from float32 weights, but the model has {types.pop()}.")
    try:
        return export_onnx(copy.deepcopy(model).cpu().eval(), batch)
    except Exception as error:  # exporters may raise anything
        said = str(error).strip().partition("\n")[0]
        raise UsageError(f"the model cannot be exported to ONNX ({said}); quantise a plain network.") from error


def _reader(tools: Any, name: str, copies: Tensor) -> Any:
    batches = iter(torch.split(copies, _BATCH))

    class Reader(tools.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Any] | None:
            batch = next(batches, None)
            return None if batch is None else {name: batch.numpy()}

    return Reader()
