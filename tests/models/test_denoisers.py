"""Denoisers: their sizes, what they compute, and their checkpoints, ours and the published ones."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from smoothcert.models import (
    DENOISERS,
    MODELS,
    CheckpointInfo,
    build,
    build_denoiser,
    describe,
    load_checkpoint,
    load_denoiser,
    save_checkpoint,
)
from smoothcert.types import CheckpointError, UsageError

# By hand from the layers of Zhang et al. (2017) and the widths of Salman et al. (2020): the first convolution with its
# bias, the inner ones with two numbers per channel for the normalisation, the last one.
PARAMETERS = {
    "dncnn": (27 * 64 + 64) + 15 * (9 * 64 * 64 + 2 * 64) + 27 * 64,
    "dncnn-wide": (27 * 128 + 128) + 15 * (9 * 128 * 128 + 2 * 128) + 27 * 128,
    "dncnn-small": (9 * 32 + 32) + 3 * (9 * 32 * 32 + 2 * 32) + 9 * 32,
}


def on_meta(name, **arguments):
    with torch.device("meta"):
        return build_denoiser(name, **arguments)


def shaken(name, **arguments):
    """A denoiser none of whose tensors has its initial value, in eval mode."""
    torch.manual_seed(0)
    denoiser = build_denoiser(name, **arguments).eval()
    with torch.no_grad():
        for key, tensor in denoiser.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5 if key.endswith("running_var") else 0.1 * tensor.cos())
    return denoiser


def by_hand(state, x, depth):
    """The layers one by one, by the names of the published files."""
    y = F.relu(F.conv2d(x, state["dncnn.0.weight"], state["dncnn.0.bias"], padding=1))
    for layer in range(depth - 2):
        convolution, normalization = f"dncnn.{3 * layer + 2}.", f"dncnn.{3 * layer + 3}."
        y = F.conv2d(y, state[convolution + "weight"], padding=1)
        mean, variance, weight, bias = (
            state[normalization + name].reshape(-1, 1, 1) for name in ("running_mean", "running_var", "weight", "bias")
        )
        y = F.relu((y - mean) / (variance + 1e-4).sqrt() * weight + bias)
    return x - F.conv2d(y, state[f"dncnn.{3 * depth - 4}.weight"], padding=1)


@pytest.mark.parametrize("name", DENOISERS)
class TestContract:
    """What every registered denoiser must do."""

    def test_is_registered_under_its_name_and_is_no_classifier(self, name):
        assert DENOISERS[name].name == name
        assert name not in MODELS
        with pytest.raises(UsageError, match=rf"{name} is a denoiser.*build_denoiser\('{name}'\)"):
            build(name)

    def test_number_of_parameters(self, name):
        assert sum(weight.numel() for weight in on_meta(name).parameters()) == PARAMETERS[name]

    def test_keeps_the_shape_of_images_of_any_size_and_channels(self, name):
        for shape in (DENOISERS[name].input_shape, (DENOISERS[name].input_shape[0], 8, 11)):
            assert on_meta(name)(torch.empty(2, *shape, device="meta")).shape == (2, *shape)
        assert on_meta(name, in_channels=2)(torch.empty(1, 2, 9, 9, device="meta")).shape == (1, 2, 9, 9)

    def test_leaves_images_as_they_are_when_fresh(self, name):
        torch.manual_seed(0)
        x = torch.rand(2, DENOISERS[name].input_shape[0], 5, 6)
        assert torch.equal(build_denoiser(name)(x), x)


@pytest.mark.parametrize(("name", "depth"), [("dncnn", 17), ("dncnn-small", 5)])
def test_computes_what_the_paper_says(name, depth):
    denoiser = shaken(name, in_channels=2)
    x = torch.rand(3, 2, 7, 6)
    with torch.no_grad():
        given = denoiser(x)
    torch.testing.assert_close(given, by_hand(denoiser.state_dict(), x, depth))
    assert (given - x).abs().max() > 1e-3


def test_names_of_the_published_checkpoints():
    expected = {"dncnn.0.bias", "dncnn.2.weight", "dncnn.3.running_mean", "dncnn.45.bias", "dncnn.47.weight"}
    assert expected <= on_meta("dncnn-wide").state_dict().keys()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "dncn"}, r"unknown denoiser 'dncn'; did you mean 'dncnn'"),
        ({"name": "lenet"}, r"unknown denoiser 'lenet'.*Known: diffusion, dncnn, dncnn-small, dncnn-wide"),
        ({"name": "dncnn", "in_channels": 0}, "in_channels must be at least 1, not 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        build_denoiser(**arguments)


class TestCheckpoints:
    def test_round_trip(self, tmp_path):
        denoiser = shaken("dncnn-small")
        info = CheckpointInfo.of("dncnn-small", sigma=0.5, extra={"objective": "mse"})
        path = save_checkpoint(tmp_path / "best.safetensors", denoiser, info)
        loaded = load_denoiser(tmp_path)
        x = torch.rand(2, 1, 8, 8)
        with torch.no_grad():
            assert torch.equal(loaded(x), denoiser(x))
        assert not any(module.training for module in loaded.modules())
        assert load_checkpoint(path).info == info
        assert describe(path).parameters == PARAMETERS["dncnn-small"]

    def test_a_classifier_is_refused(self, tmp_path):
        path = save_checkpoint(tmp_path / "m.safetensors", build("digits-cnn"), CheckpointInfo.of("digits-cnn"))
        with pytest.raises(CheckpointError, match="is a digits-cnn, which is not a denoiser"):
            load_denoiser(path)

    def test_weights_of_another_denoiser_are_refused(self, tmp_path):
        with pytest.raises(CheckpointError, match="other tensors than the architecture"):
            save_checkpoint(tmp_path / "m.safetensors", build_denoiser("dncnn-small"), CheckpointInfo.of("dncnn"))

    @pytest.mark.parametrize("prefix", ["", "module."])
    def test_published_files(self, tmp_path, prefix):
        """In the layout of Salman et al. (2020): a dict with the optimizer's state, in ``DataParallel`` or not."""
        denoiser = shaken("dncnn", in_channels=3)
        state = {prefix + name: tensor for name, tensor in denoiser.state_dict().items()}
        arch = "imagenet_dncnn" if prefix else "cifar_dncnn"
        content = {"epoch": 90, "arch": arch, "state_dict": state, "optimizer": {"state": {}, "param_groups": []}}
        torch.save(content, tmp_path / "checkpoint.pth.tar")
        x = torch.rand(1, 3, 6, 6)
        with torch.no_grad():
            assert torch.equal(load_denoiser(tmp_path)(x), denoiser(x))

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ({"arch": "memnet", "state_dict": {}}, "holds no state dict"),
            ({"arch": "cifar_dncnn"}, "holds no state dict"),
            ([1, 2], "holds no state dict"),
            ({"arch": "cifar_dncnn", "state_dict": {"dncnn.0.weight": 3}}, "holds no state dict"),
            ({"arch": "cifar_dncnn", "state_dict": {"fc.weight": torch.zeros(2, 2)}}, "is not a known denoiser"),
            ({"arch": "cifar_dncnn", "state_dict": {"dncnn.0.weight": torch.zeros(64, 3, 3, 3)}}, "missing"),
        ],
    )
    def test_other_files_are_refused(self, tmp_path, content, message):
        torch.save(content, tmp_path / "x.pth.tar")
        with pytest.raises(CheckpointError, match=message):
            load_denoiser(tmp_path / "x.pth.tar")

    def test_code_in_a_file_is_not_run(self, tmp_path):
        torch.save({"arch": "cifar_dncnn", "state_dict": nn.Linear(1, 1)}, tmp_path / "x.pth.tar")
        with pytest.raises(CheckpointError, match="would run code"):
            load_denoiser(tmp_path / "x.pth.tar")
