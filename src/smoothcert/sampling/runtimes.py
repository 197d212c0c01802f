"""Choose the fastest runtime that agrees with plain PyTorch."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from smoothcert.classifiers import Consensus
from smoothcert.classifiers.agreement import Reference, compare, first_line
from smoothcert.classifiers.copying import Forward
from smoothcert.classifiers.modes import intra_op_threads
from smoothcert.classifiers.sealed import COPIES, Sealed
from smoothcert.noise import Gaussian, Noise
from smoothcert.progress import quiet
from smoothcert.sampling.batches import Cascade
from smoothcert.sampling.copies import Copies
from smoothcert.sampling.forwards import PADDED, PRECISIONS, RUNTIMES, Plan, eager
from smoothcert.sampling.seeds import BLOCK
from smoothcert.sampling.tuning import (
    MOST_ROWS,
    TOO_FEW,
    TUNING_SECONDS,
    Candidate,
    Layout,
    Layouts,
    Setup,
    benchmark,
    layouts_for,
    recorded,
    tune,
)
from smoothcert.types import SmoothcertError, UsageError, unknown_name

MEASURE_SECONDS = 0.5
"""Sampling that takes plain PyTorch less time than this is not worth the time to benchmark runtimes."""

LONG_SECONDS = 60.0
"""Sampling that takes eager execution less time than this is not worth the 10–30 s that compiling takes."""

ADVANTAGE = 1.05
"""How many times faster than eager execution another runtime must be."""

CLOSE: dict[str | None, float] = {None: 10.0, "fp16": 100.0, "bf16": 1000.0}
"""How many times the rounding of plain PyTorch a runtime may differ from it, by precision."""

_CONTIGUOUS, _CHANNELS_LAST = "contiguous", "channels-last"
_PROBE = 100  # noisy copies on which a runtime must agree with the model before it is used


@dataclass(frozen=True)
class Runtime:
    """A model that is ready to run, as it was when it was prepared.

    Attributes:
        name: ``"eager"``, ``"compiled"`` or ``"onnx"``.
        run: Maps a batch of 1 to ``batch_size`` inputs to logits, in inference mode, on the model's device. ``workers``
            threads may call it at the same time, and no call overwrites the output of another.
        batch_size: Inputs per batch; a multiple of the noise block unless the user fixed it.
        threads: PyTorch's intra-op threads to start with; the caller sets them in every thread that calls ``run``:
            ``with intra_op_threads(runtime.threads): …``.
        workers: How many batches to compute at the same time to start with, each in a thread that also draws their
            noise.
        notes: The measured samples per second, and why runtimes were rejected, as JSON values.
        cascade: Decides the inputs that ``run``, the head of a ``Consensus``, leaves undecided.
        elsewhere: Draws and classifies noisy copies in other processes (see ``evaluate.cluster``), instead of ``run``.
        layouts: Chooses threads and workers while it runs, if there is a choice.
    """

    name: str
    run: Forward
    batch_size: int
    threads: int
    workers: int
    notes: Mapping[str, Any]
    cascade: Cascade | None = None
    elsewhere: Callable[[Sequence[Copies]], Tensor] | None = None
    layouts: Layouts | None = None

    @property
    def least(self) -> int:
        """Inputs per batch below which a smaller batch saves no time."""
        return self.batch_size if self.name in PADDED else min(BLOCK, self.batch_size)

    def settings(self) -> dict[str, Any]:
        """Return everything but the code, as plain values."""
        left_out = ("run", "cascade", "elsewhere", "layouts")
        return {key: value for key, value in vars(self).items() if key not in left_out}


def prepare(
    model: Forward,
    x: Tensor,
    *,
    noise: Noise | None = None,
    runtime: str = "auto",
    batch_size: int | None = None,
    samples: int | None = None,
    precision: str | None = None,
    like: Mapping[str, Any] | None = None,
) -> Runtime:
    """Choose a runtime, batch size and threads for a model by benchmarking.

    The runtime uses a copy of the model as it is now. The model itself, PyTorch's random state and its number of
    threads do not change.

    Args:
        model: A sealed classifier, or a module or callable from a batch to logits, which is sealed first.
        x: One input, without a batch dimension, on the model's device.
        noise: The noise that the model will be run under; standard normal by default.
        runtime: A name in ``RUNTIMES``, or ``"auto"`` for the fastest that agrees with eager execution; other runtimes
            than eager are then considered only if ``samples`` would take it more than ``LONG_SECONDS``.
        batch_size: Inputs per batch; chosen by benchmarking by default.
        samples: How many inputs will be run, if known.
        precision: ``"bf16"`` or ``"fp16"`` for autocast on a CUDA device; logits are still float32.
        like: ``Runtime.settings()`` of an earlier choice, to repeat it without benchmarking.

    Raises:
        UsageError: For a runtime that is unknown or not installed, a precision without a CUDA device, or a model that
            is not a fixed function of one row.
        SmoothcertError: If the requested runtime cannot run the model, or disagrees with eager execution.

    Example:
        >>> runtime = prepare(torch.nn.Linear(4, 2), torch.rand(4), samples=1000)
        >>> runtime.run(torch.rand(3, 4)).shape
        torch.Size([3, 2])
    """
    check_options(runtime, precision, batch_size, x.device)
    sealed = model if isinstance(model, Sealed) else Sealed(model)
    noise = noise or Gaussian(1.0)
    known = sealed.known(x) or sealed.verify(check_copies(x, noise))
    consensus = sealed.model
    if not isinstance(consensus, Consensus) or consensus.rest is None:
        with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
            plan = Plan(x.to(sealed.dtype), known.num_classes, Setup(BLOCK, 1), False, precision)
            return _prepared(sealed, plan, check_copies(x, noise, _PROBE), runtime, batch_size, samples, like)
    head = prepare(
        sealed.part(consensus.head),
        x,
        noise=noise,
        runtime=runtime,
        batch_size=batch_size,
        samples=samples,
        precision=precision,
        like=like,
    )
    prepare_rest = partial(prepare, sealed.part(consensus.rest), x, noise=noise, precision=precision)
    try:
        rest = prepare_rest(runtime=head.name, like=head.settings())
    except SmoothcertError:
        if runtime == head.name:
            raise
        rest = prepare_rest(runtime="eager", like={**head.settings(), "name": "eager"})
    return replace(head, cascade=Cascade(rest.run, consensus.split, consensus.join))


def check_options(runtime: str, precision: str | None, batch_size: int | None, device: torch.device) -> None:
    """Refuse options that are invalid for every model.

    Raises:
        UsageError: If a name is unknown, a number out of range, or a precision is not for the device.
    """
    if runtime not in RUNTIMES and runtime != "auto":
        raise unknown_name("runtime", runtime, ["auto", *RUNTIMES])
    if precision is not None and precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    if precision is not None and device.type != "cuda":
        raise UsageError(
            f"precision {precision!r} is for CUDA devices, but the model is on {device.type}; leave it out."
        )
    if batch_size is not None and not 1 <= batch_size <= MOST_ROWS:
        raise UsageError(f"batch_size must be at least 1 and at most {MOST_ROWS:,}, got {batch_size}.")


def check_copies(x: Tensor, noise: Noise, count: int = COPIES) -> Tensor:
    """Draw noisy copies of an input to verify a model with; they are in no certificate."""
    copies = x.new_empty((count, *x.shape))
    return noise.sample(x, copies, torch.Generator(device=x.device).manual_seed(0))


def not_worth_measuring(sealed: Sealed, copies: Tensor) -> float:
    """Return the number of samples up to which runtimes are not worth benchmarking, by the time of a small batch.

    The first call of anything may be slow, so that the faster of two counts.
    """
    seconds = []
    with torch.inference_mode():
        for _ in range(2):
            batch = copies[:BLOCK].clone()
            begin = time.perf_counter()
            sealed.run(batch)
            if batch.device.type == "cuda":
                torch.cuda.synchronize(batch.device)
            seconds.append(time.perf_counter() - begin)
    return max(MEASURE_SECONDS * len(batch) / min(seconds), TOO_FEW)


def unprepared(model: Forward, batch_size: int, reference: Reference | None = None) -> Runtime:
    """Return the eager runtime of a model without benchmarking.

    Args:
        model: As for :func:`prepare`.
        batch_size: Inputs per batch.
        reference: Noisy copies on which the model must return the same logits in batches of that size.

    Raises:
        UsageError: If it does not.
    """
    sealed = model if isinstance(model, Sealed) else Sealed(model)
    if reference is not None:
        _require_same(sealed.run, reference, batch_size, sealed, 1.0)
    threads, consensus = torch.get_num_threads(), sealed.model
    if not isinstance(consensus, Consensus) or consensus.rest is None:
        return Runtime("eager", sealed.run, batch_size, threads, 1, {})
    head, rest = sealed.part(consensus.head), sealed.part(consensus.rest)
    cascade = Cascade(rest.run, consensus.split, consensus.join)
    return Runtime("eager", head.run, batch_size, threads, 1, {}, cascade)


def _prepared(
    sealed: Sealed,
    plan: Plan,
    copies: Tensor,
    runtime: str,
    batch_size: int | None,
    samples: int | None,
    like: Mapping[str, Any] | None,
) -> Runtime:
    with torch.inference_mode():
        reference = Reference(copies, torch.cat([sealed(part) for part in torch.split(copies, BLOCK)]).double())
    times = CLOSE[plan.precision]
    modules = {} if sealed.module is None else _memory_formats(sealed.module, plan.x)
    forms = {name: eager(each, replace(plan, channels_last=name == _CHANNELS_LAST)) for name, each in modules.items()}
    forms = forms or {_CONTIGUOUS: eager(sealed.run, plan)}
    if _CHANNELS_LAST in forms and _problem(forms[_CHANNELS_LAST], reference, BLOCK, sealed, times):
        del forms[_CHANNELS_LAST]
    layouts = layouts_for(plan.x, bool(modules))
    earlier = None if like is None else recorded(like, RUNTIMES)
    if earlier is not None and earlier[1].form in forms:
        runtime, tuned = earlier
    else:
        tuned = tune(forms, plan.x, layouts[0], batch_size=batch_size, samples=samples)
    plan = replace(plan, setup=tuned.setup, channels_last=tuned.form == _CHANNELS_LAST)
    size = plan.setup.batch_size
    built = {"eager": forms[tuned.form]}
    _require_same(built["eager"], reference, size, sealed, times)
    long = bool(modules) and samples is not None and samples / tuned.rate > LONG_SECONDS
    rejected: dict[str, str] = {}
    for name in RUNTIMES:
        if name == "eager" or not (name == runtime or (runtime == "auto" and long)):
            continue
        try:
            run = _build(name, modules.get(tuned.form), plan)
            if problem := _problem(run, reference, size, sealed, times):
                raise SmoothcertError(
                    f"the {name} runtime disagrees with eager execution ({problem}); use runtime='eager'."
                )
            built[name] = run
        except SmoothcertError as error:
            if runtime == name:
                raise
            rejected[name] = str(error)
    rates = {"eager": tuned.rate}
    if len(built) > 1 and like is None:
        candidates = {name: Candidate(run, plan.x, size, plan.setup.threads).seconds for name, run in built.items()}
        rates = {name: plan.setup.workers / found for name, found in benchmark(candidates, TUNING_SECONDS).items()}
    if runtime == "auto":
        runtime = max(rates, key=lambda name: rates[name] / (1.0 if name == "eager" else ADVANTAGE), default="eager")
    notes = {
        "memory_format": tuned.form,
        "precision": plan.precision,
        "rates": {name: round(rate, 1) for name, rate in rates.items()},
        "tuning": {name: round(rate, 1) for name, rate in tuned.rates.items()},
        "rejected": rejected,
    }
    layouts = _layouts(runtime, plan.setup.layout, layouts)
    chosen = Layouts(layouts) if len(layouts) > 1 else None
    return Runtime(runtime, built[runtime], size, plan.setup.threads, plan.setup.workers, notes, layouts=chosen)


def _layouts(runtime: str, first: Layout, layouts: Sequence[Layout]) -> list[Layout]:
    """Return the layouts that a runtime may use, the first one first; other runtimes than eager have fixed threads."""
    if all(layout.workers == 1 for layout in layouts):
        return [first]
    fixed = [Layout(first.threads, 1)]
    return list(dict.fromkeys([first, *(layouts if runtime == "eager" else fixed)]))


def _problem(run: Forward, reference: Reference, batch_size: int, sealed: Sealed, times: float) -> str:
    """Describe how logits in batches of a size disagree with a reference by more than rounding; empty if they agree.

    The copies of the reference are repeated to fill a batch. ``times`` the rounding of plain PyTorch is allowed.
    """
    rows = torch.arange(max(batch_size, len(reference.copies)), device=reference.copies.device) % len(reference.copies)
    try:
        with torch.inference_mode(), intra_op_threads(torch.get_num_threads()):
            parts = torch.split(reference.copies[rows], batch_size)
            given = torch.cat([run(part.clone()).clone() for part in parts])
    except Exception as error:  # compilers and models may raise anything
        return first_line(error)
    expected = reference.logits[rows]
    found = compare(given, expected, times * sealed.tolerance(expected))
    return str(found) if found.rows > max(1, found.of // 40) else ""


def _require_same(run: Forward, reference: Reference, batch_size: int, sealed: Sealed, times: float) -> None:
    if problem := _problem(run, reference, batch_size, sealed, times):
        raise UsageError(
            f"the model does not return the same logits in batches of {batch_size} as in small ones ({problem}); "
            "remove what makes a row depend on its batch, or give a batch_size that the model can take."
        )


def _memory_formats(module: nn.Module, x: Tensor) -> dict[str, nn.Module]:
    """Return the module in each memory format that may be fast."""
    copies = {_CONTIGUOUS: module}
    if x.ndim == 3 and any(weight.ndim == 4 for weight in module.parameters()):
        with suppress(Exception):  # such as weights that are computed from others
            copies[_CHANNELS_LAST] = copy.deepcopy(module).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return copies


def _build(name: str, module: nn.Module | None, plan: Plan) -> Forward:
    """Build a runtime without output on the terminal; every failure is a SmoothcertError."""
    if module is None:
        raise UsageError(f"the {name} runtime needs a torch.nn.Module that can be copied; use runtime='eager'.")
    try:
        with quiet():
            return RUNTIMES[name](module, plan)
    except SmoothcertError:
        raise
    except Exception as error:  # compilers and exporters may raise anything
        raise SmoothcertError(
            f"the {name} runtime cannot run this model ({first_line(error)}); use runtime='eager'."
        ) from error
