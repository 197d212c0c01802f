"""Writing to what exists: files are replaced whole, everything else is written into and stays what it is."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from smoothcert.files import STANDARD_OUTPUT, replacing, saving
from smoothcert.types import SmoothcertError


def write(path: Path, text: str = "new") -> None:
    with replacing(path) as temporary:
        temporary.write_text(text)


def fail_halfway(path: Path) -> None:
    with replacing(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt


def save(path: Path | str) -> None:
    with saving(path) as temporary:
        temporary.write_text("text")


def leftovers(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith(".tmp")]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    file = tmp_path / "file"
    write(file, "old")
    with pytest.raises(KeyboardInterrupt):
        fail_halfway(file)
    assert (file.read_text(), leftovers(tmp_path)) == ("old", [])
    write(file)
    assert (file.read_text(), leftovers(tmp_path)) == ("new", [])


def test_a_link_to_a_file_stays_a_link(tmp_path):
    target, link, chain = tmp_path / "there" / "target", tmp_path / "link", tmp_path / "chain"
    target.parent.mkdir()
    target.write_text("old")
    before = target.stat().st_ino
    link.symlink_to("there/target")
    chain.symlink_to(link)
    write(chain)
    assert chain.is_symlink()
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert target.stat().st_ino != before  # replaced in one step
    assert leftovers(tmp_path) == leftovers(target.parent) == []


def test_a_link_to_nothing_makes_its_target(tmp_path):
    link = tmp_path / "link"
    link.symlink_to("target")
    write(link)
    assert link.is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_links_in_a_circle_and_folders_are_refused(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.symlink_to(two)
    two.symlink_to(one)
    with pytest.raises(SmoothcertError, match=r"one cannot be written \(Too many levels of symbolic links\)"):
        save(one)
    with pytest.raises(SmoothcertError, match=r"cannot be written \(Is a directory\)"):
        save(tmp_path)
    assert one.is_symlink()


def test_a_pipe_is_written_into(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write(pipe)
    reader.join(10)
    assert read == ["new"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert leftovers(tmp_path) == []


def test_nothing_reaches_a_pipe_where_the_block_fails(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(KeyboardInterrupt):  # opening the pipe without a reader would wait
        fail_halfway(pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_stays_a_device(tmp_path):
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.write_bytes(b"")
    except OSError:
        pytest.skip("this system lets us make no devices")
    write(device)
    assert stat.S_ISCHR(device.lstat().st_mode)
    assert leftovers(tmp_path) == []


def test_a_link_to_a_device_stays_a_link(tmp_path):
    link = tmp_path / "null"
    link.symlink_to(os.devnull)
    write(link)
    assert link.is_symlink()
    assert stat.S_ISCHR(link.stat().st_mode)


def test_a_redirected_standard_output_is_continued(tmp_path):
    """Also where it is a regular file: replacing that would lose what the shell and others write to it."""
    names = [name for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1") if os.path.exists(name)]
    if not names:
        pytest.skip("open files have no names here")
    log = tmp_path / "log"
    log.write_text("earlier\n")
    code = (
        "import sys; from pathlib import Path; from smoothcert.files import replacing\n"
        "for name in sys.argv[1:]:\n"
        "    print('before', name)\n"
        "    with replacing(Path(name)) as temporary: temporary.write_text('written\\n')\n"
        "print('after')"
    )
    with log.open("a") as file:
        subprocess.run([sys.executable, "-c", code, *names], stdout=file, check=True, timeout=120)
    assert log.read_text() == "".join(["earlier\n", *(f"before {name}\nwritten\n" for name in names), "after\n"])


def test_a_minus_is_standard_output(capsysbinary):
    print("before")
    with saving("-") as temporary:
        temporary.write_bytes(b"\x89 bytes\n")
    print("after")
    assert capsysbinary.readouterr().out == b"before\n\x89 bytes\nafter\n"
    assert not STANDARD_OUTPUT.exists()


def test_what_cannot_be_written_is_said(tmp_path):
    with pytest.raises(SmoothcertError, match=r"file cannot be written \(No such file or directory\)\.$"):
        save(tmp_path / "missing" / "file")
    if Path("/dev/full").exists():
        with pytest.raises(SmoothcertError, match=r"/dev/full cannot be written \(No space left on device\)\.$"):
            save("/dev/full")
