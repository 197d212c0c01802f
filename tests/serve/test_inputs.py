"""Untrusted bytes become the right input, or a refusal in one sentence."""

from __future__ import annotations

import io
import json
import zlib

import numpy as np
import pytest
from PIL import Image

from smoothcert.serve.inputs import Form, decode, decode_image, decode_json, decode_npy
from smoothcert.serve.refusals import Refused

GREY, COLOUR = Form((1, 4, 6), 10_000, 3), Form((3, 4, 6), 10_000, 3)
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (4, 6, 3), dtype=np.uint8)


def file(image: Image.Image, kind="PNG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def npy(array, **options) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def refusal(call, *arguments) -> tuple[int, str]:
    with pytest.raises(Refused) as found:
        call(*arguments)
    sentence = str(found.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return found.value.status, sentence


def test_an_image_is_scaled_to_one_and_kept_as_it_is():
    found = decode_image(file(Image.fromarray(PIXELS)), COLOUR)
    assert np.array_equal(found.values, np.float32(PIXELS.transpose(2, 0, 1)) / 255)
    assert found.changes == ()


def test_an_opaque_alpha_channel_is_dropped_and_a_transparent_one_refused():
    opaque = np.dstack([PIXELS, np.full((4, 6), 255, np.uint8)])
    assert np.array_equal(
        decode_image(file(Image.fromarray(opaque)), COLOUR).values, np.float32(PIXELS.transpose(2, 0, 1)) / 255
    )
    opaque[0, 0, 3] = 254
    status, sentence = refusal(decode_image, file(Image.fromarray(opaque)), COLOUR)
    assert (status, "transparent" in sentence) == (422, True)
    palette = Image.fromarray(PIXELS).quantize(8)
    status, sentence = refusal(decode_image, file(palette, transparency=int(np.asarray(palette)[0, 0])), COLOUR)
    assert "transparent" in sentence


def test_a_palette_becomes_its_colours():
    palette = Image.fromarray(PIXELS).quantize(8)
    found = decode_image(file(palette), COLOUR)
    assert np.array_equal(found.values, np.float32(np.asarray(palette.convert("RGB")).transpose(2, 0, 1)) / 255)
    assert "from P to RGB" in found.changes[0]


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_more_than_8_bits_are_refused(mode):
    image = Image.fromarray(np.full((4, 6), 300, np.uint16)).convert(mode)
    kind = "PNG" if mode == "I;16" else "TIFF"
    assert refusal(decode_image, file(image, kind), GREY)[0] == 422


def test_a_png_of_16_bits_per_colour_is_refused_although_pillow_cuts_it_off():
    def chunk(name, data):
        body = name + data
        return len(data).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")

    header = (6).to_bytes(4, "big") + (4).to_bytes(4, "big") + bytes([16, 2, 0, 0, 0])
    rows = b"".join(b"\0" + bytes(36) for _ in range(4))
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    assert Image.open(io.BytesIO(content)).mode == "RGB"
    assert refusal(decode_image, content, COLOUR)[0] == 422


def test_a_photo_is_rotated_as_its_exif_data_say():
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90°
    found = decode_image(file(Image.fromarray(PIXELS.transpose(1, 0, 2)[:, ::-1].copy()), exif=exif), COLOUR)
    turned = np.rot90(PIXELS.transpose(1, 0, 2)[:, ::-1], -1)
    assert np.array_equal(found.values, np.float32(turned.transpose(2, 0, 1)) / 255)
    assert found.changes == ("rotated as its EXIF data say",)


def test_resizing_is_stated():
    found = decode_image(file(Image.fromarray(PIXELS).resize((60, 40))), COLOUR)
    assert found.values.shape == (3, 4, 6)
    assert found.changes == ("resized from 60×40 to 6×4 pixels",)
    large = decode_image(file(Image.new("L", (300, 400))), Form((3, 224, 224), 10**6, 1))
    assert large.values.shape == (3, 224, 224)
    assert large.changes == (
        "converted from L to RGB",
        "resized from 300×400 short side to 256, then the centre cropped to 224×224 pixels",
    )


def test_a_bomb_is_refused_by_its_header():
    bomb = file(Image.new("1", (10_000, 10_000)))
    assert len(bomb) < 20_000
    assert refusal(decode_image, bomb, GREY) == (413, "the image has 10000×10000 pixels; send at most 10,000 pixels.")
    assert refusal(decode_image, file(Image.new("1", (20_000, 20_000))), GREY)[0] == 413


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_damaged_images_are_refused(kind):
    content = file(Image.fromarray(PIXELS).resize((60, 40)), kind)
    assert decode_image(content, COLOUR).values.shape == (3, 4, 6)
    for cut in range(0, len(content), max(len(content) // 40, 1)):
        try:
            decode_image(content[:cut], COLOUR)
        except Refused as error:
            assert error.status in (415, 422)  # noqa: PT017
        damaged = bytearray(content)
        damaged[cut] ^= 0x55
        try:
            decode_image(bytes(damaged), COLOUR)
        except Refused as error:
            assert error.status in (413, 415, 422)  # noqa: PT017


def test_formats_that_start_programs_are_not_images():
    assert refusal(decode_image, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 4\n", COLOUR)[0] == 415


def test_images_are_refused_by_a_model_of_other_inputs():
    assert refusal(decode_image, file(Image.fromarray(PIXELS)), Form((5,), 100, 1))[0] == 415


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_become_float32(dtype, order):
    values = np.asarray(RNG.random((1, 4, 6)), dtype=dtype, order=order)
    (found,), batch = decode_npy(npy(values), GREY)
    assert not batch
    assert found.values.dtype == np.float32
    assert np.array_equal(found.values, values.astype(np.float32))
    (found,), batch = decode_npy(npy(values[0]), GREY)
    assert np.array_equal(found.values, values.astype(np.float32))


def test_a_batch_is_split():
    values = RNG.random((2, 1, 4, 6), dtype=np.float32)
    found, batch = decode_npy(npy(values), GREY)
    assert batch
    assert np.array_equal([each.values for each in found], values)
    assert refusal(decode_npy, npy(np.zeros((4, 1, 4, 6))), GREY)[0] == 413
    assert refusal(decode_npy, npy(np.zeros((0, 1, 4, 6))), GREY)[0] == 422


def test_8_bit_arrays_are_refused_because_their_range_is_not_known():
    status, sentence = refusal(decode_npy, npy(np.ones((1, 4, 6), np.uint8)), GREY)
    assert (status, "divided by 255" in sentence) == (422, True)


def test_nothing_is_unpickled():
    content = npy(np.array([print], dtype=object), allow_pickle=True)
    assert refusal(decode_npy, content, GREY)[0] == 422


def test_a_header_that_promises_more_than_there_is_allocates_nothing():
    content = npy(np.zeros((1, 4, 6), np.float32)).replace(b"(1, 4, 6), }", b"(1, 10**9, 4),}"[:12])
    assert refusal(decode_npy, content, GREY)[0] in (415, 422)
    huge = npy(np.zeros((1, 4, 6), np.float32)).replace(b"(1, 4, 6), }       ", b"(1, 999999999, 6), }")
    assert refusal(decode_npy, huge, GREY)[0] in (415, 422)


BAD_JSON = {
    "nothing": (b"", 400),
    "no object": (b"[1]", 422),
    "no input": (b"{}", 422),
    "both": (b'{"input": [1], "inputs": [[1]]}', 422),
    "text": (b'{"input": "abc"}', 422),
    "texts": (b'{"input": [["a"]]}', 422),
    "null": (b'{"input": null}', 422),
    "truth": (b'{"input": [[true, 0.5]]}', 422),
    "ragged": (b'{"input": [[1, 2], [3]]}', 422),
    "deep": (b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
    "huge number": (b'{"input": [' + b"9" * 400 + b"]}", 422),
    "longer than Python reads": (b'{"input": [' + b"9" * 10_000 + b"]}", 400),
    "other shape": (b'{"input": [0.5, 0.5]}', 422),
    "empty batch": (b'{"inputs": []}', 422),
    "no batch": (b'{"inputs": 5}', 422),
    "not UTF-8": (b'{"input": "\xff\xfe"}', 400),
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_bad_json_is_refused(name):
    content, status = BAD_JSON[name]
    assert refusal(decode_json, content, GREY)[0] == status


def test_json_holds_an_input_or_several_and_options():
    values = RNG.random((2, 1, 4, 6))
    (found,), batch, rest = decode_json(json.dumps({"input": values[0].tolist(), "alpha": 0.01}).encode(), GREY)
    assert (batch, rest) == (False, {"alpha": 0.01})
    assert np.array_equal(found.values, values[0].astype(np.float32))
    found, batch, rest = decode_json(json.dumps({"inputs": values.tolist()}).encode(), GREY)
    assert batch
    assert np.array_equal([each.values for each in found], values.astype(np.float32))
    assert "input 1" in refusal(decode_json, json.dumps({"inputs": [values[0].tolist(), [1]]}).encode(), GREY)[1]


def test_a_form_holds_one_file():
    image = file(Image.fromarray(PIXELS))
    for kind in ("image/png", "application/octet-stream", ""):
        (found,), batch, rest = decode("multipart/form-data", b"", COLOUR, [(kind, image)], {"radius": "0.5"})
        assert (batch, rest) == (False, {"radius": "0.5"})
        assert found.values.shape == (3, 4, 6)
    (found,), _, _ = decode("multipart/form-data", b"", GREY, [("", npy(np.zeros((1, 4, 6))))])
    assert found.values.shape == (1, 4, 6)
    assert refusal(decode, "multipart/form-data", b"", COLOUR, [], {})[0] == 422
    assert refusal(decode, "multipart/form-data", b"", COLOUR, [("multipart/form-data", image)], {})[0] == 415


def test_other_types_are_refused():
    assert refusal(decode, "text/html", b"<p>", COLOUR)[0] == 415
    assert refusal(decode, "image/png", b"", COLOUR)[0] == 422
