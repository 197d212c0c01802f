"""Inputs as users hand them over: views, buffers that are used again, arrays, several under one index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hostile.entry import EDGE, FAR, LOW, SIGMA, HalfSpace, point
from hostile.judge import SEED, Question, attempt, differences, not_one_sentence, overstates, right_answer
from hostile.kinds import ALPHA, KINDS, PROCEDURES, with_kinds
from smoothcert import Cohen, Gaussian, SmoothcertError, Smoothed, certify_dataset

COHEN = Cohen(n0=20, n=201, alpha=ALPHA)


def _smoothed(**options: Any) -> Smoothed:
    return Smoothed(HalfSpace(), Gaussian(SIGMA), input_range=None, **options)


def _wide_slice() -> Tensor:
    wide = torch.zeros(2, 2, 4)
    wide[:, :, ::2] = FAR
    return wide[:, :, ::2]


def _channels_last() -> Tensor:
    return FAR[None].contiguous(memory_format=torch.channels_last)[0]


def _flat() -> Tensor:
    return FAR[0, 0, 0].clone().expand(2, 2, 2)


def _inference() -> Tensor:
    with torch.inference_mode():
        return FAR.clone()


def _computed() -> Tensor:
    return FAR.clone().requires_grad_(True) * 1.0


INPUTS: dict[str, Callable[[], Any]] = {
    "slice": _wide_slice,
    "channels last": _channels_last,
    "expanded": _flat,
    "requires grad": lambda: FAR.clone().requires_grad_(True),
    "computed with grad": _computed,
    "inference tensor": _inference,
    "parameter": lambda: nn.Parameter(FAR.clone()),
    "part of a batch": lambda: torch.stack([LOW, FAR, LOW])[1],
    "float64": lambda: FAR.double(),
    "float16": lambda: FAR.half(),
    "bfloat16": lambda: FAR.bfloat16(),
    "numpy float32": FAR.numpy,
    "numpy float64": lambda: FAR.double().numpy(),
    "numpy read-only": lambda: _read_only(FAR.numpy().copy()),
    "numpy reversed": lambda: FAR.flip(2).numpy()[:, :, ::-1],
    "numpy big-endian": lambda: FAR.numpy().astype(">f4"),
    "nested lists": FAR.tolist,
}


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def _plain(x: Any) -> Tensor:
    """The same values as an ordinary tensor."""
    if isinstance(x, np.ndarray):
        x = torch.from_numpy(x.astype(x.dtype.newbyteorder("=")).copy())
    return torch.as_tensor(x).detach().clone(memory_format=torch.contiguous_format)


QUICK_KINDS = ("plain", "consensus-1", "per-input", "router-core", "aces-core")


@pytest.mark.parametrize(("name", "kind"), with_kinds(INPUTS, lambda name, kind: kind in QUICK_KINDS))
def test_any_input_is_refused_or_certified_as_its_values(name, kind):
    x, made, model = INPUTS[name](), KINDS[kind], HalfSpace()
    kept = _plain(x)
    plain = torch.from_numpy(np.array(kept.numpy())) if kept.dtype != torch.bfloat16 else kept.clone()
    procedure = made.adapt(PROCEDURES[made.procedures[0]], model)
    answer = attempt(lambda: made.build(model).certify(x, procedure, seed=SEED, index=2))
    if isinstance(answer, SmoothcertError):
        assert name.startswith("numpy") or (kind == "exact" and name.endswith("float16")), answer
        assert not_one_sentence(answer) == ""
    else:
        assert overstates(answer, plain) == ""
        assert differences(answer, made.build(model).certify(plain, procedure, seed=SEED, index=2)) == ""
    assert torch.equal(_plain(x), kept)


@pytest.mark.parametrize("batch_size", [None, 20, 64])
@pytest.mark.parametrize("n", [30, 201])
def test_two_inputs_under_one_index_get_their_own_copies(batch_size, n):
    procedure = Cohen(n0=10, n=n, alpha=ALPHA)
    inputs = [(0, FAR), (0, LOW), (0, point(0.6)), (1, LOW), (0, point(0.4))]
    answers = _smoothed(batch_size=batch_size).run(iter(inputs), procedure, procedure.certify, seed=SEED)
    found = {float(job.x[0, 0, 0]): answer for job, answer in answers if job.index == 0}
    for index, x in inputs:
        if index == 0:
            alone = _smoothed(batch_size=batch_size).certify(x, procedure, seed=SEED, index=0)
            assert differences(found[float(x[0, 0, 0])], alone) == ""


class Honest:
    """Inputs at growing distance from the edge."""

    values = tuple(0.05 + 0.9 * i / 11 for i in range(12))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return point(self.values[index]), int(self.values[index] > EDGE)


class OneBuffer(Honest):
    """Somebody reads every image into the same memory, as fast loaders do."""

    def __init__(self) -> None:
        self.buffer = torch.empty(2, 2, 2)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x, label = super().__getitem__(index)
        return self.buffer.copy_(x), label


class OneArray(Honest):
    """The same with a NumPy array."""

    def __init__(self) -> None:
        self.buffer = np.empty((2, 2, 2), dtype=np.float32)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        x, label = super().__getitem__(index)
        self.buffer[...] = x.numpy()
        return self.buffer, label


def _rows(run) -> list[tuple]:
    rows = sorted(run.rows(), key=lambda row: row["index"])
    return [(row["index"], row["label"], row["predict"], row["radius"], list(row["counts"])) for row in rows]


@pytest.mark.parametrize("kind", ["plain", "small-batches", "ensemble-first", "consensus-2", "per-input"])
@pytest.mark.parametrize("dataset", [OneBuffer, OneArray])
def test_a_dataset_that_uses_one_buffer_for_all_inputs(dataset, kind, tmp_path):
    runs = [
        certify_dataset(KINDS[kind].build(HalfSpace()), data, COHEN, run=tmp_path / name, seed=SEED, progress=False)
        for name, data in (("honest", Honest()), ("buffer", dataset()))
    ]
    assert _rows(runs[0]) == _rows(runs[1])


@pytest.mark.parametrize("kind", ["plain", "small-batches", "consensus-1", "per-input", "router-experts"])
def test_an_input_that_changes_after_it_was_handed_over(kind):
    """Somebody reuses the tensor as soon as the next input is asked for, and when the first answer has come."""
    xs = [point(0.02 * i) for i in range(20)]
    handed = [x.clone() for x in xs]

    def inputs() -> Iterator[tuple[int, Tensor]]:
        for index, x in enumerate(handed):
            yield index, x
            x.fill_(7.0)

    model, found = HalfSpace(), {}
    for job, answer in KINDS[kind].build(model).run(inputs(), COHEN, COHEN.certify, seed=SEED):
        found[job.index] = answer
        for x in handed[: job.index + 1]:
            x.fill_(-7.0)
    for index, x in enumerate(xs):
        alone = KINDS[kind].build(model).certify(x, COHEN, seed=SEED, index=index)
        assert differences(found[index], alone) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_changes_the_input_of_the_user(kind):
    """Somebody's model writes into whatever it is given, and the user still holds the input."""

    class Writes(HalfSpace):
        def forward(self, x: Tensor) -> Tensor:
            logits = super().forward(x)
            x.fill_(0.0)
            return logits

    x, model, made = KINDS[kind].inputs[0].clone(), Writes(), KINDS[kind]
    question = Question(made.procedures[0], x)
    answers = [question.ask(made, made.build(model), model) for _ in range(2)]
    assert torch.equal(x, made.inputs[0])
    right = right_answer(kind, HalfSpace, Question(made.procedures[0], made.inputs[0]))
    for answer in answers:
        assert not isinstance(answer, SmoothcertError)
        assert differences(answer, right) == ""
