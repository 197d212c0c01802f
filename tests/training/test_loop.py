"""Gaussian training reaches its accuracy in seconds and says so when it cannot."""

from __future__ import annotations

import pytest
import torch

from smoothcert import Gaussian, data, models
from smoothcert.training import METHODS, TrainingSettings, train
from smoothcert.types import SmoothcertError, UsageError


def test_trains_digits_under_noise_and_is_reproducible():
    x, y = data.load("digits", split="train").arrays()
    test_x, test_y = data.load("digits", split="test").arrays()
    weights = []
    for _ in range(2):
        torch.manual_seed(0)
        model = models.build("digits-cnn")
        train(model, x, y, Gaussian(0.25), TrainingSettings(epochs=8), progress=False)
        assert not model.training
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*weights)
    noisy = test_x + 0.25 * torch.randn(test_x.shape, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert (model(noisy).argmax(1) == test_y).float().mean() > 0.85


def test_gaussian_loss_is_cross_entropy_at_the_noisy_input():
    model = torch.nn.Linear(3, 2)
    x, y = torch.rand(5, 3), torch.tensor([0, 1, 0, 1, 1])
    loss = METHODS["gaussian"](model, x, y, Gaussian(0.5), torch.Generator().manual_seed(7))
    noisy = x + torch.empty(5, 3).normal_(0, 0.5, generator=torch.Generator().manual_seed(7))
    log_p = model(noisy).log_softmax(1)
    assert loss.item() == pytest.approx(-sum(log_p[i, y[i]].item() for i in range(5)) / 5, rel=1e-5)


def test_a_loss_that_is_no_number_stops_with_a_sentence():
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.fill_(float("nan"))
    with pytest.raises(SmoothcertError, match="became nan in epoch 1; lower the learning rate"):
        train(
            model, torch.rand(4, 3), torch.zeros(4, dtype=torch.long), Gaussian(0.5), TrainingSettings(), progress=False
        )


def test_refuses():
    with pytest.raises(UsageError, match="did you mean 'gaussian'"):
        TrainingSettings(method="gausian")
    with pytest.raises(UsageError, match="at least 1"):
        TrainingSettings(epochs=0)
    with pytest.raises(UsageError, match="got 0 and 0"):
        train(torch.nn.Linear(1, 2), torch.rand(0, 1), torch.zeros(0), Gaussian(0.5), TrainingSettings())
