"""Why ensembles certify more: the variance of classification margins under noise (Horváth et al., 2022, §5, App. C, D).

The logits of member l on a noisy copy of one fixed input are modelled as y = y_c + y_p: a clean component y_c that
varies over trainings (mean c, covariance Σ_c) and an independent perturbation effect y_p that varies over noise (mean
0, covariance Σ_p). Between two members the covariances are ζ_c Σ_c and ζ_p Σ_p.

This is a model of what certification will find, not a certificate: nothing here proves a radius.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothcert.stats.binomial import FloatArray
from smoothcert.stats.orthant import chebyshev_bound, orthant_probability
from smoothcert.types import UsageError, unknown_name

READINGS = ("mean", "clean")
"""What y_c is: the mean logits over the noise, or the logits of the clean input (Horváth et al., 2022, App. D)."""

_LEAST_CORRELATION = 0.05  # entries closer to 0 are left out of a median of ratios: their ratios are noise


class Covariances(NamedTuple):
    """Covariances of the logits of one component.

    Attributes:
        intra: Between the logits of one member, (classes, classes); the mean over the members.
        inter: Between the logits of two different members; the mean over all pairs.
    """

    intra: FloatArray
    inter: FloatArray


@dataclass(frozen=True, eq=False)
class Margins:
    """Mean and covariance of the margins z_i = y_label − y_i of an ensemble, for all classes but the label, in order.

    Attributes:
        mean: The mean margins, (classes − 1,).
        covariance: Their covariance.
    """

    mean: FloatArray
    covariance: FloatArray

    def success_probability(self, *, directions: int = 10_000, seed: int = 0) -> float:
        """P(all margins > 0) for Gaussian margins (Horváth et al., 2022, Eq. 4); see :func:`orthant_probability`."""
        return orthant_probability(self.mean, self.covariance, directions=directions, seed=seed)

    def chebyshev_bound(self) -> float:
        """What the success probability is at least, for any distribution with these moments (Eq. 5)."""
        return chebyshev_bound(self.mean, np.maximum(np.diag(self.covariance), 0.0))  # rounding may leave −10⁻¹⁷


@dataclass(frozen=True, eq=False)
class VarianceModel:
    """The logits of an ensemble at one input, as :func:`estimate_variance` finds them; see the head of this module.

    Attributes:
        label: The class whose success is modelled (class 1 in the paper).
        mean: c, the expected clean component, (classes,).
        clean_covariance: Σ_c, over trainings.
        perturbation_covariance: Σ_p, over noise.
        zeta_c: ζ_c, the correlation of the clean components of two members.
        zeta_p: ζ_p, the correlation of their perturbation effects.
        members: The clean component of each given member, (members, classes).
    """

    label: int
    mean: FloatArray
    clean_covariance: FloatArray
    perturbation_covariance: FloatArray
    zeta_c: float
    zeta_p: float
    members: FloatArray

    @property
    def others(self) -> list[int]:
        """All classes but the label: the order of the margins."""
        return [number for number in range(len(self.mean)) if number != self.label]

    def random_ensemble(self, k: int) -> Margins:
        """The margins of an ensemble of k members *yet to be trained*: both components vary (Horváth et al., App. C).

        Args:
            k: The number of members, any.

        Returns:
            Mean D c and covariance D (Σ_c v(ζ_c, k) + Σ_p v(ζ_p, k)) Dᵀ, v being :func:`variance_ratio`.

        Raises:
            UsageError: If k is below 1.
        """
        covariance = self.clean_covariance * variance_ratio(self.zeta_c, k)
        return self._margins(self.mean, covariance + self.perturbation_covariance * variance_ratio(self.zeta_p, k))

    def given_members(self, k: int) -> Margins:
        """The margins of the first k of the members that the model was estimated from: only the noise varies.

        This is what certifying these very networks will see; Σ_c, which is about training anew, does not enter.

        Args:
            k: The number of members, at most as many as there are.

        Returns:
            The mean clean margins of these members, and the covariance D Σ_p Dᵀ v(ζ_p, k).

        Raises:
            UsageError: If there are fewer members.
        """
        if not 1 <= k <= len(self.members):
            raise UsageError(f"the model was estimated from {len(self.members)} members, so k = {k} is not among them.")
        covariance = self.perturbation_covariance * variance_ratio(self.zeta_p, k)
        return self._margins(self.members[:k].mean(axis=0), covariance)

    def _margins(self, mean: FloatArray, covariance: FloatArray) -> Margins:
        # Margins are formed before anything is inverted or factored: a shift common to all logits drops out here.
        difference = np.delete(-np.eye(len(mean)), self.label, axis=0)
        difference[:, self.label] = 1.0
        return Margins(difference @ mean, difference @ covariance @ difference.T)


@dataclass(frozen=True, eq=False)
class Agreement:
    """Success probabilities at one input, measured and modelled, one entry per ensemble size.

    Attributes:
        sizes: The ensemble sizes k.
        measured: The share of noisy copies on which soft voting of the first k members picks the label.
        given_members: Modelled for these members.
        random_ensemble: Modelled for k members yet to be trained.
        chebyshev: The lower bound (5) for these members.
        copies: The number of noisy copies measured on.
    """

    sizes: tuple[int, ...]
    measured: FloatArray
    given_members: FloatArray
    random_ensemble: FloatArray
    chebyshev: FloatArray
    copies: int


def estimate_variance(
    clean: ArrayLike, noisy: ArrayLike, *, label: int | None = None, reading: str = "mean"
) -> VarianceModel:
    """Estimate c, Σ_c, Σ_p, ζ_c and ζ_p at one input from the logits of several members.

    ζ is the median of inter/intra over the entries on and above the diagonal of the two matrices of
    :func:`component_covariances`, without entries whose correlation is below 0.05 (their denominator is near 0), and
    is clamped to [0, 1]. ζ_c always comes out as 0, whatever the networks: deviations from the mean of k members have
    an inter/intra ratio of −1/k by arithmetic, and what all trainings share is part of c. The paper's ζ_c ≈ 0 for
    k = 50 says no more; :meth:`VarianceModel.random_ensemble` accordingly is about members as diverse as the given.

    Args:
        clean: Logits of the clean input, (members, classes).
        noisy: Logits of its noisy copies, (members, copies, classes); all members saw the same copies.
        label: The class whose success is modelled; the one that soft voting of all members picks most often if not
            given.
        reading: ``"mean"`` takes y_c as the mean logits over the noise, ``"clean"`` as the logits of the clean input.
            The first is the default because it agrees better with what is measured, above all where the noise is so
            strong that the network is no longer linear over it, and makes y_p zero-mean by definition.

    Returns:
        The model.

    Raises:
        UsageError: If there are fewer than two members or copies, logits are not finite, or shapes do not fit.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> clean = generator.normal([2.0, 0.0, 0.0], 0.3, (5, 3))
        >>> noisy = clean[:, None] + generator.normal(0.0, 1.0, (200, 3))  # the same effect in all members
        >>> round(estimate_variance(clean, noisy).zeta_p, 6)
        1.0
    """
    clean_part, perturbation = component_covariances(clean, noisy, reading=reading)
    clean, noisy = _checked(clean, noisy)
    classes = clean.shape[1]
    if label is None:
        label = int(np.bincount(noisy.mean(axis=0).argmax(axis=1), minlength=classes).argmax())
    if not 0 <= label < classes:
        raise UsageError(f"label must be a class from 0 to {classes - 1}, got {label}.")
    members = clean if reading == "clean" else noisy.mean(axis=1)
    zetas = _median_ratio(clean_part), _median_ratio(perturbation)
    return VarianceModel(label, members.mean(axis=0), clean_part.intra, perturbation.intra, *zetas, members)


def component_covariances(
    clean: ArrayLike, noisy: ArrayLike, *, reading: str = "mean"
) -> tuple[Covariances, Covariances]:
    """Covariances within and between members, of the clean component and of the perturbation effect (App. D, Fig. 11).

    Args, Raises: As :func:`estimate_variance`.

    Returns:
        Those of y_c, over members, and those of y_p, over noisy copies; each member's y_p is taken about its own mean,
        so that the second pair does not depend on the reading.
    """
    if reading not in READINGS:
        raise unknown_name("reading", reading, READINGS)
    clean, noisy = _checked(clean, noisy)
    means = noisy.mean(axis=1)
    members = clean if reading == "clean" else means
    deviations = members - members.mean(axis=0)
    intra = deviations.T @ deviations / (len(members) - 1)
    # The deviations sum to 0, so the sum over pairs of different members is minus the sum over equal ones.
    return Covariances(intra, -intra / len(members)), _between_members(noisy - means[:, None])


def soft_voting_margins(noisy: ArrayLike, k: int, label: int) -> FloatArray:
    """The margins of the soft-voting ensemble of the first k members, measured (Horváth et al., 2022, Eq. 2).

    Args:
        noisy: Logits of noisy copies, (members, copies, classes).
        k: The number of members.
        label: The class whose margins are taken.

    Returns:
        Margins to all other classes in order, (copies, classes − 1).

    Raises:
        UsageError: If there are fewer members or there is no such class.
    """
    noisy = np.asarray(noisy, dtype=np.float64)
    if noisy.ndim != 3 or not 1 <= k <= len(noisy) or not 0 <= label < noisy.shape[2]:
        raise UsageError(f"no margins of class {label} over {k} members in logits of shape {noisy.shape}.")
    logits: FloatArray = noisy[:k].mean(axis=0)
    margins: FloatArray = logits[:, [label]] - np.delete(logits, label, axis=1)
    return margins


def compare_with_votes(model: VarianceModel, noisy: ArrayLike, sizes: Sequence[int]) -> Agreement:
    """Set modelled success probabilities beside those measured on noisy copies, which may be fresh ones.

    Args:
        model: The model of the input.
        noisy: Logits of noisy copies of it by the same members in the same order, (members, copies, classes).
        sizes: Ensemble sizes, at most the number of members.

    Returns:
        The probabilities.

    Raises:
        UsageError: If there are fewer members than a size.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> clean = generator.normal([2.0, 0.0, 0.0], 0.3, (5, 3))
        >>> noisy = clean[:, None] + generator.normal(0.0, 1.0, (5, 2_000, 3))
        >>> agreement = compare_with_votes(estimate_variance(clean, noisy), noisy, [1, 5])
        >>> bool(np.all(abs(agreement.given_members - agreement.measured) < 0.02))
        True
    """
    measured = [float(np.mean(np.all(soft_voting_margins(noisy, k, model.label) > 0, axis=1))) for k in sizes]
    given = [model.given_members(k) for k in sizes]
    return Agreement(
        sizes=tuple(sizes),
        measured=np.array(measured),
        given_members=np.array([margins.success_probability() for margins in given]),
        random_ensemble=np.array([model.random_ensemble(k).success_probability() for k in sizes]),
        chebyshev=np.array([margins.chebyshev_bound() for margins in given]),
        copies=np.shape(noisy)[1],
    )


def variance_ratio(zeta: float, k: int) -> float:
    """How much of a member's margin variance an ensemble of k keeps: (1 + ζ(k − 1))/k (Horváth et al., 2022, Eq. 3).

    Args:
        zeta: The correlation of two members, in [0, 1]; the limit for large k.
        k: The number of members.

    Returns:
        The ratio.

    Raises:
        UsageError: If an argument is out of range.

    Example:
        >>> variance_ratio(0.82, 50)
        0.8236
    """
    if k < 1 or not 0.0 <= zeta <= 1.0:
        raise UsageError(f"an ensemble has at least one member and zeta lies in [0, 1], got {k} and {zeta}.")
    return (1.0 + zeta * (k - 1)) / k


def _checked(clean: ArrayLike, noisy: ArrayLike) -> tuple[FloatArray, FloatArray]:
    clean, noisy = np.asarray(clean, dtype=np.float64), np.asarray(noisy, dtype=np.float64)
    if clean.ndim != 2 or noisy.ndim != 3 or (noisy.shape[0], noisy.shape[2]) != clean.shape:
        raise UsageError(
            f"clean logits must be (members, classes) and noisy ones (members, copies, classes), "
            f"got {clean.shape} and {noisy.shape}."
        )
    if clean.shape[0] < 2:
        raise UsageError("one member tells nothing about how trainings vary; give the logits of at least two.")
    if noisy.shape[1] < 2 or clean.shape[1] < 2:
        raise UsageError(f"at least two noisy copies and two classes are needed, got logits of shape {noisy.shape}.")
    if not (np.all(np.isfinite(clean)) and np.all(np.isfinite(noisy))):
        raise UsageError("logits must be finite; leave out the members or copies whose logits are not.")
    return clean, noisy


def _between_members(deviations: FloatArray) -> Covariances:
    """Mean covariance within members and between pairs, of deviations (members, copies, classes) with mean 0."""
    members, copies, classes = deviations.shape
    flat = deviations.reshape(-1, classes)
    total = deviations.sum(axis=0)
    within = flat.T @ flat / (copies - 1)
    everything = total.T @ total / (copies - 1)  # the covariance of the sum: all pairs, a member with itself included
    return Covariances(within / members, (everything - within) / (members * (members - 1)))


def _median_ratio(covariances: Covariances) -> float:
    intra, inter = (matrix[np.triu_indices(len(matrix))] for matrix in covariances)
    deviation = np.sqrt(np.diag(covariances.intra))
    scale = np.outer(deviation, deviation)[np.triu_indices(len(deviation))]
    kept: NDArray[np.bool_] = (np.abs(intra) > _LEAST_CORRELATION * scale) & (scale > 0)
    if not np.any(kept):
        return 0.0  # nothing varies, so nothing is scaled by it
    return float(np.clip(np.median(inter[kept] / intra[kept]), 0.0, 1.0))
