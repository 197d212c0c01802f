"""Recomputing from stored votes: what certifying anew would have given, to the last bit; and what cannot be."""

from __future__ import annotations

import doctest

import numpy as np
import pyarrow as pa
import pytest
import torch

from smoothcert import Cohen, Discrete, Gaussian, Smoothed, Uniform, certify_dataset, data, load_run
from smoothcert.certify import Anytime, Memory
from smoothcert.report import recompute as module
from smoothcert.report.recompute import load_outcomes, outcomes_of, recompute
from smoothcert.sampling.sigma import GridSigma, OptimizeSigma
from smoothcert.store import Result, write_run
from smoothcert.types import RunError, UsageError


@pytest.fixture(scope="module")
def digits():
    return data.load("digits", split="test")


@pytest.fixture(scope="module")
def model():
    """Unsure enough, under the noises here, that some votes go to other classes and some inputs abstain."""
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))


def certified(smoothed, dataset, path, procedure, seed=5):
    return certify_dataset(smoothed, dataset, procedure, run=path, every=60, seed=seed, progress=False)


def assert_same(outcomes, run):
    rows = run.rows()
    assert outcomes.index.tolist() == [row["index"] for row in rows]
    assert outcomes.label.tolist() == [row["label"] for row in rows]
    assert outcomes.predict.tolist() == [row["predict"] for row in rows]
    assert outcomes.radius.tolist() == [row["radius"] for row in rows]  # to the last bit
    assert {outcomes.norm.value} == {row["norm"] for row in rows}


@pytest.fixture(scope="module")
def long(model, digits, tmp_path_factory):
    path = tmp_path_factory.mktemp("long") / "gaussian"
    return certified(Smoothed(model, Gaussian(0.35)), digits, path, Cohen(n=100_000))


def test_examples():
    assert doctest.testmod(module).failed == 0


def test_a_tenth_of_the_samples(model, digits, long, tmp_path):
    anew = certified(Smoothed(model, Gaussian(0.35)), digits, tmp_path / "short", Cohen(n=10_000))
    assert len(anew.rows()) == 9
    assert_same(recompute(long, n=10_000), anew)
    with pytest.raises(AssertionError):  # the runs do differ
        assert_same(outcomes_of(long), anew)


def test_another_alpha(model, digits, long, tmp_path):
    anew = certified(Smoothed(model, Gaussian(0.35)), digits, tmp_path / "short", Cohen(n=1_000, alpha=0.05))
    assert_same(recompute(long, n=1_000, alpha=0.05), anew)
    assert_same(recompute(anew, n=1_000), anew)
    assert_same(recompute(anew), anew)
    stricter = recompute(long, alpha=1e-6)
    assert (stricter.radius <= outcomes_of(long).radius).all()
    assert stricter.radius.sum() < outcomes_of(long).radius.sum()


def test_the_runner_up_bound(model, digits, long, tmp_path):
    """On the votes of an earlier run, the same inputs use it as in a certification; also with a σ of each input."""
    options = {"bound": "runner-up", "n": 1_000}
    anew = certified(Smoothed(model, Gaussian(0.35)), digits, tmp_path / "long", Cohen(**options))
    found = recompute(long, **options)
    assert_same(found, anew)
    assert_same(recompute(anew), anew)
    used = [row["p_upper"] is not None for row in anew.rows()]
    assert any(used)
    plain = recompute(long, n=1_000)
    assert_same(
        recompute(anew, bound="plain"),
        certified(Smoothed(model, Gaussian(0.35)), digits, tmp_path / "plain", Cohen(n=1_000)),
    )
    assert (found.radius > plain.radius).any()
    assert found.metadata.chosen == ("n = 1,000", "the runner-up bound")
    assert recompute(anew).metadata.chosen == ()
    assert "bound" not in long.config["procedure"]  # as in runs of earlier versions
    assert (plain.origin.bound, found.origin.bound, found.origin.alike) == (
        "plain",
        "runner-up",
        outcomes_of(anew).origin.alike,
    )
    each = Smoothed(model, Gaussian(0.25), sigma=OptimizeSigma(steps=3))
    runs = [
        certified(each, digits, tmp_path / str(n), Cohen(n=n, bound=bound))
        for n, bound in ((1_000, "plain"), (100, "runner-up"))
    ]
    assert_same(recompute(runs[0], n=100, bound="runner-up"), runs[1])
    with pytest.raises(UsageError, match="bound"):
        recompute(long, bound="best")
    uniform = write_run(
        tmp_path / "uniform", long.table(), {**long.config, "noise": {"name": "uniform", "lam": 0.5}}, {}
    )
    with pytest.raises(UsageError, match="uniform noise has no radius for the runner-up bound"):
        recompute(uniform, bound="runner-up")


@pytest.mark.parametrize("noise", [Uniform(0.5), Discrete(0.6, levels=2)], ids=lambda noise: noise.name)
def test_other_noises(model, digits, tmp_path, noise):
    black_and_white = [((x > 0.5).float(), label) for x, label in (digits[i] for i in range(len(digits)))]
    runs = [certified(Smoothed(model, noise), black_and_white, tmp_path / str(n), Cohen(n=n)) for n in (1_000, 100)]
    assert any(row["predict"] >= 0 for row in runs[1].rows())
    assert {row["norm"] for row in runs[1].rows()} == {noise.norms[0].value}
    assert_same(recompute(runs[0], n=100), runs[1])


@pytest.mark.parametrize("noise", [Gaussian(0.35, grid=255), Uniform(0.5, grid=255)], ids=repr)
def test_exact_noise(model, digits, tmp_path, noise):
    rounded = [((x * 255).round() / 255, label) for x, label in (digits[i] for i in range(len(digits)))]
    runs = [certified(Smoothed(model, noise), rounded, tmp_path / str(n), Cohen(n=n)) for n in (1_000, 100)]
    assert all(row["offset"] > 0 and row["arithmetic"] == "exact" for row in runs[0].rows())
    assert any(row["radius"] > 0 for row in runs[1].rows())
    assert_same(recompute(runs[0], n=100), runs[1])
    table = runs[0].table()
    for older in (table.drop(["offset"]), table.set_column(table.column_names.index("offset"), "offset", [[None] * 9])):
        path = tmp_path / f"older-{len(older.column_names)}"
        write_run(path, older, runs[0].config, {})
        found, known = recompute(load_run(path)), outcomes_of(runs[0])
        assert (found.radius >= known.radius).all()
        assert found.radius == pytest.approx(known.radius, abs=1e-4)
        assert (found.radius[known.radius > 0] > known.radius[known.radius > 0]).all()


@pytest.mark.parametrize("grid", [None, 256])
def test_a_scale_for_every_input(model, digits, tmp_path, grid):
    smoothed = Smoothed(model, Gaussian(0.25, grid), sigma=OptimizeSigma(steps=3))
    runs = [certified(smoothed, digits, tmp_path / str(n), Cohen(n=n)) for n in (1_000, 100)]
    assert len({row["sigma"] for row in runs[0].rows()}) > 5
    assert_same(recompute(runs[0], n=100), runs[1])
    assert recompute(runs[0]).origin.scale is None


def test_what_the_outcomes_know(long):
    found = recompute(long, n=10_000, alpha=0.01)
    assert (found.name, found.origin.n, found.origin.alpha, found.origin.scale) == (long.name, 10_000, 0.01, 0.35)
    assert outcomes_of(long).origin.n == 100_000
    assert 0 < found.natural <= 9


def test_loading_recomputes(long, tmp_path):
    (found,) = load_outcomes([long.path], n=1_000)
    assert found.radius.tolist() == recompute(long, n=1_000).radius.tolist()
    (log,) = [tmp_path / "log"]
    log.write_text("idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t1\t1\t0.5\t1\t0:00:01\n")
    with pytest.raises(UsageError, match="keeps no votes to recompute from; leave out --at-n, --at-alpha and --bound"):
        load_outcomes([log], alpha=0.01)
    write_run(tmp_path / "imported", long.table(), {"kind": "imported certification"}, {})
    with pytest.raises(UsageError, match="is an imported certification, which holds no votes"):
        load_outcomes([tmp_path / "imported"], n=100)


def test_refusals(model, digits, long, tmp_path):
    for alpha in (0, 1, -0.1, float("nan")):
        with pytest.raises(UsageError, match="alpha must lie strictly between 0 and 1"):
            recompute(long, alpha=alpha)
    with pytest.raises(
        UsageError, match=r"no votes at n = 20,000; give --at-n 10 or 100 or 1,000 or 10,000 or 100,000"
    ):
        recompute(long, n=20_000)
    largest = certified(Smoothed(model, Gaussian(0.25)), digits, tmp_path / "linf", Cohen(n=100, norm="linf"))
    assert_same(recompute(largest), largest)
    earlier = write_run(tmp_path / "earlier", largest.table(), largest.config, {})
    assert Result("earlier", earlier).sampling_limit is None
    with pytest.raises(UsageError, match="ℓ∞ radii, which depend on the size of an input that earlier versions"):
        recompute(earlier, alpha=0.01)
    early = certified(Smoothed(model, Gaussian(0.25)), digits, tmp_path / "anytime", Anytime(radius=0.1, n_max=100))
    with pytest.raises(UsageError, match=r"certified by anytime, .* only runs of cohen"):
        recompute(early, alpha=0.01)
    memory = Smoothed(
        model, Gaussian(0.25), sigma=GridSigma(grid=(0.12, 0.5)), memory=Memory(tmp_path / "balls.safetensors")
    )
    remembered = certified(memory, digits, tmp_path / "memory", Cohen(n=100))
    with pytest.raises(UsageError, match="certified with a memory"):
        recompute(remembered, alpha=0.01)
    routed = write_run(tmp_path / "routed", long.table(), {**long.config, "experts": []}, {})
    with pytest.raises(UsageError, match="answered by a router"):
        recompute(routed, alpha=0.01)
    empty = write_run(tmp_path / "empty", long.table()[:0], long.config, {})
    with pytest.raises(RunError, match="holds no rows yet"):
        recompute(empty, alpha=0.01)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("counts", [1, 2], "counts must hold equally many counts in every row"),
        ("counts", [100_001, *[0] * 9], "the row of input 120 has counts that are negative or more"),
        ("counts", None, "counts must hold equally many counts"),
        ("selection", [-1, *[0] * 9], "the row of input 120 has selection that are negative"),
        ("checkpoints", [], "checkpoints at n = 1,000 must hold equally many counts"),
        ("checkpoints", [{"n": 1000, "counts": [1001, *[0] * 9]}], "the .* of input 120 are not 1,000 votes for 10"),
        ("checkpoints", [{"n": 1000, "counts": [None, *[0] * 9]}], "the .* of input 120 are not 1,000 votes for 10"),
    ],
)
def test_damaged_votes_are_named(long, tmp_path, column, value, said):
    table = long.table()
    values = table[column].to_pylist()
    values[2] = value
    place = table.column_names.index(column)
    damaged = write_run(
        tmp_path / "damaged", table.set_column(place, column, pa.array(values, table[column].type)), long.config, {}
    )
    with pytest.raises(RunError, match=f"damaged(/part-000000.parquet)? is damaged: {said}"):
        recompute(damaged, n=1_000 if column == "checkpoints" else None)


def test_votes_of_nobody_prove_nothing(long, tmp_path):
    """Copies with invalid logits count in n and for no class."""
    table = long.table()
    counts = np.array(table["counts"].to_pylist()) // 3
    place = table.column_names.index("counts")
    halved = table.set_column(place, "counts", pa.array(counts.tolist(), table["counts"].type))
    run = write_run(tmp_path / "invalid", halved, long.config, {})
    assert (recompute(load_run(run.path)).predict == -1).all()


def test_the_class_is_guessed_from_the_selection_votes(long, tmp_path):
    """The votes that prove a class must not choose it: another guess has too few of them and abstains."""
    table = long.table()
    top = np.array(table["counts"].to_pylist()).argmax(axis=1)
    selection = np.zeros((len(top), 10), dtype=int)
    selection[np.arange(len(top)), (top + 1) % 10] = 100
    place = table.column_names.index("selection")
    other = table.set_column(place, "selection", pa.array(selection.tolist(), table["selection"].type))
    found = recompute(write_run(tmp_path / "other", other, long.config, {}))
    assert (found.predict == -1).all()
    assert (recompute(long).predict >= 0).any()
