"""The forward pass of a model, built for batches of noisy copies: eager, compiled or in ONNX Runtime."""

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
from smoothcert.classifiers.copying import PerThread
from smoothcert.sampling.tuning import Forward, Setup, intra_op_threads
from smoothcert.types import UsageError

PRECISIONS: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""What autocast can compute in, by name."""


@dataclass(frozen=True)
class Plan:
    """What a runtime is built for.

    Attributes:
        x: An input, in the type that the model takes.
        num_classes: The number of logits.
        setup: The batch size and threads.
        channels_last: Whether batches of images are brought to channels-last memory format, as the weights are.
        precision: A name in ``PRECISIONS``, or None for the model's own.
    """

    x: Tensor
    num_classes: int
    setup: Setup
    channels_last: bool
    precision: str | None


def eager(model: Forward, plan: Plan) -> Forward:
    """The model as it is, in the memory format of the plan.

    A module runs as one copy per thread, all with the same weights: a forward pass that leaves something on its module
    (``self.features = …``) then cannot mix up two batches.
    """
    modules = PerThread(model)

    def run(batch: Tensor) -> Tensor:
        with torch.inference_mode(), _autocast(plan):
            count, batch = len(batch), batch.to(plan.x.dtype)
            if plan.channels_last:
                batch = batch.contiguous(memory_format=torch.channels_last)
            return _logits(as_logits(modules.model(batch), count), plan)

    return run


def compiled(model: Forward, plan: Plan) -> Forward:
    """The model through ``torch.compile`` with its weights frozen, for batches of exactly the plan's size.

    Smaller batches are padded. What the compiled code is specialised to is the same in every call, as it would
    otherwise be compiled again: batch size, number of threads, autocast, and a tensor made in inference mode.
    """
    size, threads = plan.setup.batch_size, plan.setup.threads

    def forward(batch: Tensor) -> Tensor:
        return model(batch)

    # A code object of its own, because PyTorch keeps compiled code, and counts how often it compiled, per code object.
    own = types.FunctionType(forward.__code__.replace(), forward.__globals__, closure=forward.__closure__)
    # Compiled once as a whole, which refuses a model that falls apart into several graphs. Calls then take that code
    # without asking for the whole again, because PyTorch counts what it asks for in one place for all threads.
    whole = torch.compile(own, fullgraph=True, dynamic=False, options={"freezing": True})
    fast = torch.compile(own, dynamic=False, options={"freezing": True})

    def run(batch: Tensor, program: Callable[[Tensor], Tensor] = fast) -> Tensor:
        with torch.inference_mode(), intra_op_threads(threads), _autocast(plan):
            count, batch = len(batch), batch.to(plan.x.dtype)
            if count < size:
                batch = torch.cat([batch, batch.new_zeros((size - count, *batch.shape[1:]))])
            elif not batch.is_inference():
                batch = batch.clone()
            return _logits(program(batch)[:count], plan)

    for program in (whole, fast):
        run(plan.x.new_zeros((size, *plan.x.shape)), program)
    return run


def onnx(model: Forward, plan: Plan) -> Forward:
    """The model in ONNX Runtime, reading the batch and writing the logits where PyTorch keeps them."""
    if plan.precision is not None:
        raise UsageError(f"precision {plan.precision!r} is not for the onnx runtime; use runtime='compiled'.")
    try:
        for package in ("onnx", "onnxscript"):
            importlib.import_module(package)
        onnxruntime: Any = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise UsageError('the onnx runtime is not installed; pip install "smoothcert[onnx]".') from error
    example = plan.x.expand(3, *plan.x.shape).contiguous()
    program = torch.onnx.export(
        model,  # type: ignore[arg-type]
        (example,),
        input_names=["x"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = plan.setup.threads
    options.log_severity_level = 3  # errors
    device, number = plan.x.device.type, plan.x.device.index or 0
    providers = [("CUDAExecutionProvider", {"device_id": number})] if device == "cuda" else ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), options, providers=providers)
    if session.get_providers()[0] not in str(providers):
        raise UsageError(f"the installed ONNX Runtime has no support for {device}; install onnxruntime-gpu.")
    kind = torch.empty(0, dtype=plan.x.dtype).numpy().dtype

    def run(batch: Tensor) -> Tensor:
        with torch.inference_mode():
            batch = batch.to(plan.x.dtype).contiguous()
            logits = batch.new_empty((len(batch), plan.num_classes))
            if device == "cuda":  # ONNX Runtime has a stream of its own
                torch.cuda.synchronize(batch.device)
            binding = session.io_binding()
            binding.bind_input("x", device, number, kind, tuple(batch.shape), batch.data_ptr())
            binding.bind_output("logits", device, number, kind, tuple(logits.shape), logits.data_ptr())
            session.run_with_iobinding(binding)
            return logits

    return run


RUNTIMES: dict[str, Callable[[Forward, Plan], Forward]] = {"eager": eager, "compiled": compiled, "onnx": onnx}
"""How to build each runtime, from a model that may be kept and a plan."""


def _autocast(plan: Plan) -> AbstractContextManager[Any]:
    if plan.precision is None:
        return nullcontext()
    return torch.autocast(plan.x.device.type, dtype=PRECISIONS[plan.precision])


def _logits(output: Tensor, plan: Plan) -> Tensor:
    return output if plan.precision is None else output.float()
