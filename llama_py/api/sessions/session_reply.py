"""``TurnStream``: one reply of a session, as it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from typing_extensions import Self

from llama_py.api.call import ChatReply
from llama_py.api.overflow import OverflowReport
from llama_py.chat.stream import is_object
from llama_py.dialects.openai.fold import fold_chat
from llama_py.errors import LlamaError
from llama_py.memory.sequences import ReuseInfo

__all__ = ["TurnStream"]

Message = dict[str, Any]
#: Takes the messages up to the reply, the reply included, and the chat completion.
Commit = Callable[[list[Message], ChatReply], None]

_COMPLETE = ("stop", "length", "tool_calls", "function_call")


class TurnStream(Iterator[str]):
    """A reply as it comes: iterating gives its text, piece by piece.

    The turn is committed to the session when the iteration has come to its end. Use it as a context
    manager, or call ``close()``, to give up a reply early.
    """

    def __init__(self, commit: Commit, messages: list[Message], chunks: Iterator[Any]) -> None:
        self._commit_turn = commit
        self._messages = messages
        self._chunks = chunks
        self._seen: list[Any] = []
        self._done = False

    @property
    def done(self) -> bool:
        """True when no more text will come."""
        return self._done

    @property
    def cache(self) -> ReuseInfo:
        """Reuse of its prompt, as in ``llm.cache.info``; empty before its first token."""
        info: ReuseInfo = getattr(self._chunks, "cache", ReuseInfo())
        return info.copy()

    @property
    def dropped(self) -> OverflowReport | None:
        """The messages that the overflow policy left out, or None."""
        report: OverflowReport | None = getattr(self._chunks, "dropped", None)
        return report

    @property
    def response(self) -> ChatReply:
        """The reply so far, in the form of a chat completion."""
        reply = ChatReply(fold_chat(self._seen))
        reply.cache, reply.dropped = self.cache, self.dropped
        return reply

    def begin(self) -> None:
        """Take the chunk that names the role. From then on, closing the stream cancels it."""
        self._advance()

    def __next__(self) -> str:
        while True:
            text = self._advance().get("content")
            if text:
                return str(text)

    def deltas(self) -> Iterator[dict[str, Any]]:
        """The parts of the reply as OpenAI's deltas: ``content``, ``reasoning_content``,
        ``tool_calls``."""
        while True:
            try:
                delta = self._advance()
            except StopIteration:
                return
            if delta:
                yield delta

    def read(self) -> str:
        """Wait for the rest; the text of the whole reply."""
        for _ in self:
            pass
        return _text_of(self.response)

    def stop(self) -> None:
        """End the reply here, and keep what was said so far as the model's turn.

        Nothing is kept if nothing was said yet.
        """
        if not self._done:
            self._end()
            if _text_of(self.response):
                self._commit(partial=True)

    def close(self) -> None:
        """Give the reply up; the session stays as it was before it."""
        self._end()

    def __repr__(self) -> str:
        return f"ReplyStream({'ended' if self._done else 'open'}; iterate over it for its text)"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _advance(self) -> dict[str, Any]:
        if self._done:
            raise StopIteration
        try:
            chunk = next(self._chunks)
        except StopIteration:
            if not self._done:  # else another thread closed it meanwhile
                self._end()
                self._commit(partial=False)
            raise
        except BaseException:
            self._end()
            raise
        self._seen.append(chunk)
        choices = chunk["choices"]
        return dict(choices[0]["delta"]) if choices else {}

    def _end(self) -> None:
        self._done = True
        close = getattr(self._chunks, "close", None)
        if close is not None:
            close()

    def _commit(self, *, partial: bool) -> None:
        response = self.response
        choice: Any = response["choices"][0]
        message = {key: value for key, value in choice["message"].items() if value is not None}
        if partial:
            message.pop("tool_calls", None)
        elif choice["finish_reason"] in ("length", "stop") and "tool_calls" in message:
            # A reply that was cut off is kept without the call that nobody can answer.
            calls = message.pop("tool_calls")
            whole = [call for call in calls if is_object(call["function"]["arguments"])]
            message.setdefault("content", "")
            if whole:
                message["tool_calls"] = whole
        elif choice["finish_reason"] not in _COMPLETE:
            raise LlamaError(
                f"the reply ended early ({choice['finish_reason']}); the conversation is as it was "
                "before, so send the message again"
            )
        self._commit_turn([*self._messages, message], response)


def _text_of(response: Mapping[str, Any]) -> str:
    choices = response["choices"]
    return (choices[0]["message"]["content"] or "") if choices else ""
