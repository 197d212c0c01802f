"""Files that no honest program wrote: pickles that ask for code, archives that leave their folder, bombs."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fuzzing.formats import gzip_bomb, npy_bytes, zip_bomb
from fuzzing.harness import Files
from fuzzing.seeds import idx, labelled_images, network, packed_tar, published, saved, tar_member

BOMB = 3 << 29
"""The size of what a bomb unpacks to: half as much again as a case may take."""


class Payload:
    """What a malicious pickle asks for when it is loaded."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call, self.arguments


def malicious() -> list[object]:
    """Objects whose pickles run code when loaded."""
    return [
        Payload(os.system, "true"),
        Payload(eval, "__import__('os').getcwd()"),
        Payload(exec, "open('/tmp/owned', 'w')"),
        Payload(getattr, Payload(__import__, "os"), "environ"),
        {"state_dict": {"w": Payload(os.system, "true")}},
        [Payload(io.open, "owned", "w")],
    ]


def foreign_hostile() -> list[Files]:
    """Pickles that ask for code, a bomb, and tensors of a few values that claim very many."""
    state = network().state_dict()
    claims = [
        {"arch": "digits-cnn", "state_dict": {**state, "fc2.weight": torch.zeros(1).expand(2**34, 64)}},
        {
            "arch": "digits-cnn",
            "state_dict": {f"1.{k}": v for k, v in state.items()} | {"0.mean": torch.zeros(1).expand(2**36)},
        },
        {"arch": "cifar_dncnn", "state_dict": {"dncnn.0.weight": torch.zeros(1).expand(64, 2**34, 3, 3)}},
    ]
    written = [saved(thing, new) for thing in (*malicious(), *claims) for new in (True, False)]
    plain = [pickle.dumps(thing, protocol) for thing in malicious() for protocol in (2, 4)]
    return [{"m.pth.tar": data} for data in (*written, *plain, zip_bomb("archive/data.pkl", BOMB))]


def image_bombs() -> list[Files]:
    """Sizes that claim too much, thin strips that grow when resized, and a program that calls itself an image."""
    found: list[Files] = []
    for mode, size in (("L", (1, 60_000)), ("1", (13_000, 13_000)), ("1", (9_400, 9_400)), ("L", (60_000, 1))):
        stream = io.BytesIO()
        Image.new(mode, size).save(stream, "png")
        found.append({"class/x.png": stream.getvalue()})
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(x) run\n%%EOF\n"
    return [*found, {"class/x.png": script}, {"class/x.jpg": b"%PDF-1.4\n"}]


def labels_hostile() -> list[Files]:
    (files,) = labelled_images(Path())
    names = (b"../outside.png", b"/etc/passwd", b"a" * 300_000, b"sub", b"\xff\xfe")
    return [{**files, "labels.csv": b"file,label\n" + name + b",dog\n"} for name in names]


def npz_hostile() -> list[Files]:
    found = []
    for thing in malicious():
        stream = io.BytesIO()
        objects = np.empty(2, dtype=object)
        objects[:] = [thing, thing]
        np.savez(stream, x=objects, y=np.arange(2))
        found.append({"d.npz": stream.getvalue()})
    header = npy_bytes(np.zeros((1, 1), np.uint8))[:128].replace(b"(1, 1), }", b"(%d, 28, 28), }" % (BOMB // 784))
    header = header[:-1].rstrip()[:127].ljust(127) + b"\n"
    return [
        *found,
        {"d.npz": zip_bomb("x.npy", BOMB, header)},
        *({"d.npz": pickle.dumps(thing)} for thing in malicious()),
    ]


def idx_bombs() -> list[Files]:
    count = BOMB // 784
    (_, labels) = idx(Path())[1].items()
    claims = struct.pack(">4I", 0x803, count, 28, 28)
    return [{"mnist/t10k-images-idx3-ubyte.gz": gzip_bomb(BOMB, claims), labels[0]: labels[1]}]


def cifar_hostile() -> list[Files]:
    return [{"cifar10/test_batch": pickle.dumps(thing, protocol)} for thing in malicious() for protocol in (0, 2, 4)]


def published_hostile() -> list[Files]:
    (good,) = published(Path())
    arrays = []
    for thing in malicious():
        objects = np.empty(10, dtype=object)
        objects[:] = [thing] * 10
        arrays.append(npy_bytes(objects, allow_pickle=True))
    return [{**good, "cifar10-c/labels.npy": data} for data in (*arrays, *map(pickle.dumps, malicious()))]


def archives_hostile() -> list[Files]:
    """Links, devices, names that leave, a name twice, a link followed by a file through it, and bombs."""
    tars = [
        [tar_member("../outside.txt", b"x")],
        [tar_member("/tmp/outside.txt", b"x")],
        [tar_member("a/../../outside.txt", b"x")],
        [tar_member("s", kind=tarfile.SYMTYPE, link=".."), tar_member("s/outside.txt", b"x")],
        [tar_member("h", kind=tarfile.LNKTYPE, link="../outside.txt"), tar_member("h", b"x")],
        [tar_member("d", kind=tarfile.CHRTYPE)],
        [tar_member("f", kind=tarfile.FIFOTYPE)],
        [tar_member("a", b"1"), tar_member("a", b"2")],
        [tar_member("a", b"1"), tar_member("a/b", b"2")],
        [tar_member("x" * 3000, b"1")],
        [tar_member("/".join("x" * 900), b"1")],
    ]
    found = [packed_tar(members, form) for members in tars for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)]
    names = (
        "../outside.txt",
        "/tmp/outside.txt",
        "..\\outside.txt",
        "C:\\outside.txt",
        "a/../../outside.txt",
        "a\0b",
        "",
    )
    zips = []
    for name in names:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr(zipfile.ZipInfo("n" * len(name) or "n"), b"x")
        zips.append(stream.getvalue().replace(b"n" * len(name), name.encode()) if name else stream.getvalue())
    claim = tarfile.TarInfo("bomb")
    claim.size = BOMB
    long_name = tarfile.TarInfo("././@LongLink")
    long_name.size, long_name.type = BOMB, tarfile.GNUTYPE_LONGNAME
    bombs = [gzip_bomb(BOMB, header.tobuf(tarfile.GNU_FORMAT)) for header in (claim, long_name)]
    packed: list[Files] = [{"x.tar": data} for data in found]
    packed += [{"x.tar.gz": gzip.compress(data, mtime=0)} for data in found]
    packed += [{"x.zip": data} for data in (*zips, zip_bomb("bomb", BOMB))]
    packed += [{"x.tar.gz": data} for data in bombs]
    return [{**files, "outside.txt": b"left alone"} for files in packed]
