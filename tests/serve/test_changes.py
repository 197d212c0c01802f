"""Inputs near another one: within the size asked for, accepted by the classifier, and drawn as pictures."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from smoothcert import Discrete, Gaussian, Norm, Smoothed, Uniform
from smoothcert.attack import AttackSettings, adversarial_input
from smoothcert.serve.changes import distance, random_change
from smoothcert.serve.pictures import picture, picture_of_change

NOISES = [Gaussian(0.25), Gaussian(0.25, grid=255), Gaussian(0.25, grid=16), Uniform(0.5, grid=255), Discrete(0.8, 4)]


def smoothed_with(noise):
    torch.manual_seed(0)
    return Smoothed(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(100, 3)), noise, runtime="eager")


def image(noise, seed=0):
    """An input with many values at the ends of the range, as a drawing has."""
    x = torch.rand(1, 10, 10, generator=torch.Generator().manual_seed(seed))
    x = (2 * x - 0.5).clamp(0, 1)
    if isinstance(noise, Discrete):
        return (x * noise.levels).round() / noise.levels
    return noise.nearest(x)


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_a_random_change_is_within_its_size_and_accepted(noise):
    smoothed = smoothed_with(noise)
    for seed in range(4):
        x = image(noise, seed)
        for norm in noise.norms:
            for size in (0.0, 1e-6, 0.05, 0.3, 1.0, 3.0):
                size = round(4 * size) if norm is Norm.L0 else size
                moved = random_change(smoothed, x, size, norm, seed)
                assert distance(x, moved, norm) <= size
                smoothed.check(moved)
                assert moved.dtype == x.dtype


@pytest.mark.parametrize("noise", NOISES[:2], ids=repr)
@pytest.mark.parametrize(("norm", "size"), [(Norm.L2, 0.3), (Norm.L2, 2.0), (Norm.LINF, 0.1), (Norm.LINF, 0.5)])
def test_a_random_change_uses_its_size(noise, norm, size):
    x = image(noise)
    assert distance(x, random_change(smoothed_with(noise), x, size, norm, 1), norm) > 0.97 * size


def test_a_random_change_in_l0_replaces_so_many_values():
    smoothed = smoothed_with(NOISES[-1])
    x = image(NOISES[-1])
    for count in (0, 1, 7, 100):
        assert distance(x, random_change(smoothed, x, count, Norm.L0, 0), Norm.L0) == count
    assert distance(x, random_change(smoothed, x, 1_000, Norm.L0, 0), Norm.L0) == 100


def test_the_direction_depends_on_the_seed_only():
    smoothed, x = smoothed_with(NOISES[0]), torch.full((1, 10, 10), 0.5)
    first, again, other = (random_change(smoothed, x, 0.2, Norm.L2, seed) - x for seed in (1, 1, 2))
    longer = random_change(smoothed, x, 0.4, Norm.L2, 1) - x
    assert torch.equal(first, again)
    assert torch.allclose(longer, 2 * first, atol=1e-6)
    assert torch.cosine_similarity(first.flatten(), other.flatten(), dim=0) < 0.5


@pytest.mark.parametrize("norm", list(Norm))
def test_distances_of_plain_arrays(norm):
    x, other = torch.zeros(4), torch.tensor([0.0, 3.0, -4.0, 0.0])
    expected = {Norm.L0: 2, Norm.L1: 7, Norm.L2: 5, Norm.LINF: 4}[norm]
    assert distance(x, other, norm) == expected


@pytest.mark.parametrize("grid", [None, 255])
def test_an_attack_reaches_the_nearest_other_class_and_no_further_than_its_size(grid):
    noise = Gaussian(0.25, grid=grid)
    smoothed = smoothed_with(noise)
    x = noise.nearest(torch.full((1, 10, 10), 0.5))
    model = smoothed.sealed()
    logits = model(x[None])[0]
    label = int(logits.argmax())
    weights = model.model[1].weight.double()
    gaps = [
        float(logits[label] - logits[other]) / float((weights[label] - weights[other]).norm())
        for other in range(3)
        if other != label
    ]
    near, far = 0.8 * min(gaps), 1.3 * min(gaps)
    for size, expected in ((near, True), (far, False)):
        found = adversarial_input(smoothed, x, label, size, AttackSettings(steps=10, copies=64))
        assert distance(x, found, Norm.L2) < size
        smoothed.check(found)
        assert (int(model(found[None])[0].argmax()) == label) is expected


def decoded(uri):
    kind, _, text = uri.partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))


def test_pictures_show_values_and_cut_those_out_of_range():
    grey = torch.tensor([[[0.0, 1.0], [0.5, 2.0]]])
    assert decoded(picture(grey)).tolist() == [[0, 255], [128, 255]]
    colour = torch.zeros(3, 2, 1)
    colour[0, 0, 0], colour[2, 1, 0], colour[1, 1, 0] = 1.0, -3.0, torch.nan
    assert decoded(picture(colour)).tolist() == [[[255, 0, 0]], [[0, 0, 0]]]
    moved = grey + torch.tensor([[[0.0, 0.1], [-0.1, 0.05]]])
    assert decoded(picture_of_change(grey, moved)).tolist() == [[128, 255], [0, 191]]
    assert decoded(picture_of_change(grey, grey)).tolist() == [[128, 128], [128, 128]]
