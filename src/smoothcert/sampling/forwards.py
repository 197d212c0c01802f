"""Runtimes: the forward pass of a model, eager, compiled or in ONNX Runtime."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from smoothcert.classifiers.agreement import as_logits
from smoothcert.classifiers.copying import Forward, PerThread
from smoothcert.classifiers.modes import intra_op_threads
from smoothcert.models.sources.onnx_file import export_onnx
from smoothcert.sampling.tuning import Setup
from smoothcert.types import UsageError

PRECISIONS: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Types for autocast, by name."""


@dataclass(frozen=True)
class Plan:
    """The settings that a runtime is built for.

    Attributes:
        x: An input, in the type that the model takes.
        num_classes: The number of logits.
        setup: The batch size and threads.
        channels_last: Whether batches of images are converted to channels-last memory format, like the weights.
        precision: A name in ``PRECISIONS``, or None for that of the model.
    """

    x: Tensor
    num_classes: int
    setup: Setup
    channels_last: bool
    precision: str | None

    def autocast(self) -> AbstractContextManager[Any]:
        if self.precision is None:
            return nullcontext()
        return torch.autocast(self.x.device.type, dtype=PRECISIONS[self.precision])

    def widened(self, logits: Tensor) -> Tensor:
        return logits if self.precision is None else logits.float()


def eager(model: Forward, plan: Plan) -> Forward:
    """Run the model in plain PyTorch, in the memory format of the plan.

    Each thread runs its own copy of a module, with shared weights: a forward pass that stores something on its module
    (``self.features = …``) cannot mix up two batches.
    """
    modules = PerThread(model)

    def run(batch: Tensor) -> Tensor:
        with torch.inference_mode(), plan.autocast():
            count, batch = len(batch), batch.to(plan.x.dtype)
            if plan.channels_last:
                batch = batch.contiguous(memory_format=torch.channels_last)
            return plan.widened(as_logits(modules.model(batch), count))

    return run


def compiled(model: Forward, plan: Plan) -> Forward:
    """Compile the model with frozen weights for batches of exactly the plan's size; smaller batches are padded.

    Compiled code is specialised to the batch size, number of threads, autocast, and tensors made in inference mode, so
    these are the same in every call; otherwise PyTorch would compile again.
    """
    size, threads = plan.setup.batch_size, plan.setup.threads

    def forward(batch: Tensor) -> Tensor:
        return model(batch)

    # A new code object, because PyTorch stores compiled code, and limits how often it compiles, per code object.
    own = types.FunctionType(forward.__code__.replace(), forward.__globals__, closure=forward.__closure__)
    # The first compilation is of the whole graph, which refuses a model with graph breaks. Calls then use that code
    # without fullgraph, because PyTorch keeps the state of fullgraph in one place for all threads.
    whole = torch.compile(own, fullgraph=True, dynamic=False, options={"freezing": True})
    fast = torch.compile(own, dynamic=False, options={"freezing": True})

    def run(batch: Tensor, program: Callable[[Tensor], Tensor] = fast) -> Tensor:
        with torch.inference_mode(), intra_op_threads(threads), plan.autocast():
            count, batch = len(batch), batch.to(plan.x.dtype)
            if count < size:
                batch = torch.cat([batch, batch.new_zeros((size - count, *batch.shape[1:]))])
            elif not batch.is_inference():
                batch = batch.clone()
            return plan.widened(program(batch)[:count])

    for program in (whole, fast):
        run(plan.x.new_zeros((size, *plan.x.shape)), program)
    return run


def onnx(model: Forward, plan: Plan) -> Forward:
    """Run the model in ONNX Runtime, which reads batches and writes logits in PyTorch's memory."""
    if plan.precision is not None:
        raise UsageError(f"precision {plan.precision!r} is not for the onnx runtime; use runtime='compiled'.")
    try:
        for package in ("onnx", "onnxscript"):
            importlib.import_module(package)
        onnxruntime: Any = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise UsageError('the onnx runtime is not installed; pip install "smoothcert[onnx]".') from error
    content = export_onnx(model, plan.x.expand(3, *plan.x.shape).contiguous())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = plan.setup.threads
    options.log_severity_level = 3  # errors
    device, number = plan.x.device.type, plan.x.device.index or 0
    providers = [("CUDAExecutionProvider", {"device_id": number})] if device == "cuda" else ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(content, options, providers=providers)
    if session.get_providers()[0] not in str(providers):
        raise UsageError(f"the installed ONNX Runtime has no support for {device}; install onnxruntime-gpu.")
    kind = torch.empty(0, dtype=plan.x.dtype).numpy().dtype

    def run(batch: Tensor) -> Tensor:
        with torch.inference_mode():
            batch = batch.to(plan.x.dtype).contiguous()
            logits = batch.new_empty((len(batch), plan.num_classes))
            if device == "cuda":  # ONNX Runtime uses another stream
                torch.cuda.synchronize(batch.device)
            binding = session.io_binding()
            binding.bind_input("x", device, number, kind, tuple(batch.shape), batch.data_ptr())
            binding.bind_output("logits", device, number, kind, tuple(logits.shape), logits.data_ptr())
            session.run_with_iobinding(binding)
            return logits

    return run


RUNTIMES: dict[str, Callable[[Forward, Plan], Forward]] = {"eager": eager, "compiled": compiled, "onnx": onnx}
"""Builders of runtimes from a model that stays unchanged and a plan."""

PADDED = frozenset({"compiled"})
"""Runtimes that fill up every batch to the full size, so that a smaller one saves no time."""
