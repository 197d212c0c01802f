"""The table of commands, and how they are loaded."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import smoothcert
from smoothcert.cli import exiting_on_interrupt
from smoothcert.cli.options import command
from smoothcert.plugins import load_plugins
from smoothcert.types import UsageError

START, CERTIFY, COMPARE, FILES = "Start", "Certify", "Compare", "Runs, logs and data"

COMMANDS: dict[str, tuple[str, str, str]] = {
    "demo": (START, "demo:demo", "Train, certify and report on bundled digits, in under three minutes."),
    "train": (START, "train:train", "Train a classifier for smoothing by a recipe."),
    "recipes list": ("", "train:list_recipes", "List the recipes."),
    "recipes show": ("", "train:show_recipe", "Print a recipe as YAML."),
    "denoise train": ("", "denoise:train", "Train a denoiser for a classifier that was not trained on noise."),
    "denoise finetune": ("", "denoise:finetune", "Train a classifier on denoised inputs."),
    "doctor": (CERTIFY, "doctor:doctor", "Check a model and its data before a long run."),
    "plan": (CERTIFY, "plan:plan", "Compute the cost of a certification before sampling."),
    "certify": (CERTIFY, "certify:certify", "Certify inputs of a dataset and keep the votes in a run folder."),
    "recertify": (CERTIFY, "recertify:recertify", "Certify a slightly changed model from the run of the original."),
    "quantize": (CERTIFY, "quantize:quantize", "Quantise a model to int8, to certify it and run it faster."),
    "predict": (CERTIFY, "certify:predict", "Predict classes with the smoothed classifier, without radii."),
    "serve": (CERTIFY, "serve:serve", "Serve certified answers over HTTP, by a deadline."),
    "verify": (CERTIFY, "verify:verify", "Check an answer of a server, with or without its model."),
    "attack": (CERTIFY, "attack:attack", "Attack the smoothed classifier and compare with its certificates."),
    "ensemble": (CERTIFY, "ensemble:ensemble", "Find the order and the weights of an ensemble's members."),
    "selection": (CERTIFY, "selection:selection", "Make the training data of a selector or a router."),
    "corruptions run": ("", "corruptions:run", "Certify a model on every corruption of a suite."),
    "corruptions table": ("", "suites:table", "Compare methods on suites of corruptions."),
    "table": (COMPARE, "results:table", "Show certified accuracy and ACR of runs and logs."),
    "compare": (COMPARE, "results:compare", "Test whether the difference between runs is real."),
    "aces": (COMPARE, "aces:aces", "Evaluate a composition (ACES) at every threshold."),
    "plot": (COMPARE, "plot:plot", "Draw figures of runs and logs."),
    "report": (COMPARE, "report:report", "Write one HTML page about runs."),
    "leaderboard": (COMPARE, "leaderboard:leaderboard", "Write one HTML page that ranks runs by their votes."),
    "info": (FILES, "info:info", "Describe a run folder or a checkpoint."),
    "merge": (FILES, "results:merge", "Merge the shards of a run."),
    "import": (FILES, "results:import_logs", "Turn logs of earlier systems into run folders."),
    "export": (FILES, "results:export", "Write a run as a log that earlier systems read."),
    "zoo list": ("", "zoo:list_models", "List the trained models with their certification."),
    "zoo show": ("", "zoo:show_card", "Print the card of a model."),
    "zoo get": ("", "zoo:get", "Check and download models, or copy them to a folder."),
    "data list": ("", "data:list_datasets", "List the named datasets."),
    "data fetch": ("", "data:fetch", "Download datasets."),
}
"""Panel, place and short help of every command."""

GROUPS = {
    "recipes": (START, "List and show training recipes."),
    "denoise": (START, "Train denoisers, and classifiers behind them."),
    "corruptions": (CERTIFY, "Certify under common corruptions, and compare methods there."),
    "zoo": (FILES, "List, show and get trained models."),
    "data": (FILES, "List and fetch datasets."),
}

_LOOK: dict[str, Any] = {"rich_markup_mode": "markdown"}
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]  # ClickException, wherever this version of typer keeps it
_ADDRESS = re.compile(r"local|auto|ray://.+|[^/\\]+:[0-9]+")


class _Quiet:
    """Help that shows no type for flags and arguments."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
            elif parameter.param_type_name == "argument":
                parameter.display_type_rich = lambda ctx: None
        super().format_help(ctx, formatter)  # type: ignore[misc]


class _Command(_Quiet, TyperCommand):
    pass


class _Group(_Quiet, TyperGroup):
    """A group that imports a command only when it is called, not to list it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, found, rest = super().resolve_command(ctx, args)
        if isinstance(found, _Unloaded):
            found = self.commands[found.name or ""] = found.load()
        return name, found, rest


class _Unloaded(TyperCommand):
    """A command whose module is not imported yet."""

    def __init__(self, full_name: str) -> None:
        panel, self.place, text = COMMANDS[full_name]
        super().__init__(full_name.split()[-1], help=text, rich_help_panel=panel or None, **_LOOK)

    def load(self) -> Any:
        module, _, function = self.place.partition(":")
        single = typer.Typer(add_completion=False, **_LOOK)
        with exiting_on_interrupt():
            found = getattr(importlib.import_module(f"smoothcert.cli.{module}"), function)
        single.command(self.name, cls=_Command)(command(found))
        return typer.main.get_command(single)


class _Root(_Group):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (panel, text) in GROUPS.items():
            self.commands[name] = _Group(name=name, help=text, no_args_is_help=True, rich_help_panel=panel, **_LOOK)
        for full_name in COMMANDS:
            *group, name = full_name.split()
            into = self.commands[group[0]].commands if group else self.commands  # type: ignore[attr-defined]
            into[name] = _Unloaded(full_name)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(dict.fromkeys(name.split()[0] for name in COMMANDS))


app = typer.Typer(
    name="smoothcert",
    cls=_Root,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Certified robustness by randomized smoothing: prove how far an input can be perturbed before the answer "
    "changes.\n\nStart with `smoothcert demo`.",
    **_LOOK,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"smoothcert {smoothcert.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.py",
            help="Import a file that registers noises, procedures, training methods, models, datasets or denoisers; "
            "before or after the command, and may be repeated. $SMOOTHCERT_PLUGINS lists more.",
        ),
    ] = None,
) -> None: ...


def run(arguments: Sequence[str]) -> int:
    """Run a command in this process and return its exit code.

    Raises:
        UsageError: If an option is unknown, missing or invalid.
    """
    rest, plugins = take_plugins(arguments)
    with exiting_on_interrupt():
        load_plugins([*filter(None, os.environ.get("SMOOTHCERT_PLUGINS", "").split(os.pathsep)), *plugins])
    try:
        return int(app(with_address(rest), standalone_mode=False) or 0)
    except _ClickError as error:
        message = error.format_message()  # type: ignore[attr-defined]
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(message)
            return 2
        if "Value error, " in message:  # raised by a parser of ours
            raise UsageError(message.partition("Value error, ")[2]) from error
        raise UsageError(f"{' '.join(message.split())} Run with --help for the options.") from error


def take_plugins(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments into others and the files of ``--plugin``, which add options to the commands.

    Example:
        >>> take_plugins(["--plugin", "a.py", "certify", "m.onnx", "--plugin=b.py"])
        (['certify', 'm.onnx'], ['a.py', 'b.py'])
    """
    rest: list[str] = []
    plugins: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            return [*rest, word, *words], plugins
        if word == "--plugin":
            plugins.append(next(words, ""))
        elif word.startswith("--plugin="):
            plugins.append(word.partition("=")[2])
        else:
            rest.append(word)
    if "" in plugins:
        raise UsageError("--plugin needs the path of a Python file.")
    return rest, plugins


def is_address(text: str) -> bool:
    """Tell whether a text can be the address of a Ray cluster."""
    return _ADDRESS.fullmatch(text) is not None


def with_address(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with ``local`` as the address of each ``--ray`` that has none.

    Example:
        >>> with_address(["certify", "--ray", "lenet.safetensors"])
        ['certify', '--ray=local', 'lenet.safetensors']
    """
    following = [*arguments[1:], ""]
    return [
        "--ray=local" if argument == "--ray" and not is_address(after) else argument
        for argument, after in zip(arguments, following, strict=False)
    ]
