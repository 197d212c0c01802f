"""Datasets that the user's code makes: ``package.module:factory`` or ``path/to/file.py:factory``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex

from PIL import Image

from smoothcert.data.base import checked_index
from smoothcert.data.inputs import labelled_input
from smoothcert.specifiers import accepted, call_object
from smoothcert.tensors import as_tensor
from smoothcert.types import UsageError

if TYPE_CHECKING:
    from torch import Tensor


class OwnDataset:
    """A dataset of the user's code: tensors, arrays or images of Pillow, which are converted to [0, 1].

    Its attributes ``num_classes``, ``classes`` or ``class_names``, ``levels`` and ``input_range`` are used if it has
    them.
    """

    def __init__(self, made: Any, *, name: str, split: str, num_classes: int | None = None) -> None:
        if not hasattr(made, "__len__") or not hasattr(made, "__getitem__"):
            raise UsageError(
                f"{name} returned a {type(made).__name__}, not a dataset; return one with a length and (input, label) "
                "pairs by index."
            )
        if not len(made):
            raise UsageError(f"{name} returned an empty dataset.")
        self._made, self.name, self.split = made, name, split
        first = labelled_input(made, 0)[0]
        self.shape = tuple(as_tensor(first).shape)
        listed = [getattr(made, key, None) for key in ("class_names", "classes")]
        names = next((list(each) for each in listed if isinstance(each, (list, tuple))), [])
        count = num_classes if num_classes is not None else getattr(made, "num_classes", None) or len(names) or None
        if count is None:
            raise UsageError(f"{name} does not tell the number of its classes; add num_classes=N.")
        if type(count) is not int or count < 2 or (names and len(names) != count):
            raise UsageError(
                f"{name} has num_classes {count!r} and {len(names)} names of classes; correct one of them."
            )
        self.num_classes = count
        self.class_names = tuple(map(str, names)) or tuple(map(str, range(count)))
        self.levels: int | None = getattr(made, "levels", 255 if isinstance(first, Image.Image) else None)
        self.input_range: tuple[float, float] | None = getattr(made, "input_range", (0.0, 1.0))

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, index: SupportsIndex) -> tuple[Tensor, int]:
        i = checked_index(index, len(self))
        x, label = labelled_input(self._made, i)
        if not 0 <= label < self.num_classes:
            raise UsageError(
                f"input {i} of {self.name} has label {label}, but classes are 0 to {self.num_classes - 1}."
            )
        return as_tensor(x), label


def make_dataset(made: Any, text: str, split: str, options: Mapping[str, Any]) -> OwnDataset:
    """Call the user's function or class, or use a dataset that the user's code already has.

    Args:
        made: The function, class or dataset.
        text: Its name in the specifier.
        split: Given to the function if it has such a parameter.
        options: Arguments of the function; and ``num_classes``, if the function does not accept it.

    Raises:
        UsageError: The code cannot be called, or does not return a dataset.
    """
    arguments = dict(options)
    count = None if accepted(made, {"num_classes": 0}) else arguments.pop("num_classes", None)
    if callable(made):
        made = call_object(made, {**accepted(made, {"split": split}), **arguments}, text)
    elif arguments:
        raise UsageError(f"{text} is a dataset, not a function, so it takes no {', '.join(arguments)}.")
    return OwnDataset(made, name=text.rpartition(":")[2], split=split, num_classes=count)
