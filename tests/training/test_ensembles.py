"""Order, weights and margin of members: against accuracies and optima known in closed form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from smoothcert import Consensus, Ensemble, Gaussian
from smoothcert.training.ensembles import fit_margin, fit_weights, rank_members
from smoothcert.types import UsageError

X = torch.rand(300, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = (X[:, 0] > 0.5).long()


def threshold(at, scale=1.0):
    """Class 1 where the first coordinate exceeds ``at``."""
    return lambda x: torch.stack([torch.zeros(len(x), dtype=x.dtype), scale * (x[:, 0] - at)], 1)


def test_members_are_ordered_by_their_accuracy_under_noise():
    cuts = [0.2, 0.5, 0.65]
    ranked = rank_members([threshold(at) for at in cuts], X, Y, Gaussian(0.1), copies=100)
    assert [member.position for member in ranked] == [1, 2, 0]
    for member in ranked:
        above = stats.norm.sf(cuts[member.position], X[:, 0].numpy(), 0.1)
        exact = np.where(Y.numpy() == 1, above, 1 - above)
        spread = np.sqrt((exact * (1 - exact)).sum() / 100) / len(X)
        assert abs(member.accuracy - exact.mean()) < 5 * spread


def test_equal_members_keep_their_order():
    same = threshold(0.5)
    assert [m.position for m in rank_members([same, same, same], X, Y, Gaussian(0.1))] == [0, 1, 2]


def test_order_depends_on_the_seed_only():
    members = [threshold(0.45), threshold(0.55)]
    one = rank_members(members, X, Y, Gaussian(0.1), seed=1)
    assert one == rank_members(members, X, Y, Gaussian(0.1), seed=1)
    assert one != rank_members(members, X, Y, Gaussian(0.1), seed=2)


def test_weights_minimise_the_cross_entropy():
    generator = torch.Generator().manual_seed(1)
    matrices = torch.randn(3, 2, 4, generator=generator, dtype=torch.float64)
    members = [lambda x, m=m: 4 * x.double() @ m for m in matrices]
    y = (X @ matrices[0] + X @ matrices[2]).argmax(1)
    noise = Gaussian(0.2)
    weights = np.array(fit_weights(members, X, y, noise, seed=3))
    assert weights.sum() == pytest.approx(1)
    assert weights.min() >= 0
    from smoothcert.sampling.copies import NoisyCopies
    from smoothcert.sampling.seeds import HOLDOUT

    maker, batch = NoisyCopies(X[0]), torch.empty(300, 20, 2, dtype=torch.float64)
    for row, x in enumerate(X):
        maker.fill(batch[row], x, noise, seed=3, index=row, stage=HOLDOUT, start=0)
    logits = torch.stack([member(batch.flatten(0, 1)) for member in members])
    labels = y.repeat_interleave(20)

    def loss(at):
        mixed = (torch.tensor(at)[:, None, None] * logits).sum(0)
        return float(torch.nn.functional.cross_entropy(mixed, labels))

    grid = [(a, b, 1 - a - b) for a in np.linspace(0, 1, 51) for b in np.linspace(0, 1 - a, 51)]
    best = min(map(loss, grid))
    assert loss(weights) <= best + 1e-6
    assert loss(weights) < loss([1 / 3] * 3) - 1e-3


def test_a_useless_member_gets_no_weight():
    weights = fit_weights([threshold(0.5, 10.0), threshold(0.5, -10.0)], X, Y, Gaussian(0.1))
    assert weights[0] > 0.999


def test_the_margin_is_the_least_at_which_two_decide_as_all_do():
    """Two cut at ½, where classes are 10·(t − ½) apart; three others at 0.62, so that all together cut at 0.572."""
    members = [threshold(0.5, 10.0)] * 2 + [threshold(0.62, 10.0)] * 3
    margin = fit_margin(members, 2, X, Gaussian(0.1), share=0.0, copies=200)
    assert 0.71 < margin <= 0.721  # all decide otherwise between ½ and 0.572, where the lead is below 0.72
    allowed = fit_margin(members, 2, X, Gaussian(0.1), share=0.01, copies=200)
    assert 0 < allowed < margin


def test_the_margin_keeps_its_promise_on_other_noise():
    torch.manual_seed(0)
    members = [torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)) for _ in range(5)]
    x, weights = torch.rand(100, 2), [0.3, 0.3, 0.2, 0.1, 0.1]
    margin = fit_margin(members, 2, x, Gaussian(0.5), weights=weights, share=1e-3)
    noisy = (x[:, None] + 0.5 * torch.randn(100, 500, 2)).reshape(-1, 2)
    every = Ensemble(members, weights=weights)(noisy).argmax(1)

    def otherwise(margin):
        return float((Consensus(members, 2, weights, margin=margin)(noisy).argmax(1) != every).float().mean())

    assert otherwise(margin) < 2e-3
    assert otherwise(0.9 * margin) > 1e-3 or otherwise(0.0) > 10 * otherwise(margin)
    assert otherwise(0.0) > 1e-2


def test_members_that_agree_need_no_margin():
    assert fit_margin([threshold(0.5)] * 3, 2, X, Gaussian(0.1)) == 0.0


@pytest.mark.parametrize(
    ("options", "words"),
    [({"share": 1.0}, "below 1, got 1.0"), ({"first": 4}, "between 1 and the number"), ({"weights": [1]}, "1 weights")],
)
def test_margins_that_cannot_be_found(options, words):
    given = {"first": 2, **options}
    with pytest.raises(UsageError, match=words):
        fit_margin([threshold(0.5)] * 3, given.pop("first"), X, Gaussian(0.1), **given)


@pytest.mark.parametrize(
    ("members", "x", "y", "words"),
    [
        ([], X, Y, "at least one member"),
        ([threshold(0.5)], X[:0], Y[:0], "at least one member and one input"),
        ([threshold(0.5)], X, Y[:5], "a label for each input"),
        ([threshold(0.5), lambda x: torch.zeros(len(x), 3)], X, Y, r"of the same classes, got \[\(1, 2\), \(1, 3\)\]"),
        ([lambda x: torch.full((len(x), 2), torch.nan)], X, Y, "finite logits"),
    ],
)
def test_what_does_not_fit_is_refused(members, x, y, words):
    with pytest.raises(UsageError, match=words):
        fit_weights(members, x, y, Gaussian(0.1))
