"""Checks of the runtime: how to run the model, whether the runtimes agree, and how long the planned run takes."""

from __future__ import annotations

import copy

from torch import Tensor

from smoothcert.certify import Smoothed
from smoothcert.doctor.findings import Clock, Finding, info, refusal, warning
from smoothcert.sampling.runtimes import LONG_SECONDS
from smoothcert.types import SmoothcertError

COMPILING_SECONDS = 30.0
"""The time needed to try runtimes that must be compiled."""

_PREPARING_ROWS = 1_000  # about the rows classified to choose a runtime
_LONG_RUN = 24 * 3600.0


def check_runtime(
    smoothed: Smoothed, x: Tensor, samples: float, rate: float, clock: Clock
) -> tuple[float, list[Finding]]:
    """Measure the runtimes, and whether they agree with plain PyTorch, which has ``rate`` samples per second.

    Returns the samples per second of the chosen runtime, and the findings.
    """
    if rate * clock.left < _PREPARING_ROWS:
        detail = "Runtimes were not compared, because the model is slow."
        return rate, [info("runtime", f"{detail} Samples per second in plain PyTorch: {rate:,.0f}.")]
    tried = copy.copy(smoothed)
    untried = tried.runtime == "auto" and samples / rate > LONG_SECONDS and clock.left < COMPILING_SECONDS
    if untried:
        tried.runtime = "eager"
    try:
        runtime = tried.prepare(x, samples=round(samples))
    except SmoothcertError as error:
        return rate, [refusal("runtime", error)]
    rates = runtime.notes.get("rates", {}) or {runtime.name: rate}
    speeds = ", ".join(f"{name} {each:,.0f}" for name, each in rates.items())
    detail = f"Samples per second: {speeds}; {runtime.name} will be used, with batches of {runtime.batch_size} in "
    detail += f"{runtime.workers * runtime.threads} thread(s)."
    found = [info("runtime", detail + " They agree with plain PyTorch." * (len(rates) > 1))]
    for name, reason in runtime.notes.get("rejected", {}).items():
        detail = f"{name} is not used: {reason.partition('; ')[0]}."
        if "disagrees" in reason:
            found.append(warning("runtimes", detail, "Leave --runtime at auto or eager."))
        else:
            install = f'It may be faster: pip install "smoothcert[{name}]".'
            found.append(info("runtimes", detail, install if "not installed" in reason else ""))
    if untried:
        detail = "Other runtimes than eager were not tried, because compiling them takes too long."
        advice = f"Give more time, such as --seconds {clock.seconds + 2 * COMPILING_SECONDS:.0f}, to compare them."
        found.append(info("runtimes", detail, advice))
    return rates.get(runtime.name, rate), found


def check_time(inputs: int, samples: float, rate: float) -> Finding:
    """Estimate the time of the planned run from its inputs, samples per input and samples per second."""
    seconds = inputs * samples / rate
    detail = (
        f"The planned run takes about {duration(seconds)} here: {inputs:,} inputs, {samples:,.0f} samples each, "
        f"{rate:,.0f} per second."
    )
    if seconds < _LONG_RUN:
        return info("time", detail)
    return warning(
        "time",
        detail,
        "Certify every N-th input (--every N), decide a target radius early (--procedure anytime --radius R), or share "
        "the work (--shard, --ray).",
    )


def duration(seconds: float) -> str:
    """Format a time.

    Example:
        >>> duration(45), duration(600), duration(8_000), duration(400_000)
        ('45 s', '10 min', '2.2 h', '4.6 days')
    """
    for size, unit in ((86_400, "days"), (3_600, "h")):
        if seconds >= 2 * size or (seconds >= size and unit == "h"):
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{max(seconds, 1):.0f} s"
