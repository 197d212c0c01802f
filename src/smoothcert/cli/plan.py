"""``smoothcert plan``: what a certification will cost and can reach."""

from __future__ import annotations

from typing import Annotated

import typer

from smoothcert.certify.plan import Plan
from smoothcert.certify.plan import plan as make_plan
from smoothcert.cli.procedures import N0, Alpha, Beta, Budget, N, Name, Radius, Stages, build_procedure
from smoothcert.noise import Gaussian
from smoothcert.report.metrics import parse_radii
from smoothcert.types import UsageError, radius_text


def plan(
    sigma: Annotated[float, typer.Option(help="Noise level.")],
    procedure: Name = "cohen",
    radius: Radius = None,
    n: N = None,
    n0: N0 = None,
    alpha: Alpha = None,
    beta: Beta = None,
    stages: Stages = None,
    budget: Budget = None,
    p: Annotated[
        str | None, typer.Option("--p", help="True probabilities to show, as a,b,c or FIRST:LAST:STEP.")
    ] = None,
) -> None:
    """Say what a certification will cost before sampling.

    Shows the largest radius the samples can prove, the samples a radius needs, the counts that decide, and the chance
    to certify, refute or go on by the true probability of the guessed class.

    **Examples**

        smoothcert plan --sigma 0.5 --n 100000

        smoothcert plan --sigma 0.25 --procedure anytime --radius 0.25

        smoothcert plan --sigma 0.25 --procedure staged --radius 0.25 --stages 1000,10000,125000
    """
    target = None
    if procedure == "cohen" and radius is not None:
        radii = parse_radii(radius)
        if len(radii) > 1:
            raise UsageError("a plan is about one target radius; give one.")
        target, radius = radii[0], None
    settings = build_procedure(
        procedure, radius=radius, n=n, n0=n0, alpha=alpha, beta=beta, stages=stages, budget=budget
    )
    probabilities = parse_radii(p) if p is not None else None
    if probabilities and not all(0 <= value <= 1 for value in probabilities):
        raise UsageError(f"--p takes probabilities between 0 and 1, got {p}.")
    _show(make_plan(settings, Gaussian(sigma), radius=target, probabilities=probabilities))


def _show(plan: Plan) -> None:
    typer.echo(f"Largest radius, if every vote agrees: {radius_text(plan.largest_radius, 4)}")
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
