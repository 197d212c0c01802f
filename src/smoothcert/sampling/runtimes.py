"""Choosing by measuring how to run a model over millions of noisy copies, among ways that agree with the model."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from smoothcert.classifiers import Consensus
from smoothcert.sampling.copies import Copies
from smoothcert.sampling.forwards import PRECISIONS, RUNTIMES, Plan, eager, shared_copy
from smoothcert.sampling.lanes import Cascade
from smoothcert.sampling.seeds import BLOCK
from smoothcert.sampling.tuning import (
    ADVANTAGE,
    TUNING_SECONDS,
    Course,
    Forward,
    Setup,
    intra_op_threads,
    race,
    remembered,
    tune,
)
from smoothcert.types import SmoothcertError, UsageError, unknown_name

LONG_SECONDS = 60.0
"""Sampling that eager execution finishes sooner than this is not worth the 10–30 s that compiling takes."""

_CONTIGUOUS, _CHANNELS_LAST = "contiguous", "channels-last"
_PROBE = 250  # copies on which runtimes must agree; fewer where they would take longer than:
_PROBE_SECONDS = 2.0
_CLOSE = {None: 1e-3, "fp16": 1e-2, "bf16": 1e-1}  # how far logits may differ, relative to the largest
_TIE = 0.1  # part of that within which the top two logits tie, so that rounding decides between them


@dataclass(frozen=True)
class Runtime:
    """A model made ready to run, with the weights it had at that moment.

    Attributes:
        name: ``"eager"``, ``"compiled"`` or ``"onnx"``.
        run: Maps a batch of 1 to ``batch_size`` inputs to logits, in inference mode, on the model's device. ``workers``
            threads may call it at once, and no call overwrites what another returned.
        batch_size: Inputs per batch; a multiple of the noise block unless the user fixed it.
        threads: PyTorch's intra-op threads it was tuned with; the caller sets them in every thread that calls ``run``:
            ``with intra_op_threads(runtime.threads): …``.
        workers: How many batches to keep in flight, each in a thread that also draws their noise; 1 for no threads.
        notes: What was measured (samples per second, with noise drawn) and what was rejected and why, as JSON values.
        cascade: What decides the inputs that ``run`` leaves undecided, for a ``Consensus``; ``run`` is then its head.
        elsewhere: What draws and classifies noisy copies in other processes (see ``sampling.spread``); then ``run`` is
            not called.
    """

    name: str
    run: Forward
    batch_size: int
    threads: int
    workers: int
    notes: Mapping[str, Any]
    cascade: Cascade | None = None
    elsewhere: Callable[[Sequence[Copies]], Tensor] | None = None

    def settings(self) -> dict[str, Any]:
        """Everything but the code, as plain values."""
        return {key: value for key, value in vars(self).items() if key not in ("run", "cascade", "elsewhere")}


def prepare(
    model: Forward,
    x: Tensor,
    *,
    runtime: str = "auto",
    batch_size: int | None = None,
    samples: int | None = None,
    precision: str | None = None,
    like: Mapping[str, Any] | None = None,
) -> Runtime:
    """Choose how to run a model, by measuring for a moment.

    The model is never changed, nor are PyTorch's random state and number of threads. When weights change, prepare
    again.

    Args:
        model: A module in evaluation mode, or any callable from a batch to logits (run eagerly, in one thread).
        x: One input, without a batch dimension, on the device and in the dtype to compute with.
        runtime: A name in ``RUNTIMES``, or ``"auto"`` for the fastest that agrees with eager execution; others than
            eager are then considered only if ``samples`` would take it more than ``LONG_SECONDS``.
        batch_size: Inputs per batch; chosen by measuring when not given.
        samples: How many inputs will be run, if known.
        precision: ``"bf16"`` or ``"fp16"`` for autocast on a CUDA device; logits are float32 all the same.
        like: What was chosen before (``Runtime.settings``), to be chosen again without measuring.

    Returns:
        The runtime.

    Raises:
        UsageError: For a runtime that is unknown or not installed, a precision without a CUDA device, or a model that
            does not take batches of any size.
        SmoothcertError: If the runtime asked for cannot run the model, or disagrees with eager execution.

    Example:
        >>> runtime = prepare(torch.nn.Linear(4, 2).eval(), torch.rand(4), samples=1000)
        >>> runtime.run(torch.rand(3, 4)).shape
        torch.Size([3, 2])
    """
    if isinstance(model, Consensus) and model.rest is not None:
        options = {"batch_size": batch_size, "samples": samples, "precision": precision}
        return _in_two_parts(model, x, runtime, like, options)
    if runtime not in RUNTIMES and runtime != "auto":
        raise unknown_name("runtime", runtime, ["auto", *RUNTIMES])
    if precision is not None and precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    if precision is not None and x.device.type != "cuda":
        raise UsageError(
            f"precision {precision!r} is for CUDA devices, but the model is on {x.device.type}; leave it out."
        )
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"batch_size must be at least 1, got {batch_size}.")
    with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
        plan = Plan(x, _num_classes(model, x), Setup(BLOCK, 1), False, precision)
        modules = _copies(model, x) if isinstance(model, nn.Module) else {}
        forms = {
            name: eager(module, replace(plan, channels_last=name == _CHANNELS_LAST)) for name, module in modules.items()
        }
        forms = forms or {_CONTIGUOUS: eager(model, plan)}
        kept = None if like is None else remembered(like, RUNTIMES)
        if kept is not None and kept[1].form in forms:
            runtime, tuned = kept
        else:
            tuned = tune(forms, x, batch_size=batch_size, samples=samples, parallel=bool(modules))
        plan = replace(plan, setup=tuned.setup, channels_last=tuned.form == _CHANNELS_LAST)
        built = {"eager": forms[tuned.form]}
        rejected: dict[str, str] = {}
        long = bool(modules) and samples is not None and samples / tuned.rate > LONG_SECONDS
        for name in [n for n in RUNTIMES if n != "eager" and (n == runtime or (runtime == "auto" and long))]:
            try:
                built[name] = _build(name, modules.get(tuned.form), plan)
                _check_agreement(name, built["eager"], built[name], plan, min(_PROBE, int(tuned.rate * _PROBE_SECONDS)))
            except SmoothcertError as error:
                if runtime == name:
                    raise
                built.pop(name, None)
                rejected[name] = str(error)
        rates = {"eager": tuned.rate}
        if len(built) > 1 and like is None:
            courses = {name: Course(run, x, plan.setup, 1 / tuned.rate) for name, run in built.items()}
            rates = race(courses, TUNING_SECONDS)
    if runtime != "auto":
        chosen = runtime
    else:
        chosen = max(rates, key=lambda name: rates[name] / (1.0 if name == "eager" else ADVANTAGE), default="eager")
    notes = {
        "memory_format": tuned.form,
        "precision": precision,
        "rates": {name: round(rate, 1) for name, rate in rates.items()},
        "tuning": {name: round(rate, 1) for name, rate in tuned.rates.items()},
        "rejected": rejected,
    }
    return Runtime(chosen, built[chosen], plan.setup.batch_size, plan.setup.threads, plan.setup.workers, notes)


def unprepared(model: Forward, batch_size: int) -> Runtime:
    """The model as it is, without measuring anything."""
    threads = torch.get_num_threads()
    if isinstance(model, Consensus) and model.rest is not None:
        cascade = Cascade(model.rest, model.split, model.join)
        return Runtime("eager", model.head, batch_size, threads, 1, {}, cascade)
    return Runtime("eager", model, batch_size, threads, 1, {})


def _in_two_parts(
    model: Consensus, x: Tensor, runtime: str, like: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> Runtime:
    """The head as it runs best, and the rest in the same way, or eagerly where it cannot."""
    assert model.rest is not None
    head = prepare(model.head, x, runtime=runtime, like=like, **options)
    kept = {"precision": options["precision"], "like": head.settings()}
    try:
        rest = prepare(model.rest, x, runtime=head.name, **kept)
    except SmoothcertError:
        if runtime == head.name:
            raise
        rest = prepare(model.rest, x, runtime="eager", **{**kept, "like": {**head.settings(), "name": "eager"}})
    return replace(head, cascade=Cascade(rest.run, model.split, model.join))


def _copies(module: nn.Module, x: Tensor) -> dict[str, nn.Module]:
    """The module in each memory format worth a try, independent of the user's; empty where it cannot be copied."""
    plain = shared_copy(module)
    if plain is None:
        return {}
    copies = {_CONTIGUOUS: plain}
    if x.ndim == 3 and any(weight.ndim == 4 for weight in module.parameters()):
        with suppress(Exception):  # such as weights that are computed from others
            copies[_CHANNELS_LAST] = copy.deepcopy(module).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return copies


def _build(name: str, module: nn.Module | None, plan: Plan) -> Forward:
    """Build a runtime without a word on the terminal; every failure is a SmoothcertError."""
    if module is None:
        raise UsageError(f"the {name} runtime needs a torch.nn.Module that can be copied; use runtime='eager'.")
    try:
        with _quiet():
            return RUNTIMES[name](module, plan)
    except SmoothcertError:
        raise
    except Exception as error:  # compilers and exporters raise whatever they like
        raise SmoothcertError(
            f"the {name} runtime cannot run this model ({_first_line(error)}); use runtime='eager'."
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings and no log messages while the context lasts."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _check_agreement(name: str, reference: Forward, candidate: Forward, plan: Plan, copies: int) -> None:
    """Refuse a runtime whose logits differ from eager ones by more than rounding on noisy copies of the input.

    Raises:
        SmoothcertError: If it does.
    """
    generator = torch.Generator(device=plan.x.device).manual_seed(0)
    noise = torch.randn((max(copies, BLOCK), *plan.x.shape), generator=generator, device=plan.x.device)
    scales = torch.linspace(0, 1, len(noise), device=plan.x.device).reshape(-1, *[1] * plan.x.ndim)
    batches = torch.split((plan.x + scales * noise).to(plan.x.dtype), plan.setup.batch_size)
    with torch.inference_mode(), intra_op_threads(plan.setup.threads):
        expected = torch.cat([reference(batch) for batch in batches]).double()
        try:
            given = torch.cat([candidate(batch) for batch in batches]).double()
        except Exception as error:
            raise SmoothcertError(f"the {name} runtime fails ({_first_line(error)}); use runtime='eager'.") from error
        valid = expected.isfinite().all(dim=1)
        if given.shape != expected.shape or not torch.equal(given.isfinite().all(dim=1), valid):
            raise SmoothcertError(
                f"the {name} runtime gives other valid logits than eager execution; use runtime='eager'."
            )
        expected, given = expected[valid], given[valid]
        close = _CLOSE[plan.precision] * (float(expected.abs().max()) if len(expected) else 0.0)
        apart = float((expected - given).abs().max()) if len(expected) else 0.0
        # How much eager execution prefers its own top class to the one given; 0 where they are the same.
        preference = expected.max(dim=1).values - expected.gather(1, given.argmax(dim=1, keepdim=True)).squeeze(1)
        flips = int((preference > _TIE * close).sum())
    if flips or apart > close:
        raise SmoothcertError(
            f"the {name} runtime disagrees with eager execution (another top class on {flips} of {len(expected)} noisy "
            f"copies, logits up to {apart:.2g} apart); use runtime='eager'."
        )


def _num_classes(model: Forward, x: Tensor) -> int:
    """The number of logits, from batches of two sizes.

    Raises:
        UsageError: If the model does not give a row of logits for each input of both.
    """
    classes = 0
    for count in (2, 3):
        batch = x.expand(count, *x.shape).contiguous()
        try:
            with torch.inference_mode():
                logits = model(batch)
            problem = "" if logits.ndim == 2 and len(logits) == count else f"gives shape {tuple(logits.shape)}"
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            problem = f"fails: {_first_line(error)}"
        if problem:
            raise UsageError(
                f"the model must take batches of any size, but for {count} inputs of shape {tuple(x.shape)} it "
                f"{problem}."
            )
        classes = logits.shape[1]
    return classes


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:") if lines else type(error).__name__
