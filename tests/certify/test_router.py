"""The router: the smaller radius of selector and expert, whichever procedure, batches or company."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from smoothcert import (
    ABSTAIN,
    Aces,
    Anytime,
    Cohen,
    Gaussian,
    Guarantee,
    Norm,
    Smoothed,
    Staged,
    Uniform,
    certify_dataset,
)
from smoothcert.attack import attack_dataset
from smoothcert.classifiers.sealed import COPIES
from smoothcert.doctor import examine
from smoothcert.types import Outcome, UsageError

INPUTS = torch.rand(12, 4, generator=torch.Generator().manual_seed(5))


def linear(seed: int, classes: int = 3, scale: float = 2.0) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, classes)
    with torch.no_grad():
        model.weight *= scale
    return model.double()


SELECTOR = torch.nn.Linear(4, 3, bias=False).double()  # the largest of three coordinates decides
SELECTOR.weight.data = 8 * torch.eye(3, 4, dtype=torch.float64)
CORE = linear(4)
PROCEDURES = [Cohen(n=1000, alpha=0.01), Staged(radius=0.02), Anytime(radius=0.02, n_max=5000)]


def make_router(**options) -> Smoothed:
    experts = [Smoothed(linear(seed), Gaussian(sigma), runtime="eager") for seed, sigma in ((1, 0.1), (2, 0.3))]
    return Smoothed(SELECTOR, Gaussian(0.2), experts=[*experts, CORE], runtime="eager", **options)


@pytest.mark.parametrize(
    "procedure", [Cohen(n=1000, alpha=0.01), Staged(radius=0.02), Anytime(radius=0.02, n_max=5000)]
)
def test_every_answer_is_the_experts_within_the_selectors_radius(procedure):
    """As if selector and expert were certified one after the other, with half of alpha each."""
    router, half = make_router(), replace(procedure, alpha=procedure.alpha / 2)
    chosen = set()
    for job, given in router.run(enumerate(INPUTS), procedure, procedure.certify, seed=3):
        choice = Smoothed(SELECTOR, router.noise, runtime="eager").certify(job.x, half, seed=3, index=job.index)
        assert given.routing.choice == choice.label
        assert given.routing.counts == choice.counts
        assert given.guarantee is Guarantee.ROUTED
        assert given.alpha == procedure.alpha
        assert sum(given.alpha_split.values()) <= procedure.alpha * (1 + 1e-12)
        chosen.add(choice.label)
        if choice.abstained:
            assert (given.label, given.radius) == (ABSTAIN, 0.0)
        elif choice.label == 2:
            with torch.no_grad():
                assert (given.label, given.radius) == (int(CORE(job.x.double()[None]).argmax()), 0.0)
            assert given.outcome is Outcome.UNDECIDED
            assert given.samples == choice.samples
        else:
            expert = router.experts[choice.label].certify(job.x, half, seed=3, index=job.index)
            assert given.counts == expert.counts
            assert given.noise == repr(router.experts[choice.label].noise)
            assert given.label == expert.label
            assert given.radius == (0.0 if expert.abstained else min(choice.radius, expert.radius))
            assert given.samples == choice.samples + expert.samples
    assert chosen >= {0, 1, 2}


@pytest.mark.parametrize("batch_size", [7, 64, 1000])
def test_answers_do_not_depend_on_batches_or_company(batch_size):
    procedure = Cohen(n=500)
    alone = {i: make_router().certify(x, procedure, index=i, seed=0) for i, x in enumerate(INPUTS)}
    together = make_router(batch_size=batch_size)
    for expert in together.experts[:2]:
        expert.batch_size = batch_size
    assert {job.index: c for job, c in together.run(enumerate(INPUTS), procedure, procedure.certify, seed=0)} == alone


def test_targets_are_certified_only_where_both_are():
    router, procedure = make_router(), Anytime(radius=(0.01, 0.2), n_max=3000)
    for job, given in router.run(enumerate(INPUTS), procedure, procedure.certify, seed=0):
        for target, outcome in given.decisions.items():
            if outcome is Outcome.CERTIFIED:
                assert given.radius >= target
                assert given.routing.radius >= target
        assert job.index == given.index


def test_predictions_are_the_experts():
    router, procedure = make_router(), Cohen(n=2000, alpha=0.01)
    half = Cohen(n=2000, alpha=0.005)
    for index, x in enumerate(INPUTS):
        given = router.predict(x, procedure, index=index, seed=0)
        choice = Smoothed(SELECTOR, router.noise, runtime="eager").predict(x, half, index=index, seed=0)
        if choice.abstained:
            assert given.label == ABSTAIN
        elif choice.label == 2:
            with torch.no_grad():
                assert given.label == int(CORE(x.double()[None]).argmax())
        else:
            assert given.label == router.experts[choice.label].predict(x, half, index=index, seed=0).label
        assert given.alpha == 0.01


def test_a_run_keeps_choice_and_votes(tmp_path):
    dataset = [(x, 0) for x in INPUTS]
    run = certify_dataset(make_router(), dataset, Cohen(n=500), run=tmp_path / "run", progress=False, seed=0)
    rows = run.rows()
    assert {row["guarantee"] for row in rows} == {"routed"}
    assert {row["choice"] for row in rows} >= {0, 1, 2}
    assert all(sum(row["selector"]) == 500 and sum(row["selector0"]) == 100 for row in rows)
    assert all((row["core"] is not None) == (row["choice"] == 2) for row in rows)
    assert len(run.config["experts"]) == 3


def test_refusals():
    experts = [Smoothed(linear(1), Gaussian(0.1)), Smoothed(linear(2), Gaussian(0.3))]
    with pytest.raises(UsageError, match="at least two experts"):
        Smoothed(SELECTOR, Gaussian(0.2), experts=experts[:1])
    with pytest.raises(UsageError, match="chooses between 3, but there are 2 experts"):
        Smoothed(SELECTOR, Gaussian(0.2), experts=experts).certify(INPUTS[0], Cohen(n=100))
    with pytest.raises(UsageError, match=r"same classes, but they have \[3, 4\]"):
        Smoothed(SELECTOR, Gaussian(0.2), experts=[*experts, linear(3, classes=4)]).certify(INPUTS[0], Cohen(n=100))
    with pytest.raises(UsageError, match="without experts"):
        Smoothed(SELECTOR, Gaussian(0.2), experts=[make_router(), *experts])
    with pytest.raises(UsageError, match="cannot be certified by aces"):
        make_router().certify(INPUTS[0], Aces(n=100))


def test_a_target_that_an_expert_cannot_reach_is_refused_before_sampling(forwards):
    experts = [Smoothed(linear(seed), Gaussian(0.1)) for seed in (1, 2, 3)]
    with pytest.raises(UsageError, match=r"radius 0.3 cannot be certified"):
        Smoothed(SELECTOR, Gaussian(0.3), experts=experts).certify(INPUTS[0], Anytime(radius=0.3, n_max=3000))
    assert max(forwards.batches(torch.nn.Linear)) == COPIES  # only the checks ran


def test_selector_and_experts_are_certified_in_one_norm(forwards):
    experts = [Smoothed(linear(seed), Gaussian(0.3)) for seed in (1, 2, 3)]
    router = Smoothed(SELECTOR, Uniform(0.5), experts=experts)
    with pytest.raises(
        UsageError, match="gaussian noise does not certify the norm 'l1'"
    ):  # that of the selector's noise
        router.certify(INPUTS[0], Cohen(n=1000))
    with pytest.raises(UsageError, match="uniform noise does not certify the norm 'l2'"):
        router.certify(INPUTS[0], Cohen(n=1000, norm="l2"))
    assert max(forwards.batches(torch.nn.Linear)) == COPIES
    procedure = Cohen(n=1000, norm="linf", alpha=0.01)
    half = replace(procedure, alpha=0.005)
    for index, x in enumerate(INPUTS):
        given = router.certify(x, procedure, seed=0, index=index)
        choice = Smoothed(SELECTOR, router.noise).certify(x, half, seed=0, index=index)
        assert given.norm is Norm.LINF
        assert given.routing.radius == choice.radius
        if not given.abstained:
            expert = experts[choice.label].certify(x, half, seed=0, index=index)
            assert given.radius == min(choice.radius, expert.radius) > 0


def test_what_works_on_one_model_refuses_a_router():
    pairs = [(x, 0) for x in INPUTS]
    for function in (lambda: attack_dataset(make_router(), pairs, [0.1]), lambda: examine(make_router(), pairs)):
        with pytest.raises(UsageError, match=r"a router cannot be \w+ as one model"):
            function()
