"""The memory of balls: what it answers, how it is kept on disk, and what it refuses."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from smoothcert import ABSTAIN, Norm
from smoothcert.certify.memory import Ball, Memory
from smoothcert.types import RunError, UsageError

OWNER = {"model": {"name": "Linear", "sha256": "12ab"}, "noise": {"name": "gaussian", "sigma": 0.5}}


def point(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def stream(count: int, dimension: int, seed: int, dtype=torch.float32):
    """Random answers: inputs in clusters, some of them on a coarse grid or seen before, some abstentions."""
    rng = np.random.default_rng(seed)
    seen = [np.full(dimension, 0.5)]
    for _ in range(count):
        kind = rng.random()
        if kind < 0.1:
            x = seen[rng.integers(len(seen))]
        elif kind < 0.4:
            x = rng.integers(0, 17, dimension) / 16
        else:
            x = np.clip(seen[rng.integers(len(seen))] + rng.normal(0, 0.1, dimension), 0, 1)
        seen.append(x)
        label = int(rng.integers(-1, 4))
        radius = 0.0 if label == ABSTAIN else float(rng.choice([0.0, 0.25, 0.5, rng.exponential(0.2)]))
        yield torch.tensor(x, dtype=dtype), label, radius


def distance(a: torch.Tensor, b: torch.Tensor):
    """In 50 digits."""
    with mpmath.workdps(50):
        pairs = zip(a.tolist(), b.tolist(), strict=True)
        return mpmath.sqrt(sum((mpmath.mpf(p) - mpmath.mpf(q)) ** 2 for p, q in pairs))


def reference(balls, x, label, radius):
    """The rule itself, ball by ball in 50 digits: (class, largest radius it allows)."""
    with mpmath.workdps(50):
        around = [(c, r - distance(x, centre)) for centre, c, r in balls if distance(x, centre) <= r]
        assert len({c for c, _ in around}) <= 1
        radius = mpmath.mpf(radius)
        if around and around[0][0] != label:
            label, radius = around[0][0], max(room for _, room in around)
        if label == ABSTAIN:
            return ABSTAIN, mpmath.mpf(0)
        return label, min([radius, *(distance(x, centre) - r for centre, c, r in balls if c != label)])


def test_cuts_keeps_adopts_and_abstains():
    memory = Memory()
    assert memory.admit(point(0, 0), 1, 0.5) == Ball(1, 0.5)
    cut = memory.admit(point(1, 0), 2, 0.8)
    assert (cut.label, cut.adopted) == (2, False)
    assert 0.5 - 1e-12 < cut.radius < 0.5
    assert memory.admit(point(0, 2), 2, 0.7) == Ball(2, 0.7)  # meets nobody
    assert memory.admit(point(-0.6, 0), 1, 0.3).radius == 0.3  # its own class may overlap
    for label in (2, 3, ABSTAIN):
        adopted = memory.admit(point(0.3, 0), label, 0.0 if label == ABSTAIN else 0.9)
        assert (adopted.label, adopted.adopted) == (1, True)
        assert 0.2 - 1e-7 < adopted.radius < 0.2
    assert memory.admit(point(5, 5), ABSTAIN, 0.0) == Ball(ABSTAIN, 0.0)
    assert len(memory) == 4


def test_of_several_balls_around_an_input_the_roomiest_counts():
    memory = Memory()
    memory.admit(point(0, 0), 1, 0.5)
    memory.admit(point(0.5, 0), 1, 1.0)
    memory.admit(point(0.25, 0), 1, 0.3)
    adopted = memory.admit(point(0.25, 0.0), 2, 0.1)
    assert adopted.label == 1
    assert 0.75 - 1e-12 < adopted.radius <= 0.75


def test_borders_are_decided_exactly():
    """(3, 4) is at distance 5 exactly; the ball one unit in the last place smaller does not contain it."""
    inside, outside = Memory(), Memory()
    inside.admit(point(0, 0), 1, 5.0)
    outside.admit(point(0, 0), 1, math.nextafter(5.0, 0))
    assert inside.admit(point(3, 4), 2, 1.0) == Ball(1, 0.0, adopted=True)
    assert outside.admit(point(3, 4), 2, 1.0) == Ball(2, 0.0)
    assert outside.admit(point(3, 4), 1, 1.0) == Ball(2, 0.0, adopted=True)  # a point is a ball too


def test_balls_inside_one_of_their_class_are_not_kept():
    memory = Memory()
    memory.admit(point(0, 0), 1, 1.0)
    assert memory.admit(point(0.25, 0), 1, 0.5) == Ball(1, 0.5)
    assert memory.admit(point(0, 0), 1, 1.0) == Ball(1, 1.0)
    assert len(memory) == 1
    memory.admit(point(0.25, 0), 1, 0.8)
    assert len(memory) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_equals_the_rule_in_fifty_digits(dimension, dtype):
    memory, balls, adopted, cuts = Memory(), [], 0, 0
    for x, label, radius in stream(150, dimension, seed=dimension, dtype=dtype):
        expected, allowed = reference(balls, x, label, radius)
        ball = memory.admit(x, label, radius)
        assert ball.label == expected
        assert ball.radius <= allowed
        assert ball.radius == pytest.approx(float(allowed), abs=1e-13)
        adopted, cuts = adopted + ball.adopted, cuts + (0 < ball.radius < radius)
        if ball.label != ABSTAIN:
            balls.append((x, ball.label, ball.radius))
    assert adopted > 20
    assert cuts > 3
    assert 5 < len(memory) < len(balls)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("dimension", "scale", "shift"), [(3, 1.0, 0.0), (3072, 1.0, 0.0), (3072, 1e-3, 1.0), (500, 1e30, 0.0)]
)
def test_the_fast_bounds_hold(dtype, dimension, scale, shift):
    """Also where single precision cancels badly, or overflows."""
    rng = np.random.default_rng(0)
    memory = Memory()
    rows = (shift + scale * rng.normal(size=(12, dimension))).astype(dtype)
    for row in rows:
        memory.admit(torch.from_numpy(row), 0, 0.0)
    x = (shift + scale * rng.normal(size=dimension)).astype(dtype)
    x[: dimension // 2] = rows[7][: dimension // 2]
    low, high = memory._bounds(x)
    near, far = memory._distances(x, np.arange(12))
    for i, row in enumerate(rows):
        squared = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(row.tolist(), x.tolist(), strict=True))
        assert Fraction(float(low[i])) ** 2 <= squared
        assert Fraction(float(near[i])) ** 2 < squared < Fraction(float(far[i])) ** 2
        assert not math.isfinite(high[i]) or squared <= Fraction(float(high[i])) ** 2
    assert np.all(far - near <= 1e-11 * far)
    if scale == 1.0:
        assert np.all(high - low < 0.1)


def test_few_balls_are_looked_at_closely(monkeypatch):
    """In 3072 dimensions single precision leaves only the nearest balls open."""
    rng = np.random.default_rng(1)
    memory, asked = Memory(), []
    rows = rng.random((4000, 3072), dtype=np.float32)
    for i, row in enumerate(rows):
        memory._append(row, i % 10, 0.5) if len(memory) else memory.admit(torch.from_numpy(row), 0, 0.5)
    real = Memory._distances
    monkeypatch.setattr(
        Memory, "_distances", lambda self, x, numbers: (asked.append(len(numbers)), real(self, x, numbers))[1]
    )
    other = memory.admit(torch.from_numpy(rng.random(3072, dtype=np.float32)), 3, 100.0)
    true = np.sqrt(((rows.astype(np.float64) - memory._centres[4000]) ** 2).sum(1))
    rivals = true[np.arange(4000) % 10 != 3] - 0.5
    assert other.radius == pytest.approx(rivals.min(), rel=1e-9)
    assert sum(asked) < 100


def test_growth_keeps_every_ball():
    memory = Memory()
    for i in range(5000):
        memory.admit(point(float(i), 0.0), i % 2, 0.25)
    assert len(memory) == 5000
    for i in (0, 63, 64, 4095, 4096, 4999):
        assert memory.admit(point(float(i), 0.125), 7, 1.0).label == i % 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saved_loaded_and_continued_equals_unbroken(tmp_path, dtype):
    answers = list(stream(300, 3, seed=8, dtype=dtype))
    unbroken = Memory()
    expected = [unbroken.admit(*answer) for answer in answers]
    path, found = tmp_path / "balls.safetensors", []
    for number, part in enumerate(np.array_split(np.arange(300), 5)):
        memory = Memory(path)
        memory.bind(OWNER)
        found += [memory.admit(*answers[i]) for i in part]
        if number % 2:
            memory.save()
        memory.close()
    assert found == expected
    again = Memory(path)
    assert len(again) == len(unbroken)
    assert again.owner == OWNER
    again.save(tmp_path / "copy.safetensors")
    assert len(Memory(tmp_path / "copy.safetensors")) == len(unbroken)
    Memory().save(tmp_path / "empty.safetensors")
    assert len(Memory(tmp_path / "empty.safetensors")) == 0


def test_answers_do_not_depend_on_where_a_kill_comes(tmp_path):
    """After each answer, the files as a kill would leave them give the same answers from there on."""
    answers = list(stream(40, 2, seed=4))
    unbroken = Memory()
    expected = [unbroken.admit(*answer) for answer in answers]
    path = tmp_path / "balls.safetensors"
    journal = tmp_path / "balls.safetensors.journal"
    memory = Memory(path)
    for i, answer in enumerate(answers):
        assert memory.admit(*answer) == expected[i]
        left = journal.read_bytes()
        memory.close()
        if i % 3 == 0:  # cut short while the next line was being written
            journal.write_bytes(left + b'[7, 1, 0.25, "AAAA')
        if i % 3 == 1:  # killed between the new file and the emptying of the journal
            memory = Memory(path)
            memory.save()
            memory.close()
            journal.write_bytes(left)
        memory = Memory(path)
        assert memory.admit(*answer) == expected[i]  # given again, as its row may not have been written
    assert len(memory) == len(unbroken)


def test_refuses_another_classifier(tmp_path):
    path = tmp_path / "balls.safetensors"
    memory = Memory(path)
    memory.bind(OWNER)
    memory.bind(OWNER)
    memory.admit(point(0, 0), 1, 0.5)
    for key, value in (("model", {"name": "Linear", "sha256": "34cd"}), ("noise", {"name": "gaussian", "sigma": 1.0})):
        with pytest.raises(RunError, match=r"balls of another classifier .*use a separate memory for each classifier"):
            memory.bind({**OWNER, key: value})
    memory.close()
    again = Memory(path)  # from the journal alone
    with pytest.raises(RunError, match="another classifier"):
        again.bind({**OWNER, "model": {"name": "Linear", "sha256": "34cd"}})
    nameless = Memory()
    nameless.admit(point(0, 0), 1, 0.5)
    with pytest.raises(RunError, match="unnamed"):
        nameless.bind(OWNER)


def test_refuses_what_it_cannot_compare():
    memory = Memory()
    with pytest.raises(UsageError, match="compares l2 balls"):
        memory.admit(point(0, 0), 1, 0.5, Norm.LINF)
    for radius in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="finite radius"):
            memory.admit(point(0, 0), 1, radius)
    with pytest.raises(UsageError, match="finite values"):
        memory.admit(point(0, float("nan")), 1, 0.5)
    with pytest.raises(UsageError, match="in floating point"):
        memory.admit(torch.tensor([0, 1]), 1, 0.5)
    memory.admit(point(0, 0), 1, 0.5)
    with pytest.raises(UsageError, match="inputs of 2 values in float32, not of 3 in float32"):
        memory.admit(point(0, 0, 0), 1, 0.5)
    with pytest.raises(UsageError, match="not of 2 in float64"):
        memory.admit(point(0, 0).double(), 1, 0.5)
    with pytest.raises(UsageError, match="has no path"):
        memory.save()
    assert memory.admit(point(0, 0).half(), 1, 0.25) == Ball(1, 0.25)  # half precision fits into single


def test_refuses_files_that_are_damaged_or_in_use(tmp_path):
    path = tmp_path / "balls.safetensors"
    memory = Memory(path)
    memory.bind(OWNER)
    for i in range(3):
        memory.admit(point(float(i), 0), i, 0.1)
    with pytest.raises(RunError, match="in use by another process"):
        Memory(path)
    memory.close()
    journal = tmp_path / "balls.safetensors.journal"
    lines = journal.read_text().splitlines(keepends=True)
    for damaged in ([*lines[:2], *lines[3:]], [lines[0], "[0, 1]\n"], [json.dumps({"format": 99}) + "\n"]):
        journal.write_text("".join(damaged))
        with pytest.raises(RunError, match="damaged"):
            Memory(path)
    journal.write_text("".join(lines))
    whole = Memory(path)
    whole.save()
    whole.close()
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(RunError, match="damaged"):
        Memory(path)
    save_file({"weight": np.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(RunError, match="not a memory but another safetensors file"):
        Memory(tmp_path / "model.safetensors")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write the memory"):
        Memory(tmp_path / "file" / "balls.safetensors")


@pytest.mark.parametrize(
    "line",
    [
        "[" * 20_000 + "]" * 20_000,
        f'[0, {2**64}, 0.5, "AAAAAAAAAAA="]',
        f'[0, 1, {10**400}, "AAAAAAAAAAA="]',
        "{}",
        "7",
    ],
)
def test_journals_that_no_memory_writes(tmp_path, line):
    path = tmp_path / "balls.safetensors"
    memory = Memory(path)
    memory.admit(point(0, 0), 1, 0.5)
    memory.close()
    journal = path.with_name(f"{path.name}.journal")
    head = journal.read_text().splitlines()[0]
    for damaged in (f"{head}\n{line}\n", f"{line}\n"):
        journal.write_text(damaged)
        with pytest.raises(RunError, match="damaged"):
            Memory(path)


def test_an_answer_that_cannot_be_written_is_not_given(tmp_path, monkeypatch):
    memory = Memory(tmp_path / "balls.safetensors")
    memory.admit(point(0, 0), 1, 0.5)
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(RunError, match="No space left"):
        memory.admit(point(3, 0), 2, 0.5)
    monkeypatch.undo()
    assert len(memory) == 1
    memory.close()
    assert len(Memory(tmp_path / "balls.safetensors")) == 1
