"""``smoothcert corruptions run``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from smoothcert import data
from smoothcert.classifiers.identity import model_identity
from smoothcert.cli.classifiers import ClassifierOptions, DataOptions, InputOptions, Seed, load_smoothed
from smoothcert.cli.noises import DrawnNoiseOptions
from smoothcert.cli.options import whole_numbers
from smoothcert.cli.procedures import ProcedureOptions
from smoothcert.cli.suites import ShowOptions, table
from smoothcert.evaluate import certify_dataset
from smoothcert.report.corruptions import check_alike
from smoothcert.store.selection import select
from smoothcert.types import UsageError


def run(
    about: DataOptions,
    folder: Annotated[Path, typer.Option("--run", help="Folder of the suite, for a run folder per corruption.")],
    noise: DrawnNoiseOptions,
    how: ProcedureOptions,
    inputs: InputOptions,
    classifier: ClassifierOptions,
    shown: ShowOptions,
    types: Annotated[str | None, "Corruptions, as a,b,c; identity is the clean set. By default all."] = None,
    severities: Annotated[str | None, "Severities, as 1,3,5; by default all."] = None,
    seed: Seed = None,
    corruption_seed: Annotated[int, "Seed of corruptions that are made on the fly."] = 0,
) -> None:
    """Certify a model on every corruption of a suite, and show the results by corruption.

    `--data mnist-c` and `--data cifar10-c` are the published suites; any other dataset is corrupted on the fly by
    similar functions, so do not compare those results with published ones. Stop it at any time; the same command
    continues.

    **Examples**

        smoothcert corruptions run lenet.safetensors --data mnist-c --every 20 --run suites/lenet
        smoothcert corruptions run cohen.pth.tar --data cifar10-c --every 100 --severities 1,3,5 --run suites/cohen
        smoothcert corruptions run models/digits --data digits --types identity,fog,rotate --n 1000 --run suites/digits
    """
    chosen, procedure = noise.build(), how.build(classifier.aces)
    sets = data.load_suite(
        about.data_name,
        types=_default_types(about) if types is None else [part.strip() for part in types.split(",")],
        severities=None if severities is None else whole_numbers(severities, "--severities"),
        split=about.split,
        root=about.data_root,
        seed=corruption_seed,
    )
    if all(member.type == data.IDENTITY for member in sets):
        raise UsageError("identity is the clean set; name a corruption too, or use `smoothcert certify`.")
    if (shown.by == "severity" or shown.plot_severity is not None) and not any(member.severity for member in sets):
        raise UsageError(f"these corruptions of {about.data_name} have no severities; show types instead.")
    count = sum(len(select(len(member.dataset), **vars(inputs))) for member in sets)
    loaded = load_smoothed(classifier, [member.dataset for member in sets], chosen, noise.exact)
    smoothed = loaded.smoothed
    procedure, shared = how.share(loaded.completed(procedure), count, smoothed.device)
    made = {"noise": smoothed.noise.config(), "procedure": procedure.config(), "inputs": vars(inputs)}
    check_alike(folder, {**made, "model": model_identity(smoothed.model), "precision": smoothed.precision})
    recorded: dict[str, Any] = {**vars(inputs), "seed": seed, "source": loaded.source | shared}
    for number, member in enumerate(sets, 1):
        typer.echo(f"{member.name} ({number} of {len(sets)})", err=True)
        certify_dataset(smoothed, member.dataset, procedure, run=folder / member.name, **recorded)
    table([folder], shown)


def _default_types(about: DataOptions) -> list[str] | None:
    """All types: None includes the clean set, which is left out where it is missing."""
    info = data.DATASETS.get(about.data_name)
    if info is None or not info.severities or info.clean is None or data.available(info.clean, root=about.data_root):
        return None
    typer.echo(
        f"Note: the clean set is left out, as {info.clean} is not here; run `smoothcert data fetch {info.clean}`.",
        err=True,
    )
    return list(info.types)
