"""No two answers of a memory contradict each other: thousands of random certifications, checked in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from smoothcert import ABSTAIN
from smoothcert.certify import memory as module
from smoothcert.certify.memory import Memory

DIMENSIONS = range(2, 11)
QUICK = 560  # for each of nine dimensions: 5 040 certifications


def certifications(count: int, dimension: int, seed: int):
    """Inputs on a coarse grid, where distances and radii tie exactly, or close to earlier ones; four classes."""
    rng = np.random.default_rng([seed, dimension])
    spread = 6 / dimension**0.5
    grid: list[np.ndarray] = []
    for i in range(count):
        x = rng.integers(0, 1 + round(spread * 8), dimension) / 8
        if i % 2:
            x = grid[rng.integers(len(grid))] + rng.normal(0, rng.choice([1e-7, 1e-3, 0.6]), dimension) / dimension**0.5
        else:
            grid.append(x)
        label = int(rng.integers(-1, 4))
        radius = float(rng.choice([0.25, 0.5, 0.625, 1.0, 1.25, rng.exponential(0.7)]))
        yield x.astype(np.float32), label, 0.0 if label == ABSTAIN else radius


def meet(a: np.ndarray, r: float, b: np.ndarray, s: float) -> bool:
    """Whether two closed balls share a point, exactly: ‖a − b‖² ≤ (r + s)²."""
    pairs = zip(a.tolist(), b.tolist(), strict=True)
    return sum((Fraction(p) - Fraction(q)) ** 2 for p, q in pairs) <= (Fraction(r) + Fraction(s)) ** 2


def contradictions(memory: Memory, count: int, dimension: int, seed: int = 0) -> tuple[int, dict[str, int]]:
    """Pairs of answers, stored or not, of different classes whose balls meet; and what became of the inputs.

    Double precision tells pairs apart that are far from meeting or clearly meet; those within 1e-9 of touching, and a
    random sample of all, are decided exactly.
    """
    rng = np.random.default_rng(seed)
    points, labels, radii = [], [], []
    seen = {"cut": 0, "adopted": 0, "abstained": 0, "whole": 0, "touching": 0}
    wrong = 0
    for x, label, radius in certifications(count, dimension, seed):
        ball = memory.admit(torch.from_numpy(x), label, radius)
        if ball.label == ABSTAIN:
            seen["abstained"] += 1
            continue
        seen["adopted" if ball.adopted else "cut" if ball.radius < radius else "whole"] += 1
        if points:
            others = np.flatnonzero(np.array(labels) != ball.label)
            wide = np.array(points)[others].astype(np.float64) - x.astype(np.float64)
            gaps = np.sqrt((wide**2).sum(1)) - np.array(radii)[others] - ball.radius
            wrong += int((gaps < -1e-9).sum())
            close = others[np.abs(gaps) <= 1e-9]
            seen["touching"] += len(close)
            for other in (*close, *rng.choice(others, min(1, len(others)))):
                wrong += meet(x, ball.radius, points[other], radii[other])
        points.append(x)
        labels.append(ball.label)
        radii.append(ball.radius)
    return wrong, seen


@pytest.mark.parametrize("count", [QUICK, pytest.param(4000, marks=pytest.mark.soundness)])
@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_no_answer_contradicts_another(dimension, count):
    memory = Memory()
    wrong, seen = contradictions(memory, count, dimension)
    assert wrong == 0
    assert min(seen.values()) > 10  # every way to be answered occurs, and balls that nearly touch
    # what is stored is what stands for all answers
    stored = [(memory._centres[i], int(memory._labels[i]), float(memory._radii[i])) for i in range(len(memory))]
    rng = np.random.default_rng(3)
    for i, j in rng.integers(0, len(stored), (300, 2)):
        (a, first, r), (b, second, s) = stored[i], stored[j]
        assert first == second or not meet(a, r, b, s)


def test_every_input_inside_an_answered_ball_is_given_its_class():
    """The promise of a radius: whatever is asked later within it gets the same class, also where it would abstain."""
    memory, rng = Memory(), np.random.default_rng(5)
    answers = [(x, memory.admit(torch.from_numpy(x), label, r)) for x, label, r in certifications(300, 3, seed=5)]
    asked = 0
    for x, ball in answers:
        if ball.label == ABSTAIN or ball.radius < 1e-6:
            continue
        direction = rng.normal(size=3)
        y = x + direction / np.linalg.norm(direction) * ball.radius * rng.uniform(0, 0.999)
        later = memory.admit(torch.from_numpy(y.astype(np.float32)), int(rng.integers(-1, 4)), 0.4)
        assert later.label == ball.label
        asked += 1
    assert asked > 100


@pytest.mark.parametrize(
    "weakened",
    ["no cut", "a cut too long", "no adoption", "borders rounded"],
)
def test_the_check_fails_when_the_rule_is_weakened(monkeypatch, weakened):
    bounds, distances = Memory._bounds, Memory._distances
    if weakened == "no cut":  # nobody seems near
        monkeypatch.setattr(Memory, "_bounds", lambda self, x: tuple(1e6 + b for b in bounds(self, x)))
    if weakened == "a cut too long":
        longer = lambda self, x, numbers: tuple(d * (1 + 1e-12) for d in distances(self, x, numbers))  # noqa: E731
        monkeypatch.setattr(Memory, "_distances", longer)
    if weakened == "no adoption":
        monkeypatch.setattr(Memory, "_containing", lambda self, x, numbers: (np.empty(0, np.int64), np.empty(0)))
    if weakened == "borders rounded":  # what lies on a border counts as outside
        monkeypatch.setattr(module, "_contains", lambda centre, radius, x: False)
    wrong = sum(contradictions(Memory(), QUICK, dimension)[0] for dimension in (2, 3))
    assert wrong > 0
