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
from smoothcert.classifiers.agreement import Reference, compare, first_line
from smoothcert.classifiers.sealed import COPIES, Sealed
from smoothcert.noise import Gaussian, Noise
from smoothcert.sampling.copies import Copies
from smoothcert.sampling.forwards import PRECISIONS, RUNTIMES, Plan, eager
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
_PROBE = 100  # copies on which ways to run a model must agree before they are taken

CLOSE: dict[str | None, float] = {None: 10.0, "fp16": 100.0, "bf16": 1000.0}
"""How many times the rounding of plain PyTorch another way to run a model may differ from it, by precision."""


MOST_ROWS = 1_000_000
"""The largest batch size."""


@dataclass(frozen=True)
class Runtime:
    """A model made ready to run, as it was at that moment.

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
    noise: Noise | None = None,
    runtime: str = "auto",
    batch_size: int | None = None,
    samples: int | None = None,
    precision: str | None = None,
    like: Mapping[str, Any] | None = None,
) -> Runtime:
    """Choose how to run a model, by measuring for a moment.

    The model is never changed, nor are PyTorch's random state and number of threads. What is returned runs a copy of
    the model as it is now.

    Args:
        model: A sealed classifier, or a module or callable from a batch to logits, which is sealed first.
        x: One input, without a batch dimension, on the model's device.
        noise: The noise that the model will be asked under; standard normal by default.
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
            is not a fixed function of one row.
        SmoothcertError: If the runtime asked for cannot run the model, or disagrees with eager execution.

    Example:
        >>> runtime = prepare(torch.nn.Linear(4, 2), torch.rand(4), samples=1000)
        >>> runtime.run(torch.rand(3, 4)).shape
        torch.Size([3, 2])
    """
    check_options(runtime, precision, batch_size, x.device)
    sealed = model if isinstance(model, Sealed) else Sealed(model)
    noise = noise or Gaussian(1.0)
    if sealed.known(x) is None:
        sealed.verify(check_copies(x, noise))
    if isinstance(sealed.model, Consensus) and sealed.model.rest is not None:
        options = {"noise": noise, "batch_size": batch_size, "samples": samples, "precision": precision}
        return _in_two_parts(sealed, sealed.model, x, runtime, like, options)
    return _prepared(sealed, x, noise, runtime, batch_size, samples, precision, like)


def check_options(runtime: str, precision: str | None, batch_size: int | None, device: torch.device) -> None:
    """Refuse options that no model can be run with.

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
    """Noisy copies of an input to check a model with; no certificate rests on them."""
    copies = x.new_empty((count, *x.shape))
    return noise.sample(x, copies, torch.Generator(device=x.device).manual_seed(0))


def unprepared(model: Forward, batch_size: int, reference: Reference | None = None) -> Runtime:
    """The model as it is, without measuring anything.

    Args:
        model: As for :func:`prepare`.
        batch_size: Inputs per batch.
        reference: Noisy copies on which it must agree with itself in batches of that size.

    Raises:
        UsageError: If it does not.
    """
    threads = torch.get_num_threads()
    sealed = model if isinstance(model, Sealed) else Sealed(model)
    if reference is not None and (problem := _problem(sealed.run, reference, batch_size, sealed, 1.0)):
        raise _batch_dependent(batch_size, problem)
    if isinstance(sealed.model, Consensus) and sealed.model.rest is not None:
        consensus = sealed.model
        head, rest = sealed.part(consensus.head), sealed.part(sealed.model.rest)
        return Runtime(
            "eager", head.run, batch_size, threads, 1, {}, Cascade(rest.run, consensus.split, consensus.join)
        )
    return Runtime("eager", sealed.run, batch_size, threads, 1, {})


def _prepared(
    sealed: Sealed,
    x: Tensor,
    noise: Noise,
    runtime: str,
    batch_size: int | None,
    samples: int | None,
    precision: str | None,
    like: Mapping[str, Any] | None,
) -> Runtime:
    """The fastest way to run a classifier, or the one asked for."""
    with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
        classes = sealed.run(check_copies(x, noise, 2)).shape[1]
        plan = Plan(x.to(sealed.dtype), classes, Setup(BLOCK, 1), False, precision)
        module = sealed.module
        modules = {} if module is None else _copies(module, x)
        forms = {
            name: eager(module, replace(plan, channels_last=name == _CHANNELS_LAST)) for name, module in modules.items()
        }
        forms = forms or {_CONTIGUOUS: eager(sealed.run, plan)}
        reference = _reference(sealed, check_copies(x, noise, _PROBE))
        times = CLOSE[precision]
        for name in [n for n in forms if n != _CONTIGUOUS and _problem(forms[n], reference, BLOCK, sealed, times)]:
            del forms[name]
        kept = None if like is None else remembered(like, RUNTIMES)
        if kept is not None and kept[1].form in forms:
            runtime, tuned = kept
        else:
            tuned = tune(forms, plan.x, batch_size=batch_size, samples=samples, parallel=bool(modules))
        plan = replace(plan, setup=tuned.setup, channels_last=tuned.form == _CHANNELS_LAST)
        built = {"eager": forms[tuned.form]}
        size = plan.setup.batch_size
        if problem := _problem(built["eager"], reference, size, sealed, times):
            raise _batch_dependent(size, problem)
        rejected: dict[str, str] = {}
        long = bool(modules) and samples is not None and samples / tuned.rate > LONG_SECONDS
        for name in [n for n in RUNTIMES if n != "eager" and (n == runtime or (runtime == "auto" and long))]:
            try:
                built[name] = _build(name, modules.get(tuned.form), plan)
                if problem := _problem(built[name], reference, size, sealed, times):
                    raise SmoothcertError(
                        f"the {name} runtime disagrees with eager execution ({problem}); use runtime='eager'."
                    )
            except SmoothcertError as error:
                if runtime == name:
                    raise
                built.pop(name, None)
                rejected[name] = str(error)
        rates = {"eager": tuned.rate}
        if len(built) > 1 and like is None:
            courses = {name: Course(run, plan.x, plan.setup, 1 / tuned.rate) for name, run in built.items()}
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


def _in_two_parts(
    sealed: Sealed,
    model: Consensus,
    x: Tensor,
    runtime: str,
    like: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> Runtime:
    """The head as it runs best, and the rest in the same way, or eagerly where it cannot."""
    assert model.rest is not None
    first, others = sealed.part(model.head), sealed.part(model.rest)
    head = prepare(first, x, runtime=runtime, like=like, **options)
    kept = {"noise": options["noise"], "precision": options["precision"], "like": head.settings()}
    try:
        rest = prepare(others, x, runtime=head.name, **kept)
    except SmoothcertError:
        if runtime == head.name:
            raise
        rest = prepare(others, x, runtime="eager", **{**kept, "like": {**head.settings(), "name": "eager"}})
    return replace(head, cascade=Cascade(rest.run, model.split, model.join))


def _reference(sealed: Sealed, copies: Tensor) -> Reference:
    with torch.inference_mode():
        return Reference(copies, torch.cat([sealed(part) for part in torch.split(copies, BLOCK)]).double())


def _problem(run: Forward, reference: Reference, batch_size: int, sealed: Sealed, times: float) -> str:
    """In what a way to run a classifier disagrees with it, in batches of a size; empty where it does not.

    Args:
        run: The way.
        reference: Noisy copies and their logits.
        batch_size: The size of the batches; the copies are repeated to fill one.
        sealed: The classifier.
        times: How many times the rounding of plain PyTorch is allowed.
    """
    rows = torch.arange(max(batch_size, len(reference.copies)), device=reference.copies.device) % len(reference.copies)
    try:
        with torch.inference_mode(), intra_op_threads(torch.get_num_threads()):  # which the model may change
            parts = torch.split(reference.copies[rows], batch_size)
            given = torch.cat([run(part.clone()).clone() for part in parts])
    except Exception as error:  # whatever compilers and models raise
        return first_line(error)
    expected = reference.logits[rows]
    found = compare(given, expected, times * sealed.tolerance(expected))
    return str(found) if found.rows > max(1, found.of // 40) else ""


def _batch_dependent(batch_size: int, problem: str) -> UsageError:
    return UsageError(
        f"the model does not give the same logits in batches of {batch_size} as in small ones ({problem}); remove what "
        "makes a row depend on its batch, or give a batch_size that the model can take."
    )


def _copies(module: nn.Module, x: Tensor) -> dict[str, nn.Module]:
    """The module in each memory format worth a try."""
    copies = {_CONTIGUOUS: module}
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
            f"the {name} runtime cannot run this model ({first_line(error)}); use runtime='eager'."
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
