"""Apply a procedure to many inputs, in this process or on a cluster, and store one row per input in a run folder."""

from __future__ import annotations

import copy
import os
import platform
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from torch import Tensor

from smoothcert.certify import Memory, Procedure, Smoothed
from smoothcert.certify.inputs import CheckedInput
from smoothcert.certify.per_input import remembered
from smoothcert.data.subset import Indexable, as_tensor, labelled_input
from smoothcert.evaluate.cluster import Cluster, distributed_ensemble, worker_pool
from smoothcert.progress import Bar
from smoothcert.sampling.copies import input_digest
from smoothcert.store.rows import Row
from smoothcert.store.run import Run, load_run, open_run
from smoothcert.types import ABSTAIN, Certificate, Outcome, Prediction, RunError, Votes

USUAL_SAMPLES = 100_000
"""Samples per input in the papers; early decisions are compared with them."""

WRONG = "certified but wrong"

COMPARED_INPUTS = 16
"""About how many inputs of a resumed run are read again to notice other data."""


@dataclass(frozen=True)
class Answered:
    """The answer for one input, and what it took.

    Attributes:
        answer: The certificate, prediction or votes.
        seconds: The time spent on it.
        input: The hash of the input.
        consensus: The share of noisy copies that the first members of a consensus decided; None without a consensus.
        sigma: The noise scale, where it was chosen for this input.
    """

    answer: Any
    seconds: float
    input: str | None
    consensus: float | None = None
    sigma: float | None = None


Answers = Iterator[tuple[int, Answered]]


@dataclass(frozen=True)
class Evaluation:
    """A procedure and the classifier it is applied to; runs in this process or on each worker of a cluster.

    Args:
        smoothed: The smoothed classifier.
        procedure: The procedure.
        probe: One input.
        seed: The seed of the noise.
        count: About how many inputs there are, which decides how long runtimes are benchmarked.
        steps: ``"certify"`` or ``"predict"``.
    """

    smoothed: Smoothed
    procedure: Procedure
    probe: Tensor | CheckedInput
    seed: int
    count: int
    steps: str = "certify"

    @property
    def samples(self) -> int:
        """The expected number of samples."""
        return self.count * self.procedure.expected_samples

    def begin(self, like: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Prepare the runtime, like that of an earlier session if given, and return its settings."""
        return self.smoothed.prepare(self.probe, samples=self.samples, like=like).settings()

    def answers(self, inputs: Iterator[tuple[int, Any]]) -> Answers:
        """Answer inputs in shared batches, in the order decided."""
        steps = getattr(self.procedure, self.steps)
        for job, answer in self.smoothed.run(inputs, self.procedure, steps, seed=self.seed, count=self.count):
            digest = answer.input if isinstance(answer, Certificate) else input_digest(job.x)
            sigma = None if job.noise is None else job.noise.scale
            yield job.index, Answered(answer, job.seconds, digest, job.consensus, sigma)

    @contextmanager
    def running(
        self, inputs: Iterator[tuple[int, Any]], like: Mapping[str, Any] | None = None, cluster: Cluster | None = None
    ) -> Iterator[tuple[dict[str, Any], Answers]]:
        """Start answering inputs here or on a cluster.

        Args:
            inputs: Pairs (index, input).
            like: The runtime settings of an earlier session.
            cluster: The cluster; this process if not given.

        Yields:
            Facts for the session's entry in ``run.json``, and the answers.
        """
        smoothed = self.smoothed
        if cluster is None:
            yield {"runtime": self.begin(like)}, self.answers(inputs)
            return
        facts = {"cluster": asdict(cluster)}
        probe = self.probe.tensor if isinstance(self.probe, CheckedInput) else self.probe
        if cluster.spread:
            options = {"batch_size": smoothed.batch_size, "precision": smoothed.precision, "runtime": smoothed.runtime}
            with distributed_ensemble(
                cluster, smoothed.model, probe, samples=self.samples, like=like, **options
            ) as runtime:
                spread = copy.copy(smoothed)
                spread.runtime = runtime
                answers = replace(self, smoothed=spread).answers(inputs)
                yield {"runtime": runtime.notes["member"], **facts}, answers
            return
        order = deque[tuple[int, Tensor]]()

        def noted() -> Iterator[tuple[int, Any]]:
            for index, x in inputs:
                if smoothed.memory is not None:
                    order.append((index, smoothed.check(x)))
                yield index, x

        share = -(-self.count // (cluster.workers or 2))
        each = replace(self, smoothed=smoothed.for_workers(), probe=probe, count=share)
        with worker_pool(cluster, each, self.count, like=like) as pool:
            answers = pool.run(noted(), self.count)
            if smoothed.memory is not None:
                answers = _remembered(smoothed.memory, answers, order)
            yield {"runtime": pool.settings, **facts}, answers


def _remembered(memory: Memory, answers: Answers, order: deque[tuple[int, Tensor]]) -> Answers:
    """Apply a memory to the answers of workers."""
    kept: dict[int, Answered] = {}

    def certificates() -> Iterator[tuple[int, Any]]:
        for index, one in answers:
            kept[index] = one
            yield index, one.answer

    for index, answer in remembered(memory, certificates(), order):
        yield index, replace(kept.pop(index), answer=answer)


Start = Callable[
    [Iterator[tuple[int, Any]], Mapping[str, Any] | None, int],
    AbstractContextManager[tuple[dict[str, Any], Answers]],
]
"""Starts to answer inputs, given the inputs, the runtime settings of an earlier session, and the number of inputs."""


def fill_run(
    folder: str | os.PathLike[str],
    dataset: Indexable,
    indices: Sequence[int],
    config: Mapping[str, Any],
    session: Mapping[str, Any],
    start: Start,
    row: Callable[[Answered, int, int], Row],
    *,
    title: str,
    progress: bool,
    compared: int = COMPARED_INPUTS,
    resume: Callable[[int], None] = lambda answered: None,
    early: bool = False,
) -> Run:
    """Answer all inputs that a run folder does not have yet, and append a row for each.

    Args:
        folder: The run folder.
        dataset: The dataset.
        indices: The inputs of the run.
        config: The configuration, which a folder that exists must share.
        session: Facts about this session.
        start: Starts to answer inputs.
        row: Makes a row from an answer, the input's index and its label.
        title: The title of the progress bar.
        progress: Whether to show it on stderr.
        compared: About how many inputs of a resumed run to compare with the dataset.
        resume: Called with the number of earlier answers that are not abstentions.
        early: Whether the procedure decides early, so that the bar shows the saved samples.

    Returns:
        The finished run.

    Raises:
        RunError: If the folder cannot be written, or holds another run.
    """
    with open_run(folder, config, session) as writer, progress_bar(progress) as bar:
        others = writer.done - set(indices)
        if others:
            raise RunError(f"{folder} holds rows for inputs that are not selected, such as {min(others)}.")
        before = writer.run.table(["index", "outcome", "label", "predict", "input"]).to_pylist() if writer.done else []
        refuse_other_data(folder, dataset, before, compared)
        resume(sum(row.get("predict", ABSTAIN) != ABSTAIN for row in before))
        outcomes = Counter(map(_outcome, before))
        left = len(indices) - len(writer.done)
        task = bar.add_task(title, total=len(indices), completed=len(writer.done), detail="")
        begin, answered, drawn = time.perf_counter(), 0, 0
        labels: dict[int, int] = {}

        def inputs() -> Iterator[tuple[int, Any]]:
            for index in indices:
                if index not in writer.done:
                    x, labels[index] = labelled_input(dataset, index)
                    yield index, as_tensor(x).clone()  # a dataset may return every input in the same memory

        if left:
            like = next((s["runtime"] for s in writer.run.info["sessions"] if "runtime" in s), None)
            with start(inputs(), like, left) as (facts, answers):
                writer.annotate(**facts)
                for index, one in answers:
                    made = row(one, index, labels.pop(index))
                    writer.append(made)
                    outcomes[_outcome(made)] += 1
                    answered, drawn = answered + 1, drawn + _samples(one.answer)
                    detail = _detail(outcomes, drawn, time.perf_counter() - begin, answered if early else None)
                    bar.update(task, advance=1, detail=detail)
        writer.seal()
    return load_run(folder)


def refuse_other_data(
    folder: str | os.PathLike[str], dataset: Indexable, rows: Sequence[Mapping[str, Any]], compared: int
) -> None:
    """Compare some inputs of a run with the dataset.

    Raises:
        RunError: If an input has changed.
    """
    known = [row for row in rows if row.get("input")]
    for row in known[:: max(len(known) // compared, 1)]:
        if input_hash(as_tensor(dataset[row["index"]][0])) != row["input"]:
            raise RunError(
                f"input {row['index']} of the dataset is not the one that {folder} was certified on; give the same "
                "data, or choose another run folder."
            )


def input_hash(x: Tensor) -> str:
    """Return the hash of an input in the precision it is sampled in."""
    return input_digest(x.to(torch.promote_types(x.dtype, torch.float32)))


def session_facts(device: torch.device | str, source: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return facts about this process for ``run.json``."""
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            "smoothcert": version("smoothcert"),
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "numpy", "scipy")},
        },
        "device": str(device),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "source": dict(source) if source else None,
    }


def progress_bar(enabled: bool) -> Bar:
    """Return a progress bar on stderr, whose tasks have a field ``detail``."""
    return Bar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=8),
        MofNCompleteColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeRemainingColumn(),
        shown=enabled,
    )


def _samples(answer: Certificate | Prediction | Votes) -> int:
    return answer.samples if isinstance(answer, Certificate) else answer.n


def _outcome(row: Mapping[str, Any]) -> str | None:
    """Return what the bar counts an answer as: one with a wrong class is not a success, whatever its radius."""
    outcome: str | None = row.get("outcome")
    return WRONG if outcome == Outcome.CERTIFIED.value and row["predict"] != row["label"] else outcome


def _detail(outcomes: Counter[str | None], drawn: int, seconds: float, answered: int | None) -> str:
    """Return outcomes, speed and the share of samples saved by early decisions, for the progress bar."""
    parts = [f"{outcomes[name]} {name}" for name in ("certified", WRONG, "refuted") if outcomes[name]]
    parts.append(f"{drawn / seconds / 1000:,.1f}k/s")
    if answered is not None:
        parts.append(f"{1 - drawn / (answered * USUAL_SAMPLES):.1%} saved")
    return " · ".join(parts)
