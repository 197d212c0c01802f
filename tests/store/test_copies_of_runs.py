"""The noisy copies of a run, drawn again: the classifier votes on them as the run says it did."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from smoothcert import Anytime, Cohen, Gaussian, Smoothed, Staged, certify_dataset, data, load_run
from smoothcert.data import ArrayDataset
from smoothcert.noise import Discrete
from smoothcert.sampling.sigma import GridSigma
from smoothcert.store.noisy_copies import check_data, noisy_copies
from smoothcert.types import RunError, UsageError

DIGITS = data.load("digits", split="test")


class BrightColumns(nn.Module):
    """Logits that are small whole numbers (bright pixels per column), so no batch shape can change a vote."""

    def forward(self, x: Tensor) -> Tensor:
        return (x > 0.5).sum(dim=(1, 2)).float()


class Halves(nn.Module):
    """Which half of the picture is brighter: two classes, or two experts to choose from."""

    def forward(self, x: Tensor) -> Tensor:
        columns = (x > 0.5).sum(dim=(1, 2)).float()
        return torch.stack([columns[:, :4].sum(dim=1), columns[:, 4:].sum(dim=1)], dim=1)


def votes(model: nn.Module, copies: Tensor, classes: int) -> list[int]:
    return np.bincount(model(copies).argmax(dim=1).numpy(), minlength=classes).tolist()


@pytest.mark.parametrize(
    ("noise", "procedure"),
    [
        (Gaussian(0.3), Cohen(n=130, n0=20)),
        (Gaussian(0.3), Anytime(radius=0.1, n_max=400)),
        (Gaussian(0.3), Staged(radius=0.1, stages=(50, 200), n0=20)),
        (Gaussian(0.3, grid=256), Cohen(n=130, n0=20)),
        (Discrete(0.7, 16), Cohen(n=130, n0=20)),
    ],
    ids=["cohen", "anytime", "staged", "exact", "discrete"],
)
def test_the_votes_on_the_copies_are_those_of_the_run(tmp_path, noise, procedure):
    model = BrightColumns()
    smoothed = Smoothed(model, noise, runtime="eager")
    run = certify_dataset(smoothed, DIGITS, procedure, run=tmp_path, every=150, seed=7, progress=False)
    for row in run.rows():
        x, _ = DIGITS[row["index"]]
        wanted = row["stages"][0] if row["stages"] else row
        copies = noisy_copies(run, row, x, 10_000)
        assert len(copies) == wanted["n"]  # no more than were drawn
        assert votes(model, copies, 8) == wanted["counts"]
        assert torch.equal(noisy_copies(run, row, x, 7), copies[:7])


@pytest.mark.parametrize("grid", [None, 256])
def test_a_noise_of_its_own_for_every_input(tmp_path, grid):
    model = BrightColumns()
    smoothed = Smoothed(model, Gaussian(0.3, grid), sigma=GridSigma(grid=(0.1, 0.3, 0.9), n=10), runtime="eager")
    run = certify_dataset(smoothed, DIGITS, Cohen(n=100, n0=20), run=tmp_path, every=60, progress=False, seed=0)
    rows = run.rows()
    assert len({row["sigma"] for row in rows}) > 1
    for row in rows:
        assert votes(model, noisy_copies(run, row, DIGITS[row["index"]][0], 100), 8) == row["counts"]


def test_copies_of_the_expert_that_answered(tmp_path):
    experts = [Smoothed(BrightColumns(), Gaussian(sigma), runtime="eager") for sigma in (0.1, 0.6)]
    router = Smoothed(Halves(), Gaussian(0.2), experts=experts, runtime="eager")
    run = certify_dataset(router, DIGITS, Cohen(n=100, n0=20), run=tmp_path, every=25, progress=False, seed=0)
    rows = run.rows()
    assert {row["choice"] for row in rows} == {-1, 0, 1}
    for row in rows:
        x, _ = DIGITS[row["index"]]
        if row["choice"] >= 0:
            assert votes(BrightColumns(), noisy_copies(run, row, x, 100), 8) == row["counts"]
        else:
            with pytest.raises(UsageError, match=rf"input {row['index']} of .* without noisy copies"):
                noisy_copies(run, row, x, 100)


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    smoothed = Smoothed(BrightColumns(), Gaussian(0.3), runtime="eager")
    return certify_dataset(smoothed, DIGITS, Cohen(n=20, n0=5), run=path, every=150, progress=False, seed=0)


def test_another_dataset_is_refused(certified):
    check_data(certified, DIGITS)
    for other in (data.load("digits", split="train"), _changed(DIGITS)):
        with pytest.raises(UsageError, match=r"certified on digits \(test\) with 500 inputs, and this .* is another"):
            check_data(certified, other)


def _changed(dataset):
    """The same number of images, each a little darker."""
    images, labels = dataset.arrays()
    names = dataset.class_names
    return ArrayDataset(images.numpy() * 0.9, labels.numpy(), name="dark", split="test", class_names=names, scale=1.0)


def test_noise_that_this_version_does_not_draw(certified, tmp_path):
    row, x = certified.rows()[0], DIGITS[0][0]
    for stream, error, words in (
        ({"block": 10, "device": "cpu"}, RunError, "blocks of 10, not of 20"),
        ({"block": 20, "device": "cuda:99"}, UsageError, "drew its noise on cuda:99, which is missing here"),
    ):
        info = {**certified.info, "config": {**certified.config, "stream": stream}}
        (tmp_path / "run.json").write_text(json.dumps(info))
        with pytest.raises(error, match=words):
            noisy_copies(load_run(tmp_path), row, x, 3)
