"""Engine events to replies: what ``Llama`` and ``AsyncLlama`` have in common."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from typing_extensions import Self

from llama_py.api.overflow import OverflowReport
from llama_py.api.records import Call
from llama_py.engine.engine import Engine
from llama_py.engine.request import Event, FinishEvent, Request
from llama_py.errors import GenerationTimeout, RequestCancelled

__all__ = ["ReplyStream", "failure_of", "raise_failure"]

T = TypeVar("T")


def failure_of(event: Event, encoder: Any) -> BaseException | None:
    """The error that a reply ended with, or None.

    That of a timeout or of a cancelled request gets what was generated so far.
    """
    if type(event) is not FinishEvent or event.error is None:
        return None
    if isinstance(event.error, (GenerationTimeout, RequestCancelled)):
        event.error.partial = encoder.response()
    return event.error


def raise_failure(event: Event, encoder: Any) -> None:
    """Raise the error that a reply ended with, if there was one."""
    error = failure_of(event, encoder)
    if error is not None:
        raise error


class ReplyStream(Iterator[T]):
    """The chunks of one call. The caller may leave it at any point, also before the first chunk.

    ``close()`` cancels what is still being generated; so does dropping the last reference.
    """

    def __init__(self, engine: Engine, call: Call, events: Iterator[tuple[Request, Event]]) -> None:
        self._engine = engine
        self._requests = call.requests
        self._record = call.record
        self._closed = threading.Event()  # not in the generator's self: that would be a cycle
        self._chunks: Generator[T, None, None] = _chunks(call, events, self._closed)

    @property
    def cache(self) -> dict[str, Any]:
        """What was reused, as in ``llm.cache.info``; empty before the first token."""
        return self._record.cache

    @property
    def dropped(self) -> OverflowReport | None:
        """What the overflow policy left out of the conversation, or None."""
        return self._record.dropped

    def __next__(self) -> T:
        return next(self._chunks)

    def close(self) -> None:
        """Cancel what is still being generated; returns when it has ended.

        Another thread may be waiting for a chunk: its iteration ends.
        """
        self._closed.set()
        for request in self._requests:
            self._engine.cancel(request)
        if self._engine.lock.inherited:
            return  # where another thread was reading, for ever
        with suppress(ValueError):  # that other thread is in the generator, and leaves it by itself
            self._chunks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Whichever thread this is, and whatever it was doing: do not wait for the engine.
        for request in getattr(self, "_requests", ()):
            self._engine.cancel(request, wait=False)


def _chunks(
    call: Call, events: Iterator[tuple[Request, Event]], closed: threading.Event
) -> Generator[Any, None, None]:
    encoder, record = call.encoder(), call.record
    try:
        yield from encoder.open()
        for request, event in events:
            record.note(request, event)
            yield from encoder.feed(request.choice, event)
            if not closed.is_set():
                raise_failure(event, encoder)
        yield from encoder.close()
    finally:
        record.note_end()
        events.close()  # type: ignore[attr-defined]
