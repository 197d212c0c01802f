"""Every example a reader can copy runs: docstrings of the package, and the Python blocks of its pages."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import smoothcert

MODULES = sorted(
    module.name for module in pkgutil.walk_packages(smoothcert.__path__, "smoothcert.") if "__main__" not in module.name
)
PAGES = [
    Path(__file__).parents[1] / name
    for name in (
        "README.md",
        "CONTRIBUTING.md",
        *(
            f"docs/{page}.md"
            for page in (
                "training",
                "ensembles",
                "denoising",
                "noises",
                "variance",
                "aces",
                "per-input",
                "router",
                "corruptions",
                "report",
                "doctor",
                "plugins",
                "python",
                "recertify",
            )
        ),
    )
]


@pytest.mark.parametrize("name", ["smoothcert", *MODULES])
def test_docstring_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(page), "exec", dont_inherit=True), names)
