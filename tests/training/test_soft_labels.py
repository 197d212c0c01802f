"""Soft labels: the right shares, of the model in evaluation mode, and clear refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from smoothcert import load_run
from smoothcert.noise import Gaussian
from smoothcert.sampling.seeds import BLOCK, PREDICTION, block_seed
from smoothcert.training.run import soft_labels
from smoothcert.types import RunError, UsageError

NOISE = Gaussian(0.5)
X = torch.linspace(0, 1, 23 * 6).reshape(23, 2, 3)


def linear(classes: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, classes))


def label(folder, model=None, x=X, noise=NOISE, *, n=50, num_classes=4, seed=3, progress=False):
    model = linear() if model is None else model
    return soft_labels(model, x, noise, n=n, num_classes=num_classes, folder=folder, seed=seed, progress=progress)


def from_scratch(model: nn.Module, n: int, seed: int) -> torch.Tensor:
    counts = torch.zeros(len(X), 4)
    for index, x in enumerate(X):
        for copy in range(n):
            block, place = divmod(copy, BLOCK)
            generator = torch.Generator().manual_seed(block_seed(seed, index, PREDICTION, block))
            noise = torch.empty(BLOCK, *x.shape).normal_(0, NOISE.sigma, generator=generator)
            counts[index, model((x + noise[place])[None]).argmax()] += 1
    return counts


def test_shares_are_counted_votes(tmp_path):
    with torch.inference_mode():
        counts = from_scratch(linear(), n=50, seed=3)
    shares = label(tmp_path / "labels")
    assert shares.dtype == torch.float32
    assert torch.equal(shares, counts / 50)
    assert len(set(map(tuple, shares.tolist()))) > 10  # otherwise the test shows little
    assert [row["counts"] for row in load_run(tmp_path / "labels").rows()] == counts.int().tolist()


def test_shares_estimate_the_exact_probabilities(tmp_path):
    n, model = 2000, linear(2)
    shares = label(tmp_path / "labels", model, n=n, num_classes=2).double()
    gap = model[1].weight[1] - model[1].weight[0]
    with torch.no_grad():
        margin = (X.flatten(1) @ gap + model[1].bias[1] - model[1].bias[0]) / (NOISE.sigma * gap.norm())
    exact = 0.5 * (1 + torch.erf(margin.double() / math.sqrt(2)))
    error = (exact * (1 - exact) / n).sqrt()
    assert ((shares[:, 1] - exact).abs() < 5 * error).all()
    assert (shares[:, 1] - exact).abs().max() > 0  # votes, not probabilities
    assert torch.allclose(shares.sum(1), torch.ones(len(X), dtype=torch.float64), atol=1e-6)


class Partly(nn.Module):
    """Logits that are not finite for some copies."""

    def forward(self, x):
        logits = x.flatten(1)[:, :4].clone()
        logits[logits[:, 0] > 0.9, 1] = float("nan")
        logits[logits[:, 1] < -0.3, 2] = float("inf")
        return logits


def test_shares_are_of_the_valid_votes(tmp_path):
    shares = label(tmp_path / "labels", Partly(), n=200)
    counts = np.array([row["counts"] for row in load_run(tmp_path / "labels").rows()])
    votes = counts.sum(axis=1)
    assert 0 < votes.min() < 200
    assert np.allclose(shares.numpy(), counts / votes[:, None])
    assert torch.allclose(shares.sum(1), torch.ones(len(X)), atol=1e-6)


def test_the_model_is_run_in_evaluation_mode_and_left_as_it_was(tmp_path):
    def model() -> nn.Sequential:
        net = linear()
        return nn.Sequential(net, nn.Dropout(0.9), nn.BatchNorm1d(4), nn.Dropout(0.9))

    quiet, mixed = model().eval(), model()
    mixed[3].eval()
    mixed[0][1].bias.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in mixed.state_dict().items()}
    shares = label(tmp_path / "quiet", quiet)
    assert torch.equal(label(tmp_path / "mixed", mixed), shares)
    assert [m.training for m in mixed.modules()] == [True, True, True, True, True, True, False]
    assert not any(m.training for m in quiet.modules())
    assert [p.requires_grad for p in mixed.parameters()] == [True, False, True, True]
    assert all(torch.equal(tensor, before[name]) for name, tensor in mixed.state_dict().items())
    with pytest.raises(UsageError):
        label(tmp_path / "failed", mixed, num_classes=5)
    assert mixed.training


def test_training_mode_does_not_make_another_model(tmp_path):
    model = linear().eval()
    shares = label(tmp_path / "labels", model)
    assert torch.equal(label(tmp_path / "labels", model.train()), shares)


class Row(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, 0]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"n": 0}, "n must be a whole number of samples"),
        ({"n": 2.5}, "n must be a whole number"),
        ({"n": True}, "n must be a whole number"),
        ({"seed": -1}, "seed must be between"),
        ({"seed": 2**63}, "seed must be between"),
        ({"num_classes": 1}, "num_classes must be at least 2"),
        ({"noise": 0.25}, "noise must be a noise such as"),
        ({"x": X[:0]}, "no input selected"),
        ({"x": X.to(torch.uint8)}, "the input has dtype uint8; convert"),
        ({"x": X.where(X > 0, torch.nan)}, "NaN or infinite"),
        ({"x": X.where(X > 0, -torch.inf)}, "NaN or infinite"),
        ({"num_classes": 5}, "the model gives 4 classes, not num_classes=5"),
        ({"model": Row()}, "the model must map a batch of"),
        ({"model": nn.Linear(5, 4)}, "the model cannot classify"),
    ],
)
def test_bad_arguments_are_refused_and_leave_nothing(tmp_path, change, match):
    with pytest.raises(UsageError, match=match):
        label(tmp_path / "labels", **change)
    assert not (tmp_path / "labels").exists()


def test_a_folder_of_an_earlier_version_is_refused(tmp_path):
    (tmp_path / "labels.json").write_text('{"format": 1, "part": 100}')
    np.save(tmp_path / "part-00000000.npy", np.full((23, 4), 10, np.int32))
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(UsageError, match="holds soft labels of an earlier version; delete it to count them again"):
        label(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_other_labels_are_refused(tmp_path):
    label(tmp_path / "labels")
    with pytest.raises(RunError, match=r"another configuration \(noise.sigma is 0.5 there and 0.25 here\)"):
        label(tmp_path / "labels", noise=Gaussian(0.25))


def test_the_bar_is_on_stderr(tmp_path, capsys):
    label(tmp_path / "labels", progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "soft labels" in err
    assert "23/23" in err
    label(tmp_path / "labels", progress=True)  # nothing to count
    assert capsys.readouterr() == ("", "")
