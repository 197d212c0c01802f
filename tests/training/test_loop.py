"""The loop: reproducible, resumable to the bit, the same on two processes as on one, clear when it fails."""

from __future__ import annotations

import csv
import multiprocessing
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

from smoothcert import Gaussian, data, models
from smoothcert.models import CheckpointInfo, load_checkpoint
from smoothcert.training import METHODS, TrainingSettings, make_fabric, train
from smoothcert.training.loop import _mixed
from smoothcert.training.resume import FILE
from smoothcert.training.sources import SHIFT, flip_and_shift
from smoothcert.types import SmoothcertError, UsageError

INFO = CheckpointInfo.of("digits-cnn", sigma=0.25)


def digits(count=None):
    x, y = data.load("digits", split="train").arrays()
    return x[:count], y[:count]


def fresh():
    torch.manual_seed(0)
    return models.build("digits-cnn")


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def short(**changes):
    return TrainingSettings(**{"epochs": 3, "batch_size": 64, "rate": 0.1, "holdout": 20, "votes": 20, **changes})


def test_trains_digits_under_noise_and_is_reproducible():
    x, y = data.load("digits", split="test").arrays()
    found = []
    for _ in range(2):
        model = fresh()
        history = train(model, digits(), noise=Gaussian(0.25), settings=short(epochs=8, holdout=200), progress=False)
        assert not model.training
        found.append(weights(model))
    assert torch.equal(*found)
    noisy = x + 0.25 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert (model(noisy).argmax(1) == y).float().mean() > 0.85
    assert history[-1]["accuracy"] > 0.85
    assert history[-1]["loss"] < history[0]["loss"] / 2


def test_one_epoch_equals_a_plain_loop():
    """Nesterov SGD written out, with the loop's own order and noise: nothing else happens in a step."""
    x, y = digits(100)
    settings = short(epochs=1, batch_size=32, holdout=0, weight_decay=0.01, schedule="step", rate=0.05)
    model = fresh()
    train(model, (x, y), noise=Gaussian(0.25), settings=settings, progress=False)
    reference = fresh()
    seed = _mixed(0, 0)
    noise = torch.Generator().manual_seed(seed)
    speed = [torch.zeros_like(p) for p in reference.parameters()]
    for batch in torch.randperm(100, generator=torch.Generator().manual_seed(seed)).split(32):
        noisy = x[batch] + torch.empty(x[batch].shape).normal_(0, 0.25, generator=noise)
        loss = nn.functional.cross_entropy(reference(noisy), y[batch])
        gradients = torch.autograd.grad(loss, list(reference.parameters()))
        with torch.no_grad():
            for p, g, v in zip(reference.parameters(), gradients, speed, strict=True):
                g = g + 0.01 * p
                v.mul_(0.9).add_(g)
                p -= 0.05 * (g + 0.9 * v)
    assert torch.allclose(weights(model), weights(reference), atol=1e-5)


@pytest.mark.parametrize("extra", [{}, {"ema": 0.9}, {"clip": 0.5}])
def test_a_training_stopped_after_an_epoch_goes_on_to_the_same_weights(tmp_path, extra, monkeypatch):
    settings = short(epochs=4, **extra)
    whole = fresh()
    train(whole, digits(300), noise=Gaussian(0.25), settings=settings, folder=tmp_path / "a", info=INFO, progress=False)

    class Stop(Exception):
        pass

    from smoothcert.training import loop

    steps = []
    original = loop._Training._step

    def step(self, *args, **kwargs):
        steps.append(1)
        if len(steps) == 13:  # in the middle of the third epoch
            raise Stop
        return original(self, *args, **kwargs)

    monkeypatch.setattr(loop._Training, "_step", step)
    arguments = {"dataset": digits(300), "noise": Gaussian(0.25), "settings": settings}
    with pytest.raises(Stop):
        train(fresh(), **arguments, folder=tmp_path / "b", info=INFO, progress=False)
    torch.manual_seed(99)
    resumed = models.build("digits-cnn")  # other weights, which the saved ones replace
    history = train(resumed, **arguments, folder=tmp_path / "b", info=INFO, progress=False)
    assert torch.equal(weights(whole), weights(resumed))
    assert [row["epoch"] for row in history] == [1, 2, 3, 4]
    again = load_checkpoint(tmp_path / "a" / "last.safetensors").model
    assert torch.equal(weights(again), weights(load_checkpoint(tmp_path / "b" / "last.safetensors").model))


def train_six_epochs(folder):
    torch.manual_seed(0)
    settings = {"epochs": 6, "batch_size": 64, "rate": 0.1, "holdout": 20, "votes": 20, "progress": False}
    train(fresh(), digits(640), noise=Gaussian(0.25), method="consistency", folder=folder, info=INFO, **settings)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_killing_the_process_in_mid_epoch_changes_nothing(tmp_path):
    train_six_epochs(tmp_path / "whole")
    for kill in range(2):
        process = multiprocessing.get_context("fork").Process(target=train_six_epochs, args=[tmp_path / "killed"])
        process.start()
        history = tmp_path / "killed" / "history.csv"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:  # until another epoch is done, then a little longer: in mid-epoch
            if history.exists() and len(history.read_text().splitlines()) >= kill + 2:
                break
            time.sleep(0.01)
        time.sleep(0.05)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    train_six_epochs(tmp_path / "killed")
    for name in ("best.safetensors", "last.safetensors"):
        whole, killed = (load_checkpoint(tmp_path / folder / name) for folder in ("whole", "killed"))
        assert torch.equal(weights(whole.model), weights(killed.model))
        assert whole.info.extra["epoch"] == killed.info.extra["epoch"]


TWO = """
import sys, torch
from smoothcert import Gaussian, data, models
from smoothcert.training import METHODS, make_fabric, train

def work(fabric, folder):
    torch.set_num_threads(1)
    for method in sys.argv[2].split(","):
        train_with(fabric, f"{folder}/{method}", method)

def train_with(fabric, folder, method):
    torch.manual_seed(0)
    model = models.build("digits-cnn").double()
    x, y = data.load("digits", split="train").arrays()
    x, y = x[:301].double(), y[:301]
    soft = torch.nn.functional.one_hot(y, 10) * 0.9 + 0.01
    settings = {"epochs": 2, "batch_size": 64, "rate": 0.05, "holdout": 0, "augment": "cifar", "soft_labels": soft}
    kwargs = {"smoothadv": {"m": 2, "steps": 2, "warmup": 0.0}, "smoothmix": {"m": 2, "steps": 2}, "catrs": {"m": 2}}
    loss = METHODS[method](**kwargs.get(method, {}))
    train(model, (x, y), noise=Gaussian(0.25), method=loss, fabric=fabric, progress=False, **settings)
    torch.save([p.detach() for p in model.parameters()], f"{folder}/{fabric.world_size}-{fabric.global_rank}.pt")

if __name__ == "__main__":
    from lightning_fabric import Fabric
    work(make_fabric(device="cpu"), sys.argv[1])
    Fabric(accelerator="cpu", devices=2, strategy="ddp_spawn").launch(work, sys.argv[1])
"""


def test_two_processes_give_the_weights_of_one(tmp_path):
    """On gloo, with a batch that does not divide evenly, in float64 so that only the order of sums differs."""
    script = tmp_path / "two.py"
    script.write_text(TWO)
    chosen = ["gaussian", "smoothmix", "catrs"]
    for method in chosen:
        (tmp_path / method).mkdir()
    subprocess.run([sys.executable, str(script), str(tmp_path), ",".join(chosen)], check=True, timeout=240)
    for method in chosen:
        one, first, second = (torch.load(tmp_path / method / f"{name}.pt") for name in ("1-0", "2-0", "2-1"))
        for a, b, c in zip(one, first, second, strict=True):
            assert torch.equal(b, c)
            assert torch.allclose(a, b, atol=1e-9)


def test_a_folder_holds_checkpoints_and_logs(tmp_path):
    settings = short(epochs=2)
    model = fresh()
    arguments = {"dataset": digits(200), "noise": Gaussian(0.25), "settings": settings}
    history = train(model, **arguments, folder=tmp_path, info=INFO, progress=False, tensorboard=True)
    with (tmp_path / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == [row["loss"] for row in history]
    assert list((tmp_path / "tensorboard").glob("events.*"))
    last = load_checkpoint(tmp_path / "last.safetensors")
    assert torch.equal(weights(last.model), weights(model))
    assert last.info.extra["epoch"] == 2
    best = load_checkpoint(tmp_path)  # a folder stands for its best model
    assert best.path.name == "best.safetensors"
    untouched = (tmp_path / "last.safetensors").stat().st_mtime_ns
    assert train(fresh(), **arguments, folder=tmp_path, info=INFO, progress=False) == history
    assert (tmp_path / "last.safetensors").stat().st_mtime_ns == untouched


def test_another_training_in_the_folder_is_refused(tmp_path):
    train(
        fresh(), digits(100), noise=Gaussian(0.25), settings=short(epochs=1), folder=tmp_path, info=INFO, progress=False
    )
    with pytest.raises(UsageError, match=r"holds another training \(it differs in epochs, noise\).*--fresh"):
        train(
            fresh(),
            digits(100),
            noise=Gaussian(0.5),
            settings=short(epochs=2),
            folder=tmp_path,
            info=INFO,
            progress=False,
        )
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:1000])
    with pytest.raises(SmoothcertError, match="damaged"):
        train(
            fresh(),
            digits(100),
            noise=Gaussian(0.25),
            settings=short(epochs=1),
            folder=tmp_path,
            info=INFO,
            progress=False,
        )


class Breaks(nn.Module):
    """A classifier whose logits are no numbers from some call on."""

    def __init__(self, inner, calls):
        super().__init__()
        self.inner, self.calls = inner, calls

    def forward(self, x):
        self.calls -= self.training
        return self.inner(x) * (float("nan") if self.calls < 0 else 1.0)


def test_a_loss_that_is_no_number_stops_with_a_sentence_and_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    from smoothcert.training import loop

    saved = []
    monkeypatch.setattr(loop, "save_checkpoint", lambda path, model, info: saved.append((path.name, weights(model))))
    model = Breaks(fresh(), calls=7)
    with pytest.raises(SmoothcertError, match=r"became nan in epoch 2, step 3 of 5, .*epoch 1 is kept in .*Lower"):
        train(
            model,
            digits(320),
            noise=Gaussian(0.25),
            settings=short(holdout=20),
            folder=tmp_path,
            info=INFO,
            progress=False,
        )
    assert [name for name, _ in saved] == ["last.safetensors", "best.safetensors"]
    assert all(torch.isfinite(found).all() for _, found in saved)
    assert torch.isfinite(weights(model)).all()  # the step that failed was not taken


def test_schedules():
    step = TrainingSettings(epochs=90, schedule="step", rate=0.1, milestones=(30, 60))
    assert [round(step.rate_at(e), 6) for e in (0, 29.9, 30, 59, 60, 89)] == [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    assert not step.rate_dropped(29.9)
    assert step.rate_dropped(30)
    cycle = TrainingSettings(epochs=10, rate=0.05)
    assert cycle.rate_at(0) == pytest.approx(0.002)
    assert cycle.rate_at(3) == pytest.approx(0.05)
    assert cycle.rate_at(6.5) == pytest.approx(0.025)
    assert cycle.rate_at(10) == pytest.approx(0.0)
    assert not cycle.rate_dropped(1)
    assert cycle.rate_dropped(9.5)


def test_flip_and_shift_moves_every_image_by_its_own_draw():
    x = torch.rand(3, 2, 6, 5)
    stay = (SHIFT + 0.5) / (2 * SHIFT + 1)
    same = torch.tensor([[0.9, 0.1, 0.9], [stay, stay, 0.0], [stay, stay, 0.999]])
    out = flip_and_shift(x, same)
    assert torch.equal(out[0], x[0])
    assert torch.equal(out[1], x[1].flip(-1))
    expected = torch.zeros(2, 6, 5)
    expected[:, SHIFT:, : 5 - SHIFT] = x[2][:, : 6 - SHIFT, SHIFT:]  # down by four, left by four
    assert torch.equal(out[2], expected)


def test_batches_shrink_by_the_number_of_copies():
    sizes = []

    class Watch(nn.Linear):
        def forward(self, x):
            sizes.append(len(x))
            return super().forward(x)

    x, y = torch.rand(100, 4), torch.arange(100) % 3
    settings = TrainingSettings(epochs=1, batch_size=64, holdout=0, rate=0.01)
    train(
        Watch(4, 3), (x, y), noise=Gaussian(0.5), method=METHODS["consistency"](m=4), settings=settings, progress=False
    )
    assert sizes == [10, 64, 64, 64, 64, 36, 36, 36, 36]  # after ten inputs that are checked


def test_refuses():
    x, y = torch.rand(4, 1), torch.zeros(4, dtype=torch.long)
    linear = nn.Linear(1, 2)
    with pytest.raises(UsageError, match="4 training inputs, and holdout=500 leaves none; set holdout"):
        train(linear, (x, y), noise=Gaussian(0.5), progress=False)
    with pytest.raises(UsageError, match="as many labels as inputs, got 3 labels and 4 inputs"):
        train(linear, (x, y[:3]), noise=Gaussian(0.5), progress=False)
    with pytest.raises(UsageError, match="needs a soft label for each of the 4"):
        train(
            linear,
            (x, y),
            noise=Gaussian(0.5),
            method=METHODS["catrs"](),
            settings=TrainingSettings(holdout=0),
            progress=False,
        )
    with pytest.raises(UsageError, match="16-mixed needs a CUDA device"):
        make_fabric("16-mixed", "cpu")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="cannot train on 2 device"):
            make_fabric(device="cuda", processes=2)
    with pytest.raises(UsageError, match="method is the class NoiseAugmentation; make a method of it"):
        train(linear, (x, y), noise=Gaussian(0.5), method=METHODS["gaussian"], progress=False)
    for wrong in ({"epochs": 0}, {"rate": -1.0}, {"milestones": (3, 2)}, {"epoch": 3}, {"schedule": "linear"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            TrainingSettings(**wrong)


@pytest.mark.parametrize("before", [False, True])
def test_no_time_is_lost_on_denormal_numbers(before):
    halves = []

    class Watch(nn.Linear):
        def forward(self, x):
            halves.extend([float(torch.tensor(1e-39) * 0.5)] * self.training)  # not for the inputs checked before
            return super().forward(x)

    x, y = torch.rand(100, 4), torch.arange(100) % 3
    settings = TrainingSettings(epochs=1, holdout=0)
    torch.set_flush_denormal(before)
    try:
        train(Watch(4, 3), (x, y), noise=Gaussian(0.5), settings=settings, progress=False)
        assert set(halves) == {0.0}
        assert (float(torch.tensor(1e-39) * 0.5) == 0.0) == before
    finally:
        torch.set_flush_denormal(False)
