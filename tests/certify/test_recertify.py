"""Recertification: its statistics, its bound in plain steps, and what a certificate records."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from smoothcert import Cohen, Gaussian, Smoothed
from smoothcert.certify.recertify import Recertify, StoredVotes
from smoothcert.classifiers import Pair
from smoothcert.classifiers.sealed import Sealed
from smoothcert.sampling import RECERTIFICATION
from smoothcert.sampling.copies import NoisyCopies, input_digest
from smoothcert.sampling.statistics import Changed, SecondTopClass
from smoothcert.types import Certificate, UsageError

NOISE = Gaussian(0.3)
X = torch.tensor([0.2, 0.5, 0.7, 0.4])


def linear(seed: int, change: float = 0.0) -> nn.Linear:
    torch.manual_seed(seed)
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight *= 3
        model.weight += change * torch.randn(3, 4)
    return model


def stored(share: float = 0.8, n: int = 10_000, x: torch.Tensor = X) -> StoredVotes:
    counts = [[round(n * (1 - share)), round(n * share), 0]]
    return StoredVotes([input_digest(x)], np.array([[10, 85, 5]]), 100, np.array(counts), n)


def test_votes_of_a_pair_are_counted_as_in_plain_loops():
    first, second = torch.randn(3000, 4), torch.randn(3000, 4)
    second[::2] = first[::2]
    first[:5], second[5:10], second[11] = torch.nan, torch.inf, torch.nan
    first[4], second[4] = torch.nan, torch.nan
    logits = torch.cat([first, second], dim=1)
    changed, votes = Changed().codes(logits).tolist(), SecondTopClass().codes(logits).tolist()
    assert (Changed().bins(8), SecondTopClass().bins(8)) == (5, 4)
    for a, b, change, vote in zip(first, second, changed, votes, strict=True):
        one, two = (int(each.argmax()) if each.isfinite().all() else None for each in (a, b))
        assert vote == (-1 if two is None else two)
        assert change == (-1 if one is None else 4 if one == two else one)
    assert {-1, 0, 1, 2, 3, 4} == set(changed)


def test_each_of_a_pair_gets_inputs_of_its_own_type():
    x = torch.rand(50, 4)
    wide, narrow = linear(0).double(), linear(1).bfloat16()
    for first, second in ((wide, narrow), (narrow, wide)):
        rows = Sealed(Pair(first, second)).run(x.clone()).double()
        expected = [first(x.to(first.weight.dtype)), second(x.to(second.weight.dtype))]
        assert torch.equal(rows, torch.cat([each.double() for each in expected], dim=1))


@pytest.mark.parametrize(("share", "change"), [(0.8, 0.1), (0.8, 3.0), (0.9901, 0.1)])
def test_the_certificate_equals_the_bound_in_plain_steps(share, change):
    f, g = linear(1), linear(1, change)
    procedure = Recertify(pair=Pair(f, g), stored=stored(share), n=3_000, alpha=0.01)
    found = Smoothed(g, NOISE, runtime="eager").certify(X, procedure, seed=3, index=5)
    copies = torch.empty(3_000, 4)
    NoisyCopies(X).fill(copies, X, NOISE, seed=3, index=5, stage=RECERTIFICATION, start=0)
    with torch.inference_mode():
        a, b = f(copies).argmax(1).numpy(), g(copies).argmax(1).numpy()
    guess, k = 1, round(10_000 * share)
    own = int((b == guess).sum())

    def lower(k: int, n: int, alpha: float) -> float:
        return float(stats.beta.ppf(alpha, k, n - k + 1)) if k else 0.0

    if share >= 0.99:
        expected = lower(own, 3_000, 0.009)
        assert found.changed is None
    else:
        lost = int(((a == guess) & (b != guess)).sum())
        through = lower(k, 10_000, 0.001) - float(stats.beta.ppf(1 - 0.0045, lost + 1, 3_000 - lost))
        direct = lower(own, 3_000, 0.0045)
        assert (through > direct) is (change < 1)  # both are the better one in a case
        expected = max(through, direct)
        assert found.changed.counts[guess] == lost
        assert sum(found.changed.counts) == 3_000
    assert found.p_lower == pytest.approx(expected, abs=1e-9)
    assert found.counts == tuple(np.bincount(b, minlength=3).tolist())
    assert sum(found.alpha_split.values()) == pytest.approx(0.01)
    assert (found.n, found.original.counts[guess]) == (3_000, k)


def test_the_certificate_is_about_the_new_model_and_can_be_written():
    f, g = linear(1), linear(1, 0.1)
    found = Smoothed(g, NOISE).certify(X, Recertify(pair=Pair(f, g), stored=stored(), n=500))
    assert found.model == Smoothed(g, NOISE).certify(X, Cohen(100)).model
    assert Certificate.from_dict(found.to_dict()) == found
    with pytest.raises(UsageError, match="original: counts are negative or more than"):
        Certificate.from_dict({**found.to_dict(), "original": {"n": 5, "counts": [9], "checkpoints": {}}})


def test_votes_of_another_input_or_model_are_refused():
    f, g = linear(1), linear(1, 0.1)
    smoothed = Smoothed(g, NOISE)
    other = Recertify(pair=Pair(f, g), stored=stored(x=X + 0.1), n=500)
    with pytest.raises(UsageError, match="has no votes for this input"):
        smoothed.certify(X, other)
    votes = StoredVotes([input_digest(X)], np.array([[10, 90]]), 100, np.array([[100, 900]]), 1_000)
    with pytest.raises(UsageError, match="the original model has 2 classes and the new one 3"):
        smoothed.certify(X, Recertify(pair=Pair(f, g), stored=votes, n=500))
