"""The outcome of a call, and the replies that report it.

A whole reply is the dictionary that OpenAI describes, with two attributes: ``cache`` and
``dropped``. Streams of replies have them too. ``LastCalls`` is what ``llm.cache.info`` speaks of.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from typing_extensions import Self

from llama_py.api.overflow import OverflowReport
from llama_py.dialects.openai.completions import CompletionCall
from llama_py.dialects.openai.encode import CompletionEncoder
from llama_py.dialects.openai.types import (
    ChatCompletionResponseChoice,
    CompletionChoice,
    CompletionUsage,
    CreateChatCompletionResponse,
    CreateCompletionResponse,
    Timings,
)
from llama_py.engine.events import Events
from llama_py.engine.request import Event, FinishEvent, Record
from llama_py.errors import GenerationTimeout, RequestCancelled
from llama_py.memory.sequences import ReuseInfo

if TYPE_CHECKING:
    from llama_py.dialects.openai.chat import ChatCall
    from llama_py.dialects.openai.encode_chat import ChatEncoder

__all__ = [
    "Call",
    "ChatReply",
    "CompletionReply",
    "LastCalls",
    "Outcome",
    "Reply",
    "ReplyStream",
    "failure_of",
]


class LastCalls:
    """The calls of a model that were read last, and that ended last, by whichever thread.

    Attributes:
        outcome: of the call that ended last, or whose stream was read last.
        ended: the record of the request that ended last, of those that had begun.
    """

    __slots__ = ("__weakref__", "ended", "outcome")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """As if nothing had been called yet."""
        self.outcome: Outcome | None = None
        self.ended: Record | None = None

    @property
    def record(self) -> Record:
        """Of the (last) request of ``outcome``."""
        if self.outcome is None:
            raise LookupError("nothing was called yet")
        return self.outcome.records[-1]


class Outcome:
    """The outcome of one call.

    Attributes:
        records: what is known of its requests; empty before it was submitted.
        dropped: what the overflow policy left out of the conversation, or None.
    """

    __slots__ = ("_ended", "_last", "dropped", "records")

    def __init__(self, last: LastCalls, dropped: OverflowReport | None = None) -> None:
        self.records: Sequence[Record] = ()
        self.dropped = dropped
        #: Weak, because that refers to this one.
        self._last = weakref.ref(last)
        self._ended = 0

    @property
    def cache(self) -> ReuseInfo:
        """Reuse of the prompt; empty as long as the call waits for a place."""
        return self.records[-1].cache.copy() if self.records else {}

    def note(self, index: int, event: Event) -> None:
        """The call's consumer has got this event of one of its requests."""
        last = self._last()
        if last is not None:
            last.outcome = self
        if type(event) is FinishEvent:
            self._ended += 1
            if last is not None and self.records[index].started:
                last.ended = self.records[index]

    def note_end(self) -> None:
        """The consumer wants nothing more of it; unless it has got everything, that is its end."""
        if self._ended < len(self.records):
            self._ended = len(self.records)
            last = self._last()
            if last is not None:
                last.outcome = self
                last.ended = next((each for each in self.records[::-1] if each.started), last.ended)


class Reply(dict[str, Any]):
    """A whole response: a dictionary, and what happened to the call.

    Attributes:
        cache: what was reused for it, as in ``llm.cache.info``.
        dropped: what the overflow policy left out of the conversation, or None.
    """

    cache: ReuseInfo
    dropped: OverflowReport | None

    @classmethod
    def of(
        cls, response: CreateCompletionResponse | CreateChatCompletionResponse, outcome: Outcome
    ) -> Any:
        """A response with what happened to its call."""
        reply = cls(response)
        reply.cache, reply.dropped = outcome.cache, outcome.dropped
        return reply


if TYPE_CHECKING:
    _Text = Literal["id", "model"]

    class CompletionReply(Reply):
        """A ``CreateCompletionResponse``, see ``Reply``."""

        @overload  # type: ignore[override]
        def __getitem__(self, key: Literal["choices"], /) -> list[CompletionChoice]: ...
        @overload
        def __getitem__(self, key: Literal["usage"], /) -> CompletionUsage: ...
        @overload
        def __getitem__(self, key: Literal["timings"], /) -> Timings: ...
        @overload
        def __getitem__(self, key: Literal["created"], /) -> int: ...
        @overload
        def __getitem__(self, key: Literal["object"], /) -> Literal["text_completion"]: ...
        @overload
        def __getitem__(self, key: _Text, /) -> str: ...
        def __getitem__(self, key: str, /) -> Any: ...

    class ChatReply(Reply):
        """A ``CreateChatCompletionResponse``, see ``Reply``."""

        @overload  # type: ignore[override]
        def __getitem__(self, key: Literal["choices"], /) -> list[ChatCompletionResponseChoice]: ...
        @overload
        def __getitem__(self, key: Literal["usage"], /) -> CompletionUsage: ...
        @overload
        def __getitem__(self, key: Literal["timings"], /) -> Timings: ...
        @overload
        def __getitem__(self, key: Literal["created"], /) -> int: ...
        @overload
        def __getitem__(self, key: Literal["object"], /) -> Literal["chat.completion"]: ...
        @overload
        def __getitem__(self, key: _Text, /) -> str: ...
        def __getitem__(self, key: str, /) -> Any: ...

else:

    class CompletionReply(Reply):
        """A ``CreateCompletionResponse``, see ``Reply``."""

    class ChatReply(Reply):
        """A ``CreateChatCompletionResponse``, see ``Reply``."""


@dataclass(slots=True)
class Call:
    """A call that was checked and rendered, and can be submitted.

    Attributes:
        parsed: its requests, and how they are encoded.
        outcome: what happens to it.
    """

    parsed: CompletionCall | ChatCall
    outcome: Outcome

    def encoder(self) -> CompletionEncoder | ChatEncoder:
        """A new encoder for its events; once it was submitted."""
        return self.parsed.encoder(self.outcome.records)

    def reply(
        self, response: CreateCompletionResponse | CreateChatCompletionResponse
    ) -> CompletionReply | ChatReply:
        """The whole reply, from what the encoder made."""
        kind = CompletionReply if isinstance(self.parsed, CompletionCall) else ChatReply
        return kind.of(response, self.outcome)  # type: ignore[no-any-return]


# ---- reply stream --------------------------------------------------------------------------------
#
# Engine events to replies: what ``Llama`` and ``AsyncLlama`` have in common.


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
