"""Logs of earlier systems: tab-separated text with a header line, one line per input."""

from __future__ import annotations

import codecs
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from smoothcert.files import saving
from smoothcert.store.metrics import Measured
from smoothcert.types import (
    ABSTAIN,
    LARGEST_RADIUS,
    Arithmetic,
    Guarantee,
    LogError,
    Norm,
    StrPath,
    UsageError,
    radius_text,
    wrong_path,
)

if TYPE_CHECKING:
    from smoothcert.store.outcomes import Outcomes


class LogKind(str, Enum):
    """What a log holds for every input."""

    CERTIFICATION = "certification"
    SELECTION = "selection"
    PREDICTION = "prediction"
    ENTROPY = "entropy"


@dataclass(frozen=True)
class Log(Measured):
    """A log.

    Attributes:
        columns: The names of the columns as spelled in the file.
        table: The rows, in file order.
        radii: The radii as printed, in file order; empty for a log without radii.
    """

    path: Path
    kind: LogKind
    columns: tuple[str, ...]
    table: pa.Table
    radii: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.table)

    def __bool__(self) -> bool:
        return True

    @property
    def outcomes(self) -> Outcomes:
        from smoothcert.store.outcomes import Outcomes  # which needs the types of this module

        return Outcomes.from_table(self.path.name, self.table)

    def _all_rows(self) -> pa.Table:
        return self.table


Parser = Callable[[str], Any]


def _field(pattern: str, problem: str, convert: Parser = str, *checks: tuple[Callable[[Any], bool], str]) -> Parser:
    """Return a parser of fields that match a pattern and whose values pass the checks."""

    def parse(text: str) -> Any:
        if not re.fullmatch(pattern, text):
            raise ValueError(problem)
        value = convert(text)
        for valid, otherwise in checks:
            if not valid(value):
                raise ValueError(otherwise)
        return value

    return parse


def _one_of(kind: type[Enum]) -> Parser:
    values = [each.value for each in kind]
    return _field("|".join(values), f"is not one of {', '.join(values)}")


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(?:([0-9]{1,9}) days?, )?([0-9]{1,9}):([0-5][0-9]):([0-5][0-9](?:\.[0-9]+)?)", text)
    if match:
        days, hours, minutes, seconds = match.groups(default="0")
        return 86400 * int(days) + 3600 * int(hours) + 60 * int(minutes) + float(seconds)
    if not re.fullmatch(r"[0-9]{1,15}(\.[0-9]*)?", text):
        raise ValueError("is not a time such as 0:01:18.206684 or 16.6")
    return float(text)


_WHOLE = ("-?[0-9]{1,18}", "is not a whole number", int)
_NOT_NEGATIVE = (lambda value: value >= 0, "is negative")
_FINITE = (math.isfinite, "is not a finite number")
_DECIMAL = (r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", "is not a finite number", float, _FINITE)
_RUNTIME = "is not the name of a runtime, at most 100 characters that begin with a letter"
_SEED = "is not a whole number from 0 to 2^63 - 1"

_natural = _field(*_WHOLE, _NOT_NEGATIVE)
_answer = _field(*_WHOLE, (lambda value: value >= ABSTAIN, "is neither a class nor -1 for an abstention"))
_number = _field(*_DECIMAL)
_radius = _field(*_DECIMAL, _NOT_NEGATIVE, (lambda value: value < LARGEST_RADIUS, "is larger than any radius"))
_probability = _field(*_DECIMAL, (lambda value: 0 < value < 1, "does not lie strictly between 0 and 1"))
_flag = _field("[01]", "is neither 0 nor 1", "1".__eq__)
_runtime = _field(r"[^\W_].{0,99}", _RUNTIME, str, (str.isprintable, _RUNTIME))
_seed = _field("[0-9]{1,19}", _SEED, int, (lambda value: value < 2**63, _SEED))

_METADATA: dict[str, tuple[Parser, Any]] = {
    "norm": (_one_of(Norm), pa.string()),
    "guarantee": (_one_of(Guarantee), pa.string()),
    "arithmetic": (_one_of(Arithmetic), pa.string()),
    "runtime": (_runtime, pa.string()),
    "model": (_field("[0-9a-f]{64}", "is not a SHA-256 in hexadecimal"), pa.string()),
    "seed": (_seed, pa.int64()),
    "alpha": (_probability, pa.float64()),
    "n": (_natural, pa.int64()),
}
METADATA = tuple(_METADATA)  # the columns after the six classic ones; an empty field is unknown
LOGGED_RADIUS = "logged_radius"
"""The column of an imported run that holds the radii as the log prints them."""

_ALIASES = {
    "idx": "index",
    "time": "seconds",
    "unperturbed predict": "clean_predict",
    "unperturbed correct": "clean_correct",
}
_SPELLINGS = {name: spelling for spelling, name in _ALIASES.items()}
_PARSERS: dict[str, tuple[Parser, Any]] = {
    "index": (_natural, pa.int64()),
    "label": (_natural, pa.int64()),
    "predict": (_answer, pa.int64()),
    "radius": (_radius, pa.float64()),
    "correct": (_flag, pa.bool_()),
    "seconds": (_seconds, pa.float64()),
    "clean_predict": (_answer, pa.int64()),
    "clean_correct": (_flag, pa.bool_()),
    **{name: (_number, pa.float64()) for name in ("mean", "std", "min", "max")},
    **_METADATA,
}
LOG_TYPES = {name: kind for name, (_, kind) in _PARSERS.items()}  # the types of the columns of a log

# The first kind whose columns are all there is the kind of the log.
_NEEDED = {
    LogKind.CERTIFICATION: ("index", "label", "predict", "radius"),
    LogKind.SELECTION: ("index", "predict", "radius"),
    LogKind.PREDICTION: ("index", "label", "predict"),
    LogKind.ENTROPY: ("index", "mean"),
}


@dataclass(frozen=True)
class _Column:
    number: int
    spelling: str
    name: str
    parse: Parser
    type: Any

    def error(self, where: str, text: str, problem: str) -> LogError:
        return LogError(f"{where}, column {self.number} ({self.spelling}): {_quote(text)} {problem}.")


def read_log(path: StrPath) -> Log:
    """Read a log of an earlier system, with its columns in any order.

    Radii are read as printed: most published logs have three significant digits, rounded to nearest. Unknown columns
    are kept as text.

    Raises:
        LogError: If the file is not such a log.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "sigma_0.50"
        >>> _ = path.write_text("idx\\tlabel\\tpredict\\tradius\\tcorrect\\ttime\\n0\\t3\\t3\\t0.486\\t1\\t16.6\\n")
        >>> read_log(path).table.to_pylist()
        [{'index': 0, 'label': 3, 'predict': 3, 'radius': 0.486, 'correct': True, 'seconds': 16.6}]
    """
    path = Path(path)
    lines = _lines(path)
    columns = _header(path, lines[0])
    names = {column.name for column in columns}
    kind = next((kind for kind, needed in _NEEDED.items() if names.issuperset(needed)), None)
    if kind is None:
        spelled = {kind: ", ".join(_SPELLINGS.get(n, n) for n in needed) for kind, needed in _NEEDED.items()}
        kinds = "; ".join(f"{needed} ({kind.value})" for kind, needed in spelled.items())
        raise LogError(f"{path}, line 1: unknown header {_quote(lines[0])}; tab-separated columns are needed: {kinds}.")
    rows: list[dict[str, Any]] = []
    radii: list[str] = []
    seen: dict[int, int] = {}
    for number, text in enumerate(lines[1:], start=2):
        where, fields = f"{path}, line {number}", text.split("\t")
        if len(fields) != len(columns):
            many = f"{len(fields)} fields, but the header has {len(columns)} columns"
            raise LogError(f"{where}: {_quote(text)} has {many}.")
        row: dict[str, Any] = {}
        for column, field in zip(columns, fields, strict=True):
            try:
                unknown = not field and column.name in METADATA
                row[column.name] = None if unknown else column.parse(field)
            except ValueError as error:
                raise column.error(where, field, str(error)) from None
        first = seen.setdefault(row["index"], number)
        for name, problem in _contradictions(row) if first == number else [("index", f"is already on line {first}")]:
            column = next(column for column in columns if column.name == name)
            raise column.error(where, fields[column.number - 1], problem)
        rows.append(row)
        radii += [field for column, field in zip(columns, fields, strict=True) if column.name == "radius"]
    table = pa.Table.from_pylist(rows, schema=pa.schema([(column.name, column.type) for column in columns]))
    return Log(path, kind, tuple(column.spelling for column in columns), table, tuple(radii))


def looks_like_log(path: Path) -> bool:
    """Return whether the first line of a file is the header of a log; the log may still be damaged."""
    try:
        with path.open("rb") as file:
            head = file.readline(10_000).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return False
    names = {_ALIASES.get(name, name) for name in (part.strip().lower() for part in head.split("\t"))}
    return len(names) > 1 and "index" in names


def _lines(path: Path) -> list[str]:
    try:
        data = path.read_bytes()
    except OSError as error:
        unreadable = LogError(f"{path}: the log cannot be read ({error.strerror}).")
        raise (wrong_path(unreadable) if isinstance(error, FileNotFoundError) else unreadable) from None
    if data in (b"", codecs.BOM_UTF8):
        raise LogError(f"{path}: the log is empty; a header line is needed.")
    try:
        text, bad = data.decode("utf-8-sig"), data.find(b"\0")
    except UnicodeDecodeError as error:
        text, bad = "", error.start
    if bad >= 0:
        line = data.count(b"\n", 0, bad) + 1
        raise LogError(f"{path}, line {line}: not text (byte 0x{data[bad]:02x}).")
    lines = text.replace("\r\n", "\n").split("\n")
    if last := lines.pop():
        where = f"{path}, line {len(lines) + 1}, column {last.count(chr(9)) + 1}"
        raise LogError(f"{where}: {_quote(last)} has no line end, so it may be cut off; delete the line or end it.")
    return lines


def _header(path: Path, line: str) -> list[_Column]:
    columns: list[_Column] = []
    for number, spelling in enumerate(line.split("\t"), start=1):
        key = spelling.strip().lower()
        name = _ALIASES.get(key, key)
        if percentile := re.fullmatch(r"([0-9]{1,3}) percentile", key):
            column = _Column(number, spelling, f"p{percentile[1]}", _number, pa.float64())
        elif name in _PARSERS:
            column = _Column(number, spelling, name, *_PARSERS[name])
        else:
            column = _Column(number, spelling, spelling.strip(), str, pa.string())
        if any(column.name == other.name for other in columns):
            raise column.error(f"{path}, line 1", spelling, "names a column that is already there")
        columns.append(column)
    return columns


def _contradictions(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the columns of a row that contradict others, and how."""
    if row.get("predict") == ABSTAIN and row.get("radius", 0.0) > 0:
        yield "radius", "contradicts the abstention (predict -1), which has radius 0"
    for correct, predict in (("correct", "predict"), ("clean_correct", "clean_predict")):
        if {correct, predict, "label"} <= row.keys() and row[correct] != (row["label"] == row[predict]):
            yield correct, f"contradicts label {row['label']} and answer {row[predict]}"


def _quote(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")


def write_log(path: StrPath, rows: Iterable[Mapping[str, Any]], *, classic: bool = False) -> None:
    """Write a certification log: ``idx label predict radius correct time``, then the columns of ``METADATA``.

    Radii are rounded down to six decimals, and those of an imported log are written as it prints them. Abstentions are
    -1 with radius 0.0. The file is written atomically.

    Args:
        rows: Mappings with ``index``, ``label``, ``predict``, ``radius`` and ``seconds``, and those of ``METADATA``
            and ``LOGGED_RADIUS`` that are known; other keys are ignored.
        classic: Whether to write the first six columns only, for scripts that expect no others.

    Raises:
        UsageError: If a row lacks a key or has an invalid value.
        SmoothcertError: If the file cannot be written.
    """
    extra = () if classic else METADATA
    lines = ["\t".join(("idx", "label", "predict", "radius", "correct", "time", *extra))]
    seen: set[int] = set()
    for number, row in enumerate(rows, start=1):
        try:
            index, label, predict = (operator.index(row[key]) for key in ("index", "label", "predict"))
            radius, seconds = float(row["radius"]), float(row["seconds"])
        except KeyError as missing:
            raise UsageError(f"row {number} cannot be written to a log: it has no {missing}.") from None
        except (TypeError, ValueError):
            raise UsageError(f"row {number} cannot be written to a log: not all values are numbers.") from None
        if min(index, label) < 0 or predict < ABSTAIN or not 0 <= radius < LARGEST_RADIUS or not 0 <= seconds < 1e15:
            raise UsageError(f"row {number} cannot be written to a log: a value is negative or not finite.")
        if index in seen:
            raise UsageError(f"row {number} cannot be written to a log: index {index} is already there.")
        seen.add(index)
        shown = "0.0" if predict == ABSTAIN else radius_text(radius, 6)
        if (logged := row.get(LOGGED_RADIUS)) is not None:
            shown = _logged_text(number, logged, radius)
        whole, micro = divmod(round(seconds * 1_000_000), 1_000_000)
        duration = f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}.{micro:06}"
        fields = [str(index), str(label), str(predict), shown, str(int(label == predict)), duration]
        lines.append("\t".join([*fields, *(_metadata_text(number, name, row.get(name)) for name in extra)]))
    with saving(path) as temporary:
        temporary.write_bytes(("\n".join(lines) + "\n").encode())


def _logged_text(number: int, logged: Any, radius: float) -> str:
    """Return the text of a logged radius; refuse one that names another number."""
    try:
        if _radius(str(logged)) == radius:
            return str(logged)
    except ValueError:
        pass
    raise UsageError(f"row {number} cannot be written to a log: its logged radius {logged!r} is not {radius}.")


def _metadata_text(number: int, name: str, value: Any) -> str:
    """Format a value as :func:`read_log` reads it; empty where it is unknown."""
    if value is None:
        return ""
    text = str(value.value) if isinstance(value, Enum) else str(value)
    try:
        _METADATA[name][0](text)
    except ValueError as problem:
        raise UsageError(f"row {number} cannot be written to a log: its {name} {_quote(text)} {problem}.") from None
    return text
