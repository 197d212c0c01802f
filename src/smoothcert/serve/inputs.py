"""Decode untrusted bytes into inputs of a model: image files, arrays in JSON, and ``.npy`` files."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from smoothcert.data.images import FORMATS, ImageForm
from smoothcert.files import parse_json
from smoothcert.serve.refusals import Refused
from smoothcert.tensors import image_tensor, is_deep

NPY_TYPES = ("application/x-npy", "application/octet-stream")
_CROPPED = 128  # pixels from which a square input is cropped as usual for ImageNet, and not stretched


@dataclass(frozen=True)
class Input:
    """An input of a model, and what was done to the given one.

    Attributes:
        values: float32 values, in the shape and the range of the model's inputs.
        changes: The steps from an image file to these values; empty for arrays.
    """

    values: NDArray[np.float32]
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Form:
    """What inputs of a model look like.

    Attributes:
        shape: The shape of one input.
        max_pixels: The most pixels of an image before it is resized.
        max_batch: The most inputs of a request.
    """

    shape: tuple[int, ...]
    max_pixels: int
    max_batch: int

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3 and self.shape[0] in (1, 3)


def decode_image(content: bytes, form: Form) -> Input:
    """Decode an image file and bring it into the form of the model's inputs.

    Raises:
        Refused: It is no image (415), has too many pixels (413), or is damaged or ambiguous (422).
    """
    if not form.is_image:
        raise Refused(415, f"inputs of this model have the shape {list(form.shape)}; send JSON or .npy, not an image.")
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(content), formats=FORMATS) as file:
            warnings.simplefilter("ignore")  # of damaged metadata
            width, height = file.size
            if width * height > form.max_pixels:
                raise Refused(413, f"the image has {width}×{height} pixels; send at most {form.max_pixels:,} pixels.")
            if is_deep(file) or ";16" in str(file.tile):
                raise Refused(422, "the image has more than 8 bits per value; convert it to 8 bits.")
            return _in_form(file, form)
    except Refused:
        raise
    except Image.DecompressionBombError:
        raise Refused(413, f"the image has too many pixels; send at most {form.max_pixels:,} pixels.") from None
    except UnidentifiedImageError:
        raise Refused(415, f"the image is in none of the formats {', '.join(FORMATS)}; convert it.") from None
    except Exception as error:  # the decoders raise many kinds of errors on damaged files
        reason = str(error).partition("\n")[0].rstrip(".")
        raise Refused(422, f"the image cannot be read ({reason}); send a valid image.") from error


def _in_form(file: Image.Image, form: Form) -> Input:
    changes = []
    if getattr(file, "is_animated", False):
        changes.append("the first of several frames")
    image = ImageOps.exif_transpose(file)
    if file.getexif().get(0x0112, 1) != 1:
        changes.append("rotated as its EXIF data say")
    if _is_transparent(image):
        raise Refused(422, "the image has transparent pixels; put it on a background of one colour.")
    mode = "L" if form.shape[0] == 1 else "RGB"
    if image.mode != mode:
        changes.append(f"converted from {image.mode} to {mode}")
    image = image.convert(mode)
    height, width = form.shape[1:]
    if image.size != (width, height):
        crops = height == width >= _CROPPED
        size = ImageForm(size=height if crops else (height, width))
        try:
            size.check(image)
        except ValueError as error:
            raise Refused(413, f"the image cannot be resized: {error}.") from error
        how = f"short side to {size.short_side}, then the centre cropped to" if crops else "to"
        changes.append(f"resized from {image.size[0]}×{image.size[1]} {how} {width}×{height} pixels")
        image = size.resized(image)
    return Input(image_tensor(image).numpy(), tuple(changes))


def _is_transparent(image: Image.Image) -> bool:
    possible = image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info
    return possible and bool(np.asarray(image.convert("RGBA"))[..., 3].min() < 255)


def decode_npy(content: bytes, form: Form) -> tuple[list[Input], bool]:
    """Decode a ``.npy`` file with one input or a batch; return the inputs and whether it was a batch."""
    stream = io.BytesIO(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            version = npy.read_magic(stream)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(stream)
    except Exception as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise Refused(415, f"the body is not a .npy file ({reason}); send one, or an image with its type.") from error
    if dtype.kind != "f":
        raise Refused(422, f"the array has dtype {dtype}; send floating-point values, for 8-bit images divided by 255.")
    there = len(content) - stream.tell()
    if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != there:
        raise Refused(
            422, f"the .npy file declares {list(shape)} values of {dtype}, but holds {there:,} bytes of them."
        )
    array = np.frombuffer(content, dtype, offset=stream.tell()).reshape(shape, order="F" if fortran else "C")
    return split(array, form)


def decode_json(content: bytes, form: Form) -> tuple[list[Input], bool, dict[str, Any]]:
    """Decode a JSON object with ``input`` or ``inputs``; return the inputs, whether it is a batch, and the rest."""
    try:
        found = parse_json(content)
    except ValueError as error:
        raise Refused(400, f"the body is not JSON ({error}).") from error
    if not isinstance(found, dict) or ("input" in found) == ("inputs" in found):
        raise Refused(422, 'the JSON must be an object with either "input" or "inputs", an array of numbers.')
    batch = "inputs" in found
    given = found.pop("inputs" if batch else "input")
    if not batch:
        return [one_input(_numbers(given), form)], False, found
    if not isinstance(given, list) or not given:
        raise Refused(422, '"inputs" must be an array of at least one input.')
    _check_count(len(given), form)
    return [_named(place, one_input, _numbers, each, form) for place, each in enumerate(given)], True, found


def _named(place: int, make: Any, read: Any, given: Any, form: Form) -> Input:
    try:
        found: Input = make(read(given), form)
        return found
    except Refused as error:
        raise Refused(error.status, f"input {place}: {error}") from error


def _numbers(given: Any) -> NDArray[Any]:
    try:
        array = np.asarray(given)
    except ValueError:
        raise Refused(422, "the input is not an array of numbers whose rows have equal lengths.") from None
    if array.dtype.kind not in "fiu" or _has_truth(given):
        raise Refused(422, "the input must hold numbers only.")
    return array


def _has_truth(given: Any) -> bool:
    """Whether nested lists hold true or false, which NumPy takes for numbers next to others."""
    stack = [given]
    while stack:
        each = stack.pop()
        if isinstance(each, bool):
            return True
        if isinstance(each, list):
            if each and not isinstance(each[0], list):
                if any(type(value) is bool for value in each):
                    return True
            else:
                stack.extend(each)
    return False


def split(array: NDArray[Any], form: Form) -> tuple[list[Input], bool]:
    """Make inputs of an array that is one, or a batch; return whether it was a batch."""
    if array.ndim == len(form.shape) + 1 and array.shape[1:] == form.shape:
        if not len(array):
            raise Refused(422, "the batch is empty; send at least one input.")
        _check_count(len(array), form)
        return [one_input(each, form) for each in array], True
    return [one_input(array, form)], False


def one_input(array: NDArray[Any], form: Form) -> Input:
    """Check the shape of an array, and convert it to float32."""
    if array.shape == form.shape[1:] and form.is_image and form.shape[0] == 1:
        array = array[None]
    if array.shape != form.shape:
        raise Refused(422, f"the input has the shape {list(array.shape)}, but the model needs {list(form.shape)}.")
    with np.errstate(over="ignore"):
        return Input(np.array(array, dtype=np.float32, order="C"))  # a copy, which may be written to


def _check_count(count: int, form: Form) -> None:
    if count > form.max_batch:
        raise Refused(413, f"the request has {count} inputs; send at most {form.max_batch}.")


def decode(
    kind: str,
    content: bytes,
    form: Form,
    files: Sequence[tuple[str, bytes]] = (),
    fields: Mapping[str, str] | None = None,
) -> tuple[list[Input], bool, dict[str, Any]]:
    """Decode the body of a request.

    Args:
        kind: The media type, without parameters.
        content: The body.
        form: What inputs look like.
        files: The media type and content of each file of a multipart form.
        fields: The other fields of the form.

    Returns:
        The inputs, whether they are a batch, and the options in the body.

    Raises:
        Refused: With the status 400, 413, 415 or 422.
    """
    if kind == "multipart/form-data":
        if len(files) != 1:
            raise Refused(422, f'the form has {len(files)} files; send one, in the field "file".')
        ((inner, data),) = files
        if inner == "multipart/form-data":
            raise Refused(415, "a form within a form is not read; send the file itself.")
        if data[:6] == b"\x93NUMPY":
            inner = NPY_TYPES[0]
        elif inner in ("", "application/octet-stream"):
            inner = "image/*"
        inputs, batch, more = decode(inner, data, form)
        return inputs, batch, {**(fields or {}), **more}
    if not content:
        raise Refused(422, "the body is empty; send an image, a .npy file, or JSON.")
    if kind.startswith("image/"):
        return [decode_image(content, form)], False, {}
    if kind in NPY_TYPES:
        return (*decode_npy(content, form), {})
    if kind == "application/json":
        return decode_json(content, form)
    known = f"image/*, {', '.join(NPY_TYPES)}, application/json, multipart/form-data"
    raise Refused(415, f"the content type {kind[:100]!r} is not one of {known}.")
