"""``Dispatch``: calls to the engine, and whole replies or streams of them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llama_py.api.call import Call, LastCalls, Outcome
from llama_py.api.lowlevel import ByHand
from llama_py.api.reply_stream import ReplyStream, raise_failure
from llama_py.api.runtime import Runtime
from llama_py.engine.events import Events
from llama_py.engine.request import FinishEvent, GenerationRequest, Record

if TYPE_CHECKING:
    import asyncio

    from llama_py.engine.async_events import AsyncEvents

__all__ = ["Dispatch"]


class Dispatch:
    """Sends the calls of one model.

    What ``eval`` evaluated is let go before each: it may be what one of them begins with.
    """

    def __init__(self, runtime: Runtime, by_hand: ByHand, last: LastCalls) -> None:
        self._runtime = runtime
        self._by_hand = by_hand
        self._last = last

    def submit(self, requests: Sequence[GenerationRequest], *, whole: bool = False) -> Events:
        """Queue the requests of a call, all or none; see ``Events``."""
        driver, first = self._runtime.driver, self._by_hand.release
        return Events(driver, requests, whole=whole, first=first)

    def submit_from(
        self,
        loop: asyncio.AbstractEventLoop,
        requests: Sequence[GenerationRequest],
        *,
        whole: bool = False,
    ) -> AsyncEvents:
        """Queue the requests of a call whose events an event loop reads; see ``AsyncEvents``."""
        from llama_py.engine.async_events import AsyncEvents  # and asyncio: a tenth of the start

        driver, first = self._runtime.driver, self._by_hand.release
        return AsyncEvents(driver, requests, loop, whole=whole, first=first)

    def respond(self, call: Call) -> Any:
        """The whole reply of a call, or with ``stream`` the stream of its chunks."""
        stream, outcome = call.parsed.stream, call.outcome
        events = self.submit(call.parsed.requests, whole=not stream)
        outcome.records = events.records
        if stream:
            return ReplyStream(call, events)
        encoder = call.encoder()
        try:
            with events:
                for index, event in events:
                    encoder.feed(index, event)
                    if type(event) is FinishEvent:
                        outcome.note(index, event)
                        raise_failure(event, encoder)
        finally:
            outcome.note_end()
        return call.reply(encoder.response())

    def run(self, request: GenerationRequest) -> Record:
        """Evaluate a request and discard its output."""
        outcome = Outcome(self._last)
        events = self.submit([request], whole=True)
        outcome.records = events.records
        try:
            with events:
                for index, event in events:
                    outcome.note(index, event)
                    error = getattr(event, "error", None)
                    if error is not None:
                        raise error
        finally:
            outcome.note_end()
        return events.records[0]
