"""Every example a reader can copy runs: docstrings of the package, and the Python blocks of its pages."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import threading
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

import smoothcert
import smoothcert as sc

MODULES = sorted(
    module.name for module in pkgutil.walk_packages(smoothcert.__path__, "smoothcert.") if "__main__" not in module.name
)
ROOT = Path(__file__).parents[1]
PAGES = [
    page
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "```python\n" in page.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", ["smoothcert", *MODULES])
def test_docstring_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.fixture
def address():
    """A server on a free port, for the page that calls one."""
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    import uvicorn

    from smoothcert.serve.app import create_app
    from smoothcert.serve.service import Served, Service

    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    smoothed = sc.Smoothed(model, sc.Gaussian(0.25, grid=255), runtime="eager")
    service = Service([Served("model", smoothed, sc.Anytime(0.1, n_max=1_000, deadline=5.0), (1, 4, 4), None)])
    server = uvicorn.Server(uvicorn.Config(create_app(service), port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not (server.started and service.ready):
        assert thread.is_alive()
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks(page, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    if page.name == "serving.md":
        address = request.getfixturevalue("address")
        Image.new("L", (4, 4), 200).save("digit.png")
        blocks = [block.replace("http://127.0.0.1:8000", address) for block in blocks]
    for block in blocks:
        exec(compile(block, str(page), "exec", dont_inherit=True), names)
