"""Markers and notes of tables and figures: what differs between runs, and how many errors to expect.

The rules are in docs/runs.md: when a line is marked, which lines are ranked against each other, and what is unknown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np

from smoothcert.report.metrics import NORM_TEXT
from smoothcert.store import Origin, Outcomes
from smoothcert.store.outcomes import METADATA_COLUMNS, Metadata, merged_metadata
from smoothcert.store.run_json import REQUESTS
from smoothcert.types import RUNNER_UP, Guarantee, Norm

CHOSEN = (
    "such a bound is valid only if the choice was made before looking at the results; the best of several choices is "
    "not a certificate at alpha, since the best of k makes up to k times as many errors"
)
"""The sentence for settings that were chosen after the votes were drawn."""

COVERED = {
    Guarantee.POINTWISE.value: (
        "the noise was chosen for each input alone, so a perturbed input may be answered by another classifier"
    ),
    Guarantee.MEMORY.value: "the noise was chosen for each input, and balls are cut where they would contradict others",
    Guarantee.ROUTED.value: "a selector that is certified within the radius chose who answers",
}
"""What the guarantees mean that are not about one classifier for all inputs."""

_MOST_NAMES = 4
_RECORDED = ("norm", "guarantee", "arithmetic")


@dataclass(frozen=True)
class Subject:
    """A line of a table or a curve of a figure: one run, or several that are shown as one.

    The statements of ``pooled`` runs are counted as one set, as those of a suite of corruptions are.
    """

    name: str
    runs: tuple[Outcomes, ...]
    pooled: bool = False

    @property
    def norm(self) -> Norm | None:
        """The norm of the radii, if all runs record it."""
        norms = {run.norm for run in self.runs}
        return None if None in norms else norms.pop()

    @property
    def metadata(self) -> Metadata:
        return merged_metadata(run.metadata for run in self.runs)

    @property
    def rank(self) -> str:
        """A text that is equal for lines of the same norm and guarantee; unknown is a separate value."""
        return f"{self.text('norm')} {self.text('guarantee')}"

    @property
    def inputs(self) -> tuple[object, ...] | None:
        """The dataset and its inputs; None where the dataset is unknown, and for pooled runs."""
        origin = self.runs[0].origin or Origin()
        if self.pooled or origin.data is None:
            return None
        return origin.data, origin.sample, np.sort(self.runs[0].index).tobytes()

    def text(self, what: str) -> str:
        """Write norm, guarantee or arithmetic as text."""
        if what == "norm":
            return "unknown" if self.norm is None else NORM_TEXT[self.norm]
        return self.metadata.text(what)

    @property
    def unknown(self) -> list[str]:
        """Which of norm, guarantee and arithmetic are not known for all inputs."""
        return [what for what in _RECORDED if "unknown" in self.text(what).split("+")]


def subjects(runs: Iterable[Outcomes]) -> list[Subject]:
    """Make a line of every run."""
    return [Subject(run.name, (run,)) for run in runs]


def ranks(shown: Sequence[Subject]) -> list[object]:
    """Return a key for each line: lines with equal keys may be ranked against each other.

    They have the same norm and guarantee. Where the lines are about different datasets or inputs, they have those in
    common too, and lines whose dataset is unknown are ranked among themselves.
    """
    apart = len({each.inputs for each in shown} - {None}) > 1
    return [(each.rank, each.inputs if apart else None) for each in shown]


def markers(shown: Sequence[Subject]) -> list[str]:
    """Return the text behind the name of each line, such as ``" [pointwise, float]"``.

    A guarantee is shown if it is not ``global`` or if lines differ in it; arithmetic, if they differ in it; and
    ``unknown``, if norm, guarantee or arithmetic is known for another line.
    """
    differing = {what for what in _RECORDED if len({each.text(what) for each in shown}) > 1}
    found = []
    for each in shown:
        guarantee, arithmetic = each.text("guarantee"), each.text("arithmetic")
        words = [guarantee] if "guarantee" in differing or guarantee != Guarantee.GLOBAL.value else []
        words += [arithmetic] if "arithmetic" in differing else []
        words = [word for word in words if word != "unknown"]
        words += ["unknown"] if differing & set(each.unknown) and "unknown" not in "+".join(words) else []
        found.append(f" [{', '.join(words)}]" if words else "")
    return found


def notes(shown: Sequence[Subject], *, ranked: bool = False) -> list[str]:
    """Write the sentences below a table or a figure; ``ranked`` is whether best and runner-up are marked."""
    present = {kind for each in shown for kind in each.metadata.guarantee}
    kinds = len({each.rank for each in shown}) > 1
    inputs = len(set(ranks(shown))) > len({each.rank for each in shown})
    same = "norm, guarantee and inputs" if kinds and inputs else "inputs" if inputs else "norm and guarantee"
    return [
        *_shared(shown),
        *_unknown(shown),
        *(_sentence(f"{kind}: {meaning}.") for kind, meaning in COVERED.items() if kind in present),
        *[f"Best and runner-up are found among runs of the same {same} only."] * (ranked and (kinds or inputs)),
        *_mixed(shown),
        *_runner_up(shown),
        *_served(shown),
        *expected_errors(shown),
        *chosen([run for each in shown for run in each.runs]),
    ]


def _shared(shown: Sequence[Subject]) -> list[str]:
    texts = {what: {each.text(what) for each in shown} for what in _RECORDED}
    parts = [f"{what} {min(found)}" for what, found in texts.items() if len(found) == 1 and "unknown" not in found]
    return [_sentence(f"{', '.join(parts)}.")] if parts else []


def _unknown(shown: Sequence[Subject]) -> list[str]:
    by_gap: dict[str, list[str]] = {}
    for each in shown:
        if each.unknown:
            by_gap.setdefault(_listed(each.unknown), []).append(each.name)
    known = {each.norm for each in shown} - {None}
    sentences = []
    for gap, names in by_gap.items():
        of = "" if len(names) == len(shown) else f" of {name_list(names)}"
        sentence = f"{gap}{of} unknown (not recorded)"
        if gap.startswith("norm") and known:
            sentence += f"; shown as if in {NORM_TEXT[next(iter(known))]}"
        sentences.append(_sentence(f"{sentence}."))
    return sentences


def _mixed(shown: Sequence[Subject]) -> list[str]:
    """Name runs whose rows were made in different ways; seeds may differ, as those of shards do."""
    kinds = {"guarantee": "guarantees", "arithmetic": "kinds of arithmetic", "runtime": "runtimes"}
    return [
        f"{run.name} holds rows of several {plural}: {run.metadata.text(what)}."
        for run in dict.fromkeys(run for each in shown for run in each.runs)
        for what, plural in {**kinds, "model": "classifiers"}.items()
        if len(getattr(run.metadata, what)) > 1
    ]


def _runner_up(shown: Sequence[Subject]) -> list[str]:
    """Name runs whose radii follow from a bound on the runner-up too, unlike those of most published tables."""
    runs = dict.fromkeys(run for each in shown for run in each.runs)
    names = [run.name for run in runs if (run.origin or Origin()).bound == RUNNER_UP]
    of = "" if len(names) == len(runs) else f" of {name_list(names)}" if names else ""
    return [f"Radii{of} use the runner-up bound where the selection votes favour it."] if names else []


def _served(shown: Sequence[Subject]) -> list[str]:
    """Name runs of a server, which does not know the true classes."""
    runs = dict.fromkeys(run for each in shown for run in each.runs)
    names = [run.name for run in runs if (run.origin or Origin()).data == REQUESTS]
    of = "" if len(names) == len(runs) else f" of {name_list(names)}" if names else ""
    return [f"True classes{of} are unknown: each answer of the server counts as correct."] if names else []


def expected_errors(shown: Sequence[Subject]) -> list[str]:
    """Bound the number of false statements: the sum of alpha over all inputs, in expectation over the noise.

    Each input yields one statement, whether it is certified or not, and each is false with probability at most its
    alpha. By the union bound, none is false with probability at least one minus the sum.
    """
    by_text: dict[str, list[str]] = {}
    for each in shown:
        for name, runs in [(each.name, each.runs)] if each.pooled else [(run.name, (run,)) for run in each.runs]:
            by_text.setdefault(_errors(runs), []).append(name)
    if len(by_text) > 1:
        return [f"{name_list(names)}: {text}" for text, names in by_text.items()]
    each_one = f"for each {'method' if shown[0].pooled else 'run'}, "
    return [_sentence(each_one + text if len(names) > 1 else text) for text, names in by_text.items()]


def _errors(runs: Sequence[Outcomes]) -> str:
    total = expected_false(runs)
    if total is None:
        return "the expected number of false statements is unknown (alpha not recorded)."
    alphas, count = _alphas(runs), sum(map(len, runs))
    level = f"alpha = {max(alphas):g} per input" if len(alphas) == 1 else f"alpha up to {max(alphas):g} per input"
    if count == 1:
        return f"of 1 statement at most {upwards(total)} is expected to be false ({level})."
    sentence = f"of the {count:,} statements at most {upwards(total)} are expected to be false ({level})"
    if total < 1:
        sentence += f"; all hold with probability at least {1 - Decimal(upwards(total))}"
    return sentence + "."


def expected_false(runs: Sequence[Outcomes]) -> Fraction | None:
    """Bound the expected number of false statements by the sum of alpha; None where an alpha is unknown."""
    if any(run.alpha is None for run in runs):
        return None
    # The shortest decimal text of a float is what was asked for: 0.001, not 0.001000000000000000020816….
    return sum((Fraction(repr(value)) * count for value, count in _alphas(runs).items()), Fraction(0))


def _alphas(runs: Sequence[Outcomes]) -> Counter[float]:
    return Counter(value for run in runs if run.alpha is not None for value in run.alpha.tolist())


def upwards(value: Fraction, digits: int = 3) -> str:
    """Write a number above 0 with some significant digits, rounded up: an upper bound stays one.

    Example:
        >>> upwards(Fraction(1, 3)), upwards(Fraction(1, 2)), upwards(Fraction(12345))
        ('0.334', '0.5', '12400')
    """
    exponent = math.floor(math.log10(float(value))) - digits + 1
    scaled = Fraction(10) ** -exponent * value
    whole = -(-scaled.numerator // scaled.denominator)
    return f"{Decimal(whole).scaleb(exponent).normalize():f}"


def chosen(runs: Sequence[Outcomes]) -> list[str]:
    """Warn about settings that were chosen after the votes were drawn."""
    settings = list(dict.fromkeys(text for run in runs for text in run.metadata.chosen))
    return [f"{' and '.join(settings)} chosen from stored votes: {CHOSEN}."] if settings else []


def csv_columns(shown: Sequence[Subject]) -> tuple[list[str], list[list[str]]]:
    """Write headings and metadata of each line for CSV, which has neither markers nor notes; none if all is unknown."""
    if not any(each.metadata.known or each.norm or run.alpha is not None for each in shown for run in each.runs):
        return [], [[] for _ in shown]
    found = []
    for each in shown:
        values = [each.norm.value if each.norm else "unknown"]
        values += [each.metadata.text(what, short=False) for what in METADATA_COLUMNS]
        totals = [expected_false([run]) for run in each.runs]
        known = [total for total in totals if total is not None]
        complete = len(known) == len(totals)
        values.append("+".join(f"{value:g}" for value in sorted(_alphas(each.runs))) if complete else "unknown")
        values.append(upwards(max(known)) if complete else "unknown")
        found.append(["" if value == "unknown" else value for value in values])
    return ["norm", *METADATA_COLUMNS, "alpha", "expected false"], found


def name_list(names: Sequence[str]) -> str:
    """List names in a sentence, the first few of many."""
    rest = len(names) - _MOST_NAMES
    return _listed(names) if rest <= 0 else f"{', '.join(names[:_MOST_NAMES])} and {rest} more"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
