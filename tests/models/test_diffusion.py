"""Diffusion denoisers: one step and several against ``diffusers``, and random numbers that are functions of one row."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from torch import nn

from smoothcert import Cohen, Gaussian, Smoothed, models
from smoothcert.classifiers.denoised import denoised_ensemble
from smoothcert.classifiers.identity import model_identity
from smoothcert.classifiers.sealed import Sealed
from smoothcert.models.sources.diffusion import DiffusionDenoiser, each_seed, noise_of_rows, timestep
from smoothcert.sampling.runtimes import check_copies, prepare
from smoothcert.types import CheckpointError, SmoothcertError, UsageError

ALPHAS = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)


class Scripted(nn.Module):
    """A network of one convolution, whose output depends on the step."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.conv = nn.Conv2d(1, 1, 3, padding=1)
        with torch.no_grad():
            self.conv.weight.copy_(torch.randn(self.conv.weight.shape, generator=generator) / 3)

    def forward(self, x, steps):
        return torch.tanh(self.conv(x) + steps.reshape(-1, 1, 1, 1) / 1000)


@pytest.fixture
def scheduler():
    return pytest.importorskip("diffusers").DDPMScheduler


@pytest.mark.parametrize("sigma", [0.01, 0.1237, 0.25, 0.31, 0.5, 0.777, 1.0, 2.0])
def test_no_other_step_is_nearer_to_the_level(sigma):
    """Between two steps, the one whose noise σ_t = √(1/ᾱ_t − 1) is nearer to 2σ."""
    found = timestep(ALPHAS, sigma)
    distances = [abs((1 / float(alpha) - 1) ** 0.5 - 2 * sigma) for alpha in ALPHAS.double()]
    assert distances[found] == min(distances)


def test_levels_on_both_sides_of_the_middle_of_two_steps():
    level = [(1 / float(alpha) - 1) ** 0.5 / 2 for alpha in ALPHAS[300:302].double()]
    middle = sum(level) / 2
    assert [timestep(ALPHAS, middle + shift) for shift in (-1e-6, 1e-6)] == [300, 301]


@torch.no_grad()
@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
def test_one_step_is_the_prediction_of_diffusers(scheduler, prediction):
    reference = scheduler(prediction_type=prediction)
    network, x = Scripted(), torch.rand(3, 1, 6, 6)
    denoiser = DiffusionDenoiser(network, reference.alphas_cumprod, 0.3, prediction)
    # x_t by the scheduler, for noise whose standard deviation is that of the step
    unit = torch.randn(x.shape)
    alpha = float(reference.alphas_cumprod[denoiser.step])
    state = reference.add_noise(2 * x - 1, unit, torch.tensor([denoiser.step]))
    expected = reference.step(network(state, torch.tensor([denoiser.step])), denoiser.step, state).pred_original_sample
    copy = x + ((1 - alpha) / alpha) ** 0.5 / 2 * unit
    torch.testing.assert_close(denoiser(copy), (expected + 1) / 2, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("steps", [2, 3, 7])
def test_several_steps_are_those_of_diffusers(scheduler, monkeypatch, prediction, steps):
    """With the same random numbers, the ancestral sampling of ``DDPMScheduler`` on the same steps."""
    from diffusers.schedulers import scheduling_ddpm

    reference = scheduler(prediction_type=prediction, variance_type="fixed_small")
    network, x = Scripted(), torch.rand(4, 1, 6, 6) + 0.3 * torch.randn(4, 1, 6, 6)
    denoiser = DiffusionDenoiser(network, reference.alphas_cumprod, 0.3, prediction, steps=steps, seed=5)
    chain = denoiser.chain
    assert chain[0] == timestep(reference.alphas_cumprod, 0.3)
    assert len(set(chain)) == steps
    gaps = [a - b for a, b in zip(chain, [*chain[1:], -1], strict=True)]
    assert max(gaps) - min(gaps) <= 1
    numbers = iter([*noise_of_rows(x, steps - 1, seed=5), torch.zeros_like(x)])  # the last step adds nothing
    monkeypatch.setattr(scheduling_ddpm, "randn_tensor", lambda *args, **kwargs: next(numbers))
    reference.set_timesteps(timesteps=chain)
    state = float(reference.alphas_cumprod[chain[0]]) ** 0.5 * (2 * x - 1)
    for step in chain:
        state = reference.step(network(state, torch.full((4,), step)), step, state).prev_sample
    torch.testing.assert_close(denoiser(x), (state + 1) / 2, atol=1e-5, rtol=1e-4)


class TestRandomNumbers:
    def test_a_row_decides_its_own(self):
        x = torch.rand(9, 2, 4, 4)
        together = torch.stack(list(noise_of_rows(x, 3, seed=1)))
        alone = torch.cat([torch.stack(list(noise_of_rows(row[None], 3, seed=1))) for row in x], dim=1)
        assert torch.equal(together, alone)
        turned = torch.stack(list(noise_of_rows(x.flip(0), 3, seed=1))).flip(1)
        assert torch.equal(together, turned)
        last = x.contiguous(memory_format=torch.channels_last)
        assert torch.equal(together, torch.stack(list(noise_of_rows(last, 3, seed=1))))

    def test_rows_seeds_and_steps_differ(self):
        x = torch.rand(2, 1, 4, 4)
        x = torch.cat([x, x[:1] + 1e-6])
        drawn = [row for seed in (0, 1) for part in noise_of_rows(x, 2, seed) for row in part]
        assert len({tuple(row.flatten().tolist()) for row in drawn}) == 12

    def test_equal_values_are_equal_rows(self):
        zeros = torch.zeros(1, 1, 2, 2)
        assert torch.equal(noise_of_rows(zeros, 1, 0)[0], noise_of_rows(-zeros, 1, 0)[0])

    def test_they_are_standard_normal(self):
        drawn = torch.stack(list(noise_of_rows(torch.rand(500, 1, 8, 8), 2, seed=0)))
        assert abs(float(drawn.mean())) < 0.02  # five standard deviations of the mean of 64 000
        assert float(drawn.var()) == pytest.approx(1, abs=0.03)
        between = float((drawn[0] * drawn[1]).mean())
        assert abs(between) < 0.03

    def test_the_random_state_of_torch_does_not_matter_and_does_not_change(self):
        denoiser = DiffusionDenoiser(Scripted(), ALPHAS, 0.25, steps=3)
        x, before = torch.rand(2, 1, 6, 6), torch.get_rng_state()
        with torch.no_grad():
            first = denoiser(x)
            assert torch.equal(before, torch.get_rng_state())
            torch.manual_seed(99)
            assert torch.equal(first, denoiser(x))


class Classes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(36, 3)

    def forward(self, x):
        return self.head(x.flatten(1))


def drawing(count: int) -> nn.Module:
    torch.manual_seed(0)
    network = Scripted()
    denoisers = [DiffusionDenoiser(network, ALPHAS, 0.25, steps=3, seed=seed) for seed in range(count)]
    return denoised_ensemble(Classes(), denoisers, "softmax")


def test_votes_over_seeds_are_a_fixed_function_of_one_row():
    """Sealing compares batches of other sizes and orders; threads and batch sizes do not change a certificate."""
    model, x = drawing(3), torch.rand(1, 6, 6)
    with torch.no_grad():
        answers = [member(x[None]) for member in model.members]
    assert not torch.equal(answers[0], answers[1])
    sealed = Sealed(model)
    sealed.verify(check_copies(x, Gaussian(0.25)))
    assert sealed.private
    votes = []
    for size in (3, 7, 60):
        smoothed = Smoothed(model, Gaussian(0.25), batch_size=size, runtime="eager")
        votes.append(smoothed.certify(x, Cohen(n0=10, n=60), seed=4).counts)
    assert votes[0] == votes[1] == votes[2]


@pytest.mark.parametrize("runtime", ["compiled", "onnx"])
def test_no_runtime_freezes_the_random_numbers(runtime):
    if runtime == "onnx":
        pytest.importorskip("onnxscript")
    with pytest.raises(SmoothcertError, match=f"the {runtime} runtime"):
        prepare(drawing(1), torch.rand(1, 6, 6), noise=Gaussian(0.25), runtime=runtime, batch_size=8)


@pytest.mark.parametrize("steps", [0, -1, 1001])
def test_steps_out_of_range(steps):
    with pytest.raises(UsageError, match=f"steps must be at least 1 and at most .*, not {steps}"):
        DiffusionDenoiser(Scripted(), ALPHAS, 0.25, steps=steps)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("diffusers")
    from smoothcert.models.unet import save_pipeline

    folder = tmp_path_factory.mktemp("ddpm")
    torch.manual_seed(0)
    save_pipeline(folder, models.build_denoiser("diffusion", in_channels=1), (8, 8))
    return folder


class TestFolders:
    def test_options(self, folder):
        loaded = models.open_denoiser(f"{folder},steps=3,seed=2", level=0.25)
        assert (len(loaded.model.chain), loaded.model.seed, loaded.model.level) == (3, 2, 0.25)
        assert (loaded.source["steps"], loaded.source["seed"]) == (3, 2)

    def test_seeds_are_several_denoisers(self, folder):
        assert each_seed(f"{folder},seeds=3,steps=2") == [f"{folder},steps=2,seed={seed}" for seed in range(3)]
        assert each_seed(f"{folder},steps=2") == [f"{folder},steps=2"]
        assert each_seed("nets.py:mine,seeds=3") == ["nets.py:mine,seeds=3"]  # an argument of the factory
        identities = [
            model_identity(models.load_denoiser(each, level=0.25))["code"]
            for each in each_seed(f"{folder},seeds=2,steps=2")
        ]
        assert len(set(identities)) == 2

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ("seeds=3", "has seeds but one step"),
            ("seeds=0,steps=2", "seeds of a diffusion model must be a whole number of at least 1, got 0"),
            ("seeds=2,steps=2,seed=1", "gives seed and seeds"),
            ("seeds=2,steps=x", "steps of a diffusion model must be a whole number"),
        ],
    )
    def test_wrong_seeds(self, folder, options, message):
        with pytest.raises(UsageError, match=message):
            each_seed(f"{folder},{options}")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ("steps=2,seeds=2", "with seeds is several denoisers"),
            ("seed=-1", "seed of a diffusion model must be a whole number of at least 0, got -1"),
            ("steps=1.5", "steps of a diffusion model must be a whole number of at least 1, got 1.5"),
            ("steps=5000", "steps must be at least 1 and at most 290 at this noise level"),
            ("level=-1", "level must be a number above 0"),
            ("level=high", "level must be a number above 0"),
            ("sigma=1", "has no option sigma; it takes level, steps, seed and seeds"),
        ],
    )
    def test_wrong_options(self, folder, options, message):
        with pytest.raises(UsageError, match=message):
            models.open_denoiser(f"{folder},{options}", level=0.25)

    def test_the_same_model_in_another_place(self, folder, tmp_path):
        shutil.copytree(folder, tmp_path / "moved")
        here, there = (models.load_denoiser(place, level=0.25) for place in (folder, tmp_path / "moved"))
        assert model_identity(here) == model_identity(there)

    def test_it_is_a_pipeline_of_diffusers(self, folder):
        index = json.loads((folder / "model_index.json").read_text())
        assert index["unet"] == ["diffusers", "UNet2DModel"]
        diffusers = pytest.importorskip("diffusers")
        assert diffusers.UNet2DModel.from_pretrained(folder / "unet", low_cpu_mem_usage=False).config.sample_size == 8

    def test_a_checkpoint_of_an_unfinished_training_is_not_a_denoiser(self, tmp_path):
        pytest.importorskip("diffusers")
        network = models.build_denoiser("diffusion", in_channels=1)
        models.save_checkpoint(tmp_path / "last.safetensors", network, models.CheckpointInfo.of("diffusion"))
        with pytest.raises(CheckpointError, match="name its folder when the training is complete"):
            models.open_denoiser(tmp_path, level=0.25)
