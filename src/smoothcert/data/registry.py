"""The named datasets: contents, origin, checksums, and where their files are."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pooch

from smoothcert.data.base import Dataset
from smoothcert.data.classes import imagenet_classes
from smoothcert.plugins import Registry
from smoothcert.types import DataError, StrPath

Variant = Sequence[Sequence[str]]  # a set of files; each is a list of accepted names, the preferred one first
IDENTITY = "identity"  # the name of the clean set of a suite of corruptions


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CIFAR100_CLASSES = _words(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man
    maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
    plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail
    snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout
    tulip turtle wardrobe whale willow_tree wolf woman worm
    """
)

DIGITS = tuple("0123456789")

CIFAR_SITE = "https://www.cs.toronto.edu/~kriz"


@dataclass(frozen=True)
class RemoteFile:
    """A file of a dataset, or an archive to unpack, with the SHA-256 that a download must have."""

    url: str
    sha256: str

    @property
    def filename(self) -> str:
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """A named dataset."""

    name: str
    layout: str  # the file format: idx, cifar, mnist-c, cifar-c, folders or bundled
    shape: tuple[int, int, int]  # channels, height, width
    train_size: int  # for a suite of corruptions: the size of each of its sets
    test_size: int
    class_names: tuple[str, ...]  # in the order of the labels
    source: str  # origin and licence, in one sentence
    folders: tuple[str, ...]  # accepted folder names; downloads go to the first
    files: tuple[RemoteFile, ...] = ()
    binary: bool = False  # whether values are rounded to 0 or 1
    splits: tuple[str, ...] = ("train", "test")
    clean: str | None = None  # for a suite of corruptions: the dataset without corruptions
    types: tuple[str, ...] = ()  # the corruptions of a suite that enter the usual mean
    more_types: tuple[str, ...] = ()  # its other corruptions
    severities: tuple[int, ...] = ()  # empty if each corruption has a single severity

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def bundled(self) -> bool:
        """Whether it comes with an installed package and needs no download."""
        return self.layout == "bundled"


def _files(site: str, sums: Mapping[str, str]) -> tuple[RemoteFile, ...]:
    return tuple(RemoteFile(f"{site}/{name}", sha256) for name, sha256 in sums.items())


_DIGITS = DatasetInfo(
    name="digits",
    layout="bundled",
    shape=(1, 8, 8),
    train_size=1297,
    test_size=500,
    class_names=DIGITS,
    source="Optical Recognition of Handwritten Digits (UCI), bundled; CC BY 4.0.",
    folders=("digits",),
)
_MNIST = DatasetInfo(
    name="mnist",
    layout="idx",
    shape=(1, 28, 28),
    train_size=60_000,
    test_size=10_000,
    class_names=DIGITS,
    source="MNIST by LeCun, Cortes and Burges, from the mirror of the PyTorch project; CC BY-SA 3.0.",
    folders=("mnist", "MNIST"),
    files=_files(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
)
_MNIST_BINARY = replace(
    _MNIST,
    name="mnist-binary",
    source="MNIST with every pixel rounded to 0 or 1 (Lee et al., 2019), from the files of MNIST; CC BY-SA 3.0.",
    binary=True,
)
_FASHION_MNIST = replace(
    _MNIST,
    name="fashion-mnist",
    class_names=(*_words("T-shirt/top Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag"), "Ankle boot"),
    source="Fashion-MNIST by Zalando Research (Xiao, Rasul and Vollgraf, 2017); MIT.",
    folders=("fashion-mnist", "FashionMNIST"),
    files=_files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        {
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
)
_CIFAR10 = DatasetInfo(
    name="cifar10",
    layout="cifar",
    shape=(3, 32, 32),
    train_size=50_000,
    test_size=10_000,
    class_names=_words("airplane automobile bird cat deer dog frog horse ship truck"),
    source="CIFAR-10 by Krizhevsky (2009), University of Toronto; no licence stated, cite the technical report.",
    folders=("cifar10", "cifar-10-batches-bin", "cifar-10-batches-py"),
    files=_files(
        CIFAR_SITE, {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"}
    ),
)
_CIFAR100 = replace(
    _CIFAR10,
    name="cifar100",
    class_names=CIFAR100_CLASSES,
    source="CIFAR-100 by Krizhevsky (2009), University of Toronto; no licence stated, cite the technical report.",
    folders=("cifar100", "cifar-100-binary", "cifar-100-python"),
    files=_files(
        CIFAR_SITE, {"cifar-100-binary.tar.gz": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"}
    ),
)
# Zenodo publishes MD5 sums only; these SHA-256 sums are from TensorFlow Datasets.
_MNIST_C = replace(
    _MNIST,
    name="mnist-c",
    layout="mnist-c",
    source="MNIST-C by Mu and Gilmer (2019), Zenodo record 3239543; CC BY 4.0.",
    folders=("mnist-c", "mnist_c", "MNIST-C"),
    files=_files(
        "https://zenodo.org/records/3239543/files",
        {"mnist_c.zip": "af9ee8c6a815870c7fdde5af84c7bf8db0bcfa1f41056db83871037fba70e493"},
    ),
    clean="mnist",
    types=_words(
        """
    brightness canny_edges dotted_line fog glass_blur impulse_noise motion_blur rotate scale shear shot_noise spatter
    stripe translate zigzag
    """
    ),
)
_CIFAR10_C = replace(
    _CIFAR10,
    name="cifar10-c",
    layout="cifar-c",
    train_size=0,
    source="CIFAR-10-C by Hendrycks and Dietterich (2019), Zenodo record 2535967; CC BY 4.0.",
    folders=("cifar10-c", "CIFAR-10-C"),
    files=_files(
        "https://zenodo.org/records/2535967/files",
        {"CIFAR-10-C.tar": "c72763e101c723b7c507b96205f7e938912a5d587376173b825850cf3cb876a7"},
    ),
    splits=("test",),
    clean="cifar10",
    types=_words(
        """
    brightness contrast defocus_blur elastic_transform fog frost gaussian_noise glass_blur impulse_noise
    jpeg_compression motion_blur pixelate shot_noise snow zoom_blur
    """
    ),
    more_types=_words("gaussian_blur saturate spatter speckle_noise"),
    severities=(1, 2, 3, 4, 5),
)

_IMAGENET = DatasetInfo(
    name="imagenet",
    layout="folders",
    shape=(3, 224, 224),
    train_size=1_281_167,
    test_size=50_000,
    class_names=imagenet_classes().names,
    source="ImageNet (ILSVRC 2012) by Russakovsky et al. (2015); for research, after registration at image-net.org.",
    folders=("imagenet", "ImageNet", "ILSVRC2012"),
    splits=("train", "val", "test"),
)

DATASETS: dict[str, DatasetInfo] = {
    info.name: info
    for info in (_DIGITS, _MNIST, _MNIST_BINARY, _FASHION_MNIST, _CIFAR10, _CIFAR100, _IMAGENET, _MNIST_C, _CIFAR10_C)
}

LOADERS: Registry[Callable[[str], Dataset]] = Registry("datasets", "dataset", None, {}, reserved=DATASETS)
"""Datasets that plug-ins define: functions from a split to a dataset, by name."""


def default_root() -> Path:
    """Return the folder of all datasets: ``$SMOOTHCERT_DATA``, or a folder in the user's cache."""
    return Path(os.environ.get("SMOOTHCERT_DATA") or pooch.os_cache("smoothcert")).expanduser()


def resolve_root(root: StrPath | None) -> Path:
    """Return the given folder, or the default one."""
    return default_root() if root is None else Path(root).expanduser()


def locate(info: DatasetInfo, split: str, root: Path, variants: Sequence[Variant]) -> list[Path]:
    """Return the files of the first variant that is complete in one folder.

    The search covers ``root/name`` and its subfolders for each folder name of the dataset, and ``root`` if it has such
    a name itself.
    """
    for folder in [f for top in tops(info, root) for f in (top, *subfolders(top))]:
        for variant in variants:
            found = [next((folder / name for name in names if (folder / name).is_file()), None) for names in variant]
            paths = [path for path in found if path is not None]
            if len(paths) == len(variant):
                return paths
    wanted = " or ".join(", ".join(names[0] for names in variant) for variant in variants)
    raise DataError(
        f"the {split} files of {info.name} are missing: looked for {wanted} in {root / info.folders[0]} and its "
        f"subfolders; run `smoothcert data fetch {info.name}` or name another folder."
    )


def tops(info: DatasetInfo, root: Path) -> list[Path]:
    """Return the folders with a name of the dataset."""
    named = [root / name for name in info.folders] + ([root] if root.name in info.folders else [])
    return [top for top in named if top.is_dir()]


def subfolders(folder: Path) -> list[Path]:
    """Return the visible subfolders in sorted order."""
    return sorted(f for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))
