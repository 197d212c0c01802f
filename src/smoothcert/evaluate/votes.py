"""Count the votes of a classifier over a dataset, in a run folder or in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
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
from smoothcert.data.inputs import Indexable, data_fingerprint
from smoothcert.evaluate.certification import run_config
from smoothcert.evaluate.cluster import Cluster
from smoothcert.evaluate.driver import (
    Answered,
    Answers,
    Evaluation,
    Inputs,
    Start,
    fill_run,
    input_hash,
    progress_bar,
    refuse_other_data,
    session_facts,
)
from smoothcert.sampling import PREDICTION, Draw, Steps
from smoothcert.store.result import vote_matrix
from smoothcert.store.rows import Row
from smoothcert.store.run import Run, differences, load_run
from smoothcert.store.run_json import VOTES
from smoothcert.store.selection import select
from smoothcert.tensors import as_tensor
from smoothcert.types import ABSTAIN, Certificate, Prediction, RunError, SmoothcertError, StrPath, UsageError, Votes

COMPARED_INPUTS = 1000  # of a folder with the dataset
_ALL: dict[str, Any] = {"every": 1, "start": 0, "stop": None}

Counts = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class CountVotes(Procedure):
    """Count the votes per class of ``n`` noisy copies from a stage of the noise, and prove nothing."""

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
    folder: StrPath | None = None,
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
        dataset: Anything with a length and (input, label) pairs by index.
        folder: Where votes are stored; only in memory if not given.
        stage: The stage of the noise; no certificate uses that of the default.
        title, progress: The title of the progress bar on stderr, and whether to show it.
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
        >>> int(count_votes(smoothed, [(torch.rand(4), 0)], 100, progress=False).sum())
        100
    """
    procedure, indices = CountVotes(n=n, stage=stage), _indices(dataset)
    sealed = smoothed.sealed()
    probe = CheckedInput(smoothed.check(dataset[0][0]), sealed)
    classes = smoothed.num_classes
    assert classes is not None
    evaluation = Evaluation(smoothed, procedure, probe, 0, seed, len(dataset), "predict")
    if folder is None:
        found = np.zeros((len(dataset), classes), np.int64)
        inputs = ((index, as_tensor(dataset[index][0])) for index in indices)
        with evaluation.running(inputs, None, cluster) as (_, answers), progress_bar(progress) as bar:
            task = bar.add_task(title, total=len(dataset), detail="")
            for index, one in answers:
                found[index] = one.answer.counts
                bar.update(task, advance=1)
        return found
    return _stored(
        folder,
        dataset,
        run_config(VOTES, smoothed, probe, procedure, seed, cluster),
        session_facts(smoothed.device, probe),
        lambda inputs, like, count: replace(evaluation, count=count).running(inputs, like, cluster),
        title=title,
        progress=progress,
        cluster=cluster,
    )


def clean_decisions(
    classifier: Callable[[Tensor], Tensor],
    dataset: Indexable,
    *,
    num_classes: int,
    batch_size: int,
    device: torch.device | str = "cpu",
    folder: StrPath | None = None,
    progress: bool = False,
) -> Counts:
    """Return the class that a black-box classifier assigns to each input without noise.

    Args:
        classifier: A callable from a batch to logits or votes, of shape (batch, num_classes); called once per input.
        dataset: Anything with a length and (input, label) pairs by index.
        device: The device of the inputs.
        folder: Where decisions are stored and read again; only in memory if not given.

    Raises:
        UsageError: If the classifier returns another shape.
        RunError: If the folder is damaged, in use, cannot be written, or holds something else.
        SmoothcertError: If a logit is not finite.
    """

    def decisions(inputs: Inputs) -> Answers:
        while batch := list(islice(inputs, batch_size)):
            labels = _decisions(classifier, torch.stack([x for _, x in batch]).to(device), num_classes)
            for (index, x), label in zip(batch, labels, strict=True):
                counts = tuple(int(other == label) for other in range(num_classes))
                yield index, Answered(Votes(1, counts), 0.0, input_hash(x))

    if folder is None:
        inputs = ((index, as_tensor(dataset[index][0])) for index in _indices(dataset))
        return np.array([one.answer.counts.index(1) for _, one in decisions(inputs)])
    votes = _stored(
        folder,
        dataset,
        {"kind": VOTES, "procedure": {"name": "clean decisions"}, "num_classes": num_classes},
        session_facts(device),
        lambda inputs, like, count: nullcontext(({}, decisions(inputs))),
        title="classify clean inputs",
        progress=progress,
    )
    return np.asarray(votes.argmax(axis=1))


def _indices(dataset: Indexable) -> range:
    return select(len(dataset), **_ALL)


def _decisions(classifier: Callable[[Tensor], Tensor], x: Tensor, num_classes: int) -> list[int]:
    with torch.no_grad():
        logits = classifier(x)
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if shape != (len(x), num_classes):
        raise UsageError(
            f"the classifier must return {num_classes} logits for each of {len(x)} inputs, as the surrogates do, but "
            f"returned {shape}; use surrogates with its classes."
        )
    if not bool(torch.isfinite(logits).all()):
        raise SmoothcertError("the classifier returned logits that are not finite for a clean input; check its logits.")
    return [int(label) for label in logits.argmax(dim=1)]


def _stored(
    folder: StrPath,
    dataset: Indexable,
    config: Mapping[str, Any],
    session: Mapping[str, Any],
    start: Start,
    **options: Any,
) -> Counts:
    """Read the votes of a folder, after counting those that it lacks."""
    indices = _indices(dataset)
    config = {**config, "data": data_fingerprint(dataset, indices), "inputs": _ALL}
    run = _finished(folder, dataset, config)
    if run is None:
        run = fill_run(folder, dataset, indices, config, session, start, _row, compared=COMPARED_INPUTS, **options)
    table = run.table(["index", "n", "counts"])
    complete = table.column_names == ["index", "n", "counts"] and table["index"].to_pylist() == list(indices)
    if complete and table["n"].unique().to_pylist() == [config["procedure"].get("n", 1)]:
        votes = vote_matrix(run.path, "counts", table["counts"])
        if votes.shape[1] == config["num_classes"] and votes.any(axis=1).all():
            return votes
    raise RunError(f"{folder} holds invalid votes; delete it to count them again.")


def _finished(folder: StrPath, dataset: Indexable, config: Mapping[str, Any]) -> Run | None:
    """Return the run of a folder if it has all votes, without locking it."""
    if not (Path(folder) / "run.json").exists():
        return None
    run = load_run(folder)
    rows = run.table(["index", "input"]).to_pylist()
    if differences(run.config, config) or len(rows) < len(dataset):
        return None
    refuse_other_data(folder, dataset, rows, COMPARED_INPUTS)
    return run


def _row(one: Answered, index: int, label: int) -> Row:
    if not any(one.answer.counts):
        raise SmoothcertError(f"no noisy copy of input {index} has finite logits; check the model.")
    votes = {"n": one.answer.n, "counts": list(one.answer.counts), "seconds": one.seconds}
    return {"index": index, "label": label, **votes, "input": one.input}
