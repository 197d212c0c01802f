"""Certified balls that never contradict each other, although each was certified under another noise.

Every answer stays valid: a later input within its radius gets its class. So a new ball is cut where it would meet an
earlier one of another class, and an input inside an earlier ball gets that ball's class. This is sound because, in real
numbers and with every rounding on the safe side:

1. Stored balls of different classes share no point: a new ball is cut to less than its distance from every such ball.
2. So all balls that contain an input have one class. Whether a ball contains it is decided in exact arithmetic where
   double precision leaves it open.
3. If ball i contains x, the ball around x of radius r_i − ‖x − c_i‖ lies in ball i, hence meets no ball of a third
   class either; of several such balls the largest radius holds as well.
"""

from __future__ import annotations

import base64
import json
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch import Tensor

from smoothcert.files import parse_json, replacing
from smoothcert.types import ABSTAIN, Norm, RunError, StrPath, UsageError

_METADATA_KEY = "smoothcert_memory"
_FORMAT = 1
_CHUNK_VALUES = 2**22  # coordinates that are compared in double precision in one step: 32 MB
_TINY = 1e-150  # more than squares that underflow can hide
_Floats = NDArray[np.float64]
_Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Ball:
    """An answer of a memory; ``adopted`` if the class is that of an earlier ball that contains the input."""

    label: int
    radius: float
    adopted: bool = False


class Memory:
    """Certified ℓ2 balls in the order of their certification (the guarantee ``memory``).

    Alfarra et al. (2022) choose a noise for each input; the certificates are consistent only if they are cut against
    each other, as here. Abstentions are not stored, nor are balls inside one of the same class.

    Args:
        path: A file that stores the balls; an existing one is continued. A ball is on disk before its answer is
            returned: first in ``<path>.journal``, and in the file itself after :meth:`save`. By default balls are not
            written to disk.

    Raises:
        RunError: If the file is damaged, cannot be written, or is in use by another process.

    Example:
        >>> import torch
        >>> memory = Memory()
        >>> memory.admit(torch.tensor([0.0, 0.0]), 3, 0.5).radius
        0.5
        >>> 0.49 < memory.admit(torch.tensor([1.0, 0.0]), 7, 0.8).radius < 0.5
        True
        >>> memory.admit(torch.tensor([0.3, 0.0]), 7, 0.1).label
        3
    """

    def __init__(self, path: StrPath | None = None) -> None:
        self.owner: dict[str, Any] | None = None
        self._warned = False
        self._count = 0
        self._dimension: int | None = None
        self._dtype = np.dtype(np.float32)
        self._centres: NDArray[Any] = np.empty((0, 0))
        self._labels: _Numbers = np.empty(0, np.int64)
        self._radii: _Floats = np.empty(0)
        self._squares: _Floats = np.empty(0)  # ‖centre‖²
        self._path = None if path is None else Path(path)
        self._journal: FileIO | None = None
        if self._path is not None:
            self._open(self._path)

    def __len__(self) -> int:
        return self._count

    def bind(self, owner: Mapping[str, Any], norm: Norm = Norm.L2) -> None:
        """Name the classifier of the balls by its model's identity and its noise, as plain values.

        A memory of an earlier version did not record the model's code and attributes: a warning then asks the user to
        make sure that it is the same model.

        Raises:
            UsageError: For another norm of the balls than ℓ2.
            RunError: If the memory holds balls of another classifier.
        """
        _check_norm(norm)
        plain = json.loads(json.dumps(owner))
        if self.owner is None and not self._count:
            self.owner = plain
        comparable = _without_unrecorded(plain, self.owner)
        if self.owner != comparable:
            recorded = "unnamed" if self.owner is None else json.dumps(self.owner, sort_keys=True)
            raise RunError(
                f"the memory holds balls of another classifier ({recorded}) than this one "
                f"({json.dumps(plain, sort_keys=True)}); use a separate memory for each classifier."
            )
        if comparable != plain and not self._warned:
            self._warned = True
            warnings.warn(
                "the memory was written by an earlier version, which did not record the code and the attributes of the "
                "model; use it only with the same model.",
                stacklevel=2,
            )

    def resume(self, answered: int) -> None:
        """Refuse to continue a run without the balls of its answers, which later answers could contradict.

        Raises:
            RunError: If there are answers and the memory is empty.
        """
        if answered and not self._count:
            raise RunError(
                "the run holds answers already, but the memory is empty; use the memory they were made with, or start "
                "a new run."
            )

    def admit(self, x: Tensor, label: int, radius: float, norm: Norm = Norm.L2) -> Ball:
        """Make an answer consistent with the earlier ones, and store it.

        Args:
            x: The input.
            label: Its class, or ``ABSTAIN``.
            radius: The radius proved for it; 0 for a class without a radius.
            norm: The norm of the radius.

        Returns:
            The ball, cut where it meets earlier ones of other classes; the class of an earlier ball that contains the
            input, if the answer was another class or an abstention; or an abstention.

        Raises:
            UsageError: For another norm than ℓ2, an invalid radius, or an input of another size or type than before.
            RunError: If the ball cannot be written; the memory is then unchanged.
        """
        _check_norm(norm)
        if not (math.isfinite(radius) and radius >= 0) or label < ABSTAIN:
            raise UsageError(f"a ball needs a class and a finite radius of at least 0, got {label} and {radius}.")
        vector = self._vector(x)
        ball, new = self._settle(vector, label, float(radius))
        if new:
            self._record(vector, ball)
            self._append(vector, ball.label, ball.radius)
        return ball

    def save(self, path: StrPath | None = None) -> None:
        """Write all balls to one safetensors file, atomically.

        Args:
            path: The file; by default that of the memory, whose journal is then emptied.

        Raises:
            UsageError: If there is no path.
            RunError: If it cannot be written.
        """
        file = Path(path) if path is not None else self._path
        if file is None:
            raise UsageError("the memory has no path; give one to save it to.")
        centres = self._centres if self._count else np.empty((0, self._dimension or 0), self._dtype)
        stored = {"centres": centres, "labels": self._labels, "radii": self._radii}
        try:
            with replacing(file) as temporary:
                tensors = {name: values[: self._count] for name, values in stored.items()}
                save_file(tensors, temporary, metadata={_METADATA_KEY: self._header()})
            if file == self._path and self._journal is not None:
                self._journal.truncate(0)
        except OSError as error:
            raise _cannot_write(file, error) from error

    def close(self) -> None:
        """Release the file for other processes; later balls are not written to disk."""
        if self._journal is not None:
            self._journal.close()
        if self._path is not None:
            self._lock.release()
        self._path, self._journal = None, None

    def _settle(self, x: NDArray[Any], label: int, radius: float) -> tuple[Ball, bool]:
        """Return the answer, and whether to store it."""
        low, high = self._bounds(x)
        labels, radii = self._labels[: self._count], self._radii[: self._count]
        around, room = self._containing(x, np.flatnonzero(low <= radii))
        if len(np.unique(labels[around])) > 1:
            raise RunError("the memory is damaged: balls of different classes meet; delete it and certify again.")
        adopted = len(around) > 0 and label != int(labels[around[0]])
        if adopted:
            label, radius = int(labels[around[0]]), float(room.max())
        if label == ABSTAIN:
            return Ball(ABSTAIN, 0.0), False
        others = labels != label
        if others.any():
            reach = min(radius, float((high - radii)[others].min()))
            nearest = np.flatnonzero(others & (low - radii <= reach))  # no other ball is nearer than the nearest here
            if len(nearest):
                cut = _down(self._distances(x, nearest)[0] - radii[nearest]).min()
                radius = min(radius, max(float(cut), 0.0))  # these balls do not contain x, so 0 is less than the gap
        return Ball(label, radius, adopted), not bool((radius <= room).any())

    def _containing(self, x: NDArray[Any], numbers: _Numbers) -> tuple[_Numbers, _Floats]:
        """Return those of the balls that contain x, and the radius of a ball around x that each of them contains."""
        near, far = self._distances(x, numbers)
        radii = self._radii[numbers]
        inside = far <= radii
        for place in np.flatnonzero((near <= radii) & ~inside):
            inside[place] = _contains(self._centres[numbers[place]], float(radii[place]), x)
        radii, far = radii[inside], far[inside]
        return numbers[inside], np.where(far > 0, np.maximum(_down(radii - far), 0.0), radii)

    def _bounds(self, x: NDArray[Any]) -> tuple[_Floats, _Floats]:
        """Bound the distances of all centres, from products in the precision of the inputs.

        A sum of k products, in any order and with or without fused steps, is off by at most γ = ku/(1 − ku) times the
        sum of their sizes (Higham, 2002, §3.1), which is at most half of ‖c‖² + ‖x‖². The products enter twice; three
        times γ(‖c‖² + ‖x‖²) also covers all that is done in double precision, the roots included.
        """
        k, unit = x.size + 8, float(np.finfo(self._dtype).eps) / 2
        gamma = k * unit / (1 - k * unit) if k * unit < 1 else math.inf
        squares = self._squares[: self._count] + _square(x)
        with np.errstate(all="ignore"):
            products = (self._centres[: self._count] @ x if self._count else np.empty(0)).astype(np.float64)
            squared, error = squares - 2 * products, 3 * gamma * squares + k * float(np.finfo(self._dtype).tiny)
            low, high = np.sqrt(np.maximum(squared - error, 0.0)), np.sqrt(squared + error)
        known = np.isfinite(low) & np.isfinite(high)
        return np.where(known, low, 0.0), np.where(known, high, math.inf)

    def _distances(self, x: NDArray[Any], numbers: _Numbers) -> tuple[_Floats, _Floats]:
        """Bound the distances of some centres from below and above, in double precision; equal centres have 0 and 0."""
        distance, apart = np.empty(len(numbers)), np.empty(len(numbers), bool)
        step = max(_CHUNK_VALUES // x.size, 1)
        for start in range(0, len(numbers), step):
            part = slice(start, start + step)
            rows = self._centres[numbers[part]].astype(np.float64) - x
            distance[part] = np.sqrt(np.einsum("ij,ij->i", rows, rows))
            apart[part] = rows.any(axis=1)  # a difference of 0 is exact
        margin = 2 * (x.size + 8) * 2.0**-53  # twice what differences, squares, sums in any order and the root lose
        near, far = np.maximum(distance * (1 - margin) - _TINY, 0.0), distance * (1 + margin) + _TINY
        return np.where(apart, near, 0.0), np.where(apart, far, 0.0)

    def _vector(self, x: Tensor) -> NDArray[Any]:
        if not x.is_floating_point():
            raise UsageError(f"an input of a memory must be in floating point, got {x.dtype}.")
        values: NDArray[Any] = (x if x.element_size() > 2 else x.float()).detach().cpu().flatten().numpy()
        if not self._count:
            self._dimension, self._dtype = values.size, values.dtype
        if (values.size, values.dtype) != (self._dimension, self._dtype):
            raise UsageError(
                f"the memory holds inputs of {self._dimension} values in {self._dtype}, not of {values.size} in "
                f"{values.dtype}; use a separate memory for these."
            )
        if not values.size or not _square(values) < 1e300:
            raise UsageError("an input of a memory must hold finite values, and at least one.")
        return values

    def _append(self, x: NDArray[Any], label: int, radius: float) -> None:
        square = _square(x)
        if not 0 <= label < 2**63 or not 0 <= radius < math.inf or not square < 1e300:
            raise ValueError("a ball has no class, radius or centre")
        if not self._count:
            self._centres = np.empty((0, x.size), x.dtype)
        if self._count == len(self._centres):
            arrays = (self._centres, self._labels, self._radii, self._squares)
            self._centres, self._labels, self._radii, self._squares = map(_doubled, arrays)
        self._centres[self._count], self._squares[self._count] = x, square
        self._labels[self._count], self._radii[self._count] = label, radius
        self._count += 1

    def _header(self) -> str:
        kind = {"format": _FORMAT, "owner": self.owner, "dimension": self._dimension, "dtype": self._dtype.name}
        return json.dumps(kind)

    def _record(self, x: NDArray[Any], ball: Ball) -> None:
        """Write a ball to the journal."""
        if self._journal is None or self._path is None:
            return
        centre = base64.b64encode(x.astype(x.dtype.newbyteorder("<")).tobytes()).decode()
        size = self._journal.seek(0, os.SEEK_END)
        text = json.dumps([self._count, ball.label, ball.radius, centre])
        data = (f"{text}\n" if size else f"{self._header()}\n{text}\n").encode()
        try:
            while data:
                data = data[self._journal.write(data) :]
            os.fsync(self._journal.fileno())
        except OSError as error:
            self._journal.truncate(size)
            raise _cannot_write(self._path, error) from error

    def _open(self, path: Path) -> None:
        self._lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=0)
        journal = path.with_name(path.name + ".journal")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            if path.exists():
                self._read(path)
            self._journal = journal.open("ab", buffering=0)
            content = journal.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            self._journal.truncate(len(whole))  # a line cut short by a kill: its answer was never returned
            self._replay(whole.decode().splitlines())
        except Timeout as error:
            raise RunError(f"{path} is in use by another process; wait for it or use another memory.") from error
        except BaseException as error:  # Ctrl-C too must not leave the memory locked
            self.close()
            if isinstance(error, OSError):
                raise _cannot_write(path, error) from error
            if isinstance(error, (ValueError, KeyError, TypeError, OverflowError, safetensors.SafetensorError)):
                raise RunError(f"{path} or its journal is damaged ({error}); delete both and certify again.") from error
            raise

    def _read(self, path: Path) -> None:
        with safetensors.safe_open(path, framework="np") as file:
            header = (file.metadata() or {}).get(_METADATA_KEY)
            if header is None:
                raise RunError(f"{path} is not a memory but another safetensors file; give another path.")
            self._read_header(header)
            centres, labels, radii = (file.get_tensor(name) for name in ("centres", "labels", "radii"))
        shape = (len(radii), self._dimension or 0)
        if centres.dtype != self._dtype or centres.shape != shape or labels.shape != radii.shape:
            raise ValueError("its tensors do not fit together")
        for x, label, radius in zip(centres, labels.tolist(), radii.tolist(), strict=True):
            self._append(x, label, radius)

    def _replay(self, lines: list[str]) -> None:
        """Add the balls of a journal, except those that are in the file too after a kill in :meth:`save`."""
        if lines:
            self._read_header(lines[0])
        for number, label, radius, text in map(parse_json, lines[1:]):
            x = np.frombuffer(base64.b64decode(text), self._dtype.newbyteorder("<")).astype(self._dtype)
            if number > self._count or x.size != self._dimension:
                raise ValueError("a ball is missing")
            if number == self._count:
                self._append(x, label, radius)

    def _read_header(self, text: str) -> None:
        head = parse_json(text)
        if head["format"] > _FORMAT:
            raise ValueError(f"its format {head['format']} is that of a newer version")
        kind = (head["owner"], head["dimension"], np.dtype(head["dtype"]))
        if not isinstance(head["owner"], (dict, type(None))):
            raise ValueError("its owner is not an object")
        if self._count and kind != (self.owner, self._dimension, self._dtype):
            raise ValueError("the journal is of another memory")
        self.owner, self._dimension, self._dtype = kind


def _contains(centre: NDArray[Any], radius: float, x: NDArray[Any]) -> bool:
    """Decide in exact arithmetic whether a closed ball contains a point."""
    pairs = zip(centre.tolist(), x.tolist(), strict=True)
    return sum((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs) <= Fraction(radius) ** 2


def _down(differences: _Floats) -> _Floats:
    """Return lower bounds on differences that were rounded to these values."""
    return np.nextafter(differences, -math.inf)


def _square(x: NDArray[Any]) -> float:
    wide = x.astype(np.float64)
    return float(wide @ wide)


def _doubled(values: NDArray[Any]) -> NDArray[Any]:
    longer = np.empty((max(2 * len(values), 16), *values.shape[1:]), values.dtype)
    longer[: len(values)] = values
    return longer


def _without_unrecorded(owner: dict[str, Any], recorded: Mapping[str, Any] | None) -> dict[str, Any]:
    """Drop the model's code from the name of an owner if the recorded name is of a version that did not have it."""
    model, theirs = owner.get("model"), (recorded or {}).get("model")
    if not isinstance(model, Mapping) or not isinstance(theirs, Mapping) or "code" in theirs:
        return owner
    return {**owner, "model": {key: value for key, value in model.items() if key != "code"}}


def _cannot_write(path: Path, error: OSError) -> RunError:
    return RunError(f"cannot write the memory {path} ({error.strerror or error}); free space or give another path.")


def _check_norm(norm: Norm) -> None:
    if norm is not Norm.L2:
        raise UsageError(f"a memory compares l2 balls; certify in l2 or without a memory, not in {norm.value}.")
