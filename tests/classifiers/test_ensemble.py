"""Ensembles: every vote against a plain loop over rows and members."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from smoothcert import models
from smoothcert.classifiers import Consensus, Ensemble
from smoothcert.classifiers.identity import model_identity
from smoothcert.types import UsageError


class Fixed(nn.Module):
    """Logits from a table; the input's first coordinate is the row's number."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)
        self.rows: list[int] = []

    def forward(self, x):
        rows = x[:, 0].long()
        self.rows += rows.tolist()
        return self.table[rows]


def tables(members=5, rows=400, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(members, rows, classes, generator=generator)
    return logits + 2 * torch.randn(1, rows, classes, generator=generator)


def rows_of(tables):
    return torch.arange(tables.shape[1], dtype=torch.float32)[:, None].expand(-1, 2)


def ask(tables, make):
    return make([Fixed(table) for table in tables])(rows_of(tables))


def softmax(row):
    e = np.exp(row - row.max())
    return e / e.sum()


@pytest.mark.parametrize("weights", [None, [0.1, 0.4, 0.2, 0.0, 0.3]])
def test_soft_and_softmax_votes_are_weighted_means(weights):
    logits = tables()
    share = np.array(weights or [0.2] * 5)
    soft = ask(logits, lambda m: Ensemble(m, "soft", weights)).numpy()
    smooth = ask(logits, lambda m: Ensemble(m, "softmax", weights)).numpy()
    for row in range(logits.shape[1]):
        members = logits[:, row].double().numpy()
        np.testing.assert_allclose(soft[row], share @ members, atol=1e-5)
        expected = sum(w * softmax(member) for w, member in zip(share, members, strict=True))
        np.testing.assert_allclose(np.exp(smooth[row]), expected, atol=1e-5)


@pytest.mark.parametrize("members", [2, 3, 4, 5])
def test_hard_votes_count_classes_and_break_ties_by_the_sum(members):
    logits = tables(members)
    given = ask(logits, lambda m: Ensemble(m, "hard")).argmax(1)
    ties = 0
    for row in range(logits.shape[1]):
        counts = np.bincount(logits[:, row].argmax(1).numpy(), minlength=4)
        best = np.flatnonzero(counts == counts.max())
        ties += len(best) > 1
        total = logits[:, row].double().sum(0).numpy()
        assert given[row] == best[np.argmax(total[best])]
    assert ties > 10


def test_weighted_hard_votes_add_up_to_ties_in_any_order():
    # 0.1 + 0.2 and 0.3 are the same share, although not the same floating-point number.
    members = torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 5.0]]])
    assert ask(members, lambda m: Ensemble(m, "hard", [0.1, 0.2, 0.3])).argmax(1).tolist() == [1]
    assert ask(members.flip(0), lambda m: Ensemble(m, "hard", [0.3, 0.2, 0.1])).argmax(1).tolist() == [1]


@pytest.mark.parametrize("vote", ["soft", "hard", "softmax"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_copy_with_an_invalid_logit_is_invalid_in_the_ensemble(vote, value):
    logits = tables()
    logits[3, 7, 1] = value
    given = ask(logits, lambda m: Ensemble(m, vote))
    assert (~given.isfinite().all(1)).nonzero().tolist() == [[7]]


def test_members_may_be_of_different_architectures_and_normalisations():
    torch.manual_seed(0)
    members = [
        models.build("lenet", normalize="mnist"),
        models.build("lenet"),
        nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
        lambda x: x.flatten(1)[:, :10],
    ]
    x = torch.rand(6, 1, 28, 28)
    expected = torch.stack([member(x) for member in members]).mean(0)
    assert torch.allclose(Ensemble(members)(x), expected, atol=1e-6)


@pytest.mark.parametrize(
    "combine", [Ensemble, lambda members: Consensus(members, 2), lambda members: Consensus(members, 1)]
)
def test_no_member_changes_what_another_sees_or_gave(combine):
    """Each works in place, and returns the memory of its input."""
    members = [lambda x: x.mul_(2)[:, :3], lambda x: x.sub_(0.5)[:, :3], lambda x: x.neg_()[:, :3]]
    x = torch.rand(50, 4)
    kept = x.clone()
    expected = combine([lambda x: (2 * x)[:, :3], lambda x: (x - 0.5)[:, :3], lambda x: (-x)[:, :3]])(kept)
    assert torch.equal(combine(members)(x), expected)
    assert torch.equal(x, kept)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda m: Ensemble([]), "at least one member"),
        (lambda m: Ensemble(m, "sofft"), "did you mean 'soft'"),
        (lambda m: Ensemble(m, "weighted"), "fit_weights"),
        (lambda m: Ensemble(m, weights=[1.0]), "1 weights for 2 members"),
        (lambda m: Ensemble(m, weights=[0.0, 0.0]), "all weights are zero"),
        (lambda m: Ensemble(m, weights=[-1.0, 2.0]), "not negative"),
        (lambda m: Ensemble(m, weights=[float("nan"), 2.0]), "not negative"),
        (lambda m: Consensus(m, 0), "between 1 and the number of members, 2; got 0"),
        (lambda m: Consensus(m, 3), "between 1 and the number of members, 2; got 3"),
        (lambda m: Consensus(m, 1.5), "got 1.5"),
        (lambda m: Consensus(m, 1, weights=[0.0, 1.0]), "order them by weight"),
        (lambda m: Consensus(m, 1, weights=[1.0]), "1 weights for 2 members"),
        (lambda m: Consensus(m, 1, margin=-0.1), "a number that is not negative, got -0.1"),
        (lambda m: Consensus(m, 1, margin=float("nan")), "not negative, got nan"),
    ],
)
def test_what_does_not_fit_is_refused(make, words):
    with pytest.raises(UsageError, match=words):
        make([nn.Linear(2, 3), nn.Linear(2, 3)])


@pytest.mark.parametrize("make", [Ensemble, lambda m: Consensus(m, 1), lambda m: Consensus(m, 2)])
def test_members_with_other_classes_are_refused(make):
    with pytest.raises(UsageError, match="must have the same classes, but return 3"):
        make([nn.Linear(2, 3), nn.Linear(2, 3), nn.Linear(2, 4)])(torch.zeros(2, 2))


@pytest.mark.parametrize("first", [1, 2, 3, 5])
@pytest.mark.parametrize("weights", [None, [0.1, 0.4, 0.2, 0.1, 0.2]])
@pytest.mark.parametrize("margin", [0.0, 0.7])
def test_consensus_is_the_rule_applied_to_all_members(first, weights, margin):
    logits = tables()
    logits[0, 11, 2] = float("nan")
    logits[4, 12, 2] = float("nan")
    members = [Fixed(table) for table in logits]
    given = Consensus(members, first, weights, margin=margin)(rows_of(logits))
    share = np.array(weights or [0.2] * 5)
    undecided = []
    for row in range(logits.shape[1]):
        each = logits[:, row].double().numpy()
        if not np.isfinite(each[:first]).all():
            assert not given[row].isfinite().all()
            continue
        chosen = each[:first].argmax(1)
        second, best = np.sort(share[:first] @ each[:first] / share[:first].sum())[-2:]
        if (chosen == chosen[0]).all() and best - second >= margin:
            assert given[row].argmax() == chosen[0]
        else:
            undecided.append(row)
            np.testing.assert_allclose(given[row].numpy(), share @ each, atol=1e-5)
    asked = set(members[-1].rows)
    assert asked <= {0, *undecided} if first < 5 else asked == set(range(400))
    assert (len(undecided) > 50) == (first > 1 or margin > 0)


def test_runs_tell_ensembles_apart_by_all_that_decides_a_vote():
    torch.manual_seed(0)
    members = [nn.Linear(2, 3) for _ in range(3)]
    different = [
        Ensemble(members),
        Ensemble(members[::-1]),
        Ensemble(members, "hard"),
        Ensemble(members, "softmax"),
        Ensemble(members, weights=[1, 2, 3]),
        Consensus(members, 1),
        Consensus(members, 2),
        Consensus(members, 2, [1, 2, 3]),
        Consensus(members, 2, margin=0.5),
    ]
    hashes = {model_identity(model)["sha256"] for model in different}
    assert len(hashes) == len(different)
    assert model_identity(Ensemble(members)) == model_identity(different[0])
