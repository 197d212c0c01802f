"""A noise scale per training input: the paper's loop, the same after a stop and on two processes, with any method."""

from __future__ import annotations

import csv
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy import special
from torch import nn

from smoothcert import Gaussian, Uniform, data, models
from smoothcert.models import CheckpointInfo
from smoothcert.sampling.seeds import MODELLING, block_seed
from smoothcert.training import METHODS, State, TrainingSettings, train
from smoothcert.training.loop import _mixed
from smoothcert.training.recipes import load_recipe, recipe_to_yaml
from smoothcert.training.resume import FILE
from smoothcert.training.run import clear
from smoothcert.training.settings import DataDependentSigma
from smoothcert.training.sigma import SIGMAS, InputSigmas, load_sigmas
from smoothcert.types import SmoothcertError, UsageError

INFO = CheckpointInfo.of("digits-cnn", sigma=0.25)
FEW = {"gaussian": {}, "smoothadv": {"m": 2, "steps": 2, "warmup": 0.0, "epsilon": 0.25}, "macer": {"m": 4}}


def method(name):
    return METHODS[name](**FEW[name])


def digits(count=200):
    x, y = data.load("digits", split="train").arrays()
    return x[:count], y[:count]


def fresh():
    torch.manual_seed(0)
    return models.build("digits-cnn")


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def short(sigma=None, **changes):
    usual = {"epochs": 3, "batch_size": 64, "rate": 0.05, "holdout": 20, "votes": 20}
    return TrainingSettings(**{**usual, **changes}, data_dependent_sigma=sigma)


def moving(**changes):
    return {"warmup": 1, "step": 0.01, **changes}


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("still", [{"steps": 0, "warmup": 0}, {"warmup": 3}])
def test_without_steps_it_is_training_with_a_fixed_scale(name, still):
    found = []
    for sigma in (None, still):
        model = fresh()
        history = train(
            model, digits(), noise=Gaussian(0.12), method=method(name), settings=short(sigma), progress=False
        )
        found.append(weights(model))
        assert [row.get("sigma") for row in history] == [None if sigma is None else pytest.approx(0.12)] * 3
    assert torch.equal(*found)


@pytest.mark.parametrize(("steps", "n"), [(1, 1), (3, 2)])
def test_three_epochs_equal_a_plain_loop(steps, n):
    """Algorithm 2 one input at a time, its derivatives by differences; plain SGD on a linear classifier by hand."""
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(30, 6, generator=generator, dtype=torch.float64)
    y = x[:, :3].argmax(dim=1)
    model = nn.Linear(6, 3).double()
    with torch.no_grad():
        model.weight.normal_(0.0, 1.0, generator=generator)
        model.bias.zero_()
    weight, bias = model.weight.detach().numpy().copy(), model.bias.detach().numpy().copy()
    settings = TrainingSettings(
        epochs=3, batch_size=8, rate=0.2, holdout=0, momentum=0.0, nesterov=False, weight_decay=0.0, schedule="step",
        data_dependent_sigma={"warmup": 1, "steps": steps, "n": n, "step": 0.05, "interval": (0.2, 0.35)},
    )  # fmt: skip
    history = train(model, (x, y), noise=Gaussian(0.3), settings=settings, progress=False)

    def softmax(at):
        return special.softmax(weight @ at + bias)

    def radius(at, sigma, noises):
        top = np.sort(sum(softmax(at + sigma * noise) for noise in noises) / n)[::-1][:2].clip(0.02, 0.98)
        return sigma / 2 * (special.ndtri(top[0]) - special.ndtri(top[1]))

    sigmas, means = np.full(30, 0.3), []
    for epoch in range(3):
        seed = _mixed(0, epoch)
        drawn = torch.Generator().manual_seed(seed)
        for batch in torch.randperm(30, generator=torch.Generator().manual_seed(seed)).split(8):
            for i in batch.tolist() if epoch >= 1 else ():
                own = torch.Generator().manual_seed(block_seed(0, i, MODELLING, epoch + 1))
                for _ in range(steps):
                    noises = torch.randn((n, 6), generator=own, dtype=torch.float64).numpy()
                    ends = [radius(x[i].numpy(), sigmas[i] + move, noises) for move in (1e-6, -1e-6)]
                    sigmas[i] = np.clip(sigmas[i] + 0.05 * (ends[0] - ends[1]) / 2e-6, 0.2, 0.35)
            unit = torch.empty((len(batch), 6), dtype=torch.float64).normal_(generator=drawn).numpy()
            slope_weight, slope_bias = np.zeros_like(weight), np.zeros_like(bias)
            for i, noise in zip(batch.tolist(), unit, strict=True):
                at = x[i].numpy() + sigmas[i] * noise
                error = softmax(at) - np.eye(3)[y[i]]
                slope_weight += np.outer(error, at) / len(batch)
                slope_bias += error / len(batch)
            weight, bias = weight - 0.2 * slope_weight, bias - 0.2 * slope_bias
        means.append(sigmas.mean())
    assert [row["sigma"] for row in history] == pytest.approx(means, rel=1e-7)
    assert model.weight.detach().numpy() == pytest.approx(weight, rel=1e-6)
    assert model.bias.detach().numpy() == pytest.approx(bias, rel=1e-6, abs=1e-9)
    assert np.ptp(sigmas) > 0.02
    assert (sigmas == 0.35).any()  # the interval mattered


@pytest.mark.parametrize("name", FEW)
def test_goes_on_after_a_stop_to_the_same_weights_and_scales(tmp_path, name, monkeypatch):
    from smoothcert.training import loop

    class Stop(Exception):
        pass

    settings = short(moving(), epochs=4)
    arguments = {"dataset": digits(), "noise": Gaussian(0.25), "method": method(name), "settings": settings}
    whole = fresh()
    complete = train(whole, **arguments, folder=tmp_path / "a", info=INFO, progress=False)
    original = loop._Training._step

    def step(self, batch, state, *args, **kwargs):
        if state.epoch > 2.5:  # in the middle of the third epoch
            raise Stop
        return original(self, batch, state, *args, **kwargs)

    monkeypatch.setattr(loop._Training, "_step", step)
    with pytest.raises(Stop):
        train(fresh(), **arguments, folder=tmp_path / "b", info=INFO, progress=False)
    monkeypatch.undo()
    stopped = load_sigmas(tmp_path / "b")
    torch.manual_seed(99)
    resumed = models.build("digits-cnn")
    history = train(resumed, **arguments, folder=tmp_path / "b", info=INFO, progress=False)
    assert torch.equal(weights(whole), weights(resumed))
    sigmas = load_sigmas(tmp_path / "a")
    assert torch.equal(sigmas, load_sigmas(tmp_path / "b" / SIGMAS))
    assert not torch.equal(sigmas, stopped)
    assert [row["sigma"] for row in history] == [row["sigma"] for row in complete]


@pytest.mark.parametrize("name", FEW)
def test_a_folder_holds_the_scales_and_their_mean(tmp_path, name):
    settings = short(moving(n=2), epochs=3)
    train(
        fresh(),
        digits(),
        noise=Gaussian(0.25),
        method=method(name),
        settings=settings,
        folder=tmp_path,
        info=INFO,
        progress=False,
    )
    sigmas = load_sigmas(tmp_path)
    assert sigmas.shape == (200,)
    kept_out = torch.zeros(200, dtype=torch.bool)
    kept_out[torch.arange(20) * 10] = True
    assert (sigmas[kept_out] == 0.25).all()
    assert (sigmas[~kept_out] != 0.25).float().mean() > 0.9
    with (tmp_path / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[0]["sigma"]) == 0.25
    assert float(rows[-1]["sigma"]) == pytest.approx(float(sigmas[~kept_out].mean()), rel=1e-12)
    with pytest.raises(UsageError, match=r"another training \(it differs in data_dependent_sigma"):
        train(
            fresh(),
            digits(),
            noise=Gaussian(0.25),
            method=method(name),
            settings=short(),
            folder=tmp_path,
            info=INFO,
            progress=False,
        )
    clear(tmp_path)
    assert not (tmp_path / SIGMAS).exists()
    assert not (tmp_path / FILE).exists()


TWO = """
import sys, torch
from smoothcert import Gaussian, data, models
from smoothcert.training import METHODS, TrainingSettings, make_fabric, sigma, train

def work(fabric, folder):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = models.build("digits-cnn").double()
    x, y = data.load("digits", split="train").arrays()
    x, y = x[:194].double(), y[:194]  # four batches, the last one of a lone input for each copy
    settings = TrainingSettings(
        epochs=3, batch_size=64, rate=0.05, holdout=0, augment="cifar", data_dependent_sigma={"warmup": 1, "step": 0.01}
    )
    kept, original = [], sigma.InputSigmas.exchange
    def exchange(self, *args):
        original(self, *args)
        kept.append(self.values.clone())
    sigma.InputSigmas.exchange = exchange
    method = METHODS["macer"](m=2)
    train(model, (x, y), noise=Gaussian(0.25), method=method, settings=settings, fabric=fabric, progress=False)
    sigma.InputSigmas.exchange = original
    result = [*kept, *(p.detach() for p in model.parameters())]
    torch.save(result, f"{folder}/{fabric.world_size}-{fabric.global_rank}.pt")

if __name__ == "__main__":
    from lightning_fabric import Fabric
    work(make_fabric(device="cpu"), sys.argv[1])
    Fabric(accelerator="cpu", devices=2, strategy="ddp_spawn").launch(work, sys.argv[1])
"""


def test_two_processes_find_the_weights_and_scales_of_one(tmp_path):
    script = tmp_path / "two.py"
    script.write_text(TWO)
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, timeout=240)
    one, first, second = (torch.load(tmp_path / f"{name}.pt") for name in ("1-0", "2-0", "2-1"))
    assert len(one) > 3
    for a, b, c in zip(one, first, second, strict=True):
        assert torch.equal(b, c)
        assert torch.allclose(a, b, rtol=0, atol=1e-9)
    assert (one[0] == 0.25).all()
    assert (one[2] != one[1]).float().mean() > 0.9


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_scales_and_equal_ones_change_nothing(name, make_case):
    case = make_case(3)
    with torch.no_grad():
        usual = case.loss(METHODS[name]())
        equal = case.loss(METHODS[name](), sigma=torch.full((case.inputs,), 0.5, dtype=torch.float64))
        other = case.loss(METHODS[name](), sigma=torch.linspace(0.1, 1.0, case.inputs, dtype=torch.float64))
    assert equal.item() == pytest.approx(usual.item(), rel=1e-9)
    assert other.isfinite()
    assert other.item() != pytest.approx(usual.item(), rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_macer_weighs_each_radius_by_the_scale_of_its_input(seed, make_case):
    case = make_case(seed)
    sigmas = torch.linspace(0.2, 0.9, case.inputs, dtype=torch.float64)

    def reference(net):
        total = 0.0
        for (x, y, deltas), sigma in zip(case.rows(5), sigmas.tolist(), strict=True):
            deltas = deltas * sigma / 0.5
            total -= np.log(net.smoothed(x, deltas)[y])
            p = sum(special.softmax(2.0 * net.logits(x + delta)) for delta in deltas) / len(deltas)
            first, second = np.argsort(-p)[:2]
            gap = special.ndtri(p[first]) - special.ndtri(p[second])
            if first == y and gap <= 8:
                total += 3.0 * sigma / 2 * (8 - gap)
        return total / case.inputs

    case.check(METHODS["macer"](lam=3.0, beta=2.0, m=5), reference, rel=1e-8, sigma=sigmas)


def test_noise_has_the_scale_of_its_input_however_a_batch_is_shared():
    x = torch.rand(4, 50, 50, dtype=torch.float64)
    sigma = torch.tensor([0.1, 0.3, 1.0, 3.0], dtype=torch.float64)
    whole = State(generator=torch.Generator().manual_seed(1), sigma=sigma).noisy(Gaussian(0.5), x, 3)
    assert whole.shape == (3, 4, 50, 50)
    spread = (whole - x).transpose(0, 1).flatten(1).std(dim=1)
    assert torch.allclose(spread, sigma, rtol=0.04)
    for first, last in ((0, 1), (1, 4)):
        state = State(generator=torch.Generator().manual_seed(1), sigma=sigma[first:last], place=(first, 4))
        assert torch.equal(state.noisy(Gaussian(0.5), x[first:last], 3), whole[:, first:last])


def test_the_noise_of_an_input_does_not_depend_on_its_batch():
    model, x = nn.Linear(5, 3), torch.rand(6, 5)
    settings = DataDependentSigma(warmup=0, step=0.1)
    together, alone = (InputSigmas(settings, Gaussian(0.25), 6, seed=3) for _ in range(2))
    found = together.update(model, x, torch.arange(6), 0)
    for row in (4, 0, 2, 5, 1, 3):
        alone.update(model, x[row : row + 1], torch.tensor([row]), 0)
    assert torch.allclose(together.values, alone.values, rtol=1e-6)
    assert torch.equal(found.double(), together.values)
    assert torch.unique(together.values).numel() == 6
    before = together.values.clone()
    together.update(model, x[:2], torch.tensor([0, 1]), 1)
    assert (together.values[:2] != before[:2]).all()
    assert torch.equal(together.values[2:], before[2:])


def test_a_recipe_has_these_settings(tmp_path):
    recipe = load_recipe(
        "digits-gaussian-0.25-quick", {"data_dependent_sigma": {"warmup": 2, "step": 0.01, "interval": [0.1, 1]}}
    )
    chosen = recipe.data_dependent_sigma
    assert (chosen.warmup, chosen.steps, chosen.n, chosen.interval) == (2, 1, 1, (0.1, 1.0))
    file = tmp_path / "mine.yaml"
    file.write_text(recipe_to_yaml(recipe))
    assert load_recipe(file) == recipe
    for wrong, sentence in [
        ({"warm": 1}, "data_dependent_sigma"),
        ({"warmup": -1}, "data_dependent_sigma.warmup must be greater than or equal to 0"),
        ({"warmup": 1.5}, "data_dependent_sigma.warmup must be"),
        ({"steps": -1}, "data_dependent_sigma.steps must be greater than or equal to 0"),
        ({"n": 0}, "data_dependent_sigma.n must be greater than or equal to 1"),
        ({"step": 0}, "data_dependent_sigma.step must be greater than 0"),
        ({"clamp": [0, 0.98]}, r"clamp must be \(low, high\) with 0 < low < high < 1, got \(0"),
        ({"interval": [0.5, 0.1]}, r"interval must be \(low, high\) with 0 < low < high, got \(0\.5, 0\.1"),
        (
            {"interval": [0.3, 1.0]},
            "starts with the sigma of the noise, 0.25, which is not in the interval from 0.3 to 1",
        ),
    ]:
        with pytest.raises(UsageError, match=sentence):
            load_recipe("digits-gaussian-0.25-quick", {"data_dependent_sigma": wrong})
    with pytest.raises(UsageError, match="data_dependent_sigma needs Gaussian noise, got uniform"):
        load_recipe("digits-uniform-0.50-quick", {"data_dependent_sigma": {}})


def test_refuses(tmp_path):
    with pytest.raises(UsageError, match="data_dependent_sigma needs Gaussian noise, got uniform"):
        train(fresh(), digits(), noise=Uniform(0.5), settings=short({}), folder=tmp_path, info=INFO)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match=r"from 0\.01 to 10"):
        InputSigmas(DataDependentSigma(), Gaussian(11.0), 4, seed=0)
    with pytest.raises(SmoothcertError, match="is missing; only a training with data_dependent_sigma"):
        load_sigmas(tmp_path)
    (tmp_path / SIGMAS).write_bytes(b"nothing of the kind")
    with pytest.raises(SmoothcertError, match="does not hold noise scales"):
        load_sigmas(tmp_path)
