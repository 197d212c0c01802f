"""The options that choose a procedure and a noise, shared by the commands that need one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from smoothcert.certify import PROCEDURES, Procedure
from smoothcert.certify.simultaneous import simultaneous
from smoothcert.models import load_model
from smoothcert.noise import NOISES, Noise, noise_from_config
from smoothcert.noise.grid import GridNoise
from smoothcert.report.metrics import parse_radii
from smoothcert.types import UsageError, unknown_name


@dataclass(kw_only=True)
class ProcedureOptions:
    """A procedure and its settings."""

    procedure: Annotated[str, typer.Option(help=f"How to certify: {', '.join(PROCEDURES)}.")] = "cohen"
    radius: Annotated[str | None, typer.Option(help="Target radius; several for anytime, as a,b,c.")] = None
    norm: Annotated[
        str | None,
        typer.Option(help="Norm of the radius: l2 or linf (gaussian), l1 or linf (uniform), l0 (discrete)."),
    ] = None
    n: Annotated[int | None, typer.Option("--n", help="cohen, aces: estimation samples per input (100 000).")] = None
    n0: Annotated[int | None, typer.Option("--n0", help="Selection samples per input (100).")] = None
    alpha: Annotated[float | None, typer.Option(help="Probability of a false certificate (0.001).")] = None
    beta: Annotated[float | None, typer.Option(help="staged, anytime: probability of giving up wrongly.")] = None
    stages: Annotated[str | None, typer.Option(help="staged: samples per stage (100,1000,10000,120000).")] = None
    budget: Annotated[int | None, typer.Option(help="anytime: most samples per input (100 000).")] = None
    deadline: Annotated[float | None, typer.Option(help="anytime: most seconds per input.")] = None
    theta: Annotated[float | None, typer.Option(help="aces: the threshold of the selector (0.3).")] = None
    core: Annotated[Path | None, typer.Option(help="aces: checkpoint of an accurate model without a guarantee.")] = None
    selector: Annotated[
        Path | None, typer.Option(help="aces: checkpoint of a selection network; by default the entropy selects.")
    ] = None

    simultaneous: Annotated[
        bool,
        typer.Option(
            "--simultaneous", help="Let alpha be for all inputs together: each gets alpha / number of inputs."
        ),
    ] = False

    def build(self) -> Procedure:
        """The procedure, with alpha as given; see :func:`build_procedure` and :meth:`share`."""
        options = {key: value for key, value in vars(self).items() if key not in ("procedure", "simultaneous")}
        return build_procedure(self.procedure, **options)

    def share(self, procedure: Procedure, count: int) -> tuple[Procedure, dict[str, Any]]:
        """The procedure for each of ``count`` inputs, those of all shards included.

        Args:
            procedure: The procedure with alpha as given.
            count: The number of inputs.

        Returns:
            The procedure with the alpha of one input, and what the run should record; with ``--simultaneous`` these are
            the share of one input and ``{"simultaneous": {"alpha": …, "inputs": …}}``.
        """
        if not self.simultaneous:
            return procedure, {}
        return simultaneous(procedure, count), {"simultaneous": {"alpha": procedure.alpha, "inputs": count}}


@dataclass(kw_only=True)
class NoiseOptions:
    """A noise and its settings."""

    sigma: Annotated[
        float | None,
        typer.Option(help="gaussian noise: its standard deviation. A checkpoint's own noise is the default."),
    ] = None
    noise: Annotated[
        str | None, typer.Option(help=f"{', '.join(NOISES)}; need not be given beside a setting of it.")
    ] = None
    lam: Annotated[float | None, typer.Option(help="uniform noise: each pixel moves by −lam … lam.")] = None
    keep: Annotated[float | None, typer.Option(help="discrete noise: probability that a pixel keeps its value.")] = None
    levels: Annotated[int | None, typer.Option(help="discrete noise: 1 for binary pixels, 255 for 8-bit ones.")] = None

    def build(self) -> Noise | None:
        """The noise, or None where no option is given; see :func:`build_noise`."""
        settings = {key: value for key, value in vars(self).items() if key not in ("noise", "exact")}
        return build_noise(self.noise, settings)


@dataclass(kw_only=True)
class DrawnNoiseOptions(NoiseOptions):
    """A noise, its settings, and how it is drawn."""

    exact: Annotated[
        bool | None,
        typer.Option(
            "--exact/--float",
            help="Draw and add noise in whole steps of the data's grid, so that no rounding error can make a "
            "certificate false; or in floating point. Exact where the data is known to be on a grid.",
            show_default=False,
        ),
    ] = None


_TAKES = {
    "cohen": {"n", "n0", "alpha", "norm"},
    "staged": {"radius", "stages", "n0", "alpha", "beta", "norm"},
    "anytime": {"radius", "budget", "deadline", "n0", "alpha", "beta", "norm"},
    "aces": {"n", "n0", "alpha", "norm", "theta", "core", "selector"},
}
_SETTINGS = {name: [field.name for field in fields(noise) if field.name != "grid"] for name, noise in NOISES.items()}


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
    for key in given.keys() & {"core", "selector"}:
        given[key] = load_model(given[key])
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


def build_noise(name: str | None, settings: Mapping[str, Any]) -> Noise | None:
    """The noise that the options describe; None where none of them is given.

    Args:
        name: The noise's name; what the settings belong to if not given.
        settings: The values of ``--sigma``, ``--lam``, ``--keep`` and ``--levels`` by name, None where not given.

    Raises:
        UsageError: If the noise is unknown, a setting is missing or belongs to another noise, or a value is wrong.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    if name is None:
        if not given:
            return None
        name = next(noise for noise, known in _SETTINGS.items() if set(known) & set(given))
    if name not in NOISES:
        raise unknown_name("noise", name, NOISES)
    for key in given:
        if key not in _SETTINGS[name]:
            owner = next(noise for noise, known in _SETTINGS.items() if key in known)
            raise UsageError(f"--{key} is a setting of {owner} noise, not of {name} noise; choose one of the two.")
    missing = [f"--{key}" for key in _SETTINGS[name] if key not in given]
    if missing:
        raise UsageError(f"{name} noise needs {' and '.join(missing)}.")
    return noise_from_config({"name": name, **given})


def with_arithmetic(noise: Noise, levels: int | None, exact: bool | None) -> Noise:
    """The noise drawn exactly or in floating point.

    A grid of fewer than 255 steps would round the copies coarsely, which is part of what is certified; a multiple of it
    holds the same inputs and is taken instead.

    Args:
        noise: The noise.
        levels: ``Dataset.levels`` of the data.
        exact: What was asked for; None for exact where the data is known to be on a grid.

    Raises:
        UsageError: If exact noise is asked for and the grid is not known, or a choice is asked for that is none.

    Example:
        >>> from smoothcert import Gaussian
        >>> with_arithmetic(Gaussian(0.5), 16, None)
        Gaussian(sigma=0.5, grid=256)
    """
    if not isinstance(noise, GridNoise):
        if exact is not None:
            raise UsageError(f"{noise.name} noise is always drawn exactly; leave out --exact and --float.")
        return noise
    if levels is None and exact:
        raise UsageError("exact noise needs data on a known grid, such as 8-bit images; use --float here.")
    grid = None if levels is None or exact is False else levels * -(-255 // levels)
    return noise_from_config({**noise.config(), "grid": grid})


def _whole_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part.replace("_", "")) for part in text.split(","))
    except ValueError:
        raise UsageError(f"stages must be whole numbers such as 100,1000,10000; got {text!r}.") from None
