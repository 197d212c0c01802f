"""The recipes hold the papers' numbers, can be changed and written, and everything wrong is refused in a sentence."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from smoothcert import models
from smoothcert.data import DATASETS
from smoothcert.models.normalize import PRESETS
from smoothcert.noise import Discrete, Gaussian, Uniform
from smoothcert.plain_yaml import MAX_BYTES
from smoothcert.training.methods import METHODS, CatRS, Consistency, Method, SmoothAdv, SmoothMix
from smoothcert.training.recipes import load_recipe, recipe_names, recipe_to_yaml
from smoothcert.training.settings import Recipe, SoftLabels
from smoothcert.types import UsageError

NAMES = recipe_names()
SIGMAS = ("0.25", "0.50", "1.00")
IMAGENET = {
    "imagenet-gaussian-0.25",
    "imagenet-gaussian-0.50",
    "imagenet-gaussian-1.00",
    "imagenet-smoothadv-0.50",
    "imagenet-smoothadv-1.00",
    "imagenet-consistency-0.50",
    "imagenet-consistency-1.00",
    "imagenet-smoothmix-0.50",
    "imagenet-smoothmix-1.00",
    "imagenet-catrs-1.00",
}
OTHER_NOISES = {
    "mnist-uniform-1.00-quick": Uniform(1.0),
    "mnist-binary-discrete-0.80-quick": Discrete(0.8, 1),
    "digits-uniform-0.50-quick": Uniform(0.5),
    "digits-discrete-0.80-quick": Discrete(0.8, 16),
}
DATASET_NAMES = ("mnist", "fashion-mnist", "cifar10", "cifar100")
SMALL = ("mnist", "fashion-mnist")

# Jeong et al. (2023), App. C.5, typed from the paper's text: dataset, method, σ, settings.
PAPER = """
mnist stability 0.25 lam=2
mnist stability 0.50 lam=2
mnist stability 1.00 lam=2
mnist smoothadv 0.25 steps=10 epsilon=1.0 m=4 warmup=10
mnist smoothadv 0.50 steps=10 epsilon=1.0 m=4 warmup=10
mnist smoothadv 1.00 steps=10 epsilon=1.0 m=4 warmup=10
mnist macer 0.25 m=16 gamma=8 beta=16 lam=16 deferred=0
mnist macer 0.50 m=16 gamma=8 beta=16 lam=16 deferred=0
mnist macer 1.00 m=16 gamma=8 beta=16 lam=6 deferred=0
mnist consistency 0.25 eta=0.5 lam=10 m=2
mnist consistency 0.50 eta=0.5 lam=5 m=2
mnist consistency 1.00 eta=0.5 lam=5 m=2
mnist smoothmix 0.25 eta=5 step=1.0 m=4 steps=2 one_step=0
mnist smoothmix 0.50 eta=5 step=1.0 m=4 steps=4 one_step=0
mnist smoothmix 1.00 eta=5 step=1.0 m=4 steps=8 one_step=0
mnist catrs 0.25 m=4 steps=4 epsilon=1.0 lam=1.0
mnist catrs 0.50 m=4 steps=4 epsilon=1.0 lam=1.0
mnist catrs 1.00 m=4 steps=4 epsilon=1.0 lam=1.0
fashion-mnist stability 0.25 lam=2
fashion-mnist stability 0.50 lam=2
fashion-mnist stability 1.00 lam=2
fashion-mnist smoothadv 0.25 steps=10 epsilon=1.0 m=4 warmup=10
fashion-mnist smoothadv 0.50 steps=10 epsilon=1.0 m=4 warmup=10
fashion-mnist smoothadv 1.00 steps=10 epsilon=1.0 m=4 warmup=10
fashion-mnist macer 0.25 m=16 gamma=8 beta=16 lam=16 deferred=0
fashion-mnist macer 0.50 m=16 gamma=8 beta=16 lam=8 deferred=0
fashion-mnist macer 1.00 m=16 gamma=8 beta=16 lam=2 deferred=0
fashion-mnist consistency 0.25 eta=0.5 lam=10 m=2
fashion-mnist consistency 0.50 eta=0.5 lam=5 m=2
fashion-mnist consistency 1.00 eta=0.5 lam=5 m=2
fashion-mnist smoothmix 0.25 eta=5 step=1.0 m=4 steps=2 one_step=0
fashion-mnist smoothmix 0.50 eta=5 step=1.0 m=4 steps=4 one_step=0
fashion-mnist smoothmix 1.00 eta=5 step=1.0 m=4 steps=8 one_step=0
fashion-mnist catrs 0.25 m=4 steps=4 epsilon=1.0 lam=1.0
fashion-mnist catrs 0.50 m=4 steps=4 epsilon=1.0 lam=1.0
fashion-mnist catrs 1.00 m=4 steps=4 epsilon=1.0 lam=1.0
cifar stability 0.25 lam=2
cifar stability 0.50 lam=2
cifar stability 1.00 lam=1
cifar smoothadv 0.25 steps=10 epsilon=1.0 m=4 warmup=10
cifar smoothadv 0.50 steps=10 epsilon=1.0 m=8 warmup=10
cifar smoothadv 1.00 steps=10 epsilon=2.0 m=2 warmup=10
cifar macer 0.25 m=16 gamma=8 beta=16 lam=12 deferred=0
cifar macer 0.50 m=16 gamma=8 beta=16 lam=4 deferred=0
cifar macer 1.00 m=16 gamma=8 beta=16 lam=12 deferred=1
cifar consistency 0.25 eta=0.5 lam=20 m=2
cifar consistency 0.50 eta=0.5 lam=10 m=2
cifar consistency 1.00 eta=0.5 lam=10 m=2
cifar smoothmix 0.25 eta=5 m=2 steps=4 step=0.5 one_step=0
cifar smoothmix 0.50 eta=5 m=2 steps=4 step=1.0 one_step=1
cifar smoothmix 1.00 eta=5 m=2 steps=4 step=2.0 one_step=1
cifar catrs 0.25 m=4 steps=4 epsilon=1.0 lam=0.5
cifar catrs 0.50 m=4 steps=4 epsilon=1.0 lam=1.0
cifar catrs 1.00 m=4 steps=4 epsilon=1.0 lam=2.0
"""


def paper_rows() -> Iterator[tuple[str, dict[str, float]]]:
    for line in PAPER.split("\n")[1:-1]:
        dataset, method, sigma, *numbers = line.split()
        expected = {key: float(value) for key, value in (number.split("=") for number in numbers)}
        for name in ("cifar10", "cifar100") if dataset == "cifar" else (dataset,):
            yield f"{name}-{method}-{sigma}", expected


def test_the_names_are_these() -> None:
    expected = {f"{dataset}-{method}-{sigma}" for dataset in DATASET_NAMES for method in METHODS for sigma in SIGMAS}
    expected |= {f"{dataset}-{method}-{sigma}-quick" for dataset in SMALL for method in METHODS for sigma in SIGMAS}
    short = ("gaussian", "consistency", "smoothmix", "catrs")
    expected |= {f"cifar10-{method}-{sigma}-quick" for method in short for sigma in SIGMAS}
    expected |= {f"digits-{method}-0.25-quick" for method in METHODS} | IMAGENET | OTHER_NOISES.keys()
    assert sorted(expected) == NAMES
    assert len(NAMES) == 84 + 42 + 12 + 7 + 10 + 4


def test_the_files_are_part_of_the_package() -> None:
    folder = resources.files("smoothcert.training.recipes")
    files = {entry.name for entry in folder.iterdir() if entry.name.endswith(".yaml")}
    assert files == {f"{name}.yaml" for name in (*DATASET_NAMES, "digits", "imagenet", "mnist-uniform", "mnist-binary")}


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_is_consistent(name: str) -> None:
    recipe = load_recipe(name)
    *_, method, sigma = name.removesuffix("-quick").split("-")
    assert recipe.name == name
    assert name.startswith(f"{recipe.dataset}-{method}-")
    assert recipe.build_noise() == OTHER_NOISES.get(name, Gaussian(float(sigma)))
    assert recipe.build_method().name == ("gaussian" if name in OTHER_NOISES else method)
    assert "Jeong et al. (202" in recipe.source or "Horváth et al. (2022)" in recipe.source
    assert "/" not in recipe.source
    assert recipe.model in models.MODELS
    assert recipe.normalize is None or recipe.normalize in PRESETS
    info = DATASETS.get(recipe.dataset)
    assert recipe.dataset == "imagenet" if info is None else info.shape == models.MODELS[recipe.model].input_shape
    short = name.startswith("cifar10-gaussian") and name.endswith("-quick")
    assert (recipe.momentum, recipe.nesterov, recipe.weight_decay) == (0.9, True, 5e-4 if short else 1e-4)
    assert recipe.batch_size % recipe.build_method().copies == 0
    assert all(milestone < recipe.epochs for milestone in recipe.milestones)
    assert bool(recipe.milestones) == (recipe.schedule == "step")
    assert (recipe.schedule == "one-cycle") == name.endswith("-quick")


@pytest.mark.parametrize("name", NAMES)
def test_soft_labels_come_from_a_gaussian_model_of_the_same_kind(name: str) -> None:
    recipe = load_recipe(name)
    assert (recipe.soft_labels is not None) == recipe.build_method().needs_soft_labels == ("-catrs-" in name)
    if recipe.soft_labels is not None:
        teacher = load_recipe(recipe.soft_labels.recipe)
        assert teacher.build_method() == METHODS["gaussian"]()
        assert teacher.build_noise() == Gaussian(recipe.soft_labels.sigma) == Gaussian(0.25)
        for key in ("dataset", "model", "normalize", "augment", "schedule"):
            assert getattr(teacher, key) == getattr(recipe, key)
        quick = 20 if recipe.dataset == "cifar10" else 100
        full = 500 if recipe.dataset == "imagenet" else 10_000
        assert recipe.soft_labels.n == (quick if name.endswith("-quick") else full)


@pytest.mark.parametrize(("name", "expected"), list(paper_rows()))
def test_settings_are_those_of_the_paper(name: str, expected: Any) -> None:
    method = load_recipe(name).build_method()
    assert {key: float(getattr(method, key)) for key in expected} == expected


def test_the_table_of_the_paper_covers_every_full_recipe() -> None:
    full = {name for name in NAMES if not name.endswith("-quick") and name not in IMAGENET and "-gaussian-" not in name}
    assert {name for name, _ in paper_rows()} == full


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("-quick")])
def test_schedules_are_those_of_the_papers(name: str) -> None:
    recipe = load_recipe(name)
    expected: tuple[Any, ...] = {
        "mnist": ("lenet", None, "none", 150, 0.01, (50, 100)),
        "fashion-mnist": ("lenet", None, "none", 150, 0.01, (50, 100)),
        "cifar10": ("cifar-resnet110", "cifar10", "cifar", 150, 0.1, (50, 100)),
        "cifar100": ("cifar-resnet110", "cifar100", "cifar", 150, 0.1, (50, 100)),
        "imagenet": ("resnet50", "imagenet", "imagenet", 90, 0.1, (30, 60)),
    }[recipe.dataset]
    if name == "imagenet-catrs-1.00":
        expected = (*expected[:-1], (30, 60, 85))
    keys = ("model", "normalize", "augment", "epochs", "rate", "milestones")
    assert tuple(getattr(recipe, key) for key in keys) == expected
    assert (recipe.batch_size, recipe.clip, recipe.ema) == (256, None, None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (  # Jeong et al. (2023), App. C.5 and D.4
            "imagenet-catrs-1.00",
            CatRS(lam=2.0, m=2, steps=1, epsilon=1.0, late_epsilon=2.0, late_from=80, count="soft"),
        ),
        ("imagenet-smoothmix-0.50", SmoothMix(eta=5.0, step=8.0, steps=1, m=1)),  # Jeong et al. (2021), App. F and G
        ("imagenet-smoothmix-1.00", SmoothMix(eta=5.0, step=8.0, steps=1, m=1)),
        # the models of Salman et al. (2019) that Table 7 of Jeong et al. (2021) shows
        ("imagenet-smoothadv-0.50", SmoothAdv(epsilon=1.0, steps=1, m=1)),
        ("imagenet-smoothadv-1.00", SmoothAdv(epsilon=2.0, steps=1, m=1)),
        ("imagenet-consistency-0.50", Consistency(lam=5.0, eta=0.5)),
        ("imagenet-consistency-1.00", Consistency(lam=5.0, eta=0.1)),
    ],
)
def test_imagenet_settings(name: str, expected: Method) -> None:
    assert load_recipe(name).build_method() == expected


@pytest.mark.parametrize("name", [name for name in NAMES if name.removesuffix("-quick") in {*NAMES} - {name}])
def test_quick_recipes_are_cheaper_and_else_the_same(name: str) -> None:
    quick, full = load_recipe(name), load_recipe(name.removesuffix("-quick"))

    def cost(recipe: Recipe) -> int:
        passes = recipe.build_method().passes
        own = recipe.epochs * (passes.train + passes.attack + passes.forward)
        return own + (cost(load_recipe(recipe.start)) if recipe.start else 0)

    assert cost(quick) * 9 < cost(full)
    for key in ("dataset", "normalize", "noise", "augment"):
        assert getattr(quick, key) == getattr(full, key)
    assert quick.model == {"cifar-resnet110": "cifar-resnet20"}.get(full.model, full.model)
    assert quick.method["name"] == full.method["name"]
    if quick.start is None:
        assert (quick.batch_size, quick.rate) == ((128, 0.2) if quick.dataset == "cifar10" else (full.batch_size, 0.05))
    else:  # improves a model trained with the same noise
        start = load_recipe(quick.start)
        assert (start.noise, start.method["name"]) == (quick.noise, "gaussian")
        assert quick.rate < start.rate


@pytest.mark.parametrize("dataset", [*SMALL, "digits"])
def test_small_models_build(dataset: str) -> None:
    recipe, info = load_recipe(f"{dataset}-gaussian-0.25-quick"), DATASETS[dataset]
    network = models.build(recipe.model, num_classes=info.num_classes, normalize=recipe.normalize)
    assert network(torch.zeros(2, *info.shape)).shape == (2, 10)


@pytest.mark.parametrize("name", OTHER_NOISES)
def test_other_noises_train_like_the_gaussian_one(name: str) -> None:
    recipe = load_recipe(name)
    like = load_recipe(f"{recipe.dataset.removesuffix('-binary')}-gaussian-0.25-quick")
    own = {"name", "source", "dataset", "noise", "radius", "epochs"}
    assert recipe.model_dump(exclude=own) == like.model_dump(exclude=own)
    assert (recipe.radius is None) == recipe.build_noise().additive  # pixels are counted in whole numbers


def test_a_recipe_is_a_fresh_copy() -> None:
    load_recipe("mnist-catrs-0.50").method["lam"] = 99.0
    load_recipe("mnist-catrs-0.50", {"method.m": 8})
    assert load_recipe("mnist-catrs-0.50").method == {"name": "catrs", "lam": 1.0, "m": 4, "steps": 4, "epsilon": 1.0}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["epochs=10"], {"epochs": 10}),
        ("epochs=10", {"epochs": 10}),
        ([" epochs = 10 "], {"epochs": 10}),
        (["epochs=3", "epochs=5"], {"epochs": 5}),
        ({"epochs": 10, "method.lam": 2.0}, {"epochs": 10, "method": {"lam": 2.0, "m": 4}}),
        (["method.lam=2"], {"method": {"lam": 2.0, "name": "catrs", "m": 4, "epsilon": 1.0}}),
        (["noise.sigma=0.25"], {"noise": {"name": "gaussian", "sigma": 0.25}}),
        (["milestones=[30,60]"], {"milestones": (30, 60)}),
        (["milestones=[]"], {"milestones": ()}),
        (["rate=1e-4"], {"rate": 1e-4}),
        (["rate=1"], {"rate": 1.0}),
        (["rate=.5"], {"rate": 0.5}),
        (["clip=1.5", "ema=0.99"], {"clip": 1.5, "ema": 0.99}),
        (["nesterov=false"], {"nesterov": False}),
        (["soft_labels.n=500"], {"soft_labels.n": 500, "soft_labels.recipe": "mnist-gaussian-0.25"}),
        (["soft_labels.recipe=my/own.yaml"], {"soft_labels.recipe": "my/own.yaml"}),
        (["name=mine"], {"name": "mine"}),
        (["name=2024", "source=1e4", "dataset=0.50"], {"name": "2024", "source": "1e4", "dataset": "0.50"}),
        (["source=a: b"], {"source": "a: b"}),
        (["source='quoted'"], {"source": "quoted"}),
        (["dataset=/data/own.npz"], {"dataset": "/data/own.npz"}),
        (["normalize=mnist"], {"normalize": "mnist"}),
        (["batch_size=1_024"], {"batch_size": 1024}),
        ({}, {"epochs": 150}),
    ],
)
def test_changes(changes: Any, expected: Any) -> None:
    recipe = load_recipe("mnist-catrs-0.50", changes)
    for key, value in expected.items():
        holder, _, inner = key.partition(".")
        found = getattr(getattr(recipe, holder), inner) if inner else getattr(recipe, holder)
        if isinstance(value, dict):
            found = {name: found[name] for name in value}
        assert found == value
        assert type(found) is type(value)
    if "name" not in expected:
        assert recipe.name == "mnist-catrs-0.50"


@pytest.mark.parametrize("switch", [["method=consistency"], {"method": "consistency"}, ["method.name=consistency"]])
def test_switching_the_method_drops_what_was_the_old_ones(switch: Any) -> None:
    recipe = load_recipe("mnist-catrs-0.50", switch)
    assert recipe.method == {"name": "consistency"}
    assert recipe.build_method() == METHODS["consistency"]()
    assert recipe.soft_labels is None
    assert recipe.epochs == 150


def test_the_order_of_changes_does_not_matter() -> None:
    for changes in (["method=stability", "method.lam=3"], ["method.lam=3", "method=stability"]):
        assert load_recipe("mnist-macer-0.50", changes).method == {"name": "stability", "lam": 3.0}
    whole = {"soft_labels": {"recipe": "mnist-gaussian-0.50"}, "soft_labels.n": 7, "method": "catrs"}
    assert load_recipe("mnist-gaussian-0.50", whole).soft_labels == SoftLabels(recipe="mnist-gaussian-0.50", n=7)
    assert load_recipe("mnist-catrs-0.50", ["method=catrs"]).soft_labels is not None  # the same method, reset
    assert load_recipe("mnist-catrs-0.50", ["method=catrs"]).method == {"name": "catrs"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("epoch=3", "unknown setting 'epoch'; did you mean 'epochs'"),
        ("method.lamda=2", "unknown setting 'method.lamda'; did you mean 'method.lam'"),
        ("method.warmup=2", "unknown setting 'method.warmup'; "),
        ("noise.sgima=2", "unknown setting 'noise.sgima'; did you mean 'noise.sigma'"),
        ("soft_labels.recip=a", "unknown setting 'soft_labels.recip'; did you mean 'soft_labels.recipe'"),
        ("lam=2", "unknown setting 'lam'; Known: method.lam."),
        ("sigma=2", "unknown setting 'sigma'; did you mean 'noise.sigma'"),
        ("epochs.x=2", "unknown setting 'epochs.x'; did you mean 'epochs'"),
        ("method.=2", "unknown setting 'method.'; "),
        ("zzz=2", "unknown setting 'zzz'; Known: augment, "),
        ("epochs=0", "epochs must be greater than or equal to 1, got 0."),
        ("epochs=ten", "epochs must be a valid integer, got 'ten'."),
        ("epochs=1.5", "epochs must be a valid integer, got 1.5."),
        ("epochs=true", "epochs must be a valid integer, got True."),
        ("epochs=", "epochs must be a valid integer, got None."),
        ("epochs='3'", "epochs must be a valid integer, got '3'."),
        ("epochs=010", "epochs must be a valid integer, got '010'."),
        ("epochs=1:30", "epochs must be a valid integer, got '1:30'."),
        ("rate=-1", "rate must be greater than 0, got -1."),
        ("rate=.nan", "rate must be a valid number, got '.nan'."),
        ("clip=1e999", "clip must be a finite number, got inf."),
        ("momentum=1", "momentum must be less than 1, got 1."),
        ("momentum=0", "nesterov needs a momentum above 0."),
        ("nesterov=2", "nesterov must be a valid boolean, got 2."),
        ("schedule=linear", "schedule must be 'constant', 'step', 'cosine' or 'one-cycle', got 'linear'."),
        ("augment=yes", "augment must be 'none', 'cifar' or 'imagenet', got True."),
        ("milestones=30", "milestones must be a valid array, got 30."),
        ("milestones=[30, a]", "milestones[2] must be a valid integer, got 'a'."),
        ("milestones=[60, 30]", "milestones must be epochs in increasing order, got [60, 30]."),
        ("normalize=3", "normalize must be a valid string, got 3."),
        ("normalize=mnits", "unknown normalization 'mnits'; did you mean 'mnist'? Known: "),
        ("normalize=cifar10", "normalize has 3 values for mean, but the input has 1 channel(s)."),
        ("model=lenett", "unknown architecture 'lenett'; did you mean 'lenet'? Known: "),
        ("name=", "name must have at least 1 character, got ''."),
        ("method=catr", "unknown training method 'catr'; did you mean 'catrs'"),
        ("method=3", "method must be the name of a training method, alone or with its settings, got 3."),
        (
            "method={lam: 2}",
            "method must be the name of a training method, alone or with its settings, got {'lam': 2}.",
        ),
        ("method=", "method must be the name of a training method, alone or with its settings, got None."),
        ("method.lam=a", "method.lam must be a valid number, got 'a'."),
        ("method.lam=[1]", "method.lam must be a valid number, got [1]."),
        ("method.lam=true", "method.lam must be a valid number, got True."),
        ("method.lam=1e999", "method.lam must be a finite number, got inf."),
        ("method.lam=-1", "method: lam must not be negative, got -1.0."),
        ("method.m=2.5", "method.m must be a valid integer, got 2.5."),
        ("method.m=0", "method: m must be at least 1, got 0."),
        ("method.low=1", "method.low must be a valid boolean, got 1."),
        ("method.count=vote", "method: count must be one of votes, soft, all, got 'vote'."),
        ("method.late_epsilon=x", "method.late_epsilon must be a valid number, got 'x'."),
        (
            "noise=laplace",
            "unknown noise 'laplace'; Known: discrete, gaussian, uniform; if a plug-in defines it, install it",
        ),
        ("noise=uniform", "noise.lam is missing."),
        ("noise=gaussian", "noise.sigma is missing."),
        ("noise=[]", "noise must be the name of a noise, alone or with its settings, got []."),
        ("noise.sigma=0", "noise: sigma must be a positive number, got 0.0."),
        ("noise.sigma=big", "noise.sigma must be a valid number, got 'big'."),
        ("soft_labels=null", "the method catrs needs soft_labels: name the recipe of their model."),
        ("soft_labels=3", "soft_labels must be an object, got 3."),
        ("soft_labels={n: 3}", "soft_labels.recipe is missing."),
        ("soft_labels.n=0", "soft_labels.n must be greater than or equal to 1, got 0."),
        ("soft_labels.sigma=-1", "soft_labels.sigma must be greater than 0, got -1."),
        (
            "soft_labels.recipe=mnist-gausian-0.25",
            "unknown recipe 'mnist-gausian-0.25'; did you mean 'mnist-gaussian-0.",
        ),
        ("epochs", "'epochs' is not a change; write it as setting=value, for example epochs=10."),
        ("=3", "'=3' is not a change; write it as setting=value, for example epochs=10."),
        ("milestones=[1", "line 1 of the value of milestones is not valid: "),
        ("epochs=&a 3", "line 1 of the value of epochs is not valid: anchors, aliases and tags are not allowed."),
        ("epochs=!!int 3", "line 1 of the value of epochs is not valid: anchors, aliases and tags are not allowed."),
        ("method={name: catrs, m: 2, m: 4}", "line 1 of the value of method is not valid: the key 'm' appears twice."),
        ("rate={1: 2}", "rate must be a valid number, got {'1': 2}."),
        (f"epochs={'9' * 5000}", "the value of epochs is not valid: a number has too many digits."),
    ],
)
def test_refused_changes(change: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_recipe("mnist-catrs-0.50", [change])
    message = str(caught.value)
    assert message.startswith(sentence)
    assert "\n" not in message
    assert message.endswith((".", "?"))


@pytest.mark.parametrize(
    "changes",
    [{3: 4}, {"rate": float("nan")}, {"epochs": object()}, {"noise": 3, "noise.sigma": 1}, [3], {"method": {3: 4}}],
)
def test_refused_changes_from_code(changes: Any) -> None:
    with pytest.raises(UsageError):
        load_recipe("mnist-catrs-0.50", changes)


def test_an_unknown_recipe_is_refused_with_close_ones() -> None:
    with pytest.raises(UsageError, match=r"^unknown recipe 'mnist-catr-0.5'; did you mean 'mnist-catrs-0.50' or"):
        load_recipe("mnist-catr-0.5")
    with pytest.raises(UsageError, match=r"^unknown recipe 'zzz'; Use one that 'smoothcert recipes list' shows"):
        load_recipe("zzz")


@pytest.mark.parametrize("name", NAMES)
def test_written_recipes_read_the_same(tmp_path: Path, name: str) -> None:
    recipe = load_recipe(name)
    (tmp_path / "own.yaml").write_text(recipe_to_yaml(recipe), encoding="utf-8")
    assert load_recipe(tmp_path / "own.yaml") == recipe
    assert load_recipe(str(tmp_path / "own.yaml"), ["epochs=7"]).epochs == 7
    assert Recipe.model_validate(yaml.safe_load(recipe_to_yaml(recipe))) == recipe  # and with any other reader


@settings(deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1), number=st.floats(1e-300, 1e300))
def test_any_text_and_number_survive_writing(
    tmp_path_factory: pytest.TempPathFactory, text: str, number: float
) -> None:
    recipe = load_recipe("mnist-gaussian-0.25", {"name": text, "source": text, "rate": number, "method.m": 3})
    file = tmp_path_factory.mktemp("recipe") / "own"
    file.write_text(recipe_to_yaml(recipe), encoding="utf-8", newline="")
    assert load_recipe(file) == recipe


@pytest.mark.parametrize("text", ["1e4", "007", "null", "yes", "2024-01-01", "0x1f", "1:30", "<<", "", "~", "- a", "#"])
def test_text_that_looks_like_something_else_survives_writing(tmp_path: Path, text: str) -> None:
    recipe = load_recipe("mnist-gaussian-0.25", {"source": text, "dataset": text})
    (tmp_path / "own.yaml").write_text(recipe_to_yaml(recipe), encoding="utf-8")
    assert load_recipe(tmp_path / "own.yaml") == recipe


FULL = recipe_to_yaml(load_recipe("mnist-gaussian-0.25"))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "{path} is not a recipe; write a setting on each line, such as 'epochs: 10'."),
        ("- epochs", "{path} is not a recipe; "),
        ("epochs", "{path} is not a recipe; "),
        ("epochs: 3", "{path}: name is missing."),
        ("name: a\ndataset: mnist\nmodel: lenet", "{path}: noise is missing."),
        ("method: gaussian\nnoise: gaussian", "{path}: noise.sigma is missing."),
        (FULL.replace("epochs", "epoch"), "{path}: unknown setting 'epoch'; did you mean 'epochs'"),
        (FULL + "noise.sigma: 3\n", "{path}: noise.sigma must be written inside noise, as noise: {{sigma: …}}."),
        (FULL.replace("dataset: mnist", "dataset:"), "{path}: dataset must be a valid string, got None."),
        (FULL + "epochs: 3\n", "line {after} of {path} is not valid: the key 'epochs' appears twice."),
        (FULL + "votes 3\n", "line {after} of {path} is not valid: could not find expected ':'."),
        ("epochs: 3\n  rate: 1\n", "line 2 of {path} is not valid: mapping values are not allowed here."),
        ("epochs: 3\n\trate: 1\n", "line 2 of {path} is not valid: "),
        ("epochs: 3\nrate: \x07\n", "line 2 of {path} is not valid: special characters are not allowed."),
        ("epochs: 3\nrate: &a 1\n", "line 2 of {path} is not valid: anchors, aliases and tags are not allowed."),
        ("epochs: *a\n", "line 1 of {path} is not valid: anchors, aliases and tags are not allowed."),
        ("method: gaussian\n<<: {noise: gaussian}\n", "{path}: unknown setting '<<'; "),
        (
            "name: !!python/object/apply:os.getcwd []\n",
            "line 1 of {path} is not valid: anchors, aliases and tags are not allowed.",
        ),
        ("name: !!timestamp x\n", "line 1 of {path} is not valid: anchors, aliases and tags are not allowed."),
        ("name: " + "[" * 50_000, "{path} is not valid: values are nested too deeply."),
        ("a: 1\n---\nb: 2\n", "line 2 of {path} is not valid: "),
        ("1: 2\n", "{path}: unknown setting '1'; "),
        ("? [a]\n: 2\n", "line 1 of {path} is not valid: found unhashable key."),
        (b"name: \xff\xfe", "{path} is not a text file in UTF-8 "),
        (b"\x89PNG\r\n\x1a\n\0\0", "{path} is not a text file in UTF-8 "),
        ("#" * (MAX_BYTES + 1), "{path} has more than 100000 bytes, which is too large for a recipe."),
    ],
)
def test_refused_files(tmp_path: Path, content: Any, sentence: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as caught:
        load_recipe(path)
    assert str(caught.value).startswith(sentence.format(path=path, after=FULL.count("\n") + 1))
    assert "\n" not in str(caught.value)


def test_aliases_cannot_grow(tmp_path: Path) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
    (tmp_path / "own.yaml").write_text("\n".join(lines))
    with pytest.raises(UsageError, match=r"line 1 of .* anchors, aliases and tags are not allowed"):
        load_recipe(tmp_path / "own.yaml")


@pytest.mark.parametrize("name", ["missing.yaml", "missing/recipe", "a\0b.yaml", "."])
def test_files_that_are_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        load_recipe(f"{tmp_path}/{name}")


def test_a_file_with_a_byte_order_mark_and_windows_lines_is_read(tmp_path: Path) -> None:
    (tmp_path / "own.yml").write_bytes(b"\xef\xbb\xbf" + FULL.replace("\n", "\r\n").encode())
    assert load_recipe(tmp_path / "own.yml") == load_recipe("mnist-gaussian-0.25")


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(sorted(METHODS))
)
KEYS = st.sampled_from([*Recipe.model_fields, "lam", "sigma", "recipe", "n", "m"]) | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8
)
BASE = yaml.safe_load(recipe_to_yaml(load_recipe("mnist-catrs-0.50")))


def only_usage_errors(folder: Path, content: bytes) -> None:
    file = folder / "own.yaml"
    file.write_bytes(content)
    message = ""
    try:
        recipe = load_recipe(file)
    except UsageError as error:
        message = str(error)
    else:
        file.write_text(recipe_to_yaml(recipe), encoding="utf-8", newline="")
        assert load_recipe(file) == recipe
    assert "\n" not in message


@settings(max_examples=300, deadline=None)
@given(content=st.text(alphabet="ab:{}[],-#&*!|>'\"%@`?~ \n\t0.e1" + "é\x85\u2028", max_size=60))
def test_random_text_is_refused_in_a_sentence(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    only_usage_errors(tmp_path_factory.mktemp("fuzz"), content.encode())


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=60))
def test_random_bytes_are_refused_in_a_sentence(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    only_usage_errors(tmp_path_factory.mktemp("fuzz"), content)


@settings(max_examples=150, deadline=None)
@given(changes=st.dictionaries(KEYS, VALUES, max_size=3), inner=st.dictionaries(KEYS, SCALARS, max_size=2))
def test_random_values_are_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, changes: Any, inner: dict[str, Any]
) -> None:
    values = copy.deepcopy(BASE)
    for key in ("method", "noise", "soft_labels"):
        values[key] |= inner
    content = yaml.safe_dump(values | changes, allow_unicode=True)
    only_usage_errors(tmp_path_factory.mktemp("fuzz"), content.encode("utf-8", "surrogatepass"))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_recipes_are_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(FULL.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    only_usage_errors(tmp_path_factory.mktemp("fuzz"), bytes(content))
