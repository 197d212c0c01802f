"""The reference page of the command line, made from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from smoothcert.cli.app import COMMANDS, app

INTRODUCTION = """# Command line

This page is generated from the commands. `smoothcert COMMAND --help` prints the same.

An error is one sentence on stderr. The exit code is 0 for success, 1 for a failure, 2 for wrong use, and 130
after Ctrl-C. `--plugin FILE.py`, before or after the command, imports a [plug-in](../plugins.md).
"""


def page() -> str:
    """Return the page as Markdown: a section for each command, with help, examples and all options."""
    parts = [INTRODUCTION]
    for name, command, context in commands():
        parts += [f"\n## smoothcert {name}\n\n{_help(command.help)}\n\n```\n{_usage(command, context, name)}\n```\n"]
        panels: dict[str, list[Any]] = {}
        for parameter in command.get_params(context):
            if parameter.name != "help":
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or _kind(parameter), []).append(parameter)
        for panel, parameters in sorted(panels.items(), key=lambda item: item[0] != "Arguments"):
            rows = "\n".join(f"| {_names(each, context)} | {_cell(_text(each, context))} |" for each in parameters)
            parts.append(f"\n| {panel} | |\n|---|---|\n{rows}\n")
    return "".join(parts)


def commands() -> Iterator[tuple[str, Any, Any]]:
    """Yield name, command and context of each command, in the order of the help."""
    root: Any = typer.main.get_command(app)
    for full_name in COMMANDS:
        command = root
        with root.make_context("smoothcert", full_name.split(), resilient_parsing=True) as context:
            for word in full_name.split():
                _, command, _ = command.resolve_command(context, [word])
                context = command.make_context(word, [], parent=context, resilient_parsing=True)
            yield full_name, command, context


def _kind(parameter: Any) -> str:
    return "Arguments" if parameter.param_type_name == "argument" else "Options"


def _help(text: str) -> str:
    text = re.sub(r"\(see docs/([\w-]+\.md)\)", r"(see [here](../\1))", text)
    explained, _, examples = text.partition("**Examples**")
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    return explained.strip() + ("\n\n```bash\n" + "\n".join(lines) + "\n```" if lines else "")


def _usage(command: Any, context: Any, name: str) -> str:
    words = [_argument(each) for each in command.get_params(context) if each.param_type_name == "argument"]
    return " ".join(["smoothcert", name, "[OPTIONS]", *words])


def _argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name.upper()).removesuffix("...")
    name += "…" if parameter.nargs == -1 else ""
    return name if parameter.required else f"[{name}]"


def _names(parameter: Any, context: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_argument(parameter)}`"
    shown = (parameter.get_help_record(context) or ("",))[0]
    names = [*parameter.opts, *parameter.secondary_opts]
    value = re.search(r"(?<=\s)(<.+>|[A-Z].*)$", shown)
    words = f"`{'`, `'.join(names)}`"
    return _cell(words + (f" {value[0].strip('<>')}" if value and not parameter.is_flag else ""))


def _text(parameter: Any, context: Any) -> str:
    if parameter.param_type_name == "argument":
        return parameter.help or ""
    record = parameter.get_help_record(context)
    return (record[1] if record else parameter.help or "").replace("  [", " [")


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")
