"""Let the tests of this folder import ``serve.services``, and call services."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

sys.path.append(str(Path(__file__).parents[1]))

from serve.services import make_service, wait_until_ready
from smoothcert.serve.app import create_app


@pytest.fixture
def call():
    """Make a client of a service; without one, of the usual one."""
    opened = []

    def make(service=None, keys=None, ready=True) -> TestClient:
        client = TestClient(create_app(service or make_service(), keys), raise_server_exceptions=False)
        client.__enter__()
        opened.append(client)
        if ready:
            wait_until_ready(client)
        return client

    yield make
    for client in opened:
        client.__exit__(None, None, None)
