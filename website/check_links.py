"""Check a built site: every link and anchor exists, and no page loads anything from another host.

Usage: python website/check_links.py site
"""

from __future__ import annotations

import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
_ADDRESS = re.compile(r"url\(\s*['\"]?((?:https?:)?//[^)'\"]+)")
_RELATIONS = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "dns-prefetch", "prefetch", "manifest"}


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.anchors.update(values[name] for name in ("id", "name") if values.get(name))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and _RELATIONS & set(values.get("rel", "").split()):
            self.loaded.append(values.get("href", ""))
        if tag in _LOADED and values.get(_LOADED[tag]):
            self.loaded.append(values[_LOADED[tag]])


@cache
def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def problems(site: Path) -> list[str]:
    """Return a sentence for each broken link and each file that is loaded from another host."""
    found = []
    for path in sorted(site.rglob("*.html")):
        page, name = _read(path), path.relative_to(site)
        found += [f"{name}: loads {link}" for link in page.loaded if urlsplit(link).netloc]
        for link in (*page.links, *page.loaded):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            if name.name == "404.html" and parts.path.startswith("/"):
                target = site / unquote(parts.path).lstrip("/")
            else:
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                found.append(f"{name}: {link} does not exist")
            elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in _read(target).anchors:
                found.append(f"{name}: {link} has no such anchor")
    for path in sorted(site.rglob("*.css")):
        text = path.read_text(encoding="utf-8")
        found += [f"{path.relative_to(site)}: loads {address}" for address in _ADDRESS.findall(text)]
    return found


if __name__ == "__main__":
    lines = problems(Path(sys.argv[1]))
    print("\n".join(lines) or "All links exist, and nothing is loaded from other hosts.")
    sys.exit(bool(lines))
