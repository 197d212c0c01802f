"""The interface of a noise: it draws noisy copies of an input and computes the radius that its distribution proves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothcert.stats.binomial import FloatArray
from smoothcert.types import Norm, UsageError, is_certified

if TYPE_CHECKING:
    from torch import Generator, Tensor


@dataclass(frozen=True)
class Noise(ABC):
    """A noise distribution; subclasses implement :meth:`sample`, :attr:`scale`, ``_radius`` and ``_threshold``."""

    name: ClassVar[str]  # in the registry and in run files
    norms: ClassVar[tuple[Norm, ...]]  # the norms the noise certifies, the default one first
    symbol: ClassVar[str] = ""  # of the first setting, which is its scale, in tables; its name by default
    additive: ClassVar[bool] = True  # whether a copy is the input plus something that does not depend on the input
    rounds: ClassVar[bool] = False  # whether _radius and _threshold round outwards; otherwise the base class does
    two_sided: ClassVar[bool] = False  # whether a bound on the runner-up lengthens a radius, by _radius_between

    @abstractmethod
    def sample(self, x: Tensor, out: Tensor, generator: Generator | None = None) -> Tensor:
        """Overwrite ``out`` with noisy copies of ``x`` and return it; the noise depends on generator and shape only.

        Args:
            x: An input, or a batch; must broadcast to the shape of ``out``.
            out: A contiguous tensor.
            generator: The source of randomness, on the device of ``out``.
        """

    @property
    @abstractmethod
    def scale(self) -> float:
        """The standard deviation of one coordinate, in the units of the input."""

    @property
    def usual_radius(self) -> float:
        """The target radius where none is given, such as in the evaluation of a model in training."""
        return self.scale

    @property
    def exact(self) -> bool:
        """Whether noise is drawn and added in whole numbers, so that the certificate covers the copies as computed."""
        return False

    def check(self, x: Tensor) -> None:  # noqa: B027  (most noises are defined around every input)
        """Raise a UsageError if the certificate does not cover an input (or batch); most noises accept any."""

    def offset(self, x: Tensor, norm: Norm | str | None = None) -> float:
        """Return the distance from an input to the grid point that replaces it; 0 without a grid.

        The radius around the input is shorter by this distance. It is rounded up to a power of two, so that inputs
        share the tables of a threshold.
        """
        self.resolve_norm(norm)
        return 0.0

    def nearest(self, x: Tensor) -> Tensor:
        """Return the nearest input that :meth:`check` accepts; the input itself without a grid."""
        return x

    def radius(
        self,
        p: ArrayLike,
        norm: Norm | str | None = None,
        dimension: int | None = None,
        offset: ArrayLike = 0.0,
        p_upper: ArrayLike = 1.0,
    ) -> FloatArray:
        """Return the radius proved by a lower bound ``p`` on the probability of the top class.

        Args:
            p: Lower bound(s) on the probability of the top class.
            norm: One of :attr:`norms`; the first by default.
            dimension: Number of coordinates of an input, for norms whose radius depends on it.
            offset: The :meth:`offset` of the input(s).
            p_upper: Upper bound(s) on the probability of every other class; 1 without one. Below 1 − p it lengthens
                the radius, for noises that are ``two_sided``.

        Returns:
            The radius for each p, rounded down; 0 where p ≤ ½ and p ≤ p_upper.
        """
        p, p_upper = np.broadcast_arrays(np.asarray(p, dtype=np.float64), np.asarray(p_upper, dtype=np.float64))
        for name, values in (("p", p), ("p_upper", p_upper)):
            if not np.all((values >= 0) & (values <= 1)):
                raise UsageError(f"{name} must be a probability between 0 and 1.")
        norm, dimension = self.resolve_norm(norm), _checked(dimension)
        radius = self._radius(np.maximum(p, 0.5), norm, dimension)
        closer = (p_upper < 1.0 - p) & (p_upper < p)
        if np.any(closer):
            self.require_two_sided()
            between = self._radius_between(np.where(closer, p, 0.5), np.where(closer, p_upper, 0.5), norm, dimension)
            radius = np.where(closer, between, radius)
        # A few units in the last place: the error of the special functions may not lengthen a radius.
        slack = 0.0 if self.rounds else 1e-14
        return shortened(np.where(is_certified(p, p_upper), np.maximum(radius * (1.0 - slack), 0.0), 0.0), offset)

    def require_two_sided(self) -> None:
        """Raise a UsageError if a bound on the runner-up does not lengthen the radius of this noise."""
        if not self.two_sided:
            raise UsageError(f"{self.name} noise has no radius for the runner-up bound; use the plain bound.")

    def threshold(
        self, r: ArrayLike, norm: Norm | str | None = None, dimension: int | None = None, offset: ArrayLike = 0.0
    ) -> FloatArray:
        """Return the probability that the top class must exceed to prove radius ``r``; the inverse of :meth:`radius`.

        Args:
            r: Radius or radii, ≥ 0.
            norm, dimension, offset: As :meth:`radius`.

        Returns:
            The threshold for each r, rounded up, so that a bound above it proves r; at most 1.
        """
        r = np.asarray(r, dtype=np.float64)
        if not np.all(r >= 0):
            raise UsageError("a radius must be a number ≥ 0.")
        offset = np.asarray(offset, dtype=np.float64)
        r = np.where(offset > 0, np.nextafter(r + offset, np.inf), r)
        slack = 0.0 if self.rounds else 1e-15
        return np.minimum(self._threshold(r, self.resolve_norm(norm), _checked(dimension)) * (1.0 + slack), 1.0)

    @abstractmethod
    def _radius(self, p: FloatArray, norm: Norm, dimension: int | None) -> FloatArray: ...

    @abstractmethod
    def _threshold(self, r: FloatArray, norm: Norm, dimension: int | None) -> FloatArray: ...

    def _radius_between(self, p: FloatArray, q: FloatArray, norm: Norm, dimension: int | None) -> FloatArray:
        """Return the radius for probabilities of at least ``p`` of the top class and at most ``q`` ≤ p of any other.

        Differences must be rounded down: the base class only covers relative errors of the result.
        """
        raise NotImplementedError

    def resolve_norm(self, norm: Norm | str | None) -> Norm:
        """Return the given norm, or the default one for None; raise a UsageError if the noise does not certify it."""
        if norm is None:
            return self.norms[0]
        if norm not in list(self.norms):
            known, given = ", ".join(n.value for n in self.norms), norm.value if isinstance(norm, Norm) else norm
            raise UsageError(f"{self.name} noise does not certify the norm {given!r}; it certifies: {known}.")
        return Norm(norm)

    def require_dimension(self, norm: Norm, dimension: int | None) -> int:
        """Return the dimension, or raise a UsageError if it is missing."""
        if dimension is None:
            raise UsageError(
                f"the {norm.value} radius of {self.name} noise depends on the number of coordinates of an input; give "
                "the dimension, such as 784 for MNIST."
            )
        return dimension

    def config(self) -> dict[str, str | float]:
        """Return the noise as plain values for run files, without settings that are None."""
        settings = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"name": self.name, **{key: value for key, value in settings.items() if value is not None}}


def shortened(radius: FloatArray, offset: ArrayLike) -> FloatArray:
    """Subtract the offset of each input from its radius, rounded down; never below 0.

    Example:
        >>> shortened(np.array([0.5, 0.5, 0.001]), np.array([0.0, 0.25, 0.25])).round(12).tolist()
        [0.5, 0.25, 0.0]
    """
    offset = np.asarray(offset, dtype=np.float64)
    return np.where(offset > 0, np.maximum(np.nextafter(radius - offset, 0.0), 0.0), radius)


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def off_grid(x: Tensor, off: NDArray[np.bool_], needed: str, advice: str) -> UsageError:
    """Return the error about the values of an input that are not on the grid of a noise."""
    values = ", ".join(f"{value:.6g}" for value in x.detach().cpu().double().numpy()[off][:3])
    share = f"{int(off.sum())} of {off.size} values of the input"
    return UsageError(f"{share}, such as {values}, are not {needed}; {advice}")


def _checked(dimension: int | None) -> int | None:
    if dimension is not None and (not is_whole(dimension) or dimension < 1):
        raise UsageError(f"the dimension must be a whole number of at least 1, got {dimension!r}.")
    return dimension


def invalid_rows(batch: Tensor) -> Tensor:
    """Return which rows of a batch of noisy copies come from an invalid draw, and so may not vote for any class.

    Inputs are finite, so only such a copy contains NaN; all its values are NaN, so its first value is enough.

    Example:
        >>> import torch
        >>> invalid_rows(torch.tensor([[0.5, 1.0], [torch.nan, torch.nan]])).tolist()
        [False, True]
    """
    return batch.reshape(len(batch), -1)[:, 0].isnan()
