"""MNIST-C and CIFAR-10-C in the arrays they are published in, here with few images."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from smoothcert import data
from smoothcert.data import DATASETS, load_suite
from smoothcert.data.archive import unpack
from smoothcert.types import DataError, UsageError

COUNT = 4
MNIST_C, CIFAR_C = DATASETS["mnist-c"], DATASETS["cifar10-c"]


@pytest.fixture(autouse=True)
def _few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    for info in (MNIST_C, CIFAR_C):
        monkeypatch.setitem(DATASETS, info.name, dataclasses.replace(info, train_size=COUNT + 1, test_size=COUNT))


def write(folder: Path, name: str, array: np.ndarray) -> None:
    path = folder / f"{name}.npy"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)


def write_mnist_c(folder: Path) -> None:
    """Every image is filled with the number of its type."""
    for number, kind in enumerate(("identity", *MNIST_C.types)):
        for split, count in (("train", COUNT + 1), ("test", COUNT)):
            write(folder, f"{kind}/{split}_images", np.full((count, 28, 28, 1), number, dtype=np.uint8))
            write(folder, f"{kind}/{split}_labels", np.arange(count))


def write_cifar_c(folder: Path, more: bool = True) -> None:
    """Image i of every type is filled with i in red, and with the number of its type in blue."""
    count = 5 * COUNT
    for number, kind in enumerate((*CIFAR_C.types, *(CIFAR_C.more_types if more else ()))):
        images = np.zeros((count, 32, 32, 3), dtype=np.uint8)
        images[..., 0] = np.arange(count)[:, None, None]
        images[..., 2] = number
        write(folder, kind, images)
    write(folder, "labels", np.tile(np.arange(COUNT, dtype=np.uint8), 5))


def test_mnist_c(tmp_path):
    write_mnist_c(tmp_path / "mnist-c" / "mnist_c")  # as it is unpacked
    fog = data.load("mnist-c/fog", root=tmp_path)
    assert (fog.name, fog.split, len(fog), fog.shape) == ("mnist-c-fog", "test", COUNT, (1, 28, 28))
    image, label = fog[3]
    assert (image * 255 == 1 + MNIST_C.types.index("fog")).all()
    assert label == 3
    assert len(data.load("mnist-c/fog", split="train", root=tmp_path)) == COUNT + 1
    assert data.load("mnist-c/identity", root=tmp_path)[0][0].max() == 0
    assert data.available("mnist-c", root=tmp_path)
    sets = load_suite("mnist-c", root=tmp_path)
    assert [member.name for member in sets] == ["identity", *MNIST_C.types]
    assert len(sets) == 16
    (tmp_path / "mnist-c" / "mnist_c" / "zigzag" / "test_labels.npy").unlink()
    assert not data.available("mnist-c", root=tmp_path)


def test_cifar10_c_has_a_block_for_each_severity(tmp_path):
    write_cifar_c(tmp_path / "CIFAR-10-C")
    snow = data.load("cifar10-c/snow/3", root=tmp_path)
    assert (snow.name, len(snow), snow.shape) == ("cifar10-c-snow-3", COUNT, (3, 32, 32))
    image, label = snow[1]
    assert (image[0] * 255 == 2 * COUNT + 1).all()
    assert (image[1] == 0).all()
    assert (image[2] * 255 == CIFAR_C.types.index("snow")).all()
    assert label == 1
    images = snow.arrays()[0]
    assert (images[:, 0, 0, 0] * 255).round().tolist() == [8, 9, 10, 11]
    assert len(data.load("cifar10-c/saturate/1", root=tmp_path)) == COUNT
    assert data.available("cifar10-c", root=tmp_path)


def test_a_suite_of_cifar10_c(tmp_path):
    write_cifar_c(tmp_path / "cifar10-c")
    (tmp_path / "cifar10").mkdir()
    for name in ("test_batch", *(f"data_batch_{i}" for i in range(1, 6))):
        (tmp_path / "cifar10" / f"{name}.bin").write_bytes((b"\x07" + bytes(3072)) * COUNT)
    sets = load_suite("cifar10-c", root=tmp_path)
    assert len(sets) == 1 + 15 * 5
    assert sets[0].dataset.name == "cifar10"  # the suite leaves out the clean set
    assert [sets[1].name, sets[-1].name] == ["brightness-1", "zoom_blur-5"]
    some = load_suite("cifar10-c", types=["saturate"], severities=[2, 4], root=tmp_path)
    assert [(member.name, member.dataset.name) for member in some] == [
        ("saturate-2", "cifar10-c-saturate-2"),
        ("saturate-4", "cifar10-c-saturate-4"),
    ]


def test_images_stay_on_disk(tmp_path):
    write_cifar_c(tmp_path / "cifar10-c")
    images = data.load("cifar10-c/fog/2", root=tmp_path)._images
    while not isinstance(images, np.memmap):
        images = images.base
    assert images.mode == "r"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mnist-c", r"mnist-c is not a single dataset: .* name one as mnist-c/fog, or use all with `smoothcert corr"),
        ("cifar10-c/fog", "name one as cifar10-c/fog/3"),
        ("mnist-c/fog/3", "mnist-c/fog/3 is not a single dataset"),
        ("mnist-c/frog", "unknown corruption of mnist-c 'frog'; did you mean 'fog'"),
        ("cifar10-c/zigzag/1", "unknown corruption of cifar10-c 'zigzag'"),
        ("cifar10-c/fog/6", "cifar10-c has no severity 6; use 1 to 5"),
        ("cifar10-c/fog/x", "cifar10-c has no severity x"),
    ],
)
def test_names_that_are_no_set(tmp_path, name, message):
    with pytest.raises(UsageError, match=message):
        data.load(name, root=tmp_path)


def test_suites_refuse_what_they_do_not_have(tmp_path):
    write_mnist_c(tmp_path / "mnist-c")
    write_cifar_c(tmp_path / "cifar10-c")
    with pytest.raises(UsageError, match="the corruptions of mnist-c have a single severity; leave the severities out"):
        load_suite("mnist-c", severities=[1], root=tmp_path)
    with pytest.raises(UsageError, match="unknown corruption of mnist-c 'snow'"):
        load_suite("mnist-c", types=["snow"], root=tmp_path)
    with pytest.raises(UsageError, match="from 1 to 5, not 7"):
        load_suite("cifar10-c", types=["snow"], severities=[7], root=tmp_path)
    with pytest.raises(UsageError, match="unknown split 'train'; use test"):
        data.load("cifar10-c/fog/1", split="train", root=tmp_path)


def test_missing_files_say_which_and_how_to_fetch(tmp_path):
    write_mnist_c(tmp_path / "mnist-c")
    (tmp_path / "mnist-c" / "fog" / "test_images.npy").unlink()
    sentence = (
        "the test files of mnist-c are missing: looked for fog/test_images.npy, fog/test_labels.npy in .*mnist-c and "
        "its subfolders; run `smoothcert data fetch mnist-c`"
    )
    with pytest.raises(DataError, match=sentence):
        load_suite("mnist-c", root=tmp_path)
    with pytest.raises(DataError, match=r"looked for fog.npy, labels.npy .* data fetch cifar10-c`"):
        data.load("cifar10-c/fog/1", root=tmp_path)


IMAGES = np.zeros((5 * COUNT, 32, 32, 3), dtype=np.uint8)
LABELS = np.zeros(5 * COUNT, dtype=np.int64)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("fog", IMAGES[1:], r"fog.npy has an array of shape \(19, 32, 32, 3\), not \(20, 32, 32, 3\)"),
        ("fog", IMAGES.transpose(0, 3, 1, 2), r"shape \(20, 3, 32, 32\), not"),
        ("fog", IMAGES.astype(np.float32), "has numbers of type float32, not uint8"),
        ("labels", LABELS[:-1], r"labels.npy has an array of shape \(19,\), not \(20,\)"),
        ("labels", LABELS.astype(float), "has numbers of type float64, not whole numbers"),
        ("labels", LABELS + 10, "has label 10 at image 0, but classes are 0 to 9"),
        ("fog", np.array([{}], dtype=object), "not a complete .npy file of numbers .*Python objects"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, name, array, message):
    write_cifar_c(tmp_path / "cifar10-c")
    np.save(tmp_path / "cifar10-c" / f"{name}.npy", array)
    with pytest.raises(DataError, match=message):
        data.load("cifar10-c/fog/1", root=tmp_path)


@pytest.mark.parametrize("content", [b"", b"no array", None])
def test_files_that_are_no_array(tmp_path, content):
    write_cifar_c(tmp_path / "cifar10-c")
    path = tmp_path / "cifar10-c" / "fog.npy"
    path.write_bytes(path.read_bytes()[:-1] if content is None else content)
    with pytest.raises(DataError, match=r"fog.npy is not a complete .npy file of numbers .*: download it again"):
        data.load("cifar10-c/fog/1", root=tmp_path)
    np.savez(path.with_suffix(".npz"), x=IMAGES)
    path.with_suffix(".npz").rename(path)
    with pytest.raises(DataError, match=r"fog.npy is an .npz file, not a single array"):
        data.load("cifar10-c/fog/1", root=tmp_path)


def zip_of(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for path in sorted(folder.rglob("*.npy")):
            file.write(path, path.relative_to(folder.parent))
    return buffer.getvalue()


def tar_of(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        file.add(folder, folder.name)
    return buffer.getvalue()


def test_archives_are_fetched_checked_and_unpacked(tmp_path, monkeypatch):
    write_mnist_c(tmp_path / "mnist_c")
    write_cifar_c(tmp_path / "CIFAR-10-C", more=False)
    archives = {"mnist-c": zip_of(tmp_path / "mnist_c"), "cifar10-c": tar_of(tmp_path / "CIFAR-10-C")}
    root = tmp_path / "root"
    for name, content in archives.items():
        remote = DATASETS[name].files[0]
        # pooch leaves a file alone that is there and has the right sum: no network is needed.
        ours = dataclasses.replace(remote, sha256=hashlib.sha256(content).hexdigest())
        monkeypatch.setitem(DATASETS, name, dataclasses.replace(DATASETS[name], files=(ours,)))
        (root / name).mkdir(parents=True)
        (root / name / remote.filename).write_bytes(content)
        assert not data.available(name, root=root)
        assert data.fetch(name, root=root, progress=False) == root / name
        assert data.available(name, root=root)
        assert not (root / name / remote.filename).exists()
    assert data.load("cifar10-c/fog/5", root=root)[0][0][0, 0, 0] * 255 == 4 * COUNT


def bad_zip(name: str, mode: int = 0) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("good", b"1")
        entry = zipfile.ZipInfo(name)
        entry.external_attr = mode << 16
        file.writestr(entry, b"/etc/passwd")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bad_zip("../evil"), "'../evil', which leaves its folder"),
        (bad_zip("/tmp/evil"), "leaves its folder"),
        (bad_zip("C:\\evil"), "leaves its folder"),
        (bad_zip("a\\..\\..\\evil"), "leaves its folder"),
        (bad_zip("evil", stat.S_IFLNK | 0o777), "'evil', a link or device"),
        (bad_zip("evil", stat.S_IFIFO), "a link or device"),
        (bad_zip("plain")[:-30], "cannot be unpacked"),
        (b"no archive", "cannot be unpacked"),
    ],
)
def test_a_bad_zip_leaves_nothing_behind(tmp_path, content, message):
    archive = tmp_path / "a.zip"
    archive.write_bytes(content)
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=rf"a\.zip .*{message}"):
        unpack(archive, tmp_path / "folder")
    assert sorted(tmp_path.rglob("*")) == [archive, tmp_path / "folder"]
