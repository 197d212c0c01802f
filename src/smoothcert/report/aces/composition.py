"""ACES: a certified selector gives every input to a smoothed certifier or to an accurate core.

After Horváth, Müller, Fischer and Vechev (2022), Robust and accurate – compositional architectures for randomized
smoothing. Everything is computed from stored counts and answers, so every threshold is free of new samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothcert.noise.base import shortened
from smoothcert.report.metrics import average_certified_radius, certified_accuracy, common_norm
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
    """What the parts of ACES answered over the same inputs; the arrays are copied and read-only.

    Attributes:
        certifier: The certifier alone: inputs, labels, certified classes and radii, at its share α/2. Its alpha and
            metadata are those of the composition.
        predicted: The classes of the certifier by PREDICT, ``ABSTAIN`` (-1) where there is none.
        core: The classes of the core on the clean inputs.
        thetas: The thresholds θ, ascending.
        choice: The selector's certified choice by threshold and input: 1 certifier, 0 core, -1 abstain.
        choice_radius: The radius of that choice, 0 for abstentions.
        choice_predicted: The selector's choice by PREDICT.
        median: The median score (entropy) of every input over its noisy copies, if known; NaN without any.
        settings: What the votes were drawn with (noise, n, alpha), if known.

    Raises:
        UsageError: If the arrays do not fit together or hold values that no part can have.
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
        thetas = self._set("thetas", np.float64)
        inside = ((thetas >= 0) & (thetas <= 1)).all() and (np.diff(thetas) > 0).all()
        if thetas.ndim != 1 or not thetas.size or not inside:
            raise UsageError(f"{self.name}: the thresholds must ascend within [0, 1].")
        shapes = {"predicted": inputs, "core": inputs} | dict.fromkeys(
            ("choice", "choice_radius", "choice_predicted"), (len(thetas), *inputs)
        )
        for name, shape in shapes.items():
            array = self._set(name, np.float64 if name == "choice_radius" else np.int64)
            if array.shape != shape:
                raise UsageError(f"{self.name}: {name} has shape {array.shape}, but {shape} is needed.")
        if min(self.predicted.min(), self.core.min()) < ABSTAIN:
            raise UsageError(f"{self.name}: classes count from 0, and only an answer may be -1 (abstain).")
        choices = (CERTIFIER, CORE, ABSTAIN)
        if not (np.isin(self.choice, choices) & np.isin(self.choice_predicted, choices)).all():
            raise UsageError(f"{self.name}: a selection must be 1 (certifier), 0 (core) or -1 (abstain).")
        if not (np.isfinite(self.choice_radius) & (self.choice_radius >= 0)).all():
            raise UsageError(f"{self.name}: the radii of the selection must be finite and not negative.")
        if self.choice_radius[self.choice == ABSTAIN].any():
            raise UsageError(f"{self.name}: a selection that abstains must have radius 0.")
        if self.median is not None and self._set("median", np.float64).shape != inputs:
            raise UsageError(f"{self.name}: there must be one median for every input.")

    def _set(self, name: str, type_: type[Any]) -> NDArray[Any]:
        array = np.array(getattr(self, name))
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
            raise UsageError(f"theta {theta:g} lies outside [0, 1]; entropies and probabilities do not.")
        nearest = int(np.argmin(np.abs(self.thetas - theta)))
        if abs(self.thetas[nearest] - theta) > _SAME_THETA:
            raise UsageError(f"{self.name} has no threshold {theta:g}; the nearest stored is {self.thetas[nearest]:g}.")
        return nearest

    def restrict(self, index: IntArray) -> Components:
        """Select inputs, ascending."""
        places = np.searchsorted(self.index, index)
        arrays = {name: getattr(self, name)[places] for name in ("predicted", "core")}
        arrays |= {name: getattr(self, name)[:, places] for name in ("choice", "choice_radius", "choice_predicted")}
        median = None if self.median is None else self.median[places]
        return replace(self, certifier=self.certifier.at(places), median=median, **arrays)


@dataclass(frozen=True, eq=False)
class Single:
    """One smoothed classifier, to be compared with compositions.

    Attributes:
        outcomes: Its certified answers, at the whole α.
        natural: Its natural accuracy, by PREDICT.
    """

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

    Each bound takes α/2. A class or a choice is guessed from the selection copies and proved by the estimation copies;
    PREDICT tests the estimation copies, two-sided, and gives the core only where it has more votes *and* passes.

    Args:
        certifier: Its name, and index and label of every input.
        core: The classes of the core on the clean inputs.
        selection: Votes per class among the selection copies, (inputs, classes).
        counts: Votes per class among the n estimation copies, (inputs, classes).
        selector0: Histogram of scores over the selection copies, (inputs, thresholds); entry j counts the scores in
            (θ_{j-1}, θ_j] with θ_j = j/(thresholds - 1).
        selector: The same over the n estimation copies.
        n: Estimation copies, invalid ones included.
        alpha: The probability of a wrong statement, for both parts together.
        radius: The radius that a lower bound on a probability proves, as ``noise.radius``.
        offset: What to take off the radii of each input: its distance from the grid point it was taken as.
        norm: The norm of that radius, if known.
        settings: What the votes were drawn with.
        metadata: What the run says about its radii.

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
    arrays = {"selection": selection, "counts": counts, "selector0": selector0, "selector": selector}
    votes = {key: np.asarray(value, dtype=np.int64) for key, value in arrays.items()}
    for key, array in votes.items():
        if array.ndim != 2 or array.shape[1] < 2 or array.shape[0] != len(votes["counts"]) or (array < 0).any():
            raise UsageError(f"{name}: {key} must hold two or more counts for every input, none of them negative.")
    if votes["selection"].shape != votes["counts"].shape or votes["selector0"].shape != votes["selector"].shape:
        raise UsageError(f"{name}: both samples must be counted over the same classes and the same thresholds.")
    if max(votes["counts"].sum(axis=1).max(), votes["selector"].sum(axis=1).max()) > n:
        raise UsageError(f"{name}: there are more votes than the {n} estimation copies.")
    rows = np.arange(len(votes["counts"]))

    def proved(guess: IntArray, count: IntArray) -> tuple[IntArray, FloatArray]:
        distinct, place = np.unique(count, return_inverse=True)
        bound = lower_bound(distinct, n, alpha / 2)
        answer = certified_class(guess, bound[place].reshape(count.shape))
        radii = shortened(radius(bound)[place].reshape(count.shape), offset)
        return answer, np.where(answer == ABSTAIN, 0.0, radii)

    guess = votes["selection"].argmax(axis=1)
    certified, radii = proved(guess, votes["counts"][rows, guess])
    chosen = choice_votes(votes["selector"]).swapaxes(1, 2)  # (core or certifier, thresholds, inputs)
    guess = guessed_choice(choice_votes(votes["selector0"]).swapaxes(1, 2))
    choice, choice_radius = proved(guess, np.where(guess == CERTIFIER, chosen[CERTIFIER], chosen[CORE]))
    inputs = np.asarray(index), np.asarray(label)
    return Components(
        certifier=Outcomes(name, *inputs, certified, radii, norm, alpha=np.full(len(rows), alpha), metadata=metadata),
        predicted=predicted_class(votes["counts"], alpha / 2)[0],
        core=np.asarray(core),
        thetas=np.arange(len(choice)) / (len(choice) - 1),
        choice=choice,
        choice_radius=choice_radius,
        choice_predicted=predicted_choice(chosen, alpha / 2)[0],
        median=_median(chosen[CERTIFIER]),
        settings=settings or {},
    )


def _median(certify: IntArray) -> FloatArray:
    """Compute the median score of every input: the middle of the thresholds around it; NaN without a valid copy."""
    above = (2 * certify < certify[-1]).sum(axis=0)
    return np.where(certify[-1] > 0, np.maximum(above - 0.5, 0.0) / (len(certify) - 1), np.nan)


def compose(components: Components, theta: float) -> Outcomes:
    """Compute the certified answers of ACES at a threshold (Algorithm 1).

    The certifier's class with the smaller of both radii where the selector is certified to choose it; else, with radius
    0, the core's class where that is chosen, and the common class of both where neither choice is certified.

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
    """Compute natural accuracy and robustness at every threshold (Figures 1, 4 and 9).

    Args:
        radius: Measure robustness by certified accuracy at this radius; by the ACR when it is None.

    Returns:
        Natural accuracies, and ACRs or certified accuracies, as shares in [0, 1].
    """
    composed = [compose(components, theta) for theta in components.thetas]
    natural = np.array([natural_accuracy(components, theta) for theta in components.thetas])
    if radius is None:
        return natural, np.array([average_certified_radius(outcomes) for outcomes in composed])
    return natural, np.array([certified_accuracy(outcomes, radius)[0] for outcomes in composed])


def check_comparable(runs: Sequence[Components]) -> None:
    """Refuse components that cannot be in one table."""
    common_norm([run.certifier for run in runs])
    first = runs[0]
    for run in runs[1:]:
        if not np.array_equal(run.index, first.index) or not np.array_equal(run.label, first.label):
            raise UsageError(f"{run.name} is about other inputs than {first.name}; show them separately.")
        for key in sorted(run.settings.keys() & first.settings.keys()):
            if run.settings[key] != first.settings[key]:
                raise UsageError(
                    f"{key} is {first.settings[key]} in {first.name} and {run.settings[key]} in {run.name}; "
                    "show them separately."
                )
