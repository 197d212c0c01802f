"""The outcomes of results: as stored, or as fewer samples or another α would have proved from the stored votes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from smoothcert.noise import Gaussian, Noise
from smoothcert.stats.decisions import certified_class, guess_and_bounds, prefers_runner_up
from smoothcert.store import Outcomes, Result, Run, find_results
from smoothcert.store.outcomes import read_metadata
from smoothcert.store.result import natural_count, no_rows, vote_matrix
from smoothcert.types import BOUNDS, PLAIN, RUNNER_UP, Guarantee, Norm, RunError, StrPath, UsageError, unknown_name

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def load_outcomes(
    paths: Sequence[StrPath], *, n: int | None = None, alpha: float | None = None, bound: str | None = None
) -> list[Outcomes]:
    """Read the outcomes of runs and logs; see :func:`~smoothcert.store.find_results` and :func:`recompute`."""
    return [outcomes_of(result, n=n, alpha=alpha, bound=bound) for result in find_results(paths)]


def outcomes_of(
    source: Result | Run, *, n: int | None = None, alpha: float | None = None, bound: str | None = None
) -> Outcomes:
    """Return the outcomes of a result or a run, recomputed if ``n``, ``alpha`` or ``bound`` is given."""
    if n is not None or alpha is not None or bound is not None:
        return recompute(source, n=n, alpha=alpha, bound=bound)
    return (Result(source.name, source) if isinstance(source, Run) else source).outcomes


def recompute(
    source: Result | Run, *, n: int | None = None, alpha: float | None = None, bound: str | None = None
) -> Outcomes:
    """Compute the outcomes that certifying with ``n`` samples at ``alpha`` and with this bound would have had.

    The first samples of a run are the samples of a shorter one with the same seed, and their votes are kept at every
    power of ten. The result is valid only if the arguments were chosen before looking at the results: the best of k
    choices makes up to k times as many errors as ``alpha`` allows. Tables print that warning.

    Args:
        source: A run with a fixed number of samples, also with a noise scale for every input.
        n: The number of estimation samples: that of the run, or a power of ten below it.
        alpha: The probability of a wrong statement; by default that of the run.
        bound: ``plain`` or ``runner-up``; by default that of the run. The stored selection votes decide which inputs
            use the runner-up bound, as in certification.
    """
    result = Result(source.name, source) if isinstance(source, Run) else source
    if alpha is not None and not 0 < alpha < 1:
        raise UsageError(f"alpha must lie strictly between 0 and 1, got {alpha!r}.")
    _refuse_other_kinds(result)
    table = result.table()
    if len(table) == 0:
        raise no_rows(result.path)
    settings, procedure = result.settings, result.settings.procedure
    noise, most, n0, level = settings.build_noise(), procedure.n, procedure.n0, alpha or procedure.alpha
    if noise is None or most is None or n0 is None or procedure.alpha is None or level is None:
        known = {"n": most, "n0": n0, "alpha": procedure.alpha, "noise": noise}
        missing = next(name for name, value in known.items() if value is None)
        raise RunError(f"{result.path} does not record its {missing}; restore its run.json, or certify it again.")
    norm, samples = noise.resolve_norm(procedure.norm), most if n is None else n
    dimension, offset = dimension_for(result, noise, norm), offsets(table)
    counts = _estimation_votes(result, table, samples, most)
    selection = _votes(result, "selection", table["selection"], n0)
    recorded = procedure.bound or PLAIN
    runner_up = runner_up_inputs(bound or recorded, noise, selection, n0, samples, level)
    guess, p_lower, p_upper = guess_and_bounds(selection, counts, samples, level, runner_up)
    if settings.sigma is None:
        radius = noise.radius(p_lower, norm, dimension, offset, p_upper)
    elif result.has("sigma"):
        rows = zip(result.array("sigma").tolist(), p_lower, offset, p_upper, strict=True)
        radius = np.array([float(Gaussian(sigma).radius(p, norm, dimension, *more)) for sigma, p, *more in rows])
    else:
        raise RunError(f"{result.path} is damaged: an input has no sigma.")
    label = table["label"].to_numpy()
    chosen = [f"n = {samples:,}"] if samples != most else []
    chosen += [f"alpha = {level:g}"] if level != procedure.alpha else []
    chosen += [f"the {bound} bound"] if bound not in (None, recorded) else []
    return Outcomes(
        result.name,
        table["index"].to_numpy(),
        label,
        certified_class(guess, p_lower, p_upper),
        radius,
        norm,
        result.origin(n=samples, alpha=level, bound=bound),
        natural_count(counts, label, level) if settings.sigma is None else None,
        np.full(len(label), level),
        replace(read_metadata(table, seed=settings.seed), chosen=tuple(chosen)),
    )


def runner_up_inputs(bound: str, noise: Noise, selection: IntArray, n0: int, n: int, alpha: float) -> NDArray[np.bool_]:
    """Return which inputs use the runner-up bound, by their selection votes; none if the bound is plain."""
    if bound not in BOUNDS:
        raise unknown_name("bound", bound, BOUNDS)
    if bound != RUNNER_UP:
        return np.zeros(len(selection), dtype=bool)
    noise.require_two_sided()
    return prefers_runner_up(selection, n0, n, alpha)


def dimension_for(result: Result, noise: Noise, norm: Norm) -> int | None:
    """Return the size of an input where the radius depends on it."""
    dimension = None if result.run is None else result.run.dimension
    if norm is Norm.LINF and dimension is None:
        raise UsageError(
            f"{result.path} holds ℓ∞ radii, which depend on the size of an input that earlier versions did not store; "
            f"certify it again, or in {noise.norms[0].value}."
        )
    return dimension if norm is Norm.LINF else None


def offsets(table: pa.Table) -> FloatArray:
    """Return the offset of every row; 0 in runs of earlier versions, which had no noise on a grid."""
    known = "offset" in table.column_names
    return np.asarray(table["offset"].fill_null(0.0).to_numpy()) if known else np.zeros(len(table))


def _refuse_other_kinds(result: Result) -> None:
    settings, advice = result.settings, "leave out --at-n, --at-alpha and --bound"
    if result.run is None:
        raise UsageError(f"{result.path} is a log, which keeps no votes to recompute from; {advice}.")
    if not settings.certified:
        raise UsageError(f"{result.path} is an {settings.kind}, which holds no votes; {advice}.")
    if settings.experts is not None:
        raise UsageError(f"{result.path} was answered by a router, whose choice cannot be recomputed; {advice}.")
    if not settings.fixed_samples:
        raise UsageError(
            f"{result.path} was certified by {settings.procedure.name}, whose bound is not that of one fixed number of "
            f"samples; only runs of cohen can be recomputed, so {advice}."
        )
    if settings.guarantee == Guarantee.MEMORY.value:
        raise UsageError(f"{result.path} was certified with a memory, whose balls depend on one another; {advice}.")


def _estimation_votes(result: Result, table: pa.Table, n: int, most: int) -> IntArray:
    """Return the votes of the first n samples, a row per input."""
    if n == most:
        return _votes(result, "counts", table["counts"], n)
    stored = [{entry["n"]: entry["counts"] for entry in entries or ()} for entries in table["checkpoints"].to_pylist()]
    if n not in stored[0]:
        known = " or ".join(f"{known:,}" for known in (*sorted(stored[0]), most))
        raise UsageError(f"{result.path} keeps no votes at n = {n:,}; give --at-n {known}.")
    column = pa.chunked_array([[entries.get(n) for entries in stored]], pa.list_(pa.int64()))
    return _votes(result, f"checkpoints at n = {n:,}", column, n)


def _votes(result: Result, what: str, column: pa.ChunkedArray, most: int) -> IntArray:
    """Return votes as a matrix; refuse rows that cannot be ``most`` votes for the classes."""
    votes = vote_matrix(result.path, what, column)
    classes = result.settings.num_classes or votes.shape[1]
    valid = (votes >= 0).all(axis=1) & (votes.sum(axis=1, dtype=np.float64) <= most)  # False for missing votes
    if votes.shape[1] != classes or not valid.all():
        index = result.array("index")[np.argmin(valid)]
        raise RunError(
            f"{result.path} is damaged: the {what} of input {index} are not {most:,} votes for {classes} classes; "
            "delete the part of the run that holds it, and run the same certify command again."
        )
    return votes.astype(np.int64)
