"""Results on suites of corruptions: what each type costs, and means over all types."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from statistics import mean
from typing import Any

from smoothcert.report.metrics import acr_text, average_certified_radius, certified_counts, common_norm
from smoothcert.report.notes import Subject
from smoothcert.report.tables.accuracy import rounded
from smoothcert.store import Outcomes, Result, flat_config, load_run
from smoothcert.store.result import distinct_names, results_in
from smoothcert.types import Norm, StrPath, UsageError

IDENTITY = "identity"
"""The name of the clean set, which is in no mean."""

Place = tuple[str, int | None]
"""A type of corruption and its severity, None where it has none."""

_SETTINGS = ("noise", "procedure", "inputs", "model", "precision")


@dataclass(frozen=True, eq=False)
class SuiteResults:
    """The outcomes of one method on the sets of a suite, and the settings of its run folders, empty for logs."""

    name: str
    outcomes: Mapping[Place, Outcomes]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def subject(self) -> Subject:
        """The results on all sets, for markers and notes."""
        named = [replace(run, name=f"{self.name}/{place_name(place)}") for place, run in self.outcomes.items()]
        return Subject(self.name, tuple(named), pooled=True)

    @property
    def types(self) -> list[str]:
        """The types of corruption, without the clean set."""
        return sorted({kind for kind, _ in self.outcomes} - {IDENTITY})

    @property
    def severities(self) -> list[int]:
        """The severities that some type has."""
        return sorted({severity for _, severity in self.outcomes if severity is not None})


@dataclass(frozen=True)
class Measure:
    """A measure of a set: its name, the name of its mean over types, its exact value, and how a value is printed."""

    name: str
    mean_name: str
    of: Callable[[Outcomes], Fraction]
    text: Callable[[Fraction], str]


ACR = Measure(
    "ACR", "mACR", lambda outcomes: Fraction(average_certified_radius(outcomes)), lambda value: acr_text(float(value))
)


def accuracy_at(radius: float) -> Measure:
    """Measure certified accuracy at a radius in per cent; values and means are exact and rounded half to even."""
    return Measure(
        f"accuracy at {radius:g} (%)",
        "mAcc",
        lambda outcomes: Fraction(int(certified_counts(outcomes, radius)[0]), len(outcomes)),
        lambda value: rounded(100 * value, 1),
    )


def suite_mean(results: SuiteResults, measure: Measure, places: Iterable[Place] | None = None) -> Fraction:
    """Compute the mean over types of their means over severities, exactly.

    The sets are by default all but the clean set; that mean is mACR or mAcc.
    """
    if places is None:
        places = [place for place in results.outcomes if place[0] != IDENTITY]
    by_type: dict[str, list[Fraction]] = {}
    for place in places:
        by_type.setdefault(place[0], []).append(measure.of(results.outcomes[place]))
    return mean(mean(values) for values in by_type.values())


def place_name(place: Place) -> str:
    """Return the name of a set, which is that of its run folder."""
    kind, severity = place
    return kind if severity is None else f"{kind}-{severity}"


def load_suite_results(folders: Sequence[StrPath]) -> list[SuiteResults]:
    """Read the results of methods, one folder for each.

    A folder has a run or a log for every set, named ``TYPE`` or ``TYPE-SEVERITY``; ``identity`` is the clean set.
    """
    paths = [Path(folder).resolve() for folder in folders]
    names = distinct_names({path: path.name for path in paths})
    return [_load(path, names[path]) for path in paths]


def _load(folder: Path, name: str) -> SuiteResults:
    if not folder.is_dir():
        raise UsageError(
            f"the folder {folder} does not exist; give one that holds a run or a log for every corruption."
        )
    found: dict[Place, Result] = {}
    for result in results_in(folder):
        place = _place(result.name)
        if place in found:
            raise UsageError(f"{folder} holds two results for {place_name(place)}; keep one.")
        found[place] = result
    if not any(kind != IDENTITY for kind, _ in found):
        raise UsageError(f"{folder} holds no result for any corruption; make some by `smoothcert corruptions run`.")
    settings = {place: _settings(result.config) for place, result in found.items() if result.run is not None}
    outcomes = {place: result.outcomes for place, result in found.items()}
    return SuiteResults(name, outcomes, _common_settings(folder, settings))


def _place(name: str) -> Place:
    match = re.fullmatch(r"(.+)-([1-5])", name)
    return (match[1], int(match[2])) if match else (name, None)


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return flat_config({key: config[key] for key in _SETTINGS if key in config})


def check_alike(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to add runs with these settings to a folder, which may be missing, whose runs have other settings."""
    there = {_place(file.parent.name): load_run(file.parent) for file in sorted(folder.glob("*/run.json"))}
    made = {place: _settings(run.config) for place, run in there.items()}
    _common_settings(folder, {**made, ("this command", None): _settings(json.loads(json.dumps(settings)))})


def _common_settings(folder: Path, settings: Mapping[Place, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the settings that all runs share; refuse runs whose numbers do not belong into one mean."""
    if not settings:
        return {}
    first, expected = next(iter(settings.items()))
    for place, found in settings.items():
        for key, ours, theirs in _differences(expected, found):
            raise UsageError(
                f"the runs in {folder} have different settings: {key} is {ours} in {place_name(first)} and {theirs} in "
                f"{place_name(place)}; certify them with the same settings, or into separate folders."
            )
    return expected


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    keys = sorted(one.keys() | other.keys())
    pairs = [(key, one.get(key, "not set"), other.get(key, "not set")) for key in keys]
    return [(key, ours, theirs) for key, ours, theirs in pairs if ours != theirs]


def comparable(methods: Sequence[SuiteResults]) -> tuple[list[SuiteResults], list[str]]:
    """Restrict methods to the sets that all of them have; note what is left out, and what else differs."""
    suite_norm(methods)
    shared = [place for place in methods[0].outcomes if all(place in method.outcomes for method in methods)]
    if not any(kind != IDENTITY for kind, _ in shared):
        names = " and ".join(method.name for method in methods)
        raise UsageError(f"{names} share no corruption, so there is nothing to compare; certify the same ones.")
    everything = sorted({place for method in methods for place in method.outcomes}, key=place_name)
    notes = []
    for method in methods:
        lacking = [place_name(place) for place in everything if place not in method.outcomes]
        if lacking:
            notes.append(f"{method.name} lacks {', '.join(lacking)}: only sets that all methods have are compared.")
    kept = [replace(method, outcomes={place: method.outcomes[place] for place in shared}) for method in methods]
    for method in kept:
        notes += _uneven(method)
    first, *others = kept
    for other in others:
        found = _differences(first.settings, other.settings) if first.settings and other.settings else []
        named = [f"{key} ({ours}, {theirs})" for key, ours, theirs in found if not key.startswith("model.")]
        notes += [f"{first.name} and {other.name} differ in {', '.join(named)}."] if named else []
    return kept, notes


def _uneven(method: SuiteResults) -> list[str]:
    """Report sets that are missing or have fewer results than others, as in an unfinished suite."""
    notes = []
    most = max(map(len, method.outcomes.values()))
    fewer = [f"{place_name(place)} ({len(found)})" for place, found in method.outcomes.items() if len(found) < most]
    if fewer:
        notes.append(
            f"{method.name} has {most} inputs in some sets and fewer in {', '.join(fewer)}: finish these first."
        )
    wanted = [(kind, level) for kind in method.types for level in method.severities]
    missing = [place_name(place) for place in wanted if place not in method.outcomes]
    if missing:
        notes.append(f"{method.name} has no {', '.join(missing)}: the means are over other severities for some types.")
    return notes


def suite_norm(methods: Sequence[SuiteResults]) -> Norm | None:
    """Return the norm of all results, and refuse results in different norms."""
    return common_norm([outcomes for method in methods for outcomes in method.outcomes.values()])
