"""A real server on a free port, in a thread of this process."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import anthropic
import httpx
import openai
import uvicorn
from uvicorn.server import ServerState

from llama_py import demo_model_path
from llama_py.server.app import create_app
from llama_py.server.config.settings import ModelSettings, Settings
from llama_py.server.service import Answering, Service
from llama_py.server.transport.connection import connection_class
from tests.patience import PATIENCE

__all__ = ["Server", "demo_settings", "serving", "tiny_settings"]

_PATIENCE = PATIENCE


class _Noted(set[Answering]):
    """Exchanges that run, and a list of those that began."""

    begun: list[Answering] | None = None

    def add(self, exchange: Answering) -> None:
        super().add(exchange)
        if self.begun is not None:
            self.begun.append(exchange)


class Server:
    """A server that runs.

    Attributes:
        url: where, without a path.
        service: what its handlers work with.
        sockets: connections of tests, which end with the server if a test failed to end them.
    """

    def __init__(self, url: str, service: Service, state: ServerState) -> None:
        self.url = url
        self.service = service
        self.sockets: set[socket.socket] = set()
        self._state = state
        self._exchanges = service.exchanges = _Noted()

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._state.connections)

    def begun(self) -> list[Answering]:
        """A list that grows by each exchange that begins from now on, until this is called again.

        One may have ended before a test looks.
        """
        self._exchanges.begun = begun = list[Answering]()
        return begun

    def close_sockets(self) -> None:
        """Close what is left of ``sockets``."""
        while self.sockets:
            self.sockets.pop().close()

    def openai(self, **options: Any) -> Any:
        """A client of OpenAI's. Its types are of no use to tests that send what is wrong."""
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE, **options
        )

    def async_openai(self, **options: Any) -> Any:
        """The same for asyncio."""
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE, **options
        )

    def anthropic(self, **options: Any) -> Any:
        """A client of Anthropic's."""
        return anthropic.Anthropic(
            base_url=self.url, api_key="none", max_retries=0, timeout=PATIENCE, **options
        )

    def http(self, **options: Any) -> httpx.Client:
        """A client for plain requests."""
        return httpx.Client(base_url=self.url, timeout=PATIENCE, **options)


def demo_settings(settings: dict[str, Any] | None = None, **options: Any) -> Settings:
    """Settings that serve the bundled model.

    Args:
        settings: further settings.
        options: arguments of ``Llama``.
    """
    model = ModelSettings("demo", demo_model_path(), options={"verbose": False, **options})
    return Settings(models=(model,), **(settings or {}))


def tiny_settings(path: Path, settings: dict[str, Any] | None = None, **options: Any) -> Settings:
    """Settings that serve one of the tiny models; see ``demo_settings``."""
    given: dict[str, Any] = {"verbose": False, "n_ctx": 1024, "n_threads": 1, **options}
    model = ModelSettings("tiny", str(path), options=given)
    return Settings(models=(model,), **(settings or {}))


@contextlib.contextmanager
def serving(settings: Settings | None = None, *, send_buffer: int = 0) -> Iterator[Server]:
    """Serve until the end of the block.

    Args:
        send_buffer: bytes that the system takes for a client that does not read; 0 is its own.
    """
    settings = settings or demo_settings()
    app: Any = create_app(settings)
    config = uvicorn.Config(app, lifespan="on", log_config=None, http=connection_class(settings))
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    if send_buffer:  # a connection inherits it
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    port = listener.getsockname()[1]
    run = partial(server.run, sockets=[listener])
    thread = threading.Thread(target=run, name="test-server")
    thread.start()
    stack = contextlib.ExitStack()
    try:
        end = time.monotonic() + _PATIENCE
        while not server.started:
            if not thread.is_alive() or time.monotonic() > end:
                raise RuntimeError("the server did not start")
            time.sleep(0.01)
        service = cast(Service, app.state.service)
        running = Server(f"http://127.0.0.1:{port}", service, server.server_state)
        stack.callback(running.close_sockets)
        yield running
    finally:
        stack.close()
        server.should_exit = True
        thread.join(_PATIENCE)
        listener.close()
