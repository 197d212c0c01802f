"""Inputs as pictures for the page."""

from __future__ import annotations

import base64
import io

from PIL import Image
from torch import Tensor


def picture(x: Tensor) -> str:
    """Return an image of shape (channels, height, width) as a PNG in a data URI; values outside of [0, 1] are cut."""
    pixels = (x.detach().cpu().double().nan_to_num(0.0).clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def picture_of_change(x: Tensor, moved: Tensor) -> str:
    """Return a change as a picture: grey where nothing changed, and black or white at the largest change."""
    change = moved.double() - x.double()
    largest = float(change.abs().max())
    return picture(0.5 + change / (2 * largest) if largest > 0 else 0.5 + change)
