"""The rules of the house: imports run one way, every method is registered, files stay short."""

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

MAY_IMPORT = {
    "types": set(),
    "files": {"types"},
    "progress": set(),
    "stats": {"types"},
    "noise": {"types", "stats"},
    "classifiers": {"types", "stats", "noise"},
    "sampling": {"types", "stats", "noise", "classifiers"},
    "certify": {"types", "files", "stats", "noise", "classifiers", "sampling"},
    "training": {"types", "files", "progress", "stats", "noise", "classifiers", "sampling", "data", "models"},
    "data": {"types", "files"},
    "models": {"types", "files"},
    "store": {"types", "files", "progress", "stats", "noise", "classifiers", "sampling", "certify"},
    "report": {"types", "files", "stats", "noise", "store"},
    "doctor": {"types", "stats", "noise", "classifiers", "sampling", "certify", "store", "models"},
    "attack": {
        "types",
        "files",
        "stats",
        "noise",
        "classifiers",
        "sampling",
        "certify",
        "training",
        "data",
        "models",
        "store",
    },
}
"""One way only: types → stats → noise → classifiers → sampling → certify → store → report → cli."""


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
    assert imported_rooms(file) <= MAY_IMPORT[room(file)] | {room(file)}


def test_nobody_imports_the_command_line():
    assert [file for file in FILES if room(file) not in ("__main__", "cli") and "cli" in imported_rooms(file)] == []


@pytest.mark.parametrize(
    ("folder", "shared", "registry"),
    [
        ("noise", {"base", "grid", "thresholds"}, {type_.__module__ for type_ in NOISES.values()}),
        (
            "certify",
            {"base", "cores", "forecast", "inputs"}
            | {"memory", "per_input", "plan", "remote", "router", "simultaneous", "smoothed", "targets"},
            {type_.__module__ for type_ in PROCEDURES.values()},
        ),
        ("training/methods", {"base"}, {loss.__module__ for loss in METHODS.values()}),
    ],
)
def test_every_file_of_methods_is_registered(folder, shared, registry):
    files = {file.stem for file in (SOURCE / folder).glob("*.py")} - {"__init__"} - shared
    assert {name.rsplit(".", 1)[1] for name in registry} == files


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SOURCE)))
def test_files_stay_short_and_speak_of_the_product_only(file):
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 450
    assert "../shared" not in text
    assert "shared/data" not in text


def test_public_names_exist():
    for name in smoothcert.__all__:
        assert hasattr(smoothcert, name)
    assert len(smoothcert.__all__) <= 30
