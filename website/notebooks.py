"""Tutorials: notebooks without outputs in ``docs/tutorials``, executed when the site is built."""

from __future__ import annotations

import base64
import re
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

_PROGRESS = re.compile(r"\d+%\|.*it/s\]")  # progress bars of other packages
_NO_WIDGETS = "TqdmWarning: IProgress"  # a warning of tqdm in notebooks without widgets
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def execute(path: Path, seconds: int = 1200) -> Any:
    """Run a notebook in an empty folder; a cell that fails raises an error."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook, timeout=seconds, kernel_name="python3", resources={"metadata": {"path": folder}}
        ).execute()
    return notebook


def to_markdown(notebook: Any, name: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by file name."""
    parts, pictures = [], {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.cell_type == "code":
            parts.append(f"```python\n{cell.source}\n```")
            for output in _joined(cell.get("outputs", [])):
                data = output.get("data", {})
                if "image/png" in data:
                    file = f"{name}-{len(pictures) + 1}.png"
                    pictures[file] = base64.b64decode(data["image/png"])
                    parts.append(f"![Output of the cell above]({file})")
                elif "text/markdown" in data:
                    parts.append(data["text/markdown"])
                else:
                    text = _shown(output.get("text") or data.get("text/plain", ""))
                    if text and not _PROGRESS.search(text):
                        parts.append(f'```{{.text .output title="Output"}}\n{text}\n```')
    parts.append(f"[Download this notebook]({name}.ipynb)")
    return "\n\n".join(parts) + "\n", pictures


def _joined(outputs: list[Any]) -> list[Any]:
    """Merge the pieces of one stream."""
    joined: list[Any] = []
    for output in outputs:
        if _NO_WIDGETS in output.get("text", ""):
            continue
        if output.get("output_type") == "stream" and joined and joined[-1].get("name") == output["name"]:
            joined[-1]["text"] += output["text"]
        else:
            joined.append(output)
    return joined


def _shown(text: str) -> str:
    """Text as a terminal would show it at the end: without colours, each line as last written."""
    lines = [line.rsplit("\r", 1)[-1].rstrip() for line in _ESCAPES.sub("", text).replace("\r\n", "\n").split("\n")]
    return "\n".join(lines).strip("\n")
