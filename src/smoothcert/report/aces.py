"""ACES from stored parts: a certified selector gives every input to a smoothed certifier or to an accurate core.

After Horváth, Müller, Fischer and Vechev (2022), Robust and accurate – compositional architectures for randomized
smoothing. Pure NumPy over counts and answers that are already there, so every threshold costs no sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothcert.report.metrics import Outcomes, average_certified_radius, certified_accuracy, common_norm
from smoothcert.stats.decisions import routed_class
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
        median: The median score (entropy) of every input over its noisy copies, where it is known; NaN without any.
        settings: What the votes were drawn with (sigma, n, alpha), where it is known.

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
        if not (
            np.isin(self.choice, (CERTIFIER, CORE, ABSTAIN)) & np.isin(self.choice_predicted, (1, 0, ABSTAIN))
        ).all():
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
        """The place of a threshold among ``thetas``.

        Raises:
            UsageError: If it lies outside [0, 1] or is not stored; the nearest is then named.
        """
        if not 0 <= theta <= 1:
            raise UsageError(f"theta {theta:g} lies outside [0, 1]; entropies and probabilities do not.")
        nearest = int(np.argmin(np.abs(self.thetas - theta)))
        if abs(self.thetas[nearest] - theta) > _SAME_THETA:
            raise UsageError(f"{self.name} has no threshold {theta:g}; the nearest stored is {self.thetas[nearest]:g}.")
        return nearest


@dataclass(frozen=True, eq=False)
class Single:
    """One smoothed classifier, to be seen beside compositions.

    Attributes:
        outcomes: Its certified answers, at the whole α.
        natural: Its natural accuracy, by PREDICT.
    """

    outcomes: Outcomes
    natural: float


def compose(components: Components, theta: float) -> Outcomes:
    """The certified answers of ACES at a threshold (Algorithm 1).

    The certifier's class with the smaller of both radii where the selector is certified to choose it; else, with radius
    0, the core's class where that is chosen, and the common class of both where neither choice is certified.

    Raises:
        UsageError: If the threshold is not stored.

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
    """The classes of ACES by PREDICT at a threshold (Algorithm 4), ``ABSTAIN`` where there is none.

    Raises:
        UsageError: If the threshold is not stored.
    """
    return routed_class(components.choice_predicted[components.position(theta)], components.predicted, components.core)


def natural_accuracy(components: Components, theta: float) -> float:
    """NAC: the share of inputs that PREDICT classifies correctly."""
    return float((predictions(components, theta) == components.label).mean())


def selection_counts(components: Components, theta: float, radii: ArrayLike) -> IntArray:
    """Count the inputs whose selector is certified, within every r of ``radii``, to choose the certifier.

    Abstentions are not counted at any r, 0 included.
    """
    at = components.position(theta)
    chosen = components.choice_radius[at][components.choice[at] == CERTIFIER]
    return np.asarray((chosen[:, None] >= np.atleast_1d(np.asarray(radii, dtype=np.float64))).sum(axis=0))


def signed_selection_radius(components: Components, theta: float) -> FloatArray:
    """The selector's radius for every input: positive for the certifier, negative for the core, 0 for abstentions."""
    at = components.position(theta)
    return np.asarray(np.where(components.choice[at] == CERTIFIER, 1.0, -1.0) * components.choice_radius[at])


def pareto(components: Components, radius: float | None = None) -> tuple[FloatArray, FloatArray]:
    """Robustness over natural accuracy, a point per threshold (Figures 1, 4 and 9).

    Args:
        components: The parts.
        radius: Measure robustness by certified accuracy at this radius; by the ACR when it is None.

    Returns:
        Natural accuracies, and ACRs or certified accuracies, as shares in [0, 1].
    """
    composed = [compose(components, theta) for theta in components.thetas]
    natural = np.array([natural_accuracy(components, theta) for theta in components.thetas])
    if radius is None:
        return natural, np.array([average_certified_radius(outcomes) for outcomes in composed])
    return natural, np.array([certified_accuracy(outcomes, radius)[0] for outcomes in composed])


def check_inputs(runs: Sequence[Components]) -> None:
    """Refuse components that cannot stand in one picture.

    Raises:
        UsageError: If their inputs, labels or norms differ.
    """
    common_norm([run.certifier for run in runs])
    first = runs[0]
    for run in runs[1:]:
        if not np.array_equal(run.index, first.index) or not np.array_equal(run.label, first.label):
            raise UsageError(f"{run.name} is about other inputs than {first.name}; show them apart.")


def check_comparable(runs: Sequence[Components]) -> None:
    """Refuse components that cannot stand in one table.

    Raises:
        UsageError: If inputs, labels, norm, sigma, n or alpha differ (where known); the sentence says which.
    """
    check_inputs(runs)
    first = runs[0]
    for run in runs[1:]:
        for key in sorted(run.settings.keys() & first.settings.keys()):
            if run.settings[key] != first.settings[key]:
                raise UsageError(
                    f"{key} is {first.settings[key]} in {first.name} and {run.settings[key]} in {run.name}; "
                    "show them apart."
                )
