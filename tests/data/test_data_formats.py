"""The files of the named datasets read back, and every damaged one refused."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from smoothcert import data
from smoothcert.data import registry
from smoothcert.noise import Discrete
from smoothcert.types import DataError

RNG = np.random.default_rng(0)
MNIST_IMAGES = RNG.integers(0, 256, (5, 28, 28), dtype=np.uint8)
MNIST_LABELS = np.array([3, 1, 4, 1, 5], dtype=np.uint8)
CIFAR_IMAGES = RNG.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)


def idx_bytes(array: np.ndarray, *, magic: int | None = None, count: int | None = None) -> bytes:
    shape = (len(array) if count is None else count, *array.shape[1:])
    return struct.pack(f">{1 + array.ndim}I", magic or 0x0800 + array.ndim, *shape) + array.tobytes()


def write_mnist(folder: Path, *, dot: str = "-", gz: bool = False, images: bytes = b"", labels: bytes = b"") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"images": images or idx_bytes(MNIST_IMAGES), "labels": labels or idx_bytes(MNIST_LABELS)}
    for kind, content in contents.items():
        name = f"t10k-{kind}{dot}idx{3 if kind == 'images' else 1}-ubyte"
        (folder / (name + ".gz" if gz else name)).write_bytes(gzip.compress(content) if gz else content)


def check_images(dataset: data.Dataset, images: np.ndarray, labels: list[int]) -> None:
    assert isinstance(dataset, data.ArrayDataset)
    assert len(dataset) == len(images)
    for (image, label), expected, wanted in zip(dataset, images, labels, strict=True):
        assert image.dtype == torch.float32
        assert image.shape == dataset.shape
        assert label == wanted
        assert type(label) is int
        torch.testing.assert_close(image, torch.tensor(expected).float() / 255, rtol=0, atol=0)
    stacked, classes = dataset.arrays()
    assert stacked.dtype == torch.float32
    assert classes.dtype == torch.int64
    torch.testing.assert_close(stacked, torch.stack([image for image, _ in dataset]), rtol=0, atol=0)
    assert classes.tolist() == labels


def test_binary_mnist_rounds_the_pixels_of_mnist(tmp_path: Path) -> None:
    edges = np.array([0, 1, 127, 128, 254, 255], dtype=np.uint8)
    images = MNIST_IMAGES.copy()
    images[0, 0, :6] = edges
    write_mnist(tmp_path / "mnist", images=idx_bytes(images))
    dataset = data.load("mnist-binary", root=tmp_path)
    grey = data.load("mnist", root=tmp_path)
    assert (dataset.name, dataset.shape, len(dataset)) == ("mnist-binary", (1, 28, 28), 5)
    for (binary, label), (image, same) in zip(dataset, grey, strict=True):
        assert binary.dtype == torch.float32
        assert label == same
        assert torch.equal(binary, image.round())
    assert dataset[0][0][0, 0, :6].tolist() == [0, 0, 0, 1, 1, 1]
    Discrete(0.8, 1).check(dataset.arrays()[0])
    assert data.available("mnist-binary", root=tmp_path) == data.available("mnist", root=tmp_path)
    with pytest.raises(DataError, match=r"mnist-binary are missing: .* in .*mnist and its subfolders; run"):
        data.load("mnist-binary", root=tmp_path / "elsewhere")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("dot", ["-", "."])
@pytest.mark.parametrize("below", ["", "raw"])
def test_idx_round_trip(tmp_path: Path, name: str, gz: bool, dot: str, below: str) -> None:
    write_mnist(tmp_path / name / below, dot=dot, gz=gz)
    dataset = data.load(name, root=tmp_path)
    check_images(dataset, MNIST_IMAGES[:, None], MNIST_LABELS.tolist())
    assert (dataset.name, dataset.split, dataset.num_classes) == (name, "test", 10)


def test_the_folder_of_the_dataset_itself_may_be_the_root(tmp_path: Path) -> None:
    write_mnist(tmp_path / "fashion-mnist")
    assert len(data.load("fashion-mnist", root=tmp_path / "fashion-mnist")) == 5
    with pytest.raises(DataError, match="missing"):  # the file names are the same, the dataset is not
        data.load("mnist", root=tmp_path / "fashion-mnist")


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (idx_bytes(MNIST_IMAGES, magic=2049), b"", "magic number is 2049, not 2051"),
        (idx_bytes(MNIST_IMAGES, count=4_000_000_000), b"", "claims 3136000000000 bytes of content and has 3920"),
        (idx_bytes(MNIST_IMAGES)[:-1], b"", "claims 3920 bytes of content and has 3919"),
        (idx_bytes(MNIST_IMAGES) + b"x", b"", "claims 3920 bytes of content and has more"),
        (idx_bytes(MNIST_IMAGES)[:9], b"", "truncated within its header"),
        (idx_bytes(MNIST_IMAGES[:0]), b"", "claims 0 bytes"),
        (idx_bytes(MNIST_IMAGES[:, :27]), b"", r"shape \(27, 28\), not \(28, 28\)"),
        (b"", idx_bytes(MNIST_LABELS[:4]), "4 labels for 5 images"),
        (b"", idx_bytes(MNIST_LABELS + 5), "label 10 at image 4"),
    ],
)
@pytest.mark.parametrize("gz", [False, True])
def test_bad_idx_is_refused(tmp_path: Path, images: bytes, labels: bytes, message: str, gz: bool) -> None:
    write_mnist(tmp_path / "mnist", images=images, labels=labels, gz=gz)
    with pytest.raises(DataError, match=message) as caught:
        data.load("mnist", root=tmp_path)
    assert "idx" in str(caught.value)


@pytest.mark.parametrize("damage", [lambda c: c[:-20], lambda c: c[:60] + b"????" + c[64:], lambda c: b"no gzip"])
def test_damaged_gzip_is_refused(tmp_path: Path, damage) -> None:
    write_mnist(tmp_path / "mnist", gz=True)
    path = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte.gz is truncated or damaged"):
        data.load("mnist", root=tmp_path)


def cifar_bytes(images: np.ndarray, labels: list[int], *, coarse: bool) -> bytes:
    head = [[0, label] if coarse else [label] for label in labels]
    return np.concatenate([np.array(head, dtype=np.uint8), images.reshape(len(images), -1)], axis=1).tobytes()


def write_cifar10_train(folder: Path) -> None:
    folder.mkdir(parents=True)
    for i in range(5):
        (folder / f"data_batch_{i + 1}.bin").write_bytes(cifar_bytes(CIFAR_IMAGES[:1], [i], coarse=False))


@pytest.mark.parametrize("folder", ["cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"])
def test_cifar10_binary_round_trip(tmp_path: Path, folder: str) -> None:
    write_cifar10_train(tmp_path / folder)
    (tmp_path / folder / "test_batch.bin").write_bytes(cifar_bytes(CIFAR_IMAGES, [9, 0, 3, 3], coarse=False))
    check_images(data.load("cifar10", root=tmp_path), CIFAR_IMAGES, [9, 0, 3, 3])
    check_images(data.load("cifar10", split="train", root=tmp_path), CIFAR_IMAGES[[0] * 5], [0, 1, 2, 3, 4])


def test_cifar100_binary_takes_the_fine_label(tmp_path: Path) -> None:
    (tmp_path / "cifar100").mkdir()
    (tmp_path / "cifar100" / "test.bin").write_bytes(cifar_bytes(CIFAR_IMAGES, [99, 0, 42, 7], coarse=True))
    dataset = data.load("cifar100", root=tmp_path)
    check_images(dataset, CIFAR_IMAGES, [99, 0, 42, 7])
    assert dataset.class_names[99] == "worm"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            cifar_bytes(CIFAR_IMAGES, [1, 2, 3, 4], coarse=False)[:-1],
            "not a multiple of the 3073 bytes",
        ),
        (b"", "has 0 bytes"),
        (cifar_bytes(CIFAR_IMAGES, [1, 2, 10, 4], coarse=False), "label 10 at image 2"),
    ],
)
def test_bad_cifar_binary_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "test_batch.bin").write_bytes(content)
    with pytest.raises(DataError, match=message):
        data.load("cifar10", root=tmp_path)


def write_pickled(root: Path, content: object, *, protocol: int = 2, old_numpy: bool = False) -> None:
    (root / "cifar10" / "cifar-10-batches-py").mkdir(parents=True)
    dumped = pickle.dumps(content, protocol=protocol)
    if old_numpy:
        assert b"cnumpy._core.multiarray" in dumped
        dumped = dumped.replace(b"cnumpy._core.multiarray", b"cnumpy.core.multiarray")
    (root / "cifar10" / "cifar-10-batches-py" / "test_batch").write_bytes(dumped)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("keys", ["text", "bytes"])
@pytest.mark.parametrize("old_numpy", [False, True])
def test_cifar10_pickled_round_trip(tmp_path: Path, order: str, keys: str, old_numpy: bool) -> None:
    pixels = np.asarray(CIFAR_IMAGES.reshape(4, -1), order=order)
    content = {"data": pixels, "labels": [9, 0, 3, 3], "filenames": ["a", "b", "c", "d"], "batch_label": "test"}
    if keys == "bytes":
        content = {key.encode(): value for key, value in content.items()}
    write_pickled(tmp_path, content, old_numpy=old_numpy)
    check_images(data.load("cifar10", root=tmp_path), CIFAR_IMAGES, [9, 0, 3, 3])


def test_cifar10_pickled_in_protocol_4(tmp_path: Path) -> None:
    write_pickled(tmp_path, {"data": CIFAR_IMAGES.reshape(4, -1), "labels": [1, 2, 3, 4]}, protocol=4)
    check_images(data.load("cifar10", root=tmp_path), CIFAR_IMAGES, [1, 2, 3, 4])


def test_cifar10_pickled_by_python_2(tmp_path: Path) -> None:
    """As the published files are: all text is byte strings, which today's pickle module cannot write."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x01M\x00\x0c\x86"
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T\x00\x0c\x00\x00" + CIFAR_IMAGES[0].tobytes() + b"tb"
    )
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "test_batch").write_bytes(b"\x80\x02}(U\x04data" + array + b"U\x06labels]K\x05au.")
    check_images(data.load("cifar10", root=tmp_path), CIFAR_IMAGES[:1], [5])


def test_cifar100_pickled_takes_the_fine_label(tmp_path: Path) -> None:
    (tmp_path / "cifar100").mkdir()
    content = {"data": CIFAR_IMAGES.reshape(4, -1), "fine_labels": [99, 0, 42, 7], "coarse_labels": [1, 1, 1, 1]}
    (tmp_path / "cifar100" / "test").write_bytes(pickle.dumps(content, protocol=2))
    check_images(data.load("cifar100", root=tmp_path), CIFAR_IMAGES, [99, 0, 42, 7])


class Calls:
    """An object whose unpickling calls a function."""

    def __init__(self, function, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("function", [os.system, eval, np.load])
def test_malicious_pickle_runs_nothing(tmp_path: Path, protocol: int, function) -> None:
    trace = tmp_path / "trace"
    argument = f"touch '{trace}'" if function is os.system else f"open({str(trace)!r}, 'w')"
    write_pickled(tmp_path, {"data": Calls(function, argument), "labels": [0]}, protocol=protocol)
    with pytest.raises(DataError, match=rf"test_batch .*it calls \w+.*\.{function.__name__}, .* not run"):
        data.load("cifar10", root=tmp_path)
    assert not trace.exists()


@pytest.mark.parametrize("name", [b"cnumpy\ndtype\n", b"cnumpy\nndarray\n", b"c_codecs\nencode\n"])
def test_pickle_cannot_change_the_stand_ins(tmp_path: Path, name: bytes) -> None:
    (tmp_path / "cifar10").mkdir()
    state = b"(N}X\x08\x00\x00\x00__init__K\x01st"  # (None, {"__init__": 1}) asks for setattr(stand_in, "__init__", 1)
    (tmp_path / "cifar10" / "test_batch").write_bytes(b"\x80\x02" + name + state + b"b.")
    with pytest.raises(DataError, match=r"not a pickle of a dataset .*__setstate__"):
        data.load("cifar10", root=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "has no dictionary"),
        ({"labels": [1]}, "no images of 3072 bytes"),
        ({"data": np.zeros((2, 5), np.uint8), "labels": [1, 2]}, "no images of 3072 bytes"),
        ({"data": np.zeros((1, 3072)), "labels": [1]}, "another type than uint8"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}, "1 labels for 2 images"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": ["1"]}, "no list of integers"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [-1]}, "label -1 at image 0"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [2**70]}, "label 1180591620717411303424 at image 0"),
    ],
)
def test_bad_pickled_content_is_refused(tmp_path: Path, content: object, message: str) -> None:
    write_pickled(tmp_path, content)
    with pytest.raises(DataError, match=message):
        data.load("cifar10", root=tmp_path)


def test_truncated_pickle_is_refused(tmp_path: Path) -> None:
    write_pickled(tmp_path, {"data": CIFAR_IMAGES.reshape(4, -1), "labels": [1, 2, 3, 4]})
    path = tmp_path / "cifar10" / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match="test_batch is not a pickle"):
        data.load("cifar10", root=tmp_path)


def test_cifar100_has_its_100_classes_in_alphabetical_order() -> None:
    names = registry.CIFAR100_CLASSES
    assert len(set(names)) == 100
    assert list(names) == sorted(names)
