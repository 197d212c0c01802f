"""The HTTP interface of a service."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import traceback
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    MutableMapping,
    Sequence,
)
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from email.message import Message
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect
from starlette.routing import Route

import smoothcert
from smoothcert.serve import page_routes
from smoothcert.serve.answers import Batch, Certified, Failed, Predicted
from smoothcert.serve.inputs import Input, decode
from smoothcert.serve.keys import Keys
from smoothcert.serve.refusals import Refused
from smoothcert.serve.service import Pending, Served, Service, asked_for
from smoothcert.types import SmoothcertError

T = TypeVar("T")
Scope = MutableMapping[str, Any]
_LOG = logging.getLogger("smoothcert.serve")
_EVENTS = 0.05  # seconds between events about votes
_CLOSED = 499  # the caller has hung up; nobody sees this status but the log

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Failed, "description": text}
    for status, text in (
        (400, "The body cannot be parsed."),
        (401, "The API key is missing or unknown."),
        (404, "There is no such model."),
        (408, "The body did not arrive in time."),
        (413, "The body or the image is too large."),
        (415, "The body has an unknown format."),
        (422, "The input or an option is invalid."),
        (429, "The queue is full; Retry-After says when to ask again."),
        (500, "The model raised an error on this input."),
        (503, "The server is starting, shutting down, or cannot record the answer."),
    )
}
_NUMBER = {"oneOf": [{"type": "number"}, {"type": "string"}]}
_ARRAY = {"description": "Nested arrays of numbers, in the shape of the model's input."}
_JSON = {
    "type": "object",
    "properties": {
        "input": {"type": "array", "items": {}, **_ARRAY},
        "inputs": {"type": "array", "items": {}, "description": "Several inputs."},
        "radius": {"description": "A target radius, or several as an array or separated by commas."},
        "alpha": _NUMBER,
        "deadline": _NUMBER,
        "model": {"type": "string"},
        "seed": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    },
}
_FILE = {"schema": {"type": "string", "format": "binary"}}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": _JSON},
            "image/png": _FILE,
            "image/jpeg": _FILE,
            "application/x-npy": _FILE,
            "multipart/form-data": {
                "schema": {"type": "object", "properties": {"file": {"type": "string", "format": "binary"}}}
            },
        },
    }
}


def create_app(
    service: Service,
    keys: Keys | None = None,
    *,
    start: Callable[[], None] | None = None,
    close: bool = True,
    metrics: Callable[[], Awaitable[bytes]] | None = None,
) -> FastAPI:
    """Return the web application of a service.

    Args:
        service: The service.
        keys: The API keys; anybody may call it without any.
        start: Called in a thread when the application starts, such as ``service.warm_up``, which is the default unless
            the service is ready. If it raises, the service never becomes ready.
        close: Whether the service ends with the application.
        metrics: Returns what ``/metrics`` answers; by default the metrics of the service.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        starting = None
        if not service.ready:
            starting = asyncio.get_running_loop().run_in_executor(None, start or service.warm_up)
            starting.add_done_callback(_log_failure)
        yield
        if close:
            await asyncio.to_thread(service.close)
        if starting is not None:
            with suppress(Exception):
                await starting
        routes.threads.shutdown(wait=False)

    app = FastAPI(
        title="smoothcert",
        version=smoothcert.__version__,
        summary="Certified answers of smoothed classifiers.",
        lifespan=lifespan,
    )
    routes = _Routes(service, keys or Keys(), metrics)
    routes.add_to(app)
    app.include_router(page_routes.router(routes), dependencies=[Depends(routes.authorised)])
    for path in ("/", "/{file}"):  # not a mount of all paths: other methods at known paths are 405, not 404
        app.router.routes.append(Route(path, page_routes.PageFiles(), methods=["GET"]))
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_middleware(_Logged, service=service)
    return app


class _Routes:
    """The handlers of requests."""

    def __init__(self, service: Service, keys: Keys, metrics: Callable[[], Awaitable[bytes]] | None = None) -> None:
        self.service, self.keys, self._metrics = service, keys, metrics
        self.threads = ThreadPoolExecutor(4, thread_name_prefix="smoothcert request")
        self.writer = ThreadPoolExecutor(1, thread_name_prefix="smoothcert answer")

    def add_to(self, app: FastAPI) -> None:
        asked: dict[str, Any] = {
            "methods": ["POST"],
            "dependencies": [Depends(self.authorised)],
            "openapi_extra": _BODY,
            "tags": ["answers"],
        }
        stream: dict[str, Any] = {"content": {"text/event-stream": {}}}
        app.add_api_route(
            "/v1/certify", self.certify, responses={**_ERRORS, 200: {"model": Certified | Batch, **stream}}, **asked
        )
        app.add_api_route(
            "/v1/predict", self.predict, responses={**_ERRORS, 200: {"model": Predicted | Batch}}, **asked
        )
        guarded: dict[str, Any] = {"dependencies": [Depends(self.authorised)], "responses": {401: _ERRORS[401]}}
        app.add_api_route("/v1/model", self.model, **guarded)
        app.add_api_route("/metrics", self.metrics, response_class=Response, **guarded)
        state: dict[str, Any] = {"responses": {503: _ERRORS[503]}}
        app.add_api_route("/healthz", self.healthy, **state)
        app.add_api_route("/readyz", self.is_ready, **state)

    async def authorised(self, request: Request) -> None:
        if not self.keys:
            return
        given = request.headers.get("x-api-key", "")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given = token.strip()
        if not self.keys.allow(given):
            raise Refused(401, "the API key is missing or unknown; send it as Authorization: Bearer KEY.")

    async def certify(
        self,
        request: Request,
        radius: str | None = Query(None, description="Target radii, separated by commas."),
        alpha: str | None = Query(None, description="The probability of a wrong answer."),
        deadline: str | None = Query(None, description="Seconds."),
        model: str | None = Query(None, description="The name of the model; the first by default."),
        seed: str | None = Query(None, description="Only where the operator allows it."),
    ) -> Response:
        """Certify an input, or each input of a batch.

        With `Accept: text/event-stream`, events `votes` show what is proved so far, and `answer` or `error` ends them.
        """
        return await self._answer(request, predict=False)

    async def predict(
        self,
        request: Request,
        alpha: str | None = Query(None, description="The probability of a wrong answer."),
        deadline: str | None = Query(None, description="Seconds."),
        model: str | None = Query(None, description="The name of the model; the first by default."),
        seed: str | None = Query(None, description="Only where the operator allows it."),
    ) -> Response:
        """Return the class of an input, or of each input of a batch, without a radius."""
        return await self._answer(request, predict=True)

    async def model(self) -> dict[str, Any]:
        """Describe the models that are served, and the limits."""
        if not self.service.ready:
            self.service.require_room()
        return await asyncio.to_thread(self.service.describe)

    async def metrics(self) -> Response:
        """Return the metrics for Prometheus."""
        text = self.service.metrics.text() if self._metrics is None else await self._metrics()
        return Response(text, media_type="text/plain; version=0.0.4")

    async def healthy(self) -> dict[str, str]:
        """Tell whether the process works; if not, restart it."""
        if not self.service.alive and not self.service.draining:
            raise Refused(503, "an engine has failed; restart the server.")
        return {"status": "ok"}

    async def is_ready(self) -> dict[str, str]:
        """Tell whether requests are answered."""
        if not self.service.alive or self.service.draining or not self.service.ready:
            raise Refused(503, "the server is starting or shutting down.", 1)
        return {"status": "ready"}

    async def _answer(self, request: Request, predict: bool) -> Response:
        self.service.require_room()
        started, batch = await self._start(request, predict)
        if not batch and "text/event-stream" in request.headers.get("accept", ""):
            return StreamingResponse(self._events(started[0]), media_type="text/event-stream", headers=_UNCACHED)
        answers = await self.answers(request, started)
        if not batch:
            (found,) = answers
            if isinstance(found, Refused):
                raise found
            return JSONResponse(found)
        if all(isinstance(each, Refused) for each in answers):
            raise answers[0]
        shown = [{"error": str(each)} if isinstance(each, Refused) else each for each in answers]
        return JSONResponse({"answers": shown})

    async def _start(self, request: Request, predict: bool) -> tuple[list[Pending], bool]:
        """Read a request, decode its inputs, and submit them."""
        query = dict(request.query_params)
        if len(query) < len(request.query_params.multi_items()):
            raise Refused(422, "an option is given twice in the address; give it once.")
        content = await self._body(request)
        kind = request.headers.get("content-type", "")
        media = kind.partition(";")[0].strip().lower()
        files, form = await _multipart(request, content) if media == "multipart/form-data" else ((), {})

        def start() -> tuple[list[Pending], bool]:
            served = self.service.model(query.get("model") or form.get("model"))
            inputs, batch, more = decode(media, content, self.service.form(served), files, form)
            asked = asked_for(query, more, predict)
            if asked.model is not None and self.service.model(asked.model) is not served:
                inputs, batch, _ = decode(
                    media, content, self.service.form(self.service.model(asked.model)), files, form
                )
            return self.service.submit(inputs, asked), batch

        return await asyncio.get_running_loop().run_in_executor(self.threads, start)

    async def _body(self, request: Request) -> bytes:
        most = self.service.settings.max_bytes
        too_large = Refused(413, f"the body is too large; send at most {most:,} bytes.")
        with suppress(ValueError):
            if int(request.headers.get("content-length", "0")) > most:
                raise too_large

        async def read() -> bytes:
            content = bytearray()
            async for piece in request.stream():
                content += piece
                if len(content) > most:
                    raise too_large
            return bytes(content)

        try:
            return await asyncio.wait_for(read(), self.service.settings.body_seconds)
        except asyncio.TimeoutError:
            raise Refused(
                408, f"the body did not arrive within {self.service.settings.body_seconds:g} seconds; send it again."
            ) from None
        except ClientDisconnect:
            raise Refused(_CLOSED, "the caller has hung up.") from None

    async def read_one(self, request: Request) -> tuple[Served, Input]:
        """Return the model that the address of a request names, and the only input in its body."""
        content = await self._body(request)
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()

        def read() -> tuple[Served, Input]:
            served = self.service.model(request.query_params.get("model"))
            inputs, batch, _ = decode(media, content, self.service.form(served))
            if batch:
                raise Refused(422, "the body is a batch; send one input.")
            return served, inputs[0]

        return await asyncio.get_running_loop().run_in_executor(self.threads, read)

    async def answers(self, request: Request, started: Sequence[Pending]) -> list[Any]:
        """Return the answers to inputs, or why there are none, unless the caller hangs up."""
        return await _unless_gone(request, started, self._all(started))

    async def _all(self, started: Sequence[Pending]) -> list[Any]:
        return await asyncio.gather(*map(self._one, started))

    async def _one(self, pending: Pending) -> Any:
        """Return the answer to an input, or why there is none."""
        try:
            found = await asyncio.wrap_future(pending.request)
            if self.service.recorder is None:
                return pending.answer(found)
            return await asyncio.get_running_loop().run_in_executor(self.writer, pending.answer, found)
        except Refused as error:
            return error
        except SmoothcertError as error:
            if self.service.draining:
                return Refused(503, "the server is shutting down; ask another one.", 1)
            return Refused(500, f"the model could not answer: {error}")

    async def _events(self, pending: Pending) -> AsyncIterator[bytes]:
        answering = asyncio.ensure_future(self._one(pending))
        before = None
        try:
            while not answering.done():
                await asyncio.wait([answering], timeout=_EVENTS)
                if answering.done():
                    break
                shown = await asyncio.get_running_loop().run_in_executor(self.threads, pending.so_far)
                if shown is not None and shown["samples"] != before:
                    before = shown["samples"]
                    yield _event("votes", shown)
            found = answering.result()
            yield _event("error", {"error": str(found)}) if isinstance(found, Refused) else _event("answer", found)
        finally:
            pending.request.cancel()
            answering.cancel()


_UNCACHED = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def _unless_gone(
    request: Request, started: Sequence[Pending], answers: Coroutine[Any, Any, list[Any]]
) -> list[Any]:
    """Await answers; cancel them as soon as the caller hangs up."""
    working = asyncio.ensure_future(answers)
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Refused(_CLOSED, "the caller has hung up.")
    finally:
        gone.cancel()
        if not working.done():
            for each in started:
                each.request.cancel()
            working.cancel()
            with suppress(asyncio.CancelledError, CancelledError):
                await working


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _multipart(request: Request, content: bytes) -> tuple[list[tuple[str, bytes]], dict[str, str]]:
    """Read the files and the fields of a form."""

    async def once() -> AsyncGenerator[bytes, None]:
        yield content
        yield b""

    try:
        form = await MultiPartParser(request.headers, once(), max_files=4, max_fields=16).parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise Refused(400, "the form cannot be parsed; send it as multipart/form-data with a boundary.") from error
    files: list[tuple[str, bytes]] = []
    fields: dict[str, str] = {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            kind = Message()
            kind["content-type"] = value.content_type or "application/octet-stream"
            files.append((kind.get_content_type(), await value.read()))
        elif name in fields:
            raise Refused(422, "a field of the form is given twice; give it once.")
        else:
            fields[name] = value
    await form.close()
    return files, fields


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": str(error)}, error.status, headers)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return JSONResponse({"error": f"{'.'.join(map(str, first['loc']))}: {first['msg']}."}, 422)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = {404: "there is no such page; see /docs.", 405: "this method is not allowed here; see /docs."}
    return JSONResponse({"error": sentence.get(error.status_code, str(error.detail))}, error.status_code, error.headers)


def _log_failure(starting: asyncio.Future[None]) -> None:
    if not starting.cancelled() and (error := starting.exception()) is not None:
        _LOG.error("the service cannot start: %s", error)


def _places(error: Exception) -> str:
    """Return where an error was raised, without its message, which may quote an input."""
    return " > ".join(f"{Path(each.filename).name}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__))


class _Logged:
    """Logs one line for each request, without its query, and answers errors that nobody expected."""

    def __init__(self, app: Callable[..., Awaitable[None]], service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), 0

        async def noted(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as error:
            _LOG.error("a %s was not expected at %s", type(error).__name__, _places(error))
            if not status:
                failed = JSONResponse({"error": f"the server failed with a {type(error).__name__}."}, 500)
                await failed(scope, receive, noted)
        finally:
            route = scope.get("route")
            path = getattr(route, "path", None) or "other"
            self._service.metrics.requested(path, status)
            client = (scope.get("client") or ["-"])[0]
            shown = path if route is not None else "/…"
            _LOG.info("%s %s %s %d %.1f ms", client, scope["method"], shown, status, 1e3 * (time.monotonic() - began))
