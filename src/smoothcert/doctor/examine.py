"""The examination: all checks, within a time budget."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np
from torch import Tensor

from smoothcert.certify import Cohen, Procedure, Smoothed
from smoothcert.certify.plan import expected_samples, plan
from smoothcert.certify.runner import default_batch_size
from smoothcert.classifiers.sealed import Sealed
from smoothcert.data.inputs import Indexable
from smoothcert.doctor.cost import check_runtime, check_time
from smoothcert.doctor.findings import Clock, Finding, Level, info, refusal
from smoothcert.doctor.inputs import check_labels, check_values, draw_sample
from smoothcert.doctor.network import check_network, check_normalization, normalizations
from smoothcert.doctor.noisy import (
    COPIES,
    check_accuracy,
    check_forecast,
    check_noisy_accuracy,
    check_training,
    try_votes,
)
from smoothcert.doctor.scaling import check_scaling, scalings, top_classes
from smoothcert.noise import Noise
from smoothcert.store.selection import select
from smoothcert.types import SmoothcertError, UsageError, radius_text

_INPUTS = 200
_SCREENING, _TESTING, _VOTES = 0.2, 0.1, 0.4  # shares of the time that is left


def examine(
    smoothed: Smoothed,
    dataset: Indexable,
    procedure: Procedure | None = None,
    *,
    every: int = 1,
    start: int = 0,
    stop: int | None = None,
    trained: Noise | None = None,
    seconds: float = 60.0,
    progress: Callable[[str], None] | None = None,
) -> list[Finding]:
    """Find what would invalidate certificates or waste a long run, before it starts.

    The arguments up to ``stop`` are those of the planned run, with ``Cohen()`` as the default procedure.

    Args:
        trained: The noise of the training, if it is known.
        seconds: The time budget. Slow models are examined on fewer inputs; a check that has begun is not interrupted.
        progress: Called with the name of each step when it begins.

    Returns:
        The findings, in the order of the checks. Nothing above ``Level.INFO`` means that no problem was found.

    Raises:
        UsageError: If no input is selected, or the inputs are not tensors.

    Example:
        >>> import torch
        >>> from smoothcert import Gaussian
        >>> data = [(torch.full((1, 2, 2), i / 20), 0) for i in range(20)]
        >>> untrained = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
        >>> found = examine(Smoothed(untrained, Gaussian(0.25)), data, Cohen(n=1000), seconds=5)
        >>> [finding.title for finding in found if finding.level is Level.ERROR]
        ['accuracy']
    """
    if smoothed.experts:
        raise UsageError("a router cannot be examined as one model; examine its selector and its experts.")
    procedure = procedure or Cohen()
    indices = select(len(dataset), every=every, start=start, stop=stop)
    clock, begin = Clock(seconds), progress or (lambda step: None)
    begin("inputs")
    sample, found = draw_sample(dataset, indices, _INPUTS, clock)
    found.append(check_values(sample, smoothed.input_range, bool(normalizations(smoothed.model))))
    begin("network")
    found += check_network(smoothed.model)
    if not (sample.x.is_floating_point() and bool(sample.x.isfinite().all())):
        return found
    begin("classifier")
    free = copy.copy(smoothed)
    free.input_range = None  # already checked, and the other checks work outside of it too
    try:
        x = free.check(sample.x[0])
    except SmoothcertError as error:
        return [*found, *check_labels(sample, smoothed.num_classes), refusal("classifier", error)]
    found += check_labels(sample, free.num_classes)
    detail = "The model is a fixed function of each row, as far as noisy copies show: they get the same logits twice, "
    found.append(info("classifier", detail + "in another order, and in batches of other sizes."))
    found += check_normalization(free.sealed(), sample)
    found.append(check_training(smoothed.noise, trained))
    dimension = x.numel()
    try:
        free.check(sample.x[0], procedure)
        with suppress(UsageError):  # not every procedure can be planned
            reach = plan(procedure, smoothed.noise, dimension=dimension)
            largest = radius_text(reach.largest_radius, 4)
            found.append(info("reach", f"The largest {reach.norm.value} radius that can be proved is {largest}."))
    except SmoothcertError as error:
        found.append(refusal("procedure", error))
    begin("accuracy and scaling")
    sealed = free.sealed()
    assert free.num_classes is not None
    rows = clock.left / _row_seconds(sealed, sample.x[:8])  # that fit into the time left
    most = _INPUTS // 2
    screened = int(np.clip(_SCREENING * rows / 2 / len(scalings(sample.x)), 4, most))
    examined = sample.first(screened + int(np.clip(_TESTING * rows / 4, 10, most)))
    right = top_classes(sealed, examined.x) == examined.y
    found.append(check_accuracy(right, examined, free.num_classes))
    if len(examined) > screened:
        found.append(check_scaling(sealed, examined, smoothed.noise, screened))
    begin("votes under noise")
    copies = next((copies for copies in (COPIES, COPIES // 2) if _VOTES * rows >= 20 * copies), COPIES // 4)
    voting = sample.first(int(np.clip(_VOTES * rows / copies, 3, most)))
    trial = try_votes(sealed, voting, smoothed.noise, copies, smoothed.batch_size or default_batch_size(x))
    if not any(finding.level is Level.ERROR and finding.title in ("accuracy", "scaling") for finding in found):
        found += check_noisy_accuracy(trial, float(right.double().mean()), smoothed.noise)
        found += check_forecast(trial, procedure, smoothed.noise, dimension)
    begin("runtimes")
    try:
        each = expected_samples(procedure, smoothed.noise, trial.probabilities(), dimension=dimension)
    except UsageError:  # the procedure cannot be planned
        each = float(procedure.expected_samples)
    rate, more = check_runtime(free, x, len(indices) * each, trial.rate, clock)
    return [*found, *more, check_time(len(indices), each, rate)]


def _row_seconds(sealed: Sealed, rows: Tensor) -> float:
    """Measure the time per row with the second of two small batches."""
    top_classes(sealed, rows)
    begin = time.perf_counter()
    top_classes(sealed, rows)
    return (time.perf_counter() - begin) / len(rows)
