"""Objects that hold models, serialized for workers."""

from __future__ import annotations

import pickle
from functools import partial

import pytest
import torch
from torch import nn

from smoothcert import Cohen, Consensus, Denoised, Ensemble, Gaussian, Smoothed, models
from smoothcert.classifiers.identity import model_identity
from smoothcert.evaluate.cluster.pool import pack as pack_with
from smoothcert.evaluate.cluster.pool import unpack

pack = partial(pack_with, pickle_module=pickle)


def everything() -> nn.Module:
    members = [models.build("lenet"), models.build("lenet")]
    return Consensus([Denoised(members[0], models.build_denoiser("dncnn", in_channels=1)), *members], first=2)


def test_what_arrives_is_the_same_classifier():
    model = everything()
    model.eval()
    arrived = unpack(pack(model))
    assert model_identity(arrived) == model_identity(model)
    x = torch.rand(5, 1, 28, 28)
    assert torch.equal(arrived(x), model(x))
    assert not arrived.training


def test_weights_travel_once():
    model = Ensemble([models.build("lenet"), models.build("lenet")])
    weights = sum(4 * p.numel() for p in model.parameters())
    assert weights < len(pack(model)) < weights + 40_000
    shared = models.build("lenet")
    assert len(pack(Ensemble([shared, shared]))) < 0.6 * weights + 40_000


def test_shared_weights_travel_once_and_stay_shared():
    shared = nn.Linear(4, 4)
    arrived = unpack(pack(nn.ModuleList([shared, shared])))
    assert arrived[0] is arrived[1]
    tied = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    tied[1].weight = tied[0].weight
    again = unpack(pack(tied))
    assert again[0].weight is again[1].weight


def test_types_gradients_and_buffers_stay():
    model = nn.ModuleDict({"norm": nn.BatchNorm2d(3), "short": nn.Linear(2, 2, dtype=torch.bfloat16)})
    model["short"].weight.requires_grad_(False)
    arrived = unpack(pack(model))
    assert arrived["short"].weight.dtype is torch.bfloat16
    assert not arrived["short"].weight.requires_grad
    assert arrived["short"].bias.requires_grad
    assert arrived["norm"].num_batches_tracked.dtype is torch.int64
    assert not isinstance(arrived["norm"].running_mean, nn.Parameter)


def test_later_changes_do_not_travel():
    model = nn.Linear(2, 2)
    packed, before = pack(model), model.weight.detach().clone()
    with torch.no_grad():
        model.weight.zero_()
    assert torch.equal(unpack(packed).weight, before)


def test_a_smoothed_classifier_travels_without_what_was_prepared(threes):
    smoothed = Smoothed(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), Gaussian(0.5))
    x = torch.full((4,), 0.5)
    smoothed.prepare(x, samples=10**6)  # holds functions, which do not travel
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        pack(smoothed)
    arrived = unpack(pack(smoothed.for_workers()))
    assert arrived.certify(x, Cohen(n=200), seed=0, index=0) == smoothed.certify(x, Cohen(n=200), seed=0, index=0)
