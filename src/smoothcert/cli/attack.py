"""``smoothcert attack``: empirical accuracy beside certified accuracy."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import track

from smoothcert import data
from smoothcert.attack import AttackOutcome, AttackResult, AttackSettings, attack_dataset
from smoothcert.certify import Cohen, Smoothed
from smoothcert.certify.smoothed import fresh_seed
from smoothcert.classifiers.identity import model_identity
from smoothcert.cli.classifiers import ClassifierOptions, DataOptions, Seed, load_smoothed
from smoothcert.cli.options import grouped
from smoothcert.files import STANDARD_OUTPUT, saving
from smoothcert.noise import Gaussian
from smoothcert.report.metrics import parse_radii
from smoothcert.report.tables.accuracy import percent
from smoothcert.report.tables.layout import FORMATS, Cell, Column, Line, Sheet, render_sheet, rich_sheet
from smoothcert.store import Run, load_run
from smoothcert.store.certification import data_fingerprint, select
from smoothcert.types import Norm, SmoothcertError, UsageError, radius_text, unknown_name

_HEADINGS = ("radius", "empirical %", "certified %", "broken", "abstained", "inputs")
_MOST_CASES = 10


class Proved(NamedTuple):
    """What a certificate says of an input: this class (or ``ABSTAIN``) within this ℓ2 radius, but for ``alpha``."""

    label: int
    radius: float
    alpha: float


@grouped
def attack(
    about: DataOptions,
    classifier: ClassifierOptions,
    radii: Annotated[str, typer.Option(help="ℓ2 radii, as a,b,c or FIRST:LAST:STEP.")],
    sigma: Annotated[
        float | None, typer.Option(help="Noise level; by default the one the checkpoint was trained with.")
    ] = None,
    norm: Annotated[str | None, typer.Option(help="Norm of the radii; the attack knows l2 only.")] = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", help="Run folder with the certificates; without it the inputs are certified here."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Gradient steps, each of 2/steps of the radius.")] = 20,
    copies: Annotated[int, typer.Option(help="Noisy copies of an input behind each gradient.")] = 32,
    restarts: Annotated[int, typer.Option(help="Attacks on each input; all but the first begin at random.")] = 1,
    fresh_noise: Annotated[
        bool, typer.Option("--fresh-noise/--fixed-noise", help="New noise for each step (stronger), or the same.")
    ] = True,
    n: Annotated[int, typer.Option("--n", help="Votes that judge where the attack ended.")] = 1_000,
    alpha: Annotated[
        float, typer.Option(help="Probability that such a judgement, or a certificate made here, is wrong.")
    ] = 0.001,
    certify_n: Annotated[int, typer.Option(help="Estimation samples per input, where no --run is given.")] = 10_000,
    every: Annotated[int | None, typer.Option(help="Take every this many-th input; as in the run, or 1.")] = None,
    start: Annotated[int | None, typer.Option(help="First input; as in the run, or 0.")] = None,
    stop: Annotated[int | None, typer.Option(help="End of the inputs, exclusive; as in the run, or all.")] = None,
    most: Annotated[int | None, typer.Option("--max", help="Attack at most this many of them.")] = None,
    seed: Seed = None,
    format: Annotated[str | None, typer.Option("--format", "-f", help="md, latex, csv or html.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="CSV file for a row per input and radius; - is standard output."),
    ] = None,
) -> None:
    """Attack the smoothed classifier at radii: what holds against PGD, beside what is proved to hold.

    An input is broken at a radius when a point no farther than that is found, where the smoothed classifier surely
    answers another class than the label. Empirical accuracy is the share of inputs not broken: an upper bound on what
    really holds, as certified accuracy is a lower one. Where it is not sure of any class it abstains; that breaks
    nothing and is counted apart. An input certified **and** broken is a contradiction, and ends with exit code 1.

    **Examples**

        smoothcert attack demo/models/sigma-0.25.safetensors --data digits --radii 0.25,0.5 --every 10

        smoothcert attack lenet.safetensors --data mnist --radii 0.25:1:0.25 --run runs/lenet-mnist

        smoothcert attack lenet.safetensors --data mnist --radii 1 --max 100 --steps 100 --restarts 5 -o attacked.csv
    """
    if format is not None and format not in FORMATS:
        raise unknown_name("table format", format, FORMATS)
    if most is not None and most < 1:
        raise UsageError(f"--max must be at least 1, got {most}.")
    seed = fresh_seed() if seed is None else seed
    if not 0 <= seed < 2**63:
        raise UsageError(f"seed must be between 0 and 2**63 - 1, got {seed}.")
    if output is not None and not output.parent.is_dir():
        raise UsageError(f"there is no folder {output.parent} to write {output.name} to; make it first.")
    if norm not in (None, Norm.L2.value):
        raise UsageError(f"the attack is about l2 radii and knows no other norm, got --norm {norm}; leave it out.")
    wanted = sorted(parse_radii(radii))
    if wanted[0] <= 0:
        raise UsageError(f"an attack needs radii above 0, got {radii}.")
    settings = AttackSettings(
        steps=steps,
        copies=copies,
        restarts=restarts,
        fresh_noise=fresh_noise,
        n=n,
        alpha=alpha,
        rows=classifier.batch_size or 512,
    )
    procedure = Cohen(n=certify_n, alpha=alpha)
    noise = Gaussian(sigma) if sigma is not None else None  # a wrong σ is said before anything is loaded
    stored = load_run(run) if run is not None else None
    exact = None if stored is None else stored.settings.noise is not None and stored.settings.noise.grid is not None
    smoothed, dataset, _ = load_smoothed(classifier, about, noise, exact=exact)
    if Norm.L2 not in smoothed.noise.norms:
        raise UsageError(
            f"the attack is about l2 radii, which {smoothed.noise.name} noise does not certify (it certifies "
            f"{', '.join(smoothed.noise.norms)}); attack a model trained with Gaussian noise, or give --sigma."
        )
    if stored is not None:
        _refuse_other(stored, smoothed, dataset)
    selection = dict(stored.config["inputs"] if stored is not None else {"every": 1, "start": 0, "stop": None})
    given = {"every": every, "start": start, "stop": stop}
    selection.update({name: value for name, value in given.items() if value is not None})
    indices = select(len(dataset), **selection)[:most]
    proved = _proved_by(stored, indices) if stored is not None else {}
    results = attack_dataset(
        smoothed,
        dataset,
        wanted,
        settings,
        every=indices.step,
        start=indices.start,
        stop=indices[-1] + 1,
        seed=seed,
        keep=False,
    )
    if stored is None:
        proved = _prove(smoothed, dataset, indices, procedure, seed)
    if output is not None:
        _write(output, results, proved)
    _show([_cells(radius, results, proved) for radius in wanted], format, err=output == STANDARD_OUTPUT)
    standing = [result for result in results if result.outcome is not AttackOutcome.BROKEN]
    unmoved = len({result.index for result in standing if result.distance == 0})
    if unmoved:
        typer.echo(f"The gradient vanished at {unmoved} inputs: that they stand proves nothing.", err=True)
    _refuse_contradictions(results, proved, alpha)


def _refuse_other(run: Run, smoothed: Smoothed, dataset: data.Dataset) -> None:
    """Refuse a run whose certificates are not about this smoothed classifier on this dataset."""
    config = run.config
    if config["kind"] != "certification":
        raise UsageError(f"{run.path} is an {config['kind']} log, which does not say of which model; leave out --run.")
    if "shard" in config["inputs"]:
        raise UsageError(f"{run.path} is one shard of a run; unite all of them with `smoothcert merge` first.")
    identity = model_identity(smoothed.model)
    about = {
        "model": (config["model"], {key: identity[key] for key in config["model"] if key in identity}),
        "noise": (_without_grid(config["noise"]), _without_grid(smoothed.noise.config())),
        "precision": ({"name": config["precision"]}, {"name": smoothed.precision}),
        "dataset": (
            {name: config["data"][name] for name in ("name", "split", "size")},
            {"name": dataset.name, "split": dataset.split, "size": len(dataset)},
        ),
    }
    for what, sides in about.items():
        if sides[0] != sides[1]:
            there, here = (" ".join(str(value)[:12] for value in side.values()) for side in sides)
            raise UsageError(
                f"{run.path} is about another {what} ({there} there, {here} here); give the run that fits, or no --run."
            )
    if config["data"] != data_fingerprint(dataset, select(len(dataset), **config["inputs"])):
        raise UsageError(f"{run.path} is about other inputs under the name {dataset.name}; leave out --run.")


def _without_grid(noise: Mapping[str, Any]) -> dict[str, Any]:
    """A noise but for its grid: an attack goes to points between those of a grid."""
    return {key: value for key, value in noise.items() if key != "grid"}


def _proved_by(run: Run, indices: Sequence[int]) -> dict[int, Proved]:
    """What a run proved about each of these inputs."""
    table = run.table()
    index, label, radius, alpha, norm = (
        table[column].to_pylist() for column in ("index", "predict", "radius", "alpha", "norm")
    )
    if set(norm) - {Norm.L2.value}:
        raise UsageError(f"{run.path} proves radii in another norm than ℓ2, which the attack is about.")
    proved = dict(zip(index, map(Proved, label, radius, alpha), strict=True))
    missing = [index for index in indices if index not in proved]
    if missing:
        raise UsageError(
            f"{run.path} has no row for {len(missing)} of the {len(indices)} inputs chosen, such as {missing[0]}; "
            "certify them, or choose inputs it has."
        )
    return proved


def _prove(
    smoothed: Smoothed, dataset: data.Dataset, indices: Sequence[int], procedure: Cohen, seed: int
) -> dict[int, Proved]:
    inputs = ((index, dataset[index][0]) for index in indices)
    answers = smoothed.run(inputs, procedure, procedure.certify, seed=seed, count=len(indices))
    shown = track(answers, "certify", len(indices), console=Console(stderr=True))
    return {job.index: Proved(answer.label, answer.radius, answer.alpha) for job, answer in shown}


def _refuse_contradictions(results: Sequence[AttackResult], proved: Mapping[int, Proved], alpha: float) -> None:
    found = {r.index: r for r in reversed(results) if r.contradicts(proved[r.index].label, proved[r.index].radius)}
    if not found:
        return
    cases = [
        f"input {index} (class {proved[index].label} proved within {radius_text(proved[index].radius)}, "
        f"class {found[index].prediction.label} found at {found[index].distance:.3f})"
        for index in sorted(found)
    ]
    more = f" and {len(cases) - _MOST_CASES} more" if len(cases) > _MOST_CASES else ""
    raise SmoothcertError(
        f"CONTRADICTION of certificate and attack at {', '.join(cases[:_MOST_CASES])}{more}; each certificate may be "
        f"wrong with probability {max(proved[index].alpha for index in found):g} and each judgement with {alpha:g}, so "
        f"{len(found)} of {len({result.index for result in results})} inputs are either that rare chance, or "
        "certificates that belong to another model, or a fault in computing one of the two."
    )


def _cells(radius: float, results: Sequence[AttackResult], proved: Mapping[int, Proved]) -> list[str]:
    here = [result for result in results if result.radius == radius]
    outcomes = [result.outcome for result in here]
    broken, abstained = map(outcomes.count, (AttackOutcome.BROKEN, AttackOutcome.ABSTAINED))
    certified = sum(proved[r.index].label == r.label and proved[r.index].radius >= radius for r in here)
    shares = [percent(count, len(here)) for count in (len(here) - broken, certified)]
    return [f"{radius:g}", *shares, str(broken), str(abstained), str(len(here))]


def _show(rows: Sequence[Sequence[str]], format: str | None, *, err: bool) -> None:
    """Print the table: drawn on a terminal, Markdown into a pipe, or as asked; on stderr where stdout gets the rows."""
    columns = tuple(Column(heading, align="right") for heading in _HEADINGS)
    lines = tuple(Line(tuple(map(Cell, row))) for row in rows)
    if format is None and (sys.stderr if err else sys.stdout).isatty():
        Console(stderr=err).print(rich_sheet(Sheet("Under attack within the ℓ2 radius", columns, lines)))
    else:
        typer.echo(render_sheet(Sheet("", columns, lines), format or "md"), nl=False, err=err)


def _write(path: Path, results: Sequence[AttackResult], proved: Mapping[int, Proved]) -> None:
    """A row per input and radius; certified radii are rounded down, an abstention is -1."""
    lines: list[Sequence[Any]] = [_COLUMNS]
    for result in results:
        label, radius, _ = proved[result.index]
        answer = [result.outcome.value, result.prediction.label, f"{result.prediction.p_value:.3g}"]
        found = [f"{result.distance:.6f}", label, radius_text(radius, 6), int(result.contradicts(label, radius))]
        lines.append([result.index, result.label, result.radius, *answer, *found])
    with saving(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


_COLUMNS = (
    "index",
    "label",
    "radius",
    "outcome",
    "predict",
    "p_value",
    "distance",
    "certified_class",
    "certified_radius",
    "contradiction",
)
