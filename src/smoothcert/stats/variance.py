"""The variance of margins under noise in ensembles, and the radii it leads to (Horváth et al., 2022, §5, App. C, D).

The logits of member l on a noisy copy of one fixed input are modelled as y = y_c + y_p: a clean component y_c that
varies over trainings (mean c, covariance Σ_c) and an independent perturbation effect y_p that varies over noise (mean
0, covariance Σ_p). Between two members the covariances are ζ_c Σ_c and ζ_p Σ_p.

The model forecasts the results of certification. It is not a certificate: nothing here proves a radius.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from smoothcert.stats.binomial import MAX_SAMPLES, FloatArray, lower_bound, require
from smoothcert.stats.margins import Margins
from smoothcert.types import UsageError, unknown_name

READINGS = ("mean", "clean")
"""What y_c is: the mean logits over the noise, or the logits of the clean input (Horváth et al., 2022, App. D)."""

_LEAST_CORRELATION = 0.05  # ratios of entries closer to 0 are mostly noise and left out of the median
_TAIL = 1e-15  # counts of votes in the tails beyond this are left out


class Covariances(NamedTuple):
    """Covariances of the logits of one component, (classes, classes)."""

    intra: FloatArray  # between the logits of one member; the mean over the members
    inter: FloatArray  # between the logits of two different members; the mean over all pairs


@dataclass(frozen=True, eq=False)
class VarianceModel:
    """The model of an ensemble's logits at one input, from :func:`estimate_variance`."""

    label: int  # the class whose success is modelled (class 1 in the paper)
    mean: FloatArray  # c, (classes,)
    clean_covariance: FloatArray  # Σ_c, (classes, classes)
    perturbation_covariance: FloatArray  # Σ_p
    zeta_c: float  # the correlation of the clean components of two members
    zeta_p: float  # the correlation of their perturbation effects
    members: FloatArray  # the clean component of each given member, (members, classes)

    @property
    def others(self) -> list[int]:
        """All classes but the label, in the order of the margins."""
        return [number for number in range(len(self.mean)) if number != self.label]

    def random_ensemble(self, k: int) -> Margins:
        """Return the margins of k members *yet to be trained*: both components vary (Horváth et al., App. C).

        The mean is D c and the covariance D (Σ_c v(ζ_c, k) + Σ_p v(ζ_p, k)) Dᵀ, where v is :func:`variance_ratio`.
        """
        covariance = self.clean_covariance * variance_ratio(self.zeta_c, k)
        return self._margins(self.mean, covariance + self.perturbation_covariance * variance_ratio(self.zeta_p, k))

    def given_members(self, k: int) -> Margins:
        """Return the margins of the first k of the given members: only the noise varies.

        This is what certification of these networks measures, so Σ_c does not enter. The mean is that of their clean
        margins, and the covariance is D Σ_p Dᵀ v(ζ_p, k).
        """
        if not 1 <= k <= len(self.members):
            raise UsageError(f"k must be between 1 and {len(self.members)}, the number of given members, got {k}.")
        covariance = self.perturbation_covariance * variance_ratio(self.zeta_p, k)
        return self._margins(self.members[:k].mean(axis=0), covariance)

    def _margins(self, mean: FloatArray, covariance: FloatArray) -> Margins:
        # Margins are formed before anything is inverted or factored: a shift common to all logits cancels here.
        difference = np.delete(-np.eye(len(mean)), self.label, axis=0)
        difference[:, self.label] = 1.0
        return Margins(difference @ mean, difference @ covariance @ difference.T)


@dataclass(frozen=True, eq=False)
class Agreement:
    """Measured and modelled success probabilities at one input, one entry per ensemble size."""

    sizes: tuple[int, ...]
    measured: FloatArray  # the share of noisy copies on which soft voting of the first k members returns the label
    given_members: FloatArray  # modelled for these members
    random_ensemble: FloatArray  # modelled for k members yet to be trained
    chebyshev: FloatArray  # the lower bound of Eq. 5 for these members
    copies: int  # the number of noisy copies measured


def estimate_variance(
    clean: ArrayLike, noisy: ArrayLike, *, label: int | None = None, reading: str = "mean"
) -> VarianceModel:
    """Estimate c, Σ_c, Σ_p, ζ_c and ζ_p at one input from the logits of several members.

    ζ is the median of inter/intra over the entries on and above the diagonal of the two matrices of
    :func:`component_covariances`, clamped to [0, 1]. Entries with a correlation below 0.05 are left out, because their
    denominator is near 0. The estimate of ζ_c is always 0: deviations from the mean of k members have an inter/intra
    ratio of −1/k by arithmetic, and what all trainings share is part of c. The paper's ζ_c ≈ 0 for k = 50 means no more
    than that. :meth:`VarianceModel.random_ensemble` therefore models members as diverse as the given ones.

    Args:
        clean: Logits of the clean input, (members, classes).
        noisy: Logits of its noisy copies, (members, copies, classes); the same copies for all members.
        label: The class whose success is modelled; by default the most frequent answer of soft voting of all members.
        reading: Whether y_c is the mean logits over the noise (``"mean"``) or the logits of the clean input
            (``"clean"``). The first agrees better with measurements, above all under noise so strong that the network
            is no longer linear over it, and makes y_p zero-mean by definition.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> clean = generator.normal([2.0, 0.0, 0.0], 0.3, (5, 3))
        >>> noisy = clean[:, None] + generator.normal(0.0, 1.0, (200, 3))  # the same effect in all members
        >>> round(estimate_variance(clean, noisy).zeta_p, 6)
        1.0
    """
    clean_part, perturbation = component_covariances(clean, noisy, reading=reading)
    clean, noisy = np.asarray(clean, dtype=np.float64), np.asarray(noisy, dtype=np.float64)
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
    """Return the covariances of the clean component and of the perturbation effect (App. D, Fig. 11).

    Those of y_c are over members, those of y_p over noisy copies. Each member's y_p is centred at its own mean, so the
    second pair does not depend on the reading.

    Args: As :func:`estimate_variance`.
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
    """Return the margins of a class under soft voting of the first k members (Horváth et al., 2022, Eq. 2).

    Args:
        noisy: Logits of noisy copies, (members, copies, classes).

    Returns:
        Margins to all other classes in order, (copies, classes − 1).
    """
    noisy = np.asarray(noisy, dtype=np.float64)
    if noisy.ndim != 3 or not 1 <= k <= len(noisy) or not 0 <= label < noisy.shape[2]:
        raise UsageError(f"logits of shape {noisy.shape} have no margins of class {label} over {k} members.")
    logits: FloatArray = noisy[:k].mean(axis=0)
    margins: FloatArray = logits[:, [label]] - np.delete(logits, label, axis=1)
    return margins


def compare_with_votes(model: VarianceModel, noisy: ArrayLike, sizes: Sequence[int]) -> Agreement:
    """Compare modelled success probabilities with those measured on noisy copies, possibly fresh ones.

    Args:
        model: The model of the input.
        noisy: Logits of its noisy copies by the same members in the same order, (members, copies, classes).
        sizes: Ensemble sizes, at most the number of members.

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
    """Return the share of a member's margin variance that k members keep: (1 + ζ(k − 1))/k (Horváth et al., Eq. 3).

    It falls from 1 to the correlation ζ of two members, in [0, 1], as k grows.

    Example:
        >>> variance_ratio(0.82, 50)
        0.8236
    """
    if k < 1 or not 0.0 <= zeta <= 1.0:
        raise UsageError(f"k must be at least 1 and zeta must lie in [0, 1], got {k} and {zeta}.")
    return (1.0 + zeta * (k - 1)) / k


@dataclass(frozen=True, eq=False)
class RadiusDistribution:
    """The radii that CERTIFY will report, and their probabilities."""

    radii: FloatArray  # above 0, increasing
    probabilities: FloatArray
    abstain: float  # the probability of no radius, including the counts of votes that are left out

    @property
    def expected(self) -> float:
        """The mean radius; abstaining counts as 0."""
        return float(self.radii @ self.probabilities)


def radius_distribution(
    p: float, n: int, alpha: float, radius: Callable[[FloatArray], FloatArray]
) -> RadiusDistribution:
    """Return the distribution of CERTIFY's radii for a success probability (Horváth et al., 2022, Eq. 6).

    As in the paper, the guessed class is assumed to be right. Counts of votes in the outermost 10⁻¹⁵ of either tail
    count as abstaining, so no radius is overstated.

    Args:
        p: The true success probability.
        n: The number of estimation samples.
        alpha: The probability of a false certificate.
        radius: Maps lower bounds to radii, such as ``Gaussian(0.25).radius``.

    Example:
        >>> from scipy.special import ndtri
        >>> round(radius_distribution(1.0, 1_000, 0.001, ndtri).expected, 3)  # all agree: Φ⁻¹(0.001^(1/1000))
        2.463
    """
    require(0.0 <= p <= 1.0, p, "p must lie between 0 and 1")
    require(1 <= n <= MAX_SAMPLES, n, f"n must be between 1 and {MAX_SAMPLES:,}")
    counts = np.arange(scipy.stats.binom.ppf(_TAIL, n, p), scipy.stats.binom.isf(_TAIL, n, p) + 1).astype(np.int64)
    counts = counts[(counts >= 0) & (2 * counts > n)]  # no bound exceeds ½ on fewer votes
    bounds = lower_bound(counts, n, alpha)
    counts, bounds = counts[bounds > 0.5], bounds[bounds > 0.5]
    radii = np.asarray(radius(bounds), dtype=np.float64)
    if radii.shape != bounds.shape or not np.all(np.isfinite(radii) & (radii >= 0)):
        raise UsageError("radius must return a finite radius ≥ 0 for each probability below 1; pass a noise's radius.")
    probabilities = scipy.stats.binom.pmf(counts, n, p)
    radii, probabilities = radii[radii > 0], probabilities[radii > 0]
    return RadiusDistribution(radii, probabilities, max(0.0, 1.0 - float(probabilities.sum())))


def expected_radius(p: ArrayLike, n: ArrayLike, alpha: float, radius: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Return the mean radius that CERTIFY reports for each (p, n) after broadcasting; abstaining counts as 0 (Fig. 3).

    Args: As :func:`radius_distribution`.
    """
    p, n = np.broadcast_arrays(np.asarray(p, dtype=np.float64), np.asarray(n))
    means = [radius_distribution(q, m, alpha, radius).expected for q, m in zip(p.flat, n.flat, strict=True)]
    return np.array(means).reshape(p.shape)


def _checked(clean: ArrayLike, noisy: ArrayLike) -> tuple[FloatArray, FloatArray]:
    clean, noisy = np.asarray(clean, dtype=np.float64), np.asarray(noisy, dtype=np.float64)
    if clean.ndim != 2 or noisy.ndim != 3 or (noisy.shape[0], noisy.shape[2]) != clean.shape:
        raise UsageError(
            f"clean logits must be (members, classes) and noisy ones (members, copies, classes), "
            f"got {clean.shape} and {noisy.shape}."
        )
    if min(noisy.shape) < 2:
        raise UsageError(f"at least two members, noisy copies and classes are needed, got the shape {noisy.shape}.")
    if not (np.all(np.isfinite(clean)) and np.all(np.isfinite(noisy))):
        raise UsageError("logits must be finite; leave out the members or copies whose logits are not.")
    return clean, noisy


def _between_members(deviations: FloatArray) -> Covariances:
    """Return the mean covariances within members and between pairs; deviations are (members, copies, classes)."""
    members, copies, classes = deviations.shape
    flat = deviations.reshape(-1, classes)
    total = deviations.sum(axis=0)
    within = flat.T @ flat / (copies - 1)
    everything = total.T @ total / (copies - 1)  # the covariance of the sum: all pairs, including equal members
    return Covariances(within / members, (everything - within) / (members * (members - 1)))


def _median_ratio(covariances: Covariances) -> float:
    intra, inter = (matrix[np.triu_indices(len(matrix))] for matrix in covariances)
    deviation = np.sqrt(np.diag(covariances.intra))
    scale = np.outer(deviation, deviation)[np.triu_indices(len(deviation))]
    kept: NDArray[np.bool_] = (np.abs(intra) > _LEAST_CORRELATION * scale) & (scale > 0)
    if not np.any(kept):
        return 0.0  # nothing varies, so the value has no effect
    return float(np.clip(np.median(inter[kept] / intra[kept]), 0.0, 1.0))
