"""Balls that were certified before, so that certificates under different noises never contradict each other.

Every answer given stands: within its radius of its input, every later input is given its class. So a new ball is cut
where it would meet an earlier one of another class, and an input inside an earlier ball is answered with that ball's
class. Three facts keep this sound; all are about real numbers, and rounding is on their side:

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
from smoothcert.types import ABSTAIN, Norm, RunError, UsageError

_METADATA_KEY = "smoothcert_memory"
_FORMAT = 1
_BLOCK_VALUES = 2**22  # coordinates per block of centres: 16 MB in single precision
_TINY = 1e-150  # more than squares that underflow can hide
_Floats = NDArray[np.float64]
_Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Ball:
    """An answer after it passed through a memory.

    Attributes:
        label: The class, or ``ABSTAIN``.
        radius: How far it holds, in ℓ2.
        adopted: Whether the class is that of an earlier ball that contains the input.
    """

    label: int
    radius: float
    adopted: bool = False


class Memory:
    """Certified ℓ2 balls in the order of their certification (the guarantee ``memory``).

    Alfarra et al. (2022) choose a noise for each input alone; their certificates hold together only if they are cut
    against each other, which is done here. Abstentions are not kept, nor are balls inside one of their own class.

    Args:
        path: A file to keep the balls in, continued if it is there. A ball is on disk before its answer is given: first
            in ``<path>.journal``, and in the file itself after :meth:`save`. None keeps them in memory alone.

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

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.owner: dict[str, Any] | None = None
        self._warned = False
        self._blocks: list[NDArray[Any]] = []
        self._labels: _Numbers = np.empty(0, np.int64)
        self._radii: _Floats = np.empty(0)
        self._squares: _Floats = np.empty(0)
        self._count = 0
        self._dimension: int | None = None
        self._dtype = np.dtype(np.float32)
        self._path: Path | None = None
        self._journal: FileIO | None = None
        if path is not None:
            self._path = Path(path)
            self._open(self._path)

    def __len__(self) -> int:
        return self._count

    def bind(self, owner: Mapping[str, Any]) -> None:
        """Say whose answers these are: the model's identity and the noise, as plain values.

        A memory of an earlier version does not know the model's code and attributes; that it is the same model is then
        left to the user, who is warned.

        Raises:
            RunError: If the memory holds answers of another classifier.
        """
        plain = json.loads(json.dumps(owner))
        if self.owner is None and not self._count:
            self.owner = plain
        known = _as_known_to(self.owner, plain)
        if self.owner == known != plain and not self._warned:
            self._warned = True
            warnings.warn(
                "the memory was written by an earlier version, which did not record the code and the attributes of the "
                "model; use it only with the same model.",
                stacklevel=2,
            )
        if self.owner != known:
            raise RunError(
                f"the memory holds balls of another classifier ({_named(self.owner)}) than this one ({_named(plain)}); "
                "give each classifier a memory of its own."
            )

    def resume(self, answered: int) -> None:
        """Refuse to continue a run without the balls of its answers, which later answers could contradict.

        Raises:
            RunError: If there are answers and the memory is empty.
        """
        if answered and not self._count:
            raise RunError(
                "the run holds answers already, but the memory is empty; give the memory they were made with, or begin "
                "a new run."
            )

    def admit(self, x: Tensor, label: int, radius: float, norm: Norm = Norm.L2) -> Ball:
        """Pass an answer through the memory, and keep it.

        Args:
            x: The input.
            label: Its class, or ``ABSTAIN``.
            radius: The radius proved for it; 0 for a class without a radius.
            norm: The norm of the radius.

        Returns:
            What may be answered: the ball cut where it meets earlier ones of other classes; the class of an earlier
            ball that contains the input, where the answer was another or none; or an abstention.

        Raises:
            UsageError: For another norm than ℓ2, a bad radius, or an input of another size or type than those before.
            RunError: If the ball cannot be written; the memory is then as it was before.
        """
        if norm is not Norm.L2:
            raise UsageError(f"a memory compares l2 balls; certify in l2 or without a memory, not in {norm.value}.")
        if not (math.isfinite(radius) and radius >= 0) or label < ABSTAIN:
            raise UsageError(f"a ball needs a class and a finite radius of at least 0, got {label} and {radius}.")
        vector = self._vector(x)
        ball, new = self._settle(vector, label, float(radius))
        if new:
            self._record(vector, ball)
            self._append(vector, ball.label, ball.radius)
        return ball

    def save(self, path: str | os.PathLike[str] | None = None) -> None:
        """Write all balls as one safetensors file, whole or not at all.

        Args:
            path: The file; the memory's own by default, whose journal is then emptied.

        Raises:
            UsageError: If there is no path.
            RunError: If it cannot be written.
        """
        file = Path(path) if path is not None else self._path
        if file is None:
            raise UsageError("a memory that was made without a path needs one to be saved to.")
        counted = slice(0, self._count)
        tensors = {
            "centres": np.concatenate([np.empty((0, self._dimension or 0), self._dtype), *self._filled()]),
            "labels": self._labels[counted].copy(),
            "radii": self._radii[counted].copy(),
        }
        try:
            with replacing(file) as temporary:
                save_file(tensors, temporary, metadata={_METADATA_KEY: self._header()})
            if file == self._path and self._journal is not None:
                self._journal.truncate(0)
        except OSError as error:
            raise _cannot_write(file, error) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Memory:
        """The memory kept in a file, its journal included; it goes on being kept there.

        Raises:
            RunError: If there is none, or it is damaged or in use.
        """
        if not Path(path).exists() and not _journal_of(Path(path)).exists():
            raise RunError(f"there is no memory at '{path}'.")
        return cls(path)

    def close(self) -> None:
        """Let others use the file; from then on the balls are kept in memory alone."""
        if self._journal is not None:
            self._journal.close()
        if self._path is not None:
            self._lock.release()
        self._path, self._journal = None, None

    def _settle(self, x: NDArray[Any], label: int, radius: float) -> tuple[Ball, bool]:
        """The answer, and whether it is to be kept."""
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
            rivals = np.flatnonzero(others & (low - radii <= reach))  # nobody else is nearer than the nearest of these
            if len(rivals):
                cut = _down(self._distances(x, rivals)[0] - radii[rivals]).min()
                radius = min(radius, max(float(cut), 0.0))  # a rival does not contain x, so 0 is less than its distance
        return Ball(label, radius, adopted), not bool((radius <= room).any())

    def _containing(self, x: NDArray[Any], numbers: _Numbers) -> tuple[_Numbers, _Floats]:
        """Those of the balls that contain x, and how large a ball around x each of them contains."""
        near, far = self._distances(x, numbers)
        radii = self._radii[numbers]
        inside = far <= radii
        for place in np.flatnonzero((near <= radii) & ~inside):
            block, row = divmod(int(numbers[place]), self._rows)
            inside[place] = _contains(self._blocks[block][row], float(radii[place]), x)
        radii, far = radii[inside], far[inside]
        return numbers[inside], np.where(far > 0, np.maximum(_down(radii - far), 0.0), radii)

    def _bounds(self, x: NDArray[Any]) -> tuple[_Floats, _Floats]:
        """Bounds on the distances of all centres, from products in their own precision.

        A sum of k products, in any order and with or without fused steps, is off by at most γ = ku/(1 − ku) times the
        sum of their sizes (Higham, 2002, §3.1), which is at most half of ‖c‖² + ‖x‖². The products enter twice; three
        times γ(‖c‖² + ‖x‖²) also covers all that is done in double precision, the roots included.
        """
        k, unit = x.size + 8, float(np.finfo(self._dtype).eps) / 2
        gamma = k * unit / (1 - k * unit) if k * unit < 1 else math.inf
        squares = self._squares[: self._count] + _square(x)
        with np.errstate(all="ignore"):
            products = np.concatenate([block @ x for block in self._filled()] or [np.empty(0)]).astype(np.float64)
            squared, error = squares - 2 * products, 3 * gamma * squares + k * float(np.finfo(self._dtype).tiny)
            low, high = np.sqrt(np.maximum(squared - error, 0.0)), np.sqrt(squared + error)
        known = np.isfinite(low) & np.isfinite(high)
        return np.where(known, low, 0.0), np.where(known, high, math.inf)

    def _distances(self, x: NDArray[Any], numbers: _Numbers) -> tuple[_Floats, _Floats]:
        """Bounds on the distances of some centres, in double precision: below the truth and above it, or both 0."""
        distance, apart = np.empty(len(numbers)), np.empty(len(numbers), bool)
        owners = numbers // self._rows
        for block in np.unique(owners):
            places = np.flatnonzero(owners == block)
            rows = self._blocks[block][numbers[places] % self._rows].astype(np.float64) - x
            distance[places] = np.sqrt(np.einsum("ij,ij->i", rows, rows))
            apart[places] = rows.any(axis=1)  # a difference of 0 is exact
        margin = 2 * (x.size + 8) * 2.0**-53  # twice what differences, squares, sums in any order and the root lose
        near, far = np.maximum(distance * (1 - margin) - _TINY, 0.0), distance * (1 + margin) + _TINY
        return np.where(apart, near, 0.0), np.where(apart, far, 0.0)

    @property
    def _rows(self) -> int:
        """Centres per block."""
        return min(max(_BLOCK_VALUES // max(self._dimension or 1, 1), 16), 4096)

    def _filled(self) -> list[NDArray[Any]]:
        """The centres, block by block."""
        left = self._count - self._rows * (len(self._blocks) - 1)
        return [*self._blocks[:-1], self._blocks[-1][:left]] if self._blocks else []

    def _vector(self, x: Tensor) -> NDArray[Any]:
        """The input as a row, in the precision of those before."""
        if not x.is_floating_point():
            raise UsageError(f"an input of a memory must be in floating point, got {x.dtype}.")
        values = (x if x.element_size() > 2 else x.float()).detach().cpu().flatten().numpy()
        if not self._count:
            self._dimension, self._dtype, self._blocks = values.size, values.dtype, []
        if (values.size, values.dtype) != (self._dimension, self._dtype):
            raise UsageError(
                f"the memory holds inputs of {self._dimension} values in {self._dtype}, not of {values.size} in "
                f"{values.dtype}; give these a memory of their own."
            )
        if not values.size or not _square(values) < 1e300:
            raise UsageError("an input of a memory must hold finite values, and at least one.")
        return values

    def _append(self, x: NDArray[Any], label: int, radius: float) -> None:
        if self._count == len(self._blocks) * self._rows:
            self._blocks.append(np.empty((self._rows, x.size), x.dtype))
        if self._count == len(self._radii):
            more = max(len(self._radii), 64)
            self._labels = np.append(self._labels, np.empty(more, np.int64))
            self._radii, self._squares = (np.append(old, np.empty(more)) for old in (self._radii, self._squares))
        self._blocks[-1][self._count % self._rows] = x
        self._labels[self._count], self._radii[self._count] = label, radius
        self._squares[self._count] = _square(x)
        self._count += 1

    def _header(self) -> str:
        kind = {"format": _FORMAT, "owner": self.owner, "dimension": self._dimension, "dtype": self._dtype.name}
        return json.dumps(kind)

    def _record(self, x: NDArray[Any], ball: Ball) -> None:
        """Put a ball on disk."""
        if self._journal is None or self._path is None:
            return
        centre = base64.b64encode(x.astype(x.dtype.newbyteorder("<")).tobytes()).decode()
        size = self._journal.seek(0, os.SEEK_END)
        text = json.dumps([self._count, ball.label, ball.radius, centre])
        line = f"{text}\n" if size else f"{self._header()}\n{text}\n"
        data = line.encode()
        try:
            while data:
                data = data[self._journal.write(data) :]
            os.fsync(self._journal.fileno())
        except OSError as error:
            self._journal.truncate(size)
            raise _cannot_write(self._path, error) from error

    def _open(self, path: Path) -> None:
        self._lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=0)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout as error:
            raise RunError(f"{path} is in use by another process; wait for it or give another memory.") from error
        except OSError as error:
            raise _cannot_write(path, error) from error
        try:
            if path.exists():
                self._read(path)
            self._journal = _journal_of(path).open("ab", buffering=0)
            content = _journal_of(path).read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            self._journal.truncate(len(whole))  # a line cut short by a kill: its answer was never given
            self._replay(whole.decode().splitlines())
        except OSError as error:
            self.close()
            raise _cannot_write(path, error) from error
        except (ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
            self.close()
            raise RunError(f"{path} or its journal is damaged ({error}); delete both and certify again.") from error

    def _read(self, path: Path) -> None:
        with safetensors.safe_open(path, framework="np") as file:
            header = (file.metadata() or {}).get(_METADATA_KEY)
            if header is None:
                self.close()
                raise RunError(f"{path} is not a memory but another safetensors file; give another path.")
            self._take_header(header)
            centres, labels, radii = (file.get_tensor(name) for name in ("centres", "labels", "radii"))
        if (
            centres.dtype != self._dtype
            or centres.shape != (len(radii), self._dimension or 0)
            or labels.shape != radii.shape
        ):
            raise ValueError("its tensors do not fit together")
        for x, label, radius in zip(centres, labels.tolist(), radii.tolist(), strict=True):
            self._append_checked(x, label, radius)

    def _replay(self, lines: list[str]) -> None:
        """Add the balls of a journal that are not in the file; those that are were to be dropped when a kill came."""
        if lines:
            self._take_header(lines[0])
        for number, label, radius, text in map(parse_json, lines[1:]):
            x = np.frombuffer(base64.b64decode(text), self._dtype.newbyteorder("<")).astype(self._dtype)
            if number > self._count or x.size != self._dimension:
                raise ValueError("a ball is missing")
            if number == self._count:
                self._append_checked(x, label, radius)

    def _append_checked(self, x: NDArray[Any], label: int, radius: float) -> None:
        if not 0 <= label < 2**63 or not 0 <= radius < math.inf or not _square(x) < 1e300:
            raise ValueError("a ball has no class, radius or centre")
        self._append(x, label, radius)

    def _take_header(self, text: str) -> None:
        head = parse_json(text)
        if head["format"] > _FORMAT:
            raise ValueError(f"its format {head['format']} is that of a newer version")
        kind = (head["owner"], head["dimension"], np.dtype(head["dtype"]))
        if self._count and kind != (self.owner, self._dimension, self._dtype):
            raise ValueError("the journal is of another memory")
        self.owner, self._dimension, self._dtype = kind


def _contains(centre: NDArray[Any], radius: float, x: NDArray[Any]) -> bool:
    """Whether a closed ball contains a point, in exact arithmetic."""
    pairs = zip(centre.tolist(), x.tolist(), strict=True)
    return sum((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs) <= Fraction(radius) ** 2


def _down(values: _Floats) -> _Floats:
    """What is certainly no more than the differences that were rounded to these values."""
    return np.nextafter(values, -math.inf)


def _square(x: NDArray[Any]) -> float:
    wide = x.astype(np.float64)
    return float(wide @ wide)


def _journal_of(path: Path) -> Path:
    return path.with_name(path.name + ".journal")


def _as_known_to(owner: Mapping[str, Any] | None, other: Mapping[str, Any]) -> dict[str, Any]:
    """What a memory that names its owner in this way can know of another one."""
    model, theirs = (owner or {}).get("model"), other.get("model")
    if not isinstance(model, Mapping) or not isinstance(theirs, Mapping) or "code" in model:
        return dict(other)
    return {**other, "model": {key: value for key, value in theirs.items() if key != "code"}}


def _named(owner: Mapping[str, Any] | None) -> str:
    return "unnamed" if owner is None else json.dumps(owner, sort_keys=True)


def _cannot_write(path: Path, error: OSError) -> RunError:
    return RunError(f"cannot write the memory {path} ({error.strerror or error}); free space or give another path.")
