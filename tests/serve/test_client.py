"""The client sends what it is given, and repeats only what may be repeated."""

from __future__ import annotations

import asyncio
import io

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

import smoothcert as sc
from serve.services import SHAPE, grey
from smoothcert.serve import client as module
from smoothcert.serve.client import ServiceError


class Script:
    """A server that answers with what it was told, one after the other."""

    def __init__(self, *answers) -> None:
        self.answers, self.requests = list(answers), []

    def __call__(self, request):
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def full() -> httpx.Response:
    return httpx.Response(429, json={"error": "full."}, headers={"Retry-After": "7"})


GOOD = {"label": 1}


@pytest.fixture
def scripted(monkeypatch):
    """Make a client of a scripted server, and record how long it sleeps."""
    slept: list[float] = []

    async def asleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(module.time, "sleep", slept.append)
    monkeypatch.setattr(module.asyncio, "sleep", asleep)

    def make(*answers, **options):
        script = Script(*answers)
        client = sc.Client("http://server", **options)
        client._options["transport"] = httpx.MockTransport(script)
        return client, script, slept

    return make


@pytest.mark.parametrize("asynchronous", [False, True])
class TestRetries:
    def call(self, client, asynchronous):
        x = np.zeros(SHAPE, np.float32)
        return asyncio.run(client.acertify(x)) if asynchronous else client.certify(x)

    def test_a_full_server_is_asked_again_when_it_says(self, scripted, asynchronous):
        client, script, slept = scripted(full(), full(), httpx.Response(200, json=GOOD))
        assert self.call(client, asynchronous) == GOOD
        assert len(script.requests) == 3
        assert all(7 <= each <= 8.4 for each in slept)

    def test_a_lost_connection_is_tried_again(self, scripted, asynchronous):
        lost = (httpx.ConnectError("refused"), httpx.RemoteProtocolError("closed"), httpx.ReadError("reset"))
        client, script, _ = scripted(*lost, httpx.Response(200, json=GOOD))
        assert self.call(client, asynchronous) == GOOD
        assert len(script.requests) == 4

    @pytest.mark.parametrize("status", [400, 401, 404, 413, 415, 422, 500, 503])
    def test_other_refusals_are_not_repeated(self, scripted, asynchronous, status):
        client, script, _ = scripted(httpx.Response(status, json={"error": "because."}))
        with pytest.raises(ServiceError, match="because") as found:
            self.call(client, asynchronous)
        assert found.value.status == status
        assert len(script.requests) == 1

    def test_a_timeout_is_not_repeated(self, scripted, asynchronous):
        client, script, _ = scripted(httpx.ReadTimeout("slow"))
        with pytest.raises(ServiceError, match="does not answer"):
            self.call(client, asynchronous)
        assert len(script.requests) == 1

    def test_it_gives_up(self, scripted, asynchronous):
        client, script, _ = scripted(full(), full(), full(), retries=2)
        with pytest.raises(ServiceError, match="full") as found:
            self.call(client, asynchronous)
        assert (found.value.status, len(script.requests)) == (429, 3)

    def test_an_answer_that_is_no_json_is_an_error(self, scripted, asynchronous):
        client, _, _ = scripted(httpx.Response(502, text="<html>"))
        with pytest.raises(ServiceError, match="502"):
            self.call(client, asynchronous)


def test_inputs_arrive_as_they_are(call, tmp_path, monkeypatch):
    service = call()
    client = sc.Client("http://testserver")
    client._sync = service
    x = torch.tensor(grey(0.9))
    picture = Image.fromarray((x[0] * 255).round().byte().numpy())
    picture.save(tmp_path / "x.png")
    stream = io.BytesIO()
    np.save(stream, x.numpy())
    inputs = [x, x.numpy(), x.tolist(), x.double(), picture, str(tmp_path / "x.png"), tmp_path / "x.png"]
    inputs += [(tmp_path / "x.png").read_bytes(), stream.getvalue()]
    answers = [client.certify(each, radius=[0.05, 0.1], deadline=1.0) for each in inputs]
    assert len({each["input_sha256"] for each in answers}) == 1
    assert all(len(each["decisions"]) == 2 for each in answers)
    assert [each["label"] for each in client.certify(torch.stack([x, 1 - x]))] == [1, 0]
    assert client.predict(x)["label"] == 1
    assert client.models()[0]["name"] == "bright"


def test_inputs_that_cannot_be_sent_are_refused_here():
    client = sc.Client("http://server")
    for bad, words in (
        (np.zeros(SHAPE, np.uint8), "255"),
        ("missing.png", "cannot be read"),
        ([[1], [2, 3]], "cannot be sent"),
        (object(), "floating point|cannot be sent"),
    ):
        with pytest.raises(sc.UsageError, match=words):
            client.certify(bad)


def test_the_key_is_sent(scripted, monkeypatch):
    monkeypatch.setenv("SMOOTHCERT_API_KEY", "from-the-environment")
    for options, key in (({}, "from-the-environment"), ({"key": "given"}, "given")):
        client, script, _ = scripted(httpx.Response(200, json=GOOD), **options)
        client.certify(np.zeros(SHAPE, np.float32))
        assert script.requests[0].headers["authorization"] == f"Bearer {key}"
