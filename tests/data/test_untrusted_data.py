"""Data files that claim more than they hold, unpack to too much, or are something else than their name says."""

from __future__ import annotations

import dataclasses
import gzip
import io
import pickle
import struct
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from smoothcert import data
from smoothcert.data import archive as archive_module
from smoothcert.data import idx, images, npz
from smoothcert.data.archive import unpack
from smoothcert.data.loading import load_published
from smoothcert.types import DataError


def npy(array: np.ndarray, shape: str | None = None) -> bytes:
    """An array as a file, whose header may claim another shape."""
    stream = io.BytesIO()
    np.save(stream, array)
    content = stream.getvalue()
    if shape is None:
        return content
    header = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return content[:8] + len(header).to_bytes(2, "little") + header + content[128:]


def write_npz(path: Path, compression: int = zipfile.ZIP_STORED, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


X, Y = np.zeros((2, 4, 4), np.uint8), np.arange(2)


@pytest.mark.parametrize(
    "shape", ["(1099511627776, 28, 28)", "(-1, 4, 4)", "(2, 4, 40)", "((((", "'a'", "(2.5,)", "('x',)"]
)
def test_an_array_of_an_npz_file_that_claims_too_much(tmp_path, shape):
    path = write_npz(tmp_path / "d.npz", x=npy(X, shape), y=npy(Y))
    with pytest.raises(DataError, match=r"d\.npz cannot be read"):
        data.load(path)


def test_a_single_array_that_claims_too_much(tmp_path):
    (tmp_path / "d.npz").write_bytes(npy(X, "(1099511627776, 28, 28)"))
    with pytest.raises(DataError, match="is a single array"):
        data.load(tmp_path / "d.npz")


def test_an_npz_file_that_unpacks_to_too_much(tmp_path, monkeypatch):
    path = write_npz(tmp_path / "d.npz", zipfile.ZIP_DEFLATED, x=npy(np.zeros((100, 28, 28), np.uint8)), y=npy(Y))
    monkeypatch.setattr(npz, "unpacked_limit", lambda packed: 10 * packed)
    with pytest.raises(DataError, match=r"it would unpack to \d+ bytes"):
        data.load(path)


def test_class_names_that_are_no_letters(tmp_path):
    names = np.array(["a", "b"])
    broken = npy(names)[:-4] + b"\xff" * 4
    path = write_npz(tmp_path / "d.npz", x=npy(X), y=npy(Y), class_names=broken)
    with pytest.raises(DataError, match="class_names that are not a list of text"):
        data.load(path)


@pytest.mark.parametrize("shape", ["((((", "(1180591620717411303424,)", "('x',)", "(2, 32, 32, 30000)"])
def test_a_published_array_with_a_bad_header(tmp_path, shape):
    (tmp_path / "cifar10-c").mkdir()
    (tmp_path / "cifar10-c" / "fog.npy").write_bytes(npy(np.zeros((10, 32, 32, 3), np.uint8), shape))
    (tmp_path / "cifar10-c" / "labels.npy").write_bytes(npy(np.zeros(10, np.uint8)))
    info = dataclasses.replace(data.DATASETS["cifar10-c"], test_size=2)
    with pytest.raises(DataError, match=r"fog\.npy"):
        load_published(info, ["fog", "1"], "test", tmp_path)


def test_an_idx_file_that_unpacks_to_too_much(tmp_path, monkeypatch):
    (tmp_path / "mnist").mkdir()
    images = struct.pack(">4I", 0x803, 1000, 28, 28) + bytes(784_000)
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 1000) + bytes(1000))
    assert len(data.load("mnist", root=tmp_path)) == 1000
    monkeypatch.setattr(idx, "unpacked_limit", lambda packed: 10 * packed)
    with pytest.raises(DataError, match=r"claims 784000 bytes of content and has \d+"):
        data.load("mnist", root=tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02]r\xff\xff\xff\x7f.",  # a list, kept in place 2147483647
        pickle.dumps([np.zeros(1, np.uint8) for _ in range(50)], 2),
    ],
)
def test_a_pickle_that_asks_for_more_than_its_size(tmp_path, content):
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "test_batch").write_bytes(content)
    with pytest.raises(DataError, match="more memory than its size"):
        data.load("cifar10", root=tmp_path)


def image_file(path: Path, content: bytes) -> Path:
    (path / "class").mkdir()
    (path / "class" / "x.png").write_bytes(content)
    return path


def png(size: tuple[int, int], mode: str = "1") -> bytes:
    stream = io.BytesIO()
    Image.new(mode, size).save(stream, "png")
    return stream.getvalue()


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1), (9_500, 9_500)])
def test_an_image_that_takes_too_much_memory(tmp_path, size):
    pictures = data.load(f"{image_file(tmp_path, png(size))},size=224")
    with pytest.raises(DataError, match=r"x\.png is not a readable image \(it has .* pixels, too many or too thin\)"):
        pictures[0]


def test_long_and_large_images_are_read_still(tmp_path):
    assert data.load(f"{image_file(tmp_path, png((300, 12_000)))},size=224")[0][0].shape == (1, 224, 224)
    assert data.load(tmp_path)[0][0].shape == (1, 12_000, 300)
    (tmp_path / "class" / "x.png").write_bytes(png((5_000, 4_000)))
    with pytest.raises(DataError, match="too many for an input; add size=224"):
        data.load(tmp_path)[0]
    assert images.MOST_PIXELS > 8000 * 8000


def test_a_program_that_calls_itself_an_image(tmp_path, monkeypatch):
    """Pillow would hand PostScript to Ghostscript, whatever the name of the file."""
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a program was started"))
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(x) run\n%%EOF\n"
    with pytest.raises(DataError, match="is not a readable image"):
        data.load(image_file(tmp_path, script))[0]


def test_an_image_chunk_that_claims_gigabytes(tmp_path, monkeypatch):
    """A decoder may ask for what a chunk claims; it gets no more than the file has."""
    asked = []
    real = io.BytesIO

    class Noting(real):
        def read(self, size=-1):
            asked.append(len(found := real.read(self, size)))
            return found

    content = png((12, 9), "L")
    place = content.index(b"IDAT") - 4
    content = content[:place] + struct.pack(">I", 0xFFFFFFF0) + content[place + 4 :]
    monkeypatch.setattr(images.io, "BytesIO", Noting)
    with suppress(DataError):
        data.load(image_file(tmp_path, content))[0]
    assert asked
    assert max(asked) <= len(content)


def tar(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as file:
        for member, content in members:
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    """The archive is refused, and leaves nothing behind."""
    archive = tmp_path / name
    archive.write_bytes(content)
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=message):
        unpack(archive, tmp_path / "folder")
    assert sorted(tmp_path.rglob("*")) == sorted([archive, tmp_path / "folder"])


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
def test_an_archive_that_unpacks_to_too_much(tmp_path, monkeypatch, name):
    monkeypatch.setattr(archive_module, "unpacked_limit", lambda packed: 10 * packed)
    content = gzip.compress(tar((tarfile.TarInfo("zeros"), bytes(1_000_000))))
    if name.endswith(".zip"):
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("zeros", bytes(1_000_000))
        content = stream.getvalue()
    refused(tmp_path, name, content, "would unpack to far more than its size")


def test_a_name_of_a_gigabyte(tmp_path):
    """The name of a member is read at once, so its size is not believed."""
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    content = header.tobuf(tarfile.GNU_FORMAT) + bytes(4096)
    refused(tmp_path, "a.tar.gz", gzip.compress(content), "a header requests 1073741824 bytes")


@pytest.mark.parametrize(
    ("place", "field"),
    [
        (136, b"\x80" + b"\x7f" * 11),  # a time beyond any calendar
        (124, b"\x80" + b"\xff" * 11),
        (124, b"\xff" * 12),  # a negative size
    ],
)
def test_numbers_of_a_tar_header_beyond_all_measure(tmp_path, place, field):
    content = bytearray(tar((tarfile.TarInfo("a"), b"1")))
    content[place : place + 12] = field
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    archive = tmp_path / "a.tar"
    archive.write_bytes(content)
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError):
        unpack(archive, tmp_path / "folder")
    assert not list((tmp_path / "folder").iterdir())


def zipped(name: str, mode: int = 0) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        member = zipfile.ZipInfo("n" * len(name))
        member.external_attr = mode << 16
        file.writestr(member, b"x")
    return stream.getvalue().replace(b"n" * len(name), name.encode())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (zipped("../evil"), "leaves its folder"),
        (zipped("/tmp/evil"), "leaves its folder"),
        (zipped("..\\evil"), "leaves its folder"),
        (zipped("C:\\evil"), "leaves its folder"),
        (zipped("a/../../evil"), "leaves its folder"),
        (zipped("link", 0o120777), "a link or device"),
        (zipped("device", 0o020666), "a link or device"),
        (zipped("pipe", 0o010644), "a link or device"),
    ],
)
def test_members_of_a_zip_file_that_leave_or_are_no_files(tmp_path, content, message):
    refused(tmp_path, "a.zip", content, message)


def test_a_name_twice_is_the_last_of_its_files(tmp_path):
    first, second = (tarfile.TarInfo("a") for _ in range(2))
    (tmp_path / "a.tar").write_bytes(tar((first, b"1"), (second, b"22")))
    (tmp_path / "folder").mkdir()
    unpack(tmp_path / "a.tar", tmp_path / "folder")
    assert (tmp_path / "folder" / "a").read_bytes() == b"22"


def test_a_compressed_archive_is_not_read_from_its_start_for_every_member(tmp_path, monkeypatch):
    """Members of whole blocks end where the next header begins, one byte before which tarfile steps back."""
    rewinds = []
    real = gzip._GzipReader._rewind
    monkeypatch.setattr(gzip._GzipReader, "_rewind", lambda self: (rewinds.append(1), real(self)))
    members = [(tarfile.TarInfo(f"a{number}"), bytes(65_536)) for number in range(20)]
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar(*members)))
    (tmp_path / "folder").mkdir()
    unpack(tmp_path / "a.tar.gz", tmp_path / "folder")
    assert len(list((tmp_path / "folder").iterdir())) == 20
    assert len(rewinds) <= 2


def test_a_file_that_is_a_folder_too(tmp_path):
    refused(tmp_path, "a.tar", tar((tarfile.TarInfo("a"), b"1"), (tarfile.TarInfo("a/b"), b"2")), "cannot be unpacked")
