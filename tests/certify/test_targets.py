"""Staged and Anytime through the whole pipeline: decisions, radii, and what they refuse before sampling."""

from __future__ import annotations

import time

import pytest
import torch
from scipy import stats

from smoothcert import ABSTAIN, Anytime, Cohen, Gaussian, Smoothed, Staged, certify_dataset
from smoothcert.certify.plan import plan
from smoothcert.classifiers.sealed import COPIES
from smoothcert.noise import Discrete, Uniform
from smoothcert.stats import lower_bound, upper_bound
from smoothcert.types import Norm, Outcome, UsageError

SIGMA = 0.5


def at(margin: float) -> torch.Tensor:
    """An input whose true radius under the half-space classifier is ``margin``."""
    return torch.tensor([0.5 + margin, 0.5])


@pytest.fixture
def smoothed(half_space):
    return Smoothed(half_space, Gaussian(SIGMA), input_range=(-10, 10))


def test_clear_inputs_are_decided_by_few_samples(smoothed):
    yes = smoothed.certify(at(1.2), Anytime(radius=0.5), seed=0, index=0)
    assert (yes.label, yes.outcome, yes.decisions) == (1, Outcome.CERTIFIED, {0.5: Outcome.CERTIFIED})
    assert yes.n <= 200
    assert 0.5 <= yes.radius <= 1.2
    no = smoothed.certify(at(0.1), Anytime(radius=0.5), seed=0, index=0)
    assert (no.outcome, no.n <= 200) == (Outcome.REFUTED, True)
    assert no.radius < 0.5


def test_a_certified_target_is_never_shortened_by_rounding(smoothed):
    for target in (0.1, 0.25, 0.3, 0.7, 1.0):
        for procedure in (Anytime(radius=target), Staged(radius=target)):
            certificate = smoothed.certify(at(1.6), procedure, seed=0, index=0)
            assert certificate.outcome is Outcome.CERTIFIED
            assert certificate.radius >= target


def test_several_radii_from_one_stream(smoothed):
    c = smoothed.certify(at(0.6), Anytime(radius=(1.0, 0.3, 0.5)), seed=0, index=0)
    assert c.decisions == {0.3: Outcome.CERTIFIED, 0.5: Outcome.CERTIFIED, 1.0: Outcome.REFUTED}
    assert list(c.decisions) == [0.3, 0.5, 1.0]
    assert c.outcome is Outcome.REFUTED
    assert 0.5 <= c.radius <= 0.6


def test_a_budget_without_a_target_gives_the_anytime_radius(smoothed):
    c = smoothed.certify(at(0.6), Anytime(n_max=10_000), seed=0, index=0)
    fixed = smoothed.certify(at(0.6), Cohen(n=10_000), seed=0, index=0)
    assert (c.n, sum(c.counts)) == (10_000, 10_000)
    assert c.counts == fixed.counts  # the same noise
    assert 0.9 * fixed.radius < c.radius <= fixed.radius
    assert list(c.checkpoints) == [10, 100, 1000]
    assert c.checkpoints[1000] == fixed.checkpoints[1000]


def test_a_budget_too_small_to_decide_leaves_it_open(smoothed):
    c = smoothed.certify(at(0.55), Anytime(radius=0.5, n_max=1000), seed=0, index=0)
    assert (c.outcome, c.n) == (Outcome.UNDECIDED, 1000)
    assert 0 < c.radius < 0.5


def test_a_deadline_stops(smoothed):
    c = smoothed.certify(at(0.55), Anytime(radius=0.55, deadline=1e-9, n_max=100_000), seed=0, index=0)
    assert (c.outcome, c.n) == (Outcome.UNDECIDED, 20)


def test_the_clock_of_a_deadline_starts_at_the_call():
    """The checks of the first call outlast the deadline, so it answers after a block of votes; the second has more."""

    def slow(x):
        time.sleep(0.003)
        return torch.cat([0.5 - x[:, :1], x[:, :1] - 0.5], dim=1)

    smoothed = Smoothed(slow, Gaussian(0.1))
    first, second = (smoothed.certify(at(0.5), Anytime(n_max=20_000, deadline=0.1), seed=0, index=0) for _ in range(2))
    assert first.n == 20 < second.n
    assert first.label == smoothed.predict(at(0.5), Anytime(deadline=1e-9), seed=0, index=0).label == 1


def test_staged_keeps_its_stages(smoothed):
    c = smoothed.certify(at(0.6), Staged(radius=0.5, stages=(100, 1000, 10_000)), seed=0, index=0)
    assert c.outcome is Outcome.CERTIFIED
    assert [stage.n for stage in c.stages] == [100, 1000, 10_000][: len(c.stages)]
    assert len(c.stages) > 1
    assert c.n == sum(stage.n for stage in c.stages)
    assert c.p_lower == lower_bound(c.stages[-1].counts[1], c.stages[-1].n, 0.001 / 3)
    assert sum(c.alpha_split.values()) == pytest.approx(0.001)
    assert c.stages[0].counts != c.stages[1].checkpoints[100]  # fresh noise in every stage


def test_one_stage_never_aborts(smoothed):
    c = smoothed.certify(at(0.1), Staged(radius=0.5, stages=(1000,)), seed=0, index=0)
    assert c.outcome is Outcome.UNDECIDED


def test_together_as_alone(smoothed):
    """Votes and decisions in a pool equal those of each input alone."""
    inputs = [(index, at(0.05 * index)) for index in range(30)]
    for procedure in (Cohen(n=500), Staged(radius=0.5, stages=(100, 1000)), Anytime(radius=(0.25, 0.5), n_max=2000)):
        together = {job.index: c for job, c in smoothed.run(inputs, procedure, procedure.certify, seed=3)}
        for index, x in inputs:
            assert together[index] == smoothed.certify(x, procedure, seed=3, index=index)


def test_predict(smoothed):
    for procedure in (Staged(radius=0.5), Anytime(radius=0.5)):
        assert smoothed.predict(at(0.8), procedure, seed=0, index=0).label == 1
        assert smoothed.predict(at(0.0), procedure, seed=0, index=0).label == ABSTAIN


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Anytime(radius=0), "must be a positive number"),
        (lambda: Anytime(radius=float("nan")), "must be a positive number"),
        (lambda: Anytime(radius=(0.5, -1.0)), "must be a positive number"),
        (lambda: Anytime(radius=(0.5, 0.5)), "given twice"),
        (lambda: Anytime(radius=0.5, alpha=0.0), "alpha must lie"),
        (lambda: Anytime(radius=0.5, beta=1.0), "beta must lie"),
        (lambda: Anytime(radius=0.5, deadline=0), "deadline must be a positive"),
        (lambda: Anytime(radius=0.5, n_max=10), "n_max must be between 20"),
        (lambda: Staged(radius=-0.5), "must be a positive number"),
        (lambda: Staged(radius=0.5, stages=(100, 100)), "stages must increase"),
        (lambda: Staged(radius=0.5, stages=()), "stages must increase"),
        (lambda: Staged(radius=0.5, stages=(0, 100)), "each stage must be"),
        (lambda: Staged(radius=0.5, beta=0.0), "beta must lie"),
    ],
)
def test_refuses(make, match):
    with pytest.raises(UsageError, match=match):
        make()


@pytest.mark.parametrize(
    ("procedure", "match"),
    [
        (
            Anytime(radius=2.0, n_max=1000),
            r"radius 2 cannot .* a budget of 1,000 samples .* the largest is",
        ),
        (Anytime(radius=9.0), "needs more than 1,000,000,000"),
        (Staged(radius=2.0, stages=(100, 1000)), r"a last stage of 1,000 samples .* needs [\d,]+ or more"),
    ],
)
def test_targets_out_of_reach_are_refused_before_sampling(half_space, forwards, procedure, match):
    with pytest.raises(UsageError, match=match):
        Smoothed(half_space, Gaussian(SIGMA)).certify(at(0.4), procedure)
    assert max(forwards.batches(type(half_space))) == COPIES  # only the checks ran


def test_the_samples_said_to_be_needed_suffice():
    """What the error and the plan promise: one sample fewer cannot certify the radius, that many can."""
    noise = Gaussian(SIGMA)
    needed = plan(Cohen(), noise, radius=1.5).needed
    assert plan(Cohen(n=needed), noise).largest_radius >= 1.5
    assert plan(Cohen(n=needed - 1), noise).largest_radius < 1.5
    needed = plan(Anytime(radius=1.5), noise).needed
    assert plan(Anytime(n_max=needed + 20), noise).largest_radius >= 1.495  # its grid is 0.005 σ wide


@pytest.mark.parametrize(
    ("noise", "norm", "radius", "dimension"),
    [
        (Gaussian(SIGMA), Norm.LINF, 0.01, 784),
        (Uniform(1.0), Norm.L1, 0.5, None),
        (Uniform(1.0), "linf", 0.0005, 784),
        (Discrete(0.8, 1), "l0", 2.0, None),
    ],
)
def test_plans_in_other_norms(noise, norm, radius, dimension):
    for procedure in (Cohen(n=2000, norm=norm), Staged(radius=radius, stages=(100, 2000), norm=norm)):
        found = plan(procedure, noise, radius=radius, dimension=dimension)
        assert found.norm == norm
        assert found.threshold == noise.threshold(radius, norm, dimension)
        assert radius <= found.largest_radius
        enough = found.decisions[-1].certify
        level = 0.001 if isinstance(procedure, Cohen) else 0.0005
        assert noise.radius(lower_bound(enough, 2000, level), norm, dimension) >= radius
        assert noise.radius(lower_bound(enough - 1, 2000, level), norm, dimension) < radius
    with pytest.raises(UsageError, match="does not certify the norm"):
        plan(Cohen(norm="l3"), noise)


def test_a_norm_the_noise_does_not_certify_is_refused_before_sampling(half_space, forwards, tmp_path):
    for noise, norm, can in (
        (Gaussian(SIGMA), "l1", "l2, linf"),
        (Uniform(1), "l2", "l1, linf"),
        (Discrete(0.8, 1), "l1", "l0"),
    ):
        smoothed = Smoothed(half_space, noise)
        for procedure in (Cohen(norm=norm), Staged(radius=0.5, norm=norm), Anytime(radius=0.5, norm=norm)):
            with pytest.raises(UsageError, match=f"does not certify the norm '{norm}'; it certifies: {can}"):
                smoothed.certify(torch.tensor([1.0, 0.0]), procedure)
            with pytest.raises(UsageError, match="does not certify the norm"):
                certify_dataset(smoothed, [(torch.tensor([1.0, 0.0]), 1)], procedure, run=tmp_path / "run")
    assert max(forwards.batches(type(half_space))) == COPIES  # only the checks ran
    assert not (tmp_path / "run").exists()


def test_an_l0_target_out_of_reach_is_told_in_pixels(half_space):
    with pytest.raises(UsageError, match=r"^l0 radius 9 cannot be certified .* the largest is 3, and this one needs"):
        Smoothed(half_space, Discrete(0.8, 1)).certify(torch.zeros(20), Anytime(radius=9, n_max=1000))


def test_plan_of_figure_4():
    """Horváth et al. (2022), Fig. 4: the counts at σ = r = 0.25, α = 0.001, β = 0.0001."""
    staged = plan(Staged(radius=0.25, stages=(1_000, 10_000, 125_000), beta=0.0001), Gaussian(0.25))
    assert [d.certify for d in staged.decisions] == [880, 8_538, 105_607]
    assert [d.refute for d in staged.decisions] == [794, 8_269, None]


def test_plan_of_figure_15():
    """Horváth et al. (2022), Fig. 15: the first phase of 100 samples, by the true probability."""
    procedure = Staged(radius=0.25, stages=(100, 10_000, 100_000, 1_200_000))
    for p in (0.6, 0.84, 0.97):
        chance = plan(procedure, Gaussian(0.25), probabilities=[p]).chances[0]
        bounds = lower_bound(list(range(101)), 100, 0.001 / 4), upper_bound(list(range(101)), 100, 0.0001 / 3)
        threshold = stats.norm.cdf(1.0)
        votes = stats.binom.pmf(range(101), 100, p)
        certify, abort = votes[bounds[0] > threshold].sum(), votes[bounds[1] < threshold].sum()
        assert chance.stages[0] == pytest.approx((certify, abort, 1 - certify - abort), abs=1e-9)
        assert len(chance.stages) == 4
        assert chance.certify == pytest.approx(sum(stage[0] for stage in chance.stages))


def test_plan_of_cohen_is_the_binomial_tail():
    p = 0.95
    chance = plan(Cohen(n=1000), Gaussian(SIGMA), radius=0.7, probabilities=[p]).chances[0]
    enough = next(k for k in range(1001) if SIGMA * stats.norm.ppf(lower_bound(k, 1000, 0.001)) > 0.7)
    assert chance.certify == pytest.approx(stats.binom.sf(enough - 1, 1000, p))


def test_plan_agrees_with_what_happens(smoothed):
    """Chances and mean samples of the plan against certifications of an input with that probability."""
    margin, runs = 0.75, 300
    p = float(stats.norm.cdf(margin / SIGMA))
    for procedure in (Staged(radius=0.6, stages=(100, 1000, 10_000)), Anytime(radius=0.6, n_max=10_000)):
        chance = plan(procedure, Gaussian(SIGMA), probabilities=[p]).chances[0]
        inputs = [(index, at(margin)) for index in range(runs)]
        answers = [c for _, c in smoothed.run(inputs, procedure, procedure.certify, seed=0)]
        mean = sum(c.n for c in answers) / runs
        assert mean == pytest.approx(chance.samples, rel=0.25)
        certified = sum(c.outcome is Outcome.CERTIFIED for c in answers) / runs
        assert certified == pytest.approx(chance.certify, abs=0.05)
