"""Soft labels: vote shares of a model under noise, counted once for all inputs and kept in a folder.

``labels.json`` says what was counted and how the model was run; each ``part-*.npy`` has the votes per class of inputs
from that number on. All are written whole or not at all, so counting that was stopped goes on after its last part.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from smoothcert.classifiers.copying import Forward
from smoothcert.classifiers.sealed import Sealed
from smoothcert.data import Dataset
from smoothcert.data.arrays import check_claim
from smoothcert.files import parse_json, replacing
from smoothcert.noise import Noise
from smoothcert.sampling import BLOCK, PREDICTION, Draw, Job, Pool, Source, Steps, TopClass
from smoothcert.sampling.ray import Cluster
from smoothcert.sampling.runtimes import prepare
from smoothcert.training.methods.base import require
from smoothcert.types import SmoothcertError, UsageError

FORMAT = 1
STAGE = PREDICTION
"""Like the votes of PREDICT, these prove nothing: no certificate rests on noise of this stage."""
PART_VOTES, PART_INPUTS = 1_000_000, (100, 1000)
"""About how many votes a part holds, which is what a kill can cost, and its fewest and most inputs."""


def soft_labels(
    model: nn.Module,
    x: Tensor | Dataset,
    noise: Noise,
    *,
    n: int,
    num_classes: int,
    folder: str | os.PathLike[str],
    seed: int = 0,
    progress: bool = True,
    cluster: Cluster | None = None,
) -> Tensor:
    """Vote shares of each input: ŷ_c = (1/n) Σ 1[f(x + δ_i) = c] (Jeong et al., 2023, Eq. 10).

    The same call on an unfinished folder continues it, and on a finished one only reads it. Copies with a NaN or
    infinite logit vote for nobody, and the shares are of the votes that remain.

    Args:
        model: The classifier; a copy of it is run in evaluation mode.
        x: All inputs, or a dataset that reads them from disk; the place of an input enters its noise.
        noise: The noise, added to inputs as given.
        n: Noisy copies of each input.
        num_classes: The number of classes.
        folder: Where votes are kept; made when missing.
        seed: The seed of the noise.
        progress: Whether to show a progress bar on stderr.
        cluster: The Ray cluster whose workers count, instead of this process.

    Returns:
        The shares, float32 of shape (inputs, classes), on the model's device; each row sums to 1.

    Raises:
        UsageError: If an argument cannot be right or the folder holds something else; before any sampling.
        SmoothcertError: If the folder is damaged, in use or cannot be written, or an input has no valid vote.
    """
    require(type(n) is int and 1 <= n < 2**31, f"n must be a whole number of copies, at least 1, got {n!r}.")
    require(type(num_classes) is int and num_classes >= 2, f"num_classes must be at least 2, got {num_classes!r}.")
    require(type(seed) is int and 0 <= seed < 2**63, f"seed must be between 0 and 2**63 - 1, got {seed!r}.")
    require(isinstance(noise, Noise), f"noise must be a noise such as Gaussian(0.25), got {noise!r}.")
    if isinstance(x, Tensor):
        require(x.ndim > 0 and x.numel() > 0, f"there are no inputs to label: x has shape {tuple(x.shape)}.")
        require(x.is_floating_point(), f"x has dtype {x.dtype}; convert it to floating point in the model's range.")
        require(all(bool(end.isfinite()) for end in torch.aminmax(x)), "x contains NaN or infinite values.")
    require(len(x) > 0, "there are no inputs to label.")
    first = _rows(x, range(min(2, len(x))))
    weight = next((weight for weight in model.parameters() if weight.is_floating_point()), first)
    config = {
        "format": FORMAT,
        "model_sha256": _sha256(repr(model), [*model.named_parameters(), *model.named_buffers()]),
        "noise": noise.config(),
        "n": n,
        "seed": seed,
        "num_classes": num_classes,
        "inputs": len(x),
        "inputs_sha256": _inputs_sha256(x, weight.dtype),
        "stream": {"block": BLOCK, "stage": STAGE, "device": cluster.device if cluster else weight.device.type},
    }
    labels = _Labels(Path(folder), config)
    try:
        labels.load()
        if labels.left:
            sealed = Sealed(model)
            _probe(sealed, first.to(weight), num_classes)  # a model that does not fit leaves no folder behind
            labels.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(labels.folder / ".lock", timeout=0):
                labels.load()  # what another process has finished meanwhile
                _count(labels, sealed.model, x, weight, noise, progress, cluster)
    except Timeout as error:
        raise SmoothcertError(f"{folder} is being written by another process; wait for it or use another.") from error
    except OSError as error:
        raise SmoothcertError(f"cannot use {folder} ({error.strerror or error}); free space or use another.") from error
    shares = labels.counts / labels.counts.sum(axis=1, keepdims=True)
    return torch.from_numpy(shares.astype(np.float32)).to(weight.device)


@dataclass
class _Counting:
    """What counts: this process, or each worker of a cluster.

    Attributes:
        model: The classifier.
        noise: The noise.
        n: Noisy copies of each input.
        seed: The seed of the noise.
        num_classes: The number of classes.
        probe: An input.
        inputs: About how many inputs there are to count.
    """

    model: Forward
    noise: Noise
    n: int
    seed: int
    num_classes: int
    probe: Tensor
    inputs: int

    def begin(self, like: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Choose how to run the model, or do it as before: another way may round differently."""
        self._how = prepare(self.model, self.probe, noise=self.noise, samples=self.inputs * self.n, like=like)
        return self._how.settings()

    def answers(self, inputs: Iterator[tuple[int, Tensor]]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The votes of each input, by its place."""
        how = self._how
        source = Source(how.run, self.noise, self.num_classes, (TopClass(),), how.batch_size, how.cascade)
        pool = Pool([source], self.seed, how.workers, how.threads)
        jobs = (Job(place, x.to(self.probe).contiguous(), _votes(self.n)) for place, x in inputs)
        for job, counts in pool.run(jobs):
            if not any(counts):
                raise SmoothcertError(f"no noisy copy of input {job.index} has finite logits; check the model.")
            yield job.index, counts


def _count(
    labels: _Labels,
    model: Forward,
    x: Tensor | Dataset,
    weight: Tensor,
    noise: Noise,
    progress: bool,
    cluster: Cluster | None,
) -> None:
    """Count the votes of all parts that are left."""
    n, seed, classes = (labels.info[key] for key in ("n", "seed", "num_classes"))
    like = labels.info.get("runtime")
    left = sum(map(len, labels.left.values()))
    title = f"soft labels ({labels.damaged} damaged part(s) counted again)" if labels.damaged else "soft labels"
    columns = TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn()
    work = _Counting(model, noise, n, seed, classes, _rows(x, range(1))[0].to(weight), left)
    with ExitStack() as stack:
        bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), disable=not progress))
        task = bar.add_task(title, total=len(x), completed=len(x) - left)
        if cluster is None:
            labels.note(work.begin(like))
            groups = [[part] for part in labels.left]  # each in batches of its own, which are the same after a stop
        else:
            team = stack.enter_context(cluster.team(work, left, like=like))
            labels.note(team.settings)
            groups = [list(labels.left)]  # all at once, so that no worker waits for the last of a part
        for group in groups:
            inputs = _places(x, [labels.left[file] for file in group])
            count = sum(len(labels.left[file]) for file in group)
            for place, counts in work.answers(inputs) if cluster is None else team.run(inputs, count):
                labels.add(place, counts)
                bar.advance(task)


def _places(x: Tensor | Dataset, parts: Iterable[range]) -> Iterator[tuple[int, Tensor]]:
    """The inputs of some parts, by their places."""
    for part in parts:
        yield from zip(part, _rows(x, part), strict=True)


def _votes(n: int) -> Steps[tuple[int, ...]]:
    (votes,) = yield Draw(STAGE, n)
    return votes.counts


class _Labels:
    """A folder of votes: its ``info``, its ``counts`` as far as they are there, and the ranges of inputs ``left``."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        size = min(max(PART_VOTES // config["n"], PART_INPUTS[0]), PART_INPUTS[1])
        self.folder, self.config, self.info = folder, config, {**config, "part": size}
        self.counts = np.zeros((config["inputs"], config["num_classes"]), np.int32)

    def load(self) -> None:
        if (self.folder / "labels.json").exists():
            self.info = self._matching_info()
        elif self.folder.exists() and any(not entry.name.startswith(".") for entry in self.folder.iterdir()):
            raise UsageError(f"{self.folder} holds something else than soft labels; choose a new or empty folder.")
        self.damaged, size, total = 0, self.info["part"], len(self.counts)
        parts = (range(start, min(start + size, total)) for start in range(0, total, size))
        files = {self.folder / f"part-{part.start:08d}.npy": part for part in parts}
        self.left = {file: part for file, part in files.items() if not self._read(file, part)}
        self._missing = {file: len(part) for file, part in self.left.items()}
        self._file_of = {place: file for file, part in self.left.items() for place in part}

    def note(self, runtime: Mapping[str, Any] | None) -> None:
        """Write down what is counted, and how."""
        with replacing(self.folder / "labels.json") as temporary:
            temporary.write_text(json.dumps({"runtime": runtime, **self.info}, indent=2), encoding="utf-8")

    def add(self, place: int, counts: tuple[int, ...]) -> None:
        """Take in the votes of an input, and keep those of its part once all are there."""
        self.counts[place] = counts
        file = self._file_of[place]
        self._missing[file] -= 1
        if not self._missing[file]:
            part = self.left[file]
            with replacing(file) as temporary, temporary.open("wb") as content:
                np.save(content, self.counts[part.start : part.stop], allow_pickle=False)

    def _matching_info(self) -> dict[str, Any]:
        try:
            info = parse_json((self.folder / "labels.json").read_text(encoding="utf-8"))
            _ = info["runtime"]["notes"]["memory_format"], range(info["part"])[0]
        except (ValueError, LookupError, TypeError) as error:
            raise SmoothcertError(f"labels.json in {self.folder} is damaged ({error}); delete that folder.") from error
        here = json.loads(json.dumps(self.config))
        other = [f"{key} is {info.get(key)} there and {here[key]} here" for key in here if info.get(key) != here[key]]
        require(not other, f"{self.folder} holds other labels ({'; '.join(other)}); use another folder or delete this.")
        return dict(info)

    def _read(self, file: Path, part: range) -> bool:
        """Read a part; False where it is missing or damaged."""
        if not file.exists():
            return False
        content = io.BytesIO(file.read_bytes())
        with suppress(Exception):  # whatever a damaged file makes the reader raise
            check_claim(content, len(content.getbuffer()))
            content.seek(0)
            counts = np.load(content, allow_pickle=False)
            votes = counts.sum(axis=1, dtype=np.int64)
            fits = counts.dtype == np.int32 and counts.shape == (len(part), self.counts.shape[1])
            if fits and counts.min() >= 0 and votes.min() >= 1 and votes.max() <= self.config["n"]:
                self.counts[part.start : part.stop] = counts
                return True
        self.damaged += 1
        return False


def _probe(model: Sealed, x: Tensor, num_classes: int) -> None:
    """Refuse a model that does not give this many logits for each input."""
    try:
        with torch.inference_mode():
            shape = tuple(model(x).shape)
    except UsageError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(f"the model cannot classify inputs of shape {tuple(x.shape[1:])} ({reason}).") from error
    fits = shape == (len(x), num_classes)
    require(fits, f"the model gives shape {shape} for {len(x)} input(s), not logits of num_classes={num_classes}.")


def _rows(x: Tensor | Dataset, part: range) -> Tensor:
    """These inputs, in the place and type they are kept in."""
    if isinstance(x, Tensor):
        return x[part.start : part.stop].detach()
    with ThreadPoolExecutor() as threads:
        return torch.stack([image for image, _ in threads.map(x.__getitem__, part)])


def _inputs_sha256(x: Tensor | Dataset, dtype: torch.dtype) -> str:
    """A fingerprint of all inputs, or of a hundred of them where they are read from disk."""
    if isinstance(x, Tensor):
        return _sha256("", (("", part.to(dtype)) for part in torch.split(x, 1000)))
    some = range(0, len(x), -(-len(x) // 100))
    return _sha256(f"{x.name} {x.split}", (("", x[index][0].to(dtype)) for index in some))


def _sha256(text: str, tensors: Iterable[tuple[str, Tensor]]) -> str:
    digest = hashlib.sha256(text.encode())
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
