"""The page at ``/``, and its requests: noisy copies of an input, and the answer at an input near it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from importlib.resources import files
from typing import Annotated, Any, Literal, Protocol

import torch
from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from torch import Tensor

from smoothcert.attack import AttackSettings, adversarial_input
from smoothcert.certify import Smoothed
from smoothcert.sampling.seeds import fresh_seed
from smoothcert.serve.changes import distance, random_change
from smoothcert.serve.inputs import Input
from smoothcert.serve.pictures import picture, picture_of_change
from smoothcert.serve.refusals import Refused
from smoothcert.serve.service import Asked, Pending, Served, Service
from smoothcert.types import Norm, UsageError

PAGE = files("smoothcert.serve") / "page"
_LOOK = files("smoothcert.report.page") / "assets" / "look.css"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_ATTACK = AttackSettings(steps=10, copies=16)
_WAITING = 4  # attacks that wait for the one that runs
_SECONDS = 1.0  # for the votes at a changed input


class Answers(Protocol):
    """What a request needs of the application."""

    service: Service

    async def read_one(self, request: Request) -> tuple[Served, Input]:
        """Return the model and the only input of a request, within the limits."""

    async def answers(self, request: Request, started: Sequence[Pending]) -> list[Any]:
        """Await answers as JSON, or the errors of those without one."""


class PageFiles(StaticFiles):
    """The files of the page, which may load nothing but each other."""

    def __init__(self) -> None:
        super().__init__(directory=str(PAGE), html=True)

    async def get_response(self, path: str, scope: MutableMapping[str, Any]) -> Response:
        found = FileResponse(str(_LOOK)) if path == "look.css" else await super().get_response(path, scope)
        found.headers.update(_HEADERS)
        return found


def router(app: Answers) -> APIRouter:
    """Return the routes that only the page needs."""
    routes, attacks = APIRouter(prefix="/page", include_in_schema=False), _Attacks()

    @routes.post("/copies")
    async def copies(request: Request, count: Annotated[int, Query(ge=1, le=24)] = 8) -> dict[str, Any]:
        """Draw noisy copies of an input."""
        served, x = await image(request)

        def draw() -> dict[str, Any]:
            noise = served.smoothed.noise
            drawn = noise.sample(x, x.new_empty((count, *x.shape)), torch.Generator().manual_seed(fresh_seed()))
            return {"input": picture(x), "copies": [picture(each) for each in drawn], "noise": noise.config()}

        found: dict[str, Any] = await checked(draw)
        return found

    @routes.post("/perturb")
    async def perturb(
        request: Request,
        size: Annotated[float, Query(ge=0, le=1e6, allow_inf_nan=False)],
        norm: Norm,
        label: Annotated[int, Query(ge=0)],
        direction: Literal["random", "attack"] = "random",
        seed: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    ) -> dict[str, Any]:
        """Classify an input at a distance of at most ``size``: in a random direction, or by an attack on a label."""
        served, x = await image(request)
        smoothed = served.smoothed
        if direction == "attack" and size > 0:
            moved = await attacks.run(request, served, x, size, norm, label)
        else:
            moved = await checked(lambda: random_change(smoothed, x, size, smoothed.noise.resolve_norm(norm), seed))
        given = Input(moved.numpy())
        stops = hasattr(served.procedure, "deadline")
        seconds = min(_SECONDS, app.service.settings.max_deadline) if stops else None
        asked = Asked(model=served.name, predict=True, deadline=seconds)
        started = await asyncio.to_thread(app.service.submit, [given], asked)
        (answer,) = await app.answers(request, started)
        if isinstance(answer, Refused):
            raise answer
        shown = {name: answer[name] for name in ("label", "class_name", "votes", "samples", "alpha")}
        pictures = {"image": picture(moved), "change": picture_of_change(x, moved)}
        return {**shown, **pictures, "distance": distance(x, moved, norm)}

    async def image(request: Request) -> tuple[Served, Tensor]:
        app.service.require_room()
        served, given = await app.read_one(request)
        if not app.service.form(served).is_image:
            raise Refused(422, f"inputs of {served.name} are not images, so the page cannot show them.")
        x = torch.tensor(given.values)
        await checked(lambda: served.smoothed.noise.check(x))
        return served, x

    return routes


class _Attacks:
    """Attacks run one after the other, as each of them may use all threads of PyTorch."""

    def __init__(self) -> None:
        self._one, self._inside = asyncio.Lock(), 0
        self._copies: dict[str, Smoothed] = {}

    async def run(self, request: Request, served: Served, x: Tensor, size: float, norm: Norm, label: int) -> Tensor:
        if norm is not Norm.L2:
            raise Refused(422, f"the attack moves inputs in l2, not in {norm.value}; choose a random direction.")
        if self._inside > _WAITING:
            raise Refused(429, "too many attacks are waiting; ask again in 1 s.", 1)
        self._inside += 1
        try:
            async with self._one:
                if await request.is_disconnected():
                    raise Refused(499, "the caller has hung up.")
                smoothed = self._copies.setdefault(served.name, served.smoothed.frozen())
                found: Tensor = await checked(lambda: adversarial_input(smoothed, x, label, size, _ATTACK).cpu())
                return found
        finally:
            self._inside -= 1


async def checked(work: Callable[[], Any]) -> Any:
    """Work in a thread; a wrong use is the caller's."""
    try:
        return await asyncio.to_thread(work)
    except UsageError as error:
        raise Refused(422, str(error)) from error
