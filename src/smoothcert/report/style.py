"""The look of our pictures, and how they are saved."""

from __future__ import annotations

import os
from pathlib import Path

from matplotlib.figure import Figure

from smoothcert.files import replacing
from smoothcert.types import SmoothcertError, UsageError

# Okabe and Ito's palette without yellow, which is too pale on white; the dashes tell curves apart in grey. Seven
# colours and four dashes repeat together only after 28 curves.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
DASHES = ("-", "--", "-.", ":")

LABEL_WIDTH = 70
"""Characters of a label before it is broken, in a figure of usual width."""

_FORMATS = {".png": "png", ".pdf": "pdf", ".svg": "svg"}


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Save a figure as PNG, PDF or SVG, by the suffix of the path.

    Raises:
        UsageError: If the suffix is another one.
        SmoothcertError: If the file cannot be written.
    """
    format = _FORMATS.get(Path(path).suffix.lower())
    if format is None:
        raise UsageError(f"{path}: a picture is saved as {', '.join(_FORMATS)}, by the suffix of its name.")
    try:
        with replacing(Path(path)) as temporary:
            figure.savefig(temporary, format=format, dpi=200)
    except OSError as error:
        raise SmoothcertError(f"{path} cannot be written ({error.strerror}).") from None


def plain(text: str) -> str:
    """Text that matplotlib does not read as mathematics."""
    return text.replace("$", r"\$")
