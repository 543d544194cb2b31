"""What happened to a call, and the replies that say so.

A whole reply is the dictionary that OpenAI describes, with two attributes: ``cache`` and
``dropped``. Streams of replies have them too. ``LastCalls`` is what ``llm.cache.info`` speaks of.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

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
from llama_py.engine.request import Event, FinishEvent, Record
from llama_py.memory.sequences import ReuseInfo

if TYPE_CHECKING:
    from llama_py.dialects.openai.chat import ChatCall
    from llama_py.dialects.openai.encode_chat import ChatEncoder

__all__ = ["Call", "ChatReply", "CompletionReply", "LastCalls", "Outcome", "Reply"]


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
    """What happened to one call.

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
        """What was reused; empty as long as the call waits for a place."""
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
