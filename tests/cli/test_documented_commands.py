"""Every command line in README, docs and help parses; those that need no data or model are run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from smoothcert import data
from smoothcert.cli.app import COMMANDS, app, with_address
from smoothcert.specifiers import Specifier

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
HELP = sorted((ROOT / "src" / "smoothcert" / "cli").glob("*.py"))


def commands(file: Path) -> list[str]:
    """The command lines in the blocks of a page, or in the help of a module."""
    text = file.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:bash|console|sh)?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    lines = text.splitlines() if file.suffix == ".py" else [line for block in blocks for line in block.splitlines()]
    indent = " {8}" if file.suffix == ".py" else r"(?:\$ )?(?:[A-Z_]+=\S+ )*"
    return [found[1] for line in lines if (found := re.match(rf"{indent}(smoothcert [a-z].*)", line))]


LINES = sorted({(file.name, line) for file in (*PAGES, *HELP) for line in commands(file)})


def arguments(line: str) -> list[str]:
    words = shlex.split(line.partition(" > ")[0].removesuffix("…"), comments=True)[1:]
    return with_address(words)


@pytest.mark.parametrize(("place", "line"), LINES, ids=[f"{place}: {line[:60]}" for place, line in LINES])
def test_it_parses(place, line):
    words = arguments(line)
    root = typer.main.get_command(app)
    with root.make_context("smoothcert", list(words)) as context:
        name, command, rest = root.resolve_command(context, list(words))
        if hasattr(command, "resolve_command"):
            with command.make_context(name, list(rest), parent=context) as inner:
                name, command, rest = command.resolve_command(inner, list(rest))
        with command.make_context(name, list(rest), parent=context) as parsed:
            named = parsed.params.get("data_name")
    if named is not None and not set("/.:") & set(named) and not Specifier.parse(named).options:
        assert named in data.DATASETS


def test_every_option_of_every_command_is_explained():
    root = typer.main.get_command(app)
    for full_name in COMMANDS:
        words = [*full_name.split(), "--help"]
        with root.make_context("smoothcert", list(words), resilient_parsing=True) as context:
            name, command, rest = root.resolve_command(context, list(words))
            if hasattr(command, "resolve_command"):
                with command.make_context(name, list(rest), parent=context, resilient_parsing=True) as inner:
                    name, command, rest = command.resolve_command(inner, list(rest))
            for each in command.get_params(context):
                assert getattr(each, "help", None), f"{full_name}: {each.name}"


def test_there_are_lines_for_every_command():
    shown = {" ".join(line.split()[1:3]) for _, line in LINES}
    for command in COMMANDS:
        assert any(f"{each} ".startswith(f"{command} ") for each in shown), command


@pytest.mark.parametrize(
    "line",
    sorted(
        {line for _, line in LINES if re.match(r"smoothcert (plan|recipes|data list)", line) and "--pilot" not in line}
    ),
)
def test_it_runs(run, line):
    code, out, err = run(*arguments(line))
    assert code == 0, err
    assert out
