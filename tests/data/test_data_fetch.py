"""Downloads against a server on the loopback address, which cuts, refuses and lies as told."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import struct
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from smoothcert import data
from smoothcert.data import download
from smoothcert.data.archive import unpack
from smoothcert.types import DataError, UsageError


class Server(ThreadingHTTPServer):
    """Serves ``files``; ``log`` has the path, the range asked for and the status of every request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.log: list[tuple[str, str | None, int]] = []
        self.ranges = True
        self.cuts: dict[str, list[int]] = {}  # bytes to send before the connection is cut, one entry per request
        self.failures: list[int] = []  # statuses to answer before any file

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name = self.path.removeprefix("/")
        content = self.server.files.get(name)
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.ranges else 0
        if self.server.failures:
            return self.answer(self.server.failures.pop(0), b"", asked)
        if content is None:
            return self.answer(404, b"", asked)
        if start >= len(content):
            return self.answer(416, b"", asked, f"bytes */{len(content)}")
        span = f"bytes {start}-{len(content) - 1}/{len(content)}" if asked and self.server.ranges else None
        return self.answer(206 if span else 200, content[start:], asked, span)

    def answer(self, status: int, body: bytes, asked: str | None, span: str | None = None) -> None:
        name = self.path.removeprefix("/")
        self.server.log.append((name, asked, status))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()
        cuts = self.server.cuts.get(name)
        self.wfile.write(body[: cuts.pop(0)] if cuts and status < 300 else body)

    def log_message(self, *_: object) -> None:
        """Keep the output of the tests clean."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0.0)
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def tar_bytes(members: dict[str, bytes], special: tarfile.TarInfo | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        if special:
            tar.addfile(special)
    return buffer.getvalue()


def serve(server: Server, monkeypatch: pytest.MonkeyPatch, name: str, files: dict[str, bytes]) -> dict[str, str]:
    """Let a named dataset be made of other files; at their own address is nobody, they are served at those returned."""
    remote = [data.RemoteFile(f"http://127.0.0.1:1/{f}", hashlib.sha256(c).hexdigest()) for f, c in files.items()]
    monkeypatch.setitem(data.DATASETS, name, dataclasses.replace(data.DATASETS[name], files=tuple(remote)))
    server.files |= files
    return {file: f"{server.address}/{file}" for file in files}


RECORD = bytes([7]) + bytes(range(256)) * 12
CIFAR_MEMBERS = {f"cifar-10-batches-bin/data_batch_{i}.bin": RECORD * i for i in range(1, 6)} | {
    "cifar-10-batches-bin/test_batch.bin": RECORD * 2
}
CIFAR = {"cifar-10-binary.tar.gz": tar_bytes(CIFAR_MEMBERS)}
MNIST = {
    f"{prefix}-{kind}-idx{dimensions}-ubyte": struct.pack(f">{1 + dimensions}I", 2048 + dimensions, *shape)
    + bytes(size)
    for prefix, count in (("train", 200), ("t10k", 100))
    for kind, dimensions, shape, size in (
        ("images", 3, (count, 28, 28), count * 784),
        ("labels", 1, (count,), count),
    )
}
IMAGES = "train-images-idx3-ubyte"


@pytest.fixture
def mnist(server: Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Where the files of a small MNIST are served."""
    return serve(server, monkeypatch, "mnist", MNIST)


@pytest.fixture
def cifar10(server: Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Where the archive of a small CIFAR-10 is served."""
    return serve(server, monkeypatch, "cifar10", CIFAR)


def test_fetch_then_load(server: Server, mnist: dict[str, str], tmp_path: Path) -> None:
    assert data.fetch("mnist", root=tmp_path, progress=False, sources=mnist) == tmp_path / "mnist"
    assert len(data.load("mnist", split="train", root=tmp_path)) == 200
    assert [status for _, _, status in server.log] == [200] * 4
    assert not list(tmp_path.rglob("*.part"))


def test_binary_mnist_shares_the_files_of_mnist(
    server: Server, mnist: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sources = mnist | serve(server, monkeypatch, "mnist-binary", MNIST)
    place = data.fetch("mnist-binary", root=tmp_path, progress=False, sources=sources)
    assert place == tmp_path / "mnist"
    server.log.clear()
    assert data.fetch("mnist", root=tmp_path, progress=False, sources=sources) == place
    assert server.log == []
    assert [folder.name for folder in tmp_path.iterdir()] == ["mnist"]


def test_an_archive_is_unpacked_and_removed(server: Server, cifar10: dict[str, str], tmp_path: Path) -> None:
    data.fetch("cifar10", root=tmp_path, progress=False, sources=cifar10)
    dataset = data.load("cifar10", split="train", root=tmp_path)
    assert len(dataset) == 15
    assert dataset[0][1] == 7
    folder = tmp_path / "cifar10"
    assert {f.name for f in folder.iterdir() if not f.name.startswith(".")} == {"cifar-10-batches-bin"}


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_what_is_complete_is_left_alone(
    server: Server, mnist: dict[str, str], cifar10: dict[str, str], tmp_path: Path, name: str
) -> None:
    data.fetch(name, root=tmp_path, progress=False, sources=mnist | cifar10)
    server.log.clear()
    data.fetch(name, root=tmp_path, progress=False, sources=mnist | cifar10)
    assert server.log == []


def test_a_damaged_file_is_fetched_again(server: Server, mnist: dict[str, str], tmp_path: Path) -> None:
    data.fetch("mnist", root=tmp_path, progress=False, sources=mnist)
    server.log.clear()
    (tmp_path / "mnist" / IMAGES).write_bytes(MNIST[IMAGES][:-1])
    data.fetch("mnist", root=tmp_path, progress=False, sources=mnist)
    assert server.log == [(IMAGES, None, 200)]


def test_a_cut_connection_is_resumed_by_range(server: Server, mnist: dict[str, str], tmp_path: Path) -> None:
    server.cuts[IMAGES] = [100_000, 20_000]
    data.fetch("mnist", root=tmp_path, progress=False, sources=mnist)
    requests = [(asked, status) for name, asked, status in server.log if name == IMAGES]
    assert requests == [(None, 200), ("bytes=100000-", 206), ("bytes=120000-", 206)]
    assert (tmp_path / "mnist" / IMAGES).read_bytes() == MNIST[IMAGES]


def test_a_later_run_goes_on_where_the_first_stopped(server: Server, mnist: dict[str, str], tmp_path: Path) -> None:
    server.cuts[IMAGES] = [50_000] + [0] * (download.ATTEMPTS - 1)
    with pytest.raises(DataError, match=f"{IMAGES} could not be downloaded .* continues the download"):
        data.fetch("mnist", root=tmp_path, progress=False, sources=mnist)
    assert (tmp_path / "mnist" / f"{IMAGES}.part").stat().st_size == 50_000
    server.log.clear()
    data.fetch("mnist", root=tmp_path, progress=False, sources=mnist)
    assert server.log[0] == (IMAGES, "bytes=50000-", 206)
    assert len(server.log) == 4


def test_a_server_without_ranges_is_read_anew(server: Server, mnist: dict[str, str], tmp_path: Path) -> None:
    server.ranges = False
    server.cuts[IMAGES] = [100_000]
    data.fetch("mnist", root=tmp_path, progress=False, sources=mnist)
    requests = [(asked, status) for name, asked, status in server.log if name == IMAGES]
    assert requests == [(None, 200), ("bytes=100000-", 200)]
    assert (tmp_path / "mnist" / IMAGES).read_bytes() == MNIST[IMAGES]


@pytest.mark.parametrize(("extra", "requests"), [(b"", [416]), (b"more", [416, 200])])
def test_a_part_that_is_whole_or_too_long(
    server: Server, mnist: dict[str, str], tmp_path: Path, extra: bytes, requests: list[int]
) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / f"{IMAGES}.part").write_bytes(MNIST[IMAGES] + extra)
    data.fetch("mnist", root=tmp_path, progress=False, sources=mnist)
    assert [status for name, _, status in server.log if name == IMAGES] == requests


@pytest.mark.parametrize("resumed", [False, True])
def test_a_wrong_checksum_is_told_and_the_file_deleted(
    server: Server, mnist: dict[str, str], tmp_path: Path, resumed: bool
) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    if resumed:
        (folder / f"{IMAGES}.part").write_bytes(b"what came from elsewhere")
    else:
        server.files[IMAGES] = b"another file"
    with pytest.raises(DataError, match=f"SHA-256 of .*{IMAGES} is not .* deleted"):
        data.fetch("mnist", root=tmp_path, progress=False, sources=mnist)
    assert [f.name for f in folder.iterdir() if not f.name.startswith(".")] == []
    server.files |= MNIST
    data.fetch("mnist", root=tmp_path, progress=False, sources=mnist)


def test_a_refusal_is_told_at_once_and_a_hiccup_is_retried(
    server: Server, mnist: dict[str, str], tmp_path: Path
) -> None:
    server.failures = [503, 500]
    del server.files["t10k-labels-idx1-ubyte"]
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte could not be downloaded \(status 404\)"):
        data.fetch("mnist", root=tmp_path, progress=False, sources=mnist)
    assert [status for _, _, status in server.log] == [503, 500, 200, 200, 200, 404]


def test_no_network_is_one_sentence(tmp_path: Path, mnist: dict[str, str]) -> None:
    sentence = (
        rf"^http://127.0.0.1:1/{IMAGES} could not be downloaded \(.*Connection refused\): check the network and [^:]*$"
    )
    with pytest.raises(DataError, match=sentence):
        data.fetch("mnist", root=tmp_path, progress=False)


def test_progress_is_shown(mnist: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.fetch("mnist", root=tmp_path, progress=True, sources=mnist)
    shown = capsys.readouterr()
    assert IMAGES in shown.err
    assert shown.out == ""


def test_bundled_and_unknown_names(tmp_path: Path) -> None:
    data.fetch("digits", root=tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="unknown dataset 'minst'; did you mean 'mnist'"):
        data.fetch("minst")


def test_a_folder_that_cannot_be_written(mnist: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        data.fetch("mnist", root=tmp_path / "file", progress=False, sources=mnist)


def special_member(name: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/passwd"
    return info


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tar_bytes({"good": b"1", "../evil": b"2"}), "'../evil', which leaves its folder"),
        (tar_bytes({"good": b"1", "a/../../evil": b"2"}), "leaves its folder"),
        (tar_bytes({"good": b"1", "/tmp/evil": b"2"}), "leaves its folder"),
        (tar_bytes({"good": b"1", "C:\\evil": b"2"}), "leaves its folder"),
        (tar_bytes({"good": b"1"}, special_member("evil", tarfile.SYMTYPE)), "'evil', a link or device"),
        (tar_bytes({"good": b"1"}, special_member("evil", tarfile.LNKTYPE)), "a link or device"),
        (tar_bytes({"good": b"1"}, special_member("evil", tarfile.CHRTYPE)), "a link or device"),
        (tar_bytes({"good": b"1"}, special_member("evil", tarfile.FIFOTYPE)), "a link or device"),
        (tar_bytes({"good": bytes(range(256)) * 50})[:-40], "cannot be unpacked"),
        (b"no archive", "cannot be unpacked"),
    ],
)
def test_a_bad_archive_leaves_nothing_behind(tmp_path: Path, content: bytes, message: str) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(content)
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=rf"a\.tar\.gz .*{message}"):
        unpack(archive, tmp_path / "folder")
    assert sorted(tmp_path.rglob("*")) == [archive, tmp_path / "folder"]


def test_an_evil_archive_is_refused_by_fetch(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    evil = {"cifar-10-binary.tar.gz": tar_bytes(CIFAR_MEMBERS | {"../../evil": b"x"})}
    sources = serve(server, monkeypatch, "cifar10", evil)
    with pytest.raises(DataError, match="leaves its folder"):
        data.fetch("cifar10", root=tmp_path / "root", progress=False, sources=sources)
    assert not list(tmp_path.rglob("evil"))
    assert not list(tmp_path.rglob("*.bin"))
