"""Soft labels: right shares, counted once, the same after a kill, and never those of something else."""

from __future__ import annotations

import importlib
import io
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from torch import nn

from smoothcert.noise import Gaussian
from smoothcert.sampling.runtimes import prepare
from smoothcert.sampling.seeds import BLOCK, PREDICTION, block_seed
from smoothcert.training.soft_labels import soft_labels
from smoothcert.types import SmoothcertError, UsageError

module = importlib.import_module("smoothcert.training.soft_labels")
NOISE = Gaussian(0.5)
X = torch.linspace(0, 1, 23 * 6).reshape(23, 2, 3)


def linear(classes: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, classes))


def label(folder, model=None, x=X, noise=NOISE, *, n=50, num_classes=4, seed=3, progress=False):
    model = linear() if model is None else model
    return soft_labels(model, x, noise, n=n, num_classes=num_classes, folder=folder, seed=seed, progress=progress)


def times(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in folder.glob("[!.]*")}


def parts(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.glob("part-*.npy"))}


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of five inputs: 0–4, 5–9, 10–14, 15–19 and 20–22."""
    monkeypatch.setattr(module, "PART_INPUTS", (5, 5))


@pytest.fixture
def sampled(monkeypatch) -> list[int]:
    """The inputs that are sampled around from now on."""
    indices: list[int] = []

    def job(index, x, steps):
        indices.append(index)
        return original(index, x, steps)

    original = module.Job
    monkeypatch.setattr(module, "Job", job)
    return indices


def calls(model: nn.Module) -> list[int]:
    """Grows with every call of the model and of its copies."""
    sizes: list[int] = []
    model.register_forward_hook(lambda _module, args, _output: sizes.append(len(args[0])))
    return sizes


def from_scratch(model: nn.Module, n: int, seed: int) -> torch.Tensor:
    counts = torch.zeros(len(X), 4)
    for index, x in enumerate(X):
        for copy in range(n):
            block, place = divmod(copy, BLOCK)
            generator = torch.Generator().manual_seed(block_seed(seed, index, PREDICTION, block))
            noise = torch.empty(BLOCK, *x.shape).normal_(0, NOISE.sigma, generator=generator)
            counts[index, model((x + noise[place])[None]).argmax()] += 1
    return counts


def test_shares_are_counted_votes(tmp_path):
    with torch.inference_mode():
        counts = from_scratch(linear(), n=50, seed=3)
    shares = label(tmp_path / "labels")
    assert shares.dtype == torch.float32
    assert torch.equal(shares, counts / 50)
    assert len(set(map(tuple, shares.tolist()))) > 10  # not all alike, or the test shows little
    (stored,) = (np.load(file) for file in (tmp_path / "labels").glob("part-*.npy"))
    assert stored.dtype == np.int32
    assert np.array_equal(stored, counts.numpy())


def test_shares_estimate_the_exact_probabilities(tmp_path):
    n, model = 2000, linear(2)
    shares = label(tmp_path / "labels", model, n=n, num_classes=2).double()
    gap = model[1].weight[1] - model[1].weight[0]
    with torch.no_grad():
        margin = (X.flatten(1) @ gap + model[1].bias[1] - model[1].bias[0]) / (NOISE.sigma * gap.norm())
    exact = 0.5 * (1 + torch.erf(margin.double() / math.sqrt(2)))
    error = (exact * (1 - exact) / n).sqrt()
    assert ((shares[:, 1] - exact).abs() < 5 * error).all()
    assert (shares[:, 1] - exact).abs().max() > 0  # votes, not probabilities
    assert torch.allclose(shares.sum(1), torch.ones(len(X), dtype=torch.float64), atol=1e-6)


class Partly(nn.Module):
    """Logits that are no numbers for a part of the copies; for all of them where an input is above 5."""

    def forward(self, x):
        logits = x.flatten(1)[:, :4].clone()
        logits[logits[:, 0] > 0.9, 1] = float("nan")
        logits[logits[:, 1] < -0.3, 2] = float("inf")
        return logits


def test_invalid_copies_vote_for_nobody(tmp_path):
    shares = label(tmp_path / "labels", Partly(), n=200)
    (counts,) = (np.load(file) for file in (tmp_path / "labels").glob("part-*.npy"))
    votes = counts.sum(axis=1)
    assert (votes < 200).any()
    assert (votes > 0).all()
    assert np.allclose(shares.numpy(), counts / votes[:, None])
    assert torch.allclose(shares.sum(1), torch.ones(len(X)), atol=1e-6)


def test_an_input_without_a_valid_vote_is_named_at_once(tmp_path, small_parts):
    x = X.clone()
    x[12] += 100
    for _ in range(2):  # the second call finds the parts before it
        with pytest.raises(SmoothcertError, match="no noisy copy of input 12 has finite logits"):
            label(tmp_path / "labels", Partly(), x)
        assert list(parts(tmp_path / "labels")) == ["part-00000000.npy", "part-00000005.npy"]


@pytest.mark.parametrize(("batch_size", "size"), [(1, 23), (7, 5), (64, 1), (1000, 1000)])
def test_batches_and_parts_change_nothing(tmp_path, monkeypatch, exact_logits, batch_size, size):
    x = torch.linspace(0, 1, 23 * 24).reshape(23, 2, 3, 4)
    expected = label(tmp_path / "plain", exact_logits, x, n=30)
    monkeypatch.setattr(module, "prepare", lambda *args, **options: prepare(*args, batch_size=batch_size, **options))
    monkeypatch.setattr(module, "PART_INPUTS", (size, size))
    assert torch.equal(label(tmp_path / "labels", exact_logits, x, n=30), expected)
    assert len(parts(tmp_path / "labels")) == -(-23 // size)


@pytest.mark.parametrize(("n", "size"), [(1, 1000), (4000, 250), (10**6, 100)])
def test_parts_hold_about_a_million_votes(tmp_path, n, size):
    assert module._Labels(tmp_path, {"n": n, "inputs": 1, "num_classes": 2}).info["part"] == size


def test_finished_labels_are_read_without_a_call(tmp_path, small_parts, sampled, forwards):
    expected = label(tmp_path / "labels")
    before = times(tmp_path / "labels")
    model = linear()
    sampled.clear()
    forwards.seen.clear()
    with FileLock(tmp_path / "labels" / ".lock"):  # nor does reading need the lock
        assert torch.equal(label(tmp_path / "labels", model), expected)
    assert forwards.seen == sampled == []
    assert times(tmp_path / "labels") == before
    label(tmp_path / "other", model)
    assert forwards.seen  # the hook does count


def test_finished_labels_are_read_with_another_size_of_parts(tmp_path, monkeypatch, sampled):
    expected = label(tmp_path / "labels")
    monkeypatch.setattr(module, "PART_INPUTS", (5, 5))
    sampled.clear()
    assert torch.equal(label(tmp_path / "labels"), expected)
    assert sampled == []


KILLED = """
    import importlib, os, signal, sys
    from pathlib import Path
    import torch
    from torch import nn
    from smoothcert.noise import Gaussian
    module = importlib.import_module("smoothcert.training.soft_labels")
    module.PART_INPUTS = (5, 5)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 4))
    folder = Path(sys.argv[1])

    def kill(*_):
        if len(list(folder.glob("part-*.npy"))) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    model.register_forward_hook(kill)
    x = torch.linspace(0, 1, 23 * 6).reshape(23, 2, 3)
    module.soft_labels(model, x, Gaussian(0.5), n=50, num_classes=4, folder=folder, seed=3, progress=False)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here")
def test_killed_and_continued_gives_the_same_votes(tmp_path, small_parts, sampled):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), str(killed)], check=False)
    assert process.returncode == -signal.SIGKILL
    finished = ["part-00000000.npy", "part-00000005.npy"]
    assert list(parts(killed)) == finished
    before = times(killed)
    shares = label(killed)
    assert sampled == list(range(10, 23))
    assert [times(killed)[name] for name in finished] == [before[name] for name in finished]
    assert torch.equal(shares, label(whole))
    assert parts(killed) == parts(whole)
    assert len(parts(whole)) == 5


def test_continuing_runs_the_model_as_before(tmp_path, small_parts, monkeypatch):
    label(tmp_path / "labels")
    (tmp_path / "labels" / "part-00000010.npy").unlink()
    info = json.loads((tmp_path / "labels" / "labels.json").read_text())
    likes = []

    def spy(*args, like=None, **options):
        likes.append(like)
        return prepare(*args, like=like, **options)

    monkeypatch.setattr(module, "prepare", spy)
    label(tmp_path / "labels")
    assert likes == [info["runtime"]]
    assert json.loads((tmp_path / "labels" / "labels.json").read_text()) == info


def array(counts) -> bytes:
    file = io.BytesIO()
    np.save(file, counts)
    return file.getvalue()


DAMAGE = {
    "truncated": lambda content: content[:-8],
    "empty": lambda _: b"",
    "header": lambda content: content[:20],
    "no array": lambda _: b"PK\x03\x04 something else",
    "rows": lambda _: array(np.full((4, 4), 1, np.int32)),
    "classes": lambda _: array(np.full((5, 3), 1, np.int32)),
    "dtype": lambda _: array(np.full((5, 4), 1.0)),
    "negative": lambda _: array(np.array([[51, -1, 0, 0]] * 5, np.int32)),
    "too many votes": lambda _: array(np.array([[50, 1, 0, 0]] * 5, np.int32)),
    "overflow": lambda _: array(np.array([[2**30, 2**30, 2**30, 2**30 + 10]] * 5, np.int32)),
    "no votes": lambda _: array(np.zeros((5, 4), np.int32)),
    "pickle": lambda _: array(np.array([[{}] * 4] * 5, object)),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_part_is_counted_again(tmp_path, small_parts, sampled, damage):
    expected = label(tmp_path / "labels")
    whole = parts(tmp_path / "labels")
    file = tmp_path / "labels" / "part-00000005.npy"
    file.write_bytes(damage(file.read_bytes()))
    sampled.clear()
    assert torch.equal(label(tmp_path / "labels"), expected)
    assert sampled == [5, 6, 7, 8, 9]
    assert parts(tmp_path / "labels") == whole


def other_weight() -> nn.Module:
    model = linear()
    with torch.no_grad():
        model[1].bias[0] += 1e-6
    return model


def other_buffer() -> nn.Module:
    model = linear()
    model.register_buffer("shift", torch.zeros(1), persistent=False)
    return model


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model": other_weight()}, r"\(model_sha256 is [0-9a-f]{64} there and [0-9a-f]{64} here\)"),
        ({"model": other_buffer()}, r"\(model_sha256 is"),
        ({"model": nn.Sequential(*linear(), nn.ReLU())}, r"\(model_sha256 is"),
        ({"noise": Gaussian(0.25)}, r"\(noise is .*0.5.* there and .*0.25.* here\)"),
        ({"n": 60}, r"\(n is 50 there and 60 here\)"),
        ({"seed": 4}, r"\(seed is 3 there and 4 here\)"),
        ({"num_classes": 5}, r"\(num_classes is 4 there and 5 here\)"),
        ({"x": X + 1e-6}, r"\(inputs_sha256 is"),
        ({"x": X.flip(0)}, r"\(inputs_sha256 is"),
        ({"x": X.flatten(1)}, r"\(inputs_sha256 is"),
        ({"x": X[:22]}, r"\(inputs is 23 there and 22 here; inputs_sha256 is"),
    ],
)
def test_other_labels_are_refused_and_kept(tmp_path, sampled, change, match):
    label(tmp_path / "labels")
    before = parts(tmp_path / "labels")
    sampled.clear()
    with pytest.raises(UsageError, match=rf"holds other labels {match}.*; use another folder or delete this"):
        label(tmp_path / "labels", **change)
    assert sampled == []
    assert parts(tmp_path / "labels") == before


def test_inputs_in_another_precision_are_the_same_inputs(tmp_path, sampled):
    expected = label(tmp_path / "labels")
    sampled.clear()
    assert torch.equal(label(tmp_path / "labels", x=X.double()), expected)
    assert sampled == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-30],
        lambda _: "",
        lambda _: "[]",
        lambda _: "null",
        lambda text: text.replace('"part": 100', '"part": 0'),
        lambda text: text.replace('"part": 100', '"part": -5'),
        lambda text: text.replace('"runtime"', '"run"'),
    ],
)
def test_a_damaged_description_is_refused(tmp_path, sampled, monkeypatch, damage):
    monkeypatch.setattr(module, "PART_INPUTS", (100, 100))
    label(tmp_path / "labels")
    file = tmp_path / "labels" / "labels.json"
    text = damage(file.read_text())
    assert text != file.read_text()
    file.write_text(text)
    sampled.clear()
    with pytest.raises(SmoothcertError, match=r"labels.json in .* is damaged \(.+\); delete that folder"):
        label(tmp_path / "labels")
    assert sampled == []


def test_another_format_is_refused(tmp_path):
    label(tmp_path / "labels")
    file = tmp_path / "labels" / "labels.json"
    file.write_text(file.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(UsageError, match="format is 2 there and 1 here"):
        label(tmp_path / "labels")


class Row(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, 0]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"n": 0}, "n must be a whole number of copies, at least 1, got 0"),
        ({"n": 2.5}, "n must be a whole number"),
        ({"n": True}, "n must be a whole number"),
        ({"n": 2**31}, "n must be a whole number"),
        ({"seed": -1}, "seed must be between"),
        ({"seed": 2**63}, "seed must be between"),
        ({"num_classes": 1}, "num_classes must be at least 2"),
        ({"noise": 0.25}, "noise must be a noise such as"),
        ({"x": X[:0]}, r"no inputs to label: x has shape \(0, 2, 3\)"),
        ({"x": torch.tensor(1.0)}, "no inputs to label"),
        ({"x": X.to(torch.uint8)}, "x has dtype torch.uint8; convert"),
        ({"x": X.where(X > 0, torch.nan)}, "NaN or infinite"),
        ({"x": X.where(X > 0, -torch.inf)}, "NaN or infinite"),
        ({"num_classes": 5}, r"the model gives shape \(2, 4\) for 2 input\(s\), not logits of num_classes=5"),
        ({"model": Row()}, r"the model must map a batch of 2 inputs .* but gave \(2,\)"),
        ({"x": X[:, :, :2]}, r"the model cannot classify inputs of shape \(2, 2\) \(mat1 and mat2"),
    ],
)
def test_bad_arguments_are_refused_and_leave_nothing(tmp_path, sampled, change, match):
    with pytest.raises(UsageError, match=match):
        label(tmp_path / "labels", **change)
    assert sampled == []
    assert not (tmp_path / "labels").exists()


def test_a_folder_of_other_things_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds something else than soft labels; choose a new or empty folder"):
        label(tmp_path)
    with pytest.raises(SmoothcertError, match=r"cannot use .*notes.txt \(Not a directory\)"):
        label(tmp_path / "notes.txt")
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_what_an_attempt_left_behind_is_no_obstacle(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / ".labels.json.123.tmp").write_text("{")
    assert label(tmp_path).shape == (23, 4)


def test_a_folder_in_use_is_refused(tmp_path, sampled):
    with (
        FileLock(tmp_path / ".lock"),
        pytest.raises(SmoothcertError, match="being written by another process; wait for it or use another"),
    ):
        label(tmp_path)
    assert sampled == []
    label(tmp_path)
    assert len(sampled) == 23


def test_a_full_disk_is_told_and_the_parts_before_it_kept(tmp_path, small_parts, sampled, monkeypatch):
    expected = label(tmp_path / "whole")
    sampled.clear()
    save = np.save

    def full(file, counts, **options):
        if len(parts(tmp_path / "labels")) == 3:
            file.write(b"\x93NUMPY")
            raise OSError("160 requested and 6 written")
        save(file, counts, **options)

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        with pytest.raises(SmoothcertError, match=r"cannot use .*labels \(160 requested and 6 written\); free space"):
            label(tmp_path / "labels")
    assert {name for name in os.listdir(tmp_path / "labels") if name != ".lock"} == {
        "labels.json",
        *(f"part-{start:08d}.npy" for start in (0, 5, 10)),
    }
    sampled.clear()
    assert torch.equal(label(tmp_path / "labels"), expected)
    assert sampled == list(range(15, 23))


def test_the_model_is_run_in_evaluation_mode_and_left_as_it_was(tmp_path):
    def model() -> nn.Sequential:
        net = linear()
        return nn.Sequential(net, nn.Dropout(0.9), nn.BatchNorm1d(4), nn.Dropout(0.9))

    quiet, mixed = model().eval(), model()
    mixed[3].eval()
    mixed[0][1].bias.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in mixed.state_dict().items()}
    shares = label(tmp_path / "quiet", quiet)
    assert torch.equal(label(tmp_path / "mixed", mixed), shares)
    assert [m.training for m in mixed.modules()] == [True, True, True, True, True, True, False]
    assert not any(m.training for m in quiet.modules())
    assert [p.requires_grad for p in mixed.parameters()] == [True, False, True, True]
    assert all(torch.equal(tensor, before[name]) for name, tensor in mixed.state_dict().items())
    with pytest.raises(UsageError):
        label(tmp_path / "failed", mixed, num_classes=5)
    assert mixed.training


def test_training_mode_does_not_make_another_model(tmp_path, sampled):
    model = linear().eval()
    label(tmp_path / "labels", model)
    sampled.clear()
    label(tmp_path / "labels", model.train())
    assert sampled == []


def test_the_bar_is_on_stderr_and_tells_of_damage(tmp_path, small_parts, capsys):
    label(tmp_path / "labels")
    assert capsys.readouterr() == ("", "")
    (tmp_path / "labels" / "part-00000005.npy").write_bytes(b"")
    label(tmp_path / "labels", progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "soft labels (1 damaged part(s) counted again)" in " ".join(err.split())
    assert "23/23" in err
    label(tmp_path / "labels", progress=True)  # nothing to count, nothing to show
    assert capsys.readouterr() == ("", "")


class OnDisk:
    """A dataset that hands out its inputs one by one."""

    name, split = "made", "train"

    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], 0


def test_a_dataset_read_from_disk_gets_the_labels_of_its_inputs(tmp_path, small_parts):
    shares = label(tmp_path / "a", x=OnDisk(X))
    assert torch.equal(shares, label(tmp_path / "b"))
    assert torch.equal(shares, label(tmp_path / "a", x=OnDisk(X)))
    with pytest.raises(UsageError, match="inputs_sha256"):
        label(tmp_path / "a", x=OnDisk(X.flip(0)))
    with pytest.raises(UsageError, match="no inputs"):
        label(tmp_path / "c", x=OnDisk(X[:0]))


def test_a_description_that_is_nested_too_deeply(tmp_path):
    label(tmp_path / "labels")
    (tmp_path / "labels" / "labels.json").write_text("[" * 20_000 + "]" * 20_000)
    with pytest.raises(SmoothcertError, match=r"labels\.json in .* is damaged \(it is nested too deeply\)"):
        label(tmp_path / "labels")


def test_a_part_that_claims_too_much_is_counted_again(tmp_path, sampled):
    whole = label(tmp_path / "labels")
    (part,) = (tmp_path / "labels").glob("part-*.npy")
    content = part.read_bytes()
    header = b"{'descr': '<i4', 'fortran_order': False, 'shape': (1099511627776, 4), }".ljust(117) + b"\n"
    part.write_bytes(content[:8] + len(header).to_bytes(2, "little") + header + content[128:])
    assert torch.equal(label(tmp_path / "labels"), whole)
