"""The contract tests pass for our parts and fail for parts that overstate."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import smoothcert.testing
from smoothcert import Anytime, Cohen, Discrete, Gaussian, Norm, Staged, Uniform, data, models
from smoothcert.certify import PROCEDURES
from smoothcert.certify.base import Procedure
from smoothcert.sampling import ESTIMATION, SELECTION, Draw
from smoothcert.stats import lower_bound
from smoothcert.testing import check_dataset, check_denoiser, check_method, check_model, check_noise, check_procedure
from smoothcert.training.methods import NoiseAugmentation
from smoothcert.types import UsageError

SMALL = {
    "cohen": [Cohen(n=200, n0=40), Cohen(n=200, n0=40, bound="runner-up")],
    "staged": [Staged(radius=0.5, stages=(60, 200), n0=40, bound=bound) for bound in ("plain", "runner-up")],
    "anytime": [Anytime(r, n_max=200, bound=bound) for r in (None, (0.3, 0.5)) for bound in ("plain", "runner-up")],
}
SLOW = [procedure for some in SMALL.values() for procedure in some]


def test_every_procedure_is_here():
    assert {*SMALL, "aces"} == PROCEDURES.own.keys()
    with pytest.raises(UsageError, match="aces counts more than the votes of one model"):
        check_procedure(PROCEDURES["aces"](core=nn.Linear(1, 2)))


@pytest.mark.parametrize("procedure", SLOW, ids=repr)
@pytest.mark.parametrize("runs", [60, pytest.param(2_000, marks=pytest.mark.soundness)])
def test_our_procedures_pass(procedure: Procedure, runs: int):
    check_procedure(procedure, runs=runs)


@dataclass(frozen=True)
class LongGaussian(Gaussian):
    factor: float = 2.0

    def _radius(self, p, norm, dimension):
        return self.factor * super()._radius(p, norm, dimension)

    def _threshold(self, r, norm, dimension):
        return super()._threshold(r / self.factor, norm, dimension)


class LongUniform(Uniform):
    def _radius(self, p, norm, dimension):
        return 2 * super()._radius(p, norm, dimension)

    def _threshold(self, r, norm, dimension):
        return super()._threshold(r / 2, norm, dimension)


class OneMorePixel(Discrete):
    def _threshold(self, r, norm, dimension):  # by which _radius searches
        return np.where(r <= 0, 0.5, np.maximum(super()._threshold(np.maximum(r - 1, 0), norm, dimension), 0.55))


class ForgetsTheDimension(Gaussian):
    def _stretch(self, norm, dimension):
        self.require_dimension(norm, dimension) if norm is Norm.LINF else None
        return 1.0


class Rounded(Gaussian):
    """Proves the radius at p = 1/2 already."""

    def radius(self, p, norm=None, dimension=None, offset=0.0):
        return super().radius(p, norm, dimension, offset) + 0.01


@pytest.mark.parametrize(
    ("noise", "match"),
    [
        (LongGaussian(0.5), "the l2 radius of .* is too long: a half-space has probability"),
        (LongGaussian(0.5, factor=1.1), "too long"),
        (LongUniform(0.5), "the l1 radius of .* is too long"),
        (OneMorePixel(0.8, 1), "the l0 radius of .* is too long"),
        (ForgetsTheDimension(0.5), "the linf radius of .* is too long: .* 9 coordinate"),
        (Rounded(0.5), "is not 0 for p of at most 1/2"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_noise_that_overstates_is_found(noise, match):
    with pytest.raises(AssertionError, match=match):
        check_noise(noise)


class Global(Gaussian):
    def _sample(self, x, out, generator):
        return out.normal_(0.0, self.sigma).add_(x)


class Returns(Gaussian):
    def _sample(self, x, out, generator):
        return super()._sample(x, out.clone(), generator)


class Scale(Gaussian):
    scale = 1.0


@pytest.mark.parametrize(
    ("noise", "match"),
    [
        (Global(0.5), "draws from the global generator"),
        (Returns(0.5), "must fill and return its argument out"),
        (Scale(0.5), "scale is 1, but the standard deviation"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_noise_that_breaks_the_contract_is_found(noise, match):
    with pytest.raises(AssertionError, match=match):
        check_noise(noise)


@dataclass(frozen=True, kw_only=True)
class Plain(Procedure):
    """CERTIFY of Cohen et al., with a part to replace."""

    n: int = 200
    name = "plain"

    @property
    def expected_samples(self):
        return self.n0 + self.n

    def draws(self):
        (selection,) = yield Draw(SELECTION, self.n0)
        (votes,) = yield Draw(ESTIMATION, self.n)
        return selection, votes

    def bound(self, k, n, votes):
        return float(lower_bound(k, n, self.alpha))

    def certify(self, task):
        selection, votes = yield from self.draws()
        guess = int(np.argmax(selection.counts))
        p_lower = self.bound(votes.counts[guess], votes.n, votes)
        norm = task.noise.resolve_norm(self.norm)
        return task.certificate(guess, p_lower, norm, self.alpha, {"top": self.alpha}, votes, selection)


class PointEstimate(Plain):
    def bound(self, k, n, votes):
        return k / n


class OtherLevel(Plain):
    def bound(self, k, n, votes):
        return float(lower_bound(k, n, 4 * self.alpha))


class IgnoresInvalid(Plain):
    def bound(self, k, n, votes):
        return float(lower_bound(k, sum(votes.counts), self.alpha))


class SameVotesTwice(Plain):
    """Counts every vote twice, by requesting the same copies again."""

    def draws(self):
        (selection,) = yield Draw(SELECTION, self.n0)
        (votes,) = yield Draw(ESTIMATION, self.n)
        (again,) = yield Draw(ESTIMATION, self.n)
        total = tuple(a + b for a, b in zip(votes.counts, again.counts, strict=True))
        return selection, replace(votes, n=votes.n + again.n, counts=total)


class Chooses(Plain):
    """Guesses the class by the votes that it bounds."""

    def draws(self):
        selection, votes = yield from super().draws()
        return replace(selection, counts=tuple(0 if k < max(votes.counts) else 1 for k in votes.counts)), votes


class Miscounts(Plain):
    def draws(self):
        selection, votes = yield from super().draws()
        return selection, replace(votes, n=2 * votes.n)


class Silent(Plain):
    def bound(self, k, n, votes):
        return 0.0


def test_the_plain_procedure_passes():
    check_procedure(Plain(n0=40), runs=100)


@pytest.mark.parametrize(
    ("procedure", "match"),
    [
        (PointEstimate(n0=40), "certificates of plain for .* are false, more than alpha = 0.05 allows"),
        (OtherLevel(n0=40), "more than alpha"),
        (IgnoresInvalid(n0=40), "invalid are false"),
        (SameVotesTwice(n0=40), "counts 440 samples, but 240 were drawn"),
        (Chooses(n0=40), "two equal classes are false"),
        (Miscounts(n0=40), "counts 440 samples, but 240 were drawn"),
        (Silent(n0=40), "abstains although every vote agrees"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_procedure_that_breaks_the_contract_is_found(procedure, match):
    with pytest.raises(AssertionError, match=match):
        check_procedure(procedure, runs=1_000 if type(procedure) in (OtherLevel, Chooses) else 100)


class Summed(NoiseAugmentation):
    def loss(self, model, x, y, noise, state):
        return super().loss(model, x, y, noise, state) * len(x)


class GlobalNoise(NoiseAugmentation):
    def loss(self, model, x, y, noise, state):
        return nn.functional.cross_entropy(model(x + torch.randn_like(x)), y)


class Trains(NoiseAugmentation):
    def loss(self, model, x, y, noise, state):
        model.train()
        return super().loss(model, x, y, noise, state)


@pytest.mark.parametrize(
    ("method", "match"),
    [
        (Summed(), "mean loss of two halves"),
        (GlobalNoise(), "draws from the global generator"),
        (Trains(), "changes the mode of the model"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_method_that_breaks_the_contract_is_found(method, match):
    with pytest.raises(AssertionError, match=match):
        check_method(method)


def test_models_denoisers_and_datasets():
    check_model(models.MODELS["digits-cnn"])
    check_denoiser(models.DENOISERS["dncnn-small"])
    check_dataset(data.load("digits"))
    with pytest.raises(AssertionError, match="returned logits of the shape"):
        check_model(models.ModelInfo("wrong", lambda classes, channels: nn.Flatten(), (1, 8, 8), 10))
    with pytest.raises(AssertionError, match="maps"):
        check_denoiser(models.ModelInfo("wrong", lambda classes, channels: nn.Flatten(), (1, 8, 8), 10))
    images = data.ArrayDataset(
        np.full((3, 1, 2, 2), 2.0, dtype=np.float32), np.zeros(3), name="x", split="test", class_names="ab", scale=1.0
    )
    with pytest.raises(AssertionError, match=r"outside of \[0, 1\]"):
        check_dataset(images)


def test_no_test_framework_is_imported():
    source = Path(smoothcert.testing.__file__).parent
    assert not any(re.search("pytest|hypothesis", file.read_text(encoding="utf-8")) for file in source.glob("*.py"))
