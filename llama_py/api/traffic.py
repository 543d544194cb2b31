"""``Traffic``: requests on their way to the engine, and moments in which there are none."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from llama_py.api.loaded import Loaded
from llama_py.engine.request import Request

__all__ = ["Traffic"]

#: Seconds between two looks at requests that somebody else drives, or that are paused.
_PAUSE = 0.002


class Traffic:
    """Knows which thread every request in flight belongs to."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        #: Requests, and the threads that read them; None stands for an event loop.
        self._in_flight: dict[Request, int | None] = {}
        #: Threads that wait for a moment without requests: new ones wait until that is over.
        self._waiting: list[int] = []

    def submit(self, *requests: Request, thread: int | None) -> None:
        """Queue requests, all or none; see ``Engine.submit``.

        Args:
            thread: the thread that will read their events; None if an event loop does.
        """
        engine = self._loaded.engine
        while self._waiting and not self._may_pass(thread):
            engine.forbid_callbacks()
            time.sleep(_PAUSE)
        self._forget_ended()
        for request in requests:
            self._in_flight[request] = thread
        try:
            engine.submit(*requests)
        except BaseException:
            for request in requests:
                self._in_flight.pop(request, None)
            raise

    def _forget_ended(self) -> None:
        for request in [*self._in_flight]:
            if request.done:
                self._in_flight.pop(request, None)

    def _may_pass(self, thread: int | None) -> bool:
        """Whoever is waited for may have to ask something else to get on."""
        self._forget_ended()
        return thread in self._waiting or thread in [*self._in_flight.values()]

    @contextmanager
    def stopped(self, *, cancel: bool) -> Iterator[None]:
        """Hold the engine at a moment without requests.

        Args:
            cancel: end what is in flight. Otherwise only what the calling thread itself has in
                flight ends, because nobody else would read it; the rest is waited for.

        Raises:
            LlamaError: the caller is a callback of a request; nothing was ended.
        """
        engine, me = self._loaded.engine, threading.get_ident()
        engine.forbid_callbacks()
        self._waiting.append(me)
        try:
            while True:
                if not cancel:
                    self._wait(me)
                with engine.lock:
                    if cancel or not self._others(me):
                        engine.cancel_all()
                        yield
                        return
        finally:
            self._waiting.remove(me)

    def _others(self, me: int) -> list[Request]:
        entries = [*self._in_flight.items()]
        return [request for request, thread in entries if thread != me and not request.done]

    def _wait(self, me: int) -> None:
        engine = self._loaded.engine
        for request, thread in [*self._in_flight.items()]:
            if thread == me:
                engine.cancel(request)
        while self._others(me):
            if not engine.step():
                time.sleep(_PAUSE)
