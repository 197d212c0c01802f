"""Certifying a dataset: resumable, reproducible, and clear about what it refuses."""

from __future__ import annotations

import multiprocessing
import random
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from smoothcert import Cohen, Gaussian, Smoothed, certify_dataset, data, load_run, models
from smoothcert.stats import lower_bound
from smoothcert.types import RunError, UsageError

DATA = [(torch.full((2, 4), i / 20), i % 4) for i in range(20)]
QUICK = Cohen(n=200)


def without_time(path) -> list[dict]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in load_run(path).rows()]


@pytest.fixture
def smoothed():
    torch.manual_seed(0)
    return Smoothed(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 4)), Gaussian(0.5), batch_size=100)


def certify(smoothed, path, dataset=DATA, procedure=QUICK, seed=0, **options):
    return certify_dataset(smoothed, dataset, procedure, run=path, progress=False, seed=seed, **options)


def test_rows_equal_single_certificates(smoothed, tmp_path):
    run = certify(smoothed, tmp_path / "run", every=3, start=1, stop=12, seed=5)
    assert [row["index"] for row in run.rows()] == [1, 4, 7, 10]
    for row in run.rows():
        alone = smoothed.certify(DATA[row["index"]][0], QUICK, seed=5, index=row["index"])
        assert (row["radius"], tuple(row["counts"]), row["predict"]) == (alone.radius, alone.counts, alone.label)
        assert row["label"] == DATA[row["index"]][1]


def test_run_file_tells_everything(smoothed, tmp_path):
    run = certify(smoothed, tmp_path / "run", source={"checkpoint": "model.safetensors", "sha256": "abc"})
    assert run.config["procedure"] == {"name": "cohen", "n0": 100, "n": 200, "alpha": 0.001, "norm": None}
    assert run.config["noise"] == {"name": "gaussian", "sigma": 0.5}
    assert len(run.config["model"]["sha256"]) == len(run.config["model"]["code"]) == 64
    assert run.config["stream"] == {"block": 20, "device": "cpu", "dtype": "float32"}
    (session,) = run.info["sessions"]
    assert session["probe"] == smoothed.sealed().probe((2, 4))
    assert session["source"]["sha256"] == "abc"
    assert {"smoothcert", "python", "torch", "numpy", "scipy"} <= session["versions"].keys()


def test_interrupted_and_resumed_gives_the_same_rows(smoothed, tmp_path):
    class Interrupted(list):
        name = "list"

        def __getitem__(self, index):
            if index == 7 and self.calls > 0:
                raise KeyboardInterrupt
            self.calls += index == 6
            return super().__getitem__(index)

    broken = Interrupted(DATA)
    broken.calls = 0
    certify(smoothed, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        certify(smoothed, tmp_path / "broken", dataset=broken)
    assert len(load_run(tmp_path / "broken").rows()) >= 6  # all but those in the batch under work
    certify(smoothed, tmp_path / "broken", dataset=broken.copy())
    assert without_time(tmp_path / "broken") == without_time(tmp_path / "whole")


def test_a_finished_run_is_not_sampled_again(smoothed, tmp_path):
    certify(smoothed, tmp_path / "run")
    before = load_run(tmp_path / "run").rows()
    certify(smoothed, tmp_path / "run")
    assert load_run(tmp_path / "run").rows() == before


def test_a_smaller_n_can_be_read_off(smoothed, tmp_path):
    run = certify(smoothed, tmp_path / "large", procedure=Cohen(n=2000), stop=4)
    small = certify(smoothed, tmp_path / "small", procedure=Cohen(n=1000), stop=4)
    for large_row, small_row in zip(run.rows(), small.rows(), strict=True):
        assert large_row["checkpoints"][1000] == small_row["counts"]
        guess = max(range(4), key=large_row["selection"].__getitem__)
        assert small_row["p_lower"] == lower_bound(large_row["checkpoints"][1000][guess], 1000, 0.001)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"procedure": Cohen(n=300)}, "procedure.n is 200 there and 300 here"),
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"every": 2}, "inputs.every is 1 there and 2 here"),
        ({"dataset": DATA[:19]}, "data.size is 20 there and 19 here"),
    ],
)
def test_a_changed_configuration_is_refused(smoothed, tmp_path, change, match):
    certify(smoothed, tmp_path / "run")
    with pytest.raises(RunError, match=match):
        certify(smoothed, tmp_path / "run", **change)


def test_changed_weights_and_noise_are_refused(smoothed, tmp_path):
    certify(smoothed, tmp_path / "run")
    with pytest.raises(RunError, match=r"noise.sigma is 0.5 there and 0.25 here"):
        certify(Smoothed(smoothed.model, Gaussian(0.25)), tmp_path / "run")
    with torch.no_grad():
        smoothed.model[1].bias += 1e-3
    with pytest.raises(RunError, match=r"model.sha256 is"):
        certify(smoothed, tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"start": 20}, "no input selected: the dataset has 20 inputs"),
        ({"stop": 0}, "no input selected"),
        ({"every": 0}, "every must be at least 1"),
        ({"start": -1}, "start at least 0"),
        ({"dataset": []}, "the dataset has 0 inputs"),
    ],
)
def test_empty_selections_are_refused_and_leave_nothing(smoothed, tmp_path, options, match):
    with pytest.raises(UsageError, match=match):
        certify(smoothed, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_bad_first_input_leaves_nothing(smoothed, tmp_path):
    with pytest.raises(UsageError, match="NaN"):
        certify(smoothed, tmp_path / "run", dataset=[(torch.full((2, 4), float("nan")), 0)])
    assert not (tmp_path / "run").exists()


def test_a_bad_later_input_is_named_and_the_rows_before_it_kept(smoothed, tmp_path):
    with pytest.raises(UsageError, match="input 2: the input contains NaN"):
        certify(smoothed, tmp_path / "run", dataset=[*DATA[:2], (torch.full((2, 4), float("nan")), 0), *DATA[3:]])
    assert len(load_run(tmp_path / "run").rows()) == 2


def certify_digits(path: Path, seed: int | None = None) -> None:
    torch.manual_seed(0)
    smoothed = Smoothed(models.build("digits-cnn"), Gaussian(0.25))
    certify_dataset(smoothed, data.load("digits"), Cohen(n=2000), run=path, stop=40, seed=seed, progress=False)


def _rows_in(pending: Path) -> int:
    return pending.read_bytes().count(b'{"index"') if pending.exists() else 0


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_killed_at_three_random_moments_and_resumed_gives_identical_rows(tmp_path):
    begin = time.monotonic()
    certify_digits(tmp_path / "whole")
    whole = time.monotonic() - begin
    pick = random.Random(0)
    seen = []
    drawn = load_run(tmp_path / "whole").config["seed"]
    for number in range(3):
        given = [tmp_path / "killed", *([] if number else [drawn])]  # later the run tells its seed
        process = multiprocessing.get_context("fork").Process(target=certify_digits, args=given)
        process.start()
        pending = tmp_path / "killed" / "pending.jsonl"
        deadline = time.monotonic() + 60
        had = _rows_in(pending)
        while time.monotonic() < deadline and _rows_in(pending) <= had:
            time.sleep(0.005)  # until it works
        time.sleep(pick.uniform(0, whole / 20))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        seen.append(len(load_run(tmp_path / "killed").rows()))
    assert seen == sorted(seen)
    assert 0 < seen[0] < seen[-1] < 40
    certify_digits(tmp_path / "killed")
    assert without_time(tmp_path / "killed") == without_time(tmp_path / "whole")
