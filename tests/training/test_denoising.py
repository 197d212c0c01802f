"""Training denoisers: losses by hand, frozen classifiers, counted questions, resumption, refusals."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import safetensors
import torch
from torch import nn

from smoothcert import Cohen, Gaussian, Smoothed, data, models
from smoothcert.classifiers.denoised import Denoised, denoised_ensemble
from smoothcert.models import CheckpointInfo, load_checkpoint, load_denoiser
from smoothcert.models.sources.diffusion import DiffusionDenoiser
from smoothcert.training import State, TrainingSettings, finetune, train, train_denoiser, train_diffusion
from smoothcert.training.denoising import Denoising, Pupil
from smoothcert.training.diffusion import NoisePrediction
from smoothcert.types import RunError, SmoothcertError, UsageError

INFO = CheckpointInfo.of("dncnn-small", sigma=0.5)


class Scale(nn.Module):
    """A denoiser with one weight."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x):
        return self.factor * x


class Linear(nn.Module):
    """A classifier with batch normalisation, whose statistics would move in training mode."""

    def __init__(self, seed=0, classes=3):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.norm = nn.BatchNorm2d(1)
        self.head = nn.Linear(16, classes)
        with torch.no_grad():
            self.head.weight.normal_(generator=generator)
            self.head.bias.copy_(-self.head.weight.sum(dim=1) / 2)  # so that no class wins at mid-grey

    def forward(self, x):
        return self.head(self.norm(x).flatten(1))


class Service:
    """A black-box classifier that counts how often it is asked about each input; it may break down."""

    def __init__(self, inner, last=math.inf):
        self.inner, self.last, self.asked = inner.eval(), last, []

    def __call__(self, x):
        assert not torch.is_grad_enabled()
        if len(self.asked) + len(x) > self.last:
            raise ConnectionError("the service is down")
        self.asked += [tuple(row.flatten().tolist()) for row in x]
        return nn.functional.one_hot(self.inner(x).argmax(1), 3).float()


def images(count=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand((count, 1, 4, 4), generator=generator), torch.arange(count) % 3


def short(**changes):
    return TrainingSettings(**{"epochs": 2, "batch_size": 16, "rate": 0.01, "holdout": 0, "votes": 10, **changes})


def small():
    torch.manual_seed(0)
    return models.build_denoiser("dncnn-small")


def values(module):
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def quiet(denoiser, dataset, noise=None, **arguments):
    return train_denoiser(denoiser, dataset, noise or Gaussian(0.5), progress=False, **arguments)


class TestLosses:
    """Against NumPy, on the noise that the state draws."""

    def noisy(self, x):
        return State(generator=torch.Generator().manual_seed(3)).noisy(Gaussian(0.5), x)[0].numpy()

    def loss(self, method, pupil, x, y, **settings):
        state = State(generator=torch.Generator().manual_seed(3), **settings)
        return method(pupil, x, y, Gaussian(0.5), state)

    def test_squared_error_in_units_of_the_noise(self):
        x, y = images(10)
        denoiser = Scale(0.7)
        loss = self.loss(Denoising(mse_epochs=1), Pupil(denoiser, []), x, y, epoch=0.5)
        noisy = self.noisy(x).astype(np.float64)
        error = 0.7 * noisy - x.numpy()
        assert loss.item() == pytest.approx((error**2).sum() / (10 * 16 * 0.25), rel=1e-5)
        loss.backward()
        assert denoiser.factor.grad.item() == pytest.approx(2 * (error * noisy).sum() / (10 * 16 * 0.25), rel=1e-4)

    def by_hand(self, head, x, classes):
        """The mean cross-entropy of 0.7 times the noisy inputs, and its slope by the factor 0.7."""
        w, b = (weight.detach().double().numpy() for weight in head.parameters())
        noisy = self.noisy(x).reshape(len(x), -1).astype(np.float64)
        logits = 0.7 * noisy @ w.T + b
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        error = p - np.eye(3)[classes]
        return -np.log((p * np.eye(3)[classes]).sum(axis=1)).mean(), (error * (noisy @ w.T)).sum(axis=1).mean()

    def test_cross_entropy_to_the_teachers_clean_decision(self):
        x, y = images(10)
        teacher = nn.Sequential(nn.Flatten(), Linear(seed=1).head)
        clean = teacher(x).argmax(1).numpy()
        assert len(set(clean)) > 1
        denoiser = Scale(0.7)
        loss = self.loss(Denoising(mse_epochs=1), Pupil(denoiser, [teacher]), x, y, epoch=1.0)
        expected, slope = self.by_hand(teacher[1], x, clean)
        assert loss.item() == pytest.approx(expected, rel=1e-5)
        loss.backward()
        assert denoiser.factor.grad.item() == pytest.approx(slope, rel=1e-4)

    def test_cross_entropy_to_decisions_that_were_asked_for(self):
        x, y = images(10)
        teacher = nn.Sequential(nn.Flatten(), Linear(seed=1).head)
        asked = (torch.arange(10) * 2) % 3
        method = Denoising(mse_epochs=0, asked=True)
        loss = self.loss(method, Pupil(Scale(0.7), [teacher]), x, y, soft_labels=asked)
        assert loss.item() == pytest.approx(self.by_hand(teacher[1], x, asked.numpy())[0], rel=1e-5)
        with pytest.raises(UsageError, match="needs a soft label for each input"):
            self.loss(method, Pupil(Scale(0.7), [teacher]), x, y)

    def test_every_surrogate_gets_its_turn(self):
        class Sure(nn.Module):
            """Logit k for the first class and 0 for two others: the cross-entropy log(1 + 2e⁻ᵏ) tells which it was."""

            def __init__(self, k):
                super().__init__()
                self.k = k

            def forward(self, x):
                return torch.tensor([[self.k, 0.0, 0.0]]).expand(len(x), 3) + 0 * x.sum()

        x, y = images(2)
        pupil = Pupil(Scale(), [Sure(k) for k in (0.0, 1.0, 2.0)])
        state = State(generator=torch.Generator().manual_seed(0), soft_labels=torch.zeros(2, dtype=torch.long))
        method = Denoising(mse_epochs=0, asked=True)
        losses = [round(method(pupil, x, y, Gaussian(0.5), state).item(), 4) for _ in range(300)]
        for k in range(3):
            assert 65 < losses.count(round(math.log(1 + 2 * math.exp(-k)), 4)) < 135


def test_finds_the_optimal_linear_denoiser():
    """For values of mean square t² and noise σ the best factor is t²/(t² + σ²) (Wiener)."""
    x = 0.8 * torch.randn((600, 1, 4, 4), generator=torch.Generator().manual_seed(0))
    denoiser = Scale()
    settings = TrainingSettings(epochs=10, batch_size=50, rate=0.05, weight_decay=0.0)
    history = quiet(denoiser, (x, torch.zeros(600, dtype=torch.long)), Gaussian(0.5), settings=settings)
    square = float((x**2).mean())
    assert denoiser.factor.item() == pytest.approx(square / (square + 0.25), abs=0.01)
    assert history[-1]["loss"] == pytest.approx(square / (square + 0.25), abs=0.02)  # a²σ² + (1−a)²t², over σ²


@pytest.mark.parametrize("objective", ["mse", "stability", "mse-then-stability"])
def test_classifier_is_left_as_it_was(objective):
    classifier = Linear().train()
    classifier.head.bias.requires_grad_(False)
    before, denoiser = values(classifier), small()
    fresh = values(denoiser)
    history = quiet(denoiser, images(), classifier=classifier, objective=objective, settings=short(holdout=10))
    assert same(before, values(classifier))
    assert all(module.training for module in classifier.modules())
    assert [weight.requires_grad for weight in classifier.parameters()] == [True, True, True, False]
    assert all(weight.grad is None for weight in classifier.parameters())
    assert all(weight.requires_grad for weight in denoiser.parameters())
    assert not any(module.training for module in denoiser.modules())
    assert not same(fresh, values(denoiser))
    assert all({"accuracy", "certified"} <= row.keys() for row in history)


def test_without_a_classifier_nothing_is_kept_out_and_judged():
    seen = []

    class Watch(Scale):
        def forward(self, x):
            seen.append(len(x))
            return super().forward(x)

    (row,) = quiet(Watch(), images(), settings=short(epochs=1, holdout=20))
    assert row.keys() == {"epoch", "loss", "rate", "seconds"}
    assert sum(seen) == 2 + 60  # two to see whether it keeps the shape


def test_the_second_phase_begins_after_its_epochs():
    calls = []

    class Watch(Linear):
        def forward(self, x):
            calls.append(torch.is_grad_enabled())
            return super().forward(x)

    arguments = {"classifier": Watch(), "objective": "mse-then-stability"}
    quiet(Scale(), images(), settings=short(epochs=3), mse_epochs=2, **arguments)
    assert calls.count(True) == 1 + 4  # whether it has gradients, and one epoch of 60 inputs, 16 at a time
    calls.clear()
    quiet(Scale(), images(), settings=short(epochs=4), **arguments)
    assert calls.count(True) == 1 + 8


def test_stability_equals_a_plain_loop_over_the_denoisers_weights():
    x, y = images(48)
    classifier = Linear().eval()
    settings = short(epochs=1, schedule="step", rate=0.1, weight_decay=0.0, momentum=0.0, nesterov=False)
    denoiser, reference = Scale(0.8), Scale(0.8)
    quiet(denoiser, (x, y), classifier=classifier, objective="stability", settings=settings)
    from smoothcert.training.loop import _mixed

    seed = _mixed(0, 0)
    noise = torch.Generator().manual_seed(seed)
    for batch in torch.randperm(48, generator=torch.Generator().manual_seed(seed)).split(16):
        noisy = x[batch] + torch.empty(x[batch].shape).normal_(0, 0.5, generator=noise)
        loss = nn.functional.cross_entropy(classifier(reference(noisy)), classifier(x[batch]).argmax(1))
        (slope,) = torch.autograd.grad(loss, [reference.factor])
        with torch.no_grad():
            reference.factor -= 0.1 * slope
    assert denoiser.factor.item() == pytest.approx(reference.factor.item(), abs=1e-6)


class TestAsking:
    def test_each_input_is_asked_about_once_however_long_training_is(self):
        x, y = images()
        service = Service(Linear(1))
        arguments = {"surrogates": [Linear(2), Linear(3)], "objective": "stability"}
        quiet(small(), (x, y), classifier=service, settings=short(epochs=3, holdout=10), **arguments)
        assert sorted(service.asked) == sorted(tuple(row.flatten().tolist()) for row in x)

    def test_squared_error_asks_nothing(self):
        service = Service(Linear(1))
        quiet(small(), images(), classifier=service, settings=short(holdout=10))
        quiet(small(), images(), classifier=service, surrogates=[Linear(2)], settings=short(holdout=10))
        assert service.asked == []

    def test_the_targets_are_the_services_and_the_gradients_the_surrogates(self):
        """A service with the classes in another order teaches something else than the surrogate's own decisions."""

        class Turned(Linear):
            def forward(self, x):
                return super().forward(x).roll(1, dims=1)

        found = []
        for classifier in (Service(Turned(2)), Service(Linear(2)), Linear(2)):
            denoiser = small()
            surrogates = [Linear(2)] if isinstance(classifier, Service) else []
            arguments = {"classifier": classifier, "surrogates": surrogates, "objective": "stability"}
            quiet(denoiser, images(), settings=short(), **arguments)
            found.append(values(denoiser))
        turned, asked, gradients = found
        assert same(asked, gradients)  # a perfect surrogate is as good as the classifier itself
        assert not same(turned, asked)

    def test_a_module_beside_surrogates_is_only_asked(self):
        class Watch(Linear):
            def forward(self, x):
                assert not torch.is_grad_enabled()
                self.asked = getattr(self, "asked", 0) + len(x)
                assert not self.training
                return super().forward(x)

        classifier = Watch(1)
        arguments = {"surrogates": [Linear(2)], "objective": "mse-then-stability"}
        quiet(Scale(), images(), classifier=classifier, settings=short(epochs=4, holdout=10), **arguments)
        assert classifier.asked == 60
        assert classifier.training

    def test_answers_are_kept_in_the_folder(self, tmp_path):
        service = Service(Linear(1), last=40)
        settings = {"folder": tmp_path, "info": INFO, "objective": "stability", "settings": short()}
        with pytest.raises(ConnectionError):
            quiet(small(), images(), classifier=service, surrogates=[Linear(2)], **settings)
        assert len(service.asked) == 32
        service.last = math.inf
        resumed = small()
        quiet(resumed, images(), classifier=service, surrogates=[Linear(2)], **settings)
        assert len(service.asked) == len(set(service.asked)) == 60
        quiet(small(), images(), classifier=service, surrogates=[Linear(2)], **settings)
        assert len(service.asked) == 60
        whole = small()
        quiet(whole, images(), classifier=service, surrogates=[Linear(2)], objective="stability", settings=short())
        assert same(values(whole), values(resumed))

    def test_kept_answers_to_other_questions_are_refused(self, tmp_path):
        settings = {"folder": tmp_path, "info": INFO, "objective": "stability", "settings": short(epochs=1)}
        arguments = {"classifier": Service(Linear(1)), "surrogates": [Linear(2)], **settings}
        quiet(small(), images(), **arguments)
        with pytest.raises(RunError, match=r"decisions holds a run with another configuration \(data\.sha256"):
            quiet(small(), images(seed=1), **arguments)
        with pytest.raises(RunError, match=r"data\.size is 60 there and 59 here"):
            quiet(small(), images(59), **arguments)

    def test_decisions_of_an_earlier_version_are_refused(self, tmp_path):
        (tmp_path / "decisions.safetensors").touch()
        settings = {"folder": tmp_path, "info": INFO, "objective": "stability", "settings": short(epochs=1)}
        with pytest.raises(UsageError, match="written by an earlier version; delete it to classify again"):
            quiet(small(), images(), classifier=Service(Linear(1)), surrogates=[Linear(2)], **settings)

    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            (lambda x: torch.zeros(len(x), 4), r"must return 3 logits for each of 16 inputs.*returned \(16, 4\)"),
            (lambda x: torch.zeros(len(x)), r"must return 3 logits .*returned \(16,\)"),
            (lambda x: x.numpy(), "must return 3 logits .*returned ndarray"),
            (lambda x: torch.full((len(x), 3), math.nan), "not finite for a clean input"),
        ],
    )
    def test_answers_that_do_not_fit(self, tmp_path, answer, message):
        arguments = {"surrogates": [Linear()], "objective": "stability", "settings": short()}
        with pytest.raises(SmoothcertError, match=message):
            quiet(small(), images(), classifier=answer, folder=tmp_path / "x", info=INFO, **arguments)
        assert not (tmp_path / "x").exists()


class TestFolder:
    @pytest.mark.parametrize("extra", [{}, {"ema": 0.9}])
    def test_a_training_that_was_stopped_ends_with_the_same_weights(self, tmp_path, monkeypatch, extra):
        from smoothcert.training import loop

        arguments = {
            "classifier": Linear(),
            "objective": "mse-then-stability",
            "settings": short(epochs=4, holdout=12, **extra),
            "info": INFO,
        }
        whole = small()
        quiet(whole, images(), folder=tmp_path / "a", **arguments)
        steps, original = [], loop._Training._step

        def step(self, *args, **kwargs):
            steps.append(1)
            if len(steps) == 8:  # in the middle of the third epoch, the first with the second loss
                raise KeyboardInterrupt
            return original(self, *args, **kwargs)

        monkeypatch.setattr(loop._Training, "_step", step)
        with pytest.raises(KeyboardInterrupt):
            quiet(small(), images(), folder=tmp_path / "b", **arguments)
        monkeypatch.undo()
        resumed = models.build_denoiser("dncnn-small")  # other weights, which the saved ones replace
        history = quiet(resumed, images(), folder=tmp_path / "b", **arguments)
        assert [row["epoch"] for row in history] == [1, 2, 3, 4]
        assert same(values(whole), values(resumed))
        for name in ("best.safetensors", "last.safetensors"):
            found = [values(load_denoiser(tmp_path / folder / name)) for folder in "ab"]
            assert same(*found)
        assert same(values(whole), found[0])

    def test_checkpoints_say_what_they_are(self, tmp_path):
        quiet(small(), images(), classifier=Linear(), folder=tmp_path, info=INFO, settings=short(epochs=1))
        info = load_checkpoint(tmp_path).info
        assert (info.architecture, info.input_shape, info.num_classes, info.sigma) == ("dncnn-small", (1, 4, 4), 3, 0.5)
        assert info.extra["kind"] == "denoiser"
        assert info.extra["objective"] == "mse"
        with safetensors.safe_open(tmp_path / "last.safetensors", framework="pt") as content:
            assert set(content.keys()) == set(small().state_dict())
            assert json.loads(content.metadata()["smoothcert"])["extra"]["epoch"] == 1

    def test_another_classifier_is_another_training(self, tmp_path):
        arguments = {"objective": "stability", "folder": tmp_path, "info": INFO, "settings": short(epochs=1)}
        quiet(small(), images(), classifier=Linear(1), **arguments)
        with pytest.raises(UsageError, match=r"holds another training \(it differs in method\)"):
            quiet(small(), images(), classifier=Linear(2), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": "stabilty"}, "unknown objective 'stabilty'; did you mean 'stability'"),
        ({"objective": "mse-stability"}, "did you mean .*'mse-then-stability'"),
        ({"objective": "stability"}, "the objective stability needs a classifier; pass one, or use mse"),
        ({"objective": "mse-then-stability", "surrogates": [Linear()]}, "needs a classifier"),
        ({"objective": "stability", "classifier": lambda x: x}, "a black-box classifier has none; pass surrogates"),
        (
            {"objective": "stability", "classifier": lambda x: x, "surrogates": [Linear(), Linear(classes=4)]},
            "the surrogates have 3 and 4 classes",
        ),
        (
            {"objective": "stability", "classifier": Service(Linear()), "surrogates": [Linear(classes=4)]},
            r"must return 4 logits for each of 16 inputs, as the surrogates do, but returned \(16, 3\)",
        ),
        ({"surrogates": [lambda x: x]}, "a surrogate must be a torch.nn.Module with gradients, got function"),
        ({"classifier": nn.Identity()}, r"a row of logits for each of 2 inputs, but returned shape \(2, 1, 4, 4\)"),
        (
            {"classifier": Linear(classes=2), "settings": short(holdout=10)},
            "the classifier has 2 classes, but the labels 3; set holdout=0",
        ),
        ({"mse_epochs": 1}, "mse_epochs is for mse-then-stability, not for mse"),
        (
            {"objective": "mse-then-stability", "classifier": Linear(), "mse_epochs": 2},
            "must leave epochs for both objectives, got 2 of 2",
        ),
        (
            {"objective": "mse-then-stability", "classifier": Linear(), "settings": short(epochs=1)},
            "must leave epochs for both objectives, got 0 of 1",
        ),
        ({"denoiser": nn.AvgPool2d(2)}, r"must keep the shape of a batch, but made \(2, 1, 2, 2\) of \(2, 1, 4, 4\)"),
        (
            {"folder": "x", "info": CheckpointInfo.of("lenet")},
            r"needs info of a denoiser \(dncnn, .*\), got lenet",
        ),
        ({"folder": "x"}, "needs info"),
        ({"dataset": images(0)}, "there are no inputs to train on"),
    ],
)
def test_refuses(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = {"denoiser": Scale(), "dataset": images(), "settings": short(), **arguments}
    with pytest.raises(UsageError, match=message):
        quiet(**arguments)
    assert not any(tmp_path.iterdir())


def test_digits_a_denoiser_makes_a_classifier_certifiable():
    """Trained without noise it is certified on few digits, and behind a denoiser on clearly more."""
    noise, digits = Gaussian(0.5), data.load("digits", split="train")
    torch.manual_seed(0)
    classifier = models.build("digits-cnn")
    settings = TrainingSettings(epochs=6, batch_size=64, rate=0.1, holdout=0)
    train(classifier, digits, noise=Gaussian(1e-6), settings=settings, progress=False)  # as good as no noise
    denoiser = small()
    settings = TrainingSettings(epochs=24, batch_size=64, rate=0.1, clip=1.0, holdout=0)
    arguments = {"classifier": classifier, "objective": "mse-then-stability", "mse_epochs": 8}
    quiet(denoiser, digits, noise, settings=settings, **arguments)
    x, y = data.load("digits", split="test").arrays()

    def certified(model):
        smoothed, procedure = Smoothed(model, noise), Cohen(n0=20, n=200)
        found = [smoothed.certify(x[index], procedure, index=index, seed=0) for index in range(80)]
        return sum(
            given.label == label and given.radius >= 0.25 for given, label in zip(found, y.tolist(), strict=False)
        )

    bare, denoised = certified(classifier), certified(Denoised(classifier, denoiser))
    assert bare < 24
    assert denoised >= bare + 8


class TestFinetune:
    """A classifier trained behind a frozen denoiser."""

    def tuned(self, classifier, denoiser, **arguments):
        return finetune(classifier, denoiser, images(), Gaussian(0.5), progress=False, **arguments)

    def trained_denoiser(self, seed=0):
        torch.manual_seed(seed)
        denoiser = models.build_denoiser("dncnn-small").train()  # its batch statistics would move
        with torch.no_grad():
            for weight in denoiser.parameters():
                weight.add_(0.1 * torch.randn(weight.shape))
        return denoiser

    def test_only_the_classifier_changes(self):
        classifier, denoiser = Linear(), self.trained_denoiser()
        before, fixed = values(classifier), values(denoiser)
        history = self.tuned(classifier, denoiser, settings=short(holdout=10, ema=0.9))
        assert same(fixed, values(denoiser))
        assert all(module.training for module in denoiser.modules())
        assert all(weight.requires_grad and weight.grad is None for weight in denoiser.parameters())
        assert not any(torch.equal(before[name], value) for name, value in values(classifier).items())
        assert not classifier._forward_pre_hooks
        assert not any("denoiser" in name for name in classifier.state_dict())
        assert {"accuracy", "certified"} <= history[-1].keys()

    def test_it_equals_training_the_denoised_classifier(self):
        classifier, reference, denoiser = Linear(), Linear(), self.trained_denoiser().eval().requires_grad_(False)
        whole = Denoised(reference, denoiser, frozen=False)
        history = self.tuned(classifier, denoiser, settings=short(holdout=10))
        settings = short(holdout=10)
        expected = train(FixedDenoiser(whole), images(), noise=Gaussian(0.5), settings=settings, progress=False)
        assert [row["loss"] for row in history] == pytest.approx([row["loss"] for row in expected])
        assert [row["accuracy"] for row in history] == [row["accuracy"] for row in expected]
        for name, value in values(classifier).items():
            torch.testing.assert_close(value, reference.state_dict()[name])

    def test_a_training_that_was_stopped_ends_with_the_same_weights(self, tmp_path, monkeypatch):
        from smoothcert.training import loop

        def build():
            torch.manual_seed(0)
            return models.build("digits-cnn")

        def fit(classifier, folder, denoiser=None):
            x, y = torch.rand((32, 1, 8, 8), generator=torch.Generator().manual_seed(0)), torch.arange(32) % 10
            arguments = {"settings": short(batch_size=8, optimizer="adamw", ema=0.9), "progress": False}
            info = CheckpointInfo.of("digits-cnn", sigma=0.5)
            finetune(
                classifier,
                denoiser or self.trained_denoiser(),
                (x, y),
                Gaussian(0.5),
                folder=tmp_path / folder,
                info=info,
                **arguments,
            )

        whole, steps, original = build(), [], loop._Training._step
        fit(whole, "a")

        def step(self, *args, **kwargs):
            steps.append(1)
            if len(steps) == 6:
                raise KeyboardInterrupt
            return original(self, *args, **kwargs)

        monkeypatch.setattr(loop._Training, "_step", step)
        with pytest.raises(KeyboardInterrupt):
            fit(build(), "b")
        monkeypatch.undo()
        resumed = build()
        fit(resumed, "b")
        assert same(values(whole), values(resumed))
        assert same(values(whole), values(load_checkpoint(tmp_path / "b" / "last.safetensors").model))
        with pytest.raises(UsageError, match="holds another training"):
            fit(build(), "b", self.trained_denoiser(seed=1))


class FixedDenoiser(nn.Module):
    """A denoised classifier whose denoiser stays in evaluation mode."""

    def __init__(self, whole):
        super().__init__()
        self.whole = whole

    def forward(self, x):
        return self.whole(x)

    def train(self, mode=True):
        super().train(mode)
        self.whole.denoiser.eval()
        return self


class TestDiffusion:
    def test_the_loss_in_plain_numpy(self):
        """E‖ε − ε_θ(√ᾱ x + √(1−ᾱ) ε, t)‖² of a network that returns a multiple of its input and step."""
        diffusers = pytest.importorskip("diffusers")
        x, y = images(10)
        seen = []

        def network(state, steps):
            seen.append((state.detach(), steps))
            return 0.3 * state + steps.reshape(-1, 1, 1, 1) / 1000

        loss = NoisePrediction()(network, x, y, Gaussian(9.0), State(generator=torch.Generator().manual_seed(3)))
        generator = torch.Generator().manual_seed(3)
        steps = (1000 * torch.rand((1, 10), generator=generator)[0]).long()
        unit = torch.empty((10, 1, 4, 4)).normal_(generator=generator)
        scheduler = diffusers.DDPMScheduler(beta_schedule="squaredcos_cap_v2")
        state = scheduler.add_noise(2 * x - 1, unit, steps)
        torch.testing.assert_close(seen[0][0], state)
        assert torch.equal(seen[0][1], steps)
        error = 0.3 * state.numpy() + steps.numpy().reshape(-1, 1, 1, 1) / 1000 - unit.numpy()
        assert loss.item() == pytest.approx((error**2).mean(), rel=1e-4)

    def test_a_training_in_a_folder_is_continued_and_loads_as_a_denoiser(self, tmp_path):
        pytest.importorskip("diffusers")
        torch.manual_seed(0)
        network = models.build_denoiser("diffusion", in_channels=1)
        x = torch.rand((40, 1, 1, 1), generator=torch.Generator().manual_seed(0)).expand(40, 1, 4, 4).contiguous()
        settings = TrainingSettings(optimizer="adamw", rate=0.005, epochs=3, batch_size=8, holdout=20)
        history = train_diffusion(
            network, (x, torch.zeros(40).long()), settings=settings, folder=tmp_path, progress=False
        )
        assert history[-1]["loss"] < history[0]["loss"] < 1  # that of a network that returns zeros
        other = models.build_denoiser("diffusion", in_channels=1)
        again = train_diffusion(other, (x, torch.zeros(40).long()), settings=settings, folder=tmp_path, progress=False)
        assert again == history
        assert same(values(other), values(network))
        denoiser = load_denoiser(tmp_path, level=0.5)
        assert same(values(denoiser.network), values(network))

    def test_sides_that_cannot_be_halved(self):
        with pytest.raises(UsageError, match=r"height and width are multiples of 2, got \[5, 4\]"):
            train_diffusion(nn.Identity(), (torch.rand(3, 1, 5, 4), torch.zeros(3).long()))


class Ideal(nn.Module):
    """The diffusion model that is exact for a finite set of images: ε from the posterior mean of x₀ given x_t."""

    def __init__(self, images, alphas):
        super().__init__()
        self.register_buffer("images", 2 * images.flatten(1) - 1)
        self.register_buffer("alphas", alphas.float())

    def forward(self, state, steps):
        alpha = self.alphas[steps][:, None]
        flat = state.flatten(1)
        distance = torch.cdist(flat / alpha.sqrt(), self.images) ** 2
        mean = torch.softmax(-distance * alpha / (1 - alpha) / 2, dim=1) @ self.images
        return ((flat - alpha.sqrt() * mean) / (1 - alpha).sqrt()).reshape(state.shape)


def test_digits_a_perfect_diffusion_model_makes_a_classifier_certifiable():
    """One step, and votes over three images drawn in three steps, in front of a classifier that never saw noise."""
    noise, digits = Gaussian(0.5), data.load("digits", split="train")
    torch.manual_seed(0)
    classifier = models.build("digits-cnn")
    settings = TrainingSettings(epochs=6, batch_size=64, rate=0.1, holdout=0)
    train(classifier, digits, noise=Gaussian(1e-6), settings=settings, progress=False)
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)
    network = Ideal(digits.arrays()[0], alphas)
    drawn = [DiffusionDenoiser(network, alphas, 0.5, steps=3, seed=seed) for seed in range(3)]
    x, y = data.load("digits", split="test").arrays()

    def certified(model):
        smoothed, procedure = Smoothed(model, noise, runtime="eager"), Cohen(n0=20, n=100)
        found = [smoothed.certify(x[index], procedure, index=index, seed=0) for index in range(30)]
        return sum(
            given.label == label and given.radius >= 0.25 for given, label in zip(found, y.tolist(), strict=False)
        )

    bare = certified(classifier)
    assert bare < 9
    assert certified(Denoised(classifier, DiffusionDenoiser(network, alphas, 0.5))) >= bare + 8
    assert certified(denoised_ensemble(classifier, drawn, "hard")) >= bare + 8
