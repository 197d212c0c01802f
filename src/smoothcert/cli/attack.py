"""``smoothcert attack``."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from smoothcert.attack.certificates import Certified, certified_by_run, certify_inputs, refuse_contradictions
from smoothcert.attack.pgd import AttackOutcome, AttackResult, AttackSettings, attack_dataset
from smoothcert.certify import Cohen
from smoothcert.cli.classifiers import ClassifierOptions, DataOptions, Seed, load_smoothed
from smoothcert.cli.options import Group, build, derived, output_file
from smoothcert.cli.show import Format, radii, show
from smoothcert.files import STANDARD_OUTPUT, saving
from smoothcert.noise import Gaussian
from smoothcert.report.tables.accuracy import percent
from smoothcert.report.tables.layout import Column, Sheet, text_line
from smoothcert.sampling.seeds import fresh_seed
from smoothcert.store import load_run
from smoothcert.store.selection import select
from smoothcert.types import Norm, UsageError, radius_text


@dataclass(kw_only=True)
class AttackOptions(Group, panel="Attack"):
    """The settings of the attack."""

    settings: dict[str, Any] = derived({"attack": AttackSettings}, skip=["rows"])


def attack(
    about: DataOptions,
    classifier: ClassifierOptions,
    how: AttackOptions,
    at: Annotated[tuple[float, ...], radii("ℓ2 radii", "--radii")],
    sigma: Annotated[float | None, "Noise level; by default that of the training."] = None,
    norm: Annotated[str | None, "Norm of the radii; only l2 is supported."] = None,
    run: Annotated[Path | None, "Run folder with the certificates; without it the inputs are certified first."] = None,
    n: Annotated[int, "Estimation samples of the certificates, without --run."] = 10_000,
    every: Annotated[int | None, "Use every N-th input; by default as in the run, or 1."] = None,
    start: Annotated[int | None, "First input; by default as in the run, or 0."] = None,
    stop: Annotated[int | None, "End of the inputs, exclusive; by default as in the run."] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, help="Attack at most this many of them.")] = None,
    seed: Seed = None,
    format: Format = None,
    output: Annotated[Path | None, output_file("CSV file with a row per input and radius")] = None,
) -> None:
    """Attack the smoothed classifier with PGD, and show empirical accuracy next to certified accuracy.

    An input is broken at a radius when the attack finds a point within it where PREDICT is sure of a class other than
    the label. Empirical accuracy is the share of inputs not broken: an upper bound on robust accuracy, as certified
    accuracy is a lower bound. An abstention does not break an input and is counted separately. An input that is both
    certified **and** broken is a contradiction, and the exit code is 1.

    **Examples**

        smoothcert attack demo/models/sigma-0.25.safetensors --data digits --radii 0.25,0.5 --every 10
        smoothcert attack lenet.safetensors --data mnist --radii 0.25:1:0.25 --run runs/lenet-mnist
        smoothcert attack lenet.safetensors --data mnist --radii 1 --max 100 --steps 100 --restarts 5 -o attacked.csv
    """
    seed = fresh_seed() if seed is None else seed
    if not 0 <= seed < 2**63:
        raise UsageError(f"seed must be between 0 and 2**63 - 1, got {seed}.")
    if norm is not None and norm.lower() != Norm.L2.value:
        raise UsageError(f"the attack works in l2 only, got --norm {norm}; leave it out.")
    if classifier.aces is not None:
        raise UsageError("a composition of ACES cannot be attacked as one model; attack its smoothed classifier.")
    rows = {} if classifier.batch_size is None else {"rows": classifier.batch_size}
    settings = build("attack", {"attack": AttackSettings}, "attack", how.settings, **rows)
    procedure = Cohen(n=n, alpha=settings.alpha)
    noise = Gaussian(sigma) if sigma is not None else None  # an invalid σ is reported before anything is loaded
    stored = load_run(run) if run is not None else None
    exact = None if stored is None else stored.settings.noise is not None and stored.settings.noise.grid is not None
    dataset = about.load()
    smoothed = load_smoothed(classifier, [dataset], noise, exact).smoothed
    if Norm.L2 not in smoothed.noise.norms:
        raise UsageError(
            f"the attack works in l2, which {smoothed.noise.name} noise does not certify (it certifies "
            f"{', '.join(smoothed.noise.norms)}); attack a model trained with Gaussian noise, or give --sigma."
        )
    chosen: dict[str, Any] = {"every": 1, "start": 0, "stop": None}
    chosen |= {} if stored is None else stored.config.get("inputs", {})
    given = {"every": every, "start": start, "stop": stop}
    chosen |= {name: value for name, value in given.items() if value is not None}
    indices = select(len(dataset), **{name: chosen[name] for name in given})[:most]
    certified = {} if stored is None else certified_by_run(stored, smoothed, dataset, indices)
    place: dict[str, Any] = {"every": indices.step, "start": indices.start, "stop": indices[-1] + 1}
    results = attack_dataset(smoothed, dataset, at, settings, **place, seed=seed, keep=False)
    if stored is None:
        certified = certify_inputs(smoothed, dataset, indices, procedure, seed)
    if output is not None:
        _write(output, results, certified)
    show(_sheet(sorted(at), results, certified), format, err=output == STANDARD_OUTPUT)
    unmoved = {each.index for each in results if each.outcome is not AttackOutcome.BROKEN and each.distance == 0}
    if unmoved:
        typer.echo(f"The gradient vanished at {len(unmoved)} inputs: their robustness was not tested.", err=True)
    refuse_contradictions(results, certified, settings.alpha)


def _sheet(radii: Sequence[float], results: Sequence[AttackResult], certified: Mapping[int, Certified]) -> Sheet:
    headings = ("radius", "empirical %", "certified %", "broken", "abstained", "inputs")
    lines = []
    for radius in radii:
        here = [result for result in results if result.radius == radius]
        outcomes = [result.outcome for result in here]
        broken, abstained = map(outcomes.count, (AttackOutcome.BROKEN, AttackOutcome.ABSTAINED))
        right = sum(certified[r.index].label == r.label and certified[r.index].radius >= radius for r in here)
        shares = [percent(count, len(here)) for count in (len(here) - broken, right)]
        lines.append(text_line([f"{radius:g}", *shares, str(broken), str(abstained), str(len(here))]))
    return Sheet("", tuple(Column(heading, align="right") for heading in headings), tuple(lines))


def _write(path: Path, results: Sequence[AttackResult], certified: Mapping[int, Certified]) -> None:
    """Write a row per input and radius; certified radii are rounded down, an abstention is -1."""
    columns = "index,label,radius,outcome,predict,p_value,distance,certified_class,certified_radius,contradiction"
    lines: list[Sequence[Any]] = [columns.split(",")]
    for result in results:
        label, radius, _ = certified[result.index]
        answer = [result.outcome.value, result.prediction.label, f"{result.prediction.p_value:.3g}"]
        found = [f"{result.distance:.6f}", label, radius_text(radius, 6), int(result.contradicts(label, radius))]
        lines.append([result.index, result.label, result.radius, *answer, *found])
    with saving(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)
