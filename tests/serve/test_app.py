"""The HTTP interface: what it answers, what it refuses, and what it does when things go wrong around it."""

from __future__ import annotations

import io
import json
import logging
import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from serve.services import SHAPE, Bright, Columns, grey, make_service, served, wait_until_ready
from smoothcert import Anytime, Cohen, Gaussian, GridSigma, Memory, OptimizeSigma, Smoothed, UsageError
from smoothcert.serve.answers import Certified, Predicted
from smoothcert.serve.inputs import Input
from smoothcert.serve.keys import Keys, read_keys
from smoothcert.serve.service import Asked, Served
from smoothcert.serve.verify import verify

LONG = Anytime(n_max=10_000_000, deadline=1_000.0)  # never ends in time by itself


def png(value: int, mode="L", size=(4, 4)) -> bytes:
    stream = io.BytesIO()
    Image.new(mode, size, value).save(stream, "PNG")
    return stream.getvalue()


def npy(array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.asarray(array, dtype=np.float32))
    return stream.getvalue()


def error(response, status: int) -> str:
    assert response.status_code == status, response.text
    found = response.json()
    assert set(found) == {"error"}
    assert found["error"].endswith(".")
    assert "\n" not in found["error"]
    return found["error"]


def until(condition, seconds=30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


class Gate:
    """Holds the forward passes of engines."""

    def __init__(self) -> None:
        self.free, self.entered, self.error = threading.Event(), threading.Event(), None
        self.free.set()

    def note(self, module, arguments) -> None:
        if threading.current_thread().name.startswith("smoothcert engine"):
            self.entered.set()
            assert self.free.wait(60)
            if self.error is not None:
                raise self.error

    def hold(self) -> None:
        self.free.clear()
        self.entered.clear()


@pytest.fixture
def gate():
    gate = Gate()
    handle = register_module_forward_pre_hook(gate.note)
    yield gate
    gate.free.set()
    handle.remove()


def test_an_answer_says_what_was_proved(call):
    found = call().post("/v1/certify", json={"input": grey(0.9)}).json()
    Certified.model_validate(found, strict=True)
    assert found["label"] == 1
    assert found["class_name"] == "bright"
    assert found["radius"] >= 0.1
    assert found["outcome"] == "certified"
    assert found["decisions"] == [{"radius": 0.1, "outcome": "certified"}]
    assert found["votes"][1] == found["samples"] == sum(stage["n"] for stage in found["stages"])
    assert found["noise"] == {"name": "gaussian", "sigma": 0.25, "grid": 255}
    assert found["arithmetic"] == "exact"
    assert found["sentence"].startswith("Class 1 (bright) for every perturbation with an l2 norm below 0.1")


def test_every_kind_of_body_is_the_same_input(call):
    client = call(make_service(allow_seed=True))
    values = np.full(SHAPE, 230 / 255, np.float32)
    image = png(230)
    bodies = [
        {"json": {"input": values.tolist(), "seed": 5}},
        {"params": {"seed": 5}, "content": npy(values), "headers": {"content-type": "application/x-npy"}},
        {"params": {"seed": 5}, "content": npy(values), "headers": {"content-type": "application/octet-stream"}},
        {"params": {"seed": 5}, "content": image, "headers": {"content-type": "image/png"}},
        {"data": {"seed": "5"}, "files": {"file": ("a.png", image, "image/png")}},
    ]
    answers = [client.post("/v1/certify", **body).json() for body in bodies]
    for each in answers:
        assert each["input_sha256"] == answers[0]["input_sha256"]
        assert each["radius"] == answers[0]["radius"]
        assert each["stages"] == answers[0]["stages"]
        assert each["seed_given"]
        assert any("choose" in text and "seed" in text for text in verify(each).unchecked)
    assert not client.post("/v1/certify", json={"input": values.tolist()}).json()["seed_given"]


def test_a_batch_is_answered_in_order(call):
    client = call()
    values = [grey(0.9), grey(0.1), grey(0.95)]
    labels = [each["label"] for each in client.post("/v1/certify", json={"inputs": values}).json()["answers"]]
    assert labels == [1, 0, 1]
    response = client.post("/v1/predict", content=npy(values), headers={"content-type": "application/x-npy"})
    assert [each["label"] for each in response.json()["answers"]] == labels


def test_the_noise_is_fresh_for_every_request_and_input(call):
    client = call()
    answers = client.post("/v1/certify", json={"inputs": [grey(0.9)] * 4}).json()["answers"]
    answers += [client.post("/v1/certify", json={"input": grey(0.9)}).json() for _ in range(4)]
    assert len({each["seed"] for each in answers}) == 8
    assert all(isinstance(each["seed"], str) for each in answers)  # JavaScript would round a number


def test_a_prediction_has_no_radius(call):
    client = call()
    found = client.post("/v1/predict", json={"input": grey(0.9)}).json()
    Predicted.model_validate(found, strict=True)
    assert (found["label"], "radius" in found) == (1, False)
    assert "radius" in error(client.post("/v1/predict?radius=1", json={"input": grey(0.9)}), 422)


def test_options_change_the_answer(call):
    client = call()
    for how in ({"params": {"radius": "0.05,0.2"}}, {}):
        body = {"input": grey(0.9)} if how else {"input": grey(0.9), "radius": [0.05, 0.2]}
        found = client.post("/v1/certify", json=body, **how).json()
        assert [each["radius"] for each in found["decisions"]] == [0.05, 0.2]
        assert found["radius"] >= 0.2
    assert client.post("/v1/certify?alpha=1e-5", json={"input": grey(0.9)}).json()["alpha"] == 1e-5
    found = client.post("/v1/certify?deadline=0.5", json={"input": grey(0.9)}).json()
    assert found["procedure"]["deadline"] == 0.5


REFUSED = {
    "a seed": {"seed": "1"},
    "a larger alpha": {"alpha": "0.9"},
    "no alpha": {"alpha": "0"},
    "alpha as text": {"alpha": "little"},
    "no number": {"alpha": "nan"},
    "a long deadline": {"deadline": "3600"},
    "no time": {"deadline": "0"},
    "a negative radius": {"radius": "-1"},
    "an infinite radius": {"radius": "inf"},
    "no radius": {"radius": ""},
    "many radii": {"radius": ",".join(f"0.{i:03d}" for i in range(1, 100))},
    "a radius twice": {"radius": "0.1,0.1"},
    "a radius out of reach": {"radius": "10"},
    "an unknown option": {"radii": "0.1"},
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("inside", [False, True])
def test_options_beyond_the_limits_are_refused(call, name, inside):
    body = {"input": grey(0.9), **(REFUSED[name] if inside else {})}
    error(call().post("/v1/certify", json=body, params={} if inside else REFUSED[name]), 422)


def test_an_option_is_given_once(call):
    client = call()
    error(client.post("/v1/certify?radius=0.1", json={"input": grey(0.9), "radius": 0.2}), 422)
    error(client.post("/v1/certify?radius=0.1&radius=0.2", json={"input": grey(0.9)}), 422)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.7391, 1.5, -0.5, 200.0, 1e30])
def test_values_out_of_range_are_refused(call, value):
    client = call()
    values = np.full(SHAPE, value).tolist()
    error(client.post("/v1/certify", content=json.dumps({"input": values}), headers=_JSON), 422)
    response = client.post("/v1/certify", content=npy(values), headers={"content-type": NPY})
    error(response, 422)


_JSON, NPY = {"content-type": "application/json"}, "application/x-npy"


def test_sizes_are_limited(call):
    client = call(make_service(max_bytes=2_000, max_pixels=100, max_batch=2))
    error(client.post("/v1/certify", content=b"x" * 2_001, headers=_JSON), 413)
    error(client.post("/v1/certify", content=(b"x" * 500 for _ in range(100)), headers=_JSON), 413)  # no length given
    error(client.post("/v1/certify", content=png(9, size=(11, 10)), headers={"content-type": "image/png"}), 413)
    error(client.post("/v1/certify", json={"inputs": [grey(0.9)] * 3}), 413)


def test_unknown_pages_methods_and_models_are_refused(call):
    client = call()
    error(client.get("/nothing"), 404)
    error(client.get("/v1/certify"), 405)
    error(client.post("/v1/certify?model=other", json={"input": grey(0.9)}), 404)
    error(client.post("/v1/certify", json={"input": grey(0.9), "model": 5}), 422)
    error(client.post("/v1/certify", content=b"<p>", headers={"content-type": "text/html"}), 415)
    error(client.post("/v1/certify", content=b"--a", headers={"content-type": "multipart/form-data"}), 400)


def test_models_are_served_by_name(call):
    service = make_service(served(), served(Columns(), name="columns"))
    client = call(service)
    assert [each["name"] for each in client.get("/v1/model").json()["models"]] == ["bright", "columns"]
    assert client.post("/v1/certify", json={"input": grey(0.9)}).json()["model"]["name"] == "bright"
    for how in ({"params": {"model": "columns"}}, {}):
        body = {"input": grey(0.9)} if how else {"input": grey(0.9), "model": "columns"}
        found = client.post("/v1/certify", json=body, **how).json()
        assert found["model"]["name"] == "columns"
        assert len(found["votes"]) == 4


def test_the_model_page_describes_the_model(call):
    (found,) = call().get("/v1/model").json()["models"]
    assert found["input_shape"] == list(SHAPE)
    assert found["class_names"] == ["dark", "bright"]
    assert (found["sigma"], found["norms"], found["arithmetic"]) == (0.25, ["l2", "linf"], "exact")
    assert found["limits"]["max_alpha"] == 0.001
    assert found["procedure"]["name"] == "anytime"


def test_keys_are_needed_where_there_are_some(call):
    client = call(keys=Keys(["first-key-0123456789", "second-key-0123456789"]))
    body = {"json": {"input": grey(0.9)}}
    for headers in ({}, {"x-api-key": "first-key"}, {"authorization": "Bearer wrong"}, {"authorization": "first"}):
        response = client.post("/v1/certify", headers=headers, **body)
        error(response, 401)
        assert response.headers["www-authenticate"] == "Bearer"
    for headers in ({"x-api-key": "first-key-0123456789"}, {"authorization": "Bearer second-key-0123456789"}):
        assert client.post("/v1/certify", headers=headers, **body).status_code == 200
    error(client.get("/metrics"), 401)
    error(client.get("/v1/model"), 401)
    assert client.get("/healthz").status_code == 200


def test_keys_are_read_from_a_file_and_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "keys"
    file.write_text("# ours\nfrom-the-file-0123\n\n")
    monkeypatch.setenv("SMOOTHCERT_API_KEYS", "from-environ-01234, another-environ-1")
    keys = read_keys(file)
    for key in ("from-the-file-0123", "from-environ-01234", "another-environ-1"):
        assert keys.allow(key)
    assert not keys.allow("# ours")
    assert not keys.allow("")
    file.write_text("short")
    with pytest.raises(UsageError, match="fewer than 16"):
        read_keys(file)
    file.write_text("")
    with pytest.raises(UsageError, match="holds no API key"):
        read_keys(file)
    with pytest.raises(UsageError, match="cannot be read"):
        read_keys(tmp_path / "missing")


def test_nothing_is_answered_before_the_warm_up(call, gate):
    gate.hold()
    client = call(ready=False)
    assert error(client.get("/readyz"), 503)
    assert client.get("/healthz").status_code == 200
    response = client.post("/v1/certify", json={"input": grey(0.9)})
    assert "starting" in error(response, 503)
    assert response.headers["retry-after"] == "1"
    gate.free.set()
    wait_until_ready(client)
    assert client.post("/v1/certify", json={"input": grey(0.9)}).status_code == 200


def test_a_full_queue_refuses_and_says_when_to_ask_again(call, gate):
    service = make_service(served(procedure=LONG), queue=3)
    client = call(service)
    gate.hold()
    pending = []
    for value in (0.9, 0.8, 0.7):
        image = np.asarray(grey(value), np.float32)
        pending += service.submit([Input(image)], Asked())
    response = client.post("/v1/certify", json={"input": grey(0.9)})
    assert "3 places" in error(response, 429)
    assert int(response.headers["retry-after"]) >= 1
    error(client.post("/v1/certify", json={"inputs": [grey(0.9)] * 4}), 429)
    for each in pending:
        each.request.cancel()
    assert service.inside == 0
    gate.free.set()
    error(client.post("/v1/certify", json={"inputs": [grey(0.9)] * 4}), 413)
    assert client.post("/v1/certify?deadline=0.2", json={"input": grey(0.9)}).status_code == 200


def test_the_time_to_ask_again_follows_from_the_measured_rate():
    service = make_service()
    numbers = {"pending": 50, "running": 10, "samples": 40_000.0, "answered": 100, "rate": 1_000.0}
    service.default.engine.statistics = lambda: numbers
    assert service.retry_after() == 24  # 60 requests of 400 samples
    numbers["rate"] = 0.0
    assert service.retry_after() == 1
    service.close()


def test_a_radius_that_holds_whenever_it_is_asked_for_is_streamed(call):
    client = call(make_service(served(procedure=Anytime(0.7, n_max=200_000, deadline=9.0), batch_size=20)))
    events, kind = [], None
    headers = {"accept": "text/event-stream"}
    with client.stream("POST", "/v1/certify", json={"input": grey(0.7)}, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                events.append((kind, json.loads(line.removeprefix("data: "))))
    assert [name for name, _ in events].count("answer") == 1
    assert events[-1][0] == "answer"
    answer = events[-1][1]
    Certified.model_validate(answer, strict=True)
    shown = [data for name, data in events if name == "votes"]
    assert shown
    samples = [each["samples"] for each in shown]
    assert samples == sorted(set(samples))
    assert all(sum(each["votes"]) <= each["samples"] <= answer["samples"] for each in shown)
    assert all(each["radius"] <= 4 * 0.21 for each in shown)  # the true one


def test_a_stream_ends_with_an_error(call, gate):
    client = call()
    gate.error = ValueError("broken")
    headers = {"accept": "text/event-stream"}
    with client.stream("POST", "/v1/certify", json={"input": grey(0.9)}, headers=headers) as response:
        text = "".join(response.iter_text())
    assert text.startswith("event: error\ndata: ")
    error(client.post("/v1/certify", json={"input": [1]}, headers=headers), 422)


def test_a_model_that_raises_fails_its_batch_only(call, gate):
    client = call()
    gate.error = ValueError("the weights fell out")
    assert "could not answer" in error(client.post("/v1/certify", json={"input": grey(0.9)}), 500)
    error(client.post("/v1/certify", json={"inputs": [grey(0.9)] * 2}), 500)
    gate.error = None
    assert client.post("/v1/certify", json={"input": grey(0.9)}).status_code == 200
    assert client.get("/healthz").status_code == 200
    assert 'smoothcert_failed_total{model="bright"} 3.0' in client.get("/metrics").text


class Delicate(nn.Module):
    """Invalid logits on rows that are brighter than any valid input but for the noise; else as ``Bright``."""

    def forward(self, x):
        logits = Bright()(x)
        return torch.where(x.flatten(1).mean(dim=1, keepdim=True) > 0.9, torch.nan, logits)


def test_a_neighbour_with_invalid_logits_does_not_change_an_answer(call):
    service = make_service(served(Delicate(), Cohen(200, n0=20)), allow_seed=True)
    client = call(service)
    alone = client.post("/v1/certify?seed=3", json={"input": grey(0.6)}).json()
    pairs = {"inputs": [grey(1.0), grey(0.6)], "seed": 3}
    bad, beside = client.post("/v1/certify", json=pairs).json()["answers"]
    assert beside["stages"] == alone["stages"]
    assert sum(bad["votes"]) < 200
    assert bad["label"] == -1


def test_metrics_count(call):
    client = call()
    client.post("/v1/certify", json={"input": grey(0.9)})
    client.post("/v1/certify", json={"input": grey(0.5), "deadline": 0.05})
    client.post("/v1/certify", json={"input": [1]})
    text = client.get("/metrics").text
    assert 'smoothcert_requests_total{path="/v1/certify",status="200"} 2.0' in text
    assert 'smoothcert_requests_total{path="/v1/certify",status="422"} 1.0' in text
    assert 'smoothcert_answers_total{model="bright",outcome="certified"} 1.0' in text
    assert 'smoothcert_radius_count{model="bright"} 2.0' in text
    for name in ("samples_total", "batch_occupancy", "abstentions_total", "seconds_bucket", "pending"):
        assert f"smoothcert_{name}{{" in text


def test_logs_hold_no_input_and_no_secret(call, caplog):
    caplog.set_level(logging.DEBUG)
    client = call(keys=Keys(["a-secret-key-0123456"]))
    headers = {"authorization": "Bearer a-secret-key-0123456"}
    client.post("/v1/certify?alpha=0.000123", json={"input": grey(0.7391)}, headers=headers)
    client.post("/v1/certify?seed=987654321", json={"input": grey(7.391)}, headers=headers)
    client.post("/v1/certify/secret-path", json={"input": grey(0.7391)}, headers={"x-api-key": "wrong-secret"})
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("smoothcert")]
    assert sum("POST" in line for line in ours) == 3
    for secret in ("a-secret-key", "0.7391", "7.391", "0.000123", "987654321", "secret-path", "wrong-secret"):
        assert not any(secret in line for line in ours), secret


def test_an_error_that_nobody_expected_is_a_sentence_and_not_logged_in_full(call, caplog, monkeypatch):
    client = call()

    def fail(*_, **__):
        raise RuntimeError("the input was 0.7391")

    monkeypatch.setattr("smoothcert.serve.app.decode", fail)
    assert error(client.post("/v1/certify", json={"input": grey(0.9)}), 500) == "the server failed with a RuntimeError."
    assert "0.7391" not in caplog.text


def test_a_server_that_ends_answers_what_it_accepted(call, gate):
    service = make_service(served(procedure=Cohen(100, n0=20)))
    client = call(service)
    gate.hold()
    answers = []
    thread = threading.Thread(target=lambda: answers.append(client.post("/v1/certify", json={"input": grey(0.9)})))
    thread.start()
    assert gate.entered.wait(30)
    service.draining = True
    assert "shutting down" in error(client.post("/v1/certify", json={"input": grey(0.9)}), 503)
    error(client.get("/readyz"), 503)
    assert client.get("/healthz").status_code == 200
    gate.free.set()
    thread.join()
    assert answers[0].status_code == 200


def test_a_memory_cannot_be_served(tmp_path):
    smoothed = Smoothed(Bright(), Gaussian(0.25), sigma=OptimizeSigma(steps=2), memory=Memory(tmp_path / "balls"))
    with pytest.raises(UsageError, match="memory"):
        Served("bright", smoothed, Anytime(0.1), SHAPE)


def test_noise_that_is_chosen_for_each_input_is_stated(call):
    smoothed = Smoothed(Bright(), Gaussian(0.25), sigma=GridSigma(grid=(0.25, 0.5)), runtime="eager")
    client = call(make_service(Served("bright", smoothed, Anytime(n_max=500, deadline=5.0), SHAPE)))
    found = client.post("/v1/certify", json={"input": grey(0.9)}).json()
    assert found["guarantee"] == "pointwise"
    assert found["noise"]["sigma"] in (0.25, 0.5)


def test_the_model_is_the_one_that_was_loaded(call):
    model = Bright()
    model.offset = nn.Parameter(torch.zeros(1))
    client = call(make_service(served(model)))
    before = client.post("/v1/certify", json={"input": grey(0.9)}).json()
    with torch.no_grad():
        model.offset += 5
    after = client.post("/v1/certify", json={"input": grey(0.9)}).json()
    assert after["model"] == before["model"]
    assert after["label"] == before["label"]


def test_the_interface_is_described(call):
    client = call()
    found = client.get("/openapi.json").json()
    assert {"/v1/certify", "/v1/predict", "/v1/model", "/healthz", "/readyz", "/metrics"} <= set(found["paths"])
    body = found["paths"]["/v1/certify"]["post"]["requestBody"]["content"]
    assert {"application/json", "image/png", "application/x-npy", "multipart/form-data"} <= set(body)
    assert client.get("/docs").status_code == 200
