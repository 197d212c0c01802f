"""What a run would have proved with fewer samples or at another α, from its stored votes and without new ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from smoothcert.noise import Gaussian, noise_from_config
from smoothcert.noise.base import shortened
from smoothcert.report.metadata import Metadata, read_metadata
from smoothcert.report.metrics import Outcomes
from smoothcert.report.origins import origin_of
from smoothcert.stats.decisions import certified_class, guess_and_bound, predicted_class
from smoothcert.store import Run
from smoothcert.types import ABSTAIN, Guarantee, Norm, RunError, UsageError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def recompute(run: Run, *, n: int | None = None, alpha: float | None = None, name: str | None = None) -> Outcomes:
    """The outcomes that certifying with ``n`` samples at ``alpha`` would have had: the same, not merely similar ones.

    The first samples of a run are the samples of a shorter one with the same seed, and their votes are kept at every
    power of ten. Class guess, bound and radius are those of ``Cohen``. The bound is valid only if ``n`` and ``alpha``
    were chosen before looking at the results: the best of k stored n makes up to k times as many errors as ``alpha``
    says. The outcomes are marked as chosen afterwards, and tables say so.

    Args:
        run: A run with a fixed number of samples (procedure ``cohen``), also with a noise scale for every input.
        n: The number of estimation samples: the run's own, or a power of ten below it; the run's own by default.
        alpha: The probability of a wrong statement; the run's own by default.
        name: The name of the outcomes; the run's by default.

    Returns:
        The outcomes.

    Raises:
        UsageError: If alpha is no probability, n is not stored, or the run is not of a kind that can be recomputed.
        RunError: If it has no rows yet, or a row is damaged.
    """
    if alpha is not None and not 0 < alpha < 1:
        raise UsageError(f"alpha must lie strictly between 0 and 1, got {alpha!r}.")
    _refuse_other_kinds(run)
    table = run.table()
    if len(table) == 0:
        raise RunError(f"{run.path} holds no rows yet.")
    procedure = _complete(run)
    noise = noise_from_config(run.settings["noise"])
    norm = noise.resolve_norm(procedure.get("norm"))
    if norm is Norm.LINF:
        raise UsageError(
            f"{run.path} holds ℓ∞ radii, which depend on the size of an input that a run does not keep; certify anew "
            "with other --at-n or --at-alpha."
        )
    samples = procedure["n"] if n is None else n
    level = procedure["alpha"] if alpha is None else alpha
    counts = _votes(run, table, samples)
    selection = _matrix(run, table, "selection votes", table["selection"].to_pylist(), procedure["n0"])
    guess, bound = guess_and_bound(selection, counts, samples, level)
    if "sigma" in run.config:
        radius = np.array([float(Gaussian(s).radius(p, norm)) for s, p in zip(_sigmas(run, table), bound, strict=True)])
    else:
        radius = noise.radius(bound, norm)
    radius = shortened(radius, offsets(table))
    predict = certified_class(guess, bound)
    label = table["label"].to_numpy()
    return Outcomes(
        name or run.name,
        table["index"].to_numpy(),
        label,
        predict,
        np.where(predict == ABSTAIN, 0.0, radius),
        norm,
        origin_of(run, n=samples, alpha=level),
        None if "sigma" in run.config else natural_count(counts, label, level),
        np.full(len(label), level),
        replace(_metadata(run, table), chosen=_chosen(procedure, n, alpha)),
    )


def _metadata(run: Run, table: pa.Table) -> Metadata:
    try:
        return read_metadata(table, seed=run.settings.get("seed"))
    except UsageError as error:
        raise RunError(f"{run.path} is damaged: {error}") from error


def _chosen(procedure: Mapping[str, Any], n: int | None, alpha: float | None) -> tuple[str, ...]:
    """What was chosen after the votes were drawn; the settings of the run itself were not."""
    words = [f"n = {n:,}"] if n is not None and n != procedure["n"] else []
    return (*words, *([f"alpha = {alpha:g}"] if alpha is not None and alpha != procedure["alpha"] else []))


def natural_count(counts: IntArray, label: IntArray, alpha: float) -> int:
    """The number of inputs that PREDICT answers rightly on these votes.

    Example:
        >>> natural_count(np.array([[990, 10], [505, 495]]), np.array([0, 0]), 0.001)
        1
    """
    return int((predicted_class(counts, alpha)[0] == label).sum())


def offsets(table: pa.Table) -> FloatArray:
    """The offset of every row; 0 where none is stored, as earlier versions had no noise on a grid."""
    if "offset" not in table.column_names:
        return np.zeros(len(table))
    return np.asarray(table["offset"].fill_null(0.0).to_numpy())


def _complete(run: Run) -> Mapping[str, Any]:
    """The settings of the procedure, once all are there."""
    procedure: Mapping[str, Any] = run.settings["procedure"]
    missing = [name for name in ("n", "n0", "alpha") if procedure.get(name) is None]
    missing += [] if "noise" in run.settings else ["noise"]
    if missing:
        raise RunError(f"{run.path} does not tell its {missing[0]}; restore its run.json, or certify it anew.")
    return procedure


def _refuse_other_kinds(run: Run) -> None:
    config = run.settings
    if config["kind"] != "certification":
        raise UsageError(f"{run.path} is an {config['kind']}, which holds no votes; leave out --at-n and --at-alpha.")
    if "experts" in config:
        raise UsageError(
            f"{run.path} was answered by a router, whose choice cannot be recomputed; leave out --at-n and --at-alpha."
        )
    procedure = config.get("procedure", {}).get("name")
    if procedure != "cohen":
        raise UsageError(
            f"{run.path} was certified by {procedure}, whose samples depend on what they show; only runs with a fixed "
            "n (cohen) can be recomputed, so leave out --at-n and --at-alpha."
        )
    if config.get("guarantee") == Guarantee.MEMORY.value:
        raise UsageError(
            f"{run.path} was certified with a memory, whose balls depend on one another; leave out --at-n and "
            "--at-alpha."
        )


def _votes(run: Run, table: pa.Table, n: int) -> IntArray:
    """The votes of the first n samples, a row per input."""
    if n == run.config["procedure"]["n"]:
        return _matrix(run, table, "votes", table["counts"].to_pylist(), n)
    stored = [{entry["n"]: entry["counts"] for entry in entries or ()} for entries in table["checkpoints"].to_pylist()]
    if n not in stored[0]:
        known = " or ".join(f"{known:,}" for known in (*sorted(stored[0]), run.config["procedure"]["n"]))
        raise UsageError(f"{run.path} keeps no votes at n = {n:,}; give --at-n {known}.")
    return _matrix(run, table, f"votes at n = {n:,}", [entries.get(n) for entries in stored], n)


def _matrix(run: Run, table: pa.Table, what: str, rows: list[Any], most: int) -> IntArray:
    """Votes as a matrix, a row per input; refuses a row that cannot be ``most`` votes for the classes."""
    classes = run.config.get("num_classes") or len(rows[0] or ())
    for index, row in zip(table["index"].to_pylist(), rows, strict=True):
        counts = [-1 if count is None else count for count in row or ()]
        if len(counts) != classes or min(counts) < 0 or sum(counts) > most:
            raise RunError(
                f"{run.path} is damaged: the {what} of input {index} are not {most:,} votes for {classes} classes; "
                "delete the part of the run that holds it, and run the same certify command again."
            )
    return np.array(rows, dtype=np.int64)


def _sigmas(run: Run, table: pa.Table) -> list[float]:
    sigmas: list[float | None] = table["sigma"].to_pylist()
    for index, sigma in zip(table["index"].to_pylist(), sigmas, strict=True):
        if sigma is None:
            raise RunError(f"{run.path} is damaged: input {index} has no sigma of its own.")
    return [float(sigma) for sigma in sigmas if sigma is not None]
