"""Functions of NumPy arrays, such as the classifiers of scikit-learn, as models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from smoothcert.types import UsageError


class NumpyFunction(nn.Module):
    """A function from a batch of arrays to scores or classes.

    Args:
        function: Maps an array (rows, …) to scores (rows, classes), or to classes (rows,).
        num_classes: The number of classes.
        flatten: Whether it takes each input as one row of features.
    """

    def __init__(self, function: Callable[[Any], Any], num_classes: int, *, flatten: bool = False) -> None:
        super().__init__()
        self.function, self.num_classes, self.flatten = function, num_classes, flatten

    def forward(self, x: Tensor) -> Tensor:
        rows = x.detach().cpu().numpy()
        returned = np.asarray(self.function(rows.reshape(len(rows), -1) if self.flatten else rows))
        if returned.shape == (len(rows),):
            if returned.dtype.kind not in "iub" or not ((returned >= 0) & (returned < self.num_classes)).all():
                raise UsageError(
                    f"the function returned {returned.dtype} values as classes; return integers from 0 to "
                    f"{self.num_classes - 1}, or scores of shape (rows, {self.num_classes})."
                )
            returned = np.eye(self.num_classes, dtype=np.float32)[returned.astype(int)]
        if returned.shape != (len(rows), self.num_classes):
            raise UsageError(
                f"the function returned shape {returned.shape} for {len(rows)} inputs; return scores of shape "
                f"({len(rows)}, {self.num_classes}) or one class for each input."
            )
        return torch.from_numpy(np.array(returned)).to(x.device)  # a copy, since some arrays are read-only


def from_numpy(function: Any, num_classes: int | None = None) -> nn.Module:
    """Make a model of a function of NumPy arrays, or of a fitted classifier of scikit-learn.

    Args:
        function: Maps an array (rows, …) in [0, 1] to scores (rows, classes) or to classes (rows,); or an object with
            ``predict_proba``, ``decision_function`` or ``predict`` and ``classes_``, which takes rows of features.
        num_classes: The number of classes; needed for a function.

    Raises:
        UsageError: It cannot be called, or the number of classes is missing.

    Example:
        >>> model = from_numpy(lambda rows: np.stack([rows.sum(1), 1 - rows.sum(1)], 1), num_classes=2)
        >>> model(torch.zeros(1, 3))
        tensor([[0., 1.]])
    """
    classes = getattr(function, "classes_", None)
    if classes is not None:
        scoring = next((name for name in ("predict_proba", "decision_function") if hasattr(function, name)), None)
        if scoring is None or (len(classes) == 2 and scoring == "decision_function"):
            return NumpyFunction(_Positions(function), len(classes), flatten=True)
        return NumpyFunction(getattr(function, scoring), len(classes), flatten=True)
    if not callable(function):
        raise UsageError(f"give a function of arrays or a fitted classifier, not a {type(function).__name__}.")
    if num_classes is None:
        raise UsageError("give num_classes: the number of classes of a function is not known before it is called.")
    return NumpyFunction(function, num_classes)


class _Positions:
    """The position of each predicted class in ``classes_``."""

    def __init__(self, classifier: Any) -> None:
        self.classifier = classifier

    def __call__(self, rows: Any) -> Any:
        return np.searchsorted(self.classifier.classes_, self.classifier.predict(rows))
