"""Apply a procedure to many inputs, in this process or on a cluster, and store one row per input in a run folder."""

from __future__ import annotations

import copy
import platform
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
from smoothcert.data.inputs import Indexable, labelled_input
from smoothcert.evaluate.cluster import Cluster, distributed_ensemble, worker_pool
from smoothcert.progress import Bar
from smoothcert.sampling.copies import input_digest
from smoothcert.store.rows import Row
from smoothcert.store.run import Run, load_run, open_run
from smoothcert.tensors import as_tensor
from smoothcert.types import ABSTAIN, Certificate, Outcome, RunError, StrPath, invalid_text

USUAL_SAMPLES = 100_000  # per input in the papers; the progress bar compares early decisions with them
COMPARED_INPUTS = 16  # about how many inputs of a resumed run are compared with the dataset
WRONG = "certified but wrong"


@dataclass(frozen=True)
class Answered:
    """The certificate, prediction or votes of one input, and facts for its row."""

    answer: Any
    seconds: float
    input: str | None  # the hash of the input
    consensus: float | None = None  # the share of noisy copies that the first members of a consensus decided
    sigma: float | None = None  # the noise scale, where it was chosen for this input


Inputs = Iterator[tuple[int, Any]]
Answers = Iterator[tuple[int, Answered]]
Settings = Mapping[str, Any] | None
Start = Callable[[Inputs, Settings, int], AbstractContextManager[tuple[dict[str, Any], Answers]]]
"""Starts answering inputs, with the runtime settings of an earlier session, and given the number of inputs.

The context has facts for the session's entry in ``run.json``, and the answers.
"""


@dataclass(frozen=True)
class Evaluation:
    """A procedure and the classifier it is applied to, in this process or on each worker of a cluster."""

    smoothed: Smoothed
    procedure: Procedure
    probe: Tensor | CheckedInput  # an input
    first: int  # its index
    seed: int
    count: int  # about how many inputs there are, which decides how long runtimes are benchmarked
    steps: str = "certify"  # or "predict"

    @property
    def samples(self) -> int:
        """The expected number of samples."""
        return self.count * self.procedure.expected_samples

    def begin(self, like: Settings) -> Mapping[str, Any]:
        """Prepare the runtime, like that of an earlier session if given, and return its settings."""
        return self.smoothed.prepare(self.probe, samples=self.samples, like=like).settings()

    def answers(self, inputs: Inputs) -> Answers:
        """Answer inputs in shared batches, in the order decided."""
        steps = getattr(self.procedure, self.steps)
        for job, answer in self.smoothed.run(inputs, self.procedure, steps, seed=self.seed, count=self.count):
            digest = answer.input if isinstance(answer, Certificate) else input_digest(job.x)
            sigma = None if job.noise is None else job.noise.scale
            yield job.index, Answered(answer, job.seconds, digest, job.consensus, sigma)

    @contextmanager
    def running(
        self, inputs: Inputs, like: Settings = None, cluster: Cluster | None = None
    ) -> Iterator[tuple[dict[str, Any], Answers]]:
        """Start answering inputs here or on a cluster, with the runtime settings of an earlier session if given."""
        smoothed = self.smoothed
        if cluster is None:
            known = ((index, self.probe if index == self.first else x) for index, x in inputs)
            yield {"runtime": self.begin(like)}, self.answers(known)
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

        def noted() -> Inputs:
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

    def certificates() -> Inputs:
        for index, one in answers:
            kept[index] = one
            yield index, one.answer

    for index, answer in remembered(memory, certificates(), order):
        yield index, replace(kept.pop(index), answer=answer)


def fill_run(
    folder: StrPath,
    dataset: Indexable,
    indices: Sequence[int],
    config: Mapping[str, Any],
    session: Mapping[str, Any],
    start: Start,
    row: Callable[[Answered, int, int], Row],
    *,
    title: str,
    progress: bool,
    cluster: Cluster | None = None,
    compared: int = COMPARED_INPUTS,
    resume: Callable[[int], None] = lambda answered: None,
    early: bool = False,
) -> Run:
    """Answer all inputs that a run folder does not have yet, and append a row for each.

    Args:
        folder, config, session: The arguments of ``store.open_run``.
        dataset, indices: The inputs of the run.
        row: Makes a row from an answer, the input's index and its label.
        title, progress: The title of the progress bar on stderr, and whether to show it.
        compared: About how many inputs of a resumed run to compare with the dataset.
        resume: Called with the number of earlier answers that are not abstentions.
        early: Whether the procedure decides early, so that the bar shows the saved samples.
    """
    with (
        nullcontext() if cluster is None else cluster.connected(),
        open_run(folder, config, session) as writer,
        progress_bar(progress) as bar,
    ):
        others = writer.done - set(indices)
        if others:
            raise RunError(
                f"{folder} holds rows for inputs that are not selected, such as {min(others)}; choose another folder."
            )
        before = writer.run.table(["index", "outcome", "label", "predict", "input"]).to_pylist() if writer.done else []
        refuse_other_data(folder, dataset, before, compared)
        resume(sum(row.get("predict", ABSTAIN) != ABSTAIN for row in before))
        outcomes = Counter(map(_outcome, before))
        left = len(indices) - len(writer.done)
        task = bar.add_task(title, total=len(indices), completed=len(writer.done), detail="")
        begin, answered, drawn, invalid = time.perf_counter(), 0, 0, 0
        labels: dict[int, int] = {}

        def inputs() -> Inputs:
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
                    answered += 1
                    drawn += one.answer.samples
                    invalid += one.answer.invalid
                    detail = _detail(outcomes, drawn, time.perf_counter() - begin, answered if early else None)
                    bar.update(task, advance=1, detail=detail)
        writer.seal()
    if invalid:
        warnings.warn(invalid_text(invalid, drawn), stacklevel=3)
    return load_run(folder)


def refuse_other_data(folder: StrPath, dataset: Indexable, rows: Sequence[Mapping[str, Any]], compared: int) -> None:
    """Compare some inputs of a run with the dataset, and refuse one that has changed."""
    known = [row for row in rows if row.get("input")]
    for row in known[:: max(len(known) // compared, 1)]:
        if input_hash(as_tensor(dataset[row["index"]][0])) != row["input"]:
            raise RunError(
                f"input {row['index']} of the dataset is not the one in {folder}; give the same data, or choose "
                "another run folder."
            )


def input_hash(x: Tensor) -> str:
    """Hash an input in the precision it is sampled in."""
    return input_digest(x.to(torch.promote_types(x.dtype, torch.float32)))


def session_facts(
    device: torch.device | str, probe: CheckedInput | None = None, source: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return facts about this process and the classifier for ``run.json``."""
    facts: dict[str, Any] = {
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
    if probe is not None:
        facts |= {"probe": probe.sealed.probe(probe.tensor.shape), "dimension": probe.tensor.numel()}
    return facts


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


def _outcome(row: Mapping[str, Any]) -> str | None:
    """Return the outcome that the bar counts; a certified wrong class is not a success."""
    outcome: str | None = row.get("outcome")
    return WRONG if outcome == Outcome.CERTIFIED.value and row["predict"] != row["label"] else outcome


def _detail(outcomes: Counter[str | None], drawn: int, seconds: float, answered: int | None) -> str:
    parts = [f"{outcomes[name]} {name}" for name in ("certified", WRONG, "refuted") if outcomes[name]]
    parts.append(f"{drawn / seconds / 1000:,.1f}k/s")
    if answered is not None:
        parts.append(f"{1 - drawn / (answered * USUAL_SAMPLES):.1%} saved")
    return " · ".join(parts)
