"""CAT-RS equals its definition with an attack of its own, written again in NumPy one input at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from smoothcert.noise import Gaussian
from smoothcert.training.methods import CatRS, NoiseAugmentation, catrs

SEEDS = [0, 1, 2]


def easy_copies(net, x, y, deltas, uniforms, soft, count):
    """K⁺: a binomial number, at least 1, drawn as so many uniform numbers below the chance."""
    if count == "all":
        return len(deltas)
    votes = sum(int(net.logits(x + delta).argmax()) == y for delta in deltas)
    chance = votes / len(deltas) if count == "votes" else soft[y]
    return max(1, sum(u < chance for u in uniforms))


def worst_noise(net, x, delta, target, epsilon, steps):
    """The attacked noise, with the mean and the root mean square of the noise it started from."""
    moved = net.climb(
        lambda at: net.kl_slope(target, x + at), delta, steps=steps, step=2 * epsilon / steps, radius=epsilon, box=False
    )
    mean = delta.sum() / len(delta)
    variance = (delta**2).sum() / len(delta) - mean**2
    centred = moved - moved.sum() / len(moved)
    return mean + centred * math.sqrt(variance / ((centred**2).sum() / len(moved)))


def reference_of(case, *, lam, m, steps, epsilon, low=True, mask=True, count="votes", target="soft", worst="max"):
    """The loss as a function of the network, with targets and attacked noise held at the network of the case."""
    rows, net0, uniforms, softs = list(case.rows(m)), case.net, case.uniforms(m, m), case.soft.numpy()
    targets, attacked = [], []
    for (x, y, deltas), soft in zip(rows, softs, strict=True):
        targets.append({"soft": soft, "mean": net0.smoothed(x, deltas), "label": np.eye(case.classes)[y]}[target])
        attacked.append([worst_noise(net0, x, delta, targets[-1], epsilon, steps) for delta in deltas])

    def reference(net):
        total = 0.0
        for j, (x, y, deltas) in enumerate(rows):
            k = easy_copies(net, x, y, deltas, uniforms[j], softs[j], count)
            if low:
                total += sum(sorted(net.cross_entropy(x + delta, y) for delta in deltas)[:k]) / m
            if k == m or not mask:
                divergences = [net.kl(targets[j], x + delta) for delta in attacked[j]]
                total += lam * (max(divergences) if worst == "max" else sum(divergences) / m)
        return total / len(rows)

    reference.easy = [
        easy_copies(net0, *row, u, soft, count) for row, u, soft in zip(rows, uniforms, softs, strict=True)
    ]
    return reference


OPTIONS = {
    "default": {},
    "low only": {"lam": 0.0},
    "high only": {"low": False, "mask": False},
    "high only, masked": {"low": False},
    "base and high": {"count": "all"},
    "no mask": {"mask": False},
    "K from the soft label": {"count": "soft"},
    "target is the mean prediction": {"target": "mean"},
    "target is the label": {"target": "label"},
    "mean over copies": {"worst": "mean"},
    "mean over copies, no mask": {"worst": "mean", "mask": False},
    "soft everything": {"count": "soft", "target": "mean", "worst": "mean", "mask": False},
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", OPTIONS)
def test_the_loss_is_that_of_the_definition(make_case, seed, name):
    case = make_case(seed, classes=3 + seed, inputs=9, noise=Gaussian(0.4))
    settings = {"lam": 1.5, "m": 3, "steps": 3, "epsilon": 0.6, **OPTIONS[name]}
    reference = reference_of(case, **settings)
    if settings.get("count") != "all":
        assert {1, 3} <= set(reference.easy)  # masked and not masked
    case.check(CatRS(**settings), reference, rel=1e-8)


@pytest.mark.parametrize(("m", "steps", "epsilon"), [(1, 1, 0.5), (2, 5, 0.05), (4, 2, 3.0)])
def test_the_loss_at_other_sizes(make_case, m, steps, epsilon):
    case = make_case(3, shape=(1, 2, 4))
    settings = {"lam": 0.5, "m": m, "steps": steps, "epsilon": epsilon, "mask": False}
    case.check(CatRS(**settings), reference_of(case, **settings), rel=1e-8)


def test_a_later_epsilon_takes_over_at_its_epoch(make_case):
    case = make_case(4)
    method = CatRS(epsilon=0.3, late_epsilon=0.9, late_from=60, m=2, mask=False)
    settings = {"lam": 1.0, "m": 2, "steps": 4, "mask": False}
    early, late = (reference_of(case, epsilon=epsilon, **settings) for epsilon in (0.3, 0.9))
    assert early(case.net) != pytest.approx(late(case.net), rel=1e-3)
    case.check(method, early, epoch=59.9, rel=1e-8)
    case.check(method, late, epoch=60.0, rel=1e-8)
    assert case.loss(CatRS(epsilon=0.3, m=2, mask=False), epoch=1e9).item() == pytest.approx(early(case.net), rel=1e-8)


def test_a_later_epsilon_may_be_0_and_starts_at_once_by_default(make_case):
    case = make_case(4)
    late = case.loss(CatRS(epsilon=0.5, late_epsilon=0.0, mask=False), epoch=0.0).item()
    assert late == case.loss(CatRS(epsilon=0.0, mask=False)).item()
    assert late < case.loss(CatRS(epsilon=0.5, mask=False)).item()


def test_low_alone_of_all_copies_is_gaussian_training(make_case):
    case = make_case(5)
    plain = case.loss(NoiseAugmentation(m=4)).item()
    assert case.loss(CatRS(lam=0.0, count="all", m=4), soft_labels=None).item() == pytest.approx(plain, rel=1e-13)
    assert case.loss(CatRS(lam=0.0, m=4), soft_labels=None).item() < plain


def test_without_any_correct_copy_the_easiest_one_still_counts(make_case):
    case = make_case(6, noise=Gaussian(0.05))
    case.y = torch.tensor([min(range(3), key=lambda c: case.net.smoothed(x, d)[c]) for x, _, d in case.rows(4)])
    easiest = []
    for x, y, deltas in case.rows(4):
        assert all(case.net.logits(x + delta).argmax() != y for delta in deltas)
        easiest.append(min(case.net.cross_entropy(x + delta, y) for delta in deltas) / 4)
    assert case.loss(CatRS(m=4)).item() == pytest.approx(np.mean(easiest), rel=1e-10)


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.8, 1.0])
def test_k_is_binomial_and_at_least_1(make_case, still, chance):
    rows, m = 4000, 4
    case = make_case(7, inputs=rows, noise=still)
    case.x, case.y = case.x[:1].expand(rows, -1), torch.zeros(rows, dtype=torch.long)
    soft = torch.tensor([chance, 1 - chance, 0.0]).expand(rows, 3)
    low = case.loss(CatRS(lam=0.0, count="soft", m=m), soft_labels=soft).item()
    easy = low * m / case.net.cross_entropy(case.x[0].numpy(), 0)  # copies are all alike
    mass = [math.comb(m, k) * chance**k * (1 - chance) ** (m - k) for k in range(m + 1)]
    assert easy == pytest.approx(sum(max(1, k) * p for k, p in enumerate(mass)), abs=0.05 if 0 < chance < 1 else 1e-9)


class Recorder(nn.Module):
    """Keeps every batch that goes through, and whether the model was in training mode then."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.seen = model, []

    def forward(self, x):
        self.seen.append((self.training, x.detach().clone()))
        return self.model(x)


@pytest.mark.parametrize("shape", [(40,), (3, 4, 4)])
def test_attacked_noise_stays_near_and_ends_with_the_mean_and_size_it_had(make_case, shape, monkeypatch):
    case, ends = make_case(8, shape=shape), []
    case.model = Recorder(case.model)
    whole = catrs.ascend
    monkeypatch.setattr(catrs, "ascend", lambda *a, **k: ends.append(whole(*a, **k)) or ends[-1])
    case.loss(CatRS(m=3, epsilon=0.7, steps=4, mask=False))
    noise = torch.from_numpy(np.stack([deltas for _, _, deltas in case.rows(3)], axis=1))
    assert [training for training, _ in case.model.seen] == [True, *[False] * 4, True]
    walk = [(seen.reshape(3, 6, *shape) - case.x).flatten(2) for _, seen in case.model.seen]
    assert torch.allclose(walk[0], noise)
    assert torch.allclose(walk[1], noise)
    lengths = [(at - noise).norm(dim=2) for at in [*walk[1:5], ends[0].reshape(3, 6, -1)]]
    assert torch.allclose(lengths[1], torch.full((3, 6), 0.35, dtype=torch.float64))
    assert all((length <= 0.7 + 1e-12).all() for length in lengths)
    assert (lengths[-1] > 0.5).any()
    assert torch.allclose(walk[-1].mean(dim=2), noise.mean(dim=2), rtol=0, atol=1e-12)
    assert torch.allclose(walk[-1].square().mean(dim=2), noise.square().mean(dim=2), rtol=1e-10)
    assert not torch.allclose(walk[-1], ends[0].reshape(3, 6, -1), atol=1e-3)


def test_only_inputs_whose_copies_all_count_are_attacked(make_case):
    case = make_case(1, inputs=9, noise=Gaussian(0.4))
    easy = reference_of(case, lam=1.0, m=3, steps=2, epsilon=0.5).easy
    chosen = [j for j, k in enumerate(easy) if k == 3]
    assert 0 < len(chosen) < 9
    case.model = Recorder(case.model)
    case.loss(CatRS(m=3, steps=2, epsilon=0.5))
    assert [len(seen) for _, seen in case.model.seen] == [27, *[3 * len(chosen)] * 3]
    attacked = case.model.seen[1][1].reshape(3, len(chosen), -1)
    assert torch.allclose(attacked, case.model.seen[0][1].reshape(3, 9, -1)[:, chosen])


def test_an_input_of_one_value_keeps_its_noise(make_case):
    case = make_case(9, shape=(1,))
    loss = case.loss(CatRS(m=2, mask=False))
    worst = [
        max(case.net.kl(s, x + d) for d in ds) for (x, _, ds), s in zip(case.rows(2), case.soft.numpy(), strict=True)
    ]
    low = case.loss(CatRS(m=2, lam=0.0))
    assert loss.item() == pytest.approx(low.item() + np.mean(worst), rel=1e-9)


def test_high_alone_can_be_differentiated_when_no_input_is_confident(make_case):
    case = make_case(6, noise=Gaussian(0.05))
    case.y = torch.tensor([min(range(3), key=lambda c: case.net.smoothed(x, d)[c]) for x, _, d in case.rows(4)])
    loss = case.loss(CatRS(low=False, m=4))
    assert loss.item() == 0.0
    loss.backward()
    assert all((weight.grad == 0).all() for weight in case.model.parameters())
