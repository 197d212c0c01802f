"""A classifier behind a denoiser: composition, modes, certificates against closed forms, refusals."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import nn

from smoothcert import Cohen, Gaussian, Smoothed
from smoothcert.classifiers.denoised import Denoised, denoised_ensemble
from smoothcert.types import UsageError


class Shrink(nn.Module):
    """Every value times a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x


def small():
    torch.manual_seed(0)
    classifier = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(16, 3))
    denoiser = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.BatchNorm2d(1))
    return classifier, denoiser


def test_is_the_classifier_after_the_denoiser():
    classifier, denoiser = small()
    model = Denoised(classifier, denoiser).eval()
    x = torch.rand(5, 1, 4, 4)
    assert torch.equal(model(x), classifier(denoiser(x)))
    assert not torch.allclose(model(x), classifier(x))


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_certificates_match_the_closed_form(half_space, factor):
    """Behind x → a·x the edge e of a half-space moves to e/a: p = Φ((x₁ − e/a)/σ), and the radius is x₁ − e/a."""
    half_space.edge = 0.3
    margin = 0.9 - 0.3 / factor
    model = Denoised(half_space, Shrink(factor))
    certificate = Smoothed(model, Gaussian(0.5)).certify(torch.tensor([0.9, 0.1]), Cohen(n=10_000), seed=0, index=0)
    p = float(stats.norm.cdf(margin / 0.5))
    assert certificate.label == 1
    assert p - 0.03 < certificate.p_lower < p
    assert margin - 0.06 < certificate.radius < margin


def test_a_callable_that_only_votes_can_be_certified():
    def service(x):
        return nn.functional.one_hot((x[:, 0] > 0.5).long(), 2).float()

    certificate = Smoothed(Denoised(service, Shrink(1.0)), Gaussian(0.25)).certify(
        torch.tensor([0.9]), Cohen(n=1000), seed=0, index=0
    )
    assert certificate.label == 1
    assert 0 < certificate.radius < 0.4


class TestModes:
    def test_a_frozen_classifier_stays_in_evaluation_mode(self):
        classifier, denoiser = small()
        whole = nn.Sequential(Denoised(classifier, denoiser))
        before = {name: tensor.clone() for name, tensor in classifier.state_dict().items()}
        moved = denoiser[1].running_mean.clone()
        whole.train()
        whole(torch.rand(8, 1, 4, 4))
        assert not any(module.training for module in classifier.modules())
        assert denoiser[1].training
        assert all(torch.equal(before[name], tensor) for name, tensor in classifier.state_dict().items())
        assert not torch.equal(denoiser[1].running_mean, moved)

    def test_freezing_is_optional(self):
        classifier, denoiser = small()
        model = Denoised(classifier.eval(), denoiser, frozen=False)
        assert not classifier.training
        before = classifier[0].running_mean.clone()
        assert model.train() is model
        model(torch.rand(8, 1, 4, 4))
        assert not torch.equal(classifier[0].running_mean, before)
        assert not any(module.training for module in model.eval().modules())

    def test_freezes_at_once_and_leaves_weights_alone(self):
        classifier, denoiser = small()
        model = Denoised(classifier.train(), denoiser.eval())
        assert not any(module.training for module in model.modules())
        assert all(weight.requires_grad for weight in classifier.parameters())

    def test_smoothing_evaluates_and_gives_the_mode_back(self):
        classifier, denoiser = small()
        model = Denoised(classifier, denoiser).train()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        Smoothed(model, Gaussian(0.25)).certify(torch.full((1, 4, 4), 0.5), Cohen(n0=10, n=100), seed=0, index=0)
        assert denoiser.training
        assert not classifier.training
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_gradients_reach_the_denoiser_through_the_classifier():
    classifier, denoiser = small()
    model = Denoised(classifier.requires_grad_(False), denoiser)
    model(torch.rand(2, 1, 4, 4))[:, 0].sum().backward()
    assert all(weight.grad is not None for weight in denoiser.parameters())
    assert denoiser[0].weight.grad.abs().sum() > 0


def test_compiles_as_one_graph():
    model = Denoised(*small()).eval()
    x = torch.rand(4, 1, 4, 4)
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(x), model(x))


def test_both_parts_are_in_the_state():
    names = Denoised(*small()).state_dict().keys()
    assert {"denoiser.0.weight", "denoiser.1.running_mean", "classifier.2.weight"} <= names


class TestEnsemble:
    def test_is_the_mean_over_denoisers_of_one_classifier(self):
        classifier, _ = small()
        ensemble = denoised_ensemble(classifier, [Shrink(0.5), Shrink(2.0), nn.Identity()]).eval()
        x = torch.rand(6, 1, 4, 4)
        expected = sum(classifier(factor * x) for factor in (0.5, 2.0, 1.0)) / 3
        torch.testing.assert_close(ensemble(x), expected)

    def test_the_classifier_is_shared(self):
        classifier, denoiser = small()
        ensemble = denoised_ensemble(classifier, [denoiser, nn.Identity()])
        count = sum(weight.numel() for part in (classifier, denoiser) for weight in part.parameters())
        assert sum(weight.numel() for weight in ensemble.parameters()) == count
        ensemble.train()
        assert not classifier.training

    def test_votes_and_weights_are_those_of_an_ensemble(self, half_space):
        x = torch.tensor([[0.4], [0.9]])
        shrinks = [Shrink(1.0), Shrink(2.0), Shrink(2.0)]
        assert denoised_ensemble(half_space, shrinks, "hard")(x).argmax(1).tolist() == [1, 1]
        assert denoised_ensemble(half_space, shrinks, "hard", [3, 1, 1])(x).argmax(1).tolist() == [0, 1]

    def test_no_denoisers(self, half_space):
        with pytest.raises(UsageError, match="at least one member"):
            denoised_ensemble(half_space, [])


class TestRefusals:
    @pytest.mark.parametrize("denoiser", [nn.AvgPool2d(2), nn.Flatten(), nn.AdaptiveAvgPool2d(1)])
    def test_a_denoiser_that_changes_the_shape(self, denoiser):
        classifier = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16, 2))
        model = Denoised(classifier, denoiser)
        with pytest.raises(UsageError, match=r"must keep the shape of a batch, but made \(2, .* of \(2, 1, 4, 4\)"):
            model(torch.rand(2, 1, 4, 4))

    def test_parts_that_cannot_be_called(self):
        with pytest.raises(UsageError, match=r"the classifier must be callable.*got str"):
            Denoised("resnet", nn.Identity())
        with pytest.raises(UsageError, match=r"the denoiser must be callable.*got NoneType"):
            Denoised(nn.Identity(), None)


def test_a_classifier_with_an_attribute_called_parts_is_not_taken_for_a_composite():
    class Body(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.ModuleList([torch.nn.Flatten(), torch.nn.Linear(4, 2)])

        def forward(self, x):
            for part in self.parts:
                x = part(x)
            return x

    smoothed = Smoothed(Denoised(Body(), torch.nn.Identity()), Gaussian(0.25))
    assert smoothed.certify(torch.full((1, 2, 2), 0.5), Cohen(n=100)).n == 100
