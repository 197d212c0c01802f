"""The report page: one HTML file with tables, curves, thresholds and inputs of runs, which needs no network.

All text from files (names of runs and classes, configurations) is untrusted: it enters the page as JSON data, and the
page shows it as text only.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from smoothcert.files import saving
from smoothcert.report.page.groups import groups
from smoothcert.report.page.images import BUDGET, FindDataset, ImageDataset, group_images
from smoothcert.report.page.payload import group_payload
from smoothcert.store import find_results
from smoothcert.types import StrPath, UsageError

_SCRIPTS = ("data", "table", "curves", "aces", "noise", "explorer", "detail", "main", "scroll")


def report_html(
    paths: Sequence[StrPath],
    *,
    radii: Sequence[float] | None = None,
    title: str | None = None,
    core: StrPath | None = None,
    find_dataset: FindDataset | None = None,
    dataset: ImageDataset | None = None,
) -> str:
    """Make the report page of runs and logs: one file that loads nothing.

    Args:
        paths: Run folders, certification logs, folders that hold some of them, and common prefixes of ACES logs.
        radii: The radii of the overview; by default ``default_radii``.
        core: Predictions of the core, for prefixes of ACES logs.
        find_dataset: Finds the dataset that a run's configuration names; without it, and without ``dataset``, the
            page has no images.
        dataset: The dataset of the images, instead of the one that runs name; it is compared with what they recorded.
    """
    try:
        from plotly.offline import get_plotlyjs  # slow to import
    except ImportError as error:
        raise UsageError('the report page needs plotly; pip install "smoothcert[report]".') from error

    shown = groups(find_results(paths), core)
    images = [group_images(group, find_dataset, dataset, BUDGET // len(shown)) for group in shown]
    heading = title or "Certification report"
    payload = {
        "title": heading,
        "version": version("smoothcert"),
        "groups": [
            {**group_payload(group, radii), "images": found.payload, "imageNote": found.note}
            for group, found in zip(shown, images, strict=True)
        ],
    }
    sheets = "\n".join(
        f'<script type="text/plain" id="sheet-{place}-{number}">{sheet}</script>'
        for place, found in enumerate(images)
        for number, sheet in enumerate(found.sheets)
    )
    values = {
        "title": html.escape(heading),
        "style": asset("look.css") + asset("report.css"),
        "data": embedded_json(payload),
        "sheets": sheets,
        "plotly": get_plotlyjs().replace("</script", "<\\/script"),
        "script": "\n".join(asset(f"{name}.js") for name in _SCRIPTS),
    }
    # One pass over the template, so that no value is searched for places.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: values[place[1]], asset("report.html"))


def write_report(path: StrPath, page: str) -> int:
    """Write a page, whole or not at all, and return its size in bytes."""
    content = page.encode()
    with saving(path) as temporary:
        temporary.write_bytes(content)
    return len(content)


def embedded_json(value: Any) -> str:
    """Write JSON for a script element: no text in it can end the element or begin another.

    Example:
        >>> embedded_json("</script>")
        '"\\\\u003c/script\\\\u003e"'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&\u2028\u2029\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def asset(name: str) -> str:
    """Read a file of the page."""
    return (files("smoothcert.report.page") / "assets" / name).read_text(encoding="utf-8")
