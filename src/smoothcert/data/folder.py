"""A folder of images, one subfolder for each class."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import SupportsIndex

import numpy as np
import torch
from PIL import Image

from smoothcert.data.base import checked_index
from smoothcert.types import DataError

EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
SPLITS = ("train", "val", "test")
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What is read, whatever a file is called: other formats of Pillow start programs, such as Ghostscript."""
MOST_PIXELS = 89_000_000
"""What an image may have, before and after resizing; about a gigabyte is needed for as many."""
SHORT_SIDE = 256
CROP = 224


class ImageFolder:
    """Images read from disk when asked for: short side resized to 256 (bilinear), centre crop of 224, RGB.

    The classes are the subfolders of ``path``, or of ``path/split`` if that one has subfolders, in sorted order.

    Args:
        path: The folder.
        split: The split.

    Raises:
        DataError: If there is no image, or the folder has other splits only.
    """

    def __init__(self, path: Path, split: str) -> None:
        top = _split_folder(path, split)
        classes = _subfolders(top)
        self._items = [(file, label) for label, folder in enumerate(classes) for file in _images(folder)]
        if not self._items:
            raise DataError(f"{top} holds no images in subfolders; give a folder with one subfolder for each class.")
        self.name = path.resolve().name
        self.split = split
        self.class_names = tuple(folder.name for folder in classes)
        self.num_classes = len(classes)
        self.shape: tuple[int, int, int] = (3, CROP, CROP)
        self.levels = 255  # Pillow resizes 8-bit images to 8-bit images

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: SupportsIndex) -> tuple[torch.Tensor, int]:
        path, label = self._items[checked_index(index, len(self))]
        return read_image(path), label

    def random_crop(self, index: SupportsIndex, generator: np.random.Generator) -> tuple[torch.Tensor, int]:
        """An image cut, scaled and flipped at random, as usual in training on ImageNet, and its class.

        Args:
            index: The image.
            generator: The source of randomness.

        Returns:
            A float32 tensor (3, 224, 224) in [0, 1], and the class.
        """
        path, label = self._items[checked_index(index, len(self))]
        return read_image(path, lambda image: _random_crop(image, generator)), label


def read_image(path: Path, cut: Callable[[Image.Image], Image.Image] | None = None) -> torch.Tensor:
    """Read, resize and crop one image.

    Args:
        path: The file.
        cut: Makes an image 224×224; by default its centre, the short side resized to 256 before.

    Returns:
        A float32 tensor (3, 224, 224) in [0, 1].

    Raises:
        DataError: If the file is no readable image.
    """
    try:
        content = io.BytesIO(path.read_bytes())  # of which a decoder can ask no more than there is
        with Image.open(content, formats=FORMATS) as file:
            _check_size(file)
            image = (cut or _center_crop)(file.convert("RGB"))
    except Exception as error:  # the decoders raise many kinds of errors on damaged files
        raise DataError(f"{path} is no readable image ({error}): replace it or remove it.") from error
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255).contiguous()


def _check_size(image: Image.Image) -> None:
    """Refuse an image that would not fit into memory; nothing but its header was read so far."""
    width, height = image.size
    short = min(width, height)
    if short < 1 or max(width * height, SHORT_SIDE**2 * width * height // short**2) > MOST_PIXELS:
        raise ValueError(f"it has {width}×{height} pixels, too many or too thin")


def _center_crop(image: Image.Image) -> Image.Image:
    width, height = image.size
    short = min(width, height)
    image = image.resize((SHORT_SIDE * width // short, SHORT_SIDE * height // short), Image.Resampling.BILINEAR)
    left, top = (round((side - CROP) / 2) for side in image.size)
    return image.crop((left, top, left + CROP, top + CROP))


def _random_crop(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """A part of 8 to 100 % of the area and 3:4 to 4:3 in shape (Szegedy et al., 2015), flipped or not."""
    width, height = image.size
    for _ in range(10):
        area = generator.uniform(0.08, 1.0) * width * height
        shape = math.exp(generator.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < wide <= width and 0 < high <= height:
            break
    else:
        wide, high = min(width, height), min(width, height)
    left, top = (int(generator.integers(0, room + 1)) for room in (width - wide, height - high))
    image = image.resize((CROP, CROP), Image.Resampling.BILINEAR, box=(left, top, left + wide, top + high))
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if generator.random() < 0.5 else image


def _split_folder(path: Path, split: str) -> Path:
    present = [name for name in SPLITS if (path / name).is_dir() and _subfolders(path / name)]
    if split in present:
        return path / split
    if present:
        raise DataError(f"{path} has no split '{split}' but {', '.join(present)}; ask for one of these.")
    return path


def _subfolders(folder: Path) -> list[Path]:
    return sorted(f for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    return sorted(f for f in folder.rglob("*") if f.suffix.lower() in EXTENSIONS and f.is_file())
