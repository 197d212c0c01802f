"""The requests of the page: pictures of copies and changes, within the limits of the service."""

from __future__ import annotations

import base64
import io
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from smoothcert import Anytime, Cohen, Gaussian, Smoothed

pytest.importorskip("fastapi", reason="the extra serve is not installed")
from fastapi.testclient import TestClient

from smoothcert.serve import page_routes
from smoothcert.serve.app import create_app
from smoothcert.serve.keys import Keys
from smoothcert.serve.service import Served, Service
from smoothcert.serve.settings import ServiceSettings

X = np.full((1, 4, 4), 128 / 255)
PERTURB = "/page/perturb?norm=l2&label=0"


def brightness(*, shape=(1, 4, 4), procedure=None, name="bright", gradient=True):
    """A model of images that are brighter than ½ on average; the distance to the boundary is known."""
    size = int(np.prod(shape))

    def classify(x):
        mean = x.flatten(1).mean(1) - 0.5
        logits = 40 * torch.stack([mean, -mean], dim=1)
        return logits if gradient else logits.detach()

    return Served(name, Smoothed(classify, Gaussian(0.25), runtime="eager"), procedure or Anytime(0.25), shape), size


@pytest.fixture
def client():
    clients = []

    def make(*served, keys=(), **settings):
        service = Service(served or [brightness()[0]], ServiceSettings(**settings))
        made = TestClient(create_app(service, Keys(keys), start=service.warm_up), raise_server_exceptions=False)
        made.__enter__()
        clients.append(made)
        for _ in range(1_000):
            if service.ready:
                break
            threading.Event().wait(0.01)
        made.service = service
        return made

    yield make
    for each in clients:
        each.__exit__(None, None, None)


def pixels(uri):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def post(client, path, x=X, **options):
    return client.post(path, json={"input": np.asarray(x).tolist()}, **options)


def test_copies_are_fresh_and_have_the_noise_that_is_served(client):
    page = client(brightness(shape=(1, 64, 64))[0])
    x = np.full((1, 64, 64), 128 / 255)
    first, second = (post(page, "/page/copies?count=3", x).json() for _ in range(2))
    assert first["noise"] == {"name": "gaussian", "sigma": 0.25}
    assert (pixels(first["input"]) == 128).all()
    assert len({*first["copies"], *second["copies"]}) == 6
    drawn = np.stack([pixels(each) for each in first["copies"]]) / 255
    inside = drawn[(drawn > 0) & (drawn < 1)]
    assert np.std(inside) == pytest.approx(0.25 * 0.88, rel=0.05)  # of a normal variable cut at 2σ


@pytest.mark.parametrize("count", [0, 25, "many"])
def test_the_number_of_copies_is_limited(client, count):
    assert post(client(), f"/page/copies?count={count}").status_code == 422


def test_a_change_is_classified_and_drawn(client):
    page = client()
    bright = np.full((1, 4, 4), 0.8)
    found = post(page, f"{PERTURB}&size=0.3&seed=5", bright).json()
    assert found["label"] == 0
    assert sum(found["votes"]) == found["samples"]
    assert 0.29 < found["distance"] <= 0.3
    assert found["image"] == post(page, f"{PERTURB}&size=0.3&seed=5", bright).json()["image"]
    assert found["image"] != post(page, f"{PERTURB}&size=0.3&seed=6", bright).json()["image"]
    assert 0 in pixels(found["change"]) or 255 in pixels(found["change"])


def test_an_attack_crosses_the_boundary_that_a_random_change_does_not(client):
    page = client()
    x = np.full((1, 4, 4), 0.6)  # 0.4 from the boundary
    assert post(page, f"{PERTURB}&size=0.3&direction=attack", x).json()["label"] == 0
    attacked = post(page, f"{PERTURB}&size=0.7&direction=attack", x).json()
    assert attacked["label"] == 1
    assert attacked["distance"] < 0.7
    assert post(page, f"{PERTURB}&size=0.7&direction=random", x).json()["label"] != 1


def test_a_procedure_without_a_deadline_is_served_too(client):
    page = client(brightness(procedure=Cohen(200))[0])
    assert post(page, f"{PERTURB}&size=0.1", np.full((1, 4, 4), 0.9)).json()["samples"] == 200


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("size=-1&norm=l2&label=0", "size"),
        ("size=nan&norm=l2&label=0", "size"),
        ("size=0.1&norm=l7&label=0", "norm"),
        ("size=0.1&norm=l0&label=0", "does not certify the norm 'l0'"),
        ("size=0.1&norm=linf&label=0&direction=attack", "the attack moves inputs in l2"),
        ("size=0.1&norm=l2&label=2&direction=attack", "label 2, but the model has 2 classes"),
        ("size=0.1&norm=l2&label=0&seed=-1", "seed"),
        ("size=0.1&norm=l2&label=0&model=other", "there is no model 'other'"),
    ],
)
def test_invalid_requests_are_refused_in_a_sentence(client, query, words):
    answer = post(client(), f"/page/perturb?{query}")
    assert answer.status_code in (404, 422)
    assert words in answer.json()["error"]


def test_a_model_without_gradient_is_not_attacked(client):
    page = client(brightness(gradient=False)[0])
    answer = post(page, f"{PERTURB}&size=0.3&direction=attack")
    assert answer.status_code == 422
    assert "the model has no gradient" in answer.json()["error"]
    assert post(page, f"{PERTURB}&size=0.3").status_code == 200


@pytest.mark.parametrize("path", ["/page/copies", f"{PERTURB}&size=0.1"])
def test_the_limits_of_the_service_hold(client, path):
    keyed = client(keys=["0123456789abcdef"], max_bytes=2_000)
    assert post(keyed, path).status_code == 401
    headers = {"Authorization": "Bearer 0123456789abcdef"}
    assert post(keyed, path, headers=headers).status_code == 200
    assert keyed.post(path, content=b"0" * 3_000, headers=headers).status_code == 413
    batch = keyed.post(path, json={"inputs": [X.tolist()] * 2}, headers=headers)
    assert (batch.status_code, batch.json()["error"]) == (422, "the body is a batch; send one input.")
    picture = keyed.post(path, content=b"no image", headers={**headers, "Content-Type": "image/png"})
    assert picture.status_code == 415
    wrong = post(keyed, path, np.zeros((1, 4, 5)), headers=headers)
    assert wrong.status_code == 422
    keyed.service.ready = False
    assert post(keyed, path, headers=headers).status_code == 503


def test_inputs_that_are_not_images_have_no_pictures(client):
    page = client(brightness(shape=(4,))[0])
    answer = post(page, "/page/copies", np.zeros(4))
    assert (answer.status_code, "are not images" in answer.json()["error"]) == (422, True)


def test_a_change_needs_a_place_in_the_queue(client):
    page = client(queue=1)
    page.service.inside = 1
    answer = post(page, f"{PERTURB}&size=0.1")
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1


def test_few_attacks_wait_and_one_runs(client, monkeypatch):
    page, running, most, go = client(), [], [], threading.Event()
    attack = page_routes.adversarial_input

    def slow(*arguments):
        running.append(1)
        most.append(len(running))
        go.wait(20)
        running.pop()
        return attack(*arguments)

    monkeypatch.setattr(page_routes, "adversarial_input", slow)
    answers = []
    address = f"{PERTURB}&size=0.3&direction=attack"
    threads = [threading.Thread(target=lambda: answers.append(post(page, address))) for _ in range(8)]
    for each in threads:
        each.start()
    for _ in range(1_000):
        if len(answers) == 3:  # five have places
            break
        threading.Event().wait(0.01)
    assert [each.status_code for each in answers] == [429] * 3
    go.set()
    for each in threads:
        each.join()
    assert sorted(each.status_code for each in answers) == [200] * 5 + [429] * 3
    assert max(most) == 1


def test_files_of_the_page_have_a_strict_policy_and_no_others_are_served(client):
    page = client(keys=["0123456789abcdef"])
    for path in ("/", "/app.js", "/look.css", "/style.css", "/icon.svg"):
        answer = page.get(path)
        assert answer.status_code == 200
        assert "script-src 'self'" in answer.headers["content-security-policy"]
    for path in ("/report.css", "/../page_routes.py", "/%2e%2e/page_routes.py", "/page_routes.py"):
        assert page.get(path).status_code == 404
