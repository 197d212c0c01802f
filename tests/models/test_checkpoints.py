"""Our own checkpoints: round trips, folders, metadata and atomic writing."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from smoothcert.models import (
    MODELS,
    CheckpointInfo,
    build,
    describe,
    load_checkpoint,
    load_model,
    save_checkpoint,
)
from smoothcert.types import CheckpointError, UsageError

SMALL = ["digits-cnn", "lenet", "cifar-resnet20"]
DIGITS = CheckpointInfo.of("digits-cnn")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return save_checkpoint(tmp_path / "model.safetensors", build("digits-cnn"), DIGITS)


class TestRoundTrip:
    @pytest.mark.parametrize("name", SMALL)
    def test_same_answers_metadata_and_hash(self, name, tmp_path):
        torch.manual_seed(1)
        channels = MODELS[name].input_shape[0]
        arguments = {"num_classes": 5, "normalize": ((0.3,) * channels, (0.7,) * channels)}
        model = build(name, **arguments)
        x = torch.rand(3, *MODELS[name].input_shape)
        model(x)  # moves the batch statistics
        info = CheckpointInfo.of(name, **arguments, sigma=0.25, extra={"recipe": {"epochs": 3}, "accuracy": 0.5})
        path = save_checkpoint(tmp_path / "new" / "m.safetensors", model, info)
        loaded = load_checkpoint(path)
        with torch.no_grad():
            assert torch.equal(loaded.model(x), model.eval()(x))
        assert loaded.info == info
        assert loaded.path == path
        assert loaded.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert not any(module.training for module in loaded.model.modules())
        assert all(parameter.requires_grad and parameter.is_leaf for parameter in loaded.model.parameters())

    @pytest.mark.parametrize("name", [name for name in MODELS if name not in SMALL])
    def test_shapes_of_the_large_ones(self, name, tmp_path):
        model = build_zeros(name)
        path = save_checkpoint(tmp_path / "m.safetensors", model, CheckpointInfo.of(name))
        loaded = load_model(path).state_dict()
        assert {key: tensor.shape for key, tensor in loaded.items()} == {
            key: tensor.shape for key, tensor in model.state_dict().items()
        }

    def test_tensors_have_the_names_of_the_bare_network(self, tmp_path):
        info = CheckpointInfo.of("lenet", normalize="mnist")
        path = save_checkpoint(tmp_path / "m.safetensors", build("lenet", normalize="mnist"), info)
        assert safetensors.torch.load_file(path).keys() == build("lenet").state_dict().keys()

    def test_loading_draws_no_random_numbers(self, saved):
        before = torch.get_rng_state()
        load_model(saved)
        assert torch.equal(torch.get_rng_state(), before)

    def test_channels_last_and_double_weights(self, tmp_path):
        torch.manual_seed(0)
        model = build("digits-cnn")
        x = torch.rand(1, 1, 8, 8)
        expected = model(x)
        model = model.double().to(memory_format=torch.channels_last)
        path = save_checkpoint(tmp_path / "m.safetensors", model, DIGITS)
        torch.testing.assert_close(load_model(path)(x), expected)

    def test_describe(self, saved):
        summary = describe(saved)
        assert summary.info == DIGITS
        assert summary.parameters == 38_282
        assert summary.sha256 == load_checkpoint(saved).sha256
        assert summary.path == saved
        fields = summary.as_dict()
        assert fields["path"] == str(saved)
        assert {"architecture", "num_classes", "sigma", "normalize", "parameters", "sha256"} <= fields.keys()

    def test_arguments_that_agree_are_accepted(self, saved):
        assert load_model(saved, architecture="digits-cnn", num_classes=10, normalize="none") is not None

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"architecture": "lenet"}, "is a digits-cnn, not a lenet"),
            ({"num_classes": 4}, "has 10 classes, not 4"),
            ({"normalize": "mnist"}, "saved with the normalisation None, not mnist"),
        ],
    )
    def test_arguments_that_contradict_the_file_are_refused(self, saved, arguments, message):
        with pytest.raises(CheckpointError, match=message):
            load_checkpoint(saved, **arguments)

    def test_an_unknown_architecture_argument_is_a_usage_error(self, saved):
        with pytest.raises(UsageError, match="unknown architecture 'lent'"):
            load_checkpoint(saved, architecture="lent")


def build_zeros(name: str) -> nn.Module:
    """The model without the time for its random weights."""
    with torch.device("meta"):
        model = build(name)
    model.to_empty(device="cpu")
    for tensor in model.state_dict().values():
        tensor.zero_()
    return model


class TestFolders:
    def test_best_comes_before_last_and_others(self, saved):
        folder = saved.parent
        assert load_checkpoint(folder).path == saved
        for name in ("last.safetensors", "best.safetensors"):
            (folder / name).write_bytes(saved.read_bytes())
            assert load_checkpoint(folder).path == folder / name

    def test_several_others_are_refused(self, saved):
        (saved.parent / "second.safetensors").write_bytes(saved.read_bytes())
        with pytest.raises(CheckpointError, match="holds 2 checkpoints, none of them best"):
            load_checkpoint(saved.parent)

    def test_an_empty_folder_is_refused(self, tmp_path):
        with pytest.raises(CheckpointError, match="holds no checkpoint"):
            load_checkpoint(tmp_path)


class TestSaving:
    def test_a_failure_leaves_the_old_file_and_nothing_else(self, saved, monkeypatch):
        old = saved.read_bytes()

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(CheckpointError, match="cannot be written: No space left on device"):
            save_checkpoint(saved, build("digits-cnn"), DIGITS)
        assert saved.read_bytes() == old
        assert list(saved.parent.iterdir()) == [saved]

    def test_an_interruption_leaves_nothing_behind(self, tmp_path, monkeypatch):
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(tmp_path / "m.safetensors", build("digits-cnn"), DIGITS)
        assert list(tmp_path.iterdir()) == []

    def test_a_file_replaces_the_old_one(self, saved):
        before = describe(saved).sha256
        save_checkpoint(saved, build("digits-cnn"), DIGITS)
        assert describe(saved).sha256 != before
        assert list(saved.parent.iterdir()) == [saved]

    def test_a_folder_that_cannot_be_made_is_refused(self, saved):
        with pytest.raises(CheckpointError, match="cannot be written"):
            save_checkpoint(saved / "m.safetensors", build("digits-cnn"), DIGITS)

    def test_weights_that_are_not_finite_are_refused(self, tmp_path):
        model = build("digits-cnn")
        model.get_submodule("fc1").bias.data[3] = float("nan")
        with pytest.raises(CheckpointError, match=r"'fc1\.bias' holds values that are not finite"):
            save_checkpoint(tmp_path / "m.safetensors", model, DIGITS)
        assert list(tmp_path.iterdir()) == []

    def test_another_model_than_the_metadata_says_is_refused(self, tmp_path):
        with pytest.raises(CheckpointError, match=r"model to save as lenet: tensor 'conv1\.weight' has shape"):
            save_checkpoint(tmp_path / "m.safetensors", build("digits-cnn"), CheckpointInfo.of("lenet"))

    @pytest.mark.parametrize(("of_model", "of_metadata"), [("mnist", None), (None, "mnist"), ("mnist", ((0,), (1,)))])
    def test_another_normalisation_than_the_metadata_says_is_refused(self, tmp_path, of_model, of_metadata):
        info = CheckpointInfo.of("digits-cnn", normalize=of_metadata)
        with pytest.raises(UsageError, match="normalisation of the model is not the one"):
            save_checkpoint(tmp_path / "m.safetensors", build("digits-cnn", normalize=of_model), info)

    def test_another_suffix_is_refused(self, tmp_path):
        with pytest.raises(UsageError, match=r"saved as a \.safetensors file, not as 'm\.pth'"):
            save_checkpoint(tmp_path / "m.pth", build("digits-cnn"), DIGITS)

    @pytest.mark.parametrize("value", [object(), float("nan")])
    def test_extra_that_json_cannot_hold_is_refused(self, tmp_path, value):
        info = CheckpointInfo.of("digits-cnn", extra={"value": value})
        with pytest.raises(UsageError, match="cannot be written as JSON"):
            save_checkpoint(tmp_path / "m.safetensors", build("digits-cnn"), info)


class TestMetadata:
    def test_an_alias_becomes_our_name(self):
        info = CheckpointInfo(architecture="cifar_resnet110", num_classes=10, input_shape=(3, 32, 32))
        assert info.architecture == "cifar-resnet110"
        assert CheckpointInfo.of("cifar100_resnet110").num_classes == 100

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"num_classes": 1}, "num_classes must be at least 2"),
            ({"input_shape": (1, 0, 8)}, "input_shape must be"),
            ({"sigma": -0.1}, "sigma must be"),
            ({"sigma": float("nan")}, "sigma must be"),
            ({"input_range": (1.0, 1.0)}, "input_range must be"),
            ({"noise": {"lam": 1.0}}, "noise must have a name"),
            ({"noise": {"name": "gaussian", "sigma": 0.5}, "sigma": 0.25}, "sigma is 0.25, but the noise is"),
            ({"noise": {"name": "uniform", "lam": 0.5}, "sigma": 0.25}, "sigma is 0.25, but the noise is"),
            ({"normalize": ((0.5, 0.5), (1.0, 1.0))}, "2 values for mean"),
            ({"architecture": "digit-cnn"}, "did you mean 'digits-cnn'"),
        ],
    )
    def test_wrong_values_are_refused(self, arguments, message):
        right = {"architecture": "digits-cnn", "num_classes": 10, "input_shape": (1, 8, 8)}
        with pytest.raises(UsageError, match=message):
            CheckpointInfo(**{**right, **arguments})

    def test_the_noise_is_kept_and_a_gaussian_one_is_sigma_too(self, tmp_path):
        noises = [
            {"name": "gaussian", "sigma": 0.25},
            {"name": "uniform", "lam": 1.0},
            {"name": "discrete", "keep": 0.8, "levels": 1},
        ]
        for noise in noises:
            info = CheckpointInfo.of("digits-cnn", noise=noise)
            assert info.sigma == noise.get("sigma")
            path = save_checkpoint(tmp_path / f"{noise['name']}.safetensors", build("digits-cnn"), info)
            loaded = load_checkpoint(path).info
            assert loaded == info
            assert loaded.noise == noise
            assert type(loaded.noise.get("levels", 1)) is int
            assert describe(path).as_dict()["noise"] == noise

    def test_metadata_of_before_there_was_a_noise_is_read(self):
        raw = json.loads(CheckpointInfo.of("digits-cnn", sigma=0.5).to_json())
        del raw["noise"]
        info = CheckpointInfo.from_json(json.dumps(raw), "an old file")
        assert (info.sigma, info.noise) == (0.5, None)
        for wrong in (3, {"name": ["uniform"]}, {"name": "uniform", "lam": None}):
            with pytest.raises(CheckpointError, match=r"invalid metadata .*noise"):
                CheckpointInfo.from_json(json.dumps({**raw, "noise": wrong}), "a damaged file")
