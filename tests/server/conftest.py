"""One server for each module, with the bundled model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.serving import Server, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with the bundled model, for the whole module."""
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    """OpenAI's client, connected to it."""
    with server.openai() as client:
        yield client
