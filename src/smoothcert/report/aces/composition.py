"""ACES: a certified selector sends every input to a smoothed certifier or to an accurate core.

After Horváth, Müller, Fischer and Vechev (2022), Robust and accurate – compositional architectures for randomized
smoothing. All is computed from stored counts and answers, so no threshold needs new samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothcert.noise.base import shortened
from smoothcert.report.metrics import average_certified_radius, certified_accuracy, check_same_inputs, common_norm
from smoothcert.stats import lower_bound
from smoothcert.stats.decisions import (
    certified_class,
    choice_votes,
    guessed_choice,
    predicted_choice,
    predicted_class,
    routed_class,
)
from smoothcert.store.outcomes import UNKNOWN, Metadata, Outcomes
from smoothcert.types import ABSTAIN, CERTIFIER, CORE, Norm, UsageError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

TABULATED = tuple(i / 10 for i in range(11))
"""The thresholds of the paper's tables."""

_SAME_THETA = 1e-9


@dataclass(frozen=True, eq=False, kw_only=True)
class Components:
    """The answers of the parts of ACES over the same inputs; the arrays are copied and read-only.

    Attributes:
        certifier: The certifier alone: inputs, labels, certified classes and radii, at its share α/2. Its alpha and
            metadata are those of the composition.
        predicted: The classes of the certifier by PREDICT, or ``ABSTAIN``.
        core: The classes of the core on the clean inputs.
        thetas: The thresholds θ, ascending.
        choice: The selector's certified choice by threshold and input: ``CERTIFIER``, ``CORE`` or ``ABSTAIN``.
        choice_radius: The radius of that choice, 0 for abstentions.
        choice_predicted: The selector's choice by PREDICT.
        median: The median score (entropy) of every input over its noisy copies, if known; NaN without valid copies.
        settings: Noise, n and alpha of the votes, if known.

    Raises:
        UsageError: If the arrays have inconsistent shapes or impossible values.
    """

    certifier: Outcomes
    predicted: IntArray
    core: IntArray
    thetas: FloatArray
    choice: IntArray
    choice_radius: FloatArray
    choice_predicted: IntArray
    median: FloatArray | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        inputs = (len(self.certifier),)
        thetas = self._set("thetas", np.shape(self.thetas), np.float64)
        ascending = thetas.ndim == 1 and thetas.size and (np.diff(thetas) > 0).all()
        if not ascending or not ((thetas >= 0) & (thetas <= 1)).all():
            raise UsageError(f"{self.name}: the thresholds must ascend within [0, 1].")
        for name in ("predicted", "core"):
            if self._set(name, inputs, np.int64).min() < ABSTAIN:
                raise UsageError(f"{self.name}: {name} has a class below -1 (abstain).")
        both = (len(thetas), *inputs)
        for name in ("choice", "choice_predicted"):
            if not np.isin(self._set(name, both, np.int64), (CERTIFIER, CORE, ABSTAIN)).all():
                raise UsageError(f"{self.name}: a selection must be 1 (certifier), 0 (core) or -1 (abstain).")
        radius = self._set("choice_radius", both, np.float64)
        if not (np.isfinite(radius) & (radius >= 0)).all():
            raise UsageError(f"{self.name}: the radii of the selection must be finite and not negative.")
        if radius[self.choice == ABSTAIN].any():
            raise UsageError(f"{self.name}: a selection that abstains must have radius 0.")
        if self.median is not None:
            self._set("median", inputs, np.float64)

    def _set(self, name: str, shape: tuple[int, ...], type_: type[Any]) -> NDArray[Any]:
        array = np.array(getattr(self, name))
        if array.shape != shape:
            raise UsageError(f"{self.name}: {name} has shape {array.shape}, but {shape} is needed.")
        if type_ is np.int64 and not np.issubdtype(array.dtype, np.integer):
            raise UsageError(f"{self.name}: {name} must hold a whole number for every input.")
        array = array.astype(type_)
        array.setflags(write=False)
        object.__setattr__(self, name, array)
        return array

    @property
    def name(self) -> str:
        return self.certifier.name

    @property
    def index(self) -> IntArray:
        return self.certifier.index

    @property
    def label(self) -> IntArray:
        return self.certifier.label

    @property
    def norm(self) -> Norm | None:
        return self.certifier.norm

    def position(self, theta: float) -> int:
        """Find the position of a threshold among ``thetas``."""
        if not 0 <= theta <= 1:
            raise UsageError(f"theta {theta:g} lies outside [0, 1].")
        nearest = int(np.argmin(np.abs(self.thetas - theta)))
        if abs(self.thetas[nearest] - theta) > _SAME_THETA:
            raise UsageError(f"{self.name} has no threshold {theta:g}; the nearest stored is {self.thetas[nearest]:g}.")
        return nearest

    def restrict(self, index: IntArray) -> Components:
        """Select inputs, ascending."""
        places = np.searchsorted(self.index, index)
        names = ("predicted", "core", "choice", "choice_radius", "choice_predicted", "median")
        arrays = {name: array[..., places] for name in names if (array := getattr(self, name)) is not None}
        return replace(self, certifier=self.certifier.at(places), **arrays)


@dataclass(frozen=True, eq=False)
class Single:
    """A smoothed classifier without a core: its certified answers at the whole α, and its natural accuracy."""

    outcomes: Outcomes
    natural: float


def components_from_votes(
    certifier: tuple[str, ArrayLike, ArrayLike],
    *,
    core: ArrayLike,
    selection: ArrayLike,
    counts: ArrayLike,
    selector0: ArrayLike,
    selector: ArrayLike,
    n: int,
    alpha: float,
    radius: Callable[[FloatArray], FloatArray],
    offset: ArrayLike = 0.0,
    norm: Norm | None = None,
    settings: Mapping[str, Any] | None = None,
    metadata: Metadata = UNKNOWN,
) -> Components:
    """Compute CERTIFY and PREDICT of the parts of ACES from their votes, at every threshold (Algorithms 1 and 4).

    Each bound uses α/2. A class or a choice is guessed from the selection samples and proved by the estimation samples;
    PREDICT tests the estimation samples, two-sided, and chooses the core only where it has more votes *and* passes.

    Args:
        certifier: Its name, and index and label of every input.
        core: The classes of the core on the clean inputs.
        selection: Votes per class among the selection samples, (inputs, classes).
        counts: Votes per class among the n estimation samples, (inputs, classes).
        selector0: Histogram of scores over the selection samples, (inputs, thresholds); entry j counts the scores in
            (θ_{j-1}, θ_j] with θ_j = j/(thresholds - 1).
        selector: The same over the n estimation samples.
        n: Estimation samples, invalid ones included.
        alpha: The probability of a wrong statement, for both parts together.
        radius: The radius that a lower bound on a probability proves, as ``noise.radius``.
        offset: The distance of each input from its grid point, which is subtracted from its radii.
        norm: The norm of that radius, if known.
        settings: The settings of the votes.
        metadata: The metadata of the run.

    Example:
        >>> from smoothcert import Gaussian
        >>> votes = {"selection": [[0, 9]], "counts": [[1, 999]], "selector0": [[0, 9, 0]], "selector": [[2, 995, 3]]}
        >>> parts = components_from_votes(
        ...     ("run", [0], [1]), core=[1], **votes, n=1000, alpha=0.001, radius=Gaussian(0.5).radius
        ... )
        >>> parts.thetas.tolist(), parts.choice[:, 0].tolist()
        ([0.0, 0.5, 1.0], [0, 1, 1])
    """
    name, index, label = certifier
    inputs = np.asarray(index), np.asarray(label)
    class_guess, class_votes = _votes(name, len(inputs[0]), n, selection, counts)
    choice_guess, score_votes = _votes(name, len(inputs[0]), n, selector0, selector)

    def proved(guess: IntArray, count: IntArray) -> tuple[IntArray, FloatArray]:
        distinct, place = np.unique(count, return_inverse=True)
        bound = lower_bound(distinct, n, alpha / 2)
        answer = certified_class(guess, bound[place].reshape(count.shape))
        radii = shortened(radius(bound)[place].reshape(count.shape), offset)
        return answer, np.where(answer == ABSTAIN, 0.0, radii)

    guess = class_guess.argmax(axis=1)
    certified, radii = proved(guess, np.take_along_axis(class_votes, guess[:, None], axis=1)[:, 0])
    chosen = choice_votes(score_votes).swapaxes(1, 2)  # (core or certifier, thresholds, inputs)
    guess = guessed_choice(choice_votes(choice_guess).swapaxes(1, 2))
    choice, choice_radius = proved(guess, np.where(guess == CERTIFIER, chosen[CERTIFIER], chosen[CORE]))
    return Components(
        certifier=Outcomes(name, *inputs, certified, radii, norm, alpha=np.array(alpha), metadata=metadata),
        predicted=predicted_class(class_votes, alpha / 2)[0],
        core=np.asarray(core),
        thetas=np.arange(len(choice)) / (len(choice) - 1),
        choice=choice,
        choice_radius=choice_radius,
        choice_predicted=predicted_choice(chosen, alpha / 2)[0],
        median=_median(chosen[CERTIFIER]),
        settings=settings or {},
    )


def _votes(name: str, inputs: int, n: int, selection: ArrayLike, estimation: ArrayLike) -> tuple[IntArray, IntArray]:
    found = np.asarray(selection, dtype=np.int64), np.asarray(estimation, dtype=np.int64)
    if any(votes.ndim != 2 or votes.shape[1] < 2 or (votes < 0).any() for votes in found):
        raise UsageError(f"{name}: votes must be two or more counts for every input, none of them negative.")
    if found[0].shape != found[1].shape or len(found[0]) != inputs:
        raise UsageError(f"{name}: both samples must have the same inputs, classes and thresholds.")
    if found[1].sum(axis=1).max() > n:
        raise UsageError(f"{name}: there are more votes than the {n} estimation samples.")
    return found


def _median(certify: IntArray) -> FloatArray:
    """Compute the median score of every input: the middle of the thresholds around it."""
    above = (2 * certify < certify[-1]).sum(axis=0)
    return np.where(certify[-1] > 0, np.maximum(above - 0.5, 0.0) / (len(certify) - 1), np.nan)


def compose(components: Components, theta: float) -> Outcomes:
    """Compute the certified answers of ACES at a threshold (Algorithm 1).

    The answer is the certifier's class with the smaller of both radii where the selector is certified to choose it;
    else, with radius 0, the core's class where the core is chosen, or the common class of both where no choice is
    certified.

    Example:
        >>> certifier = Outcomes("run", [0, 1, 2], [5, 5, 5], [5, 5, 5], [0.5, 0.2, 0.9])
        >>> parts = Components(
        ...     certifier=certifier, predicted=[5, 5, 5], core=[5, 5, 7], thetas=[0.1], choice=[[1, -1, 0]],
        ...     choice_radius=[[0.3, 0.0, 0.8]], choice_predicted=[[1, 1, 0]],
        ... )
        >>> answers = compose(parts, 0.1)
        >>> answers.predict.tolist(), answers.radius.tolist()
        ([5, 5, 7], [0.3, 0.0, 0.0])
    """
    at = components.position(theta)
    certifier, choice = components.certifier, components.choice[at]
    predict = routed_class(choice, certifier.predict, components.core)
    proved = (choice == CERTIFIER) & ~certifier.abstained
    radius = np.where(proved, np.minimum(certifier.radius, components.choice_radius[at]), 0.0)
    return replace(certifier, predict=predict, radius=radius, natural=None)


def predictions(components: Components, theta: float) -> IntArray:
    """Compute the classes of ACES by PREDICT at a threshold (Algorithm 4), ``ABSTAIN`` where there is none."""
    return routed_class(components.choice_predicted[components.position(theta)], components.predicted, components.core)


def natural_accuracy(components: Components, theta: float) -> float:
    """Compute NAC: the share of inputs that PREDICT classifies correctly."""
    return float((predictions(components, theta) == components.label).mean())


def selection_counts(components: Components, theta: float, radii: ArrayLike) -> IntArray:
    """Count the inputs whose selector is certified, within every r of ``radii``, to choose the certifier."""
    at = components.position(theta)
    chosen = components.choice_radius[at][components.choice[at] == CERTIFIER]
    return np.asarray((chosen[:, None] >= np.atleast_1d(np.asarray(radii, dtype=np.float64))).sum(axis=0))


def signed_selection_radius(components: Components, theta: float) -> FloatArray:
    """Return the selector's radii: positive for the certifier, negative for the core, 0 for abstentions."""
    at = components.position(theta)
    return np.asarray(np.where(components.choice[at] == CERTIFIER, 1.0, -1.0) * components.choice_radius[at])


def pareto(components: Components, radius: float | None = None) -> tuple[FloatArray, FloatArray]:
    """Compute natural accuracy and robustness at every threshold, as shares in [0, 1] (Figures 1, 4 and 9).

    Robustness is certified accuracy at ``radius``, or the ACR when it is None.
    """
    composed = [compose(components, theta) for theta in components.thetas]
    natural = np.array([natural_accuracy(components, theta) for theta in components.thetas])
    if radius is None:
        return natural, np.array([average_certified_radius(outcomes) for outcomes in composed])
    return natural, np.array([certified_accuracy(outcomes, radius)[0] for outcomes in composed])


def check_comparable(runs: Sequence[Components]) -> None:
    """Refuse components that cannot be in one table."""
    certifiers = [run.certifier for run in runs]
    common_norm(certifiers)
    check_same_inputs(certifiers)
    first = runs[0]
    for run in runs[1:]:
        for key in sorted(run.settings.keys() & first.settings.keys()):
            if run.settings[key] != first.settings[key]:
                raise UsageError(
                    f"{key} is {first.settings[key]} in {first.name} and {run.settings[key]} in {run.name}; "
                    "show them separately."
                )
