"""Image files as inputs: decoded safely, and resized only if the user says how."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from smoothcert.data.base import NumberedClasses, checked_index
from smoothcert.tensors import GREY, image_tensor, is_deep
from smoothcert.types import DataError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""The accepted formats, whatever the file name: other formats of Pillow start programs, such as Ghostscript."""
MOST_PIXELS = 89_000_000  # the limit for an image, before and after resizing; this many pixels need about a gigabyte
LARGEST_INPUT = 1 << 24  # pixels of an input; its values are floats
_COMPARED = 1_000  # images of a folder whose sizes are compared before any is used
Crop = Callable[[Image.Image], Image.Image]


@dataclass(frozen=True)
class ImageForm:
    """The size and the channels of inputs.

    Attributes:
        size: None: all images have the same size, and another one is refused. A number s: the short side is resized to
            s·256/224 and the centre of s×s is cropped, as usual for ImageNet. (height, width): resized to it.
        channels: 1 or 3; None: those of the first image.
    """

    size: int | tuple[int, int] | None = None
    channels: int | None = None

    @classmethod
    def of(cls, size: Any = None, channels: Any = None) -> ImageForm:
        """Read the options ``size`` (such as ``224`` or ``32x32``) and ``channels``."""
        sides = re.fullmatch(r"([0-9]{1,5})(?:[x×]([0-9]{1,5}))?", str(size))
        if channels not in (None, 1, 3):
            raise UsageError(f"channels must be 1 or 3, got {channels}.")
        if size is None:
            return cls(None, channels)
        if sides is None or "0" in (sides[1].strip("0") or "0", (sides[2] or "1").strip("0") or "0"):
            raise UsageError(f"size must be a number, as 224, or HEIGHTxWIDTH, as 32x48, got {size}.")
        height, width = int(sides[1]), int(sides[2] or sides[1])
        if height * width > LARGEST_INPUT:
            raise UsageError(f"images of {height}×{width} are too large; give a smaller size.")
        return cls((height, width) if sides[2] else height, channels)

    @property
    def short_side(self) -> int:
        """The length to which the short side is resized before the centre is cropped."""
        assert isinstance(self.size, int)
        return round(self.size * 256 / 224)

    def check(self, image: Image.Image) -> None:
        """Refuse an image that needs too much memory; only its header has been read so far."""
        width, height = image.size
        short = min(width, height)
        resized = self.short_side**2 * width * height // max(short, 1) ** 2 if isinstance(self.size, int) else 0
        if short < 1 or max(width * height, resized) > MOST_PIXELS:
            raise ValueError(f"it has {width}×{height} pixels, too many or too thin")
        if self.size is None and width * height > LARGEST_INPUT:
            raise ValueError(f"it has {width}×{height} pixels, too many for an input; add size=224")

    def resized(self, image: Image.Image) -> Image.Image:
        """Return the image in the size of the inputs, or as it is if none was asked for."""
        if self.size is None:
            return image
        if not isinstance(self.size, int):
            return image.resize(self.size[::-1], Image.Resampling.BILINEAR)
        width, height = image.size
        short, side = min(width, height), self.size
        sides = (self.short_side * width // short, self.short_side * height // short)
        image = image.resize(sides, Image.Resampling.BILINEAR)
        left, top = (round((length - side) / 2) for length in image.size)
        return image.crop((left, top, left + side, top + side))


class Images(NumberedClasses):
    """Images decoded on access; subclasses return the content of a file."""

    levels: int | None = 255  # Pillow resizes 8-bit images to 8-bit images
    input_range: tuple[float, float] | None = (0.0, 1.0)

    def __init__(
        self,
        labels: NDArray[np.int64],
        class_names: Sequence[str],
        form: ImageForm,
        *,
        name: str,
        split: str,
        by_name: bool,
    ) -> None:
        super().__init__(labels, class_names, by_name=by_name)
        self.name, self.split, self._form = name, split, form

    def _content(self, index: int) -> tuple[bytes, str]:
        """Return the bytes of a file, and its name for messages."""
        raise NotImplementedError

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width: those asked for, or those of the first image."""
        size, channels = self._form.size, self._form.channels
        if size is None or channels is None:
            sides, mode = self._decoded(0, lambda image: (image.size, image.mode))
            size = size or (sides[1], sides[0])
            channels = channels or (1 if mode in GREY else 3)
        return (channels, size, size) if isinstance(size, int) else (channels, *size)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: SupportsIndex) -> tuple[Tensor, int]:
        i = checked_index(index, len(self))
        return self._tensor(i, self._form.resized), int(self._labels[i])

    def random_crop(self, index: SupportsIndex, generator: np.random.Generator) -> tuple[Tensor, int]:
        """Return an image, randomly cropped, scaled and flipped as usual for ImageNet, and its class."""
        i = checked_index(index, len(self))
        return self._tensor(i, lambda image: _random_crop(image, self.shape[1:], generator)), int(self._labels[i])

    def _tensor(self, index: int, crop: Crop) -> Tensor:
        channels = self.shape[0]
        image, coloured = self._decoded(
            index, lambda file: (crop(file.convert("L" if channels == 1 else "RGB")), file.mode not in GREY)
        )
        if coloured and channels == 1 and self._form.channels is None:
            raise DataError(
                f"{self._content(index)[1]} has colours, but the first image is grey; add channels=3 or channels=1."
            )
        self._require_size(index, image.size)
        return image_tensor(image)

    def _require_size(self, index: int, size: tuple[int, int]) -> None:
        height, width = self.shape[1:]
        if size != (width, height):
            raise DataError(
                f"{self._content(index)[1]} has {size[1]}×{size[0]} pixels, but the first image has {height}×{width}; "
                "add size=224 (resize, then crop the centre) or size=HEIGHTxWIDTH (resize)."
            )

    def _require_one_size(self) -> None:
        """Compare the sizes of some images, if all must have that of the first; unreadable ones are named when used."""
        if self._form.size is None:
            for index in np.unique(np.linspace(0, len(self) - 1, _COMPARED).astype(int)).tolist():
                size = None
                with suppress(DataError):
                    size = self._decoded(index, lambda image: image.size)
                if size is not None:
                    self._require_size(index, size)

    def _decoded(self, index: int, use: Callable[[Image.Image], Any]) -> Any:
        content, where = self._content(index)
        try:
            # From memory, so that a decoder cannot request more than the file has.
            with Image.open(io.BytesIO(content), formats=FORMATS) as file:
                self._form.check(file)
                if is_deep(file):
                    raise ValueError(f"its values have more than 8 bits (mode {file.mode}); convert it to 8 bits")
                return use(file)
        except Exception as error:  # the decoders raise many kinds of errors on damaged files
            raise DataError(f"{where} is not a readable image ({error}): replace it or remove it.") from error


def _random_crop(image: Image.Image, sides: Sequence[int], generator: np.random.Generator) -> Image.Image:
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
    box = (left, top, left + wide, top + high)
    image = image.resize((sides[1], sides[0]), Image.Resampling.BILINEAR, box=box)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if generator.random() < 0.5 else image
