"""Every change that could change an answer changes the identity of a model, and nothing else does."""

from __future__ import annotations

import copy
import functools
import subprocess
import sys
import textwrap
import types

import numpy as np
import pytest
import torch
from torch import fx, nn

from smoothcert import Cohen, Gaussian, Smoothed, from_numpy
from smoothcert.classifiers.identity import leads_outside, model_identity, modules_in, modules_reached

SCALE = 1.0


class Net(nn.Module):
    """Something of everything that a model may depend on."""

    limit = 3

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("hidden", torch.zeros(3), persistent=False)
        self.threshold = 0.5
        self.constant = torch.ones(3)
        self.table = np.arange(4)
        self.options = {"scales": [1, 2, (3, 4)]}
        self.activation = torch.relu

    def forward(self, x):
        return self.layer(self.activation(x - self.mean) * SCALE) * self.threshold


def _other_forward(self, x):
    return -self.layer(x)


CHANGES = {
    "weight": lambda net: net.layer.weight.data.add_(1e-7),
    "buffer": lambda net: net.mean.data.add_(1),
    "buffer that is not saved": lambda net: net.hidden.add_(1),
    "plain number": lambda net: setattr(net, "threshold", 0.8),
    "plain tensor": lambda net: net.constant.mul_(2),
    "array": lambda net: net.table.__setitem__(2, 7),
    "value in a container": lambda net: net.options["scales"].append(5),
    "function": lambda net: setattr(net, "activation", torch.tanh),
    "method of the object": lambda net: setattr(net, "forward", types.MethodType(_other_forward, net)),
    "layer": lambda net: setattr(net, "layer", nn.Linear(3, 2, bias=False)),
    "setting of a layer": lambda net: setattr(net.layer, "in_features", 4),
    "hook": lambda net: net.layer.register_forward_hook(lambda module, given, output: -output),
    "attribute": lambda net: setattr(net, "more", None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_noticed(change):
    net = Net()
    before = model_identity(net)
    assert model_identity(net) == before
    CHANGES[change](net)
    assert model_identity(net) != before


def test_a_copy_in_another_mode_is_the_same_model():
    net = Net()
    other = copy.deepcopy(net).eval()
    for weight in other.parameters():
        weight.requires_grad_(False)
    assert model_identity(other) == model_identity(net)


def test_the_code_of_a_class_and_its_attributes_count(monkeypatch):
    net = Net()
    before = model_identity(net)
    monkeypatch.setattr(Net, "limit", 4)
    limited = model_identity(net)
    monkeypatch.setattr(Net, "forward", _other_forward)
    assert len({identity["code"] for identity in (before, limited, model_identity(net))}) == 3
    assert limited["sha256"] == before["sha256"]


def test_global_values_count_that_the_code_names(monkeypatch):
    net = Net()
    before = model_identity(net)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert model_identity(net) != before
    monkeypatch.setitem(globals(), "SCALE", 1.0)
    monkeypatch.setitem(globals(), "UNUSED", 1)
    assert model_identity(net) == before


def test_functions_are_told_apart_by_what_they_do_and_close_over():
    def scaled(factor):
        return lambda x: x * factor

    bias = torch.zeros(2)
    functions = [
        lambda x: x,
        lambda x: -x,
        scaled(1.0),
        scaled(2.0),
        functools.partial(scaled(1.0)),
        nn.Linear(2, 2).forward,
        lambda x, shift=1: x + shift,
        lambda x, shift=2: x + shift,
        lambda x: x + bias,
    ]
    assert len({model_identity(function)["code"] for function in functions}) == len(functions)
    before = model_identity(functions[-1])
    bias.add_(1)
    assert model_identity(functions[-1]) != before
    assert model_identity(scaled(3.0)) == model_identity(scaled(3.0))


def test_an_object_within_itself_has_an_identity():
    net = Net()
    net.layer.owner = [net]
    assert model_identity(net) == model_identity(net)


def test_the_identity_is_the_same_in_another_process(tmp_path):
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            """
            import torch
            from smoothcert.classifiers.identity import model_identity

            class Mine(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.names = {"b", "a", "c"}
                    self.scale = 0.3

                def forward(self, x):
                    return x * self.scale if "a" in {"a", "x", "y"} else x

            print(model_identity(Mine())["code"])
            """
        )
    )
    found = {
        subprocess.run(
            [sys.executable, "mine.py"], cwd=tmp_path, env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_what_a_copy_would_share_is_found():
    net, kept = nn.Linear(2, 2), {}
    assert not leads_outside(Net())
    assert leads_outside(lambda x: net(x))
    assert modules_reached(lambda x: net(x)) == [net]
    hooked = Net()
    hooked.layer.register_forward_hook(lambda module, given, output: kept.update(output=output))
    assert leads_outside(hooked)


def test_modules_are_found_wherever_an_object_keeps_them():
    net = Net()
    net.options["branch"] = [nn.BatchNorm1d(3), (nn.Dropout(),)]
    assert {type(module) for module in modules_in(net)} == {Net, nn.Linear, nn.BatchNorm1d, nn.Dropout}


def test_the_order_of_definitions_in_a_class_does_not_count():
    """A class that is sent to another process arrives with its attributes sorted."""
    attributes = {"scale": 2, "forward": lambda self, x: x, "edge": 0.5}
    first = type("Model", (nn.Module,), dict(attributes))
    second = type("Model", (nn.Module,), dict(sorted(attributes.items())))
    other = type("Model", (nn.Module,), {**attributes, "edge": 0.6})
    assert model_identity(first()) == model_identity(second())
    assert model_identity(first()) != model_identity(other())


def test_copying_an_object_does_not_change_its_identity():
    class Scorer:
        def score(self, x):
            return x

    scorer = Scorer()
    before = model_identity(scorer.score)
    copy.deepcopy(scorer)  # stores __slotnames__ in the class
    assert model_identity(scorer.score) == before


def scaled(x):
    return 2 * x


def test_a_traced_graph_leads_to_the_functions_that_it_calls(monkeypatch):
    def identity():
        graph = fx.Graph()
        graph.output(graph.call_function(scaled, (graph.placeholder("x"),)))
        return model_identity(fx.GraphModule(nn.Module(), graph))

    before = identity()
    assert identity() == before
    monkeypatch.setattr(scaled, "__code__", (lambda x: 3 * x).__code__)
    assert identity() != before


def tripled(x):
    return 3 * x


class Compiled:
    """As a function compiled by JAX: it keeps what it compiled."""

    def __init__(self, function):
        self.__wrapped__, self.calls = function, 0

    def __call__(self, x):
        self.calls += 1
        return self.__wrapped__(x)


Compiled.__module__ = "jaxlib._jax"


def test_a_function_compiled_by_jax_is_the_function_that_it_wraps():
    function = Compiled(scaled)
    before = model_identity(function)["code"]
    function(1)
    assert model_identity(function)["code"] == before
    assert model_identity(Compiled(tripled))["code"] != before


def test_a_decorator_of_a_package_leads_to_the_function_that_it_wraps():
    one, other, again = (torch.no_grad()(each) for each in (scaled, tripled, scaled))
    assert model_identity(one)["code"] == model_identity(again)["code"] != model_identity(other)["code"]


def test_code_counts_whatever_module_a_function_claims():
    """functools.wraps copies the module of the wrapped function; code that was executed may have none."""

    def like_relu(factor):
        @functools.wraps(torch.relu_)
        def function(x):
            return torch.relu(x) * factor

        function.__module__ = "torch.nn.functional"
        return function

    def executed(text):
        names = {"torch": torch}
        exec(text, names)
        return names["f"]

    assert model_identity(like_relu(2))["code"] != model_identity(like_relu(3))["code"]
    assert (
        model_identity(executed("def f(x): return 2 * x"))["code"]
        != model_identity(executed("def f(x): return 3 * x"))["code"]
    )


def test_functions_of_jax_can_be_certified():
    jax = pytest.importorskip("jax")
    weights = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    for function in (jax.jit(lambda x: x @ weights), jax.jit(jax.vmap(lambda x: x @ jax.numpy.asarray(weights)))):
        smoothed = Smoothed(from_numpy(function, 3), Gaussian(0.1))
        assert smoothed.certify(torch.full((4,), 0.5), Cohen(100), seed=0, index=0).n == 100
