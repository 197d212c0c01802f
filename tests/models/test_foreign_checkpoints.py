"""Checkpoints in the styles of earlier systems."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from smoothcert.models import (
    MODELS,
    PRESETS,
    build,
    build_denoiser,
    describe,
    foreign,
    load_checkpoint,
    load_denoiser,
    load_model,
)
from smoothcert.types import CheckpointError, UsageError


class FrontLayer(nn.Module):
    """A normalisation layer whose values are in no buffers, as in the earlier systems."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def network(name: str, **arguments: int) -> nn.Module:
    torch.manual_seed(3)
    return build(name, **arguments).eval()


def written(path: Path, arch: str | None, state: dict[str, Tensor], **options: object) -> Path:
    """A file as Cohen et al. write it: arch, state_dict, epoch and optimizer."""
    weights = [nn.Parameter(torch.zeros(2))]
    optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9).state_dict()
    content = {"epoch": 90, "arch": arch, "state_dict": state, "optimizer": optimizer}
    torch.save(content, path, **options)
    return path


def assert_same(model: nn.Module, bare: nn.Module, preset: str | None, name: str) -> None:
    x = torch.rand(2, *MODELS[name].input_shape)
    y = x
    if preset is not None:
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in PRESETS[preset])
        y = (x - mean) / std
    with torch.no_grad():
        torch.testing.assert_close(model(x), bare(y))


class TestStyles:
    @pytest.mark.parametrize("legacy", [True, False], ids=["pickle", "zip"])
    def test_cohen_cifar(self, tmp_path, legacy):
        bare = network("cifar-resnet20")
        state = nn.Sequential(FrontLayer(), bare).state_dict()
        path = written(
            tmp_path / "checkpoint.pth.tar", "cifar_resnet20", state, _use_new_zipfile_serialization=not legacy
        )
        loaded = load_checkpoint(path)
        assert_same(loaded.model, bare, "cifar10", "cifar-resnet20")
        assert not loaded.model.training
        assert loaded.info.architecture == "cifar-resnet20"
        assert loaded.info.normalize == PRESETS["cifar10"]
        assert loaded.info.sigma is None
        assert loaded.info.extra == {"arch": "cifar_resnet20", "epoch": 90, "normalize_from": "assumed"}
        assert load_checkpoint(tmp_path).sha256 == loaded.sha256
        assert describe(path).parameters == 272_474

    def test_cohen_imagenet_has_data_parallel_inside_the_sequential(self, tmp_path):
        bare = network("resnet18", num_classes=4)
        state = nn.Sequential(FrontLayer(), nn.DataParallel(bare)).state_dict()
        assert next(iter(state)).startswith("1.module.")
        loaded = load_checkpoint(written(tmp_path / "m.pth.tar", "resnet18", state))
        assert loaded.info.num_classes == 4
        assert loaded.info.normalize == PRESETS["imagenet"]
        state = loaded.model[1].state_dict()
        assert all(torch.equal(state[name], tensor) for name, tensor in bare.state_dict().items())

    def test_lenet_has_an_identity_in_front(self, tmp_path):
        bare = network("lenet")
        path = written(tmp_path / "m.pth.tar", "lenet", nn.Sequential(nn.Identity(), bare).state_dict())
        assert load_checkpoint(path).info.normalize is None
        assert_same(load_model(path), bare, None, "lenet")

    def test_cifar100(self, tmp_path):
        bare = network("cifar-resnet20", num_classes=100)
        state = nn.Sequential(FrontLayer(), bare).state_dict()
        loaded = load_checkpoint(written(tmp_path / "m.pth.tar", "cifar_resnet20", state))
        assert loaded.info.num_classes == 100
        assert loaded.info.normalize == PRESETS["cifar100"]

    @pytest.mark.parametrize("wrap", ["module.1.", "module.1.module.", "1._orig_mod.", "module.module.1."])
    def test_wrappers_around_and_inside(self, tmp_path, wrap):
        bare = network("cifar-resnet20")
        state = {f"{wrap}{name}": tensor for name, tensor in bare.state_dict().items()}
        assert_same(load_model(written(tmp_path / "m.pt", "cifar_resnet20", state)), bare, "cifar10", "cifar-resnet20")

    @pytest.mark.parametrize(("mean", "std"), [("mean", "std"), ("means", "sds"), ("mu", "sigma")])
    def test_normalisation_buffers_in_the_file(self, tmp_path, mean, std):
        bare = network("cifar-resnet20")
        state = {f"1.{name}": tensor for name, tensor in bare.state_dict().items()}
        state |= {f"0.{mean}": torch.tensor([0.5, 0.25, 0.75]).view(1, 3, 1, 1), f"0.{std}": torch.full((3,), 0.5)}
        info = load_checkpoint(written(tmp_path / "m.pth", "cifar_resnet20", state)).info
        assert info.normalize == ((0.5, 0.25, 0.75), (0.5, 0.5, 0.5))
        assert info.extra["normalize_from"] == "file"

    def test_a_mean_alone_only_centres(self, tmp_path):
        state = {f"1.{name}": tensor for name, tensor in network("lenet").state_dict().items()}
        state["0.mean"] = torch.tensor([0.5])
        assert load_checkpoint(written(tmp_path / "m.pth", "lenet", state)).info.normalize == ((0.5,), (1.0,))

    @pytest.mark.parametrize("choice", ["cifar10-center", "none", ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))])
    def test_an_argument_overrides_the_normalisation(self, tmp_path, choice):
        bare = network("cifar-resnet20")
        path = written(tmp_path / "m.pth", "cifar_resnet20", nn.Sequential(FrontLayer(), bare).state_dict())
        expected = {"none": None}.get(choice, PRESETS.get(choice)) if isinstance(choice, str) else choice
        info = load_checkpoint(path, normalize=choice).info
        assert info.normalize == expected
        assert info.extra["normalize_from"] == "argument"

    def test_macer_has_neither_arch_nor_normalisation(self, tmp_path):
        bare = network("cifar-resnet20")
        torch.save({"net": bare.state_dict(), "epoch": 440}, tmp_path / "440.pth")
        assert_same(load_model(tmp_path / "440.pth", architecture="cifar-resnet20"), bare, None, "cifar-resnet20")

    def test_torchvision_is_bare_and_normalised_and_may_lack_batch_counts(self, tmp_path):
        bare = network("resnet18", num_classes=3)
        state = {name: t for name, t in bare.state_dict().items() if not name.endswith("num_batches_tracked")}
        torch.save(state, tmp_path / "resnet18.pth")
        loaded = load_checkpoint(tmp_path / "resnet18.pth", architecture="resnet18")
        assert loaded.info.normalize == PRESETS["imagenet"]
        assert loaded.info.num_classes == 3
        assert torch.equal(loaded.model[1].fc.weight, bare.fc.weight)

    def test_bare_safetensors(self, tmp_path):
        bare = network("lenet", in_channels=3)
        safetensors.torch.save_file(bare.state_dict(), tmp_path / "m.safetensors")
        loaded = load_checkpoint(tmp_path / "m.safetensors", architecture="lenet")
        assert loaded.info.input_shape == (3, 28, 28)

    def test_the_argument_comes_before_the_name_in_the_file(self, tmp_path):
        path = written(tmp_path / "m.pth", "our_lenet", network("lenet").state_dict())
        assert load_checkpoint(path, architecture="lenet").info.architecture == "lenet"


class TestRefused:
    def test_no_architecture(self, tmp_path):
        torch.save(network("lenet").state_dict(), tmp_path / "m.pth")
        with pytest.raises(CheckpointError, match=r"names no architecture; pass architecture=, one of .*lenet"):
            load_checkpoint(tmp_path / "m.pth")

    def test_unknown_architecture_in_the_file(self, tmp_path):
        path = written(tmp_path / "m.pth", "cifar_resnet11", network("lenet").state_dict())
        with pytest.raises(
            CheckpointError, match="unknown architecture 'cifar_resnet11'; did you mean 'cifar-resnet110'"
        ):
            load_checkpoint(path)

    def test_unknown_architecture_as_argument(self, tmp_path):
        path = written(tmp_path / "m.pth", "lenet", network("lenet").state_dict())
        with pytest.raises(UsageError, match="unknown architecture 'lent'"):
            load_checkpoint(path, architecture="lent")

    def test_wrong_normalisation_as_argument(self, tmp_path):
        path = written(tmp_path / "m.pth", "lenet", network("lenet").state_dict())
        with pytest.raises(UsageError, match="3 values for mean"):
            load_checkpoint(path, normalize="cifar10")

    def test_other_number_of_classes(self, tmp_path):
        path = written(tmp_path / "m.pth", "lenet", network("lenet").state_dict())
        with pytest.raises(CheckpointError, match="has 10 classes, not 7"):
            load_checkpoint(path, num_classes=7)

    def test_a_single_output_is_no_classifier(self, tmp_path):
        state = network("lenet").state_dict()
        state |= {"fc2.weight": torch.zeros(1, 500), "fc2.bias": torch.zeros(1)}
        with pytest.raises(CheckpointError, match="num_classes must be at least 2 and at most 1000000, not 1"):
            load_checkpoint(written(tmp_path / "m.pth", "lenet", state))

    def test_unexpected_and_missing_tensors(self, tmp_path):
        state = network("lenet").state_dict()
        state = {name.replace("conv", "conv_"): tensor for name, tensor in state.items()}
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(written(tmp_path / "m.pth", "lenet", state))
        message = str(caught.value)
        assert "unexpected 'conv_1.weight', 'conv_1.bias', 'conv_2.weight' and 1 more" in message
        assert "missing 'conv1.weight', 'conv1.bias', 'conv2.weight' and 1 more." in message
        assert "\n" not in message

    def test_missing_last_layer(self, tmp_path):
        state = network("lenet").state_dict()
        del state["fc2.weight"]
        with pytest.raises(CheckpointError, match=r"missing 'fc2\.weight'\."):
            load_checkpoint(written(tmp_path / "m.pth", "lenet", state))

    def test_shape_mismatch(self, tmp_path):
        path = written(tmp_path / "m.pth", "resnet18", network("cifar-resnet20").state_dict())
        with pytest.raises(CheckpointError, match="as resnet18 has other tensors than the architecture"):
            load_checkpoint(path)
        state = network("lenet").state_dict() | {"conv2.weight": torch.zeros(50, 20, 3, 3)}
        with pytest.raises(CheckpointError, match=r"'conv2\.weight' has shape \(50, 20, 3, 3\), but \(50, 20, 5, 5\)"):
            load_checkpoint(written(path, "lenet", state))

    def test_not_finite(self, tmp_path):
        state = network("lenet").state_dict()
        state["fc1.weight"][4, 2] = float("-inf")
        with pytest.raises(CheckpointError, match=r"'fc1\.weight' holds values that are not finite"):
            load_checkpoint(written(tmp_path / "m.pth", "lenet", state))

    def test_sparse_tensors(self, tmp_path):
        state = network("lenet").state_dict()
        state["fc1.weight"] = state["fc1.weight"].to_sparse()
        with pytest.raises(CheckpointError, match=r"'fc1\.weight' .* is not a plain"):
            load_checkpoint(written(tmp_path / "m.pth", "lenet", state))

    @pytest.mark.parametrize("name", ["1.fc2.weight", "0.mean"])
    def test_tensors_that_claim_more_values_than_they_hold(self, tmp_path, name):
        """One value can stand for any number of them, which a copy would need memory for."""
        state = {f"1.{key}": tensor for key, tensor in network("lenet").state_dict().items()}
        state[name] = torch.zeros(1).expand(2**34, 500)
        with pytest.raises(CheckpointError, match=rf"'{name}' .* is not a plain tensor with all its values"):
            load_checkpoint(written(tmp_path / "m.pth", "lenet", state))

    def test_a_published_denoiser_that_claims_more_than_it_holds(self, tmp_path):
        state = build_denoiser("dncnn").state_dict()
        state["dncnn.0.weight"] = torch.zeros(1).expand(64, 2**34, 3, 3)
        with pytest.raises(CheckpointError, match=r"is not a plain"):
            load_denoiser(written(tmp_path / "m.pth.tar", "cifar_dncnn", state))

    def test_an_archive_that_unpacks_to_too_much(self, tmp_path, monkeypatch):
        path = written(tmp_path / "m.pth", "lenet", network("lenet").state_dict())
        with zipfile.ZipFile(path) as file:
            members = {name: file.read(name) for name in file.namelist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for name, content in members.items():
                file.writestr(name, bytes(len(content)) if "/data/" in name else content)
        monkeypatch.setattr(foreign, "unpacked_limit", lambda packed: 10 * packed)
        with pytest.raises(CheckpointError, match=r"it would unpack to \d+ bytes"):
            load_checkpoint(path)

    def test_an_unknown_layer_in_front(self, tmp_path):
        state = {f"1.{name}": tensor for name, tensor in network("lenet").state_dict().items()}
        state["0.weight"] = torch.zeros(3)
        with pytest.raises(CheckpointError, match=r"has 'weight' in front of the network, not a mean and std; pass"):
            load_checkpoint(written(tmp_path / "m.pth", "lenet", state))

    def test_the_same_tensor_twice(self, tmp_path):
        state = network("lenet").state_dict()
        state["module.fc2.bias"] = torch.zeros(10)
        with pytest.raises(CheckpointError, match=r"holds 'fc2\.bias' twice"):
            load_checkpoint(written(tmp_path / "m.pth", "lenet", state))

    @pytest.mark.parametrize(
        "content", [{}, [1, 2], "text", {"state_dict": {}}, {"state_dict": [1]}, {"net": {"a": 1}}, {3: torch.ones(1)}]
    )
    def test_no_state_dict(self, tmp_path, content):
        torch.save(content, tmp_path / "m.pth")
        with pytest.raises(CheckpointError, match="holds no state dict"):
            load_checkpoint(tmp_path / "m.pth", architecture="lenet")

    @pytest.mark.parametrize("legacy", [True, False], ids=["pickle", "zip"])
    @pytest.mark.parametrize("part", [0.001, 0.5, 0.99])
    def test_truncated(self, tmp_path, legacy, part):
        path = written(
            tmp_path / "m.pth", "lenet", network("lenet").state_dict(), _use_new_zipfile_serialization=not legacy
        )
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * part)])
        with pytest.raises(CheckpointError, match="damaged"):
            load_checkpoint(path)

    def test_another_zip(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "m.pth", "w") as archive:
            archive.writestr("notes.txt", "no weights here")
        with pytest.raises(CheckpointError, match="damaged or not a PyTorch checkpoint"):
            load_checkpoint(tmp_path / "m.pth")


def test_a_denoiser_is_no_classifier(tmp_path):
    file = written(tmp_path / "denoiser.pth.tar", None, build_denoiser("dncnn-small").state_dict())
    with pytest.raises(UsageError, match=r"dncnn-small is a denoiser; load .* with load_denoiser"):
        load_checkpoint(file, architecture="dncnn-small")
