"""Logits of members: one noise for all, whatever the batches, and none that a certificate uses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from smoothcert.noise import Gaussian
from smoothcert.sampling.copies import NoisyCopies
from smoothcert.sampling.member_logits import member_logits
from smoothcert.sampling.seeds import ESTIMATION, MODELLING, PREDICTION, SELECTION
from smoothcert.types import UsageError

X = torch.linspace(0, 1, 12).reshape(3, 4)
NOISE = Gaussian(0.5)


def identity(batch):
    return batch.flatten(1)


def negated(batch):
    return -batch.flatten(1)


def test_members_see_the_same_copies():
    found = member_logits([identity, negated], X, NOISE, n=50)
    assert found.clean.shape == (2, 12)
    assert found.noisy.shape == (2, 50, 12)
    assert found.clean.dtype == found.noisy.dtype == np.float64
    assert found.clean[0] == pytest.approx(X.flatten().numpy())
    assert np.array_equal(found.noisy[0], -found.noisy[1])
    effect = member_logits([identity], X, NOISE, n=4_000).noisy[0] - X.flatten().numpy()
    assert effect.std() == pytest.approx(0.5, rel=0.02)
    assert effect.mean() == pytest.approx(0.0, abs=0.02)


def test_copies_depend_on_seed_index_and_number_only():
    whole = member_logits([identity], X, NOISE, n=50, seed=3, index=7).noisy[0]
    for batch_size in (1, 7, 20, 64):
        assert np.array_equal(
            whole, member_logits([identity], X, NOISE, n=50, seed=3, index=7, batch_size=batch_size).noisy[0]
        )
    assert np.array_equal(whole, member_logits([negated, identity], X, NOISE, n=50, seed=3, index=7).noisy[1])
    assert np.array_equal(whole[30:], member_logits([identity], X, NOISE, n=20, seed=3, index=7, start=30).noisy[0])
    assert not np.any(whole == member_logits([identity], X, NOISE, n=50, seed=3, index=8).noisy[0])
    assert not np.any(whole == member_logits([identity], X, NOISE, n=50, seed=4, index=7).noisy[0])


def test_no_certificate_draws_these_copies():
    found = torch.as_tensor(member_logits([identity], X, NOISE, n=20).noisy[0], dtype=torch.float32)
    rows = torch.empty(20, 3, 4)
    NoisyCopies(X).fill(rows, X, NOISE, seed=0, index=0, stage=MODELLING, start=0)
    assert torch.equal(rows.flatten(1), found)
    for stage in (SELECTION, ESTIMATION, ESTIMATION + 1, PREDICTION):
        NoisyCopies(X).fill(rows, X, NOISE, seed=0, index=0, stage=stage, start=0)
        assert not torch.any(rows.flatten(1) == found)


def test_modules_run_in_evaluation_mode_and_stay_as_they_were():
    member = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.BatchNorm1d(12))
    member[2].eval()
    found = member_logits([member], X, NOISE, n=30)
    again = member_logits([member], X, NOISE, n=30)
    assert np.array_equal(found.noisy, again.noisy)
    assert [part.training for part in member.modules()] == [True, True, True, False]
    assert int(member[2].num_batches_tracked) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: member_logits([], X, NOISE), "no members"),
        (lambda: member_logits([identity], X, NOISE, n=0), "n and batch_size must be at least 1"),
        (lambda: member_logits([identity], X, NOISE, start=-1), "start at least 0"),
        (lambda: member_logits([identity], X.int(), NOISE), "floating-point tensor"),
        (lambda: member_logits([identity, lambda b: b.flatten(1)[:, :3]], X, NOISE), "of the same classes"),
        (lambda: member_logits([lambda b: b], X, NOISE), r"logits of shape \(1, classes\) .* but returned \(1, 3, 4\)"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(UsageError, match=message):
        call()
