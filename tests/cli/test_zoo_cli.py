"""``smoothcert zoo``, and ``zoo:NAME`` as a model of commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smoothcert import load_run
from smoothcert.models.zoo import INDEX, MODEL, VARIABLE, Zoo

ZOO = Path(__file__).parents[2] / "zoo"
pytestmark = pytest.mark.skipif(not ZOO.is_dir(), reason="the source archive has no zoo")
LENET = "mnist-lenet-gaussian-0.50"


@pytest.fixture(autouse=True)
def checkout(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def test_list_has_every_model_with_its_acr(run):
    code, out, _ = run("zoo", "list")
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line and line.split()[0] in Zoo(ZOO).names()}
    assert sorted(rows) == Zoo(ZOO).names()
    assert f"{load_run(ZOO / LENET).acr:.3f}" in rows[LENET]


def test_show_prints_the_card(run):
    code, out, _ = run("zoo", "show", LENET)
    assert code == 0
    card = json.loads(out)
    assert card == Zoo(ZOO).card(LENET)
    assert (card["license"], card["recipe"]["name"]) == ("Apache-2.0", "mnist-gaussian-0.50-quick")


def test_get_makes_a_mirror_that_commands_use(run, tmp_path, monkeypatch):
    code, out, _ = run("zoo", "get", LENET, "-o", tmp_path / "mirror")
    assert (code, out.strip()) == (0, str(tmp_path / "mirror" / LENET / MODEL))
    assert run("zoo", "get", LENET)[1].strip() == str(ZOO / LENET / MODEL)
    code, out, _ = run("zoo", "list", "--zoo", tmp_path / "mirror")
    assert code == 0
    assert "catrs" not in out
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mirror"))
    code, out, _ = run("info", f"zoo:{LENET}")
    assert code == 0
    assert f"name: {LENET}" in out
    (tmp_path / "mirror" / LENET / MODEL).write_bytes(b"changed")
    code, out, err = run("info", f"zoo:{LENET}")
    assert code == 1
    assert f"{LENET}/{MODEL} is not the file in the index of the zoo" in err


def test_errors(run, tmp_path):
    code, _, err = run("zoo", "get", "lenet")
    assert code == 2
    assert "unknown model of the zoo 'lenet'" in err
    code, _, err = run("zoo", "list", "--zoo", tmp_path)
    assert code == 1
    assert f"{INDEX} cannot be read" in err
    code, _, err = run("zoo", "list", "--zoo", "http://example.org")
    assert code == 2
    assert "begins with https://" in err
    code, _, err = run("info", f"zoo:{LENET},depth=20")
    assert code == 2
    assert "a checkpoint has no option depth" in err


def test_the_zoo_is_a_folder_of_runs(run):
    code, out, err = run("table", ZOO, "--radii", "0,0.5")
    assert code == 0
    assert LENET in out
    assert INDEX not in err
