"""The options that choose a procedure, shared by the commands that need one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from smoothcert.certify import PROCEDURES, Procedure
from smoothcert.report.metrics import parse_radii
from smoothcert.types import UsageError, unknown_name

Name = Annotated[str, typer.Option("--procedure", help=f"How to certify: {', '.join(PROCEDURES)}.")]
Radius = Annotated[str | None, typer.Option("--radius", help="Target radius; several for anytime, as a,b,c.")]
N = Annotated[int | None, typer.Option("--n", help="cohen: estimation samples per input (100 000).")]
N0 = Annotated[int | None, typer.Option("--n0", help="Selection samples per input (100).")]
Alpha = Annotated[float | None, typer.Option("--alpha", help="Probability of a false certificate (0.001).")]
Beta = Annotated[float | None, typer.Option("--beta", help="staged, anytime: probability of giving up wrongly.")]
Stages = Annotated[str | None, typer.Option("--stages", help="staged: samples per stage (100,1000,10000,120000).")]
Budget = Annotated[int | None, typer.Option("--budget", help="anytime: most samples per input (100 000).")]
Deadline = Annotated[float | None, typer.Option("--deadline", help="anytime: most seconds per input.")]

_TAKES = {
    "cohen": {"n", "n0", "alpha"},
    "staged": {"radius", "stages", "n0", "alpha", "beta"},
    "anytime": {"radius", "budget", "deadline", "n0", "alpha", "beta"},
}


def build_procedure(name: str, **options: Any) -> Procedure:
    """The procedure that the options describe; what is not given keeps its default.

    Raises:
        UsageError: If the procedure is unknown, an option does not belong to it, or a value is wrong.
    """
    if name not in PROCEDURES:
        raise unknown_name("procedure", name, PROCEDURES)
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if key not in _TAKES[name]:
            takers = " and ".join(p for p, taken in _TAKES.items() if key in taken)
            raise UsageError(f"--{key} is an option of {takers}, not of {name}; drop it or choose another --procedure.")
    if "budget" in given:
        given["n_max"] = given.pop("budget")
    if "stages" in given:
        given["stages"] = _whole_numbers(given["stages"])
    if "radius" in given:
        radii = parse_radii(given["radius"])
        given["radius"] = radii[0] if len(radii) == 1 else radii
        if name == "staged" and len(radii) > 1:
            raise UsageError("staged takes one target radius; use --procedure anytime for several.")
    elif name == "staged":
        raise UsageError("staged needs a target radius; give --radius.")
    return PROCEDURES[name](**given)


def _whole_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part.replace("_", "")) for part in text.split(","))
    except ValueError:
        raise UsageError(f"stages must be whole numbers such as 100,1000,10000; got {text!r}.") from None
