"""``smoothcert report``: the file it writes, what it says, and what it refuses; and the last words of the demo."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from smoothcert import Cohen, Gaussian, Smoothed, data, load_run
from smoothcert.cli.demo import serving, summary
from smoothcert.data.inputs import data_fingerprint
from smoothcert.evaluate import certify_dataset
from smoothcert.store import Outcomes, write_run

LOG = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t3\t3\t0.5\t1\t1.5\n1\t2\t2\t0.25\t1\t1.5\n"


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "sigma_0.50"
    path.write_text(LOG)
    return path


@pytest.fixture
def certified(tmp_path, exact_logits):
    smoothed = Smoothed(exact_logits, Gaussian(0.25), num_classes=10, runtime="eager")
    columns = np.zeros((6, 1, 10, 10), dtype=np.uint8)
    columns[range(6), 0, :, range(6)] = 255
    np.savez(tmp_path / "columns.npz", x=columns, y=np.arange(6), class_names=[f"column {i}" for i in range(10)])
    dataset = data.load(tmp_path / "columns.npz")
    return certify_dataset(smoothed, dataset, Cohen(n=50, n0=10), run=tmp_path / "run", progress=False, seed=0).path


def payload(path):
    return json.loads(re.search(r'id="report-data">(.*?)</script>', path.read_text(), re.DOTALL)[1])


def refusal(result, code=2):
    assert (result[0], result[1]) == (code, ""), result
    assert result[2].startswith("smoothcert: ")
    assert result[2].count("\n") == 1
    return result[2]


def test_report_says_where_it_is_and_how_large(run, log, tmp_path):
    page = tmp_path / "page.html"
    code, out, err = run("report", log, "-o", page, "--radii", "0,0.5", "--title", "Mine & yours")
    assert (code, out) == (0, "")
    assert err == f"Report: {page} ({page.stat().st_size / 1e6:.1f} MB), for any browser\n"
    shown = payload(page)
    assert shown["title"] == "Mine & yours"
    assert [text for text, _ in shown["groups"][0]["table"]["rows"][0]][:4] == ["sigma_0.50", "0.375", "100.0", "50.0"]
    assert "default-src 'none'" in page.read_text()[:1000]


def test_images_come_from_where_the_user_says(run, certified, tmp_path):
    page = tmp_path / "page.html"
    assert run("report", certified, "-o", page)[0] == 0
    assert "--data" in payload(page)["groups"][0]["imageNote"]  # a file is not opened because a run names it
    assert run("report", certified, "-o", page, "--data", tmp_path / "columns.npz")[0] == 0
    (group,) = payload(page)["groups"]
    assert group["images"]["classes"][1] == "column 1"
    assert group["imageNote"] == ""
    assert run("report", certified, "-o", page, "--no-images")[0] == 0
    assert payload(page)["groups"][0]["images"] is None
    assert run("report", certified, "-o", page, "--data", "digits")[0] == 0
    assert "not the one" in payload(page)["groups"][0]["imageNote"]


def test_bundled_images_are_found_by_name(run, tmp_path, exact_logits):
    smoothed = Smoothed(exact_logits, Gaussian(0.25), num_classes=8, runtime="eager")
    digits = data.load("digits", split="test")
    few = [(x, y % 8) for x, y in (digits[i] for i in range(3))]
    other = certify_dataset(smoothed, few, Cohen(n=50, n0=10), run=tmp_path / "few", progress=False, seed=0).path
    inputs = {"every": 1, "start": 0, "stop": 3}
    config = {**load_run(other).config, "data": data_fingerprint(digits, range(3)), "inputs": inputs}
    same = write_run(tmp_path / "same", load_run(other).table(), config, {}).path
    page = tmp_path / "page.html"
    assert run("report", same, "-o", page)[0] == 0
    assert payload(page)["groups"][0]["images"]["classes"][3] == "3"


def test_refusals(run, log, certified, tmp_path):
    page = tmp_path / "page.html"
    assert "does not exist" in refusal(run("report", tmp_path / "nowhere", "-o", page))
    assert "must read like" in refusal(run("report", log, "-o", page, "--radii", "1:0"))
    assert "give only one" in refusal(run("report", log, "-o", page, "--no-images", "--data", "digits"))
    assert "missing does not exist" in refusal(run("report", log, "-o", tmp_path / "missing" / "page.html"))
    assert "did you mean" in refusal(run("report", log, "-o", page, "--data", "digit"))
    (certified / "pending.jsonl").write_text("{}\n")
    assert "line 1" in refusal(run("report", certified, "-o", page), code=1)
    assert not page.exists()
    page.mkdir()
    assert "cannot be written" in refusal(run("report", log, "-o", page), code=1)


def test_the_demo_ends_with_its_own_numbers():
    text = summary(Outcomes("run", range(8), [1] * 8, [1] * 6 + [2, -1], [0.3] * 5 + [0.2, 0.9, 0.0]))
    assert "75.0% of 8 test digits correctly" in text
    assert "abstains on 12.5%" in text
    assert "For 62.5% of them" in text


def test_the_demo_names_a_program_that_is_found(monkeypatch):
    for started, found, command in (
        (".venv/bin/smoothcert", None, ".venv/bin/smoothcert"),
        (".venv/bin/smoothcert", "/usr/bin/smoothcert", ".venv/bin/smoothcert"),
        ("/usr/bin/smoothcert", "/usr/bin/smoothcert", "smoothcert"),
        ("/usr/lib/__main__.py", None, "smoothcert"),
    ):
        monkeypatch.setattr("sys.argv", [started])
        monkeypatch.setattr("shutil.which", lambda _, found=found: found)
        assert f"\n  {command} serve 'a b.safetensors' --radius" in serving(Path("a b.safetensors"))
