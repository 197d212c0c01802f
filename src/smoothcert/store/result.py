"""A result: a run folder or a log of an earlier system, found on disk and read when it is needed."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from smoothcert.noise import NOISES
from smoothcert.stats import lower_bound
from smoothcert.stats.decisions import predicted_class
from smoothcert.store import run_json
from smoothcert.store.logs import Log, LogKind, looks_like_log, read_log
from smoothcert.store.outcomes import METADATA_COLUMNS, Origin, Outcomes
from smoothcert.store.rows import ANSWERS
from smoothcert.store.run import Run, load_run
from smoothcert.store.run_json import NoiseSettings, RunSettings
from smoothcert.types import PLAIN, LogError, Norm, RunError, StrPath, UsageError

CERTIFICATION, SELECTION, ENTROPIES = "_certification", "_selection_", "_entropies"
"""The endings of published ACES logs after their common prefix."""

_SHOWN = (*ANSWERS, "norm", "alpha", "clean_predict", *METADATA_COLUMNS)
_MOST_VOTES = 100_000_000  # that are read to compute the natural accuracy
_HIDDEN = (".", "index.json")  # the index of a zoo, whose models are in the folders of their runs
_LOG_SUFFIXES = (".tsv", ".txt", ".log")

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Result:
    """A run or a log."""

    name: str  # in tables and figures, unique among the results it was found with
    source: Run | Log
    prefix: Path | None = None  # of published ACES logs; the source is then the certification among them
    index: IntArray | None = None  # the inputs it is restricted to, ascending; all by default

    @property
    def path(self) -> Path:
        return self.source.path

    @property
    def run(self) -> Run | None:
        """The run folder; None for a log."""
        return self.source if isinstance(self.source, Run) else None

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration as written; empty for a log."""
        return {} if self.run is None else self.run.config

    @property
    def settings(self) -> RunSettings:
        """The configuration with typed fields; a log has a kind only."""
        return RunSettings(kind=f"imported {self.kind}") if self.run is None else self.run.settings

    @property
    def kind(self) -> str:
        """``certification``, ``selection``, ``prediction``, ``entropy`` or ``votes``."""
        if isinstance(self.source, Log):
            return self.source.kind.value
        return str(self.source.config["kind"]).removeprefix("imported ")

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the rows, ordered by input; only those of the columns that exist, or all."""
        key = "*" if columns is None or "*" in self._tables else ",".join(columns)
        if key not in self._tables:
            assert isinstance(self.source, Run)
            self._tables[key] = self.source.table(columns)
        found = self._tables[key]
        if columns is not None:
            found = found.select([name for name in columns if name in found.column_names])
        return found if self.index is None else found.take(pa.array(self._places))

    @cached_property
    def _tables(self) -> dict[str, pa.Table]:
        """The columns read so far; all columns are ``*``."""
        return {"*": self.source.table.sort_by("index")} if isinstance(self.source, Log) else {}

    @cached_property
    def _places(self) -> IntArray:
        assert self.index is not None
        everything = replace(self, index=None).table(["index"])["index"].to_numpy()
        return np.asarray(np.searchsorted(everything, self.index))

    def has(self, *columns: str) -> bool:
        """Return whether these columns exist, with a value in every row."""
        table = self.table(columns)
        return len(table.column_names) == len(columns) and not any(column.null_count for column in table.columns)

    def column(self, name: str) -> pa.ChunkedArray:
        """Read a column; refuse a result without it or with missing values."""
        if not self.has(name):
            raise UsageError(
                f"{self.path} does not have {name} for its inputs; logs of earlier systems lack it, so certify again "
                "with smoothcert."
            )
        return self.table([name])[name]

    def array(self, name: str) -> NDArray[Any]:
        """Read a column as an array."""
        return np.asarray(self.column(name).to_numpy())

    def votes(self, name: str) -> IntArray:
        """Read a column of votes as a matrix with a row per input."""
        return vote_matrix(self.path, name, self.column(name))

    def restrict(self, index: IntArray) -> Result:
        """Select inputs, ascending."""
        return replace(self, index=index)

    @cached_property
    def outcomes(self) -> Outcomes:
        """The certified answers; results without certificates or rows, and rows in several norms, are refused."""
        settings = self.settings
        columns = list(_SHOWN)
        if settings.fixed_samples and settings.one_noise and settings.procedure.alpha is not None:
            columns.append("counts")
        table = self.table(columns)
        if len(table) == 0:
            raise UsageError(f"{self.path} holds no rows.") if self.run is None else no_rows(self.path)
        try:
            origin, natural = self.origin(), self._natural(table)
            return Outcomes.from_table(self.name, table, origin=origin, natural=natural, seed=settings.seed)
        except UsageError as error:
            if self.run is not None and set(ANSWERS) <= set(table.column_names):
                raise RunError(f"{self.path} is damaged: {error}") from error
            raise

    def _natural(self, table: pa.Table) -> int | None:
        """Count the inputs that PREDICT answers correctly, where that is known."""
        names = set(table.column_names)
        if {"clean_predict", "label"} <= names:
            known = not table["clean_predict"].null_count
            return int(pc.sum(pc.equal(table["clean_predict"], table["label"])).as_py()) if known else None
        if not {"counts", "label"} <= names or table["counts"].null_count:
            return None
        if len(table) * (pc.max(pc.list_value_length(table["counts"])).as_py() or 0) > _MOST_VOTES:
            return None
        try:
            counts = vote_matrix(self.path, "counts", table["counts"])
        except RunError:
            return None
        return natural_count(counts, table["label"].to_numpy(), self.settings.procedure.alpha or 0.0)

    def origin(self, *, n: int | None = None, alpha: float | None = None, bound: str | None = None) -> Origin | None:
        """Return how a run was made, or recomputed for another ``n``, ``alpha`` or ``bound``; None for a log."""
        settings = self.settings
        if self.run is None:
            return None
        if not settings.certified:
            return self._imported_origin()
        procedure = settings.procedure
        changes = {"n": n, "alpha": alpha, "bound": bound}
        settings_of = {**procedure.as_dict(), **{key: value for key, value in changes.items() if value is not None}}
        if settings_of.get("bound") == PLAIN:  # which a run does not record
            del settings_of["bound"]
        config = {**self.config, "procedure": settings_of}
        seeds = [config.pop("seed", 0)]
        training = _training(self.run)
        if training:
            # The same training with another seed has other weights, so its settings replace the hash of the weights.
            config["model"] = [entry["settings"] for entry in training]
            seeds += [entry["seed"] for entry in training]
        data = settings.data
        recipes = {entry["recipe"] for entry in training}
        return Origin(
            **self._noise_scale(),
            data=" ".join(filter(None, (data.name, data.split))) or None if data is not None else None,
            sample=None if data is None else data.sha256,
            n=n or procedure.n,
            alpha=alpha or procedure.alpha,
            bound=bound or procedure.bound or PLAIN,
            seeds=tuple(seeds),
            alike=json.dumps(config, sort_keys=True),
            recipe=recipes.pop() if len(recipes) == 1 else None,
        )

    def _imported_origin(self) -> Origin:
        """Return what the import of a log was told; runs of the same name and noise differ in their seeds only."""
        settings, seeds = self.settings, () if self.settings.seed is None else (self.settings.seed,)
        kept = ("name", "noise", "stated")
        alike = {key: self.config[key] for key in kept if key in self.config} if seeds and settings.name else None
        return Origin(
            **self._noise_scale(),
            seeds=seeds,
            alike=None if alike is None else json.dumps(alike, sort_keys=True),
            recipe=settings.name,
        )

    def _noise_scale(self) -> dict[str, Any]:
        """Return the name and the scale of the noise, where all inputs have the same."""
        noise = self.settings.noise if self.settings.one_noise else None
        if noise is None:
            return {}
        return {"noise": noise.name, "scale": _scale(noise)}

    @property
    def sampling_limit(self) -> float | None:
        """The radius that its samples prove if all votes agree; None where that depends on the input or is unknown."""
        settings, procedure = self.settings, self.settings.procedure
        if self.run is None or not settings.certified or not settings.fixed_samples or not settings.one_noise:
            return None
        try:
            noise = settings.build_noise()
            norm = None if noise is None else noise.resolve_norm(procedure.norm)
        except UsageError:  # a noise that this version does not have
            return None
        dimension = self.run.dimension if norm is Norm.LINF else None
        unknown = norm is Norm.LINF and dimension is None
        if noise is None or procedure.n is None or procedure.alpha is None or unknown:
            return None
        return float(noise.radius(lower_bound(procedure.n, procedure.n, procedure.alpha), norm, dimension))


def no_rows(path: Path) -> RunError:
    """Return the error for a run without rows."""
    return RunError(f"{path} holds no rows yet.")


def vote_matrix(path: Path, what: str, column: pa.ChunkedArray) -> IntArray:
    """Convert a column of equally long lists to a matrix with a row per input."""
    lengths = set(pc.list_value_length(column).to_pylist())
    if len(lengths) != 1 or None in lengths:
        raise RunError(f"{path} is damaged: {what} must hold equally many counts in every row; compute it again.")
    return np.asarray(column.combine_chunks().flatten().to_numpy(zero_copy_only=False)).reshape(
        len(column), lengths.pop()
    )


def natural_count(counts: IntArray, label: IntArray, alpha: float) -> int:
    """Count the inputs that PREDICT answers correctly on these votes.

    Example:
        >>> natural_count(np.array([[990, 10], [505, 495]]), np.array([0, 0]), 0.001)
        1
    """
    if counts.shape[1] < 2:
        return int((label == 0).sum())
    return int((predicted_class(counts, alpha)[0] == label).sum())


def _training(run: Run) -> list[Mapping[str, Any]]:
    """Return how the models of the last session that records it were trained."""
    for session in reversed(run.sessions):
        source = session.get("source")
        training = source.get("training") if isinstance(source, Mapping) else None
        if isinstance(training, list) and training:
            valid = all(
                isinstance(entry, Mapping)
                and {"settings", "seed", "recipe"} <= entry.keys()
                and isinstance(entry["seed"], int)
                and isinstance(entry["recipe"], str | None)
                for entry in training
            )
            return training if valid else []
    return []


def load_result(path: StrPath) -> Result:
    """Open a run folder or a log."""
    path = Path(path)
    if not path.exists():
        raise UsageError(f"{path} does not exist; give run folders or log files.")
    if (path / run_json.NAME).exists():
        run = load_run(path)
        return Result(run.name, run)
    return Result(log_name(path), read_log(path))


def find_results(paths: Sequence[StrPath]) -> list[Result]:
    """Find runs and certification logs.

    Args:
        paths: Run folders, logs, folders that contain certifications (see :func:`results_in`), and common prefixes of
            published ACES logs.

    Returns:
        Each result once, in the order found. Equal names get as many parent folders as needed to differ.
    """
    found: dict[Path, Result] = {}
    for path in map(Path, paths):
        for result in _at(path):
            found.setdefault((result.prefix or result.path).resolve(), result)
    names = distinct_names({path: result.name for path, result in found.items()})
    return [replace(result, name=names[path]) for path, result in found.items()]


def labelled(results: Sequence[Result], labels: Sequence[str] | None) -> list[Result]:
    """Give results other names, one for each in their order; without labels they keep theirs."""
    if labels is None:
        return list(results)
    if len(labels) != len(results):
        names = ", ".join(result.name for result in results)
        raise UsageError(f"there are {len(labels)} labels for {len(results)} results; give one for each of {names}.")
    for label in labels:
        if not (label.strip() and label.isprintable()) or labels.count(label) > 1:
            raise UsageError(f"labels must be printable texts that differ, which {label!r} is not.")
    return [replace(result, name=label) for result, label in zip(results, labels, strict=True)]


def _at(path: Path) -> list[Result]:
    certification = path.with_name(path.name + CERTIFICATION)
    if not path.exists() and certification.exists():
        return [replace(load_result(certification), name=path.name, prefix=path)]
    if not path.is_dir() or (path / run_json.NAME).exists():
        return [load_result(path)]
    found = results_in(path)
    if not found:
        raise UsageError(f"{path} holds neither runs nor certification logs.")
    return found


def results_in(folder: Path) -> list[Result]:
    """Open all certification runs and logs in a folder, and warn about other files and results without rows.

    Runs and logs of another kind, folders without a run and hidden files are ignored.
    """
    found = []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(_HIDDEN) or (entry.is_dir() and not (entry / run_json.NAME).exists()):
            continue
        try:
            if not entry.is_dir() and not looks_like_log(entry):
                raise LogError("it is neither a run folder nor a log.")
            result = load_result(entry)
            if result.kind == LogKind.CERTIFICATION.value:
                if not len(result.table(["index"])):
                    raise no_rows(entry)
                found.append(result)
        except (LogError, RunError) as error:
            warnings.warn(f"{entry} is skipped: {error}", stacklevel=2)
    return found


def distinct_names(names: Mapping[Path, str]) -> dict[Path, str]:
    """Make names differ by as many parent folders as that needs.

    Example:
        >>> list(distinct_names({Path("/a/x"): "x", Path("/b/x"): "x", Path("/b/y"): "y"}).values())
        ['a/x', 'b/x', 'y']
        >>> list(distinct_names({Path("/a/x"): "x", Path("/a/x.tsv"): "x"}).values())
        ['x', 'x.tsv']
    """
    names = dict(names)
    while alike := {key for key, times in Counter((p.parent, name) for p, name in names.items()).items() if times > 1}:
        names |= {path: path.name for path, name in names.items() if (path.parent, name) in alike}
    distinct, above = dict(names), 0
    while repeated := {name for name, times in Counter(distinct.values()).items() if times > 1}:
        above += 1
        for path, name in names.items():
            if distinct[path] in repeated:
                distinct[path] = "/".join([*path.parts[-1 - above : -1], name])
    return distinct


def log_name(path: Path) -> str:
    """Return the file name of a log, without the suffix of a text file; ``sigma_0.50`` stays whole."""
    return path.stem if path.suffix in _LOG_SUFFIXES else path.name


def scale_heading(name: str) -> str:
    """Return the heading of the scale of a noise in tables; empty for an unknown noise."""
    return NOISES[name].symbol or fields(NOISES[name])[0].name if name in NOISES else ""


def _scale(noise: NoiseSettings) -> float | None:
    """Return the first setting of a noise, which is its scale."""
    if noise.name is None or noise.name not in NOISES:
        return None
    value = getattr(noise, fields(NOISES[noise.name])[0].name, None)
    return value if isinstance(value, (int, float)) else None
