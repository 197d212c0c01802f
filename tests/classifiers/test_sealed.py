"""Sealed classifiers are copies in evaluation mode, fixed functions of one row, or refused."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from smoothcert import Gaussian
from smoothcert.classifiers import Denoised, Ensemble, copying
from smoothcert.classifiers.agreement import compare
from smoothcert.classifiers.sealed import Sealed, Sealing
from smoothcert.sampling.audit import EVERY, Audit
from smoothcert.sampling.copies import Copies
from smoothcert.sampling.runtimes import check_copies, prepare
from smoothcert.types import SmoothcertError, UsageError

X = torch.full((1, 4, 4), 0.5)
COPIES = check_copies(X, Gaussian(0.25))


def net(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(16, 3))


def test_the_copy_is_in_evaluation_mode_and_the_model_untouched():
    model = net(nn.BatchNorm1d(16), nn.Dropout(0.5)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sealed = Sealed(model)
    sealed.verify(COPIES)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(sealed(COPIES), model.eval()(COPIES))


def test_later_changes_of_the_model_do_not_reach_the_copy():
    model = net()
    sealed = Sealed(model)
    before = sealed(COPIES)
    model[1].weight.data.zero_()
    assert torch.equal(sealed(COPIES), before)


def test_it_is_sealed_again_only_after_a_change():
    model, keeper = net(), Sealing()
    first = keeper.of(model)
    assert keeper.of(model) is first
    model[1].bias.data.add_(1)
    second = keeper.of(model)
    assert second is not first
    assert second.digest != first.digest


def test_a_module_with_a_kept_feature_map_can_be_copied():
    model = net()
    model.features = model[1](torch.rand(2, 16)) * 2  # a tensor in the middle of a graph, which deepcopy refuses
    assert Sealed(model).private


def test_weights_that_are_too_large_are_shared_and_watched(monkeypatch):
    monkeypatch.setattr(copying, "COPIED_BYTES", 10)
    model = net(nn.BatchNorm1d(16)).train()
    sealed = Sealed(model)
    sealed.verify(COPIES)
    assert not sealed.private
    assert model.training
    assert model[2].weight.requires_grad
    sealed.recheck()
    model[2].weight.data.neg_()
    with pytest.raises(SmoothcertError, match="the model changed while it was certified"):
        sealed.recheck()


def test_what_cannot_be_copied_must_be_in_evaluation_mode():
    model = net(nn.BatchNorm1d(16)).train()
    model.lock = threading.Lock()
    with pytest.raises(UsageError, match="uses a BatchNorm1d in training mode"):
        Sealed(model)
    sealed = Sealed(model.eval())
    sealed.verify(COPIES)
    assert sealed.model is model
    assert not sealed.private


def test_a_forward_pass_that_leaves_state_runs_in_one_thread():
    class Keeps(nn.Module):
        def forward(self, x):
            self.kept = x.flatten(1)[:, :3]
            return self.kept

    sealed = Sealed(Keeps())
    assert sealed.private
    sealed.verify(COPIES)
    assert not sealed.private
    assert sealed.module is None
    sealed.recheck()


def test_the_checks_leave_the_random_state_alone():
    before = torch.get_rng_state()
    with pytest.raises(UsageError, match="other logits for the same batch"):
        Sealed(lambda x: torch.rand(len(x), 2)).verify(COPIES)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_noisy_copies_are_cast_to_the_type_of_the_model(dtype):
    sealed = Sealed(net().to(dtype))
    assert sealed.dtype is dtype
    assert sealed.verify(COPIES).num_classes == 3


def test_one_row_of_a_tie_is_forgiven_and_two_are_not():
    expected = torch.zeros(40, 2, dtype=torch.float64)
    given = expected.clone()
    given[3, 0] = 1
    assert compare(given, expected, 0.1).rows == 1
    given[7, 0] = torch.nan
    assert compare(given, expected, 0.1).rows == 2


@pytest.mark.parametrize(("shift", "refused"), [(4e-5, False), (1e-3, True)])
def test_rounding_of_a_denoiser_is_measured_by_its_contrast(shift, refused):
    """The two largest values of an image are often both white, so their difference says nothing."""

    class White(nn.Module):
        def forward(self, x):
            return (2 * x).clamp(0, 1) * (1 - shift * (len(x) > 1))

    sealed = Sealed(Denoised(net(), White()))
    with pytest.raises(UsageError, match="other rows") if refused else nullcontext():
        sealed.verify(COPIES)


def test_members_cannot_change_what_others_see():
    def overwrites(x):
        return x.zero_().flatten(1)[:, :3]

    model = net()
    both = Ensemble([overwrites, model])
    assert torch.allclose(both(COPIES), model(COPIES) / 2)


def test_an_audit_notices_a_runtime_that_goes_wrong():
    sealed = Sealed(net())
    audit = Audit(sealed, 10.0)
    parts = [Copies(X, Gaussian(0.25), 0, 0, 1, start, 1_000) for start in range(0, 5_000, 1_000)]
    assert audit.rows(parts[:1]) == [0, 1, 2]  # the first copies of an input
    assert [audit.rows([part]) for part in parts[1:4]] == [[], [], []]
    assert audit.rows(parts[4:]) == list(range(0, 1_000, 50))  # due after EVERY copies
    assert EVERY == 5_000
    right = sealed(COPIES)
    for _ in range(100):
        audit.check(COPIES, right + 1e-7)
    wrong = right.clone()
    wrong[:3] += 0.5
    audit.check(COPIES, wrong)  # three of thousands: ties
    audit.check(COPIES, wrong)
    with pytest.raises(SmoothcertError, match=r"other logits for \d+ of \d+ noisy copies"):
        audit.check(COPIES, -right)


def test_a_batch_of_the_tuned_size_is_checked_too():
    class Chunks(nn.Module):
        def forward(self, x):
            return x.flatten(1)[:, :3] * (1 if len(x) <= 64 else -1)

    with pytest.raises(UsageError, match="in batches of 100 as in small ones"):
        prepare(Chunks(), X, noise=Gaussian(0.25), batch_size=100, samples=100_000)


def test_a_memory_format_that_changes_logits_is_not_used():
    class ReadsMemory(nn.Module):
        """Takes pixels in the order they are in memory."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(3, 2, 1, 1))

        def forward(self, x):
            x = nn.functional.conv2d(x, self.weight)
            return x.as_strided((len(x), 3), (x.stride(0), 1))

    x = torch.rand(2, 4, 4)
    runtime = prepare(ReadsMemory(), x, noise=Gaussian(0.5), samples=200_000)
    assert runtime.notes["memory_format"] == "contiguous"


def test_counting_classes_changes_neither_the_input_nor_the_model():
    class Greedy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.BatchNorm2d(1), nn.Linear(16, 3)

        def forward(self, x):
            return self.linear(self.norm(x.sub_(0.5)).flatten(1))

    model, x = Greedy().train(), X.clone()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert Sealed(model).count_classes(x) == 3
    assert torch.equal(x, X)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(UsageError, match="cannot classify a batch of shape"):
        Sealed(model).count_classes(torch.rand(2, 4, 4))
