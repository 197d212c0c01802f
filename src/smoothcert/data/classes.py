"""Lists of classes: the names of a model's classes in order, and whether a dataset has the classes of a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smoothcert.files import parse_json
from smoothcert.types import DataError, wrong_path

WNID = re.compile(r"n\d{8}")
MAX_CLASSES = 1_000_000
LARGEST_LIST = 1 << 26  # bytes
_AMBIGUOUS = -1


class ClassList:
    """Classes in order; each is found by its names, in any case and punctuation, or by one name of several.

    Args:
        entries: The names of each class; the last one is shown.
        origin: Where the list comes from, for messages.

    Example:
        >>> listed = ClassList([["n01440764", "tench, Tinca tinca"], ["n01443537", "goldfish"]], "names.json")
        >>> listed.number("Goldfish"), listed.number("n01440764"), listed.number("tench"), listed.number("cat")
        (1, 0, 0, None)
    """

    def __init__(self, entries: Iterable[Sequence[str]], origin: str) -> None:
        kept = [tuple(entry) for entry in entries]
        self.names = tuple(entry[-1] for entry in kept)
        self.origin = origin
        self._numbers: dict[str, int] = {}
        for spelled in (lambda name: {name}, lambda name: {plain(name)}, spellings):  # a better match comes first
            found: dict[str, int] = {}
            for number, entry in enumerate(kept):
                for form in {form for name in entry for form in spelled(name)}:
                    found[form] = _AMBIGUOUS if form in found else number
            self._numbers = found | self._numbers

    def number(self, name: str) -> int | None:
        """Return the class of a name, or None; raise a DataError if several classes have it."""
        found = self._numbers.get(name, self._numbers.get(plain(name)))
        if found == _AMBIGUOUS:
            raise DataError(f"{self.origin} has several classes named '{name}'; give them different names.")
        return found


def plain(name: str) -> str:
    """Return a name without case and punctuation, or as it is if nothing else is left of it."""
    return re.sub(r"[\W_]+", "", name.casefold()) or name


def spellings(name: str) -> set[str]:
    """Return the plain forms of a name, and of each of several names separated by commas."""
    return {plain(part) for part in (name, *name.split(",")) if part.strip()}


@cache
def imagenet_classes() -> ClassList:
    """Return the 1,000 classes of ImageNet (ILSVRC 2012), by WordNet identifier and name."""
    text = resources.files("smoothcert.data").joinpath("imagenet.txt").read_text(encoding="utf-8")
    return ClassList(map(_entry, text.splitlines()), "imagenet")


def read_classes(given: str, folder: Path | None = None) -> ClassList:
    """Read a list of classes.

    Args:
        given: ``imagenet``, or a file: text with one name per line, JSON with a list of names, with names by number
            (also ``[wnid, name]``), or with numbers by name.
        folder: A folder that is searched for the file too.

    Raises:
        DataError: The file is missing, or is not such a list.
    """
    if given == "imagenet":
        return imagenet_classes()
    path = near(given, folder)
    content = read_text(path, LARGEST_LIST)
    try:
        entries = _json_entries(parse_json(content)) if path.suffix == ".json" else _text_entries(content)
    except ValueError as error:
        raise DataError(f"{path} is not a list of classes: {error}.") from error
    if not entries:
        raise DataError(f"{path} is an empty list of classes; write one name per line.")
    return ClassList(entries, str(path))


def near(given: str, folder: Path | None) -> Path:
    """Return the path of a file that is in the folder or in the current one."""
    path = Path(given).expanduser()
    found = [place for place in ([folder / path] if folder else []) + [path] if place.is_file()]
    if not found:
        raise wrong_path(DataError(f"{path} does not exist; give the path of a file."))
    return found[0]


def read_text(path: Path, limit: int) -> str:
    """Read a text file in UTF-8, and refuse one that is too large."""
    try:
        if path.stat().st_size > limit:
            raise DataError(f"{path} has {path.stat().st_size} bytes, more than the {limit} that are read.")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8 ({error.reason} at byte {error.start}); convert it.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from error


def _text_entries(content: str) -> list[tuple[str, ...]]:
    lines = [line.strip() for line in content.rstrip().split("\n")] if content.strip() else []
    if "" in lines:
        raise ValueError(f"line {lines.index('') + 1} is empty")
    return [_entry(line) for line in lines]


def _entry(line: str) -> tuple[str, ...]:
    """Split a line that begins with a WordNet identifier."""
    wnid, _, name = line.partition(" ")
    return (wnid, name.strip()) if WNID.fullmatch(wnid) and name.strip() else (line,)


def _json_entries(content: Any) -> list[tuple[str, ...]]:
    if isinstance(content, Mapping) and isinstance(content.get("id2label"), Mapping):
        content = content["id2label"]
    if isinstance(content, Mapping) and content and all(type(value) is int for value in content.values()):
        numbered: dict[Any, Any] = {}
        for name, number in content.items():
            if number in numbered:
                raise ValueError(f"the classes '{numbered[number]}' and '{name}' are both {number}")
            numbered[number] = name
        content = {str(number): name for number, name in numbered.items()}
    if isinstance(content, Mapping):
        missing = [number for number in range(len(content)) if str(number) not in content]
        if missing:
            raise ValueError(f"it has {len(content)} classes, but none with the number {missing[0]}")
        content = [content[str(number)] for number in range(len(content))]
    if not isinstance(content, list):
        raise ValueError("write a list of names, or names by number")
    entries = [tuple(each) if isinstance(each, list) and each else (each,) for each in content]
    for number, entry in enumerate(entries):
        if not all(isinstance(name, str) and name.strip() for name in entry):
            raise ValueError(f"class {number} is not a text")
    return entries


def number_labels(
    values: Sequence[str], classes: ClassList | None, where: Path | str, known: Iterable[str] = ()
) -> tuple[NDArray[np.int64], tuple[str, ...], bool]:
    """Return the labels of written ones, the names of all classes, and whether the classes were sorted by name.

    Whole numbers are labels already. Names are numbered by the list of classes, or without one in sorted order.

    Args:
        known: Other values that occur, such as those of another split.
    """
    found = sorted({*values, *known})
    if classes is not None:
        numbers = {value: _listed(value, classes, where) for value in found}
        names, sorted_names = classes.names, False
    elif all(re.fullmatch(r"[0-9]{1,6}", value) for value in found):
        numbers = {value: int(value) for value in found}
        names, sorted_names = tuple(map(str, range(max(numbers.values()) + 1))), False
    else:
        for value in found:
            if _is_number(value):
                raise DataError(
                    f"{where} has the label {value}; number classes from 0, or list their names with classes=FILE."
                )
        numbers = {value: number for number, value in enumerate(found)}
        names, sorted_names = tuple(found), True
    return np.array([numbers[value] for value in values], dtype=np.int64), names, sorted_names


def _listed(value: str, classes: ClassList, where: Path | str) -> int:
    number = classes.number(value)
    if number is None and re.fullmatch(r"[0-9]{1,6}", value) and int(value) < len(classes.names):
        number = int(value)
    if number is None:
        raise DataError(
            f"{where} has the class '{shown(value)}', which is not among the {len(classes.names)} of {classes.origin}; "
            "correct one of them."
        )
    return number


def shown(text: str) -> str:
    """Shorten a text from a file for a message."""
    return text if len(text) <= 60 else f"{text[:57]}…"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def mismatch(dataset: Any, count: int, names: Sequence[str] | None) -> str | None:
    """Return what to do if the labels of a dataset cannot be the classes of a model, and None if they can.

    A dataset whose classes were sorted by name is numbered as the model, if the model has a class of each name.

    Args:
        count: The number of classes of the model.
        names: The names of the classes of the model, if known.
    """
    by_name = getattr(dataset, "by_name", False)
    if by_name and names is not None:
        listed = ClassList([[name] for name in names], "the model")
        if all(listed.number(name) is not None for name in dataset.class_names):
            dataset.use_classes(listed)
            return None
    fewer = dataset.num_classes < count and not by_name and not getattr(dataset, "complete", False)
    if dataset.num_classes != count and not fewer:
        if by_name and dataset.num_classes < count:
            return "list the classes of the model in order in a file, and add classes=FILE to the name of the data"
        return "use a dataset with the classes of the model"
    if names is not None and not _agree(dataset.class_names, names):
        return (
            "their names differ, so labels would be compared with other classes: use a dataset with the classes of the "
            "model, or add classes=FILE to the name of the data, a list of what its labels mean in the model's words"
        )
    return None


def _agree(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Return whether two lists of names may be of the same classes in the same order.

    Numbers are not names, and a WordNet identifier cannot be compared with a name. Of long lists a tenth may be spelled
    differently.
    """
    pairs = list(zip(ours, theirs, strict=False))
    if any(all(name.isdigit() for name in names) for names in (ours, theirs)):
        return True
    if len({all(WNID.fullmatch(name) for name in names) for names in (ours, theirs)}) > 1:
        return True
    forms = [(spellings(a), spellings(b)) for a, b in pairs]
    different = [number for number, (a, b) in enumerate(forms) if not a & b]
    elsewhere = {form for name in theirs for form in spellings(name)}
    moved = any(forms[number][0] & elsewhere for number in different)
    return not moved and len(different) * 10 < max(len(pairs), 1)
