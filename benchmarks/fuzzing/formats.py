"""Changes to what a file means, written as a well-formed file again, so that they get past checksums and lengths."""

from __future__ import annotations

import ast
import gzip
import hashlib
import io
import json
import random
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fuzzing.mutate import (
    BIG,
    DEEP,
    INTEGERS,
    VALUES,
    change_bytes,
    change_fields,
    change_json,
    change_lines,
    change_tree,
    json_text,
)
from smoothcert.store import parts, pending, run_json

Change = Callable[[bytes, random.Random], bytes]


def text_table(data: bytes, pick: random.Random) -> bytes:
    """Tab-separated text."""
    return change_lines(data, pick, change_fields)


def comma_table(data: bytes, pick: random.Random) -> bytes:
    """Comma-separated text."""
    return change_lines(data, pick, lambda line, pick: change_fields(line, pick, b","))


def json_file(data: bytes, pick: random.Random) -> bytes:
    return change_json(data, pick)


def json_lines(data: bytes, pick: random.Random) -> bytes:
    return change_lines(data, pick, lambda line, pick: change_json(line, pick) if line else b"{}")


def yaml_file(data: bytes, pick: random.Random) -> bytes:
    """YAML by lines: a value, a key or the depth of one line; or constructs that recipes do not need."""
    extras = (
        b"a: &a [x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b, *b, *b]\n",
        b"x: !!python/object/apply:os.system ['true']\n",
        b"<<: {epochs: 3}\n",
        b"? [a, b]\n: c\n",
        b"x: " + b"[" * 3000 + b"]" * 3000 + b"\n",
        b"x: " + b"{a: " * 300 + b"1" + b"}" * 300 + b"\n",
        b"---\n",
        b"epochs: 0x7f\n",
        b"%YAML 9.9\n---\n",
    )
    if pick.random() < 0.1:
        place = pick.choice((0, len(data)))
        return data[:place] + pick.choice(extras) + data[place:]

    def change(line: bytes, pick: random.Random) -> bytes:
        key, colon, value = line.partition(b":")
        way = pick.randrange(5)
        if way == 0:
            return b"  " * pick.randrange(4) + line.strip()
        if way == 1:
            return change_bytes(key, pick) + colon + value
        if way == 2:
            return key + colon + b" " + change_bytes(value.strip(), pick)
        new = pick.choice(VALUES)
        text = (
            "9" * 5000
            if new == BIG
            else "[" * 200
            if new == DEEP
            else json.dumps(new, ensure_ascii=pick.random() < 0.5)
        )
        return key + colon + b" " + text.encode("utf-8", "surrogatepass")

    return change_lines(data, pick, change)


def safetensors_file(data: bytes, pick: random.Random) -> bytes:
    """The header as a tree, the JSON in its metadata, or the tensors; the length of the header is right again."""
    size = int.from_bytes(data[:8], "little")
    header, content = json.loads(data[8 : 8 + size]), data[8 + size :]
    way = pick.randrange(5)
    if way == 0:
        content = change_bytes(content, pick)
    elif way == 1:
        header = change_tree(
            header, pick, ("F64", "F32", "I64", "BOOL", "F8_E4M3", "U64", [2**40], [0], [2**32, 2**32])
        )
    else:
        metadata = header.get("__metadata__")
        if metadata:
            key = pick.choice(list(metadata))
            metadata[key] = change_json(metadata[key].encode(), pick).decode("utf-8", "replace")
    text = json_text(header).encode()
    return len(text).to_bytes(8, "little") + text + content


def npy_file(data: bytes, pick: random.Random) -> bytes:
    """The header of an array as a tree (or the data), with its length right again."""
    size = int.from_bytes(data[8:10], "little")
    header, content = ast.literal_eval(data[10 : 10 + size].decode("latin1")), data[10 + size :]
    way = pick.randrange(6)
    if way == 0:
        content = change_bytes(content, pick)
    elif way == 1:
        header["shape"] = pick.choice(
            ((2**40,), (2**62, 4), (0,), (), (-1,), (2**31, 2**31), (3, 0), (1,) * 70, header["shape"][::-1], (2**70,))
        )
    elif way == 2:
        header["descr"] = pick.choice(
            (
                "|O",
                "<f8",
                "<U9",
                "<U999999999",
                "|S3",
                "|V7",
                "<M8[ns]",
                "|u1",
                "<i8",
                ">i2",
                [("a", "<i4")],
                "<f2",
                "<c16",
            )
        )
    elif way == 3:
        header["shape"] = tuple(side + pick.choice((-1, 1, 1000, 10**9)) for side in header["shape"])
    else:
        header = change_tree(header, pick)
    text = repr(header).replace(repr(DEEP), "(" * 150 + ")" * 150).replace(repr(BIG), "9" * 4000)
    encoded = text.encode("latin1", "replace") + b"\n"
    return data[:8] + min(len(encoded), 65535).to_bytes(2, "little") + encoded + content


def pickled(data: bytes, pick: random.Random) -> bytes:
    """Instructions of a pickle put where others were."""
    words = (
        b"cos\nsystem\n",
        b"\x8c\x02os\x8c\x06system\x93",
        b"R",
        b"\x81",
        b"b",
        b"K\x07",
        b"\x8a\x06" + b"\x7f" * 6,
        b"Q",
        b"t",
    )
    return change_bytes(data, pick, words * 8)


def gzip_file(inner: Change) -> Change:
    """The content of a gzip file, compressed again."""

    def change(data: bytes, pick: random.Random) -> bytes:
        return gzip.compress(inner(gzip.decompress(data), pick), compresslevel=1, mtime=0)

    return change


def zip_file(inner: Callable[[str], Change | None]) -> Change:
    """Members of a zip file, packed again with the right checksums; ``inner`` gives the change for a member's name."""

    def change(data: bytes, pick: random.Random) -> bytes:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(member, archive.read(member)) for member in archive.infolist()]
        place = pick.randrange(len(members))
        member, content = members[place]
        way = pick.randrange(12)
        if way == 0:
            del members[place]
        elif way == 1:
            members.append(members[place])
        elif way == 2:
            member.filename = pick.choice(
                ("../out", "/abs", "a\\..\\..\\b", "x/" * 300, "C:\\x", "", ".", "é\ud7ff", "x")
            )
        elif way == 3:
            member.external_attr = pick.choice((0o120777, 0o020666, 0o010644, 0o40755, 0, 0xFFFF)) << 16
        else:
            special = inner(member.filename) if pick.random() < 0.7 else None
            members[place] = (member, (special or change_bytes)(content, pick))
        return pack_zip(members)

    return change


def pack_zip(members: list[tuple[zipfile.ZipInfo, bytes]]) -> bytes:
    """A zip file with these members, whatever their names."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for member, content in members:
            new = zipfile.ZipInfo(member.filename)
            new.external_attr, new.compress_type = member.external_attr, member.compress_type
            archive._didModify = True
            with archive.open(new, "w") as file:
                file.write(content)
    return stream.getvalue()


def tar_file(data: bytes, pick: random.Random) -> bytes:
    """A field of a member's header, with its checksum right again; or a member's content."""
    blocks = bytearray(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        starts = [member.offset for member in archive.getmembers()]
    start = pick.choice(starts)
    fields = {
        (0, 100): (b"../../outside.txt", b"/outside.txt", b"a/" * 49, b"", b".", b"..", b"\xff\xfe", b"x\0y", b"CON"),
        (100, 8): (b"0000000\0", b"7777777\0", b"\xff" * 8, b"junk"),
        (124, 12): (
            b"77777777777\0",
            b"\x80" + b"\xff" * 11,
            b"00000000001\0",
            b"-1",
            b"\x80" + b"\0" * 6 + b"\x7f" * 5,
        ),
        (136, 12): (b"77777777777\0", b"\x80" + b"\x7f" * 11, b"x"),
        (156, 1): (b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"L", b"K", b"x", b"g", b"S", b"D", b"\0"),
        (157, 100): (b"../../outside.txt", b"/etc/passwd", b"a", b""),
        (257, 8): (b"ustar\x0000", b"ustar  \0", b"\0" * 8),
        (345, 155): (b"../..", b"/", b"a" * 155, b"\xff" * 20),
    }
    for _ in range(pick.choice((1, 1, 2, 3))):
        (place, width), values = pick.choice(list(fields.items()))
        blocks[start + place : start + place + width] = pick.choice(values)[:width].ljust(width, b"\0")
    blocks[start + 148 : start + 156] = b" " * 8
    blocks[start + 148 : start + 156] = b"%06o\0 " % sum(blocks[start : start + 512])
    return bytes(blocks)


def png_file(data: bytes, pick: random.Random) -> bytes:
    """A chunk of a PNG, with its checksum right again; sizes of any magnitude; pixels that were compressed again."""
    chunks = []
    place = 8
    while place + 8 <= len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        chunks.append([data[place + 4 : place + 8], data[place + 8 : place + 8 + length]])
        place += 12 + length
    chunk = pick.choice(chunks)
    way = pick.randrange(6)
    if way == 0:
        sides = (1, 2, 255, 8, 3000, 60_000, 2**31 - 1, 0)
        chunks[0][1] = struct.pack(">II", pick.choice(sides), pick.choice(sides)) + chunks[0][1][8:]
    elif way == 1:
        pixels = next((chunk for chunk in chunks if chunk[0] == b"IDAT"), chunk)
        try:
            pixels[1] = zlib.compress(change_bytes(zlib.decompress(pixels[1]), pick))
        except zlib.error:
            pixels[1] = zlib.compress(b"")
    elif way == 2:
        chunks.insert(pick.randrange(len(chunks)), [chunk[0], chunk[1]])
    elif way == 3:
        names = (
            b"tEXt",
            b"zTXt",
            b"iTXt",
            b"iCCP",
            b"PLTE",
            b"tRNS",
            b"acTL",
            b"fcTL",
            b"fdAT",
            b"eXIf",
            b"gAMA",
            b"IEND",
        )
        body = pick.choice((b"", b"a\0\0" + zlib.compress(bytes(10**6)), pick.randbytes(30), bytes(26)))
        chunks.insert(pick.randrange(1, len(chunks)), [pick.choice(names), body])
    else:
        chunk[1] = change_bytes(chunk[1], pick)
    body = b"".join(
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in chunks
    )
    return data[:8] + body


def jpeg_file(data: bytes, pick: random.Random) -> bytes:
    """The sizes in a JPEG's frame header, else bytes."""
    found = re.search(rb"\xff[\xc0-\xc2].{3}", data, re.DOTALL)
    if found is None or pick.random() < 0.5:
        return change_bytes(data, pick)
    sides = struct.pack(">HH", *(pick.choice((0, 1, 8, 300, 9000, 65_500)) for _ in range(2)))
    return data[: found.end()] + sides + data[found.end() + 4 :]


def big_endian(data: bytes, pick: random.Random) -> bytes:
    """One of the first 32-bit numbers of a file."""
    place = 4 * pick.randrange(min(4, len(data) // 4))
    return data[:place] + struct.pack(">I", pick.choice(INTEGERS) % 2**32) + data[place + 4 :]


def sealed_info(data: bytes, pick: random.Random) -> bytes:
    """``run.json`` changed as a tree, with its checksum right again."""
    content = {key: value for key, value in json.loads(data).items() if key != "sha256"}
    changed = change_tree(content, pick, ({"name": "cohen"}, {"name": "aces", "theta": 0.5}, "certification", "l2"))
    if not isinstance(changed, dict):
        return json_text(changed).encode()
    text = run_json._info_text(changed)
    return text.replace(f'"{DEEP}"', "[" * 20_000 + "]" * 20_000).encode()


def sealed_pending(data: bytes, pick: random.Random) -> bytes:
    """A pending row, or the count of rows, changed as a tree, with its checksum right again."""

    def change(line: bytes, pick: random.Random) -> bytes:
        if not line:
            return b"{}"
        content = json.loads(line)
        content.pop("crc", None)
        return pending._sealed(json_text(change_tree(content, pick)).encode())[:-1]

    return change_lines(data, pick, change)


def sealed_part(data: bytes, pick: random.Random) -> bytes:
    """A Parquet part with other columns, types or values, or with other bytes; its checksum is right again."""
    if pick.random() < 0.4:
        return _resealed(change_bytes(data, pick, (b"sha256:" + b"0" * 64,)))
    table = _table(data)
    names = table.column_names
    for _ in range(pick.choice((1, 1, 2))):
        name = pick.choice(table.column_names)
        place = table.column_names.index(name)
        column = table.column(place).combine_chunks()
        way = pick.randrange(7)
        if way == 0 and len(table.column_names) > 1:
            table = table.drop_columns([name])
        elif way == 1:
            fresh = pick.choice((*names, "", "x", "clean_predict", "p50"))
            table = table.rename_columns(
                [fresh if spot == place else old for spot, old in enumerate(table.column_names)]
            )
        elif way == 2:
            values = (None, "a", b"\xff", 0.5, -1, 2**62, float("nan"), [1], [], {"n": 1}, [[None]], True)
            table = table.set_column(place, name, pa.array([pick.choice(values)] * len(table)))
        elif way == 3:
            table = table.slice(pick.randrange(3), pick.choice((0, 1, len(table))))
        elif way == 4:
            table = pa.concat_tables([table] * pick.choice((2, 3)))
        else:
            values = column.to_pylist()
            spot = pick.randrange(max(1, len(values)))
            changed = change_tree(values, pick, (2**62, -2, "l1", "linf", "certified", [5, 5, 0]))
            for attempt in (changed, [None if at == spot else value for at, value in enumerate(values)]):
                try:
                    array = pa.array(attempt, type=pick.choice((column.type, column.type, None)))
                    table = table.set_column(place, name, array) if len(array) == len(table) else table
                    break
                except (pa.ArrowException, TypeError, ValueError, OverflowError):
                    continue
    return _part_bytes(table, pick.choice((None, "0" * 64)))


@cache
def _table(data: bytes) -> pa.Table:
    return pq.ParquetFile(pa.BufferReader(data)).read()


def _part_bytes(table: pa.Table, config: str | None) -> bytes:
    """What ``write_part`` writes, without a file."""
    facts = {parts._KEY: parts._ZEROS} if config is None else {parts._KEY: parts._ZEROS, parts._CONFIG: config.encode()}
    stream = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(facts), stream, compression="zstd", write_page_checksum=True)
    return _resealed(stream.getvalue())


def _resealed(content: bytes) -> bytes:
    """The checksum of a part computed again, where its place is still there."""
    found = list(re.finditer(rb"sha256:[0-9a-f]{64}", content))
    if not found:
        return content
    start, end = found[-1].span()
    digits = hashlib.sha256(content[:start] + parts._ZEROS + content[end:]).hexdigest().encode()
    return content[:start] + b"sha256:" + digits + content[end:]


def deflated_zeros(size: int, prefix: bytes = b"") -> tuple[bytes, int, int]:
    """A deflate stream of a prefix and about this many zeros, a thousandth as long; its CRC-32 and its full length."""
    block, count = bytes(1 << 24), size >> 24
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    head = packer.compress(prefix) + packer.flush(zlib.Z_FULL_FLUSH)
    body = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)  # stands for itself, so it can be repeated
    crc = zlib.crc32(prefix)
    for _ in range(count):
        crc = zlib.crc32(block, crc)
    return head + body * count + packer.flush(zlib.Z_FINISH), crc, len(prefix) + count * len(block)


def gzip_bomb(size: int, prefix: bytes = b"") -> bytes:
    """A small gzip file of very many zeros."""
    stream, crc, length = deflated_zeros(size, prefix)
    return b"\x1f\x8b\x08\0\0\0\0\0\x02\xff" + stream + struct.pack("<II", crc, length % 2**32)


def zip_bomb(name: str, size: int, prefix: bytes = b"") -> bytes:
    """A small zip file whose one member is very many zeros."""
    stream, crc, length = deflated_zeros(size, prefix)
    title = name.encode()
    facts = struct.pack("<HHHHHIII", 20, 0, 8, 0, 33, crc, len(stream), length)
    local = b"PK\x03\x04" + facts + struct.pack("<HH", len(title), 0) + title + stream
    central = (
        b"PK\x01\x02" + struct.pack("<H", 20) + facts + struct.pack("<HHHHHII", len(title), 0, 0, 0, 0, 0, 0) + title
    )
    return local + central + b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)


def npy_bytes(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    """An array as the bytes of an ``.npy`` file."""
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=allow_pickle)
    return stream.getvalue()
