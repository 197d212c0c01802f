"""Recertification of a run: an ordinary run folder, resumable, and only from the original's own run."""

from __future__ import annotations

import json

import pytest
import torch

import smoothcert as sc
from smoothcert.report.recompute import outcomes_of
from smoothcert.stats import lower_bound, upper_bound
from smoothcert.types import UsageError

DATA = [(torch.full((2, 4), i / 20), i % 4) for i in range(20)]
NOISE = sc.Gaussian(0.5)


def network(change: float = 0.0) -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 4))
    with torch.no_grad():
        model[1].weight *= 3
        model[1].weight += change * torch.randn(4, 8)
    return model.eval()


@pytest.fixture
def original(tmp_path):
    place = {"every": 2, "start": 1, "seed": 0, "progress": False}
    return sc.certify_dataset(sc.Smoothed(network(), NOISE), DATA, sc.Cohen(2_000), run=tmp_path / "original", **place)


def recertified(original, run, dataset=DATA, **options):
    smoothed = sc.Smoothed(network(0.02), NOISE)
    return sc.recertify(original, network(), smoothed, dataset, run=run, seed=0, progress=False, **options)


def without_time(run) -> list[dict]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in run.rows()]


def test_rows_hold_the_counts_that_prove_the_bound(original, tmp_path):
    run = recertified(original, tmp_path / "new", direct=0.6)
    assert [row["index"] for row in run.rows()] == list(range(1, 20, 2))
    how = run.settings.procedure
    assert (how.name, how.n, how.alpha) == ("recertify", 200, 0.001)
    branches = set()
    for row, first in zip(run.rows(), original.rows(), strict=True):
        assert (row["original"], row["original_n"], row["selection"]) == (first["counts"], 2_000, first["selection"])
        guess = max(range(4), key=row["selection"].__getitem__)
        branches.add(row["changed"] is None)
        if row["changed"] is None:
            expected = lower_bound(row["counts"][guess], 200, 0.0009)
        else:
            lost = upper_bound(row["changed"][guess], 200, 0.00045)
            through = lower_bound(row["original"][guess], 2_000, 0.0001) - lost
            expected = max(through, lower_bound(row["counts"][guess], 200, 0.00045))
        assert row["p_lower"] == pytest.approx(expected, abs=1e-12)
        assert row["model"] != first["model"]
    assert branches == {True, False}
    assert len(outcomes_of(run)) == 10
    with pytest.raises(UsageError, match="was certified by recertify"):
        outcomes_of(run, alpha=0.01)


def test_an_interrupted_run_continues(original, tmp_path):
    class Interrupted(list):
        def __getitem__(self, index):
            if index == 11 and armed:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    armed = True
    with pytest.raises(KeyboardInterrupt):
        recertified(original, tmp_path / "new", Interrupted(DATA))
    armed = False
    resumed = recertified(original, tmp_path / "new", Interrupted(DATA))
    assert without_time(resumed) == without_time(recertified(original, tmp_path / "whole"))


def test_only_the_original_run_counts(original, tmp_path):
    smoothed = sc.Smoothed(network(0.02), NOISE)
    place = {"run": tmp_path / "new", "progress": False}
    with pytest.raises(UsageError, match="weights or code differ"):
        sc.recertify(original, network(0.5), smoothed, DATA, **place)
    with pytest.raises(UsageError, match=r"certified under .*0\.5.*, not under .*0\.25"):
        sc.recertify(original, network(), sc.Smoothed(network(), sc.Gaussian(0.25)), DATA, **place)
    with pytest.raises(UsageError, match="has no votes for this input"):
        sc.recertify(original, network(), smoothed, [(x + 0.01, y) for x, y in DATA[:-1]] + DATA[-1:], **place)
    with pytest.raises(UsageError, match="no certificate for 5 inputs, such as 21; finish it first"):
        sc.recertify(original, network(), smoothed, DATA + DATA[:10], **place)
    original.config["precision"] = "bf16"
    with pytest.raises(UsageError, match="runs in autocast"):
        sc.recertify(original, network(), smoothed, DATA, **place)
    early = sc.certify_dataset(
        sc.Smoothed(network(), NOISE), DATA, sc.Anytime(0.1), run=tmp_path / "early", stop=2, progress=False
    )
    with pytest.raises(UsageError, match="not certified with a fixed number of samples"):
        sc.recertify(early, network(), smoothed, DATA, **place)
    assert not (tmp_path / "new").exists()


def test_command_line(run, tmp_path, monkeypatch):
    """Quantise a checkpoint, certify it, and recertify its int8 form from the run."""
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    info = sc.CheckpointInfo(architecture="digits-cnn", num_classes=10, input_shape=(1, 8, 8), sigma=0.25)
    sc.save_checkpoint("net.safetensors", sc.models.build("digits-cnn"), info)
    code, out, err = run("quantize", "net.safetensors", "--data", "digits", "--inputs", 50, "--compared", 10)
    assert code == 0, err
    assert "net.int8.onnx" in out
    assert "of the noisy copies the same class" in out
    some = ["--data", "digits", "--stop", 4]
    assert run("certify", "net.safetensors", *some, "--n", 500, "--run", "first")[0] == 0
    code, out, err = run("recertify", "first", "net.int8.onnx", "--data", "digits", "--n", 100)
    assert code == 0, err
    assert "100 samples per input; the original was called for" in out
    found = json.loads((tmp_path / "runs/first-recertified-net.int8/run.json").read_text())
    assert found["sessions"][0]["source"]["original"]["checkpoint"] == "net.safetensors"
    assert run("table", "first", "runs/first-recertified-net.int8")[0] == 0
    assert run("compare", "first", "runs/first-recertified-net.int8")[0] == 0
    code, _, err = run("recertify", "first", "net.int8.onnx", "--data", "digits", "--original", "net.int8.onnx")
    assert (code, "weights or code differ" in err) == (2, True)
