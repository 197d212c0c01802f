"""Imports are cheap: runs are read and shown without PyTorch, and every public name can be the first one used."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

import smoothcert as sc
from smoothcert import data

LIGHT = ("types", "files", "stats", "plugins", "tensors", "noise", "data", "store", "report")
"""Packages that are imported without PyTorch."""

DRAWING = {"smoothcert.noise.drawing", "smoothcert.store.noisy_copies"}
"""Their modules that draw noise."""

COMMANDS = """
import contextlib, io, json, sys
from smoothcert.cli import _run
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()):
        code = _run(command)
    assert code == 0, command
    heavy = {"torch"} | ({"matplotlib"} if command[0] != "plot" else set())
    assert not heavy & set(sys.modules), (command, heavy & set(sys.modules))
print("done")
"""

MODULES = """
import importlib, json, pkgutil, sys
import smoothcert
light, drawing = json.loads(sys.argv[1])
for name in light:
    package = importlib.import_module("smoothcert." + name)
    inside = pkgutil.walk_packages(package.__path__, package.__name__ + ".") if hasattr(package, "__path__") else ()
    for module in inside:
        if module.name not in drawing:
            importlib.import_module(module.name)
            assert "torch" not in sys.modules, module.name
print("done")
"""

NAMES = """
import os, traceback
import matplotlib, pyarrow.parquet, scipy.stats, torch, typer  # once, and not in every copy of this process
import smoothcert
groups = {name: [name] for name in smoothcert._MODULES.split()}
for package, names in smoothcert._PACKAGES.items():
    groups.setdefault(package.partition(".")[0], []).extend(names.split())
assert sorted(sum(groups.values(), [])) == sorted(smoothcert.__all__)
for group in groups.values():
    child = os.fork()
    if not child:
        try:
            for name in group:
                getattr(smoothcert, name)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, group
print("done")
"""


def fresh(code: str, *arguments: str) -> None:
    """Run code in a new process."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    torch.manual_seed(0)
    smoothed = sc.Smoothed(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)), sc.Gaussian(0.25))
    digits = data.load("digits", split="test")
    for name, more in (("first", {"shard": (1, 2)}), ("second", {"shard": (2, 2)}), ("whole", {})):
        sc.certify_dataset(smoothed, digits, sc.Cohen(n=1_000), run=folder / name, every=100, seed=1, **more)
    return folder


def test_import_imports_no_other_package():
    packages = "{'torch', 'numpy', 'scipy', 'pyarrow', 'rich', 'typer', 'pydantic'}"
    fresh(f"import smoothcert, sys; assert not {packages} & set(sys.modules), sys.modules\nprint('done')")


def test_commands_on_runs_do_not_import_torch(runs, tmp_path):
    first, second, whole = (str(runs / name) for name in ("first", "second", "whole"))
    log, merged, imported = (str(tmp_path / name) for name in ("log.tsv", "merged", "imported"))
    commands = [
        ["--help"],
        ["table", "--help"],
        ["table", whole],
        ["table", whole, "--at-n", "100", "--bound", "runner-up", "--intervals", "--format", "csv"],
        ["compare", first, first],
        ["info", whole],
        ["merge", first, second, "-o", merged],
        ["export", whole, "-o", log],
        ["import", log, "-o", imported, "--sigma", "0.25"],
        ["table", log, imported, merged],
        ["corruptions", "table", "--help"],
        ["aces", "--help"],
        ["data", "list"],
        ["report", whole, "--no-images", "-o", str(tmp_path / "report.html")],
        ["leaderboard", whole, "-o", str(tmp_path / "leaderboard.html")],
        ["plot", whole, "-o", str(tmp_path / "curves.png")],
    ]
    fresh(COMMANDS, json.dumps(commands))


def test_the_check_notices_torch():
    with pytest.raises(AssertionError, match="torch"):
        fresh(COMMANDS, json.dumps([["plan", "--help"]]))


def test_packages_for_runs_do_not_import_torch():
    fresh(MODULES, json.dumps([LIGHT, sorted(DRAWING)]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a copy of the process for each name needs fork")
def test_every_public_name_can_be_the_first_one_used():
    fresh(NAMES)
