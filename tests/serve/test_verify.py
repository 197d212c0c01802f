"""An answer is confirmed; one that somebody changed is not."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
import torch

from serve.services import SHAPE, Bright, Columns, grey, make_service, served
from smoothcert import Aces, Anytime, Cohen, Discrete, Gaussian, Smoothed, Staged, Uniform, UsageError
from smoothcert.models import CheckpointInfo, build, save_checkpoint
from smoothcert.serve.inputs import Input
from smoothcert.serve.service import Served
from smoothcert.serve.verify import Redrawing, verify

X = np.asarray(grey(0.55), np.float32)  # whose votes differ, so that other noise gives other votes


def answer_of(call, one=None, path="/v1/certify", **body):
    client = call(make_service(one or served()))
    response = client.post(path, json={"input": X.tolist(), **body})
    assert response.status_code == 200, response.text
    return response.json()


def redrawing(one, x=X, changes=()):
    return Redrawing(one.smoothed, Input(np.asarray(x, np.float32), tuple(changes)), one.procedure)


PROCEDURES = {
    "anytime": Anytime(0.1, n_max=5_000, deadline=5.0),
    "several radii": Anytime((0.05, 0.4, 0.6), n_max=5_000),
    "a deadline": Anytime(n_max=100_000, deadline=0.05),
    "runner-up": Anytime(0.1, n_max=5_000, bound="runner-up"),
    "cohen": Cohen(500),
    "runner-up cohen": Cohen(500, bound="runner-up"),
    "staged": Staged(0.1, stages=(100, 400, 1_000)),
}


@pytest.mark.parametrize("name", PROCEDURES)
def test_true_answers_are_confirmed(call, name):
    one = served(procedure=PROCEDURES[name])
    found = answer_of(call, one)
    alone, drawn = verify(found), verify(found, redrawing(one))
    assert not alone.wrong
    assert not drawn.wrong
    assert "every vote, drawn again from the seed" in drawn.confirmed
    assert "the model" in drawn.confirmed
    assert any("this model" in each for each in alone.unchecked)
    json.loads(json.dumps(found))


def test_a_deadline_that_passes_between_two_looks_is_confirmed(call):
    """The last request was sent no votes."""
    one = served(procedure=Anytime(n_max=100_000, deadline=0.05))
    found = answer_of(call, one)
    stages = found["stages"]
    full = [each for each, after in pairwise(stages) if after["start"] == each["start"] + each["n"]]
    none = {**stages[len(full)], "n": 0, "votes": [{}]}
    report = verify({**found, "stages": [*full, none]})
    assert not [each for each in report.wrong if each.startswith("the votes are not")]
    last = none["start"] + 20
    assert verify({**found, "stages": [*full, {**none, "start": last}]}).wrong
    assert verify({**found, "stages": [{**none, "start": 0}]}).wrong


@pytest.mark.parametrize("n", [-5, -1, 10**13])
def test_impossible_numbers_of_votes_are_refused_without_drawing_them(call, n):
    one = served()
    found = answer_of(call, one)
    *others, last = found["stages"]
    more = {**last, "start": last["start"] + last["n"], "n": n, "votes": [{}]}
    for stages in ([*others, {**last, "n": n}], [{**found["stages"][0], "n": n}], [*others, last, more]):
        for model in (None, redrawing(one)):
            with suppress(UsageError):  # refused as well
                assert verify({**found, "stages": stages}, model).wrong


@pytest.mark.parametrize("name", ["anytime", "cohen", "staged"])
def test_true_predictions_are_confirmed(call, name):
    one = served(procedure=PROCEDURES[name])
    found = answer_of(call, one, "/v1/predict")
    assert not verify(found).wrong
    assert not verify(found, redrawing(one)).wrong
    assert verify({**found, "label": 0}).wrong
    assert verify({**found, "p_value": 1e-9}).wrong


@pytest.mark.parametrize("noise", [Uniform(0.5), Discrete(0.8, 1), Gaussian(0.25)])
def test_other_noises(call, noise):
    one = served(Columns(), Cohen(300), noise=noise, input_range=(0, 1))
    client = call(make_service(one))
    x = np.zeros(SHAPE, np.float32)
    x[..., 1] = 1.0
    found = client.post("/v1/certify", json={"input": x.tolist()}).json()
    assert not verify(found).wrong
    assert not verify(found, redrawing(one, x)).wrong


def test_compositions_need_their_models(call):
    torch.manual_seed(0)
    core = Bright()
    one = served(Bright(), Aces(core=core, n=300, theta=0.9))
    found = answer_of(call, one)
    with pytest.raises(UsageError, match="several models"):
        verify(found)
    assert not verify(found, redrawing(one)).wrong
    assert verify({**found, "label": 1 - found["label"]}, redrawing(one)).wrong


def test_routers_are_confirmed_with_their_models(call):
    options = {"runtime": "eager", "batch_size": 100}
    experts = [Smoothed(Bright(), Gaussian(sigma, grid=255), **options) for sigma in (0.25, 0.5)]
    router = Smoothed(Bright(), Gaussian(0.25, grid=255), experts=experts, **options)
    one = Served("router", router, Anytime(0.1, n_max=5_000), SHAPE)
    found = answer_of(call, one)
    assert found["guarantee"] == "routed"
    with pytest.raises(UsageError, match="several models"):
        verify(found)
    report = verify(found, redrawing(one))
    assert not report.wrong
    assert verify({**found, "radius": found["radius"] * 1.01}, redrawing(one)).wrong


def change(found, *path, to):
    changed = copy.deepcopy(found)
    place = changed
    for name in path[:-1]:
        place = place[name]
    before = place[path[-1]]
    place[path[-1]] = to(before) if callable(to) else to
    assert place[path[-1]] != before
    return changed


TAMPERED = {
    "radius": lambda f: change(f, "radius", to=lambda r: r * 1.001),
    "a smaller radius": lambda f: change(f, "radius", to=lambda r: r * 0.5),
    "label": lambda f: change(f, "label", to=0),
    "alpha": lambda f: change(f, "alpha", to=1e-6),
    "alpha of the procedure": lambda f: change(f, "procedure", "alpha", to=1e-6),
    "alpha in both": lambda f: change(change(f, "alpha", to=1e-6), "procedure", "alpha", to=1e-6),
    "sigma": lambda f: change(f, "noise", "sigma", to=0.5),
    "norm": lambda f: change(f, "norm", to="linf"),
    "guarantee": lambda f: change(f, "guarantee", to="routed"),
    "arithmetic": lambda f: change(f, "arithmetic", to="float"),
    "outcome": lambda f: change(f, "outcome", to="refuted"),
    "decision": lambda f: change(f, "decisions", 0, "outcome", to="refuted"),
    "a larger target": lambda f: change(f, "decisions", 0, "radius", to=0.4),
    "votes": lambda f: change(f, "votes", 1, to=lambda n: n + 1),
    "votes of a stage": lambda f: change(f, "stages", 0, "votes", 0, "1", to=lambda n: n - 1),
    "more votes than samples": lambda f: change(f, "stages", 0, "votes", 0, "1", to=lambda n: n + 1),
    "negative votes": lambda f: (
        change(f, "stages", 0, "votes", 0, "0", to=-1)
        if "0" in f["stages"][0]["votes"][0]
        else change(f, "stages", 0, "votes", 0, "1", to=-1)
    ),
    "no votes": lambda f: change(f, "stages", to=[]),
    "a missing stage": lambda f: change(f, "stages", to=lambda s: s[:-1]),
    "a stage twice": lambda f: change(f, "stages", to=lambda s: s + s[-1:]),
    "samples": lambda f: change(f, "samples", to=lambda n: n + 10),
    "p_lower": lambda f: change(f, "p_lower", to=0.9999),
    "sentence": lambda f: change(f, "sentence", to=lambda s: s.replace("0.1", "9.1")),
}


@pytest.fixture(scope="module")
def true_answer():
    one = served(procedure=Anytime(0.1, n_max=5_000))
    service = make_service(one)
    service.warm_up()
    from smoothcert.serve.service import Asked

    (pending,) = service.submit([Input(X)], Asked())
    found = json.loads(json.dumps(pending.answer(pending.request.result(60))))
    yield found, one
    service.close()


@pytest.mark.parametrize("name", TAMPERED)
def test_a_changed_answer_is_noticed_without_the_model(true_answer, name):
    assert not verify(true_answer[0]).wrong
    assert verify(TAMPERED[name](true_answer[0])).wrong


DRAWN = {
    "seed": lambda f: change(f, "seed", to=lambda s: str(int(s) ^ 1)),
    "index": lambda f: change(f, "index", to=1),
    "model": lambda f: change(f, "model", "identity", to="0" * 64),
    "input": lambda f: change(f, "input_sha256", to="0" * 64),
    "changes": lambda f: change(f, "input", "changes", to=["resized"]),
    "offset": lambda f: change(f, "input", "offset", to=lambda o: o + 0.001),
}


@pytest.mark.parametrize("name", [*TAMPERED, *DRAWN])
def test_a_changed_answer_is_noticed_with_the_model(true_answer, name):
    found, one = true_answer
    assert verify((TAMPERED | DRAWN)[name](found), redrawing(one)).wrong


def test_votes_that_were_not_drawn_are_noticed_with_the_model(call):
    """A radius that follows from invented votes is right without the model."""
    one = served(procedure=Cohen(500))
    invented = copy.deepcopy(answer_of(call, one))
    votes = invented["stages"][-1]["votes"][0]
    votes.update({"1": votes["1"] - 1, "0": votes.get("0", 0) + 1})
    invented["votes"][1] -= 1
    invented["votes"][0] += 1
    report = verify(invented)
    wrong_alone = [each for each in report.wrong if not each.startswith(("radius", "p lower", "sentence"))]
    assert not wrong_alone
    drawn = verify(invented, redrawing(one))
    assert any(each.startswith("the votes") for each in drawn.wrong)


def test_another_input_or_model_is_noticed(true_answer):
    found, one = true_answer
    assert any("the input" in each for each in verify(found, redrawing(one, grey(0.71))).wrong)
    other = served(Columns(), one.procedure)
    report = verify(found, redrawing(other))
    assert any(each.startswith(("the model", "the votes")) for each in report.wrong)
    other.engine.close()


@pytest.mark.parametrize(
    "answer", [{}, {"label": 1}, {"error": "no."}, {"radius": 1.0}, {"answers": []}, {"label": "1", "radius": "2"}]
)
def test_other_json_is_no_answer(answer):
    with pytest.raises(UsageError, match="not an answer"):
        verify(answer)


def test_the_command(call, tmp_path, run):
    torch.manual_seed(0)
    network = build("digits-cnn")
    file = save_checkpoint(tmp_path / "net.safetensors", network, CheckpointInfo.of("digits-cnn", sigma=0.25))
    one = Served(
        "net",
        Smoothed(network, Gaussian(0.25, grid=255), runtime="eager"),
        Anytime(n_max=200, deadline=9.0),
        (1, 8, 8),
    )
    x = np.zeros((1, 8, 8), np.float32)
    client = call(make_service(one))
    found = client.post("/v1/certify", json={"input": x.tolist()}).json()
    np.save(tmp_path / "x.npy", x)
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps(found))
    code, out, err = run("verify", answer)
    assert (code, "not checked" in out) == (0, True), err
    drawn = ["verify", answer, "--model", file, "--input", tmp_path / "x.npy"]
    code, out, err = run(*drawn)
    assert code == 0, out + err
    assert "confirmed      the model" in out
    answer.write_text(json.dumps({**found, "seed": "1"}))
    code, out, _ = run(*drawn)
    assert (code, "NOT CONFIRMED" in out) == (1, True)
    assert run("verify", answer, "--model", file)[0] == 2
    answer.write_text("[]")
    assert run("verify", answer)[0] == 2
    assert run("verify", tmp_path / "missing.json")[0] == 2
