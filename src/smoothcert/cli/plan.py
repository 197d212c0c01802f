"""``smoothcert plan``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from smoothcert.certify import Cohen
from smoothcert.certify.bounds import BoundedProcedure
from smoothcert.certify.plan import Plan, expected_samples, simultaneous_cost
from smoothcert.certify.plan import plan as make_plan
from smoothcert.cli.noises import NoiseOptions
from smoothcert.cli.procedures import ProcedureOptions
from smoothcert.cli.show import radii, show_columns
from smoothcert.report.metrics import parse_radii
from smoothcert.report.pilot import find_pilot, guess_probabilities, sampling_rate
from smoothcert.types import PLAIN, Norm, UsageError, radius_text


def plan(
    noise: NoiseOptions,
    how: ProcedureOptions,
    dimension: Annotated[int | None, "Number of values of an input, which linf needs: 784 for MNIST."] = None,
    p: Annotated[tuple[float, ...] | None, radii("True probabilities to show")] = None,
    pilot: Annotated[Path | None, "A run or log of some inputs, to estimate the cost of all."] = None,
    inputs: Annotated[int, typer.Option(min=1, help="With --pilot or --simultaneous: the number of inputs.")] = 10_000,
    workers: Annotated[int, typer.Option(min=1, help="With --pilot: workers, such as GPUs, that share them.")] = 1,
    rate: Annotated[float | None, "With --pilot: samples per second of a worker; by default the pilot's."] = None,
    price: Annotated[float | None, "With --pilot: the price of a worker for an hour."] = None,
) -> None:
    """Compute the cost of a certification before sampling.

    Shows the largest radius that the samples can prove, the samples that a radius needs, the counts that decide, and
    the chance to certify, refute or continue by the true probability of the guessed class. From a pilot (a run over
    some of the inputs, or a log of an earlier system) it estimates the time and money that all inputs cost. With
    `--simultaneous` it shows the cost of one α for all `--inputs` together.

    **Examples**

        smoothcert plan --sigma 0.5 --n 100000
        smoothcert plan --sigma 0.25 --procedure anytime --radius 0.25
        smoothcert plan --sigma 0.25 --procedure staged --radius 0.25 --stages 1000,10000,125000
        smoothcert plan --noise discrete --keep 0.8 --levels 1 --radius 3
        smoothcert plan --sigma 0.5 --simultaneous --inputs 500
        smoothcert plan --sigma 0.5 --procedure anytime --radius 0.5 --pilot runs/some --inputs 1000000 --workers 64
    """
    chosen = noise.build()
    if chosen is None:
        raise UsageError("a plan needs a noise; give --sigma for Gaussian noise, or another --noise and its settings.")
    if "deadline" in how.settings:
        raise UsageError("a plan counts samples, not seconds; leave out --deadline.")
    target = None
    if how.procedure in (None, "cohen") and "radius" in how.settings:
        targets = parse_radii(how.settings.pop("radius"))
        if len(targets) > 1:
            raise UsageError("a plan is about one target radius; give one.")
        target = targets[0]
    single = how.build()
    if isinstance(single, BoundedProcedure) and single.bound != PLAIN:
        typer.echo("Note: this plan is for the plain bound, which needs the probability of one class only.", err=True)
    settings, _ = how.share(single, inputs)
    if p is not None and max(p) > 1:
        raise UsageError(f"--p must be probabilities between 0 and 1, got {max(p):g}.")
    if pilot is None:
        for option, value in (("--rate", rate), ("--price", price)):
            if value is not None:
                raise UsageError(f"{option} is for a plan from a pilot; give --pilot too.")
    else:
        tried = find_pilot(pilot)
        known = guess_probabilities(tried, chosen)
    if how.simultaneous:
        cost = simultaneous_cost(single, chosen, inputs, dimension=dimension)
        before, after = (_radius(radius, cost.norm) for radius in (cost.single, cost.together))
        typer.echo(
            f"All {inputs:,} statements together at alpha = {single.alpha:g}: alpha = {cost.share:.3g} for each "
            f"input.\nThe largest {cost.norm.value} radius falls from {before} to {after}; {cost.factor:.2f} times "
            "as many samples would keep it.\n"
        )
    if pilot is None:
        _show(make_plan(settings, chosen, radius=target, probabilities=p, dimension=dimension))
        return
    fixed = Cohen(alpha=single.alpha) if single.decides_early else single
    compared = list(dict.fromkeys([fixed, single]))
    if how.simultaneous:
        compared += [how.share(each, inputs)[0] for each in compared]
    rate = rate or sampling_rate(tried, fixed.expected_samples)
    if rate is None or not 0 < rate < math.inf:
        raise UsageError("the pilot was not timed; give --rate, the samples per second of one worker.")
    typer.echo(
        f"{inputs:,} inputs like the {len(known):,} of {tried.name}, on {workers:,} worker(s) of "
        f"{rate:,.0f} samples per second:\n"
    )
    lines = [["procedure", *["alpha"] * how.simultaneous, "samples per input", "worker-hours", "hours"]]
    lines[0] += ["price"] * bool(price)
    for each in compared:
        samples = expected_samples(each, chosen, known, dimension=dimension)
        hours = samples * inputs / rate / 3600
        size = f" at {each.targets[0]:g}" if each.targets else f", n = {each.expected_samples - each.n0:,}"
        line = [each.name + size, *[f"{each.alpha:.2g}"] * how.simultaneous]
        line += [f"{samples:,.0f}", f"{hours:,.1f}", f"{hours / workers:,.2f}"]
        lines.append(line + ([f"{hours * price:,.0f}"] if price else []))
    show_columns(lines, left=1)


def _radius(radius: float, norm: Norm) -> str:
    return radius_text(radius, {Norm.L0: 0, Norm.LINF: 6}.get(norm, 4))


def _show(plan: Plan) -> None:
    typer.echo(f"Largest {plan.norm.value} radius, if every vote agrees: {_radius(plan.largest_radius, plan.norm)}")
    if plan.threshold is None:
        return
    typer.echo(f"Probability the target needs: {plan.threshold:.6f}")
    needed = "more than can be counted" if plan.needed is None else f"{plan.needed:,}"
    typer.echo(f"Estimation samples that can certify it, if every vote agrees: {needed}")
    if plan.decisions:
        shown = [*plan.decisions[: -1 : max(1, len(plan.decisions) // 16)], plan.decisions[-1]]
        lines = [["samples", "certify from", "refute up to"]]
        for each in shown:
            limits = ("never" if limit is None else f"{limit:,}" for limit in (each.certify, each.refute))
            lines.append([f"{each.n:,}", *limits])
        typer.echo()
        show_columns(lines)
        if len(shown) < len(plan.decisions):
            typer.echo(f"({len(shown)} of {len(plan.decisions)} looks)")
    if plan.chances:
        lines = [["true p", "certify", "refute", "undecided", "samples", "Wald bound"]]
        for chance in plan.chances:
            shares = [f"{share:.2%}" for share in (chance.certify, chance.refute, chance.undecided)]
            lines.append([f"{chance.p:.4f}", *shares, f"{chance.samples:,.0f}", f"{chance.wald:,.0f}"])
        typer.echo()
        show_columns(lines)
        if plan.chances[0].stages:
            lines = [["true p", *(f"stage {number + 1}" for number in range(len(plan.chances[0].stages)))]]
            for chance in plan.chances:
                stages = (" / ".join(f"{100 * share:.2f}" for share in stage) for stage in chance.stages)
                lines.append([f"{chance.p:.4f}", *stages])
            typer.echo("\nBy stage, % that certify / abort / continue:")
            show_columns(lines)
