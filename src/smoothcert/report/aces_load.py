"""Reading the parts of ACES: run folders that kept a selector's votes, or the published logs of a common prefix."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from smoothcert.noise import Noise, noise_from_config
from smoothcert.report.aces import TABULATED, Components, IntArray, Single
from smoothcert.report.aces_votes import components_from_votes
from smoothcert.report.load import log_name, run_outcomes
from smoothcert.report.metadata import read_metadata, read_norm
from smoothcert.report.metrics import NORM_TEXT, Outcomes
from smoothcert.report.recompute import offsets
from smoothcert.stats.decisions import certified_class, guess_and_bound, predicted_class
from smoothcert.store import LogKind, Run, load_run, read_log
from smoothcert.types import Guarantee, Norm, RunError, UsageError

_SPELLING = {"clean_predict": "unperturbed predict", "p50": "50 percentile"}
_VOTES = ("selection", "counts", "selector0", "selector")
_SETTINGS = ("n", "n0", "alpha", "norm")


def load_components(
    path: str | os.PathLike[str],
    core: str | os.PathLike[str] | None = None,
    *,
    thetas: Sequence[float] | None = None,
) -> Components:
    """Read certifier and selector of ACES, and the core's answers.

    Args:
        path: A run folder whose rows hold a selector's votes; or the common prefix of the logs (or of the run folders
            imported from them) ``PREFIX_certification``, ``PREFIX_selection_0.00``, … and ``PREFIX_entropies``.
        core: A log, or an imported run, of the core's predictions; not needed where the run folder has them.
        thetas: Thresholds whose logs must be there; by default those of the paper's tables.

    Returns:
        The components at all thresholds that are stored, ordered by input index.

    Raises:
        UsageError: If parts are missing, or do not fit together.
        RunError, LogError: If a run or a log is damaged.
    """
    path = Path(path)
    if (path / "run.json").exists():
        return _from_run(load_run(path), core)
    return _from_prefix(path, core, TABULATED if thetas is None else thetas)


def load_single(path: str | os.PathLike[str]) -> Single:
    """Read a smoothed classifier that stands for itself: its certificates, and its natural accuracy.

    The natural accuracy is PREDICT's on the estimation votes of a run with a fixed number of samples, or the column
    "unperturbed predict" of a log.

    Raises:
        UsageError: If there is nothing, or natural accuracy is not known.
        RunError, LogError: If the run or the log is damaged.
    """
    path = Path(path)
    kind, table = _read(path)
    if kind != "certification":
        raise UsageError(f"{path} holds a {kind}; a single classifier needs a certification.")
    if not (path / "run.json").exists() or "counts" not in table.column_names:
        outcomes = Outcomes.from_table(log_name(path), table)
        return Single(outcomes, float((_column(path, table, "clean_predict") == table["label"].to_numpy()).mean()))
    run = load_run(path)
    outcomes = run_outcomes(run)
    _refuse_several_noises(run, table)
    composed = _procedure(run) == "aces"
    if not composed and _procedure(run) != "cohen":
        raise UsageError(f"{path} was not certified with a fixed n, so its natural accuracy is not known; use cohen.")
    settings, counts = _settings(run, table), _matrix(run.path, table, "counts")
    if composed:  # the stored answers are those of the composition; the certifier is one classifier for all inputs
        noise, norm = _noise(run, settings)
        selection = _matrix(run.path, table, "selection")
        guess, bound = guess_and_bound(selection, counts, settings["n"], settings["alpha"])
        predict = certified_class(guess, bound)
        radius = noise.radius(bound, norm, None, offsets(table))
        metadata = replace(outcomes.metadata, guarantee=(Guarantee.GLOBAL.value,))
        outcomes = replace(outcomes, predict=predict, radius=radius, norm=norm, metadata=metadata, natural=None)
    return Single(outcomes, float((predicted_class(counts, settings["alpha"])[0] == outcomes.label).mean()))


def _from_run(run: Run, core: str | os.PathLike[str] | None) -> Components:
    table = run.table()
    if run.config["kind"] != "certification":
        raise UsageError(f"{run.path} is an {run.config['kind']}; give the common prefix of the imported logs instead.")
    if len(table) == 0:
        raise RunError(f"{run.path} holds no rows yet.")
    _refuse_several_noises(run, table)
    if _procedure(run) != "aces" or not all(_has(table, column) for column in _VOTES):
        raise UsageError(f"{run.path} kept no votes of a selector; certify with the procedure aces to keep them.")
    settings = _settings(run, table)
    noise, norm = _noise(run, settings)
    index, label = table["index"].to_numpy(), table["label"].to_numpy()
    if core is not None:
        classes = _core(Path(core), run.name, index, label)
    elif _has(table, "core"):
        classes = table["core"].to_numpy()
    else:
        raise UsageError(f"{run.path} does not hold the answers of a core; give its prediction log with --core.")
    try:
        return components_from_votes(
            (run.name, index, label),
            core=classes,
            **{column: _matrix(run.path, table, column) for column in _VOTES},
            n=settings["n"],
            alpha=settings["alpha"],
            radius=lambda bound: noise.radius(bound, norm),
            offset=offsets(table),
            norm=norm,
            settings={key: settings[key] for key in ("n", "alpha")} | {"noise": noise.name} | _scales(noise),
            metadata=read_metadata(table, seed=run.settings.get("seed")),
        )
    except UsageError as error:
        raise RunError(f"{run.path} is damaged: {error}") from error


def _from_prefix(prefix: Path, core: str | os.PathLike[str] | None, thetas: Sequence[float]) -> Components:
    certification = _beside(prefix, "_certification")
    selections = _selections(prefix)
    if not certification.exists() and not selections:
        raise UsageError(
            f"there is no run folder {prefix} and no log {certification}; give a run folder, or the common prefix of "
            "the logs _certification, _selection_0.00, …"
        )
    if not certification.exists() or not selections:
        missing = certification if selections else _beside(prefix, "_selection_0.00")
        raise UsageError(f"{missing} is missing beside the other logs of {prefix}; put it there.")
    stored = np.array(sorted(selections))
    for theta in thetas:
        nearest = stored[np.argmin(np.abs(stored - theta))]
        if abs(nearest - theta) > 1e-9:
            raise UsageError(
                f"{_beside(prefix, f'_selection_{theta:.2f}')} is missing, so there is no threshold {theta:g}; "
                f"the nearest stored is {nearest:g}."
            )
    if core is None:
        raise UsageError(
            f"the logs of {prefix} do not hold the answers of a core; give its prediction log with --core."
        )
    table = _kind(certification, LogKind.CERTIFICATION)
    certifier = Outcomes.from_table(prefix.name, table)
    tables = [_like(selections[theta], _kind(selections[theta], LogKind.SELECTION), certifier) for theta in stored]
    _refuse_other_norms(certification, certifier.norm, {selections[t]: s for t, s in zip(stored, tables, strict=True)})
    paths = [selections[theta] for theta in stored]
    entropies = _beside(prefix, "_entropies")
    median = None
    if entropies.exists():
        median = _column(entropies, _like(entropies, _kind(entropies, LogKind.ENTROPY), certifier), "p50")
    return Components(
        certifier=certifier,
        predicted=_column(certification, table, "clean_predict"),
        core=_core(Path(core), prefix.name, certifier.index, certifier.label),
        thetas=stored,
        choice=np.stack([selection["predict"].to_numpy() for selection in tables]),
        choice_radius=np.stack([selection["radius"].to_numpy() for selection in tables]),
        choice_predicted=np.stack(
            [_column(path, selection, "clean_predict") for path, selection in zip(paths, tables, strict=True)]
        ),
        median=median,
    )


def _refuse_other_norms(certification: Path, norm: Norm | None, selections: Mapping[Path, pa.Table]) -> None:
    """Refuse a selector whose radii are in another norm than those of the certifier, as far as both are known."""
    for path, table in selections.items():
        other = read_norm(table)
        if None not in (norm, other) and norm is not other:
            raise UsageError(
                f"{certification} has radii in {NORM_TEXT[norm]} and {path} in {NORM_TEXT[other]}; the smaller of both "
                "means nothing, so give logs in one norm."
            )


def _selections(prefix: Path) -> dict[float, Path]:
    """The selection logs by threshold."""
    start = f"{prefix.name}_selection_"
    found: dict[float, Path] = {}
    for path in sorted(prefix.parent.iterdir()) if prefix.parent.is_dir() else ():
        if path.name.startswith(start):
            try:
                theta = float(path.name.removeprefix(start))
            except ValueError:
                theta = -1.0
            if not 0 <= theta <= 1 or theta in found:
                raise UsageError(f"{path} does not end with a threshold of its own between 0 and 1; rename it.")
            found[theta] = path
    return found


def _core(path: Path, name: str, index: IntArray, label: IntArray) -> IntArray:
    """The core's classes of the inputs, which may be some of many."""
    if not path.exists():
        raise UsageError(f"there is no core {path}; give a log of its predictions.")
    kind, table = _read(path)
    if kind != LogKind.PREDICTION.value:
        raise UsageError(
            f"{path} holds a {kind}, which does not tell the core's answers to clean inputs; give a log with the "
            "columns idx, label and predict."
        )
    known = table["index"].to_numpy()
    place = np.minimum(np.searchsorted(known, index), len(known) - 1)
    if not len(known) or (known[place] != index).any():
        strange = index[0] if not len(known) else index[known[place] != index][0]
        raise UsageError(f"the core {path} is about other inputs than {name}: it lacks input {strange}.")
    other = table["label"].to_numpy()[place] != label
    if other.any():
        at = int(np.argmax(other))
        raise UsageError(
            f"the core {path} has other labels than {name}: {table['label'].to_numpy()[place][at]} instead of "
            f"{label[at]} for input {index[at]}; give predictions of the same data."
        )
    return np.asarray(table["predict"].to_numpy()[place])


def _read(path: Path) -> tuple[str, pa.Table]:
    """What a log or a run folder holds, and its rows ordered by input."""
    if not path.exists():
        raise UsageError(f"there is no {path}; give a run folder or a log file.")
    if (path / "run.json").exists():
        run = load_run(path)
        return str(run.config["kind"]).removeprefix("imported "), run.table()
    log = read_log(path)
    return log.kind.value, log.table.sort_by("index")


def _kind(path: Path, wanted: LogKind) -> pa.Table:
    kind, table = _read(path)
    if kind != wanted.value:
        raise UsageError(f"{path} must hold a {wanted.value}, but holds a {kind}.")
    return table


def _like(path: Path, table: pa.Table, certifier: Outcomes) -> pa.Table:
    if not np.array_equal(table["index"].to_numpy(), certifier.index):
        raise UsageError(f"{path} is about other inputs than {certifier.name}_certification; use logs of the same.")
    return table


def _beside(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)


def _has(table: pa.Table, column: str) -> bool:
    return column in table.column_names and table[column].null_count == 0


def _column(path: Path, table: pa.Table, name: str) -> NDArray[Any]:
    if not _has(table, name):
        raise UsageError(f"{path} has no column {_SPELLING[name]!r}, which is needed here.")
    return np.asarray(table[name].to_numpy())


def _matrix(path: Path, table: pa.Table, column: str) -> IntArray:
    """A column of equally long lists, a row per input."""
    lists = table[column].combine_chunks()
    lengths = set(pc.list_value_length(lists).to_pylist())
    values = lists.flatten()
    if len(lengths) != 1 or None in lengths or values.null_count:
        raise RunError(f"{path} is damaged: {column} must hold equally many counts in every row.")
    return np.asarray(values.to_numpy()).reshape(len(table), lengths.pop())


def _procedure(run: Run) -> str:
    return str(run.settings.get("procedure", {}).get("name", ""))


def _refuse_several_noises(run: Run, table: pa.Table) -> None:
    """Refuse votes that are not all of one smoothed classifier; a router's selector votes for experts, not scores."""
    per_input = "sigma" in table.column_names and table["sigma"].null_count < len(table)
    if per_input or "experts" in run.config:
        what = "noise chosen for each input" if per_input else "several experts"
        raise UsageError(f"{run.path} was certified with {what}; ACES needs one smoothed classifier for all inputs.")


def _settings(run: Run, table: pa.Table) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in _SETTINGS:
        values = table[key].unique().to_pylist()
        if len(values) != 1 or values[0] is None:
            shown = " and ".join(map(str, values[:2]))
            raise UsageError(f"{run.path} holds rows with different {key} ({shown}); evaluate them apart.")
        found[key] = values[0]
    return found


def _noise(run: Run, settings: dict[str, Any]) -> tuple[Noise, Norm]:
    noise = noise_from_config(run.settings.get("noise", {}))
    norm = noise.resolve_norm(settings["norm"])
    if norm is Norm.LINF:
        raise UsageError(
            f"{run.path} holds ℓ∞ radii, which depend on the size of an input that a run does not keep; certify in "
            f"{noise.norms[0].value}."
        )
    return noise, norm


def _scales(noise: Noise) -> dict[str, Any]:
    return {key: value for key, value in noise.config().items() if key != "name"}
