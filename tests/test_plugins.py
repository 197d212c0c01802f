"""Plug-ins: installed packages and files add parts to the registries, and broken ones are skipped."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch

import smoothcert as sc
from smoothcert import models, plugins
from smoothcert.certify import PROCEDURES
from smoothcert.classifiers.identity import code_origins
from smoothcert.cli.options import Group, command, derived
from smoothcert.data import load
from smoothcert.models import CheckpointInfo, save_checkpoint
from smoothcert.noise import NOISES
from smoothcert.plugins import Registry
from smoothcert.types import UsageError

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "plugin"
LAPLACE = (EXAMPLE / "src" / "smoothcert_example" / "noise.py").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with the example package, installed by pip without a network."""
    pytest.importorskip("setuptools", minversion="70.1")
    place = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(EXAMPLE, place / "source")  # the build writes next to the source
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-build-isolation", "--no-deps"]
    subprocess.run([*command, "--target", place / "site", source], check=True, capture_output=True)
    return place / "site"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "cnn.safetensors"
    save_checkpoint(path, models.build("digits-cnn"), CheckpointInfo.of("digits-cnn", sigma=0.25))
    return path


COMMANDS = """
import contextlib, io, json, sys
from smoothcert.cli import _run
for line in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = _run(line)
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def commands(site: Path, *lines: list[object]) -> list[tuple[int, str, str]]:
    """Run commands in a new process that finds the packages of a folder; give code, stdout and stderr of each."""
    paths = os.pathsep.join([str(site), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "200"}
    texts = json.dumps([[str(word) for word in line] for line in lines])
    line = [sys.executable, "-c", COMMANDS, texts]
    ended = subprocess.run(line, env=environment, capture_output=True, text=True, cwd=site)
    assert ended.returncode == 0, ended.stderr
    return [tuple(json.loads(each)) for each in ended.stdout.splitlines()]


def fake_package(site: Path, name: str, group: str, entry: str, code: str = "", version: str = "1.0") -> None:
    """Write a package with one entry point, as if it were installed."""
    about = site / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (about / "entry_points.txt").write_text(f"[smoothcert.{group}]\n{entry}\n")
    (site / f"{name}.py").write_text(code)


def test_an_installed_package_is_used_from_training_to_tables(installed, run, tmp_path):
    short = ["epochs=1", "holdout=20", "votes=20", "method.name=anchored", "method.m=1", "model=digits-mlp"]
    changes = [word for change in (*short, "noise.name=laplace", "noise.lam=0.2") for word in ("--set", change)]
    certify = ["certify", tmp_path / "model", "--data", "digits", "--procedure", "second-try", "--n", 100]
    certify += ["--stop", 3, "--run", tmp_path / "run"]
    shown, listed, trained, certified, again, table = commands(
        installed,
        ["certify", "--help"],
        ["data", "list"],
        ["train", "digits-gaussian-0.25-quick", *changes, "-o", tmp_path / "model"],
        certify,
        certify,
        ["table", tmp_path / "run"],
    )
    assert "gaussian, uniform, discrete, laplace" in shown[1]
    assert "second-try" in shown[1]
    assert re.search(r"stripes .* plug-in smoothcert-example-plugin", listed[1])
    assert trained[0] == 0, trained
    assert certified[0] == 0, certified
    config = sc.load_run(tmp_path / "run").config
    assert config["noise"] == {"name": "laplace", "lam": 0.2}
    assert config["plugins"].keys() == {"noise laplace", "procedure second-try"}
    assert config["plugins"]["noise laplace"].startswith("smoothcert-example-plugin 0.1.0, noise.py sha256:")
    assert again[0] == 0, again
    assert again[1] == certified[1]
    assert table[0] == 0, table
    assert "ℓ1 radius" in table[1]
    assert run("table", tmp_path / "run")[0] == 0  # also where the package is not installed
    code, _, err = run(*certify[:4])
    assert code == 1
    assert "if a plug-in defines it, install it or give --plugin FILE" in err


@pytest.fixture
def laplace(tmp_path) -> Path:
    file = tmp_path / "my_laplace.py"
    file.write_text(
        LAPLACE.replace("@dataclass", "@sc.register\n@dataclass").replace(
            "import torch", "import torch\nimport smoothcert as sc"
        )
    )
    return file


@pytest.mark.parametrize("place", ["before", "after", "environment"])
def test_a_file_is_a_plugin(run, laplace, monkeypatch, place):
    plan = ["plan", "--noise", "laplace", "--lam", "0.5"]
    if place == "environment":
        monkeypatch.setenv("SMOOTHCERT_PLUGINS", str(laplace))
    words = {"before": ["--plugin", laplace, *plan], "after": [*plan, f"--plugin={laplace}"], "environment": plan}
    code, out, err = run(*words[place])
    assert code == 0, err
    assert out.startswith("Largest l1 radius")


def test_a_run_is_not_continued_with_another_plugin_of_the_same_name(run, laplace, model, tmp_path):
    certify = ["certify", model, "--data", "digits", "--noise", "laplace", "--lam", "0.5", "--n", 50, "--stop", 2]
    certify += ["--run", tmp_path / "run", "--plugin", laplace]
    code, _, err = run(*certify)
    assert code == 0, err
    laplace.write_text(laplace.read_text().replace("-self.lam * np.log", "-2.0 * self.lam * np.log"))
    del sys.modules["my_laplace"], NOISES._plugins["laplace"]
    code, _, err = run(*certify)
    assert code == 1
    assert "plugins.noise laplace is my_laplace.py sha256:" in err
    with pytest.raises(UsageError, match="use the same plug-in"):
        sc.load_run(tmp_path / "run").settings.build_noise()


def test_a_noise_and_a_procedure_of_a_file_work_on_a_cluster(run, laplace, model, tmp_path):
    pytest.importorskip("ray")
    other = tmp_path / "my_try.py"
    text = (EXAMPLE / "src" / "smoothcert_example" / "procedure.py").read_text(encoding="utf-8")
    text = text.replace("@dataclass", "@register\n@dataclass")
    other.write_text(text.replace("import Procedure", "import Procedure, register"))
    certify = ["certify", model, "--data", "digits", "--noise", "laplace", "--lam", "0.5", "--n", 50, "--stop", 4]
    certify += ["--procedure", "second-try", "--plugin", laplace, "--plugin", other, "--seed", 0, "--runtime", "eager"]
    for name, cluster in (("here", []), ("there", ["--ray", "--ray-workers", 1])):
        code, _, err = run(*certify, "--run", tmp_path / name, *cluster)
        assert code == 0, err
    columns = ["index", "radius", "counts"]
    runs = [sc.load_run(tmp_path / name).table(columns).to_pylist() for name in ("here", "there")]
    assert runs[0] == runs[1]


BROKEN = {
    "error": ("laplace = broken_one:Laplace", "raise RuntimeError('no luck')", "RuntimeError: no luck"),
    "exit": ("laplace = broken_one:Laplace", "import sys; sys.exit(3)", "SystemExit: 3"),
    "no such name": ("laplace = broken_one:Other", LAPLACE, "has no attribute 'Other'"),
    "another class": ("laplace = broken_one:Laplace", "class Laplace: ...", "not a class derived from Noise"),
    "another name": ("lapalace = broken_one:Laplace", LAPLACE, "its name is 'laplace', not 'lapalace'"),
    "ours": ("gaussian = broken_one:Laplace", LAPLACE.replace('"laplace"', '"gaussian"'), "belongs to smoothcert"),
    "abstract": ("laplace = broken_one:Laplace", LAPLACE.replace("def sample", "def other"), "does not define sample"),
    "not a dataclass": (
        "laplace = broken_one:Laplace",
        LAPLACE.replace("@dataclass(frozen=True)\n", ""),
        "must have the decorator @dataclass",
    ),
    "another type": (
        "laplace = broken_one:Laplace",
        LAPLACE.replace("lam: float", "lam: bool"),
        "its setting lam has the type",
    ),
}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder whose packages are found as if they were installed."""

    def found(group):
        every = (entry for package in distributions(path=[str(tmp_path)]) for entry in package.entry_points)
        return [entry for entry in every if entry.group == group]

    monkeypatch.setattr(plugins, "entry_points", found)
    monkeypatch.setattr(plugins, "_REGISTRIES", dict(plugins._REGISTRIES))
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for file in tmp_path.glob("*.py"):
        sys.modules.pop(file.stem, None)


def fresh(registry: Registry) -> Registry:
    """A registry that has not looked for plug-ins yet."""
    return Registry(registry.group, registry.kind, registry.base, registry.own)


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_is_skipped(site, case):
    entry, code, reason = BROKEN[case]
    fake_package(site, "broken_one", "noises", entry, code)
    name, noises = entry.split()[0], fresh(NOISES)
    assert noises["gaussian"] is sc.Gaussian  # without a look at plug-ins
    with pytest.warns(UserWarning, match="the plug-in broken_one 1.0 was skipped: ") as warned:
        assert list(noises) == ["gaussian", "uniform", "discrete"]
    assert len(warned) == 1
    assert reason in str(warned[0].message)
    assert noises["gaussian"] is sc.Gaussian
    assert f"the noise {name!r} cannot be used: the plug-in broken_one 1.0" in str(noises.unknown(name))


def test_of_two_packages_with_the_same_name_none_is_used(site):
    for name in ("first_one", "second_one"):
        fake_package(site, name, "noises", f"laplace = {name}:Laplace", LAPLACE)
    noises = fresh(NOISES)
    with pytest.warns(UserWarning, match="the plug-in first_one 1.0 and second_one 1.0 was skipped: each of"):
        assert "laplace" not in noises


def test_a_package_is_found_and_not_replaced_by_a_file(site, laplace):
    code = LAPLACE + "\nimport smoothcert.noise\nseen = list(smoothcert.noise.NOISES)\n"  # while it is imported
    fake_package(site, "first_one", "noises", "laplace = first_one:Laplace", code)
    noises = fresh(NOISES)
    assert list(noises) == ["gaussian", "uniform", "discrete", "laplace"]
    assert len(noises) == 4
    assert code_origins(noises["laplace"](lam=1.0))["noise laplace"].startswith("first_one 1.0, first_one.py sha256")
    assert plugins.packages() == ["first_one"]
    with pytest.raises(UsageError, match=r"the package first_one 1\.0 has one of this name"):
        plugins.load_plugins([str(laplace)])


def test_an_option_of_a_plugin_does_not_replace_ours(site):
    text = (EXAMPLE / "src" / "smoothcert_example" / "procedure.py").read_text(encoding="utf-8")
    code = text.replace("    n: int = 1_000\n", "    n: int = 1_000\n    seed: int = 0\n    tries: int = 2\n")
    fake_package(site, "greedy", "procedures", "second-try = greedy:SecondTry", code)

    @dataclass(kw_only=True)
    class Options(Group):
        settings: dict[str, Any] = derived(fresh(PROCEDURES))

    seen = []

    def shown(how: Options, seed: Annotated[int, "Ours."] = 7) -> None:
        seen.append((how.settings, seed))

    shown.__annotations__ = {"how": Options, "seed": Annotated[int, "Ours."]}
    with pytest.warns(UserWarning, match="--seed of a plug-in is left out here, as another option has this name"):
        made = command(shown)
    assert {"seed", "tries", "n"} <= inspect.signature(made).parameters.keys()
    made(**{**dict.fromkeys(inspect.signature(made).parameters), "seed": 3, "tries": "4"})
    assert seen == [({"tries": "4"}, 3)]


def test_importing_smoothcert_imports_no_plugin(tmp_path):
    fake_package(tmp_path, "loud", "noises", "loud = loud:Loud", "raise SystemExit('imported')")
    code = "import smoothcert.noise as n, smoothcert.cli.app, smoothcert.store; assert 'gaussian' in n.NOISES"
    paths = os.pathsep.join([str(tmp_path), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_file_that_cannot_be_used_ends_the_command(run, tmp_path):
    (tmp_path / "takes_ours.py").write_text(
        LAPLACE.replace("@dataclass", "@sc.register\n@dataclass")
        .replace("import torch", "import torch\nimport smoothcert as sc")
        .replace('"laplace"', '"gaussian"')
    )
    code, _, err = run("plan", "--sigma", "1", "--plugin", tmp_path / "takes_ours.py")
    assert code == 2
    assert "'gaussian' cannot be added to the noises: the name 'gaussian' belongs to smoothcert" in err
    assert NOISES["gaussian"] is sc.Gaussian
    code, _, err = run("plan", "--sigma", "1", "--plugin", tmp_path / "missing.py")
    assert code == 2
    assert "missing.py does not exist" in err
    code, _, err = run("plan", "--sigma", "1", "--plugin")
    assert code == 2
    assert "--plugin needs the path of a Python file" in err


def test_register_in_python(tmp_path):
    @sc.register
    @dataclass(frozen=True, kw_only=True)
    class Short(sc.Cohen):
        n: int = 100
        name = "short"

    assert PROCEDURES["short"] is Short
    assert list(PROCEDURES)[-1] == "short"
    info = models.ModelInfo("tiny", models.MODELS["digits-cnn"].builder, (1, 8, 8), 10)
    sc.register(info)
    assert models.build("tiny") is not None
    with pytest.raises(UsageError, match="'lenet' cannot be added to the denoisers: the name 'lenet' belongs to"):
        sc.register(models.ModelInfo("lenet", info.builder, (1, 8, 8), 10), "denoisers")
    sc.register(lambda split: load("digits", split=split), "datasets", "my-digits")
    assert len(load("my-digits")) == len(load("digits"))
    sc.register(lambda split: [1, 2], "datasets", "bad-digits")
    with pytest.raises(sc.SmoothcertError, match=r"not an \(input, label\) pair"):
        load("bad-digits")
    with pytest.raises(UsageError, match="is not a Noise, Procedure, Method or ModelInfo; name its group"):
        sc.register(len)
    with pytest.raises(UsageError, match="unknown group of plug-ins 'noise'; did you mean 'noises'"):
        sc.register(Short, "noise")


def test_the_worked_examples_are_those_of_the_example_package():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for name in ("noise", "procedure", "method"):
        code = (EXAMPLE / "src" / "smoothcert_example" / f"{name}.py").read_text(encoding="utf-8")
        for function in re.findall(
            r"    def (?:sample|_radius|_threshold|certify|loss)\(.*?(?=\n\n|\Z)", code, re.DOTALL
        ):
            assert function.rstrip() in page


REDEFINED = """
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
import smoothcert as sc

@dataclass(frozen=True)
class Mine(sc.Gaussian):
    name: ClassVar[str] = "mine"

    def _radius(self, p, norm, dimension):
        return FACTOR * super()._radius(p, norm, dimension)
"""


@pytest.mark.parametrize("registered", [True, False])
def test_a_class_that_is_defined_again_does_not_continue_a_run(tmp_path, half_space, registered):
    """As in a notebook, where both classes have the same name and no file."""
    data = [(torch.full((4,), 0.7), 1), (torch.full((4,), 0.8), 1)]
    found = []
    for factor in (1.0, 2.0, 1.0):
        cell = {"__name__": "__main__"}
        exec(compile(REDEFINED.replace("FACTOR", str(factor)), "cell", "exec", dont_inherit=True), cell)
        kind = sc.register(cell["Mine"]) if registered else cell["Mine"]
        found.append(code_origins(kind(0.5)))
        ends = pytest.raises(sc.RunError, match=r"plugins.noise mine") if factor == 2.0 else nullcontext()
        with ends:
            sc.certify_dataset(
                sc.Smoothed(half_space, kind(0.5)), data, sc.Cohen(50), run=tmp_path / "run", progress=False
            )
    assert found[0] == found[2] != found[1]


def test_the_origin_is_the_same_in_another_process(tmp_path):
    code = REDEFINED.replace("FACTOR", "1.0") + "from smoothcert.classifiers.identity import code_origins\n"
    code += "print(code_origins(Mine(0.5)))"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": seed}
        )
        for seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout != "", runs[0].stderr


def test_a_run_records_plain_text(tmp_path, laplace):
    plugins.load_plugins([str(laplace)])
    found = code_origins(NOISES["laplace"](lam=0.5), sc.Gaussian(0.5), sc.Cohen())
    assert found.keys() == {"noise laplace"}
    assert json.loads(json.dumps(found)) == found
