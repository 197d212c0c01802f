"""Metrics of certified robustness over a set of inputs: pure NumPy, no tolerance that could overstate."""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from smoothcert.types import UsageError

if TYPE_CHECKING:
    from smoothcert.store.outcomes import Outcomes


def certified_counts(outcomes: Outcomes, radii: ArrayLike) -> NDArray[np.int64]:
    """Count the inputs whose certified class is correct and whose radius is at least r, for every r in ``radii``."""
    wanted = np.atleast_1d(np.asarray(radii, dtype=np.float64))
    if not (wanted >= 0).all():
        raise UsageError("the radii of certified accuracy must be numbers, 0 or larger.")
    proved = np.sort(outcomes.radius[outcomes.correct])
    return np.asarray(len(proved) - np.searchsorted(proved, wanted, side="left"), dtype=np.int64)


def certified_accuracy(outcomes: Outcomes, radii: ArrayLike) -> NDArray[np.float64]:
    """Compute the share of inputs in [0, 1] that :func:`certified_counts` counts."""
    return certified_counts(outcomes, radii) / len(outcomes)


def clean_accuracy(outcomes: Outcomes) -> float:
    """Compute the certified accuracy at radius 0."""
    return float(outcomes.correct.mean())


def average_certified_radius(outcomes: Outcomes) -> float:
    """Compute the ACR: the mean over **all** inputs of the radius, with 0 where the answer is not correct."""
    return math.fsum(outcomes.radius[outcomes.correct]) / len(outcomes)


class Measured(ABC):
    """A run or a log on disk, which can be measured; it is accepted wherever a path is."""

    path: Path

    @abstractmethod
    def _all_rows(self) -> pa.Table:
        """Read all rows."""

    @property
    @abstractmethod
    def outcomes(self) -> Outcomes:
        """The certified answers, read from the files each time.

        Raises:
            SmoothcertError: If there are no rows, or no certificates.
        """

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def acr(self) -> float:
        """The average certified radius: the mean over all inputs, with 0 where the answer is not correct."""
        return average_certified_radius(self.outcomes)

    @property
    def accuracy(self) -> float:
        """The share of inputs whose certified class is correct: the certified accuracy at radius 0."""
        return clean_accuracy(self.outcomes)

    @overload
    def certified_accuracy(self, radius: float) -> float: ...

    @overload
    def certified_accuracy(self, radius: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]: ...

    def certified_accuracy(self, radius: ArrayLike) -> float | NDArray[np.float64]:
        """Return the share of inputs whose class is correct and certified at this radius, or at each of several."""
        found = certified_accuracy(self.outcomes, radius)
        return float(found[0]) if np.ndim(radius) == 0 else found

    def to_pandas(self) -> Any:
        """Return the rows as a ``pandas.DataFrame``.

        Raises:
            UsageError: If pandas is not installed.
        """
        try:
            importlib.import_module("pandas")  # which pyarrow needs
        except ImportError as error:
            raise UsageError("a data frame needs pandas; pip install pandas, or use the Arrow table.") from error
        return self._all_rows().to_pandas()
