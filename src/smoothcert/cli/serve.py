"""``smoothcert serve``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from smoothcert import data
from smoothcert.certify import Procedure, Smoothed
from smoothcert.cli.classifiers import ClassifierOptions, Loaded, SigmaOptions, open_given, smoothed_of
from smoothcert.cli.noises import DrawnNoiseOptions
from smoothcert.cli.options import Group, build, derived
from smoothcert.cli.procedures import ProcedureOptions
from smoothcert.data.classes import read_classes
from smoothcert.models import LoadedModel
from smoothcert.noise import Noise
from smoothcert.serve.settings import ServiceSettings
from smoothcert.types import UsageError

if TYPE_CHECKING:
    from smoothcert.serve.service import Served, Service


@dataclass(kw_only=True)
class InputFormOptions(Group, panel="Inputs"):
    """What inputs look like, where the model does not record it."""

    shape: Annotated[str | None, "The shape of an input, as 3x32x32; by default what the model records."] = None
    classes: Annotated[str | None, "A file with the names of the classes, or `imagenet`."] = None
    grid: Annotated[
        int, typer.Option(min=1, help="With exact noise, values must be multiples of 1/GRID: 255 for 8-bit images.")
    ] = 255
    any_values: Annotated[bool, "Accept inputs with any values; by default they must lie in [0, 1]."] = False


@dataclass(kw_only=True)
class ServiceOptions(Group, panel="Service"):
    """The limits of the service and where it listens."""

    host: Annotated[str, "The address to listen on."] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, help="The port; 0 is any free one.")] = 8000
    also: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=MODEL",
            help="Serve another model or .yaml file under this name, with the noise that it records and the same "
            "procedure. May be repeated.",
        ),
    ] = None
    name: Annotated[str | None, "The name of the first model in requests; that of its file by default."] = None
    keys: Annotated[
        Path | None,
        "A file with an API key in each line; more may be in $SMOOTHCERT_API_KEYS. Without any, no key is needed.",
    ] = None
    record: Annotated[Path | None, "Run folder to which every answer is appended before it is sent."] = None
    record_inputs: Annotated[bool, "With --record: keep the inputs too, in the folder RUN-inputs."] = False
    limits: dict[str, Any] = derived({"limits": ServiceSettings})

    def build(self) -> ServiceSettings:
        if self.record_inputs and self.record is None:
            raise UsageError("--record-inputs is for recorded answers; give --record too.")
        return build("limits", {"limits": ServiceSettings}, "limits", self.limits)


def serve(
    noise: DrawnNoiseOptions,
    how: ProcedureOptions,
    form: InputFormOptions,
    classifier: ClassifierOptions,
    each: SigmaOptions,
    service: ServiceOptions,
) -> None:
    """Serve certified answers over HTTP: certificates of images and arrays, by a deadline, from shared batches.

    The procedure is `anytime` by default. Everything that `certify` builds can be served, except a memory. A request
    may choose radii, a smaller alpha, and a deadline. The page at / shows it, and /docs the interface. It ends on
    SIGTERM or Ctrl-C, after it has answered what it accepted.

    **Examples**

        smoothcert serve demo/models/sigma-0.25.safetensors --radius 0.25 --deadline 0.1
        smoothcert serve cohen.pth.tar --sigma 0.5 --radius 0.25,0.5 --deadline 0.5 --record runs/served
        smoothcert serve a.safetensors b.safetensors c.safetensors --first 2 --radius 0.5 --port 9000
        smoothcert serve router.yaml --radius 0.25 --host 0.0.0.0 --keys keys.txt
        smoothcert serve net.onnx --shape 3x224x224 --classes imagenet --sigma 0.25 --deadline 2
    """
    require_packages()
    from smoothcert.serve.keys import read_keys
    from smoothcert.serve.run import run_service

    keys = read_keys(service.keys)
    made = load_service(noise, how, form, classifier, each, service)
    if made.recorder is not None:
        made.recorder.open(made.served)
    run_service(made, host=service.host, port=service.port, keys=keys, announce=lambda text: typer.echo(text, err=True))


def load_service(
    noise: DrawnNoiseOptions,
    how: ProcedureOptions,
    form: InputFormOptions,
    classifier: ClassifierOptions,
    each: SigmaOptions,
    service: ServiceOptions,
) -> Service:
    """Load all models that the options name, and make the service."""
    from smoothcert.serve.record import Recorder
    from smoothcert.serve.service import Service

    settings = service.build()
    if each.memory is not None:
        raise UsageError("a memory needs all inputs in their order, so it cannot be served; leave out --memory.")
    if how.simultaneous:
        raise UsageError("alpha holds for each answer of a server, which does not end; leave out --simultaneous.")
    first = load_served(service.name, noise, how, form, classifier, each.build())
    served = [first]
    for given in service.also or []:
        name, equals, specifier = given.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name):
            raise UsageError(f"--also must be NAME=MODEL, with letters, digits, dots and dashes; got {given!r}.")
        one = replace(
            classifier, specifiers=[specifier], vote=None, weights=None, first=None, router=None, denoiser=None
        )
        plain = DrawnNoiseOptions(exact=noise.exact)
        served.append(load_served(name, plain, how, InputFormOptions(any_values=form.any_values), one, {}))
    recorder = None if service.record is None else Recorder(service.record, service.record_inputs)
    return Service(served, settings, recorder)


def load_served(
    name: str | None,
    noise: DrawnNoiseOptions,
    how: ProcedureOptions,
    form: InputFormOptions,
    classifier: ClassifierOptions,
    per_input: Mapping[str, Any],
) -> Served:
    """Load a smoothed classifier, with its procedure and what is known of its inputs."""
    from smoothcert.serve.service import Served

    chosen = noise.build()
    smoothed, procedure, shape, loaded = load_answering(chosen, noise.exact, how, form, classifier, per_input)
    answering = loaded.opened.answering
    names = read_classes(form.classes).names if form.classes else answering.class_names or _trained_classes(answering)
    count = len(names) if names else answering.num_classes
    if answering.num_classes is not None and count != answering.num_classes:
        raise UsageError(f"{form.classes} has {count} classes, but the model has {answering.num_classes}.")
    facts = {
        "architecture": answering.extra.get("architecture", answering.name),
        "num_classes": count,
        "measured": _measured(answering),
        "source": loaded.source,
    }
    return Served(name or classifier.name, smoothed, procedure, shape, names, facts)


def load_answering(
    chosen: Noise | None,
    exact: bool | None,
    how: ProcedureOptions,
    form: InputFormOptions,
    classifier: ClassifierOptions,
    per_input: Mapping[str, Any],
) -> tuple[Smoothed, Procedure, tuple[int, ...], Loaded]:
    """Load a smoothed classifier; return it with its procedure, the shape of its inputs, and what was loaded."""
    if how.procedure is None and classifier.aces is None:
        how = replace(how, procedure="anytime")
    procedure = how.build(classifier.aces)
    given = None if form.shape is None else parse_shape(form.shape)
    opened = open_given(classifier, None if given is None else torch.full(given, 0.5), chosen)
    shape = given or opened.answering.input_shape or opened.base.input_shape
    if shape is None:
        raise UsageError(
            f"{opened.base.name} does not record the shape of its inputs; give --shape, such as 3x224x224."
        )
    image = len(shape) == 3 and shape[0] in (1, 3) and not form.any_values
    loaded = smoothed_of(
        classifier,
        opened,
        chosen,
        exact,
        grid=form.grid if image else None,
        input_range=None if form.any_values else (0.0, 1.0),
        **per_input,
    )
    procedure, _ = how.share(loaded.completed(procedure), 1, loaded.smoothed.device)
    return loaded.smoothed, procedure, tuple(shape), loaded


def parse_shape(text: str) -> tuple[int, ...]:
    """Read a shape, as ``3x32x32``."""
    if not re.fullmatch(r"[0-9]{1,6}(x[0-9]{1,6})*", text):
        raise UsageError(f"--shape must be whole numbers, as 3x32x32, got {text!r}.")
    shape = tuple(map(int, text.split("x")))
    if not 0 < math.prod(shape) <= 1 << 24:
        raise UsageError(f"inputs of the shape {text} are empty or too large.")
    return shape


def _trained_classes(loaded: LoadedModel) -> tuple[str, ...] | None:
    """Return the names of the classes of the dataset that a model was trained on, if it records one of ours."""
    recipe = loaded.extra.get("extra", {}).get("recipe")
    name = recipe.get("dataset") if isinstance(recipe, dict) else None
    known = data.DATASETS.get(name) if isinstance(name, str) else None
    names = getattr(known, "class_names", None)
    return tuple(names) if names and len(names) == loaded.num_classes else None


def _measured(loaded: LoadedModel) -> dict[str, Any] | None:
    """Return the accuracy that a checkpoint records."""
    extra = loaded.extra.get("extra", {})
    found = {name: extra[name] for name in ("accuracy", "certified") if isinstance(extra.get(name), (int, float))}
    recipe = extra.get("recipe")
    if not found or not isinstance(recipe, dict):
        return found or None
    about = {"dataset": recipe.get("dataset"), "inputs": recipe.get("holdout"), "votes": recipe.get("votes")}
    return {**found, "radius": recipe.get("radius") or loaded.extra.get("sigma"), **about}


def require_packages() -> None:
    """Refuse to start without the packages of the extra ``serve``."""
    for name in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
        if find_spec(name) is None:
            raise UsageError(f'serving needs {name}; pip install "smoothcert[serve]".')
