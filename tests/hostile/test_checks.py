"""Ordinary models that a check by sampling could miss: what it looks at must not depend on luck or on scale."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hostile.entry import EDGE, FAR, NEAR, SIGMA, Entry, Expect, HalfSpace, first, point, scores
from hostile.gallery import GALLERY
from hostile.judge import SEED, attempt, judged, not_one_sentence, questions, verdict
from hostile.kinds import ALPHA
from smoothcert import ABSTAIN, Cohen, Gaussian, SmoothcertError, Smoothed

COHEN = Cohen(n0=100, n=601, alpha=ALPHA)


def _certify(model: nn.Module, *inputs: Tensor, **options) -> list:
    smoothed = Smoothed(model, Gaussian(SIGMA), input_range=None, **options)
    return [attempt(lambda x=x: smoothed.certify(x, COHEN, seed=SEED, index=0)) for x in inputs]


class Masked(nn.Module):
    """Somebody masks a class that the task does not have with −10⁹; the other logits depend on the batch."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        side = first(x) - EDGE
        side = self.share * side.mean() + (1 - self.share) * side
        return torch.cat([scores(side), torch.full((len(x), 1), -1e9)], dim=1)


@pytest.mark.parametrize("batch_size", [None, 20])
def test_a_masked_class_does_not_hide_that_rows_depend_on_each_other(batch_size):
    for answer in _certify(Masked(1.0), FAR, NEAR, batch_size=batch_size):
        assert isinstance(answer, SmoothcertError), answer
        assert not_one_sentence(answer) == ""
    far, near = _certify(Masked(0.0), FAR, NEAR, batch_size=batch_size)
    assert (far.label, near.label) == (1, ABSTAIN)


class Exposure(nn.Module):
    """Somebody corrects the exposure of dark batches with their own mean; bright ones are left as they are."""

    def forward(self, x: Tensor) -> Tensor:
        side = first(x) - EDGE
        dark = x[:, 1, 1, 1].mean() < 0
        return scores(side.mean().expand(len(x)) if dark else side)


@pytest.mark.parametrize("batch_size", [None, 20])
@pytest.mark.parametrize("value", [0.53, 0.9])
def test_every_input_is_checked_and_not_only_the_first(value, batch_size):
    """The first input shows nothing: its copies are all bright."""
    bright, dark = point(0.9), point(value)
    bright[1, 1, 1], dark[1, 1, 1] = 50.0, -50.0
    first_answer, second = _certify(Exposure(), bright, dark, batch_size=batch_size)
    assert not isinstance(first_answer, SmoothcertError)
    (right,) = _certify(HalfSpace(), dark, batch_size=batch_size)
    assert judged(second, right, dark, Expect.EITHER) == ""


WRITES_WEIGHTS = ("test_time_bias", "running_mean_buffer", "functional_batch_norm_in_training")
SHARED = [entry for entry in GALLERY if entry.name not in WRITES_WEIGHTS]
"""Without those that write into their own weights, and so into the user's."""


@pytest.mark.parametrize("kind", ["plain", pytest.param("ensemble-first", marks=pytest.mark.soundness)])
@pytest.mark.parametrize("entry", SHARED, ids=lambda entry: entry.name)
def test_weights_too_large_to_copy(entry: Entry, kind: str, monkeypatch):
    """The same contract where the weights must be shared with the user's model."""
    monkeypatch.setattr("smoothcert.classifiers.copying.COPIED_BYTES", 0)
    assert verdict(entry, kind, questions(kind, 0)[:2]).problems == ()
