"""Models in ONNX files, run by ONNX Runtime."""

from __future__ import annotations

import hashlib
import importlib
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from smoothcert.files import parse_json
from smoothcert.models.checkpoints import find_checkpoint, read_file
from smoothcert.models.loaded import LoadedModel
from smoothcert.models.sources.batches import ChannelsLast, FixedBatch
from smoothcert.types import CheckpointError, UsageError

_TYPES = {"tensor(float)": torch.float32, "tensor(double)": torch.float64, "tensor(float16)": torch.float16}
_PROBES = 4  # rows on which a model with a free batch size must agree with the original
_CHANNELS = (1, 3, 4)
_DYNAMIC = b"DynamicQuantize"  # operators that quantise by the smallest and the largest value of the whole batch
METADATA_KEY = "smoothcert"
"""The entry of a file's metadata that holds JSON of ours, such as the noise of a quantised model."""


class OnnxModel(nn.Module):
    """The first output of an ONNX graph as a function of its input.

    ONNX Runtime computes on the CPU, without gradients, in as many threads as PyTorch is set to.

    Args:
        content: The file.
        output: The name of the output; the first one by default.
    """

    content: Tensor

    def __init__(self, content: bytes, output: str | None = None) -> None:
        super().__init__()
        self.register_buffer("content", torch.frombuffer(bytearray(content), dtype=torch.uint8))
        session = _session(content, 1)
        (self.input,) = [each.name for each in session.get_inputs()]
        self.output = output or session.get_outputs()[0].name
        self.dtype = _TYPES[session.get_inputs()[0].type]

    def forward(self, x: Tensor) -> Tensor:
        session = _SESSIONS.of(self.content, torch.get_num_threads())
        rows = x.detach().to("cpu", self.dtype).contiguous().numpy()
        (logits,) = session.run([self.output], {self.input: rows})
        return torch.from_numpy(np.asarray(logits)).to(x.device)


class _Sessions(threading.local):
    """The sessions of a thread for each file in memory, by the number of threads that they use."""

    def __init__(self) -> None:
        self._made = WeakTensorKeyDictionary()

    def of(self, content: Tensor, threads: int) -> Any:
        if content not in self._made:
            self._made[content] = {}
        sessions: dict[int, Any] = self._made[content]
        if threads not in sessions:
            sessions[threads] = _session(content.cpu().numpy().tobytes(), threads)
        return sessions[threads]


_SESSIONS = _Sessions()


def export_onnx(model: Any, batch: Tensor) -> bytes:
    """Export a model from a batch to logits for batches of any size; the names are ``x`` and ``logits``.

    Raises:
        Exception: Whatever the exporter raises.
    """
    program = torch.onnx.export(
        model,
        (batch,),
        input_names=["x"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    content: bytes = program.model_proto.SerializeToString()
    return content


def load_onnx(text: str, options: Mapping[str, Any]) -> LoadedModel:
    """Load an ONNX file.

    A graph with a fixed batch size is given a free one if it then returns the same outputs; otherwise it is run in
    batches of that size.

    Args:
        text: The path.
        options: ``layout`` (``nchw`` or ``nhwc``; by default read from the shape of the input) and ``output``, the name
            of the output that holds the logits.

    Raises:
        CheckpointError: The file is missing or damaged, or the graph does not map one batch to one row per input.
        UsageError: The onnx extra is not installed, or an option is unknown.
    """
    unknown = set(options) - {"layout", "output"}
    if unknown:
        raise UsageError(f"an ONNX file has no option {', '.join(sorted(unknown))}; it takes layout and output.")
    path = find_checkpoint(Path(text).expanduser())
    source = f"ONNX file '{path}'"
    content = _whole(path, source)
    session = _session(content, 1, source)
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if len(inputs) != 1 or inputs[0].type not in _TYPES:
        listed = ", ".join(f"{each.name}: {each.type}" for each in inputs)
        raise CheckpointError(f"{source} must have one input of floating-point numbers, but has {listed}.")
    names = [each.name for each in outputs]
    output = options.get("output", names[0])
    if output not in names:
        raise UsageError(f"{source} has no output {output!r}; it has {', '.join(names)}.")
    batch, *shape = inputs[0].shape
    last = outputs[names.index(output)].shape[-1]
    dynamic = _DYNAMIC in content
    if dynamic and batch != 1:
        raise UsageError(
            f"{source} quantises activations by the range of the whole batch, so that the logits of a row depend on "
            "other rows; quantise it with `smoothcert quantize`, or export it for a batch of one."
        )
    layout = options.get("layout") or _layout(shape)
    if layout not in ("nchw", "nhwc"):
        raise UsageError(f"layout must be nchw or nhwc, not {layout!r}.")
    model: nn.Module
    if isinstance(batch, int):
        freed = None if dynamic else _with_free_batch(content, shape, batch, output)
        model = FixedBatch(OnnxModel(content, output), batch) if freed is None else OnnxModel(freed, output)
    else:
        model = OnnxModel(content, output)
    if layout == "nhwc":
        model, shape = ChannelsLast(model), [shape[2], *shape[:2]]
    known = _metadata(session, source)
    quantized = {"quantized": known["quantized"]} if "quantized" in known else {}
    return LoadedModel(
        model=model.eval(),
        name=path.stem,
        source={"checkpoint": str(path), "sha256": hashlib.sha256(content).hexdigest(), **quantized},
        noise=known.get("noise"),
        preprocessing="file" if quantized else "unknown",
        num_classes=last if isinstance(last, int) else None,
        input_shape=tuple(shape) if all(isinstance(side, int) for side in shape) else None,
    )


def _metadata(session: Any, source: str) -> Mapping[str, Any]:
    """Read what ``smoothcert quantize`` wrote; empty for other files."""
    text = session.get_modelmeta().custom_metadata_map.get(METADATA_KEY, "{}")
    try:
        known = parse_json(text)
        if not all(isinstance(value, Mapping) for value in (known, *known.values())):
            raise TypeError("it must be an object of objects")
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{source} has damaged metadata ({error}); quantise the model again.") from error
    return known  # type: ignore[no-any-return]


def _whole(path: Path, source: str) -> bytes:
    """Read a model, with the weights that large models and recent exporters keep in a second file."""
    content = read_file(path)
    try:
        _session(content, 1, source)
    except CheckpointError as refused:
        if "external data" not in str(refused).lower():
            raise
        try:
            whole: bytes = importlib.import_module("onnx").load(path).SerializeToString()
        except Exception as error:  # a missing or damaged file, more than 2 GB, or no package
            said = str(error).partition("\n")[0]
            raise CheckpointError(f"{source} has weights in another file, which cannot be read: {said}.") from error
        return whole
    return content


def _session(content: bytes, threads: int, source: str = "the ONNX model") -> Any:
    try:
        onnxruntime: Any = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise UsageError('ONNX files need ONNX Runtime; pip install "smoothcert[onnx]".') from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # a broken file is reported by the exception
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has a class for each kind of failure
        said = str(error).partition("\n")[0]
        raise CheckpointError(f"{source} cannot be loaded: {said}.") from error


def _layout(shape: list[Any]) -> str:
    if len(shape) != 3 or shape[0] in _CHANNELS or shape[2] not in _CHANNELS:
        return "nchw"
    return "nhwc"


def _with_free_batch(content: bytes, shape: list[Any], batch: int, output: str) -> bytes | None:
    """Replace the fixed batch size of a graph; return None if that changes its outputs or is not possible."""
    try:
        onnx: Any = importlib.import_module("onnx")
        model = onnx.load_from_string(content)
        graph = model.graph
        constants = {each.name: each for each in graph.initializer}
        for value in (*graph.input, *graph.output):
            if value.name not in constants and value.type.tensor_type.shape.dim:
                value.type.tensor_type.shape.dim[0].dim_param = "batch"
        del graph.value_info[:]  # shapes of inner tensors, which ONNX Runtime infers again
        for node in graph.node:
            if node.op_type == "Reshape" and node.input[1] in constants:
                wanted = onnx.numpy_helper.to_array(constants[node.input[1]]).copy()
                if len(wanted) > 1 and wanted[0] == batch and -1 not in wanted:
                    wanted[0] = -1
                    constants[node.input[1]].CopyFrom(onnx.numpy_helper.from_array(wanted, node.input[1]))
        freed = model.SerializeToString()
        rows = np.random.default_rng(0).random((_PROBES * batch, *shape), dtype=np.float32)
        old, new = _session(content, 1), _session(freed, 1)
        (entry,) = old.get_inputs()
        rows = torch.from_numpy(rows).to(_TYPES[entry.type]).numpy()
        parts = [old.run([output], {entry.name: rows[i : i + batch]})[0] for i in range(0, len(rows), batch)]
        same = np.allclose(np.concatenate(parts), new.run([output], {entry.name: rows})[0], rtol=1e-3, atol=1e-4)
    except Exception:  # the file is fine as it is, whatever goes wrong here
        return None
    return freed if same else None
