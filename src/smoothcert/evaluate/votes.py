"""Count the votes of a classifier over a dataset, in a run folder or in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smoothcert.certify import Procedure, Smoothed, Task
from smoothcert.certify.base import require_count
from smoothcert.certify.inputs import CheckedInput
from smoothcert.data.subset import Indexable, as_tensor, data_fingerprint, select
from smoothcert.evaluate.certification import run_config
from smoothcert.evaluate.cluster import Cluster, require_members
from smoothcert.evaluate.driver import (
    Answered,
    Answers,
    Evaluation,
    fill_run,
    input_hash,
    progress_bar,
    refuse_other_data,
    session_facts,
)
from smoothcert.sampling import PREDICTION, Draw, Steps
from smoothcert.store.rows import Row
from smoothcert.store.run import differences, load_run
from smoothcert.types import ABSTAIN, Certificate, Prediction, RunError, SmoothcertError, UsageError, Votes

KIND = "votes"
"""The kind of a run folder that holds votes instead of certificates."""

COMPARED_INPUTS = 1000
"""About how many inputs of a folder are compared with the dataset."""

Counts = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class CountVotes(Procedure):
    """Count votes per class, and prove nothing.

    Args:
        n: Noisy copies of each input.
        stage: The stage of the noise.
    """

    name: ClassVar[str] = "votes"
    decides_early: ClassVar[bool] = False

    n: int
    stage: int = PREDICTION
    alpha: float = 1.0

    def __post_init__(self) -> None:
        require_count("n", self.n)

    @property
    def expected_samples(self) -> int:
        return self.n

    def certify(self, task: Task) -> Steps[Certificate]:
        raise UsageError("counted votes certify nothing; use another procedure.")

    def predict(self, task: Task) -> Steps[Prediction]:
        (votes,) = yield Draw(self.stage, self.n)
        return task.prediction(ABSTAIN, 1.0, self.alpha, votes)


def count_votes(
    smoothed: Smoothed,
    dataset: Indexable,
    n: int,
    *,
    folder: str | os.PathLike[str] | None = None,
    seed: int = 0,
    stage: int = PREDICTION,
    title: str = "count votes",
    progress: bool = True,
    cluster: Cluster | None = None,
) -> Counts:
    """Count the votes of n noisy copies of each input of a dataset.

    The same call on an unfinished folder continues it, and on a finished one only reads it. Copies with a NaN or
    infinite logit vote for no class.

    Args:
        smoothed: The classifier and the noise.
        dataset: Anything with a length and (input, label) pairs by index.
        n: Noisy copies of each input.
        folder: Where votes are stored; only in memory if not given.
        seed: The seed of the noise.
        stage: The stage of the noise; no certificate uses that of the default.
        title: The title of the progress bar.
        progress: Whether to show it on stderr.
        cluster: The Ray cluster whose workers count; by default this process does.

    Returns:
        The votes, of shape (inputs, classes).

    Raises:
        UsageError: If an argument is out of range, or the model or an input is invalid.
        RunError: If the folder is damaged, in use, cannot be written, or holds something else.
        SmoothcertError: If an input has no valid vote and votes are stored.

    Example:
        >>> from smoothcert import Gaussian
        >>> smoothed = Smoothed(torch.nn.Linear(4, 3), Gaussian(0.5))
        >>> count_votes(smoothed, [(torch.rand(4), 0)], 100, progress=False).sum()
        100
    """
    procedure = CountVotes(n=n, stage=stage)
    indices = select(len(dataset), every=1, start=0, stop=None)
    if cluster is not None and cluster.spread:
        require_members(smoothed.model)
    sealed = smoothed.sealed()
    probe = CheckedInput(smoothed.check(dataset[0][0]), sealed)
    classes = smoothed.num_classes
    assert classes is not None

    def evaluation(count: int) -> Evaluation:
        return Evaluation(smoothed, procedure, probe, seed, count, "predict")

    if folder is None:
        found = np.zeros((len(dataset), classes), np.int64)
        inputs = ((index, as_tensor(dataset[index][0])) for index in indices)
        with evaluation(len(dataset)).running(inputs, None, cluster) as (_, answers), progress_bar(progress) as bar:
            for index, one in bar.track(answers, len(dataset), description=title):
                found[index] = one.answer.counts
        return found
    config = run_config(KIND, smoothed, probe, procedure, seed, cluster)
    config |= {"data": data_fingerprint(dataset, indices), "inputs": {"every": 1, "start": 0, "stop": None}}
    stored = _stored(folder, dataset, config)
    if stored is not None:
        return stored
    session = {**session_facts(smoothed.device), "probe": sealed.probe(probe.tensor.shape)}
    with nullcontext() if cluster is None else cluster.connected():
        fill_run(
            folder,
            dataset,
            indices,
            config,
            session,
            lambda inputs, like, count: evaluation(count).running(inputs, like, cluster),
            _row,
            title=title,
            progress=progress,
            compared=COMPARED_INPUTS,
        )
    return _read(folder, config)


def clean_decisions(
    classifier: Callable[[Tensor], Tensor],
    dataset: Indexable,
    *,
    num_classes: int,
    batch_size: int,
    device: torch.device | str = "cpu",
    folder: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Counts:
    """Return the class that a black-box classifier gives to each input without noise.

    The classifier is called once for each input; what a folder holds is not asked again.

    Args:
        classifier: A callable from a batch to logits or votes, of shape (batch, classes).
        dataset: Anything with a length and (input, label) pairs by index.
        num_classes: The number of classes it must have.
        batch_size: Inputs per call.
        device: The device of the inputs.
        folder: Where decisions are stored; only in memory if not given.
        progress: Whether to show a progress bar on stderr.

    Raises:
        UsageError: If the classifier returns another shape.
        RunError: If the folder is damaged, in use, cannot be written, or holds something else.
        SmoothcertError: If a logit is not finite.
    """
    indices = select(len(dataset), every=1, start=0, stop=None)

    def asked(inputs: Iterator[tuple[int, Any]]) -> Answers:
        while batch := list(islice(inputs, batch_size)):
            labels = _decisions(classifier, torch.stack([x for _, x in batch]).to(device), num_classes)
            for (index, x), label in zip(batch, labels, strict=True):
                counts = tuple(int(other == label) for other in range(num_classes))
                yield index, Answered(Votes(1, counts), 0.0, input_hash(x))

    if folder is None:
        inputs = ((index, as_tensor(dataset[index][0])) for index in indices)
        return np.array([one.answer.counts.index(1) for _, one in asked(inputs)])
    config = {
        "kind": KIND,
        "procedure": {"name": "clean decisions"},
        "num_classes": num_classes,
        "data": data_fingerprint(dataset, indices),
        "inputs": {"every": 1, "start": 0, "stop": None},
    }
    stored = _stored(folder, dataset, config)
    if stored is None:
        fill_run(
            folder,
            dataset,
            indices,
            config,
            session_facts(device),
            lambda inputs, like, count: nullcontext(({}, asked(inputs))),
            _row,
            title="ask the classifier",
            progress=progress,
            compared=COMPARED_INPUTS,
        )
        stored = _read(folder, config)
    return np.asarray(stored.argmax(axis=1))


def _decisions(classifier: Callable[[Tensor], Tensor], x: Tensor, num_classes: int) -> list[int]:
    with torch.no_grad():
        logits = classifier(x)
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if shape != (len(x), num_classes):
        raise UsageError(
            f"the classifier must give {num_classes} logits for each of {len(x)} inputs, as the surrogates do, but "
            f"gave {shape}; use surrogates with its classes."
        )
    if not bool(torch.isfinite(logits).all()):
        raise SmoothcertError("the classifier gave logits that are not finite for a clean input; check its answers.")
    return [int(label) for label in logits.argmax(dim=1)]


def _row(one: Answered, index: int, label: int) -> Row:
    if not any(one.answer.counts):
        raise SmoothcertError(f"no noisy copy of input {index} has finite logits; check the model.")
    votes = {"n": one.answer.n, "counts": list(one.answer.counts), "seconds": one.seconds}
    return {"index": index, "label": label, **votes, "input": one.input}


def _stored(folder: str | os.PathLike[str], dataset: Indexable, config: Mapping[str, Any]) -> Counts | None:
    """Read a finished folder without locking it; None if it is missing or unfinished."""
    if not (Path(folder) / "run.json").exists():
        return None
    run = load_run(folder)
    rows = run.table(["index", "input"]).to_pylist()
    if differences(run.config, config) or len(rows) < len(dataset):
        return None
    refuse_other_data(folder, dataset, rows, COMPARED_INPUTS)
    return _read(folder, config)


def _read(folder: str | os.PathLike[str], config: Mapping[str, Any]) -> Counts:
    """Read the votes of a finished folder."""
    table = load_run(folder).table(["index", "counts"])
    size, classes, most = config["data"]["size"], config["num_classes"], config["procedure"].get("n", 1)
    try:
        votes = np.array(table["counts"].to_pylist(), np.int64)
        valid = table["index"].to_pylist() == list(range(size)) and votes.shape == (size, classes)
        if valid and votes.min() >= 0 and votes.max() <= most:
            sums = votes.sum(axis=1)
            valid = sums.min() >= 1 and sums.max() <= most
        else:
            valid = False
    except (TypeError, ValueError, KeyError):
        valid = False
    if not valid:
        raise RunError(f"{folder} holds votes that cannot be right; delete it to count again.")
    return votes
