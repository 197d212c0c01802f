"""A copy from an invalid draw votes for no class, even if a model makes finite logits of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from smoothcert import Aces, Cohen, Consensus, Ensemble, Smoothed
from smoothcert.evaluate.cluster.ensemble import MemberWorker
from smoothcert.noise import Gaussian
from smoothcert.noise.thresholds import BITS, Thresholds, gaussian_thresholds
from smoothcert.sampling import batches
from smoothcert.sampling.copies import Copies

N, PIXELS = 3_000, 6


def cut(sigma: float, grid: int) -> Thresholds:
    """Thresholds that end at two standard deviations, so that draws beyond are invalid."""
    whole, reach = gaussian_thresholds(sigma, grid), int(2 * sigma * grid)
    middle = slice(whole.reach - reach, whole.reach + reach + 2)
    return Thresholds(whole.lower[middle], whole.upper[middle], reach)


class Cut(Gaussian):
    """Gaussian noise with such thresholds."""

    @staticmethod
    def _thresholds(sigma, grid):
        return cut(sigma, grid)


class Always(nn.Module):
    """The same class for everything, NaN included."""

    def __init__(self, label: int) -> None:
        super().__init__()
        self.label = label

    def forward(self, x: Tensor) -> Tensor:
        x.nan_to_num_(0.0)  # and no NaN is left in the batch
        return nn.functional.one_hot(torch.full((len(x),), self.label), 3).float()


MODELS = {
    "one model": Always(1),
    "an ensemble": Ensemble([Always(1), Always(1)]),
    "a consensus that agrees": Consensus([Always(1), Always(1), Always(2)], 2),
}


def share_invalid() -> float:
    ends = cut(0.5, 255)
    return 1 - ((ends.upper[-1] - ends.lower[0]) / 2**BITS) ** PIXELS


def is_missing(votes: int, n: int) -> bool:
    """Whether as many copies are missing as are invalid."""
    return bool(stats.binomtest(n - votes, n, share_invalid()).pvalue > 1e-4)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("batch_size", [60, 1_000])
def test_invalid_copies_are_counted_and_vote_for_nobody(model, batch_size):
    smoothed = Smoothed(model, Cut(0.5, 255), runtime="eager", batch_size=batch_size)
    certificate = smoothed.certify(torch.zeros(PIXELS), Cohen(n=N, n0=100))
    assert certificate.n == N
    assert certificate.counts[0] == certificate.counts[2] == 0
    assert is_missing(certificate.counts[1], N)
    assert sum(certificate.selection) < 100


def test_invalid_copies_vote_for_nobody_where_the_rest_of_a_consensus_decides():
    torn = Consensus([Always(0), Always(1), Always(1)], 2)
    certificate = Smoothed(torn, Cut(0.5, 255), runtime="eager").certify(torch.zeros(PIXELS), Cohen(n=N))
    assert is_missing(certificate.counts[1], N)
    assert sum(certificate.counts) == certificate.counts[1]


def test_invalid_copies_count_for_no_side_of_a_selector():
    smoothed = Smoothed(Always(1), Cut(0.5, 255), runtime="eager")
    certificate = smoothed.certify(torch.zeros(PIXELS), Aces(selector=Always(0), n=N))
    assert is_missing(certificate.counts[1], N)
    assert sum(certificate.routing.counts) == certificate.counts[1]


def test_without_the_check_they_would_vote(monkeypatch):
    monkeypatch.setattr(batches, "invalid_rows", lambda batch: torch.zeros(len(batch), dtype=torch.bool))
    smoothed = Smoothed(Always(1), Cut(0.5, 255), runtime="eager")
    assert smoothed.certify(torch.zeros(PIXELS), Cohen(n=N)).counts[1] == N


def test_members_on_other_machines_give_no_logits_for_invalid_copies():
    holder = MemberWorker.__new__(MemberWorker)
    holder._device, holder._members, holder._runtimes = "cpu", [Always(1), Always(2)], []
    x = torch.zeros(PIXELS)
    holder.begin(x, None, {"runtime": "eager", "batch_size": 100})
    parts = [Copies(x, noise, 0, index, 1, 0, 100) for index, noise in enumerate((Cut(0.5, 255), Gaussian(0.5)))]
    for logits in holder.logits(parts):
        valid = np.isfinite(logits).all(axis=1)
        assert is_missing(int(valid[:100].sum()), 100)
        assert not valid[:100].all()
        assert valid[100:].all()
        assert np.isnan(logits[~valid]).all()
