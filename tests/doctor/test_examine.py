"""The examination finds what is wrong with ordinary models and data, and nothing where nothing is."""

from __future__ import annotations

import copy
import time

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from smoothcert import Aces, Anytime, Cohen, Gaussian, Smoothed, Staged, certify_dataset, data
from smoothcert.classifiers.sealed import Sealed
from smoothcert.doctor import Finding, Level, examine
from smoothcert.doctor.inputs import Sample, looks_like
from smoothcert.doctor.noisy import Trial, try_votes
from smoothcert.doctor.scaling import check_scaling, scalings
from smoothcert.models import PRESETS, Normalize
from smoothcert.types import ABSTAIN, UsageError

SIGMA = 0.25
STATISTICS = [torch.tensor(values).reshape(-1, 1, 1) for values in PRESETS["cifar10"]]
QUICK = Cohen(n=1_000)
DIGITS = data.load("digits")
TEST = [(DIGITS[index][0].repeat(3, 1, 1), DIGITS[index][1]) for index in range(300)]
"""Digits with three channels, because normalisation as for CIFAR-10 makes much of a difference."""


@pytest.fixture(scope="module")
def network() -> nn.Module:
    """A network for digits that are normalised with the statistics of CIFAR-10, trained under noise."""
    images, labels = data.load("digits", split="train").arrays()
    images = images.repeat(1, 3, 1, 1)
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.Adam(network.parameters(), 0.003, weight_decay=1e-4)
    mean, std = STATISTICS
    for _ in range(150):
        noisy = images + SIGMA * torch.randn(images.shape, generator=generator)
        loss = functional.cross_entropy(network((noisy - mean) / std), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


@pytest.fixture
def healthy(network) -> nn.Module:
    return nn.Sequential(Normalize(*PRESETS["cifar10"]), network)


def look(model, dataset=TEST, procedure=QUICK, sigma=SIGMA, **options) -> dict[str, Finding]:
    """What is found, by title; the budget is long enough for these small models on a busy machine."""
    found = examine(Smoothed(model, Gaussian(sigma)), dataset, procedure, **{"seconds": 20, **options})
    return {finding.title: finding for finding in found}


def above_info(found: dict[str, Finding]) -> dict[str, Level]:
    return {title: finding.level for title, finding in found.items() if finding.level is not Level.INFO}


def test_nothing_is_wrong_with_a_healthy_model(healthy):
    steps = []
    found = look(healthy, trained=Gaussian(SIGMA), progress=steps.append)
    assert above_info(found) == {}
    titles = ["values", "classifier", "noise", "reach", "accuracy", "scaling", "accuracy under noise", "forecast"]
    assert list(found) == [*titles, "runtime", "time"]
    assert "300 inputs, 1,100 samples each" in found["time"].detail
    assert steps[0] == "inputs"
    assert steps[-1] == "runtimes"
    assert all(finding.detail.endswith(".") for finding in found.values())


def test_missing_normalisation_is_named(network):
    found = look(network)
    assert found["scaling"].level is Level.ERROR
    assert "normalised with the preset '" in found["scaling"].detail  # perhaps among those nearly as good
    assert "--normalize " in found["scaling"].advice


def test_double_normalisation_is_named(healthy):
    found = look(nn.Sequential(Normalize(*PRESETS["cifar10"]), healthy))
    assert found["normalisation"].level is Level.WARNING
    assert "as if the model normalised twice" in found["normalisation"].detail


class Picky(nn.Module):
    """Right about inputs scaled by ``a x + b`` only; anything else is a 0 to it."""

    def __init__(self, model: nn.Module, a: Tensor, b: Tensor) -> None:
        super().__init__()
        self.model, self.a, self.b = model, a, b

    def forward(self, z: Tensor) -> Tensor:
        x = (z - self.b) / self.a
        mean = x.mean(dim=(1, 2, 3))
        fits = (mean > 0.2) & (mean < 0.4)
        return torch.where(fits[:, None], self.model(x), torch.eye(10)[0])


IMAGES = torch.stack([x for x, _ in TEST])


@pytest.mark.parametrize(
    "scaling", [each for each in scalings(IMAGES) if "blue" not in each.means], ids=lambda scaling: scaling.means[:60]
)
def test_every_scaling_is_recognised(healthy, scaling):
    b = scaling.change(torch.zeros(1, 3, 8, 8))
    a = scaling.change(torch.ones(1, 3, 8, 8)) - b
    sample = Sample(tuple(range(300)), IMAGES, torch.tensor([y for _, y in TEST]))
    found = check_scaling(Sealed(Picky(healthy, a, b)), sample, Gaussian(0.1), 100)
    assert found.level is Level.ERROR
    kind = scaling.means.partition(" with ")[0]  # statistics that are nearly the same cannot be told apart
    assert kind in found.detail
    assert found.advice.partition(" --normalize ")[0] == scaling.advice.partition(" --normalize ")[0]


def test_the_order_of_channels_is_recognised(healthy):
    reds = [(x * torch.tensor([1.0, 0.3, 0.0]).reshape(3, 1, 1), y) for x, y in TEST]
    model = nn.Sequential(Reds(), healthy)
    assert look(model, reds)["scaling"].level is Level.INFO
    assert "blue, green, red" in look(model, [(x.flip(0), y) for x, y in reds])["scaling"].detail


class Reds(nn.Module):
    """A grey image of the first channel."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1].repeat(1, 3, 1, 1)


def test_normalised_inputs_of_a_model_that_normalises_are_named(healthy):
    mean, std = STATISTICS
    found = look(healthy, [((x - mean) / std, y) for x, y in TEST])
    assert found["values"].level is Level.ERROR
    assert "look normalised with the statistics of cifar10" in found["values"].detail
    assert "normalised twice" in found["values"].detail


@pytest.mark.parametrize(
    ("change", "name"), [(lambda x: 255 * x, "look like 8-bit values"), (lambda x: 2 * x - 1, "look scaled to [-1, 1]")]
)
def test_values_of_another_range_are_named(healthy, change, name):
    found = look(healthy, [(change(x), y) for x, y in TEST])
    assert found["values"].level is Level.ERROR
    assert name in found["values"].detail


@pytest.mark.parametrize("name", PRESETS)
def test_normalised_values_are_told_by_their_statistics(name):
    mean, std = (torch.tensor(value).reshape(-1, 1, 1) for value in PRESETS[name])
    images = torch.rand((20, len(mean), 8, 8), generator=torch.Generator().manual_seed(0))
    found = looks_like((images - mean) / std)
    assert found is not None
    assert torch.tensor(PRESETS[found][1]) == pytest.approx(std.flatten(), rel=0.01)


def test_other_faults_of_inputs(healthy):
    x, y = TEST[0]
    whole = look(healthy, [((255 * x).byte(), y) for x, y in TEST])
    assert "whole numbers (uint8)" in whole["values"].detail
    assert "NaN" in look(healthy, [(x / 0, y)] * 30)["values"].detail
    assert "divided by 255 twice" in look(healthy, [(x / 255, y) for x, y in TEST])["values"].detail
    assert "from 3 to 13" in look(healthy, [(x, y + 3) for x, y in TEST if y in (0, 7)] + [(x, 13)])["labels"].detail
    assert "Input 25" in look(healthy, [*TEST[:250], *[(torch.rand(3, 9, 9), 0)] * 50])["shapes"].detail
    threes = [(x, y) for x, y in TEST if y == 3]
    same = look(healthy, threes)["labels"]
    assert (same.level, same.detail) == (Level.WARNING, f"All {len(threes)} examined inputs have label 3.")


def test_labels_are_compared_with_the_classes_of_the_model(healthy):
    smoothed = Smoothed(healthy, Gaussian(SIGMA), num_classes=10)
    found = {finding.title: finding for finding in examine(smoothed, [(TEST[0][0], 12)] * 30, QUICK, seconds=5)}
    assert found["labels"].level is Level.ERROR
    assert "classes 0 to 9" in found["labels"].detail


class Augmented:
    """A dataset with random augmentation."""

    def __len__(self) -> int:
        return len(TEST)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x, y = TEST[index]
        return (x + 0.1 * torch.rand(())).clamp(max=1), y


def test_random_data_is_found(healthy):
    found = look(healthy, Augmented())["data"]
    assert (found.level, "random augmentation" in found.detail) == (Level.ERROR, True)


def test_other_noise_than_in_training_is_found(healthy):
    found = look(healthy, sigma=0.12, trained=Gaussian(SIGMA))["noise"]
    assert found.level is Level.WARNING
    assert found.detail == "The model was trained with Gaussian(sigma=0.25), but Gaussian(sigma=0.12) is planned."
    assert look(healthy)["noise"].level is Level.INFO
    exact = Smoothed(healthy, Gaussian(SIGMA, grid=255))
    found = examine(exact, [((255 * x).round() / 255, y) for x, y in TEST], QUICK, trained=Gaussian(SIGMA), seconds=10)
    assert [finding for finding in found if finding.level is not Level.INFO] == []


def test_noise_that_the_model_cannot_bear_is_found(healthy):
    loud = look(healthy, sigma=20.0)
    assert above_info(loud)["accuracy under noise"] is Level.ERROR
    some = above_info(look(healthy, sigma=1.0))
    assert some["accuracy under noise"] is Level.WARNING


def test_an_untrained_model_is_no_better_than_guessing():
    torch.manual_seed(0)
    found = look(nn.Sequential(nn.Flatten(), nn.Linear(192, 10)))
    assert found["accuracy"].level is Level.ERROR
    assert "no better than guessing" in found["accuracy"].detail
    assert "forecast" not in found  # it would be about a model that does not work


class Dropping(nn.Module):
    """Drops out in evaluation mode too."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(functional.dropout(x, 0.3, training=True))


def test_dropout_left_on_is_refused_and_training_mode_is_said(healthy):
    always = look(Dropping(healthy))
    assert always["classifier"].level is Level.ERROR
    assert "for the same batch" in always["classifier"].detail
    assert "accuracy" not in always
    ordinary = look(nn.Sequential(nn.Dropout(0.3), healthy).train())
    assert above_info(ordinary) == {"mode": Level.WARNING}
    assert "training mode (Dropout)" in ordinary["mode"].detail


def test_a_function_around_a_module_in_training_mode_is_refused(healthy):
    model = nn.Sequential(nn.Dropout(0.3), healthy).train()
    assert look(lambda x: model(x))["classifier"].level is Level.ERROR
    model.eval()
    assert above_info(look(lambda x: model(x))) == {}


def test_batch_norm_with_statistics_of_the_batch_is_refused(healthy):
    found = look(nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), healthy))
    assert found["classifier"].level is Level.ERROR
    assert "the other rows of the batch" in found["classifier"].detail


def test_batch_norm_without_statistics_is_said(healthy):
    found = look(nn.Sequential(nn.BatchNorm2d(3), healthy).eval())
    assert above_info(found) == {"batch norm": Level.WARNING}
    assert found["batch norm"].detail.startswith("1 of 1 BatchNorm layers")


def test_weights_that_are_not_finite_are_found(healthy):
    broken = copy.deepcopy(healthy)
    with torch.no_grad():
        broken[1][1].weight[0, 0] = torch.nan
    found = look(broken)
    assert found["weights"].level is Level.ERROR
    assert "Linear.weight" in found["weights"].detail


def test_a_model_of_other_inputs_is_refused():
    found = look(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)))
    assert found["classifier"].level is Level.ERROR
    assert "cannot classify" in found["classifier"].detail


def test_the_forecast_comes_true(healthy, tmp_path):
    smoothed = Smoothed(healthy, Gaussian(0.5))
    forecast = look(healthy, sigma=0.5)["forecast"].detail
    run = certify_dataset(smoothed, TEST, QUICK, run=tmp_path / "run", every=2, progress=False)
    abstained = sum(row["predict"] == ABSTAIN for row in run.rows()) / 150
    assert "at n = 1,000" in forecast
    assert abs(float(forecast.partition("% at n = 1,000")[0].rpartition(" ")[2]) / 100 - abstained) < 0.1


def test_few_votes_leave_the_probability_open():
    """Where all of 200 copies agree, p may still be 0.99."""
    p = Trial(torch.tensor([[200, 0]] * 5), 200, torch.zeros(5, dtype=torch.long), 1.0).probabilities()
    assert 0.98 < p.min() < 0.999
    assert (p < 1).all()


def test_votes_are_those_of_the_classifier(half_space):
    x = torch.tensor([[0.75], [0.25]])
    trial = try_votes(Sealed(half_space), Sample((0, 1), x, torch.tensor([1, 0])), Gaussian(0.25), 4_000, 300)
    assert trial.counts.sum(dim=1).tolist() == [4_000, 4_000]
    assert trial.counts[0, 1] / 4_000 == pytest.approx(0.841, abs=0.03)
    assert trial.counts[1, 0] / 4_000 == pytest.approx(0.841, abs=0.03)
    assert trial.invalid == 0


@pytest.mark.parametrize(
    "procedure", [Anytime(radius=0.25), Anytime(radius=(0.25, 0.5)), Staged(radius=0.25, stages=(100, 1_000))]
)
def test_procedures_with_a_target_are_forecast(healthy, procedure):
    found = look(healthy, procedure=procedure)
    assert "will not be certified at radius 0.25" in found["forecast"].detail
    assert above_info(found) == {}


def test_procedures_without_a_plan_are_examined_too(healthy):
    found = look(healthy, procedure=Aces(core=healthy, n=1_000))
    assert "cannot be forecast" in found["forecast"].detail
    assert above_info(found) == {}
    assert "cannot be forecast" in look(healthy, procedure=Anytime(n_max=1_000))["forecast"].detail


def test_settings_that_cannot_work_are_errors(healthy):
    found = look(healthy, procedure=Staged(radius=5.0))
    assert found["procedure"].level is Level.ERROR
    smoothed = Smoothed(healthy, Gaussian(SIGMA), precision="fp16")
    (refused,) = [each for each in examine(smoothed, TEST, QUICK, seconds=5) if each.level is Level.ERROR]
    assert "CUDA" in refused.detail


def test_a_long_run_is_warned_about(healthy):
    class Many:
        def __len__(self) -> int:
            return 10_000_000

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return TEST[index % len(TEST)]

    found = look(healthy, Many(), Cohen(n=1_000_000), seconds=10)
    assert found["time"].level is Level.WARNING
    assert "--every" in found["time"].advice
    assert "not tried" in found["runtimes"].detail


def test_a_slow_model_does_not_exceed_the_budget_by_much(healthy):
    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = healthy

        def forward(self, x: Tensor) -> Tensor:
            time.sleep(0.002 * len(x))
            return self.model(x)

    begin = time.perf_counter()
    found = look(Slow(), seconds=10)
    assert time.perf_counter() - begin < 30
    assert "time" in found


def test_what_cannot_be_examined_is_refused(healthy):
    smoothed = Smoothed(healthy, Gaussian(SIGMA))
    with pytest.raises(UsageError, match="no input selected"):
        examine(smoothed, TEST, start=1_000)
    with pytest.raises(UsageError, match="not a tensor or an array"):
        examine(smoothed, [("image.png", 0)] * 3)
