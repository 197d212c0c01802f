"""Quantised models: fixed functions of one row with their own identity; those that are not are refused."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import smoothcert as sc
from smoothcert.classifiers.identity import model_identity
from smoothcert.classifiers.sealed import Sealed
from smoothcert.models import load_model, open_model, quantize
from smoothcert.models.sources.onnx_file import OnnxModel
from smoothcert.sampling import ESTIMATION
from smoothcert.sampling.copies import NoisyCopies
from smoothcert.sampling.runtimes import check_copies
from smoothcert.types import CheckpointError, UsageError

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
NOISE = sc.Gaussian(0.25)


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)]
    model = nn.Sequential(*layers).eval()
    model[1].running_mean.normal_()
    model[4].weight.data.mul_(5)
    return model


def inputs(count: int) -> torch.Tensor:
    return torch.rand((count, 1, 8, 8), generator=torch.Generator().manual_seed(1))


def write(path, batch: int | None = None) -> None:
    """Write the network as a float ONNX file, by the older exporter, which is a hundred times faster."""
    axes = {} if batch else {"dynamic_axes": {"x": {0: "batch"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network(), (inputs(batch or 2),), path, input_names=["x"], dynamo=False, **axes)


@pytest.fixture
def int8(tmp_path):
    """The quantised network, made of the ONNX file of the float one."""
    write(tmp_path / "float.onnx")
    return quantize(load_model(tmp_path / "float.onnx"), inputs(100), NOISE, tmp_path / "int8.onnx")


class TestInt8:
    def test_it_is_close_to_the_original(self, int8, tmp_path):
        x = NOISE.sample(inputs(1)[0], torch.empty(500, 1, 8, 8), torch.Generator().manual_seed(2))
        with torch.inference_mode():
            assert (int8(x).argmax(1) == network()(x).argmax(1)).double().mean() > 0.95
        graph = onnx.load(tmp_path / "int8.onnx").graph
        kinds = {node.op_type for node in graph.node}
        assert {"Conv", "QuantizeLinear", "DequantizeLinear"} <= kinds
        assert "BatchNormalization" not in kinds  # merged before
        constants = [onnx.numpy_helper.to_array(each) for each in graph.initializer]
        weights = [each.astype(int) for each in constants if each.dtype == "int8" and each.ndim > 1]
        assert len(weights) == 2
        assert max(abs(each).max() for each in weights) <= 64  # two products fit into 16 bits: 2 · 64 · 255 < 2¹⁵

    def test_a_row_does_not_depend_on_its_batch(self, int8):
        x = inputs(50)
        with torch.inference_mode():
            together = int8(x)
            for size in (1, 7):
                assert torch.equal(torch.cat([int8(part) for part in torch.split(x, size)]), together)
        assert Sealed(int8).verify(check_copies(inputs(1)[0], NOISE)).num_classes == 10

    def test_the_file_is_the_certified_model(self, int8, tmp_path):
        loaded = open_model(tmp_path / "int8.onnx")
        assert (loaded.noise, loaded.num_classes) == (NOISE.config(), 10)
        assert loaded.source["quantized"]["activations"] == "uint8, static"
        certificate = sc.load_smoothed(tmp_path / "int8.onnx").certify(inputs(1)[0], sc.Cohen(200))
        assert certificate.model == Sealed(int8).digest
        assert model_identity(int8) != model_identity(load_model(tmp_path / "float.onnx"))

    def test_exact_noise(self, int8, tmp_path):
        x = (inputs(20) * 16).round() / 16
        quantize(load_model(tmp_path / "float.onnx"), x, sc.Gaussian(0.25, grid=16), tmp_path / "grid.onnx")
        assert open_model(tmp_path / "grid.onnx").noise["grid"] == 16

    def test_mistakes_are_refused(self, int8, tmp_path):
        with pytest.raises(UsageError, match=r"saved as an \.onnx file"):
            quantize(int8, inputs(1), NOISE, tmp_path / "m.safetensors")
        with pytest.raises(UsageError, match="there are no inputs"):
            quantize(int8, [], NOISE, tmp_path / "m.onnx")
        with pytest.raises(UsageError, match=r"starts from float32 weights, but the model has torch\.bfloat16"):
            quantize(network().bfloat16(), inputs(1), NOISE, tmp_path / "m.onnx")

        class Fails(nn.Module):
            def forward(self, x):
                raise RuntimeError("no symbols here")

        with pytest.raises(UsageError, match="cannot be exported to ONNX"):
            quantize(Fails(), inputs(3), NOISE, tmp_path / "m.onnx")
        assert not (tmp_path / "m.onnx").exists()

    @pytest.mark.parametrize("text", ["{", "[]", '{"noise": 3}', "[" * 5000])
    def test_damaged_metadata_is_refused(self, int8, tmp_path, text):
        model = onnx.load(tmp_path / "int8.onnx")
        onnx.helper.set_model_props(model, {"smoothcert": text})
        onnx.save(model, tmp_path / "bad.onnx")
        with pytest.raises(CheckpointError, match="damaged metadata"):
            load_model(tmp_path / "bad.onnx")


class TestDynamicQuantisation:
    """Its ranges are those of the batch: the kind of model that would produce false certificates."""

    def make(self, path, batch: int | None = None) -> None:
        from onnxruntime.quantization import quantize_dynamic

        write(path.with_name("float.onnx"), batch)
        quantize_dynamic(path.with_name("float.onnx"), path)

    @pytest.mark.parametrize("batch", [None, 4])
    def test_the_file_is_refused(self, tmp_path, batch):
        self.make(tmp_path / "dynamic.onnx", batch)
        with pytest.raises(UsageError, match="by the range of the whole batch"):
            load_model(tmp_path / "dynamic.onnx")

    def test_sealing_refuses_it_too(self, tmp_path):
        self.make(tmp_path / "dynamic.onnx")
        model = OnnxModel((tmp_path / "dynamic.onnx").read_bytes())
        with pytest.raises(UsageError, match="depend on the other rows of the batch"):
            sc.Smoothed(model, NOISE).certify(inputs(1)[0], sc.Cohen(100))

    def test_in_batches_of_one_it_is_a_function_of_one_row(self, tmp_path):
        self.make(tmp_path / "dynamic.onnx", 1)
        model = load_model(tmp_path / "dynamic.onnx")
        together = model(inputs(6))
        assert torch.equal(together, torch.cat([model(row) for row in torch.split(inputs(6), 1)]))
        assert sc.Smoothed(model, NOISE).certify(inputs(1)[0], sc.Cohen(100)).n == 100


def test_a_network_in_bfloat16_is_certified_as_it_is():
    model, x = network().bfloat16(), inputs(1)[0]
    certificate = sc.Smoothed(model, NOISE).certify(x, sc.Cohen(1_000), seed=0)
    assert certificate.model == Sealed(model).digest != Sealed(network()).digest
    copies = torch.empty(1_000, *x.shape)
    NoisyCopies(x).fill(copies, x, NOISE, seed=0, index=certificate.index, stage=ESTIMATION, start=0)
    with torch.inference_mode():
        votes = torch.bincount(model(copies.bfloat16()).argmax(1), minlength=10)
    assert (votes - torch.tensor(certificate.counts)).abs().sum() <= 10  # the last bits depend on the batch size
