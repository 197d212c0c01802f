"""The classifiers that are served, each with an engine, and the limits that requests have to keep."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

import numpy as np
import torch

import smoothcert
from smoothcert.certify import Anytime, Procedure, Smoothed
from smoothcert.certify.engine import Engine, Request
from smoothcert.classifiers.identity import identity_digest
from smoothcert.sampling.seeds import fresh_seed
from smoothcert.serve.answers import Json, answer_json
from smoothcert.serve.inputs import Form, Input
from smoothcert.serve.metrics import Metrics
from smoothcert.serve.record import Recorder
from smoothcert.serve.refusals import Refused
from smoothcert.serve.settings import ServiceSettings
from smoothcert.types import Certificate, Prediction, UsageError

INDEX = 0
"""The number that enters the noise of every request; only the seed differs."""

OPTIONS = ("radius", "alpha", "deadline", "model", "seed")
_MOST_SECONDS = 3600


@dataclass(frozen=True)
class Asked:
    """What a request asks for; None: as the operator set it."""

    radius: tuple[float, ...] | None = None
    alpha: float | None = None
    deadline: float | None = None
    model: str | None = None
    seed: int | None = None
    predict: bool = False


@dataclass(eq=False)
class Served:
    """A smoothed classifier with a name.

    Args:
        name: The name in requests.
        smoothed: The classifier; without a memory.
        procedure: How to certify if a request does not say more.
        shape: The shape of an input.
        class_names: The names of the classes, if known.
        facts: More about the model, for ``/v1/model``.
    """

    name: str
    smoothed: Smoothed
    procedure: Procedure
    shape: tuple[int, ...]
    class_names: Sequence[str] | None = None
    facts: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.smoothed.memory is not None:
            raise UsageError("a memory needs all inputs in their order, so it cannot be served; leave out --memory.")
        self.engine = Engine(self.smoothed)

    @cached_property
    def identity(self) -> str:
        return identity_digest(self.smoothed.sealed().sealed_identity)

    @cached_property
    def settings(self) -> Json:
        """The procedure and the experts, as a run records them."""
        return self.run_config(self.procedure)

    def run_config(self, procedure: Procedure) -> Json:
        return self.smoothed.routed(procedure).run_config()

    @property
    def probe(self) -> torch.Tensor:
        """An input of one value, which every noise accepts."""
        return torch.full(self.shape, float((self.smoothed.input_range or (0.0, 0.0))[0]))

    @property
    def probes(self) -> list[torch.Tensor]:
        """Inputs with and without the small distance to the grid that most images have."""
        low, high = self.smoothed.input_range or (0.0, 0.0)
        noise, ramp = self.smoothed.noise, torch.linspace(low, high, math.prod(self.shape)).reshape(self.shape)
        try:
            noise.check(noise.nearest(ramp))
        except UsageError:
            return [self.probe]
        return [self.probe, noise.nearest(ramp)]

    def describe(self) -> Json:
        """Return what is known of the model as JSON values."""
        smoothed, noise = self.smoothed, self.smoothed.noise
        return {
            "name": self.name,
            "identity": self.identity,
            "input_shape": list(self.shape),
            "input_range": None if smoothed.input_range is None else list(smoothed.input_range),
            "num_classes": len(self.class_names) if self.class_names else smoothed.num_classes,
            "class_names": None if self.class_names is None else list(self.class_names),
            "noise": noise.config(),
            "sigma": noise.scale,
            "norms": [norm.value for norm in noise.norms],
            "guarantee": "routed" if smoothed.experts else "global" if smoothed.sigma is None else "pointwise",
            "arithmetic": "exact" if noise.exact else "float",
            **self.settings,
            **(self.facts or {}),
        }


class Pending:
    """A request for one input that an engine works on."""

    def __init__(self, service: Service, served: Served, given: Input, asked: Asked, procedure: Procedure) -> None:
        self._service, self._served, self._given, self._asked = service, served, given, asked
        self._procedure = procedure
        self._began, self._received = time.monotonic(), datetime.now(timezone.utc)
        self.request: Request = served.engine.submit(
            torch.from_numpy(given.values),
            procedure,
            seed=fresh_seed() if asked.seed is None else asked.seed,
            index=INDEX,
            predict=asked.predict,
        )

    def so_far(self) -> Json | None:
        """Return what the votes so far prove; None before the first ones."""
        draws = list(self.request.draws)
        if not draws:
            return None
        proved = self.request.so_far()
        votes = [each for request, each in draws if request.stage == draws[-1][0].stage]
        counts = np.sum([each[0].counts for each in votes], axis=0)
        return {
            "samples": sum(votes[0].n for _, votes in draws),
            "votes": counts.tolist(),
            "radius": 0.0 if proved is None else proved.radius,
            "seconds": round(time.monotonic() - self._began, 4),
        }

    def answer(self, found: Certificate | Prediction) -> Json:
        """Return the answer as JSON, recorded if answers are."""
        total = time.monotonic() - self._began
        json = answer_json(
            found,
            draws=self.request.draws,
            values=self._given.values,
            changes=self._given.changes,
            name=self._served.name,
            identity=self._served.identity,
            class_names=self._served.class_names,
            noise=self.request.noise.config(),
            procedure=self._served.run_config(self._procedure),
            seed_given=self._asked.seed is not None,
            received=self._received.isoformat(timespec="milliseconds"),
            seconds={"queue": round(self.waited(total), 6), "total": round(total, 6)},
            version=smoothcert.__version__,
            record=None,
        )
        self._service.metrics.answered(self._served.name, json, late=self.late(total))
        recorder = self._service.recorder
        if recorder is not None:
            json["record"] = recorder.append(self._served.name, found, json, self._given.values, total)
        return json

    def waited(self, total: float) -> float:
        """Return the seconds before the first votes arrived, or all where there are none."""
        return min(total, self.request.started - self._began) if self.request.started else total

    def late(self, total: float) -> bool:
        deadline = getattr(self._procedure, "deadline", None)
        return deadline is not None and total > deadline + 0.02


class Service:
    """What all requests share; it may be used from any thread.

    Args:
        served: The classifiers; the first is the default.
        settings: The limits.
        recorder: Where answers are recorded; nowhere by default.
    """

    def __init__(
        self,
        served: Sequence[Served],
        settings: ServiceSettings | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.served = {each.name: each for each in served}
        if len(self.served) < len(served):
            raise UsageError("two models have the same name; name one as NAME=MODEL.")
        self.settings, self.recorder = settings or ServiceSettings(), recorder
        self.metrics = Metrics(self)
        self.ready = self.draining = False
        self.inside = 0  # inputs under work
        self._lock = threading.Lock()

    @property
    def default(self) -> Served:
        return next(iter(self.served.values()))

    def form(self, served: Served) -> Form:
        return Form(served.shape, self.settings.max_pixels, self.settings.max_batch)

    def warm_up(self) -> None:
        """Answer one request for each model, so that the first one of a caller does not wait for preparations."""
        for each in self.served.values():
            procedure = self._shortened(each.procedure)
            for x in each.probes:
                each.engine.submit(x, procedure, seed=fresh_seed(), index=INDEX).result()
            each.engine.submit(each.probe, procedure, seed=fresh_seed(), index=INDEX, predict=True).result()
            each.describe()
        self.ready = True

    @staticmethod
    def _shortened(procedure: Procedure) -> Procedure:
        return replace(procedure, deadline=0.05) if isinstance(procedure, Anytime) else procedure

    def close(self, drain: bool = True) -> None:
        """Stop all engines."""
        self.draining = True
        for each in self.served.values():
            each.engine.close(drain)
        if self.recorder is not None:
            self.recorder.close()

    @property
    def alive(self) -> bool:
        """Whether all engines run."""
        return all(each.engine.alive for each in self.served.values())

    def require_room(self, count: int = 1) -> None:
        """Refuse a request if the service is not ready, or the queue has no place for its inputs."""
        if self.draining:
            raise Refused(503, "the server is shutting down; ask another one.", 1)
        if not self.ready:
            raise Refused(503, "the server is starting; ask again when /readyz answers 200.", 1)
        if count > self.settings.queue:
            raise Refused(413, f"the request has {count} inputs, but the queue has {self.settings.queue} places.")
        if self.inside + count > self.settings.queue:
            seconds = self.retry_after()
            raise Refused(429, f"all {self.settings.queue} places are taken; ask again in {seconds} s.", seconds)

    def retry_after(self) -> int:
        """Return the whole seconds in which the inputs inside will be answered at the measured rate."""
        seconds = 0.0
        for each in self.served.values():
            now = each.engine.statistics()
            waiting = now["pending"] + now["running"]
            if now["rate"] > 0 and now["answered"]:
                seconds += waiting * (now["samples"] / now["answered"]) / now["rate"]
        return min(max(math.ceil(seconds), 1), _MOST_SECONDS)

    def model(self, name: str | None) -> Served:
        if name is None:
            return self.default
        if name not in self.served:
            raise Refused(404, f"there is no model {name[:100]!r}; there are: {', '.join(self.served)}.")
        return self.served[name]

    def submit(self, inputs: Sequence[Input], asked: Asked) -> list[Pending]:
        """Start to answer inputs, or refuse all of them; each leaves when its request is done or cancelled."""
        served = self.model(asked.model)
        procedure = self._procedure(served, asked)
        with self._lock:
            self.require_room(len(inputs))
            self.inside += len(inputs)
        started: list[Pending] = []
        try:
            for place, each in enumerate(inputs):
                try:
                    started.append(Pending(self, served, each, asked, procedure))
                except UsageError as error:
                    where = f"input {place}: " if len(inputs) > 1 else ""
                    if self.draining:
                        raise Refused(503, "the server is shutting down; ask another one.", 1) from error
                    raise Refused(422, f"{where}{error}") from error
                started[-1].request.add_done_callback(self._left)
        except BaseException:
            with self._lock:
                self.inside -= len(inputs) - len(started)
            for one in started:
                one.request.cancel()
            raise
        return started

    def _left(self, _: Future[Any]) -> None:
        with self._lock:
            self.inside -= 1

    def _procedure(self, served: Served, asked: Asked) -> Procedure:
        """Return the procedure that a request asks for, within the limits."""
        limits, procedure = self.settings, served.procedure
        if asked.seed is not None and not limits.allow_seed:
            raise Refused(422, "this server draws the seed of the noise; leave out seed.")
        most = limits.max_alpha or procedure.alpha
        if asked.alpha is not None and not 0 < asked.alpha <= most:
            raise Refused(422, f"alpha must be above 0 and at most {most:g} on this server, got {asked.alpha:g}.")
        if asked.deadline is not None and not 0 < asked.deadline <= limits.max_deadline:
            longest = f"{limits.max_deadline:g}"
            raise Refused(422, f"deadline must be above 0 and at most {longest} seconds here, got {asked.deadline:g}.")
        if asked.radius is not None and not 0 < len(asked.radius) <= limits.max_radii:
            raise Refused(422, f"give 1 to {limits.max_radii} radii, not {len(asked.radius)}.")
        try:
            if asked.alpha is not None:
                procedure = _changed(procedure, "alpha", asked.alpha)
            if asked.radius is not None:
                procedure = _changed(procedure, "radius", asked.radius[0] if len(asked.radius) == 1 else asked.radius)
            return procedure if asked.deadline is None else procedure.within(asked.deadline)
        except UsageError as error:
            raise Refused(422, str(error)) from error

    def describe(self) -> Json:
        """Return the models and the limits as JSON values."""
        limits = {each.name: getattr(self.settings, each.name) for each in fields(self.settings)}
        limits["max_alpha"] = limits["max_alpha"] or self.default.procedure.alpha
        models = [{**each.describe(), "limits": limits} for each in self.served.values()]
        return {"models": models, "version": smoothcert.__version__}


def _changed(procedure: Procedure, name: str, value: Any) -> Procedure:
    """Return a procedure with another setting."""
    assert is_dataclass(procedure)
    known = {each.name: each for each in fields(procedure)}
    if name not in known:
        raise UsageError(f"{procedure.name} has no {name}; leave it out.")
    if isinstance(value, tuple) and "Sequence" not in str(known[name].type):
        raise UsageError(f"{procedure.name} accepts one {name}, not {len(value)}.")
    found: Procedure = replace(procedure, **{name: value})
    return found


def asked_for(query: Mapping[str, Any], body: Mapping[str, Any], predict: bool) -> Asked:
    """Read the options of a request from its query and its body.

    Raises:
        Refused: An option is unknown, invalid, or given twice.
    """
    for name in (*query, *body):
        if name not in OPTIONS:
            raise Refused(422, f"there is no option {str(name)[:100]!r}; there are: {', '.join(OPTIONS)}.")
    for name in query:
        if name in body:
            raise Refused(422, f"{name} is given in the address and in the body; give it once.")
    given = {name: value for name, value in {**query, **body}.items() if value is not None}
    if predict and "radius" in given:
        raise Refused(422, "a prediction has no radius; leave it out, or ask /v1/certify.")
    model = given.get("model")
    if model is not None and not isinstance(model, str):
        raise Refused(422, "model must be a name.")
    return Asked(
        radius=_radii(given["radius"]) if "radius" in given else None,
        alpha=_number("alpha", given["alpha"]) if "alpha" in given else None,
        deadline=_number("deadline", given["deadline"]) if "deadline" in given else None,
        model=model,
        seed=_seed(given["seed"]) if "seed" in given else None,
        predict=predict,
    )


def _radii(given: Any) -> tuple[float, ...]:
    parts = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else [given]
    return tuple(_number("radius", each) for each in parts)


def _number(name: str, given: Any) -> float:
    if isinstance(given, (int, float, str)) and not isinstance(given, bool):
        try:
            value = float(given)
        except (ValueError, OverflowError):
            value = math.nan
        if math.isfinite(value):
            return value
    raise Refused(422, f"{name} must be a number, got {str(given)[:100]!r}.")


def _seed(given: Any) -> int:
    if isinstance(given, int) and not isinstance(given, bool):
        value = given
    elif isinstance(given, str) and given.isascii() and given.isdecimal() and len(given) < 20:
        value = int(given)
    else:
        value = -1
    if not 0 <= value < 2**63:
        raise Refused(422, "seed must be a whole number of at least 0 and below 2**63; write it as text.")
    return value
