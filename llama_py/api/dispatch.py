"""``Dispatch``: calls to the engine, and whole replies or streams of them back."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from llama_py.api.loaded import Loaded
from llama_py.api.lowlevel import ByHand
from llama_py.api.records import Call, LastCalls, Record
from llama_py.api.replies import ReplyStream, raise_failure
from llama_py.api.traffic import Traffic
from llama_py.engine.request import Event, Request

__all__ = ["Dispatch"]


class Dispatch:
    """Sends the calls of one model."""

    def __init__(self, loaded: Loaded, traffic: Traffic, by_hand: ByHand, last: LastCalls) -> None:
        self._loaded = loaded
        self._traffic = traffic
        self._by_hand = by_hand
        self._last = last

    def submit(self, *requests: Request, in_loop: bool = False) -> None:
        """Queue requests, all or none; see ``Engine.submit``.

        The sequence of ``eval`` is let go: it may be what one of them begins with.

        Args:
            in_loop: an event loop reads what comes, and not the calling thread.
        """
        self._traffic.submit(*requests, thread=None if in_loop else threading.get_ident())
        try:
            self._by_hand.release()
        except BaseException:  # Ctrl-C: nobody would ever read these replies
            self._loaded.engine.discard(requests)
            raise

    def respond(self, call: Call) -> Any:
        """The whole reply of a call, or with ``stream`` the stream of its chunks."""
        self.submit(*call.requests)
        events = self._events(call.requests)
        if call.parsed.stream:
            return ReplyStream(self._loaded.engine, call, events)
        encoder, record = call.encoder(), call.record
        try:
            for request, event in events:
                record.note(request, event)
                encoder.feed(request.choice, event)
                raise_failure(event, encoder)
        finally:
            record.note_end()
        return call.reply(encoder.response())

    def run(self, request: Request) -> Record:
        """Evaluate a request whose tokens nobody wants."""
        self.submit(request)
        record = Record([request], self._last)
        for event in self._loaded.engine.events(request):
            record.note(request, event)
            error = getattr(event, "error", None)
            if error is not None:
                raise error
        return record

    def _events(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Event]]:
        engine = self._loaded.engine
        if len(requests) > 1:
            return engine.events_of(requests)
        request = requests[0]
        return ((request, event) for event in engine.events(request))
