"""What MkDocs calls while it builds the site: generated pages, executed notebooks, checks of the result."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import check_links
import command_line
import modules
import notebooks

_log = logging.getLogger("mkdocs.hooks.smoothcert")
_QUICK = "SMOOTHCERT_DOCS_QUICK"  # set it while writing pages: notebooks are then shown without outputs


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are generated."""
    _add(files, config, "reference/command-line.md", command_line.page())
    for name in modules.MODULES:
        _add(files, config, f"reference/{name}.md", modules.page(name))
    for path in sorted(Path(config.docs_dir).glob("tutorials/*.ipynb")):
        if os.environ.get(_QUICK):
            notebook = notebooks.nbformat.read(path, as_version=4)
        else:
            _log.info("Executing %s", path.name)
            notebook = notebooks.execute(path)
        text, pictures = notebooks.to_markdown(notebook, path.stem)
        _add(files, config, f"tutorials/{path.stem}.md", text)
        for file, content in pictures.items():
            _add(files, config, f"tutorials/{file}", content)
    return files


def on_post_build(config: Any) -> None:
    """Check every link of the built site."""
    problems = check_links.problems(Path(config.site_dir))
    if problems:
        raise PluginError("\n".join(["The site has broken links or loads files of other hosts:", *problems]))


def _add(files: Files, config: Any, place: str, content: str | bytes) -> None:
    files.append(File.generated(config, place, content=content))
