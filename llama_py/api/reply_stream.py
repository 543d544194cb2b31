"""Engine events to replies: what ``Llama`` and ``AsyncLlama`` have in common."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, TypeVar

from typing_extensions import Self

from llama_py.api.call import Call
from llama_py.api.overflow import OverflowReport
from llama_py.engine.events import Events
from llama_py.engine.request import Event, FinishEvent
from llama_py.errors import GenerationTimeout, RequestCancelled
from llama_py.memory.sequences import ReuseInfo

__all__ = ["ReplyStream", "failure_of"]

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


class ReplyStream(Iterator[T]):
    """The chunks of one call. The caller may leave it at any point, also before the first chunk.

    ``close()`` cancels what is still being generated; so does dropping the last reference.
    """

    def __init__(self, call: Call, events: Events) -> None:
        self._outcome = call.outcome
        self._events = events
        self._encoder: Any = call.encoder()
        opening: Any = self._encoder.open()
        self._chunks: deque[T] = deque(opening)
        self._error: BaseException | None = None
        #: Nothing more is read: it came to its end, failed, or was closed.
        self._over = False

    @property
    def cache(self) -> ReuseInfo:
        """Reuse of the prompt, as in ``llm.cache.info``; empty before the first token."""
        return self._outcome.cache

    @property
    def dropped(self) -> OverflowReport | None:
        """The messages that the overflow policy left out, or None."""
        return self._outcome.dropped

    def __next__(self) -> T:
        chunks = self._chunks
        while not chunks:
            if self._over:
                error, self._error = self._error, None
                if error is not None:
                    raise error
                raise StopIteration
            try:
                self._read()
            except BaseException:  # also Ctrl-C, after which nobody wants to wait for a step
                self._leave(wait=False)
                raise
        return chunks.popleft()

    def _read(self) -> None:
        """Wait for an event, and encode it."""
        for index, event in self._events:
            self._outcome.note(index, event)
            if self._over:  # another thread closed it meanwhile
                return
            self._chunks.extend(self._encoder.feed(index, event))
            if type(event) is FinishEvent and event.error is not None:
                self._error = failure_of(event, self._encoder)
                self._leave()
            return
        if not self._over:
            self._over = True
            self._chunks.extend(self._encoder.close())

    def _leave(self, *, wait: bool = True) -> None:
        self._over = True
        self._outcome.note_end()
        self._events.close(wait=wait)

    def close(self) -> None:
        """Cancel what is still being generated; returns when it has ended.

        Another thread may be waiting for a chunk: its iteration ends.
        """
        self._over = True
        self._chunks.clear()
        self._error = None
        self._leave()

    def __repr__(self) -> str:
        return f"ReplyStream({'ended' if self._over else 'open'}; iterate over it for its chunks)"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
