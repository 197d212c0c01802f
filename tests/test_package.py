"""What is published: the wheel holds the package and nothing else, and each part that is left out has an extra."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import smoothcert

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "smoothcert"


def included(builder):
    return {file.distribution_path.replace(os.sep, "/") for file in builder(str(ROOT)).recurse_included_files()}


@pytest.fixture(scope="module")
def wheel():
    return included(WheelBuilder)


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    files = (path.relative_to(ROOT / "src") for path in SOURCE.rglob("*") if path.is_file())
    assert wheel == {path.as_posix() for path in files if "__pycache__" not in path.parts}
    for needed in ("py.typed", "data/digits.npz", "report/page/assets/report.html", "report/page/assets/look.css"):
        assert f"smoothcert/{needed}" in wheel
    assert not [name for name in wheel if re.search(r"(^|/)(tests?|benchmarks|docs)/", name)]


def test_the_source_archive_can_be_tested():
    files = included(SdistBuilder)
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "tests/test_package.py"} <= files
    assert {name.removeprefix("src/") for name in files if name.startswith("src/")} >= included(WheelBuilder)
    assert not [name for name in files if name.endswith((".safetensors", ".pt", ".parquet"))]


WITHOUT = "import sys; sys.modules.update(dict.fromkeys({missing!r}))\n"
"""Code that makes packages look as if they were not installed."""

COMMAND = """
sys.argv = ["smoothcert", *{command!r}]
from smoothcert.cli import main
main()
"""


def fresh(code, folder):
    """Run code in a new process."""
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize(
    ("missing", "command", "need", "extra"),
    [
        ("lightning_fabric", ["train", "digits-gaussian-0.25-quick"], "training needs lightning-fabric", "train"),
        ("matplotlib", ["plot", "log", "-o", "a.png"], "figures need matplotlib", "report"),
        ("plotly", ["report", "log"], "the report page needs plotly", "report"),
        ("plotly", ["demo"], "the demo needs plotly", "train,report"),
        ("lightning_fabric", ["demo"], "the demo needs lightning_fabric", "train,report"),
    ],
)
def test_a_missing_extra_is_named(tmp_path, missing, command, need, extra):
    (tmp_path / "log").write_text("idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t3\t3\t0.486\t1\t16.6\n")
    done = fresh(WITHOUT.format(missing=[missing]) + COMMAND.format(command=command), tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f'smoothcert: {need}; pip install "smoothcert[{extra}]".\n'


def test_the_core_needs_no_extra(tmp_path):
    """The ten lines of the README run, and runs are read, without any optional package."""
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    lines = block[1].replace("sc.Cohen(1_000", "sc.Cohen(100").replace("every=100", "every=250")
    optional = {"lightning_fabric", "matplotlib", "plotly", "sklearn", "tensorboardX", "onnx", "onnxruntime", "ray"}
    optional |= {"transformers", "datasets", "huggingface_hub", "timm", "diffusers"}
    done = fresh(WITHOUT.format(missing=sorted(optional)) + lines, tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_version_is_that_of_the_changelog():
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heading is not None
    assert heading[1] == smoothcert.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {smoothcert.__version__}\n" in citation
