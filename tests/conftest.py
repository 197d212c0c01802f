"""Classifiers whose behaviour under noise is known exactly, and the command line, shared by the tests."""

from __future__ import annotations

import math
import os
import random
import secrets
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from smoothcert import cli, plugins, specifiers

os.environ.setdefault("PYTHONFAULTHANDLER", "1")  # a process that tests start tells where it died
NOT_HERE = "the published logs and models are not here"
torch.set_num_threads(1)  # the models here are too small to share; tests of threading set their own number


class HalfSpace(nn.Module):
    """Class 1 where the first coordinate exceeds ``edge``; at distance m from it, p = Φ(m/σ) and the radius is m."""

    def __init__(self, edge: float = 0.5) -> None:
        super().__init__()
        self.edge = edge

    def forward(self, x: Tensor) -> Tensor:
        score = x.flatten(1)[:, 0] - self.edge
        return torch.stack([-score, score], dim=1)


class Threes(nn.Module):
    """Three classes, one per direction in the plane, 120° apart: equally likely at the centre (½, ½)."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.tensor([0.0, 2 * math.pi / 3, 4 * math.pi / 3])
        self.directions = torch.stack([angles.cos(), angles.sin()])

    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.5) @ self.directions


class ExactLogits(nn.Module):
    """Logits that are small whole numbers (bright pixels per column), so no batch shape can change a vote."""

    def forward(self, x: Tensor) -> Tensor:
        return (x > 0.5).sum(dim=(1, 2)).float()


@pytest.fixture(autouse=True)
def repeatable_seeds(request, monkeypatch):
    """Fresh seeds differ within a test and between tests, but not from one run of the tests to the next."""
    monkeypatch.setattr(secrets, "randbits", random.Random(request.node.nodeid).getrandbits)


@pytest.fixture(autouse=True)
def plugins_as_before():
    """What a test registers, and the files that it imports as plug-ins, are gone after it."""
    before = {group: dict(registry._plugins) for group, registry in plugins._REGISTRIES.items()}
    files = set(specifiers._FILES)
    yield
    for group, registry in plugins._REGISTRIES.items():
        registry._plugins = before.get(group, {})
    for name in set(specifiers._FILES) - files:
        del specifiers._FILES[name]
        sys.modules.pop(name, None)


def shared_folder(name: str) -> Path:
    """Return a folder of the shared folder next to the repository; skip the test where it is missing."""
    folder = Path(os.environ.get("SMOOTHCERT_SHARED", Path(__file__).parents[2] / "shared")) / name
    if not folder.is_dir():
        pytest.skip(NOT_HERE)
    return folder


@pytest.fixture
def shared_data() -> Path:
    """Published logs."""
    return shared_folder("data")


@pytest.fixture
def shared_assets() -> Path:
    """Models that others published."""
    return shared_folder("assets")


def pytest_terminal_summary(terminalreporter):
    """Say how many tests were skipped because published logs or models are missing."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if NOT_HERE in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} tests were skipped because {NOT_HERE} (../shared)")


@pytest.fixture
def half_space() -> HalfSpace:
    return HalfSpace()


@pytest.fixture
def threes() -> Threes:
    return Threes()


@pytest.fixture
def exact_logits() -> ExactLogits:
    return ExactLogits()


class Forwards:
    """Every forward pass of a module while a test runs, seen from outside: to count in the module would be state."""

    def __init__(self) -> None:
        self.seen: list[tuple[nn.Module, int]] = []

    def note(self, module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        self.seen.append((module, len(arguments[0])))

    @property
    def modules(self) -> list[nn.Module]:
        return [module for module, _ in self.seen]

    def batches(self, kind: type[nn.Module]) -> list[int]:
        """The sizes of the batches that modules of a kind were given."""
        return [size for module, size in self.seen if isinstance(module, kind)]


@pytest.fixture
def forwards():
    """What runs: copies of modules, as those of the user never do."""
    forwards = Forwards()
    handle = register_module_forward_pre_hook(forwards.note)
    yield forwards
    handle.remove()


@pytest.fixture
def run(monkeypatch, capsys):
    """Call the command line in this process; gives exit code, stdout and stderr."""

    def call(*arguments) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["smoothcert", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


WAITING = ("test_network", "test_cluster_cli", "test_replicas")
"""Files with tests that take long and mostly wait for other processes."""


def pytest_collection_modifyitems(items):
    """Start the tests that wait first, so that the others run meanwhile."""
    items.sort(key=lambda item: item.path.stem not in WAITING)
