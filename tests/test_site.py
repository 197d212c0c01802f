"""The documentation site: every public name and every command has a place. `make docs` builds it."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import smoothcert
from smoothcert.cli.app import COMMANDS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def load(name: str) -> ModuleType:
    """Import a module of ``website``, which is a folder of scripts and not a package."""
    spec = importlib.util.spec_from_file_location(f"website_{name}", ROOT / "website" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


modules, command_line, check_links = load("modules"), load("command_line"), load("check_links")


def places(nav) -> list[str]:
    """The files of a navigation, in its order."""
    if isinstance(nav, str):
        return [nav]
    return [place for part in (nav.values() if isinstance(nav, dict) else nav) for place in places(part)]


@pytest.fixture(scope="module")
def navigation():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return places(yaml.safe_load(text)["nav"])


def test_every_public_name_is_in_the_reference():
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    shown = re.findall(r"^::: smoothcert\.(\S+)$", pages, re.MULTILINE)
    subpackages = {name for name in smoothcert.__all__ if isinstance(getattr(smoothcert, name), ModuleType)}
    assert sorted(shown) == sorted({*smoothcert.__all__, "hub.HubModel"} - subpackages)
    assert subpackages <= set(modules.MODULES)


@pytest.mark.parametrize("name", modules.MODULES)
def test_the_page_of_a_subpackage_has_its_public_names(name):
    page = modules.page(name)
    for each in importlib.import_module(f"smoothcert.{name}").__all__:
        assert f"::: smoothcert.{name}.{each}\n" in page or f"[smoothcert.{each}]" in page


def test_the_command_line_page_matches_the_commands():
    page = command_line.page()
    sections = dict(re.findall(r"^## smoothcert (.+?)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert list(sections) == list(COMMANDS)
    for name, command, context in command_line.commands():
        for parameter in command.get_params(context):
            for option in (*parameter.opts, *parameter.secondary_opts):
                if parameter.param_type_name == "option" and parameter.name != "help":
                    assert f"`{option}`" in sections[name], f"{name} {option}"


def test_every_page_is_in_the_navigation(navigation):
    written = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    notebooks = {f"tutorials/{page.stem}.md" for page in (DOCS / "tutorials").glob("*.ipynb")}
    generated = {"reference/command-line.md", *(f"reference/{name}.md" for name in modules.MODULES)}
    assert len(navigation) == len(set(navigation))
    assert set(navigation) == written | notebooks | generated


def test_notebooks_are_stored_without_outputs():
    for path in (DOCS / "tutorials").glob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            assert not cell.get("outputs"), path.name


def test_broken_links_and_other_hosts_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#there">b</a><p id="here"></p><a href="#here">here</a>')
    (tmp_path / "b.html").write_text('<h1 id="there"></h1><a href="a.html#here">a</a>')
    assert check_links.problems(tmp_path) == []
    (tmp_path / "c.html").write_text(
        '<a href="a.html#gone">a</a><a href="d.html">d</a><script src="https://example.org/x.js"></script>'
        '<a href="https://example.org">allowed</a><link rel="canonical" href="https://example.org/c.html">'
    )
    (tmp_path / "c.css").write_text("@font-face { src: url(//example.org/font.woff2) }")
    assert check_links.problems(tmp_path) == [
        "c.html: loads https://example.org/x.js",
        "c.html: a.html#gone has no such anchor",
        "c.html: d.html does not exist",
        "c.css: loads //example.org/font.woff2",
    ]
