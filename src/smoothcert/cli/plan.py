"""``smoothcert plan``: what a certification will cost and can reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from smoothcert.certify import Cohen, Procedure
from smoothcert.certify.plan import Plan, SimultaneousCost, expected_samples, simultaneous_cost
from smoothcert.certify.plan import plan as make_plan
from smoothcert.cli.procedures import NoiseOptions, ProcedureOptions
from smoothcert.noise import Noise
from smoothcert.report.metrics import parse_radii
from smoothcert.report.pilot import find_pilot, guess_probabilities, sampling_rate
from smoothcert.types import Norm, UsageError, radius_text


def plan(
    noise: NoiseOptions,
    how: ProcedureOptions,
    dimension: Annotated[
        int | None, typer.Option(help="Number of values of an input, which linf needs: 784 for MNIST.")
    ] = None,
    p: Annotated[
        str | None, typer.Option("--p", help="True probabilities to show, as a,b,c or FIRST:LAST:STEP.")
    ] = None,
    pilot: Annotated[
        Path | None, typer.Option(help="A run or log of some inputs, to tell from what all of them will take.")
    ] = None,
    inputs: Annotated[
        int, typer.Option(min=1, help="With --pilot or --simultaneous: how many inputs there are.")
    ] = 10_000,
    workers: Annotated[int, typer.Option(min=1, help="With --pilot: how many workers, such as GPUs, share them.")] = 1,
    rate: Annotated[
        float | None, typer.Option(help="With --pilot: samples per second of a worker; by default the pilot's.")
    ] = None,
    price: Annotated[float | None, typer.Option(help="With --pilot: the price of a worker for an hour.")] = None,
) -> None:
    """Say what a certification will cost before sampling.

    Shows the largest radius the samples can prove, the samples a radius needs, the counts that decide, and the chance
    to certify, refute or go on by the true probability of the guessed class. From a pilot, a run over some of the
    inputs or a log of an earlier system, it tells the time and money that all of them will take. With `--simultaneous`
    it tells what it costs that the statements about all `--inputs` hold together at α.

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
    if how.procedure == "cohen" and "radius" in how.settings:
        radii = parse_radii(how.settings.pop("radius"))
        if len(radii) > 1:
            raise UsageError("a plan is about one target radius; give one.")
        target = radii[0]
    alone = how.build()
    settings, shared = how.share(alone, inputs)
    probabilities = parse_radii(p) if p is not None else None
    if probabilities and not all(0 <= value <= 1 for value in probabilities):
        raise UsageError(f"--p takes probabilities between 0 and 1, got {p}.")
    if pilot is not None:
        normal = Cohen(alpha=alone.alpha) if not isinstance(alone, Cohen) else alone
        tried = find_pilot(pilot)
        known = guess_probabilities(tried, chosen)
        compared = [normal, alone] if alone != normal else [normal]
        if shared:
            _show_simultaneous(simultaneous_cost(alone, chosen, inputs, dimension=dimension), alone.alpha, inputs)
            compared += [how.share(each, inputs)[0] for each in compared]
        _show_costs(
            tried.name,
            known,
            compared,
            chosen,
            dimension,
            inputs,
            workers,
            rate or sampling_rate(tried, normal.n0 + normal.n),
            price,
        )
        return
    for option, value in (("--rate", rate), ("--price", price)):
        if value is not None:
            raise UsageError(f"{option} is for a plan from a pilot; give --pilot too.")
    if shared:
        _show_simultaneous(simultaneous_cost(alone, chosen, inputs, dimension=dimension), alone.alpha, inputs)
    _show(make_plan(settings, chosen, radius=target, probabilities=probabilities, dimension=dimension))


def _show_simultaneous(cost: SimultaneousCost, alpha: float, inputs: int) -> None:
    single, together = (_radius(radius, cost.norm) for radius in (cost.single, cost.together))
    typer.echo(
        f"All {inputs:,} statements together at alpha = {alpha:g}: alpha = {cost.share:.3g} for each input.\n"
        f"The largest {cost.norm.value} radius falls from {single} to {together}; {cost.factor:.2f} times as many "
        "samples would keep it.\n"
    )


def _radius(radius: float, norm: Norm) -> str:
    return radius_text(radius, {Norm.L0: 0, Norm.LINF: 6}.get(norm, 4))


def _show_costs(
    name: str,
    known: NDArray[np.float64],
    procedures: Sequence[Procedure],
    noise: Noise,
    dimension: int | None,
    inputs: int,
    workers: int,
    rate: float | None,
    price: float | None,
) -> None:
    """What some procedures take for all inputs, from what a pilot tells of them."""
    if rate is None or not 0 < rate < math.inf:
        raise UsageError("the pilot was not timed; give --rate, the samples per second of one worker.")
    typer.echo(
        f"{inputs:,} inputs like the {len(known):,} of {name}, on {workers:,} worker(s) of "
        f"{rate:,.0f} samples per second:\n"
    )
    several = len({procedure.alpha for procedure in procedures}) > 1
    head = f"{'procedure':<28}" + f"{'alpha':>10}" * several + f"{'samples per input':>18}{'worker-hours':>14}"
    typer.echo(head + f"{'hours':>10}" + f"{'price':>14}" * bool(price))
    for procedure in procedures:
        samples = expected_samples(procedure, noise, known, dimension=dimension)
        hours = samples * inputs / rate / 3600
        target = getattr(procedure, "radius", None)
        title = (
            f"{procedure.name}, n = {procedure.n:,}"
            if isinstance(procedure, Cohen)
            else f"{procedure.name} at {target}"
        )
        start = f"{title:<28}" + f"{procedure.alpha:>10.2g}" * several
        cost = f"{hours * price:>14,.0f}" if price else ""
        typer.echo(f"{start}{samples:>18,.0f}{hours:>14,.1f}{hours / workers:>10,.2f}{cost}")


def _show(plan: Plan) -> None:
    largest = _radius(plan.largest_radius, plan.norm)
    typer.echo(f"Largest {plan.norm.value} radius, if every vote agrees: {largest}")
    if plan.threshold is None:
        return
    typer.echo(f"Probability the target needs: {plan.threshold:.6f}")
    needed = "more than can be counted" if plan.needed is None else f"{plan.needed:,}"
    typer.echo(f"Estimation samples that can certify it, if every vote agrees: {needed}")
    if plan.decisions:
        typer.echo(f"\n{'samples':>10}{'certify from':>14}{'refute up to':>14}")
        step = max(1, len(plan.decisions) // 16)
        shown = [*plan.decisions[:-1:step], plan.decisions[-1]]
        for decision in shown:
            certify = "never" if decision.certify is None else f"{decision.certify:,}"
            refute = "never" if decision.refute is None else f"{decision.refute:,}"
            typer.echo(f"{decision.n:>10,}{certify:>14}{refute:>14}")
        if len(shown) < len(plan.decisions):
            typer.echo(f"({len(shown)} of {len(plan.decisions)} looks)")
    if plan.chances:
        typer.echo(f"\n{'true p':>10}{'certify':>10}{'refute':>10}{'undecided':>11}{'samples':>11}{'Wald bound':>12}")
        for chance in plan.chances:
            ends = "".join(f"{100 * share:>9.2f}%" for share in (chance.certify, chance.refute))
            typer.echo(
                f"{chance.p:>10.4f}{ends}{100 * chance.undecided:>10.2f}%{chance.samples:>11,.0f}{chance.wald:>12,.0f}"
            )
        stages = len(plan.chances[0].stages)
        if stages:
            typer.echo("\nBy stage, % that certify / abort / go on:")
            typer.echo(f"{'true p':>10}" + "".join(f"{f'stage {stage}':>24}" for stage in range(1, stages + 1)))
            for chance in plan.chances:
                cells = (" / ".join(f"{100 * share:.2f}" for share in stage) for stage in chance.stages)
                typer.echo(f"{chance.p:>10.4f}" + "".join(f"{cell:>24}" for cell in cells))
