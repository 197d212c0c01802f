"""One's own modules, datasets, optimisers and schedulers train, resume and load again; careless use is one sentence."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from smoothcert import Cohen, Gaussian, Smoothed, data, models
from smoothcert.models import describe, load_model, open_model
from smoothcert.models.registry import MODELS, build, registered_name
from smoothcert.training import METHODS, TrainingSettings, loop, train
from smoothcert.training.resume import FILE, packed, unpacked
from smoothcert.training.sources import Source
from smoothcert.types import CheckpointError, SmoothcertError, UsageError

NOISE = Gaussian(0.25)
FAST = {"epochs": 3, "batch_size": 16, "holdout": 8, "votes": 10, "progress": False}


class Net(nn.Module):
    """A network of vectors, not known to the package."""

    def __init__(self, width=8, num_classes=3):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU())
        self.head = nn.Linear(width, num_classes)

    def forward(self, x):
        return self.head(self.body(x))


class Blobs(Dataset):
    """Items made on access: vectors around the corners of a cube, as arrays of double precision."""

    def __init__(self, count=64, convert=lambda x: x):
        self.count, self.convert = count, convert

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = np.random.default_rng(index)
        label = index % 3
        return self.convert(np.eye(4)[label] + 0.1 * generator.normal(size=4)), label


def fresh(seed=0, **options):
    torch.manual_seed(seed)
    return Net(**options)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_vectors_of_an_own_dataset_train_an_own_module_by_the_name_of_the_method():
    model = fresh()
    history = train(model, Blobs(96), noise=NOISE, method="consistency", **{**FAST, "epochs": 12}, rate=0.1)
    assert history[-1]["accuracy"] == 1
    assert history[-1]["loss"] < history[0]["loss"]
    assert Smoothed(model, NOISE).certify(torch.eye(4)[1], Cohen(n=200)).label == 1


def test_items_may_be_tensors_arrays_or_images():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    image = torch.from_numpy(pixels).permute(2, 0, 1) / 255
    device = torch.device("cpu")
    for x in (image, image.numpy(), image.double().numpy(), Image.fromarray(pixels)):
        (found, labels), *_ = Source([(x, np.int64(1))], device).batches([torch.tensor([0])], 0)
        assert torch.equal(found[0], image)
        assert labels.tolist() == [1]
    grey = Source([(Image.fromarray(pixels[..., 0]), 0)], device)
    assert torch.equal(next(grey.batches([torch.tensor([0])], 0))[0][0], image[:1])
    for pair in ((image[None].numpy(), np.array([1])), TensorDataset(image[None], torch.tensor([1]))):
        assert torch.equal(next(Source(pair, device).batches([torch.tensor([0])], 0))[0][0], image)


def test_random_transforms_of_a_dataset_are_repeated():
    noisy = Blobs(64, convert=lambda x: torch.from_numpy(x) + torch.randn(4))
    found = []
    for _ in range(2):
        model = fresh()
        train(model, noisy, noise=NOISE, **{**FAST, "holdout": 0})
        found.append(weights(model))
    assert torch.equal(*found)


class Stop(Exception):
    pass


OPTIMIZERS = {
    "named": lambda model: {"optimizer": "adamw", "schedule": "cosine", "rate": 0.01},
    "made": lambda model: {
        "optimizer": lambda weights: torch.optim.AdamW(weights, lr=0.01, amsgrad=True),
        "scheduler": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [1, 2], gamma=0.5),
    },
    "own rate": lambda model: {"optimizer": torch.optim.RMSprop(model.parameters(), lr=0.01), "schedule": "constant"},
}


def objects(model):
    optimizer = torch.optim.AdamW(
        [{"params": model.body.parameters(), "lr": 0.02}, {"params": model.head.parameters()}], lr=0.01
    )
    return {"optimizer": optimizer, "scheduler": lr_scheduler.OneCycleLR(optimizer, [0.1, 0.05], total_steps=4)}


def plateau(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return {"optimizer": optimizer, "scheduler": lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10)}


def test_a_training_of_an_earlier_version_is_continued(tmp_path):
    """Earlier versions stored the momentum by the name of the weight, and neither the optimiser nor the dataset."""
    settings = {**FAST, "epochs": 4, "schedule": "constant"}
    whole, model = fresh(), fresh()
    train(whole, Blobs(), noise=NOISE, folder=tmp_path / "a", **settings)
    train(model, Blobs(), noise=NOISE, folder=tmp_path / "b", **{**settings, "epochs": 2})
    file = tmp_path / "b" / FILE
    with safetensors.safe_open(file, framework="pt") as content:
        (key, saved), tensors = *content.metadata().items(), {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    saved = json.loads(saved)
    momenta = [name for name in tensors if name.startswith("optimizer/")]
    names = [f"momentum/{name}" for name, _ in model.named_parameters()]
    assert len(momenta) == len(names)
    old = dict(zip(names, (tensors.pop(name) for name in momenta), strict=True))
    identity = {name: value for name, value in saved["identity"].items() if name not in ("dataset", "optimizer")}
    state = {"identity": {**identity, "epochs": 4}, "progress": saved["progress"]}
    safetensors.torch.save_file(tensors | old, file, {key: json.dumps(state)})
    train(model, Blobs(), noise=NOISE, folder=tmp_path / "b", **settings)
    assert torch.equal(weights(whole), weights(model))


@pytest.mark.parametrize("kind", [*OPTIMIZERS.values(), objects, plateau], ids=[*OPTIMIZERS, "objects", "plateau"])
def test_a_stopped_training_ends_with_the_same_weights(tmp_path, monkeypatch, kind):
    settings = {**FAST, "epochs": 4}
    whole = fresh()
    history = train(whole, Blobs(), noise=NOISE, folder=tmp_path / "a", **settings, **kind(whole))
    original = loop._Training._epoch

    def epoch(self, number, *rest):
        if number == 2:
            raise Stop
        return original(self, number, *rest)

    monkeypatch.setattr(loop._Training, "_epoch", epoch)
    model = fresh()
    with pytest.raises(Stop):
        train(model, Blobs(), noise=NOISE, folder=tmp_path / "b", **settings, **kind(model))
    monkeypatch.undo()
    model = fresh(seed=9)
    again = train(model, Blobs(), noise=NOISE, folder=tmp_path / "b", **settings, **kind(model))
    assert torch.equal(weights(whole), weights(model))
    assert [row["rate"] for row in again] == [row["rate"] for row in history]
    assert [row["loss"] for row in again] == [row["loss"] for row in history]


def test_schedulers_are_stepped_after_each_epoch_and_the_schedule_scales_an_own_optimizer():
    model = fresh()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    history = train(
        model, Blobs(), noise=NOISE, optimizer=optimizer, scheduler=lr_scheduler.StepLR(optimizer, 1, 0.5), **FAST
    )
    assert [row["rate"] for row in history] == [0.4, 0.2, 0.1]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    history = train(model, Blobs(), noise=NOISE, optimizer=optimizer, schedule="step", milestones=(2,), **FAST)
    assert [row["rate"] for row in history] == pytest.approx([0.4, 0.4, 0.04])
    assert optimizer.param_groups[0]["lr"] == 0.4  # it can be used again


def test_a_scheduler_that_lowers_the_rate_tells_the_method():
    seen = []

    class Watch(METHODS["gaussian"]):
        def loss(self, model, x, y, noise, state):
            seen.append((int(state.epoch), state.rate_dropped))
            return super().loss(model, x, y, noise, state)

    train(
        fresh(),
        Blobs(16),
        noise=NOISE,
        method=Watch(),
        optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1),
        scheduler=lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2], gamma=0.1),
        **{**FAST, "holdout": 0},
    )
    assert seen == [(0, False), (1, False), (2, True)]


def test_another_optimizer_or_dataset_is_another_training(tmp_path):
    def attempt(**changes):
        model = fresh()
        arguments = {"optimizer": torch.optim.Adam(model.parameters(), lr=changes.pop("rate", 0.01)), **changes}
        return train(model, named, noise=NOISE, folder=tmp_path, **FAST, **arguments)

    named = Blobs()
    named.name = "blobs"
    attempt()
    with pytest.raises(UsageError, match=r"it differs in optimizer\)"):
        attempt(rate=0.02)
    with pytest.raises(UsageError, match=r"it differs in optimizer, schedule\)"):
        attempt(scheduler=lambda optimizer: lr_scheduler.ConstantLR(optimizer))
    named.name = "others"
    with pytest.raises(UsageError, match=r"it differs in dataset\)"):
        attempt()


def test_states_are_stored_as_tensors_and_json_and_only_numbers_may_differ():
    tensors = {}
    state = {"state": {0: {"step": torch.tensor(3.0), "best": None}}, "groups": [{"betas": (0.9, 0.99), "on": True}]}
    stored = packed(state, "x", tensors)
    assert unpacked(stored, state, tensors) == state
    like = {"state": {0: {"step": torch.tensor(0.0), "best": 1.5}}, "groups": [{"betas": (0.5, 0.5), "on": True}]}
    with pytest.raises(ValueError, match=r"None is not 1\.5"):
        unpacked(stored, like, tensors)
    like["state"][0]["best"] = None
    assert unpacked(stored, like, tensors)["groups"] == [{"betas": (0.9, 0.99), "on": True}]
    for wrong in (False, None, "yes", {}, []):
        with pytest.raises((ValueError, TypeError, KeyError)):
            unpacked(stored, {**state, "groups": [{"betas": (0.9, 0.99), "on": wrong}]}, tensors)
    with pytest.raises(ValueError, match="shape"):
        unpacked(stored, {**state, "state": {0: {"step": torch.zeros(2), "best": None}}}, tensors)
    for stored, like in (([1, 0], [0, 1]), (1, 0)):  # weights in another order
        with pytest.raises(ValueError, match=r"names differ|is not"):
            unpacked(packed({"params": stored}, "x", {}), {"params": like}, {})
    with pytest.raises(ValueError, match="is not"):
        unpacked(packed({"lr": 1e38}, "x", {}), {"lr": 0.1}, {})
    with pytest.raises(UsageError, match=r"optimizer holds a object \(optimizer/hook\).*without a folder"):
        packed({"hook": object()}, "optimizer", {})


def test_a_damaged_state_is_refused(tmp_path):
    settings = {**FAST, "epochs": 2, "optimizer": "adam"}
    train(fresh(), Blobs(), noise=NOISE, folder=tmp_path, **settings)
    content = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(content.replace(b"exp_avg_sq", b"exp_avg_xx"))
    with pytest.raises(SmoothcertError, match="does not match the model or the optimizer; delete it"):
        train(fresh(), Blobs(), noise=NOISE, folder=tmp_path, **settings)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder of an own model, and the model."""
    folder, model = tmp_path_factory.mktemp("own"), fresh(width=5)
    train(model, Blobs(), noise=NOISE, method=METHODS["stability"](lam=1.0), folder=folder, **FAST)
    return folder, model


def test_checkpoints_record_the_training_and_load_with_an_architecture(trained):
    folder, model = trained
    info = describe(folder).info
    assert info.architecture.endswith("test_own_models:Net")
    assert (info.num_classes, info.input_shape, info.sigma) == (3, (4,), 0.25)
    assert info.extra["training"]["method"] == {"name": "stability", "lam": 1.0}
    assert info.extra["training"]["settings"]["epochs"] == 3
    x = torch.rand(6, 4)
    last, given = folder / "last.safetensors", fresh(width=5)
    before = weights(given).clone()
    for architecture in (given, lambda: Net(5), lambda num_classes: Net(5, num_classes)):
        loaded = open_model(last, architecture=architecture)
        assert torch.equal(loaded.model(x), model(x))
        assert not loaded.model.training
        assert loaded.noise == NOISE.config()
        assert loaded.num_classes == 3
    assert torch.equal(weights(given), before)  # a copy was loaded


def test_other_architectures_are_refused(trained):
    folder, _ = trained
    with pytest.raises(CheckpointError, match=r"weights of \S+:Net, .*architecture=, .*--arch package.module:factory"):
        load_model(folder)
    with pytest.raises(CheckpointError, match=r"shape \(5, 4\), but \(8, 4\)"):
        load_model(folder, architecture=Net)
    with pytest.raises(CheckpointError, match="other tensors"):
        load_model(folder, architecture=nn.Linear(4, 3))
    with pytest.raises(UsageError, match="is a int, not a name"):
        load_model(folder, architecture=7)
    with pytest.raises((CheckpointError, UsageError), match="input_shape must be"):
        load_model(folder, architecture="lenet")
    with pytest.raises(CheckpointError, match="normalisation None, not"):
        load_model(folder, architecture=lambda: Net(5), normalize="0.5/0.5")


def test_a_model_of_ours_is_recognised_and_normalisation_is_kept(tmp_path):
    torch.manual_seed(0)
    model = build("digits-cnn", normalize="0.5/0.25")
    x, y = data.load("digits", split="train").arrays()
    train(model, (x[:100], y[:100]), noise=NOISE, folder=tmp_path, **{**FAST, "epochs": 1})
    assert describe(tmp_path).info.architecture == "digits-cnn"
    assert torch.allclose(load_model(tmp_path / "last.safetensors")(x[:4]), model(x[:4]), atol=1e-5)
    own = nn.Sequential(models.Normalize([0.5], [0.25]), nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    train(own, (x[:100], y[:100]), noise=NOISE, folder=tmp_path / "own", **{**FAST, "epochs": 1})
    for architecture in (own, own[1]):
        loaded = load_model(tmp_path / "own" / "last.safetensors", architecture=architecture)
        assert torch.equal(loaded(x[:4]), own(x[:4]))


def test_every_architecture_is_recognised():
    for name in MODELS:
        with torch.device("meta"):
            assert registered_name(build(name), MODELS[name].num_classes, MODELS[name].input_shape[0]) == name
    assert registered_name(nn.Linear(1, 2), 2, 1) is None


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


def frozen_net():
    return fresh().requires_grad_(False)


class Soft(Net):
    def forward(self, x):
        return super().forward(x).softmax(dim=1)


X, Y = torch.rand(40, 4), torch.arange(40) % 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"model": fresh().half()}, "weights of the model have the type torch.float16; convert it by model.float()"),
        ({"model": frozen_net()}, "no weight of the model can be trained; call model.requires_grad_(True)"),
        ({"model": lambda x: x}, "only a torch.nn.Module can be trained, not a function"),
        ({"model": nn.Linear(5, 3)}, "the model cannot classify inputs of shape (4,): RuntimeError"),
        ({"model": nn.Flatten(0)}, "no weight of the model"),
        ({"model": nn.Linear(4, 1)}, "must return logits of shape (10, classes) for 10 inputs, not shape (10, 1)"),
        ({"dataset": (X, Y + 1)}, "input 2 has the label 3, but the model has the classes 0 to 2"),
        ({"dataset": Blobs(64), "model": nn.Linear(4, 2)}, "has the label 2, but the model has the classes 0 to 1"),
        ({"dataset": ((X * 255).to(torch.uint8), Y)}, "type torch.uint8; scale them to floats in [0, 1], as x / 255"),
        ({"dataset": Blobs(convert=lambda x: x.astype(int))}, "type torch.int64; scale them"),
        ({"dataset": (X, Y.float())}, "labels must be class numbers, one per input, got torch.float32 of shape (40,)"),
        ({"dataset": DataLoader(TensorDataset(X, Y))}, "DataLoader is not a dataset with a length"),
        ({"dataset": Stream()}, "a Stream "),
        ({"dataset": [(torch.rand(4 + i), 0) for i in range(9)]}, "different shapes, such as (4,) and (5,); resize"),
        ({"dataset": [(torch.rand(4), 0, 1)] * 9}, "not an (input, label) pair"),
        ({"dataset": []}, "there are no inputs to train on"),
        ({"dataset": data.load("digits", split="train"), "model": nn.Sequential(nn.Flatten(), nn.Linear(64, 12))},
         "the model has 12 classes and the dataset 10"),
        ({"augment": "cifar"}, "augment=cifar is for images (channels, height, width), but inputs have the shape (4,)"),
        ({"dataset": (torch.rand(40, 1, 2, 2), Y), "augment": "imagenet"}, "augment=imagenet is for image folders"),
        ({"noise": 0.25}, "noise must be a noise such as Gaussian(0.25), got 0.25"),
        ({"method": METHODS["macer"]}, "method is the class Macer; make a method of it, as Macer()"),
        ({"method": "consistancy"}, "did you mean 'consistency'"),
        ({"method": 3}, "method must be a training method or its name"),
        ({"epoch": 3}, "unknown setting 'epoch'; did you mean 'epochs'"),
        ({"epochs": 0}, "epochs: Input should be greater than or equal to 1"),
        ({"optimizer": "sdg"}, "optimizer: Input should be 'sgd', 'adam' or 'adamw'"),
        ({"optimizer": torch.optim.Adam(fresh().parameters())}, "parameters of another model; make it of model.param"),
        ({"optimizer": lambda weights: 3}, "optimizer must be or make a torch.optim.Optimizer, got a int"),
        ({"optimizer": torch.optim.AdamW, "rate": 0.1}, "rate is not used with your own optimizer; set it there"),
        ({"scheduler": lambda optimizer: 3}, "scheduler must be a scheduler of torch.optim"),
        ({"scheduler": lr_scheduler.StepLR, "schedule": "step"}, "schedule is not used with your own scheduler"),
    ],
)  # fmt: skip
def test_careless_use_is_one_sentence(arguments, sentence):
    arguments = {"model": fresh(), "dataset": (X, Y), "noise": NOISE, **FAST, **arguments}
    with pytest.raises(UsageError, match=re.escape(sentence)):
        train(**arguments)


def test_a_scheduler_of_another_optimizer_is_refused():
    scheduler = lr_scheduler.StepLR(torch.optim.SGD(fresh().parameters(), lr=0.1), 1)
    with pytest.raises(UsageError, match="of the optimizer that is passed too"):
        train(fresh(), Blobs(), noise=NOISE, scheduler=scheduler, **FAST)


def test_a_last_batch_of_one_is_joined_and_single_inputs_are_refused_in_a_sentence():
    train(fresh(), (X[:33], Y[:33]), noise=NOISE, **{**FAST, "holdout": 0})
    with pytest.raises(UsageError, match="batch normalisation needs several inputs; set a larger batch_size"):
        train(fresh(), (X, Y), noise=NOISE, **{**FAST, "batch_size": 1})


def test_probabilities_are_warned_about():
    with pytest.warns(UserWarning, match="returns probabilities, but training needs logits"):
        train(Soft(), (X, Y), noise=NOISE, **FAST)


def test_models_of_double_precision_train():
    history = train(fresh().double(), (X, Y), noise=NOISE, **FAST)
    assert len(history) == 3


def test_named_optimizers():
    assert TrainingSettings().rate == 0.05
    for name, kind in {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}.items():
        settings = TrainingSettings(optimizer=name, rate=0.003, weight_decay=0.02)
        made = settings.build_optimizer(fresh().parameters())
        assert type(made) is kind
        assert (made.defaults["lr"], made.defaults["weight_decay"]) == (0.003, 0.02)
    assert TrainingSettings(optimizer="adamw").rate == 0.001
    cosine = TrainingSettings(schedule="cosine", epochs=10, rate=0.4)
    assert [cosine.rate_at(at) for at in (0, 5, 10)] == pytest.approx([0.4, 0.2, 0.0])
    assert [cosine.rate_dropped(at) for at in (0, 5, 9.5)] == [False, False, True]
    constant = TrainingSettings(schedule="constant")
    assert constant.rate_at(7) == 0.05
    assert not constant.rate_dropped(19)
