"""A run over two nodes whose link is cut; ``make network`` has longer cases."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("ray")


@pytest.fixture
def network():
    """The benchmark, which is no package."""
    folder = str(Path(__file__).parents[2] / "benchmarks")
    sys.path.insert(0, folder)
    try:
        import network

        if not network.permitted():
            pytest.skip("network namespaces need Linux, root and iproute2")
        yield network
    finally:
        sys.path.remove(folder)


@pytest.fixture
def short_path():
    """A folder with a short path; Ray makes sockets in it, whose paths have at most 107 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_a_cut_link_loses_and_doubles_no_row(network, short_path):
    """Ray looks at connections and nodes more often here, so that a short cut has the effects of a long one."""
    looks = {"grpc_client_keepalive_time_ms": 2000, "grpc_client_keepalive_timeout_ms": 2000}
    looks |= {"health_check_period_ms": 1000, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
    settings = {f"RAY_{name}": str(value) for name, value in looks.items()}
    bench = network.Bench(short_path, seconds=8, settings=settings)
    (short_path / "nets.py").write_text(network.NETS)
    place = short_path / "run"
    place.mkdir()
    found = network.certify_over(bench, place, "head", {"head": 1, "other": 1})
    assert "failed" not in found, found
    assert (found["tries"], found["lost"], found["doubled"]) == (1, 0, 0)
    assert any("a worker was lost" in sentence for sentence in found["said"]), found
    assert network._ip("netns", "list").count(f"smoothcert-{network.os.getpid()}-") == 0
