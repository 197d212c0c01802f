"""Votes over a dataset: counted once, the same after a kill, and never those of something else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from filelock import FileLock
from torch import nn

from smoothcert import Gaussian, Smoothed, load_run
from smoothcert.evaluate import clean_decisions, count_votes
from smoothcert.sampling import Pool
from smoothcert.sampling.copies import NoisyCopies
from smoothcert.sampling.seeds import HOLDOUT, PREDICTION
from smoothcert.store import find_results, write_run
from smoothcert.store.rows import SCHEMA
from smoothcert.types import RunError, SmoothcertError, UsageError

X = torch.linspace(0, 1, 23 * 6).reshape(23, 2, 3)
DATA = [(x, i % 4) for i, x in enumerate(X)]


def linear() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 4))


def count(folder=None, model=None, dataset=DATA, *, sigma=0.5, n=50, seed=3, **options):
    smoothed = Smoothed(model or linear(), Gaussian(sigma), input_range=None)
    return count_votes(smoothed, dataset, n, folder=folder, seed=seed, progress=False, **options)


@pytest.fixture
def sampled(monkeypatch) -> list[int]:
    """The inputs that are sampled from now on."""
    indices: list[int] = []
    run = Pool.run

    def noted(pool, jobs):
        for job, answer in run(pool, jobs):
            indices.append(job.index)
            yield job, answer

    monkeypatch.setattr(Pool, "run", noted)
    return indices


@pytest.mark.parametrize("stage", [PREDICTION, HOLDOUT])
def test_votes_are_those_of_the_noise_of_the_stage(tmp_path, stage):
    model, noise = linear(), Gaussian(0.5)
    maker, rows = NoisyCopies(X[0]), torch.empty(50, 2, 3)
    expected = np.zeros((23, 4), int)
    for index, x in enumerate(X):
        maker.fill(rows, x, noise, seed=3, index=index, stage=stage, start=0)
        with torch.inference_mode():
            expected[index] = torch.bincount(model(rows).argmax(1), minlength=4)
    assert np.array_equal(count(stage=stage), expected)
    assert np.array_equal(count(tmp_path / "votes", stage=stage), expected)


def test_batches_change_nothing(exact_logits):
    data = [(x, 0) for x in torch.linspace(0, 1, 23 * 24).reshape(23, 2, 3, 4)]
    found = [
        count_votes(Smoothed(exact_logits, Gaussian(0.5), batch_size=size), data, 30, progress=False)
        for size in (None, 1, 7, 1000)
    ]
    assert all(np.array_equal(found[0], other) for other in found[1:])


class Partly(nn.Module):
    """Logits that are not finite where an input is above 5."""

    def forward(self, x):
        logits = x.flatten(1)[:, :4].clone()
        logits[logits[:, 0] > 5, 1] = float("nan")
        return logits


def test_an_input_without_a_valid_vote_is_named(tmp_path):
    data = [(x + 100 * (i == 12), 0) for i, x in enumerate(X)]
    with pytest.raises(SmoothcertError, match="no noisy copy of input 12 has finite logits; check the model"):
        count(tmp_path / "votes", Partly(), data)


def test_finished_votes_are_read_without_sampling_or_the_lock(tmp_path, sampled):
    expected = count(tmp_path / "votes")
    assert sorted(sampled) == list(range(23))
    before = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("votes/[!.]*")}
    sampled.clear()
    with FileLock(tmp_path / "votes" / ".lock"):
        assert np.array_equal(count(tmp_path / "votes"), expected)
    assert sampled == []
    assert {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("votes/[!.]*")} == before


KILLED = """
    import os, signal, sys
    import torch
    from torch import nn
    from smoothcert import Gaussian, Smoothed
    from smoothcert.evaluate import count_votes
    from smoothcert.store.run import RunWriter
    torch.set_num_threads(1)
    torch.manual_seed(0)
    smoothed = Smoothed(nn.Sequential(nn.Flatten(), nn.Linear(6, 4)), Gaussian(0.5), input_range=None)
    append = RunWriter.append

    def kill(writer, row):
        append(writer, row)
        if len(writer.done) == 10:
            os.kill(os.getpid(), signal.SIGKILL)

    RunWriter.append = kill
    data = [(x, i % 4) for i, x in enumerate(torch.linspace(0, 1, 23 * 6).reshape(23, 2, 3))]
    count_votes(smoothed, data, 50, folder=sys.argv[1], seed=3, progress=False)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here")
def test_killed_and_continued_gives_the_same_votes(tmp_path, sampled):
    process = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path / "votes")], check=False)
    assert process.returncode == -signal.SIGKILL
    done = {row["index"] for row in load_run(tmp_path / "votes").rows()}
    assert len(done) == 10
    votes = count(tmp_path / "votes")
    assert set(sampled) == set(range(23)) - done
    assert np.array_equal(votes, count())
    first, second = load_run(tmp_path / "votes").info["sessions"]
    assert first["runtime"]["batch_size"] == second["runtime"]["batch_size"]


def other_weight() -> nn.Module:
    model = linear()
    with torch.no_grad():
        model[1].bias[0] += 1e-6
    return model


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model": other_weight()}, r"model\.sha256 is"),
        ({"model": nn.Sequential(*linear(), nn.ReLU())}, "model"),
        ({"sigma": 0.25}, r"noise\.sigma is 0\.5 there and 0\.25 here"),
        ({"n": 60}, r"procedure\.n is 50 there and 60 here"),
        ({"stage": HOLDOUT}, r"procedure\.stage is"),
        ({"seed": 4}, "seed is 3 there and 4 here"),
        ({"dataset": [(x + 1e-6, y) for x, y in DATA]}, r"data\.sha256 is"),
        ({"dataset": DATA[::-1]}, r"data\.sha256 is"),
        ({"dataset": DATA[:22]}, r"data\.size is 23 there and 22 here"),
        ({"dataset": [(x + (i == 5), y) for i, (x, y) in enumerate(DATA)]}, "input 5 of the dataset is not the one"),
    ],
)
def test_other_votes_are_refused_and_kept(tmp_path, sampled, change, match):
    expected = count(tmp_path / "votes")
    sampled.clear()
    with pytest.raises(RunError, match=match):
        count(tmp_path / "votes", **change)
    assert sampled == []
    assert np.array_equal(count(tmp_path / "votes"), expected)


def test_a_folder_of_other_things_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="exists and is not a run folder; choose a new or empty folder"):
        count(tmp_path)
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_folder_in_use_is_refused(tmp_path, sampled):
    with FileLock(tmp_path / ".lock"), pytest.raises(RunError, match="being written by another process"):
        count(tmp_path)
    assert sampled == []


def stored(folder: Path, change) -> Path:
    """A copy of a folder with other counts and right checksums."""
    run = load_run(folder)
    rows = run.table().to_pylist()
    change(rows)
    return write_run(folder.parent / "changed", pa.Table.from_pylist(rows, schema=SCHEMA), run.config, {}).path


@pytest.mark.parametrize(
    ("counts", "match"),
    [
        ([50, 1, 0, 0], r"parquet is damaged: the row of input 5 has counts that .*; delete the file and run the same"),
        ([51, -1, 0, 0], "the row of input 5 has counts that are negative"),
        ([2**62, 2**62, 2**62, 2**62], "the row of input 5 has counts that are negative or more than its samples"),
        ([0, 0, 0, 0], "holds invalid votes; delete it to count them again"),
        ([50, 0, 0], "counts must hold equally many counts in every row"),
        (None, "counts must hold equally many counts in every row"),
    ],
)
def test_invalid_votes_are_refused(tmp_path, counts, match):
    count(tmp_path / "votes")
    folder = stored(tmp_path / "votes", lambda rows: rows[5].update(counts=counts))
    with pytest.raises(RunError, match=match):
        count(folder)


@pytest.mark.parametrize("n", [49, None])
def test_votes_of_another_number_of_samples_are_refused(tmp_path, n):
    count(tmp_path / "votes")
    folder = stored(tmp_path / "votes", lambda rows: rows[5].update(n=n, counts=[49, 0, 0, 0]))
    with pytest.raises(RunError, match="holds invalid votes"):
        count(folder)


def test_a_damaged_part_is_refused(tmp_path):
    count(tmp_path / "votes")
    (part,) = (tmp_path / "votes").glob("part-*.parquet")
    part.write_bytes(part.read_bytes()[:-8])
    with pytest.raises(RunError, match=r"part-000000\.parquet is damaged .*; delete it and run the same command again"):
        count(tmp_path / "votes")
    part.unlink()
    assert np.array_equal(count(tmp_path / "votes"), count())


def test_a_scan_does_not_find_votes_as_results(tmp_path):
    count(tmp_path / "votes")
    clean_decisions(linear(), DATA, num_classes=4, batch_size=5, folder=tmp_path / "decisions")
    with pytest.raises(UsageError, match="holds neither runs nor certification logs"):
        find_results([tmp_path])
    (result,) = find_results([tmp_path / "votes"])
    with pytest.raises(UsageError, match="has no predict and no radius; certified accuracy needs"):
        result.outcomes  # noqa: B018


def test_a_progress_bar_without_a_folder(capsys):
    smoothed = Smoothed(linear(), Gaussian(0.5), input_range=None)
    assert count_votes(smoothed, DATA, 50, progress=True).sum() == 50 * len(DATA)
    assert "count votes" in capsys.readouterr().err


@pytest.mark.parametrize("folder", [None, "decisions"])
def test_a_black_box_is_asked_once_about_each_input(tmp_path, folder):
    model, asked = linear(), []

    def black_box(x):
        asked.extend(x.flatten(1)[:, 0].tolist())
        return model(x)

    place = None if folder is None else tmp_path / folder
    options = {"num_classes": 4, "batch_size": 5, "folder": place}
    found = clean_decisions(black_box, DATA, **options)
    assert asked == X.flatten(1)[:, 0].tolist()
    with torch.inference_mode():
        assert found.tolist() == model(X).argmax(1).tolist()
    if folder is not None:
        assert np.array_equal(clean_decisions(black_box, DATA, **options), found)
        assert len(asked) == 23
        with pytest.raises(RunError, match=r"data\.sha256"):
            clean_decisions(black_box, DATA[::-1], **options)


def test_counted_votes_certify_nothing(tmp_path):
    from smoothcert.evaluate.votes import CountVotes

    with pytest.raises(UsageError, match="counted votes certify nothing"):
        Smoothed(linear(), Gaussian(0.5)).certify(X[0], CountVotes(n=10))
