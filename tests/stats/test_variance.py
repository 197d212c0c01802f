"""The variance model against its own definition by brute force, closed forms, SciPy, and the paper's statements."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr, ndtri

from smoothcert.stats import (
    Margins,
    VarianceModel,
    compare_with_votes,
    component_covariances,
    estimate_variance,
    expected_radius,
    lower_bound,
    radius_distribution,
    soft_voting_margins,
    stage_boundaries,
    staged_characteristics,
    variance_ratio,
)
from smoothcert.types import UsageError

MEAN = np.array([1.5, 0.2, -0.4, 0.6])
CLEAN = np.array([[0.5, 0.1, 0.0, 0.1], [0.1, 0.4, 0.1, 0.0], [0.0, 0.1, 0.3, 0.1], [0.1, 0.0, 0.1, 0.6]])
PERTURBATION = np.array([[1.0, 0.3, -0.4, 0.2], [0.3, 0.8, 0.2, -0.3], [-0.4, 0.2, 1.2, 0.3], [0.2, -0.3, 0.3, 0.9]])


def draw(rng, members, copies, zeta_c=0.0, zeta_p=0.8, clean=CLEAN, perturbation=PERTURBATION, mean=MEAN):
    """Logits as the model says: a share ζ of each variance is common to all members."""

    def normal(covariance, *shape):
        return rng.multivariate_normal(np.zeros(len(mean)), covariance, shape, method="svd")

    y_c = mean + np.sqrt(zeta_c) * normal(clean) + np.sqrt(1 - zeta_c) * normal(clean, members)
    common, own = normal(perturbation, copies), normal(perturbation, members, copies)
    return y_c, y_c[:, None] + np.sqrt(zeta_p) * common + np.sqrt(1 - zeta_p) * own


def known_model(zeta_c=0.1, zeta_p=0.8, label=0, members=1):
    return VarianceModel(label, MEAN, CLEAN, PERTURBATION, zeta_c, zeta_p, np.tile(MEAN, (members, 1)))


def orthant_probability(mean, covariance, **options):
    return Margins(np.asarray(mean, float), np.asarray(covariance, float)).success_probability(**options)


def chebyshev_bound(mean, variance):
    return Margins(np.asarray(mean), np.diag(variance)).chebyshev_bound()


def at_least(distribution, radius):
    """The probability to certify this radius or more."""
    return distribution.probabilities[distribution.radii >= radius].sum()


# --- estimation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reading", ["mean", "clean"])
@pytest.mark.parametrize("zeta_p", [0.0, 0.5, 0.82, 1.0])
def test_parameters_of_the_model_are_recovered(zeta_p, reading):
    clean, noisy = draw(np.random.default_rng(1), members=300, copies=1_000, zeta_p=zeta_p)
    found = estimate_variance(clean, noisy, reading=reading)
    assert found.label == 0
    assert found.mean == pytest.approx(MEAN, abs=0.15)
    assert found.clean_covariance == pytest.approx(CLEAN, abs=0.12)
    assert found.perturbation_covariance == pytest.approx(PERTURBATION, abs=0.12)
    assert found.zeta_p == pytest.approx(zeta_p, abs=0.03)
    assert found.zeta_c == 0.0


def test_what_all_trainings_share_is_part_of_the_mean():
    """ζ_c is not estimable: the shared part moves c, and Σ_c is what is left between the members."""
    clean, noisy = draw(np.random.default_rng(2), members=2_000, copies=2, zeta_c=0.6)
    found = estimate_variance(clean, noisy, reading="clean")
    assert found.clean_covariance == pytest.approx(0.4 * CLEAN, abs=0.03)
    assert found.zeta_c == 0.0


@pytest.mark.parametrize("reading", ["mean", "clean"])
def test_covariances_are_those_of_all_pairs(reading):
    clean, noisy = draw(np.random.default_rng(3), members=4, copies=30)
    of_clean, of_perturbation = component_covariances(clean, noisy, reading=reading)
    members, pairs = range(4), list(itertools.permutations(range(4), 2))
    crossed = {(i, j): np.cov(noisy[i].T, noisy[j].T)[:4, 4:] for i in members for j in members}
    assert of_perturbation.intra == pytest.approx(np.mean([crossed[i, i] for i in members], axis=0))
    assert of_perturbation.inter == pytest.approx(np.mean([crossed[pair] for pair in pairs], axis=0))
    y_c = clean if reading == "clean" else noisy.mean(axis=1)
    deviations = y_c - y_c.mean(axis=0)
    assert of_clean.intra == pytest.approx(np.cov(y_c.T))
    assert of_clean.inter == pytest.approx(np.mean([np.outer(deviations[i], deviations[j]) for i, j in pairs], axis=0))


def test_zeta_is_the_median_over_entries_that_vary_together():
    clean, noisy = draw(np.random.default_rng(4), members=3, copies=40)
    _, found = component_covariances(clean, noisy)
    deviation = np.sqrt(np.diag(found.intra))
    correlation = found.intra / np.outer(deviation, deviation)
    entries = [(i, j) for i in range(4) for j in range(i, 4) if abs(correlation[i, j]) > 0.05]
    ratios = [found.inter[entry] / found.intra[entry] for entry in entries]
    assert estimate_variance(clean, noisy).zeta_p == pytest.approx(np.median(ratios))


def test_uncorrelated_logits_do_not_spoil_zeta():
    """Off the diagonal both covariances are noise around 0 here, and there are many more such entries."""
    rng, classes, found = np.random.default_rng(5), 8, []
    for _ in range(20):
        clean, noisy = draw(rng, 2, 4_000, 0.0, 0.3, np.eye(classes), np.eye(classes), np.arange(classes))
        found.append(estimate_variance(clean, noisy).zeta_p)
    assert found == pytest.approx([0.3] * 20, abs=0.03)


def test_zeta_is_clamped_and_constant_logits_are_no_trouble():
    clean = np.array([[1.0, 0.0], [2.0, 0.0]])
    wave = np.stack([np.sin(np.arange(50.0)), np.zeros(50)], axis=1)
    opposed = np.stack([clean[0] + wave, clean[1] - wave])
    assert estimate_variance(clean, opposed).zeta_p == 0.0
    still = np.broadcast_to(clean[:, None], (2, 50, 2))
    found = estimate_variance(clean, still)
    assert found.zeta_p == 0.0
    assert found.given_members(2).success_probability() == 1.0
    assert found.given_members(2).chebyshev_bound() == 1.0


def test_label_is_what_the_ensemble_picks_most_often_unless_given():
    clean, noisy = draw(np.random.default_rng(6), members=5, copies=200, mean=np.array([0.0, 0.0, 3.0, 0.0]))
    assert estimate_variance(clean, noisy).label == 2
    assert estimate_variance(clean, noisy, label=1).label == 1
    assert estimate_variance(clean, noisy).others == [0, 1, 3]


def test_readings_differ_where_the_network_is_curved():
    """A bend of the network moves the mean under noise away from the clean logits; only ``"mean"`` follows it."""
    clean, noisy = draw(np.random.default_rng(7), members=5, copies=4_000)
    noisy = noisy - np.array([1.0, 0.0, 0.0, 0.0])
    errors = {}
    for reading in ("mean", "clean"):
        agreement = compare_with_votes(estimate_variance(clean, noisy, reading=reading, label=0), noisy, [1, 3, 5])
        errors[reading] = np.mean(abs(agreement.given_members - agreement.measured))
    assert errors["mean"] < 0.02
    assert errors["clean"] > 0.2
    assert compare_with_votes(estimate_variance(clean, noisy, label=0), noisy, [1]).copies == 4_000


# --- prediction ------------------------------------------------------------------------------------------------------


def test_variance_ratio_falls_to_zeta():
    """Eq. 3: the ratio is 1 for one member, 1/k for independent ones, and tends to ζ."""
    assert variance_ratio(0.82, 1) == 1.0
    assert variance_ratio(0.0, 10) == pytest.approx(0.1)
    assert variance_ratio(1.0, 10) == 1.0
    ratios = [variance_ratio(0.82, k) for k in (1, 3, 5, 10, 50, 10**9)]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] == pytest.approx(0.82, abs=1e-8)


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("label", [0, 2])
def test_margins_are_those_of_the_joint_covariance(k, label):
    """App. C: z = D y with the covariance of all members' logits written out in blocks."""
    zeta_c, zeta_p = 0.1, 0.7
    own, shared = CLEAN + PERTURBATION, zeta_c * CLEAN + zeta_p * PERTURBATION
    joint = np.kron(np.eye(k), own - shared) + np.kron(np.ones((k, k)), shared)
    one = np.array([np.eye(4)[label] - np.eye(4)[other] for other in range(4) if other != label])
    difference = np.tile(one, k) / k
    found = known_model(zeta_c, zeta_p, label).random_ensemble(k)
    assert found.mean == pytest.approx(difference @ np.tile(MEAN, k))
    assert found.covariance == pytest.approx(difference @ joint @ difference.T)


@pytest.mark.parametrize("k", [1, 4])
def test_random_ensembles_succeed_as_often_as_modelled(k):
    rng, trials = np.random.default_rng(8), 20_000
    y_c = rng.multivariate_normal(MEAN, CLEAN, (trials, k))
    common = rng.multivariate_normal(np.zeros(4), PERTURBATION, trials)
    own = rng.multivariate_normal(np.zeros(4), PERTURBATION, (trials, k))
    logits = (y_c + np.sqrt(0.8) * common[:, None] + np.sqrt(0.2) * own).mean(axis=1)
    modelled = known_model(zeta_c=0.0).random_ensemble(k).success_probability()
    assert np.mean(logits.argmax(axis=1) == 0) == pytest.approx(modelled, abs=0.015)


def test_given_members_succeed_as_often_as_modelled():
    """Members differ much more than noise moves them here: only the model of these members can know."""
    rng = np.random.default_rng(9)
    for _ in range(10):
        clean, noisy = draw(rng, members=6, copies=8_000, clean=4 * CLEAN)
        model = estimate_variance(clean, noisy[:, :4_000], label=0)
        found = compare_with_votes(model, noisy[:, 4_000:], [1, 3, 6])
        assert found.given_members == pytest.approx(found.measured, abs=0.03)
        assert np.all(found.chebyshev <= found.given_members)


def test_given_members_take_the_first_k_and_leave_training_out():
    model = VarianceModel(1, MEAN, 1e6 * CLEAN, PERTURBATION, 0.0, 0.5, np.array([[0.0, 3, 0, 0], [0, 1, 0, 2]]))
    found = model.given_members(2)
    assert found.mean.tolist() == [2.0, 2.0, 1.0]
    assert found.covariance[0, 0] == pytest.approx(0.75 * (1.0 + 0.8 - 2 * 0.3))
    assert model.given_members(1).mean.tolist() == [3.0, 3.0, 3.0]


def test_measured_is_the_share_of_votes():
    clean, noisy = draw(np.random.default_rng(10), members=5, copies=300)
    found = compare_with_votes(estimate_variance(clean, noisy, label=3), noisy, [1, 3, 5])
    for k, measured in zip(found.sizes, found.measured, strict=True):
        assert measured == np.mean(noisy[:k].mean(axis=0).argmax(axis=1) == 3)
        logits = noisy[:k].mean(axis=0)
        assert soft_voting_margins(noisy, k, 3)[:, 1] == pytest.approx(logits[:, 3] - logits[:, 1])


# --- orthants --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mean", "variance"), [(1.3, 0.7), (-0.4, 2.0), (5.0, 1.0), (0.0, 3.0)])
def test_one_margin_is_exact(mean, variance):
    """Two classes: p = Φ(mean / standard deviation)."""
    exact = ndtr(mean / np.sqrt(variance))
    assert orthant_probability([mean], [[variance]], directions=1) == pytest.approx(exact, rel=1e-12)
    logits = VarianceModel(0, np.array([mean, 0.0]), np.zeros((2, 2)), variance * np.diag([1.0, 0.0]), 0, 0, np.eye(2))
    assert logits.random_ensemble(1).success_probability() == pytest.approx(exact, rel=1e-12)


def test_orthants_with_a_closed_form():
    for rho in (-0.9, -0.3, 0.0, 0.5, 0.99):
        exact = 0.25 + np.arcsin(rho) / (2 * np.pi)
        assert orthant_probability([0, 0], [[1, rho], [rho, 1]]) == pytest.approx(exact, abs=0.004)
    for d in (2, 5, 9):
        exchangeable = 0.5 * (np.eye(d) + np.ones((d, d)))
        assert orthant_probability(np.zeros(d), exchangeable) == pytest.approx(1 / (d + 1), abs=0.004)
    mean = np.linspace(0.5, 3.0, 9)
    assert orthant_probability(mean, np.eye(9)) == pytest.approx(np.prod(ndtr(mean)), abs=0.003)
    near_one = 1 - orthant_probability(np.full(9, 4.5), np.eye(9))
    assert near_one == pytest.approx(1 - ndtr(4.5) ** 9, rel=0.05)


def random_case(rng, d):
    factor = rng.normal(size=(d, d + 2)) * rng.uniform(0.1, 3.0, (d, 1))
    covariance = factor @ factor.T
    return rng.uniform(-0.3, 3.0, d) * np.sqrt(np.diag(covariance)), covariance


@pytest.mark.parametrize("d", [2, 4, 9])
def test_orthants_agree_with_scipy_and_with_counting(d):
    rng = np.random.default_rng(d)
    for _ in range(5):
        mean, covariance = random_case(rng, d)
        found = orthant_probability(mean, covariance)
        integrated = stats.multivariate_normal.cdf(mean, cov=covariance, abseps=1e-5, maxpts=100_000)
        assert found == pytest.approx(integrated, abs=0.004)
        counted = np.mean(np.all(rng.multivariate_normal(mean, covariance, 100_000) > 0, axis=1))
        assert found == pytest.approx(counted, abs=0.008)


def test_many_classes():
    """More directions than are held at once, a thousand classes; equicorrelated margins reduce to one integral."""
    d, shift, rho = 999, 3.0, 0.5
    common = np.random.default_rng(11).normal(size=200_000)
    exact = np.mean(ndtr((shift + np.sqrt(rho) * common) / np.sqrt(1 - rho)) ** d)
    found = orthant_probability(np.full(d, shift), (1 - rho) * np.eye(d) + rho * np.ones((d, d)), directions=2_500)
    assert found == pytest.approx(exact, abs=0.03)


def test_singular_covariances():
    rng = np.random.default_rng(12)
    mean, covariance = random_case(rng, 3)
    plain = orthant_probability(mean, covariance)
    twice = [0, 1, 2, 1, 2]
    assert orthant_probability(mean[twice], covariance[np.ix_(twice, twice)]) == pytest.approx(plain, abs=0.005)
    fixed = np.zeros((4, 4))
    fixed[:3, :3] = covariance
    assert orthant_probability([*mean, 1e-9], fixed) == pytest.approx(plain, rel=1e-12)
    assert orthant_probability([*mean, 0.0], fixed) == 0.0
    assert orthant_probability([1.0, 2.0], np.zeros((2, 2))) == 1.0
    # Two margins that noise moves in opposite ways: −1 < g < 2.
    assert orthant_probability([1.0, 2.0], [[1, -1], [-1, 1]]) == pytest.approx(ndtr(2) - ndtr(-1), rel=1e-12)


def test_a_shift_common_to_all_logits_changes_nothing():
    shifted = VarianceModel(0, MEAN + 7, CLEAN, PERTURBATION + 1e5, 0.1, 0.8, np.tile(MEAN, (2, 1)))
    assert shifted.random_ensemble(3).success_probability() == pytest.approx(
        known_model().random_ensemble(3).success_probability(), abs=1e-6
    )
    # Logits that move together only: nothing but rounding is left of their margins.
    together = VarianceModel(0, MEAN, np.zeros((4, 4)), np.full((4, 4), 0.1), 0.0, 0.3, np.tile(MEAN, (2, 1)))
    assert together.random_ensemble(3).success_probability() == 1.0
    assert together.given_members(2).chebyshev_bound() == pytest.approx(1.0)


def test_what_rounding_leaves_of_constant_margins_is_no_variance():
    """Classes that noise moves together: differences of equal covariances, which need not even be a covariance."""
    residue = np.diag([0.0, 0.0, 1.0])
    residue[:2, :2] = [[1e-14, 5e-14], [5e-14, -2e-14]]
    assert orthant_probability([0.1, 0.2, 1.5], residue) == pytest.approx(ndtr(1.5), rel=1e-12)
    assert orthant_probability([0.1, -0.2, 1.5], residue) == 0.0
    assert Margins(np.array([1.0, 1.0, 4.0]), residue).chebyshev_bound() == pytest.approx(1 - 1 / 16)
    rng, rest = np.random.default_rng(16), [0, 2, 3]
    for _ in range(10):
        one = rng.normal(size=(500, 3)) @ rng.normal(size=(3, 3)) + [1.0, 0.0, 0.0] + 30 * rng.normal(size=(500, 1))
        noisy = np.stack([one, one + 1e-3 * rng.normal(size=one.shape)])[:, :, [0, 0, 1, 2]] - [0.0, 1.0, 0.0, 0.0]
        whole, part = (estimate_variance(y[:, 0], y, label=0).given_members(1) for y in (noisy, noisy[:, :, rest]))
        assert whole.success_probability() == pytest.approx(part.success_probability(), abs=1e-3)


def test_the_same_arguments_give_the_same_answer():
    mean, covariance = random_case(np.random.default_rng(13), 5)
    first = orthant_probability(mean, covariance, directions=100)
    assert first == orthant_probability(mean, covariance, directions=100)
    assert first != orthant_probability(mean, covariance, directions=100, seed=1)


def test_chebyshev_is_below_the_truth():
    """For Gaussian margins, and for margins on three points, where the inequality is nearly tight."""
    rng, informative = np.random.default_rng(14), 0
    for _ in range(100):
        mean, covariance = random_case(rng, 3)
        bound = Margins(mean * 4, covariance).chebyshev_bound()
        assert bound <= Margins(mean * 4, covariance).success_probability(directions=500) + 1e-12
        informative += bound > 0
    assert informative > 20
    for share in (0.1, 0.4):
        # −ε, 1 and 2 + ε with the outer two equally likely: P(z > 0) = 1 − share/2.
        assert 1 - share == pytest.approx(chebyshev_bound([1.0], [share]))
        assert chebyshev_bound([1.0], [share]) < 1 - share / 2
    assert chebyshev_bound([1.0, -9.0], [0.1, 0.1]) == 0.0
    assert chebyshev_bound([1.0, 2.0], [0.3, 0.4]) == pytest.approx(1 - 0.3 - 0.1)


# --- radii -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.5, 0.7, 0.97, 1.0])
def test_radii_are_the_binomial_sum(p):
    """Eq. 6, every number of votes written out."""
    n, alpha = 60, 0.01
    bounds = np.array([stats.beta.ppf(alpha, s, n - s + 1) if s else 0.0 for s in range(n + 1)])
    weights = stats.binom.pmf(np.arange(n + 1), n, p)
    radii = np.where(bounds > 0.5, 0.25 * ndtri(np.maximum(bounds, 0.5)), 0.0)
    found = radius_distribution(p, n, alpha, lambda q: 0.25 * ndtri(q))
    assert found.expected == pytest.approx(weights @ radii, abs=1e-12)
    assert found.expected <= weights @ radii + 1e-15
    assert found.abstain == pytest.approx(weights[radii == 0].sum(), abs=1e-12)
    assert found.probabilities.sum() + found.abstain == pytest.approx(1.0, abs=1e-12)
    for radius in (0.05, 0.1, 0.2):
        assert at_least(found, radius) == pytest.approx(weights[radii >= radius].sum(), abs=1e-12)


@pytest.mark.parametrize(("p", "n"), [(0.8, 1_000), (0.55, 1_000), (0.999, 10_000)])
def test_radii_agree_with_simulation(p, n):
    votes = np.random.default_rng(15).binomial(n, p, 40_000)
    bounds = lower_bound(votes, n, 0.001)
    radii = np.where(bounds > 0.5, ndtri(np.maximum(bounds, 0.5)), 0.0)
    found = radius_distribution(p, n, 0.001, ndtri)
    assert found.expected == pytest.approx(radii.mean(), abs=5 * radii.std() / np.sqrt(40_000) + 1e-9)
    assert found.abstain == pytest.approx(np.mean(radii == 0), abs=0.012)
    middle = float(np.median(radii[radii > 0]))
    assert at_least(found, middle) == pytest.approx(np.mean(radii >= middle), abs=0.012)


def test_certifying_a_radius_is_a_single_stage():
    """P(R ≥ r) must be what the stage boundaries say about the threshold Φ(r/σ)."""
    for p, radius in ((0.9, 0.25), (0.95, 0.3), (0.99, 0.5)):
        boundaries = stage_boundaries(float(ndtr(radius / 0.25)), (2_000,), 0.001, 0.01)
        found = at_least(radius_distribution(p, 2_000, 0.001, lambda q: 0.25 * ndtri(q)), radius)
        assert found == pytest.approx(staged_characteristics(boundaries, p).certify[0], abs=1e-12)


def test_any_radius_of_a_noise_will_do():
    uniform = radius_distribution(0.9, 1_000, 0.001, lambda q: 2 * 0.5 * (q - 0.5))
    votes = np.arange(700, 1_001)
    bounds = stats.beta.ppf(0.001, votes, 1_001 - votes)
    assert uniform.expected == pytest.approx(stats.binom.pmf(votes, 1_000, 0.9) @ (bounds - 0.5), rel=1e-9)
    whole = radius_distribution(0.9, 1_000, 0.001, lambda q: np.floor(10 * (q - 0.5)))
    assert set(whole.radii.tolist()) <= {1.0, 2.0, 3.0, 4.0}
    assert at_least(whole, 3.0) == pytest.approx(whole.expected - 2.0, abs=0.01)


def test_samples_matter_near_one_and_probability_elsewhere():
    """Fig. 3 and §5: close to a decision boundary a little more p beats many more samples; at p ≈ 1 samples decide."""
    n = np.array([10**3, 10**4, 10**5, 10**6])
    p = np.array([0.6, 0.7, 0.99, 1.0])
    radii = expected_radius(p[:, None], n, 0.001, ndtri)
    assert radii.shape == (4, 4)
    assert np.all(np.diff(radii, axis=0) > 0)
    assert np.all(np.diff(radii, axis=1) > 0)
    assert radii[1, 0] > radii[0, -1]  # 0.7 with a thousand samples beats 0.6 with a million
    by_more_samples = radii[:, 3] / radii[:, 2]
    assert np.all(by_more_samples[:3] < 1.04)
    assert by_more_samples[3] > 1.1
    assert radii[-1].tolist() == pytest.approx(ndtri(0.001 ** (1 / n)).tolist(), rel=1e-9)
    assert radii[:-1, -1] == pytest.approx(ndtri(p[:-1]), rel=0.02)  # in the limit, the radius of the true p


def test_the_papers_example_of_fifty_members():
    """§5: fifty times the samples give 28 % more radius, fifty members 191 %."""
    one = np.linspace(0.55, 0.9, 71)
    few, many = (expected_radius(one, n, 0.001, ndtri) for n in (1_000, 50_000))
    p = one[np.argmin(abs(many / few - 1.28))]
    assert 0.6 < p < 0.75
    lifted = np.linspace(0.6, 0.99, 79)
    fifty = lifted[np.argmin(abs(expected_radius(lifted, 1_000, 0.001, ndtri) / few[one == p] - 2.91))]
    assert 0.85 < fifty < 0.95


# --- refusals --------------------------------------------------------------------------------------------------------

LOGITS = np.arange(24.0).reshape(3, 4, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: estimate_variance(LOGITS[:1, 0], LOGITS[:1]), "at least two members"),
        (lambda: estimate_variance(LOGITS[:, 0], LOGITS[:, :1]), "at least two members, noisy copies"),
        (lambda: estimate_variance(LOGITS[:, 0, :1], LOGITS[:, :, :1]), "noisy copies and classes"),
        (lambda: estimate_variance(LOGITS[:2, 0], LOGITS), r"got \(2, 2\) and \(3, 4, 2\)"),
        (lambda: estimate_variance(LOGITS[:, 0], LOGITS[0]), r"must be \(members, classes\)"),
        (lambda: estimate_variance(LOGITS[:, 0] * np.nan, LOGITS), "must be finite"),
        (lambda: estimate_variance(LOGITS[:, 0], LOGITS / 0.0), "must be finite"),
        (lambda: estimate_variance(LOGITS[:, 0], LOGITS, label=2), "class from 0 to 1, got 2"),
        (lambda: estimate_variance(LOGITS[:, 0], LOGITS, reading="noisy"), "unknown reading 'noisy'.*clean, mean"),
        (lambda: soft_voting_margins(LOGITS, 4, 0), "over 4 members"),
        (lambda: known_model(members=2).given_members(3), "k must be between 1 and 2, .* got 3"),
        (lambda: known_model().random_ensemble(0), "k must be at least 1"),
        (lambda: variance_ratio(1.1, 2), r"zeta must lie in \[0, 1\]"),
        (lambda: orthant_probability([np.nan], [[1.0]]), "must be finite"),
        (lambda: orthant_probability([1.0, 1.0], [[1.0, 2.0], [2.0, 1.0]]), "negative eigenvalue"),
        (lambda: radius_distribution(1.1, 10, 0.001, ndtri), "p must lie between 0 and 1"),
        (lambda: radius_distribution(0.9, 0, 0.001, ndtri), "n must be between 1 and"),
        (lambda: radius_distribution(0.9, 100, 0.0, ndtri), "alpha must lie strictly"),
        (lambda: radius_distribution(0.9, 100, 0.001, lambda q: 1.0), "pass a noise's radius"),
        (lambda: radius_distribution(0.9, 100, 0.001, lambda q: -q), "finite radius ≥ 0"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_refusals(call, message):
    with pytest.raises(UsageError, match=message):
        call()
