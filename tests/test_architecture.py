"""Imports go one way, and every method is registered."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import smoothcert
from smoothcert.certify import PROCEDURES
from smoothcert.noise import NOISES
from smoothcert.training import METHODS

SOURCE = Path(smoothcert.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

LAYERS = [
    {"types", "progress"},
    {"files", "stats", "specifiers", "plain_yaml", "tensors"},
    {"plugins"},
    {"noise"},
    {"models", "data"},
    {"classifiers"},
    {"sampling"},
    {"certify"},
    {"store", "compositions"},
    {"evaluate"},
    {"training", "report"},
    {"attack", "doctor", "hub"},
    {"testing", "serve"},
]
"""A package may import itself and the packages of the layers above it in this list."""

MAY_IMPORT = {name: set().union(*LAYERS[:place]) for place, layer in enumerate(LAYERS) for name in layer}
NEVER = {
    "store": {"certify"},
    "stats": {"files"},
    "report": {"certify", "evaluate", "sampling", "classifiers", "models"},
    "doctor": {"training", "report"},
    "attack": {"report"},
}
"""Packages that must not be imported although the order would allow it."""


def room(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(file: Path) -> set[str]:
    rooms: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            if node.module == "smoothcert":
                rooms.update(alias.name for alias in node.names)
            elif node.module and node.module.startswith("smoothcert."):
                rooms.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            rooms.update(alias.name.split(".")[1] for alias in node.names if alias.name.startswith("smoothcert."))
    return rooms


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SOURCE)))
def test_imports_run_one_way(file):
    if room(file) in ("__init__", "__main__", "cli"):
        return
    allowed = MAY_IMPORT[room(file)] - NEVER.get(room(file), set()) | {room(file)}
    assert imported_rooms(file) <= allowed


@pytest.mark.parametrize("file", [file for file in FILES if room(file) == "store"], ids=lambda f: f.stem)
def test_store_holds_folders_only(file):
    names = {
        (node.module if isinstance(node, ast.ImportFrom) else alias.name).partition(".")[0]
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert not names & {"ray", "rich"}


def test_nobody_imports_the_command_line():
    assert [file for file in FILES if room(file) not in ("__main__", "cli") and "cli" in imported_rooms(file)] == []


@pytest.mark.parametrize(
    ("folder", "shared", "registry"),
    [
        ("noise", {"base", "drawing", "grid", "thresholds"}, {type_.__module__ for type_ in NOISES.own.values()}),
        (
            "certify",
            {"answering", "base", "batches", "bounds", "choice", "engine", "forecast", "inputs", "memory", "per_input"}
            | {"plan", "recertify", "replay", "router", "runner", "simultaneous", "smoothed", "targets"},
            {type_.__module__ for type_ in PROCEDURES.own.values()},
        ),
        ("training/methods", {"base"}, {loss.__module__ for loss in METHODS.own.values()}),
    ],
)
def test_every_file_of_methods_is_registered(folder, shared, registry):
    files = {file.stem for file in (SOURCE / folder).glob("*.py")} - {"__init__"} - shared
    assert {name.rsplit(".", 1)[1] for name in registry} == files


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SOURCE)))
def test_files_do_not_name_folders_outside_the_repository(file):
    text = file.read_text(encoding="utf-8")
    assert "../shared" not in text
    assert "shared/data" not in text
