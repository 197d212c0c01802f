"""Read the parts of ACES from run folders that kept a selector's votes, or from published logs of a common prefix."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from smoothcert.noise import Noise
from smoothcert.report.aces.composition import TABULATED, Components, IntArray, Single, components_from_votes
from smoothcert.report.metrics import NORM_TEXT
from smoothcert.report.recompute import dimension_for, offsets
from smoothcert.stats.decisions import certified_class, guess_and_bound
from smoothcert.store import LogKind, Result, load_result
from smoothcert.store.outcomes import Outcomes, read_metadata, read_norm
from smoothcert.store.result import CERTIFICATION, ENTROPIES, SELECTION, natural_count, no_rows
from smoothcert.types import Guarantee, Norm, RunError, UsageError

_SPELLING = {"clean_predict": "unperturbed predict", "p50": "50 percentile"}
_VOTES = ("selection", "counts", "selector0", "selector")


def load_components(
    source: str | os.PathLike[str] | Result,
    core: str | os.PathLike[str] | None = None,
    *,
    thetas: Sequence[float] | None = None,
) -> Components:
    """Read certifier, selector and core of ACES at all stored thresholds, ordered by input.

    Args:
        source: A run whose rows hold a selector's votes; or the common prefix of the logs (or of the run folders
            imported from them) ``PREFIX_certification``, ``PREFIX_selection_0.00``, … and ``PREFIX_entropies``.
        core: A log, or an imported run, of the core's predictions; not needed where the run has them.
        thetas: Thresholds whose logs must be there; by default those of the paper's tables.

    Raises:
        UsageError: If parts are missing or inconsistent.
        RunError, LogError: If a run or a log is damaged.
    """
    if isinstance(source, Result):
        prefix = source.prefix
        parts = _from_run(source, core) if prefix is None else _from_prefix(prefix, core, TABULATED)
        return replace(parts, certifier=replace(parts.certifier, name=source.name))
    path = Path(source)
    if (path / "run.json").exists():
        return _from_run(load_result(path), core)
    return _from_prefix(path, core, TABULATED if thetas is None else thetas)


def load_single(source: str | os.PathLike[str] | Result) -> Single:
    """Read the certificates and the natural accuracy of one smoothed classifier.

    The natural accuracy is that of PREDICT on the estimation votes of a run with a fixed number of samples, or of the
    column "unperturbed predict" of a log.

    Raises:
        UsageError: If there is no result, or its natural accuracy is not known.
        RunError, LogError: If the run or the log is damaged.
    """
    result = source if isinstance(source, Result) else load_result(source)
    if result.kind != LogKind.CERTIFICATION.value:
        raise UsageError(f"{result.path} holds a {result.kind}; a single classifier needs a certification.")
    outcomes = result.outcomes
    if not result.settings.certified:
        return Single(outcomes, float((_column(result, "clean_predict") == outcomes.label).mean()))
    _refuse_several_noises(result)
    if not result.settings.composed and not result.settings.fixed_samples:
        raise UsageError(
            f"{result.path} was not certified with a fixed n, so its natural accuracy is not known; use cohen."
        )
    counts, alpha = result.votes("counts"), _common(result, "alpha")
    if result.settings.composed:  # the stored answers are those of the composition
        noise, norm = _noise(result)
        guess, bound = guess_and_bound(result.votes("selection"), counts, _common(result, "n"), alpha)
        outcomes = replace(
            outcomes,
            predict=certified_class(guess, bound),
            radius=noise.radius(bound, norm, dimension_for(result, noise, norm), offsets(result.table())),
            norm=norm,
            metadata=replace(outcomes.metadata, guarantee=(Guarantee.GLOBAL.value,)),
            natural=None,
        )
    return Single(outcomes, natural_count(counts, outcomes.label, alpha) / len(outcomes))


def _from_run(result: Result, core: str | os.PathLike[str] | None) -> Components:
    settings, table = result.settings, result.table()
    if not settings.certified:
        raise UsageError(f"{result.path} is an {settings.kind}; give the common prefix of the imported logs instead.")
    if len(table) == 0:
        raise no_rows(result.path)
    _refuse_several_noises(result)
    if not settings.composed or not result.has(*_VOTES):
        raise UsageError(f"{result.path} kept no votes of a selector; certify with the procedure aces to keep them.")
    n, _, alpha = (_common(result, key) for key in ("n", "n0", "alpha"))
    noise, norm = _noise(result)
    dimension = dimension_for(result, noise, norm)
    index, label = table["index"].to_numpy(), table["label"].to_numpy()
    if core is not None:
        classes = _core(Path(core), result.name, index, label)
    elif result.has("core"):
        classes = table["core"].to_numpy()
    else:
        raise UsageError(f"{result.path} has no answers of a core; give its prediction log with --core.")
    try:
        return components_from_votes(
            (result.name, index, label),
            core=classes,
            **{column: result.votes(column) for column in _VOTES},
            n=n,
            alpha=alpha,
            radius=lambda bound: noise.radius(bound, norm, dimension),
            offset=offsets(table),
            norm=norm,
            settings={"n": n, "alpha": alpha, "noise": str(noise)},
            metadata=read_metadata(table, seed=settings.seed),
        )
    except UsageError as error:
        raise RunError(f"{result.path} is damaged: {error}") from error


def _from_prefix(prefix: Path, core: str | os.PathLike[str] | None, thetas: Sequence[float]) -> Components:
    certification = _behind(prefix, CERTIFICATION)
    selections = _selections(prefix)
    if not certification.exists() and not selections:
        raise UsageError(
            f"there is no run folder {prefix} and no log {certification}; give a run folder, or the common prefix of "
            "the logs _certification, _selection_0.00, …"
        )
    if not certification.exists() or not selections:
        missing = certification if selections else _behind(prefix, f"{SELECTION}0.00")
        raise UsageError(f"{missing} is missing among the other logs of {prefix}; put it there.")
    stored = np.array(sorted(selections))
    for theta in thetas:
        nearest = stored[np.argmin(np.abs(stored - theta))]
        if abs(nearest - theta) > 1e-9:
            raise UsageError(
                f"{_behind(prefix, f'{SELECTION}{theta:.2f}')} is missing, so there is no threshold {theta:g}; "
                f"the nearest stored is {nearest:g}."
            )
    if core is None:
        raise UsageError(f"the logs of {prefix} have no answers of a core; give its prediction log with --core.")
    result = _load(certification, LogKind.CERTIFICATION)
    certifier = replace(result.outcomes, name=prefix.name, natural=None)
    found = [_load(selections[theta], LogKind.SELECTION, certifier) for theta in stored]
    for each in found:
        norm = read_norm(each.table())
        if None not in (norm, certifier.norm) and norm is not certifier.norm:
            raise UsageError(
                f"{certification} has radii in {NORM_TEXT[certifier.norm]} and {each.path} in {NORM_TEXT[norm]}; give "
                "logs in one norm."
            )
    entropies = _behind(prefix, ENTROPIES)
    return Components(
        certifier=certifier,
        predicted=_column(result, "clean_predict"),
        core=_core(Path(core), prefix.name, certifier.index, certifier.label),
        thetas=stored,
        choice=np.stack([each.array("predict") for each in found]),
        choice_radius=np.stack([each.array("radius") for each in found]),
        choice_predicted=np.stack([_column(each, "clean_predict") for each in found]),
        median=_column(_load(entropies, LogKind.ENTROPY, certifier), "p50") if entropies.exists() else None,
    )


def _selections(prefix: Path) -> dict[float, Path]:
    start = f"{prefix.name}{SELECTION}"
    found: dict[float, Path] = {}
    for path in sorted(prefix.parent.iterdir()) if prefix.parent.is_dir() else ():
        if path.name.startswith(start):
            try:
                theta = float(path.name.removeprefix(start))
            except ValueError:
                theta = -1.0
            if not 0 <= theta <= 1 or theta in found:
                raise UsageError(f"{path} does not end with a unique threshold in [0, 1]; rename it.")
            found[theta] = path
    return found


def _core(path: Path, name: str, index: IntArray, label: IntArray) -> IntArray:
    """Read the core's classes of these inputs; the log may have more."""
    if not path.exists():
        raise UsageError(f"there is no core {path}; give a log of its predictions.")
    result = load_result(path)
    if result.kind != LogKind.PREDICTION.value:
        raise UsageError(
            f"{path} holds a {result.kind}, which does not have the core's answers to clean inputs; give a log with "
            "the columns idx, label and predict."
        )
    known, labels, classes = (result.array(column) for column in ("index", "label", "predict"))
    lacking = np.setdiff1d(index, known)
    if len(lacking):
        raise UsageError(f"the core {path} is about other inputs than {name}: it lacks input {lacking[0]}.")
    place = np.searchsorted(known, index)
    other = labels[place] != label
    if other.any():
        at = int(np.argmax(other))
        raise UsageError(
            f"the core {path} has other labels than {name}: {labels[place][at]} instead of {label[at]} for input "
            f"{index[at]}; give predictions of the same data."
        )
    return np.asarray(classes[place])


def _load(path: Path, wanted: LogKind, certifier: Outcomes | None = None) -> Result:
    result = load_result(path)
    if result.kind != wanted.value:
        raise UsageError(f"{path} must hold a {wanted.value}, but holds a {result.kind}.")
    if certifier is not None and not np.array_equal(result.array("index"), certifier.index):
        raise UsageError(f"{path} is about other inputs than {certifier.name}_certification; use logs of the same.")
    return result


def _behind(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)


def _column(result: Result, name: str) -> Any:
    if not result.has(name):
        raise UsageError(f"{result.path} has no column {_SPELLING[name]!r}, which is needed here.")
    return result.array(name)


def _refuse_several_noises(result: Result) -> None:
    table = result.table(["sigma"])
    per_input = any(column.null_count < len(column) for column in table.columns)
    if per_input or result.settings.experts is not None:
        what = "noise chosen for each input" if per_input else "several experts"
        raise UsageError(f"{result.path} was certified with {what}; ACES needs one smoothed classifier for all inputs.")


def _common(result: Result, key: str) -> Any:
    table = result.table([key])
    values = table[key].unique().to_pylist() if table.column_names else [None]
    if len(values) != 1 or values[0] is None:
        shown = " and ".join(map(str, values[:2]))
        raise UsageError(f"{result.path} holds rows with different {key} ({shown}); evaluate them separately.")
    return values[0]


def _noise(result: Result) -> tuple[Noise, Norm]:
    noise = result.settings.build_noise({} if result.settings.noise is None else None)
    assert noise is not None
    return noise, noise.resolve_norm(_common(result, "norm"))
