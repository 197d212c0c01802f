"""Denoisers that others published are rebuilt from their tensors, and diffusion models denoise in one step."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from smoothcert import models
from smoothcert.models import load_denoiser, open_denoiser
from smoothcert.models.sources.diffusion import DiffusionDenoiser, timestep
from smoothcert.types import CheckpointError, UsageError


def convolutions(*channels: int, bias: bool = True) -> list[nn.Conv2d]:
    torch.manual_seed(0)
    pairs = itertools.pairwise(channels)
    return [nn.Conv2d(before, after, 3, padding=1, bias=bias) for before, after in pairs]


def numbered(convs: list[nn.Conv2d], prefix: str = "model.") -> dict[str, torch.Tensor]:
    layers = [layer for conv in convs for layer in (conv, nn.ReLU())][:-1]
    return {f"{prefix}{name}": value for name, value in nn.Sequential(*layers).state_dict().items()}


def stacked(convs: list[nn.Conv2d], x: torch.Tensor) -> torch.Tensor:
    for conv in convs[:-1]:
        x = conv(x).relu()
    return convs[-1](x)


@torch.no_grad()
@pytest.mark.parametrize("prefix", ["model.", "module.model."])
@pytest.mark.parametrize("bias", [True, False])
def test_dncnn_subtracts_what_it_finds(tmp_path, prefix, bias):
    convs = convolutions(3, 8, 8, 3, bias=bias)
    torch.save(numbered(convs, prefix), tmp_path / "d.pth")
    x = torch.rand(2, 3, 9, 7)
    assert torch.equal(load_denoiser(tmp_path / "d.pth")(x), x - stacked(convs, x))


@torch.no_grad()
def test_ffdnet_is_told_the_noise_level(tmp_path):
    convs = convolutions(5, 8, 4)
    torch.save(numbered(convs), tmp_path / "f.pth")
    x = torch.rand(2, 1, 6, 8)
    parts = torch.stack([x[:, 0, i::2, j::2] for i in (0, 1) for j in (0, 1)], dim=1)
    found = stacked(convs, torch.cat([parts, torch.full((2, 1, 3, 4), 0.3)], dim=1))
    expected = torch.empty_like(x)
    for place, (i, j) in enumerate((i, j) for i in (0, 1) for j in (0, 1)):
        expected[:, 0, i::2, j::2] = found[:, place]
    assert torch.equal(load_denoiser(tmp_path / "f.pth", level=0.3)(x), expected)
    loaded = open_denoiser(f"{tmp_path / 'f.pth'},level=0.3", level=0.9)
    assert torch.equal(loaded.model(x), expected)
    assert loaded.source["level"] == 0.3
    assert loaded.model(torch.rand(1, 1, 5, 7)).shape == (1, 1, 5, 7)
    with pytest.raises(UsageError, match="told the noise level"):
        load_denoiser(tmp_path / "f.pth")


class Published(nn.Module):
    """The network of Mohan et al. (2020), whose layers only divide by the deviation where it has no bias."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        first, second, third, last = convolutions(1, 4, 4, 4, 1, bias=bias)
        self.first_layer, self.last_layer, self.bias = first, last, bias
        self.hidden_layer_list = nn.ModuleList([second, third])
        self.bn_layer_list = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4)])
        for norm in self.bn_layer_list:
            for value in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
                nn.init.uniform_(value, 0.5, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first_layer(x).relu()
        for conv, norm in zip(self.hidden_layer_list, self.bn_layer_list, strict=True):
            y = conv(y)
            scale = norm.weight / (norm.running_var.sqrt() + norm.eps)
            y = (norm(y) if self.bias else y * scale[:, None, None]).relu()
        return x - self.last_layer(y)


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
def test_bias_free_networks(tmp_path, bias):
    model = Published(bias).eval()
    torch.save(model.state_dict(), tmp_path / "b.pt")
    x = torch.rand(2, 1, 9, 7)
    assert torch.allclose(load_denoiser(tmp_path / "b.pt")(x), model(x), atol=1e-5)
    if not bias:
        assert torch.allclose(load_denoiser(tmp_path / "b.pt")(3 * x), 3 * model(x), atol=1e-4)


@pytest.mark.parametrize(
    "tensors",
    [
        numbered(convolutions(3, 8, 3), "other."),
        numbered(convolutions(3, 8, 3)[:1] + convolutions(4, 3)),
        numbered(convolutions(3, 8, 5)),
        {"model.0.weight": torch.zeros(3, 3)},
        {"model.1.weight": torch.zeros(3, 3, 3, 3)},
        {"first_layer.weight": torch.zeros(4, 1, 3, 3)},
    ],
)
def test_other_tensors_are_refused(tmp_path, tensors):
    torch.save(tensors, tmp_path / "d.pth")
    with pytest.raises(CheckpointError):
        load_denoiser(tmp_path / "d.pth")


def test_a_denoiser_of_the_users_own_code(tmp_path):
    (tmp_path / "mine.py").write_text("from torch import nn\n\ndef blur():\n    return nn.AvgPool2d(3, 1, 1)\n")
    assert isinstance(load_denoiser(f"{tmp_path / 'mine.py'}:blur"), nn.AvgPool2d)


@torch.no_grad()
@pytest.mark.parametrize(("file", "least"), [("dncnn_color_blind.pth", 2.5), ("ffdnet_color.pth", 2.5)])
def test_real_denoisers_remove_noise(shared_assets, file, least):
    denoiser = load_denoiser(shared_assets / "kair-denoisers" / file, level=0.1)
    grid = torch.stack(torch.meshgrid(*[torch.linspace(0, 1, 64)] * 2, indexing="ij"))
    image = torch.stack([grid[0], grid[1], (grid[0] > grid[1]).float()])[None]
    noise = 0.1 * torch.randn(image.shape, generator=torch.Generator().manual_seed(0))
    before, after = (float((x - image).square().mean().sqrt()) for x in (image + noise, denoiser(image + noise)))
    assert before / after > least


class TestDiffusion:
    ALPHAS = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)

    @pytest.mark.parametrize("sigma", [0.12, 0.25, 0.5, 1.0])
    def test_the_step_has_the_level_of_the_noise(self, sigma):
        """Carlini et al. (2023), §3: (1 − ᾱ)/ᾱ = σ², where σ doubles with images in [−1, 1]."""
        alpha = self.ALPHAS[timestep(self.ALPHAS, sigma)]
        assert float(((1 - alpha) / alpha).sqrt()) == pytest.approx(2 * sigma, rel=0.02)

    def test_beyond_the_last_step(self):
        with pytest.raises(UsageError, match="knows noise up to"):
            timestep(self.ALPHAS, 100.0)

    @pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
    def test_a_perfect_network_returns_the_image(self, prediction):
        image = torch.rand(2, 1, 4, 4)
        alpha = float(self.ALPHAS[timestep(self.ALPHAS, 0.25)])
        noise = 0.25 * torch.randn(image.shape, generator=torch.Generator().manual_seed(0))
        clean, unit = 2 * image - 1, 2 * noise * (alpha / (1 - alpha)) ** 0.5

        def perfect(x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
            assert torch.allclose(x, alpha**0.5 * clean + (1 - alpha) ** 0.5 * unit, atol=1e-5)
            assert steps.tolist() == [timestep(self.ALPHAS, 0.25)] * 2
            return {"epsilon": unit, "sample": clean, "v_prediction": alpha**0.5 * unit - (1 - alpha) ** 0.5 * clean}[
                prediction
            ]

        denoised = DiffusionDenoiser(perfect, self.ALPHAS, 0.25, prediction)(image + noise)
        assert torch.allclose(denoised, image, atol=1e-5)

    def test_a_folder_of_diffusers(self, tmp_path):
        diffusers = pytest.importorskip("diffusers")
        torch.manual_seed(0)
        network = diffusers.UNet2DModel(
            sample_size=8,
            in_channels=1,
            out_channels=1,
            block_out_channels=(8, 8),
            norm_num_groups=4,
            layers_per_block=1,
            down_block_types=("DownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "UpBlock2D"),
        )
        network.save_pretrained(tmp_path / "pipe" / "unet")
        diffusers.DDPMScheduler(prediction_type="sample").save_pretrained(tmp_path / "pipe" / "scheduler")
        (tmp_path / "pipe" / "model_index.json").write_text(json.dumps({"_class_name": "DDPMPipeline"}))
        x = torch.rand(3, 1, 8, 8)
        loaded = open_denoiser(tmp_path / "pipe", level=0.25)
        step, scheduler = loaded.source["step"], diffusers.DDPMScheduler()
        with torch.no_grad():
            expected = network.eval()(float(scheduler.alphas_cumprod[step]) ** 0.5 * (2 * x - 1), step).sample
            assert torch.allclose(loaded.model(x), (expected.clamp(-1, 1) + 1) / 2, atol=1e-5)
        assert open_denoiser(f"{tmp_path / 'pipe' / 'unet'},level=0.5").model.prediction == "epsilon"
        with pytest.raises(UsageError, match="told the noise level"):
            models.open_denoiser(tmp_path / "pipe")
        Path(tmp_path / "pipe" / "unet" / "config.json").write_text(
            '{"_class_name": "UNet2DModel", "in_channels": "x"}'
        )
        with pytest.raises(CheckpointError, match="cannot be loaded as a diffusion model"):
            open_denoiser(tmp_path / "pipe", level=0.25)
