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
from smoothcert.data.registry import subfolders
from smoothcert.types import DataError

EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
SPLITS = ("train", "val", "test")
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""The accepted formats, whatever the file name: other formats of Pillow start programs, such as Ghostscript."""
MOST_PIXELS = 89_000_000  # the limit for an image, before and after resizing; this many pixels need about a gigabyte
SHORT_SIDE = 256
CROP = 224


class ImageFolder:
    """Images read from disk on access: short side resized to 256 (bilinear), centre crop of 224, RGB.

    The classes are the subfolders of ``path``, or of ``path/split`` if that one has subfolders, in sorted order.
    """

    def __init__(self, path: Path, split: str) -> None:
        top = _split_folder(path, split)
        classes = subfolders(top)
        self._items = [(file, label) for label, folder in enumerate(classes) for file in _images(folder)]
        if not self._items:
            raise DataError(f"{top} has no images in subfolders; give a folder with one subfolder for each class.")
        self.name = path.resolve().name
        self.split = split
        self.class_names = tuple(folder.name for folder in classes)
        self.num_classes = len(classes)
        self.shape: tuple[int, int, int] = (3, CROP, CROP)
        self.levels: int | None = 255  # Pillow resizes 8-bit images to 8-bit images

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: SupportsIndex) -> tuple[torch.Tensor, int]:
        return self._read(index, _center_crop)

    def random_crop(self, index: SupportsIndex, generator: np.random.Generator) -> tuple[torch.Tensor, int]:
        """Return an image, randomly cropped, scaled and flipped as usual for ImageNet, and its class."""
        return self._read(index, lambda image: _random_crop(image, generator))

    def _read(self, index: SupportsIndex, crop: Callable[[Image.Image], Image.Image]) -> tuple[torch.Tensor, int]:
        path, label = self._items[checked_index(index, len(self))]
        try:
            content = io.BytesIO(path.read_bytes())  # so that a decoder cannot request more than the file has
            with Image.open(content, formats=FORMATS) as file:
                _check_size(file)
                image = crop(file.convert("RGB"))
        except Exception as error:  # the decoders raise many kinds of errors on damaged files
            raise DataError(f"{path} is not a readable image ({error}): replace it or remove it.") from error
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255).contiguous(), label


def _check_size(image: Image.Image) -> None:
    """Refuse an image that needs too much memory; only its header has been read so far."""
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
    """Crop 8 to 100 % of the area at an aspect ratio of 3:4 to 4:3 (Szegedy et al., 2015); flip half of the images."""
    width, height = image.size
    for _ in range(10):
        area = generator.uniform(0.08, 1.0) * width * height
        ratio = math.exp(generator.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            break
    else:
        wide, high = min(width, height), min(width, height)
    left, top = (int(generator.integers(0, rest + 1)) for rest in (width - wide, height - high))
    image = image.resize((CROP, CROP), Image.Resampling.BILINEAR, box=(left, top, left + wide, top + high))
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if generator.random() < 0.5 else image


def _split_folder(path: Path, split: str) -> Path:
    present = [name for name in SPLITS if (path / name).is_dir() and subfolders(path / name)]
    if split in present:
        return path / split
    if present:
        raise DataError(f"{path} has no split '{split}', only {', '.join(present)}; use one of these.")
    return path


def _images(folder: Path) -> list[Path]:
    return sorted(f for f in folder.rglob("*") if f.suffix.lower() in EXTENSIONS and f.is_file())
