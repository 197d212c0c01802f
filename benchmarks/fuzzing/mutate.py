"""Changes to bytes and to trees of plain values; all randomness comes from the generator passed in."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

INTEGERS = (0, 1, -1, 2, 7, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**40, 2**63 - 1)
WIDTHS = {1: "B", 2: "H", 4: "I", 8: "Q"}

DEEP, BIG = "@deep@", "@big@"
"""Text that :func:`json_text` replaces by what ``json.dumps`` cannot write: deep nesting, a number of 5000 digits."""

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'\u2028\u0000\\"

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3,
    255,
    2**31,
    2**40,
    2**63,
    2**64,
    -(2**63) - 1,
    10**30,
    0.0,
    -0.0,
    0.5,
    1e-320,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    " ",
    "0",
    "nan",
    "gaussian",
    "../../outside",
    "/etc/passwd",
    "\ud800",
    "\u0000",
    HOSTILE,
    "x" * 70_000,
    [],
    {},
    [None],
    [[]],
    [1, 2],
    [1.5, "a", None],
    {"name": "gaussian"},
    {"": {"": []}},
    [0] * 5000,
    DEEP,
    BIG,
)
"""What a value of a file is replaced by."""

TOKENS = (
    b"\x00",
    b"\xff" * 8,
    b"\n",
    b"\t",
    b"\r\n",
    b"{",
    b"}",
    b"[" * 64,
    b'"',
    b"-1",
    b"nan",
    b"1e999",
    b"99999999999999999999",
    b"null",
    b"%s%n",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"../" * 4,
    b"PK\x03\x04",
    b"\x1f\x8b",
    b"\x89PNG\r\n\x1a\n",
    b"PAR1",
    b"\x93NUMPY",
    b"cos\nsystem\n(S'true'\ntR.",
)
"""Bytes that mean something to some reader."""


def change_bytes(data: bytes, pick: random.Random, tokens: Sequence[bytes] = (), other: bytes = b"") -> bytes:
    """Change bytes in one to four places.

    Args:
        data: The bytes.
        pick: The source of randomness.
        tokens: Words of the format, in addition to :data:`TOKENS`.
        other: Another file of the kind, for splices.

    Returns:
        The changed bytes.
    """
    changed = bytearray(data)
    for _ in range(pick.choice((1, 1, 1, 2, 4))):
        _change_once(changed, pick, (*TOKENS, *tokens), other or data)
    return bytes(changed)


def _change_once(data: bytearray, pick: random.Random, tokens: Sequence[bytes], other: bytes) -> None:
    # Headers decide what a reader does, so half of the places are among the first or last bytes.
    span = pick.choice((len(data), len(data), 64, 512))
    place = min(len(data), span and pick.randrange(max(1, min(span, len(data) + 1))))
    if pick.random() < 0.15:
        place = max(0, len(data) - place)
    size = min(len(data) - place, pick.choice((1, 2, 4, 8, 16, 64, 1000)))
    way = pick.randrange(10)
    if way == 0 and data:
        data[min(place, len(data) - 1)] ^= 1 << pick.randrange(8)
    elif way == 1 and data:
        data[min(place, len(data) - 1)] = pick.randrange(256)
    elif way == 2:
        del data[place:]
    elif way == 3:
        data[place:place] = data[place : place + size] * pick.choice((1, 1, 2, 50))
    elif way == 4:
        del data[place : place + size]
    elif way == 5:
        data[place:place] = pick.randbytes(size)
    elif way == 6:
        start = pick.randrange(len(other) + 1)
        data[place:] = other[start:]
    elif way == 7:
        width = pick.choice(tuple(WIDTHS))
        value = pick.choice(INTEGERS) % (1 << 8 * width)
        data[place : place + width] = struct.pack(pick.choice("<>") + WIDTHS[width], value)
    elif way == 8:
        token = pick.choice(tokens)
        data[place : place + pick.choice((0, len(token)))] = token
    else:
        data[place : place + size] = bytes([pick.choice((0, 255, 32, 48))]) * size


def change_tree(value: Any, pick: random.Random, values: Sequence[Any] = ()) -> Any:
    """Change plain values in one to three places: drop, add, rename, retype, exchange.

    Args:
        value: Lists, mappings and what they hold; it is not changed itself.
        pick: The source of randomness.
        values: Values that mean something in such a tree, in addition to :data:`VALUES`.

    Returns:
        The changed tree.
    """
    box = [copy.deepcopy(value)]
    for _ in range(pick.choice((1, 1, 1, 2, 3))):
        _change_node(box, pick, (*VALUES, *values))
    return box[0]


def _change_node(box: list[Any], pick: random.Random, values: Sequence[Any]) -> None:
    places: list[tuple[Any, Any]] = []

    def walk(node: Any, depth: int) -> None:
        keys = list(node) if isinstance(node, dict) else range(min(len(node), 40)) if isinstance(node, list) else ()
        for key in keys:
            places.append((node, key))
            if depth < 12:
                walk(node[key], depth + 1)

    walk(box, 0)
    holder, key = pick.choice(places)
    old = holder[key]
    way = pick.randrange(8)
    if way == 0 and holder is not box:
        del holder[key]
    elif way == 1 and isinstance(holder, dict):
        holder[pick.choice((str(key) + "x", "", "name", HOSTILE, str(key).upper()))] = holder.pop(key)
    elif way == 2 and isinstance(holder, list) and holder is not box:
        holder[key:key] = [copy.deepcopy(old) for _ in range(pick.choice((1, 1, 3, 100)))]
    elif way == 3:
        other, place = pick.choice(places)
        holder[key] = copy.deepcopy(other[place]) if holder is not box else old
    elif way == 4 and isinstance(old, (int, float)) and not isinstance(old, bool):
        holder[key] = pick.choice((old + 1, old - 1, -old, old * 1000, old / 3, str(old), [old]))
    elif way == 5 and isinstance(old, str):
        text = change_bytes(old.encode("utf-8", "surrogatepass"), pick).decode("utf-8", "replace")
        holder[key] = pick.choice((text, old.upper(), old + old, [old]))
    elif way == 6 and isinstance(old, dict):
        old[pick.choice(("x", "", "__class__", "format", HOSTILE))] = copy.deepcopy(pick.choice(values))
    else:
        holder[key] = copy.deepcopy(pick.choice(values))  # so that no later change reaches the values themselves


def json_text(value: Any, **settings: Any) -> str:
    """JSON, with what ``json.dumps`` cannot write put in the places of its marks."""
    text = json.dumps(value, **settings)
    return text.replace(f'"{DEEP}"', "[" * 20_000 + "]" * 20_000).replace(f'"{BIG}"', "9" * 5000)


def change_json(text: bytes, pick: random.Random, values: Sequence[Any] = ()) -> bytes:
    """Change JSON as a tree."""
    indent = pick.choice((None, None, 2))
    return json_text(change_tree(json.loads(text), pick, values), indent=indent).encode()


def change_lines(data: bytes, pick: random.Random, change: Callable[[bytes, random.Random], bytes]) -> bytes:
    """Change lines of text: one of them, their order or their number."""
    lines = data.split(b"\n")
    place = pick.randrange(len(lines))
    way = pick.randrange(6)
    if way == 0:
        del lines[place]
    elif way == 1:
        lines[place:place] = [lines[place]] * pick.choice((1, 1, 200))
    elif way == 2:
        other = pick.randrange(len(lines))
        lines[place], lines[other] = lines[other], lines[place]
    else:
        lines[place] = change(lines[place], pick)
    return b"\n".join(lines)


def change_fields(line: bytes, pick: random.Random, separator: bytes = b"\t") -> bytes:
    """Change one field of a line of separated fields."""
    fields = line.split(separator)
    place = pick.randrange(len(fields))
    way = pick.randrange(5)
    if way == 0:
        del fields[place]
    elif way == 1:
        fields.insert(place, pick.choice(fields) if fields else b"")
    elif way == 2:
        fields[place] = change_bytes(fields[place], pick)
    else:
        value = pick.choice(VALUES)
        fields[place] = str(value).encode("utf-8", "surrogatepass") if value not in (DEEP, BIG) else b"9" * 5000
    return separator.join(fields)
