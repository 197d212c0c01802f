"""The architectures: sizes, shapes, names of parameters, normalisation and refusals."""

from __future__ import annotations

import doctest

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from smoothcert.models import (
    ALIASES,
    MODELS,
    PRESETS,
    Normalize,
    build,
    build_denoiser,
    find_model,
    normalization,
    normalize,
    registry,
)
from smoothcert.types import UsageError

# Counts of the published implementations: He et al. (2016) as in Cohen et al. (2019), and torchvision.
PARAMETERS = {
    "digits-cnn": 38_282,
    "lenet": 431_080,
    "cifar-resnet20": 272_474,
    "cifar-resnet110": 1_730_714,
    "padded-resnet20": 269_722,
    "padded-resnet32": 464_154,
    "padded-resnet44": 658_586,
    "padded-resnet56": 853_018,
    "padded-resnet110": 1_727_962,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
}


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def on_meta(name: str, **arguments: object) -> nn.Module:
    with torch.device("meta"):
        return build(name, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MODELS)
class TestContract:
    """What every registered architecture must do."""

    def test_is_registered_under_its_name(self, name):
        assert MODELS[name].name == name

    def test_number_of_parameters(self, name):
        assert count(on_meta(name)) == PARAMETERS[name]

    def test_one_logit_per_class_and_input(self, name):
        model = on_meta(name).eval()
        logits = model(torch.empty(2, *MODELS[name].input_shape, device="meta"))
        assert logits.shape == (2, MODELS[name].num_classes)

    def test_other_classes_and_channels(self, name):
        _, height, width = MODELS[name].input_shape
        model = on_meta(name, num_classes=7, in_channels=2)
        assert model(torch.empty(3, 2, height, width, device="meta")).shape == (3, 7)

    def test_first_and_last_layer_tell_channels_and_classes(self, name):
        """Foreign checkpoints are read by this rule."""
        state = on_meta(name, num_classes=7, in_channels=2).state_dict()
        assert next(tensor for tensor in state.values() if tensor.ndim == 4).shape[1] == 2
        assert [tensor for tensor in state.values() if tensor.ndim == 2][-1].shape[0] == 7

    def test_names_do_not_look_like_a_sequential(self, name):
        assert not any(key.split(".")[0] in ("0", "1", "module") for key in on_meta(name).state_dict())


@pytest.mark.parametrize("name", ["digits-cnn", "lenet", "cifar-resnet20"])
def test_output_on_real_memory_is_finite_and_independent_of_the_batch(name):
    torch.manual_seed(0)
    model = build(name).eval()
    x = torch.rand(4, *MODELS[name].input_shape)
    with torch.no_grad():
        logits = model(x)
        assert torch.isfinite(logits).all()
        torch.testing.assert_close(model(x[1:2]), logits[1:2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lenet", {"conv1.weight", "conv1.bias", "conv2.weight", "fc1.weight", "fc2.bias"}),
        (
            "cifar-resnet110",
            {
                "conv1.weight",
                "bn1.running_mean",
                "bn1.num_batches_tracked",
                "layer1.17.conv2.weight",
                "layer2.0.downsample.0.weight",
                "layer3.0.downsample.1.running_var",
                "fc.bias",
            },
        ),
        ("resnet50", {"conv1.weight", "layer1.0.downsample.0.weight", "layer4.2.conv3.weight", "layer4.2.bn3.weight"}),
        ("resnet18", {"layer2.0.downsample.1.bias", "layer4.1.conv2.weight"}),
    ],
)
def test_names_of_the_published_checkpoints(name, expected):
    assert expected <= on_meta(name).state_dict().keys()


def test_shortcuts_are_convolutions_only_where_the_shape_changes():
    names = on_meta("cifar-resnet20").state_dict()
    assert {key.rsplit(".downsample", 1)[0] for key in names if "downsample" in key} == {"layer2.0", "layer3.0"}
    assert not any(key.startswith("layer1.0.downsample") for key in on_meta("resnet18").state_dict())


def test_resnet50_has_its_stride_in_the_3x3_convolution():
    block = on_meta("resnet50").get_submodule("layer2.0")
    assert block.conv1.stride == (1, 1)
    assert block.conv2.stride == (2, 2)


def test_convolutions_of_resnets_start_from_he_initialisation():
    torch.manual_seed(0)
    weight = build("cifar-resnet20").get_submodule("layer3.1.conv1").weight
    assert weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)


def test_digits_cnn_learns_the_digits_within_seconds():
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(digits.target)
    model = build("digits-cnn")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    train, test = torch.randperm(len(y)).split([1400, len(y) - 1400])
    for _ in range(10):
        for batch in train[torch.randperm(len(train))].split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        assert (model.eval()(x[test]).argmax(1) == y[test]).float().mean() > 0.95


@pytest.mark.parametrize("alias", ALIASES)
def test_names_of_earlier_systems(alias):
    own, classes = ALIASES[alias]
    assert find_model(alias).name == own
    assert on_meta(alias).get_submodule("fc").out_features == classes


class TestNormalization:
    def test_is_the_same_as_normalising_the_input(self):
        torch.manual_seed(0)
        model = build("cifar-resnet20", normalize="cifar10").eval()
        assert isinstance(model[0], Normalize)
        mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in PRESETS["cifar10"])
        x = torch.rand(2, 3, 32, 32)
        with torch.no_grad():
            torch.testing.assert_close(model(x), model[1]((x - mean) / std))

    def test_buffers_follow_the_model_and_are_no_parameters(self):
        model = build("lenet", normalize="mnist")
        assert count(model) == PARAMETERS["lenet"]
        assert {name for name, _ in model.named_buffers()} == {"0.mean", "0.std"}
        assert model.double()[0].mean.dtype == torch.float64

    def test_a_pair_per_channel(self):
        model = build("digits-cnn", in_channels=2, normalize=([0.5, 0.25], [2, 4]))
        x = torch.ones(1, 2, 8, 8)
        assert model[0](x)[0, :, 0, 0].tolist() == [0.25, 0.1875]

    @pytest.mark.parametrize("nothing", [None, "none"])
    def test_none_adds_no_layer(self, nothing):
        assert not isinstance(build("digits-cnn", normalize=nothing), nn.Sequential)

    @pytest.mark.parametrize("preset", PRESETS)
    def test_every_preset_fits_its_number_of_channels(self, preset):
        mean, _ = PRESETS[preset]
        assert normalization(preset, len(mean)) == PRESETS[preset]

    def test_an_input_of_other_channels_is_refused(self):
        model = build("cifar-resnet20", normalize="cifar10")
        with pytest.raises(UsageError, match=r"normalises 3 channel\(s\), but the input has 1"):
            model(torch.rand(1, 1, 32, 32))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "cifar-resnet11"}, r"unknown architecture 'cifar-resnet11'; did you mean .*'cifar-resnet110'"),
        ({"name": "lenet", "num_classes": 1}, "num_classes must be at least 2, not 1"),
        ({"name": "lenet", "num_classes": -3}, "num_classes must be at least 2, not -3"),
        ({"name": "lenet", "in_channels": 0}, "in_channels must be at least 1, not 0"),
        ({"name": "lenet", "normalize": "mnits"}, "unknown normalization 'mnits'; did you mean 'mnist'"),
        ({"name": "lenet", "normalize": "cifar10"}, r"3 values for mean, but the input has 1 channel\(s\)"),
        ({"name": "lenet", "normalize": ((0.5,), (0.5, 0.5))}, "2 values for std"),
        ({"name": "lenet", "normalize": ((0.5,), (0.5,), (1.0,))}, "pair, not 3 values"),
        ({"name": "lenet", "normalize": ((0.5,), (0.0,))}, "std that is not positive"),
        ({"name": "lenet", "normalize": ((0.5,), (-1.0,))}, "std that is not positive"),
        ({"name": "lenet", "normalize": ((float("nan"),), (1.0,))}, "mean that is not finite"),
        ({"name": "lenet", "normalize": ((0.5,), (float("inf"),))}, "std that is not finite"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        build(**arguments)


@pytest.mark.parametrize("module", [normalize, registry])
def test_examples_in_the_documentation(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_networks_stay_where_earlier_runs_found_them():
    """Runs and memories record a hash of the model that contains the module and the name of each class."""
    built = [build(name, normalize="mnist") for name in ("digits-cnn", "lenet")]
    built += [build("cifar-resnet20"), on_meta("resnet50"), build_denoiser("dncnn-small")]
    places = {f"{type(part).__module__}.{type(part).__name__}" for model in built for part in model.modules()}
    own = ("small.DigitsCNN", "small.LeNet", "resnet.ResNet", "resnet.BasicBlock", "resnet.Bottleneck")
    own += ("dncnn.DnCNN", "normalize.Normalize")
    assert {place for place in places if place.startswith("smoothcert")} == {
        f"smoothcert.models.{each}" for each in own
    }
