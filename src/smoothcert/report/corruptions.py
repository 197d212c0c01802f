"""Results on suites of corruptions: what each type costs, and means over all types."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from smoothcert.report.metrics import acr_text, average_certified_radius, axis_norm, certified_counts, common_norm
from smoothcert.report.notes import Subject
from smoothcert.store import Outcomes, Result, flat_config, load_run
from smoothcert.store.result import distinct_names, results_in
from smoothcert.types import UsageError

IDENTITY = "identity"
"""The name of the clean set, which is in no mean."""

Place = tuple[str, int | None]
"""A type of corruption and its severity, None where it has none."""

_SETTINGS = ("noise", "procedure", "inputs", "model", "precision")


@dataclass(frozen=True, eq=False)
class SuiteResults:
    """What one method reaches on the sets of a suite.

    Attributes:
        name: The name of the method.
        outcomes: The outcomes on every set.
        settings: For the sets that a run tells about, how it was made.
    """

    name: str
    outcomes: Mapping[Place, Outcomes]
    settings: Mapping[Place, Mapping[str, Any]] = field(default_factory=dict)

    def only(self, places: Iterable[Place]) -> SuiteResults:
        """The same on some of the sets."""
        return SuiteResults(self.name, {place: self.outcomes[place] for place in places}, self.settings)

    @property
    def subject(self) -> Subject:
        """The results on all sets, for markers and notes about them."""
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
    """Something that is measured on every set.

    Attributes:
        name: Its name.
        mean_name: The name of its mean over types.
        of: The exact value for a set.
        text: How a value is printed.
    """

    name: str
    mean_name: str
    of: Callable[[Outcomes], Fraction]
    text: Callable[[Fraction], str]


ACR = Measure(
    "ACR", "mACR", lambda outcomes: Fraction(average_certified_radius(outcomes)), lambda value: acr_text(float(value))
)


def accuracy_at(radius: float) -> Measure:
    """Certified accuracy at a radius, in per cent; rounded half to even from exact counts, also its means."""

    def share(outcomes: Outcomes) -> Fraction:
        return Fraction(int(certified_counts(outcomes, radius)[0]), len(outcomes))

    def text(value: Fraction) -> str:
        tenths = round(1000 * value)
        return f"{tenths // 10}.{tenths % 10}"

    return Measure(f"accuracy at {radius:g} (%)", "mAcc", share, text)


def type_mean(results: SuiteResults, kind: str, measure: Measure) -> Fraction:
    """The mean of a measure over the severities of one type; its value where there is one only."""
    return _mean(measure.of(outcomes) for (name, _), outcomes in results.outcomes.items() if name == kind)


def severity_mean(results: SuiteResults, severity: int, measure: Measure) -> Fraction:
    """The mean of a measure over the types that have a severity, at it."""
    return _mean(measure.of(outcomes) for (_, level), outcomes in results.outcomes.items() if level == severity)


def suite_mean(results: SuiteResults, measure: Measure) -> Fraction:
    """mACR or mAcc: the mean over types of their means over severities; the clean set is left out.

    Nothing is rounded before the end.

    Example:
        >>> right, wrong = (Outcomes("run", [0], [5], [answer], [0.5]) for answer in (5, 7))
        >>> results = SuiteResults("run", {("fog", 1): right, ("fog", 2): wrong, ("snow", 1): right})
        >>> suite_mean(results, ACR)
        Fraction(3, 8)
    """
    return _mean(type_mean(results, kind, measure) for kind in results.types)


def place_name(place: Place) -> str:
    """The name of a set, as its run folder has it."""
    kind, severity = place
    return kind if severity is None else f"{kind}-{severity}"


def load_suite_results(folders: Sequence[str | os.PathLike[str]]) -> list[SuiteResults]:
    """Read the results of methods, one folder for each.

    Args:
        folders: Folders that hold a run or a log for every set, named ``TYPE`` or ``TYPE-SEVERITY``; ``identity`` is
            the clean set.

    Raises:
        UsageError: If a folder is missing or holds no results, or its runs were not made alike.
        RunError, LogError: If a run or a log is damaged.
    """
    paths = [Path(folder).resolve() for folder in folders]
    names = distinct_names({path: path.name for path in paths})
    return [_load(path, names[path]) for path in paths]


def check_alike(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to add runs to a folder whose runs were made in another way.

    Args:
        folder: The folder; it need not be there.
        settings: What the configuration of the new runs will say.
    """
    there = {_place(file.parent.name): load_run(file.parent) for file in sorted(folder.glob("*/run.json"))}
    made = {place: _settings(run.config) for place, run in there.items()}
    _check_settings(folder, {**made, ("this command", None): _settings(json.loads(json.dumps(settings)))})


def comparable(methods: Sequence[SuiteResults]) -> tuple[list[SuiteResults], list[str]]:
    """What can be compared: the sets that all methods have.

    Returns:
        The methods on these sets, and sentences on what a reader should know: what is left out, and how the results
        differ in more than the method.
    """
    common_norm([outcomes for method in methods for outcomes in method.outcomes.values()])
    shared = [place for place in methods[0].outcomes if all(place in method.outcomes for method in methods)]
    if not any(kind != IDENTITY for kind, _ in shared):
        names = " and ".join(method.name for method in methods)
        raise UsageError(f"{names} share no corruption, so there is nothing to compare; certify the same ones.")
    everything = sorted({place for method in methods for place in method.outcomes}, key=place_name)
    notes = []
    for method in methods:
        lacking = [place_name(place) for place in everything if place not in method.outcomes]
        if lacking:
            notes.append(f"{method.name} lacks {', '.join(lacking)}: only what all have is compared.")
    kept = [method.only(shared) for method in methods]
    for method in kept:
        notes += _uneven(method)
    for other in kept[1:]:
        notes += _different(kept[0], other)
    return kept, notes


def suite_title(methods: Sequence[SuiteResults]) -> str:
    """What the results are about, in a few words."""
    found = [outcomes for method in methods for outcomes in method.outcomes.values()]
    types = len(methods[0].types)
    return f"{types} corruption{'s' * (types != 1)}, {len(found[0])} inputs each, {axis_norm(common_norm(found))}"


def _mean(values: Iterable[Fraction]) -> Fraction:
    found = list(values)
    return sum(found, Fraction(0)) / len(found)


def _load(folder: Path, name: str) -> SuiteResults:
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; give one that holds a run or a log for every corruption.")
    found: dict[Place, Result] = {}
    for result in results_in(folder):
        place = _place(result.name)
        if place in found:
            raise UsageError(f"{folder} holds two results for {place_name(place)}; keep one.")
        found[place] = result
    if not any(kind != IDENTITY for kind, _ in found):
        raise UsageError(f"{folder} holds no result for any corruption; make some by `smoothcert corruptions run`.")
    settings = {place: _settings(result.config) for place, result in found.items() if result.run is not None}
    _check_settings(folder, settings)
    return SuiteResults(name, {place: result.outcomes for place, result in found.items()}, settings)


def _place(name: str) -> Place:
    match = re.fullmatch(r"(.+)-([1-5])", name)
    return (match[1], int(match[2])) if match else (name, None)


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return flat_config({key: config[key] for key in _SETTINGS if key in config})


def _check_settings(folder: Path, settings: Mapping[Place, Mapping[str, Any]]) -> None:
    """Refuse runs whose numbers do not belong into one mean."""
    for place, found in settings.items():
        first, expected = next(iter(settings.items()))
        for key in sorted(expected.keys() | found.keys()):
            if expected.get(key) != found.get(key):
                raise UsageError(
                    f"the runs in {folder} were not made alike: {key} is {expected.get(key, 'not set')} in "
                    f"{place_name(first)} and {found.get(key, 'not set')} in {place_name(place)}; certify them alike, "
                    "or into folders of their own."
                )


def _uneven(method: SuiteResults) -> list[str]:
    """Whether sets are missing or have fewer results than others, as in a suite under work."""
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


def _different(one: SuiteResults, other: SuiteResults) -> list[str]:
    """In which settings, beside the model, two methods differ."""
    ours, theirs = (next(iter(method.settings.values()), None) for method in (one, other))
    if ours is None or theirs is None:
        return []
    keys = [key for key in sorted(ours.keys() | theirs.keys()) if not key.startswith("model.")]
    differences = [
        f"{key} ({ours.get(key, 'not set')}, {theirs.get(key, 'not set')})"
        for key in keys
        if ours.get(key) != theirs.get(key)
    ]
    return [f"{one.name} and {other.name} differ in {', '.join(differences)}."] if differences else []
