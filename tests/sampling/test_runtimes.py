"""Runtimes: the same logits as the model, which stays as it was, and a refusal of what cannot be right."""

from __future__ import annotations

import copy
import importlib.util
import json
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from smoothcert.classifiers.copying import Forward
from smoothcert.classifiers.modes import intra_op_threads
from smoothcert.classifiers.sealed import COPIES
from smoothcert.sampling import forwards, runtimes, tuning
from smoothcert.sampling.forwards import Plan, eager
from smoothcert.sampling.runtimes import Runtime, prepare
from smoothcert.sampling.seeds import BLOCK
from smoothcert.sampling.tuning import Candidate, Setup, benchmark
from smoothcert.types import SmoothcertError, UsageError

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++", "cl"))), reason="there is no C++ compiler"
)
needs_onnx = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("onnx", "onnxruntime", "onnxscript"))),
    reason="ONNX Runtime is not installed",
)


class SmallNet(nn.Module):
    """A convolution with channels enough for memory formats to differ, batch statistics and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8 * 6 * 6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.conv(x)).relu().flatten(1))


class Forgetful(nn.Module):
    """Keeps its features on itself between two steps, as research code likes to."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.features = self.fc(x)
        threading.Event().wait(0.002)
        return self.features


class FixedBatch(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(self.size, -1)[:, :3]


class Uncopyable(nn.Dropout):
    def __deepcopy__(self, memo: object) -> Uncopyable:
        raise TypeError("cannot be copied")


@pytest.fixture
def net() -> SmallNet:
    torch.manual_seed(0)
    return SmallNet().eval()


@pytest.fixture
def image() -> Tensor:
    return torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "TUNING_SECONDS", 0.05)
    monkeypatch.setattr(runtimes, "TUNING_SECONDS", 0.05)


@pytest.fixture
def long_run(monkeypatch: pytest.MonkeyPatch, brief: None) -> None:
    """Every run is long enough for other runtimes than eager to be considered."""
    monkeypatch.setattr(runtimes, "LONG_SECONDS", 0.0)


def assert_same(runtime: Runtime, model: nn.Module, x: Tensor) -> None:
    for count in {1, 7, runtime.batch_size}:
        batch = torch.rand(count, *x.shape)
        with torch.inference_mode():
            expected = model(batch)
        got = runtime.run(batch)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        kept = got.clone()
        runtime.run(torch.rand(count, *x.shape))
        torch.testing.assert_close(got, kept, rtol=0, atol=0)


@pytest.mark.parametrize("samples", [None, 100, 2_000, 50_000])
def test_eager_equals_the_model(net, image, brief, samples):
    runtime = prepare(net, image, samples=samples)
    assert runtime.name == "eager"
    assert runtime.batch_size % BLOCK == 0
    assert_same(runtime, net, image)
    assert json.loads(json.dumps(runtime.notes)) == runtime.notes


@pytest.mark.parametrize("channels_last", [False, True])
def test_memory_formats_agree(net, image, channels_last):
    plan = Plan(image, 5, Setup(20, 1), channels_last, None)
    module = runtimes._memory_formats(net, image)["channels-last" if channels_last else "contiguous"]
    assert module.conv.weight.is_contiguous(memory_format=torch.channels_last) == channels_last
    batch = torch.rand(9, 3, 8, 8)
    torch.testing.assert_close(eager(module, plan)(batch), net(batch), rtol=1e-4, atol=1e-5)


def test_the_module_is_untouched(net, image, brief):
    net.conv.train()  # a flag that differs from the others
    state = copy.deepcopy(net.state_dict())
    strides = [p.stride() for p in net.parameters()]
    attributes = {name: set(vars(module)) for name, module in net.named_modules()}
    prepare(net, image)
    assert all(torch.equal(net.state_dict()[key], value) for key, value in state.items())
    assert [p.stride() for p in net.parameters()] == strides
    assert [m.training for m in (net, net.conv, net.norm, net.fc)] == [False, True, False, False]
    assert {name: set(vars(module)) for name, module in net.named_modules()} == attributes


def test_random_state_and_threads_are_untouched(image, brief):
    model = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(192, 4))  # in training mode: draws random numbers
    with intra_op_threads(2):
        before = torch.get_rng_state()
        prepare(model, image)
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.get_num_threads() == 2
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 2


def test_a_callable_works_in_one_thread(image, brief):
    with intra_op_threads(2):
        runtime = prepare(lambda batch: batch.flatten(1)[:, :3], image)
    assert (runtime.name, runtime.workers) == ("eager", 1)
    batch = torch.rand(4, 3, 8, 8)
    assert torch.equal(runtime.run(batch), batch.flatten(1)[:, :3])


def test_a_module_that_cannot_be_copied_works_in_one_thread(brief):
    model = Uncopyable()
    with pytest.raises(
        UsageError, match=r"uses a Uncopyable in training mode that cannot be copied .* call its eval\(\) first"
    ):
        prepare(model, torch.rand(4))
    assert model.training  # what is the user's is not switched
    model.eval()
    with intra_op_threads(2):
        runtime = prepare(model, torch.rand(4))
        with pytest.raises(UsageError, match="can be copied"):
            prepare(model, torch.rand(4), runtime="compiled")
    assert runtime.workers == 1
    assert_same(runtime, model, torch.rand(4))


def test_parallel_threads_do_not_mix_up_batches():
    model = Forgetful().eval()
    run = eager(model, Plan(torch.rand(2), 2, Setup(20, 1, 4), False, None))
    batches = [torch.full((3, 2), float(i)) for i in range(40)]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(run, batches))
    assert all(torch.equal(logits, model(batch)) for logits, batch in zip(got, batches, strict=True))
    assert "features" in vars(model)  # put there by the line above, not by the threads


def test_batch_size_is_kept(net, image, brief):
    runtime = prepare(net, image, batch_size=33)
    assert runtime.batch_size == 33
    assert_same(runtime, net, image)


def test_the_fastest_candidate_wins_and_failing_ones_have_no_time(image):
    def slow(batch: Tensor) -> Tensor:
        threading.Event().wait(0.005)
        return batch.flatten(1)

    def broken(batch: Tensor) -> Tensor:
        raise RuntimeError("out of memory")

    runs = {"slow": slow, "broken": broken, "fast": lambda batch: batch.flatten(1)}
    times = benchmark({name: Candidate(run, image, 20, 1).seconds for name, run in runs.items()}, 0.5)
    assert set(times) == {"slow", "fast"}
    assert times["fast"] < times["slow"]


def permuted(model: nn.Module, plan: Plan) -> Forward:
    return lambda batch: model(batch).roll(1, dims=1)


def shifted(model: nn.Module, plan: Plan) -> Forward:
    return lambda batch: model(batch) * 1.01


def invalid(model: nn.Module, plan: Plan) -> Forward:
    return lambda batch: model(batch).log()


def failing(model: nn.Module, plan: Plan) -> Forward:
    raise OSError("no compiler\nsecond line")


@pytest.mark.parametrize(
    ("builder", "reason"),
    [
        (permuted, "disagrees with eager execution"),
        (shifted, r"disagrees with eager execution \(\d+ of \d+ noisy copies differ, logits by up to 0\."),
        (invalid, r"\((\d+) of \1 noisy copies differ"),
        (failing, r"\(no compiler\)"),
    ],
)
def test_a_runtime_that_lies_or_fails_is_not_used(net, image, long_run, monkeypatch, builder, reason):
    monkeypatch.setattr(runtimes, "RUNTIMES", {"eager": eager, "compiled": builder})
    runtime = prepare(net, image, samples=10_000)
    assert runtime.name == "eager"
    assert "use runtime='eager'" in runtime.notes["rejected"]["compiled"]
    with pytest.raises(SmoothcertError, match=reason):
        prepare(net, image, runtime="compiled", samples=10_000)


def test_ties_may_be_broken_either_way(image, long_run, monkeypatch):
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2)).eval()
    with torch.no_grad():
        model[1].weight[1] = model[1].weight[0]
        model[1].bias[1] = model[1].bias[0]
    monkeypatch.setattr(runtimes, "RUNTIMES", {"eager": eager, "compiled": permuted})
    assert prepare(model, image, runtime="compiled").name == "compiled"


def test_auto_takes_a_faster_runtime_that_agrees_only_for_long_runs(image, brief, monkeypatch):
    class Slow(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            threading.Event().wait(0.002)
            return super().forward(x)

    model = Slow(4, 2).eval()
    quick = {
        "eager": eager,
        "compiled": lambda model, plan: lambda b: nn.functional.linear(b, model.weight, model.bias),
    }
    monkeypatch.setattr(runtimes, "RUNTIMES", quick)
    assert prepare(model, torch.rand(4), samples=10_000).name == "eager"
    assert prepare(model, torch.rand(4)).name == "eager"
    runtime = prepare(model, torch.rand(4), samples=10**9)
    assert runtime.name == "compiled"
    assert runtime.notes["rates"]["compiled"] > runtime.notes["rates"]["eager"]


@pytest.mark.parametrize("size", [2, 3, 20])
def test_a_fixed_batch_size_is_refused(size):
    with pytest.raises(UsageError, match=r"must map a batch of 1 inputs|a model that takes batches of any size"):
        prepare(FixedBatch(size), torch.rand(6))


def test_batches_that_the_model_fails_on_are_not_chosen(brief):
    def small_only(batch: Tensor) -> Tensor:
        if len(batch) > COPIES:
            raise RuntimeError("too large for me")
        return batch

    assert prepare(small_only, torch.rand(3), samples=10**6).batch_size <= COPIES
    with pytest.raises(UsageError, match=r"in batches of 100 .* \(too large for me\)"):
        prepare(small_only, torch.rand(3), batch_size=100)


def test_names_that_are_not_known_are_refused(net, image):
    with pytest.raises(UsageError, match="unknown runtime 'compile'; did you mean 'compiled'"):
        prepare(net, image, runtime="compile")
    with pytest.raises(UsageError, match="unknown precision 'fp8'"):
        prepare(net, image, precision="fp8")
    with pytest.raises(UsageError, match="batch_size must be at least 1"):
        prepare(net, image, batch_size=0)


def test_reduced_precision_is_for_cuda(net, image):
    with pytest.raises(UsageError, match="'bf16' is for CUDA devices, but the model is on cpu"):
        prepare(net, image, precision="bf16")


def test_other_runtimes_need_a_module(image):
    with pytest.raises(UsageError, match=r"the compiled runtime needs a torch.nn.Module"):
        prepare(lambda batch: batch.flatten(1)[:, :3], image, runtime="compiled")


def test_onnx_that_is_not_installed_names_the_extra(net, image, brief, long_run, monkeypatch):
    def missing(name: str) -> object:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(forwards.importlib, "import_module", missing)
    with pytest.raises(UsageError, match=r'pip install "smoothcert\[onnx\]"'):
        prepare(net, image, runtime="onnx")


@needs_compiler
def test_compiled_equals_the_model_and_is_compiled_once(net, image, brief, capfd):
    runtime = prepare(net, image, runtime="compiled", batch_size=40)
    assert runtime.name == "compiled"
    counters = torch._dynamo.utils.counters["stats"]
    before = counters["unique_graphs"]
    assert_same(runtime, net, image)  # a full batch, and smaller ones that are padded
    with intra_op_threads(2), torch.inference_mode():
        runtime.run(torch.rand(40, 3, 8, 8))
    with ThreadPoolExecutor(2) as pool:
        batches = [torch.rand(n, 3, 8, 8) for n in (40, 39, 40, 1)]
        for batch, logits in zip(batches, pool.map(runtime.run, batches), strict=True):
            torch.testing.assert_close(logits, net(batch), rtol=1e-4, atol=1e-5)
    assert counters["unique_graphs"] == before
    assert capfd.readouterr() == ("", "")


@needs_compiler
def test_compiled_code_serves_several_threads(net, image, brief):
    runtime = prepare(net, image, runtime="compiled", batch_size=BLOCK)
    batch = image.expand(BLOCK, *image.shape).contiguous()
    expected = runtime.run(batch)

    def work(_: int) -> bool:
        return all(torch.equal(runtime.run(batch), expected) for _ in range(2000))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns within a call
    try:
        with ThreadPoolExecutor(2) as threads:
            assert all(threads.map(work, range(2)))
    finally:
        sys.setswitchinterval(interval)


@needs_onnx
@pytest.mark.parametrize("threads", [1, 2])
def test_onnx_equals_the_model(net, image, brief, capfd, threads):
    with intra_op_threads(threads):
        runtime = prepare(net, image, runtime="onnx")
    assert runtime.name == "onnx"
    assert_same(runtime, net, image)
    with ThreadPoolExecutor(2) as pool:
        batches = [torch.rand(n, 3, 8, 8) for n in (20, 19, 20, 1)]
        for batch, logits in zip(batches, pool.map(runtime.run, batches), strict=True):
            torch.testing.assert_close(logits, net(batch), rtol=1e-4, atol=1e-5)
    assert capfd.readouterr() == ("", "")


def note(**changes):
    notes = {"memory_format": "contiguous", "rates": {"eager": 1000.0}}
    return {"name": "eager", "batch_size": 100, "threads": 1, "workers": 1, "notes": notes, **changes}


def test_a_note_of_an_earlier_session_is_followed():
    assert tuning.recorded(note(), ["eager"])[1].setup == Setup(100, 1, 1)
    assert tuning.recorded(note(notes={}), ["eager"]) is None


@pytest.mark.parametrize(
    "damaged",
    [
        7,
        [],
        {},
        note(name="other"),
        note(name=["eager"]),
        note(batch_size="100"),
        note(batch_size=0),
        note(batch_size=2**40),
        note(threads=None),
        note(workers=10**6),
        note(notes=7),
        note(notes={"memory_format": 7, "rates": {"eager": 1.0}}),
        note(notes={"memory_format": "contiguous"}),
        note(notes={"memory_format": "contiguous", "rates": {"eager": float("nan")}}),
        note(notes={"memory_format": "contiguous", "rates": {"eager": "fast"}}),
    ],
)
def test_a_damaged_note_of_an_earlier_session_is_refused(damaged):
    with pytest.raises(SmoothcertError, match="that an earlier session recorded is damaged"):
        prepare(nn.Linear(4, 2).eval(), torch.rand(4), samples=10, like=damaged)
