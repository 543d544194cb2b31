"""``serve``: runs the server in this process, until it is told to stop.

It listens before the model is loaded, so that probes get an answer, and whoever asks too early is
told to come again. The first SIGTERM or SIGINT begins to drain: what is in flight goes on, and
nothing new is let in. When ``drain_seconds`` have passed, what is left ends with an error in its
dialect. Then conversations are written, and the models are closed. A second signal ends everything
at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette

from llama_py.errors import ModelNotFoundError, ParameterError
from llama_py.regular_files import why_no_file
from llama_py.server.app import create_app
from llama_py.server.config.settings import Settings
from llama_py.server.lifecycle import Phase
from llama_py.server.service import Service
from llama_py.server.transport.connection import connection_class
from llama_py.server.transport.sockets import addresses_of, listen

__all__ = ["check", "serve"]

_log = logging.getLogger("llama_py.server")

#: Seconds that replies have to send their error when the time for draining is over.
_LAST_WORDS = 3.0
#: What a program returns that a signal has ended, less the signal's number.
_SIGNALLED = 128


def check(settings: Settings) -> None:
    """Raise if the server could not work with these settings. Nothing is loaded.

    Raises:
        ModelNotFoundError: a file is missing that a model is loaded from.
        ParameterError: anybody could use it, or TLS cannot be set up.
        OSError: a directory cannot be written.
    """
    settings.refuse_open_door()
    for model in settings.models:
        for name, path in model.files:
            noun, where = ("model file", "") if name == "path" else ("file", f"{name}: ")
            if problem := why_no_file(path, noun):
                raise ModelNotFoundError(f"{where}{problem} (for {model.id!r})")
    for name in ("session_dir", "slot_dir"):
        directory: Path | None = getattr(settings, name)
        if directory is not None:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(directory, os.W_OK | os.X_OK):
                raise ParameterError(f"{name}: {directory} cannot be written")
    if settings.tls_cert is None:
        return
    for name in ("tls_cert", "tls_key"):
        file: Path | None = getattr(settings, name)
        if file is not None and (problem := why_no_file(file)):
            raise ParameterError(f"{name}: {problem}")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ValueError) as error:
        files = " and ".join(str(each) for each in (settings.tls_cert, settings.tls_key) if each)
        raise ParameterError(f"{files} are not a certificate and its key: {error}") from None


def serve(
    settings: Settings, announce: Callable[[Sequence[str]], None] = lambda addresses: None
) -> None:
    """Serve until a signal comes. A second one ends the process, with 128 and its number.

    Args:
        announce: called with the addresses when requests are welcome.

    Raises:
        LlamaError: as ``check``; or the model cannot be loaded.
        OSError: it cannot listen there.
    """
    check(settings)
    with listen(settings) as listening:
        app = cast(Starlette, create_app(settings, load=False))
        addresses = addresses_of(settings, listening)
        config = uvicorn.Config(
            app,
            http=connection_class(settings),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            root_path=settings.root_path,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
            timeout_keep_alive=settings.keep_alive_seconds,
            timeout_graceful_shutdown=int(_LAST_WORDS),
        )
        server = _UvicornServer(config, app.state.service, lambda: announce(addresses))
        server.run(sockets=listening)
        if server.problem is not None:
            raise server.problem


class _UvicornServer(uvicorn.Server):
    """uvicorn's server, which drains.

    Attributes:
        problem: why it could not start, or None.
    """

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._ready = ready
        self._tasks: set[asyncio.Task[None]] = set()
        self._told = False
        self.problem: Exception | None = None

    # -- starting -------------------------------------------------------------------------------

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, and begin to load."""
        self._service.lifecycle.phase = Phase.LOADING
        await super().startup(sockets)
        self._spawn(self._load())

    async def _load(self) -> None:
        lifecycle = self._service.lifecycle
        try:
            await self._service.models.start()
        except Exception as error:  # whatever it is, nothing would ever be ready
            if lifecycle.phase is Phase.LOADING:  # else it was told to stop, and gave up loading
                self.problem = error
            self.should_exit = True
            return
        if lifecycle.phase is Phase.LOADING:
            lifecycle.phase = Phase.READY
            self._ready()

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- stopping -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals tell the event loop what to do, and do not raise anything.

        The second one needs no event loop: it may be what hangs.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()

        def note(number: int, _frame: FrameType | None) -> None:
            if self._told:
                os._exit(_SIGNALLED + number)
            self._told = True
            loop.call_soon_threadsafe(self.stop)

        before = {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def stop(self) -> None:
        """Begin to drain; give up what is being loaded."""
        lifecycle = self._service.lifecycle
        loading, lifecycle.phase = lifecycle.phase is Phase.LOADING, Phase.DRAINING
        if loading:
            self.should_exit = True
        else:
            self._spawn(self._drain())

    async def _drain(self) -> None:
        lifecycle, seconds = self._service.lifecycle, self._service.settings.drain_seconds
        _log.info("stopping: %d requests are in flight", lifecycle.in_flight)
        if not await lifecycle.until_idle(seconds):
            live = [*self._service.exchanges]
            _log.warning("%d requests are ended after %g seconds", lifecycle.in_flight, seconds)
            for exchange in live:
                exchange.stop(lifecycle.interrupted())
            lifecycle.give_up()
            self._service.models.refuse_waiting()
            await lifecycle.until_idle(_LAST_WORDS)
        self.should_exit = True
