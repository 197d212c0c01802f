"""CERTIFY and PREDICT on classifiers whose smoothed answer is known, and everything they refuse."""

from __future__ import annotations

import time
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats

from smoothcert import ABSTAIN, Anytime, Certificate, Cohen, Gaussian, Guarantee, Norm, OptimizeSigma, Smoothed, Staged
from smoothcert.certify import PROCEDURES, Aces, Task, answer, runner
from smoothcert.classifiers.sealed import COPIES, Sealed
from smoothcert.sampling.runtimes import MEASURE_SECONDS, not_worth_measuring, unprepared
from smoothcert.stats import lower_bound
from smoothcert.types import Outcome, UsageError, Votes

X = torch.tensor([0.9, 0.5])


def test_certificate_of_a_half_space(half_space):
    c = Smoothed(half_space, Gaussian(0.5)).certify(X, Cohen(n=20_000), seed=4, index=9)
    assert isinstance(c, Certificate)
    assert c.label == 1
    assert 0.36 < c.radius <= 0.4
    assert c.radius == pytest.approx(0.5 * stats.norm.ppf(c.p_lower), rel=1e-9)
    assert c.p_lower == lower_bound(c.counts[1], 20_000, 0.001)
    assert (c.n, c.n0, sum(c.counts), sum(c.selection), c.samples) == (20_000, 100, 20_000, 100, 20_100)
    assert (c.norm, c.guarantee, c.alpha, c.alpha_split) == (Norm.L2, Guarantee.GLOBAL, 0.001, {"top class": 0.001})
    assert (c.seed, c.index, c.noise) == (4, 9, "Gaussian(sigma=0.5)")
    assert list(c.checkpoints) == [10, 100, 1000, 10_000]
    with pytest.raises(AttributeError):
        c.radius = 1.0  # type: ignore[misc]


def test_abstains_where_the_bound_is_not_above_half(half_space):
    c = Smoothed(half_space, Gaussian(0.5)).certify(torch.tensor([0.5, 0.5]), Cohen(n=1000), seed=0, index=0)
    assert (c.label, c.radius, c.abstained) == (ABSTAIN, 0.0, True)
    assert c.p_lower <= 0.5


def test_all_invalid_votes_abstain():
    smoothed = Smoothed(lambda x: torch.full((len(x), 3), float("nan")), Gaussian(0.5))
    assert smoothed.certify(X, Cohen(n=1000), seed=0, index=0).counts == (0, 0, 0)
    assert smoothed.certify(X, Cohen(n=1000), seed=0, index=0).label == ABSTAIN
    assert smoothed.predict(X, seed=0, index=0).label == ABSTAIN


def test_invalid_votes_are_warned_about(half_space):
    def sometimes(x):
        return torch.where(x[:, :1] > 1, torch.nan, half_space(x))

    smoothed = Smoothed(sometimes, Gaussian(0.5))
    for call in (partial(smoothed.certify, X, Cohen(n=1000)), partial(smoothed.predict, X)):
        with pytest.warns(UserWarning, match="samples had invalid logits") as found:
            given = call(seed=0, index=0)
        counted = sum(given.counts) + sum(getattr(given, "selection", ()))
        assert 0 < given.invalid == given.samples - counted < given.samples
        assert [str(each.message).split(" samples")[0] for each in found] == [f"{given.invalid} of {given.samples:,}"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Smoothed(half_space, Gaussian(0.5)).certify(X, Cohen(n=1000), seed=0).invalid == 0


def test_runtimes_are_benchmarked_where_sampling_takes_long(half_space, monkeypatch):
    """Decided by the expected time of the samples, not by their number alone."""
    measured = []

    def prepare(sealed, x, *, samples, **options):
        measured.append(samples)
        return unprepared(sealed, 100)

    monkeypatch.setattr(runner, "prepare", prepare)
    for rate, benchmarked in ((1e2, [1_000, 20_000]), (1e4, [20_000]), (1e9, [])):
        measured.clear()
        monkeypatch.setattr(runner, "not_worth_measuring", lambda *_, rate=rate: max(rate, 800))
        for samples in (100, 800, 1_000, 20_000):
            Smoothed(half_space, Gaussian(0.5)).prepare(X, samples=samples)
        assert measured == benchmarked
    smoothed = Smoothed(half_space, Gaussian(0.5))
    monkeypatch.setattr(runner, "not_worth_measuring", lambda *_: 5_000)
    for samples in (2_000, 5_000, 6_000, 100, 6_000, 2_000_000):
        smoothed.prepare(X, samples=samples)
    assert measured == [6_000]  # and what was prepared is kept


@pytest.fixture
def benchmarked(monkeypatch):
    """The sealed models that were benchmarked; 2,500 samples are worth it."""
    found = []

    def prepare(sealed, x, *, samples, **options):
        found.append(sealed)
        return unprepared(sealed, 100)

    monkeypatch.setattr(runner, "prepare", prepare)
    monkeypatch.setattr(runner, "not_worth_measuring", lambda *_: 2_500)
    return found


def test_small_calls_count_together(half_space, benchmarked):
    smoothed = Smoothed(half_space, Gaussian(0.5))
    for call in range(6):
        smoothed.certify(X, Cohen(n=900))
        assert len(benchmarked) == (call >= 2)
    tiny = Smoothed(half_space, Gaussian(0.5))
    for _ in range(30):
        tiny.certify(X, Cohen(n=20, n0=10))
    assert len(benchmarked) == 1


def test_preparing_draws_nothing(half_space, benchmarked):
    smoothed = Smoothed(half_space, Gaussian(0.5))
    for _ in range(5):
        smoothed.prepare(X, samples=2_000)
    smoothed.certify(X, Cohen(n=1_900))
    assert not benchmarked


def test_models_and_shapes_that_alternate_keep_their_runtimes(benchmarked):
    flat = torch.nn.Flatten()
    both = [Smoothed(flat, Gaussian(0.5)), Smoothed(torch.nn.Sequential(flat, torch.nn.Linear(4, 2)), Gaussian(0.5))]
    for _ in range(6):
        for smoothed in both:
            smoothed.certify(torch.rand(4), Cohen(n=1_000))
        both[0].certify(torch.rand(3), Cohen(n=1_000))
    assert len(benchmarked) == 3


def test_a_model_that_changed_is_measured_again(benchmarked):
    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([1.0, 0.0]))
    smoothed = Smoothed(model, Gaussian(0.5))
    for label in (0, 1, 0):
        with torch.no_grad():
            model.bias.copy_(torch.tensor([1.0 - label, 1.0 * label]))
        for _ in range(4):
            assert smoothed.certify(X, Cohen(n=900)).label == label
    assert len(benchmarked) == len(set(map(id, benchmarked))) == 3


def test_the_time_of_a_sample_is_measured():
    def slow(x):
        time.sleep(0.0005 * len(x))
        return x

    sealed = Sealed(slow)
    copies = torch.rand(40, 2)
    sealed.verify(copies)
    assert 800 <= not_worth_measuring(sealed, copies) <= 2_000 * MEASURE_SECONDS
    fast = Sealed(torch.nn.Linear(2, 2))
    fast.verify(copies)
    assert not_worth_measuring(fast, copies) > 1_000 * MEASURE_SECONDS


def test_predict(half_space):
    smoothed = Smoothed(half_space, Gaussian(0.5))
    sure = smoothed.predict(X, seed=0, index=0)
    assert (sure.label, sum(sure.counts)) == (1, sure.n)
    assert sure.n < 100
    assert sure.p_value <= sure.alpha
    unsure = smoothed.predict(torch.tensor([0.5, 0.5]), seed=0, index=0)
    assert (unsure.label, unsure.abstained, unsure.n) == (ABSTAIN, True, 1000)
    assert unsure.p_value > unsure.alpha


def test_predict_with_a_fixed_number_of_votes(half_space):
    sure = Smoothed(half_space, Gaussian(0.5)).predict(X, Cohen(n=1000), seed=0, index=0)
    assert (sure.label, sure.n, sum(sure.counts)) == (1, 1000, 1000)
    assert sure.p_value == pytest.approx(stats.binomtest(sure.counts[1], 1000).pvalue, rel=1e-6)


def test_same_seed_same_answer_other_seed_other_votes(half_space):
    smoothed = Smoothed(half_space, Gaussian(0.5))
    first = smoothed.certify(X, Cohen(n=1000), seed=1)
    assert smoothed.certify(X, Cohen(n=1000), seed=1) == first
    assert smoothed.certify(X, Cohen(n=1000), seed=2).counts != first.counts
    assert smoothed.certify(X, Cohen(n=1000), seed=1, index=1).counts != first.counts


def test_selection_votes_are_not_used_for_the_bound(half_space):
    """The first n0 estimation samples are others than the selection samples."""
    c = Smoothed(half_space, Gaussian(0.5)).certify(torch.tensor([0.6, 0.5]), Cohen(n0=1000, n=1001), seed=0, index=0)
    assert c.selection != c.checkpoints[1000]


def test_a_printed_radius_is_never_larger(half_space):
    c = Smoothed(half_space, Gaussian(0.5)).certify(X, Cohen(n=1000), seed=0, index=0)
    assert float(str(c).split("below ")[1].split(";")[0]) <= c.radius


def test_the_users_module_is_left_as_it_was():
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(), torch.nn.Linear(4, 2)
    )
    model.train()
    model[1].eval()
    running = model[1].running_mean.clone()
    Smoothed(model, Gaussian(0.5)).certify(X, Cohen(n=200), seed=0, index=0)
    assert [m.training for m in model] == [True, False, True, True]
    assert model.training
    assert torch.equal(model[1].running_mean, running)
    assert model[0].weight.requires_grad


def test_the_users_module_is_left_as_it_was_when_a_copy_of_it_fails(forwards):
    class Fails(torch.nn.Module):
        def forward(self, x):
            if len(x) > COPIES:
                raise RuntimeError("out of memory")
            return x

    model = Fails().train()
    with pytest.raises(
        UsageError, match=r"batches of 4000 .*\(out of memory\).* give a batch_size that the model can take"
    ):
        Smoothed(model, Gaussian(0.5)).certify(X, Cohen(n=100))
    assert model.training
    assert max(forwards.batches(Fails)) == 4000
    assert model not in forwards.modules


def test_takes_numpy_and_follows_the_models_dtype(half_space):
    assert Smoothed(half_space, Gaussian(0.5)).certify(np.array([0.9, 0.5]), Cohen(n=100), seed=0, index=0).n == 100
    double = torch.nn.Linear(2, 2).double()
    assert Smoothed(double, Gaussian(0.5)).certify(X, Cohen(n=100), seed=0, index=0).n == 100


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (torch.tensor([0.5, float("nan")]), "NaN or infinite"),
        (torch.tensor([0.5, float("inf")]), "NaN or infinite"),
        (torch.tensor([0.5, 1.5]), r"spans \[0.5, 1.5\], outside the declared range"),
        (torch.tensor([1, 2]), "dtype int64"),
        (torch.zeros(0), "empty"),
    ],
)
def test_refuses_inputs(half_space, x, match):
    with pytest.raises(UsageError, match=match):
        Smoothed(half_space, Gaussian(0.5)).certify(x)


def test_a_declared_range_is_the_one_checked(half_space):
    smoothed = Smoothed(half_space, Gaussian(0.5), input_range=(-1, 2))
    assert smoothed.certify(torch.tensor([1.5, -1.0]), Cohen(n=100), seed=0, index=0).label == 1


@pytest.mark.parametrize(
    ("model", "classes", "match"),
    [
        (lambda x: x.sum(1), None, r"must map a batch of 1 inputs .* but returned \(1,\)"),
        (lambda x: x.unsqueeze(2), None, r"returned \(1, 2, 1\)"),
        (lambda x: x[:1], None, r"must map a batch of 3 inputs .* but returned \(1, 2\)"),
        (lambda x: x[:, :1], None, r"returned \(1, 1\)"),
        (lambda x: [x, x], None, "returned list"),
        (lambda x: x.reshape(1, 2), None, r"a batch of shape \(3, 2\) .* a model that takes batches of any size"),
        (lambda x: x, 10, "gives 2 classes, not num_classes=10"),
        (torch.nn.Conv2d(1, 2, 3), None, r"cannot classify a batch of shape \(1, 2\)"),
    ],
)
def test_refuses_models_before_sampling(model, classes, match):
    with pytest.raises(UsageError, match=match):
        Smoothed(model, Gaussian(0.5), num_classes=classes).certify(X)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"n": 0}, "n must be a whole number"),
        ({"n": 10**9 + 1}, "n must be a whole number"),
        ({"n": 10.5}, "n must be a whole number"),
        ({"n0": 0}, "n0 must be a whole number"),
        ({"alpha": 0.0}, "alpha must lie strictly"),
        ({"alpha": 1.0}, "alpha must lie strictly"),
        ({"alpha": float("nan")}, "alpha must lie strictly"),
    ],
)
def test_cohen_refuses(settings, match):
    with pytest.raises(UsageError, match=match):
        Cohen(**settings)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"noise": 0.5}, "noise must be a noise"),
        ({"num_classes": 1}, "num_classes must be at least 2"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"runtime": "eagre"}, "did you mean 'eager'"),
        ({"input_range": (1, 0)}, "low < high"),
        ({"model": 3}, "must be callable"),
    ],
)
def test_smoothed_refuses(half_space, arguments, match):
    given = {"model": half_space, "noise": Gaussian(0.5), **arguments}
    with pytest.raises(UsageError, match=match):
        Smoothed(given.pop("model"), given.pop("noise"), **given)


def test_refuses_a_norm_before_sampling(half_space, forwards):
    with pytest.raises(UsageError, match="does not certify the norm"):
        Smoothed(half_space, Gaussian(0.5)).certify(X, Cohen(norm="l1"))
    assert max(forwards.batches(type(half_space))) == COPIES  # only the checks ran


def test_refuses_seeds_out_of_range(half_space):
    with pytest.raises(UsageError, match="seed must be between"):
        Smoothed(half_space, Gaussian(0.5)).certify(X, seed=-1)


@pytest.mark.parametrize("name", PROCEDURES)
def test_every_procedure_keeps_its_contract(name):
    """Runs on recorded votes, without a model; abstains on even votes, certifies unanimous ones."""
    procedures = {"cohen": Cohen(n=1000), "staged": Staged(radius=0.1), "anytime": Anytime(radius=0.1), "aces": Aces()}
    procedure = procedures[name]
    task = Task(Gaussian(0.5), 2, 4, seed=0, index=0)

    def even(request):
        halves = (request.n // 2, request.n // 2)
        return (Votes(request.n, halves), Votes(request.n, (halves[0], *[0] * 99, halves[1])))[
            : len(procedure.statistics)
        ]

    def sure(request):
        scores = Votes(request.n, (request.n, *[0] * 100))
        return (Votes(request.n, (0, request.n)), scores)[: len(procedure.statistics)]

    assert answer(procedure.certify(task), even).label == ABSTAIN
    assert answer(procedure.predict(task), even).label == ABSTAIN
    certificate = answer(procedure.certify(task), sure)
    assert (certificate.label, certificate.radius > 0, certificate.outcome) == (1, True, Outcome.CERTIFIED)
    assert answer(procedure.predict(task), sure).label == 1
    assert sum(certificate.alpha_split.values()) <= certificate.alpha
    assert procedure.config()["name"] == name


def test_the_noise_cannot_change_between_sampling_and_computing_the_radius():
    smoothed = Smoothed(torch.nn.Linear(4, 2), Gaussian(0.25))
    for name, value in (("noise", Gaussian(0.5)), ("sigma", OptimizeSigma()), ("experts", (smoothed,) * 2)):
        with pytest.raises(AttributeError):
            setattr(smoothed, name, value)
    assert smoothed.noise == Gaussian(0.25)


def test_a_model_that_changes_while_the_first_input_is_read_is_not_mixed_with_the_new_one():
    model = torch.nn.Linear(4, 2)
    smoothed = Smoothed(model, Gaussian(0.25))
    x = torch.full((4,), 0.5)
    before = smoothed.certify(x, Cohen(n=200), seed=1, index=0)

    def inputs():
        with torch.no_grad():
            model.weight.neg_()
            model.bias.neg_()
        yield 0, x

    procedure = Cohen(n=200)
    ((_, found),) = smoothed.run(inputs(), procedure, procedure.certify, seed=1)
    assert (found.counts, found.model) == (before.counts, before.model)
    after = smoothed.certify(x, procedure, seed=1, index=0)
    assert after.counts == before.counts[::-1]
    assert after.model != before.model
