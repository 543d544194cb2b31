"""Engine events to OpenAI's response dictionaries, for chats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from llama_py.chat.rendered import RenderedChat
from llama_py.chat.stream import ChatStream, Delta
from llama_py.chat.vocab import VocabLike
from llama_py.dialects.logprobs import LogprobEntry, LogprobQueue, chat_logprobs, reply_piece
from llama_py.dialects.openai.encode import EncoderBase, ResponseHead
from llama_py.dialects.openai.types import (
    ChatCompletionDelta,
    ChatCompletionFunctionCallChunk,
    ChatCompletionLogprobs,
    ChatCompletionLogprobToken,
    ChatCompletionMessageToolCallChunk,
    ChatCompletionResponseChoice,
    CreateChatCompletionResponse,
    CreateChatCompletionStreamResponse,
    FinishReason,
)
from llama_py.engine.request import Event, Record, TokenEvent

__all__ = ["ChatEncoder"]


@dataclass(slots=True)
class _ChatChoice:
    """One choice while it is generated.

    Attributes:
        news: log-probabilities that no chunk has carried yet.
        logprobs: all of them.
    """

    index: int
    stream: ChatStream
    queue: LogprobQueue | None
    news: list[ChatCompletionLogprobToken] = field(default_factory=list)
    logprobs: list[ChatCompletionLogprobToken] = field(default_factory=list)
    finish_reason: FinishReason | None = None


class ChatEncoder(EncoderBase):
    """Encodes one call of ``create_chat_completion``.

    Log-probabilities are those of every token of the reply as the model wrote it, markers of
    reasoning and tool calls included.

    Args:
        rendered: the prompt that the requests continue.
        legacy: ``functions`` were given: a call is a ``function_call``, not ``tool_calls``.
        logprobs: whether log-probabilities were asked for.
    """

    kind = "chat.completion.chunk"

    def __init__(
        self,
        head: ResponseHead,
        records: Sequence[Record],
        vocab: VocabLike,
        rendered: RenderedChat,
        *,
        legacy: bool = False,
        logprobs: bool = False,
    ) -> None:
        super().__init__(head, records, len(records))
        self._vocab = vocab
        self._legacy = legacy
        self._replies = [
            _ChatChoice(
                index,
                ChatStream(rendered),
                LogprobQueue(reply_piece(vocab, record.request)) if logprobs else None,
            )
            for index, record in enumerate(records)
        ]

    # -- events ----------------------------------------------------------------------------------

    def open(self) -> list[CreateChatCompletionStreamResponse]:
        """The first chunk of every choice, with the role."""
        chunks: list[Any] = []
        for reply in self._replies:
            chunks += self._chunks([self._choice_chunk(reply, {"role": "assistant"})])
        return chunks

    def feed(self, choice: int, event: Event) -> list[CreateChatCompletionStreamResponse]:
        """Take an event of a choice; return the chunks that it makes."""
        if isinstance(event, TokenEvent):
            return self.chunks_of(choice, self.take(choice, event))
        reply = self._replies[choice]
        if reply.queue is not None:
            stopped = event.stop is not None
            self._note(reply, reply.queue.finish(len(event.text), stopped=stopped))
        deltas = reply.stream.feed(event.text) + reply.stream.flush()
        chunks = self.chunks_of(choice, deltas)
        self._finish(event)
        reply.finish_reason = event.reason  # type: ignore[assignment]
        cut_off = event.stop is not None and reply.stream.cut_off
        if event.reason == "stop" and reply.stream.has_tool_calls and not cut_off:
            reply.finish_reason = "function_call" if self._legacy else "tool_calls"
        return chunks + self._chunks([self._choice_chunk(reply, {})])

    def take(self, choice: int, event: TokenEvent) -> Sequence[Delta]:
        """Take a token of a choice; return what it adds to the reply."""
        reply = self._replies[choice]
        self._completion_tokens += 1
        if reply.queue is not None:
            reply.queue.add(event.token, event.logprobs)
            self._note(reply, reply.queue.release(len(event.text)))
        if not event.text:
            return ()
        deltas = reply.stream.feed(event.text)
        self._reasoning_tokens += reply.stream.thinks
        return deltas

    def chunks_of(self, choice: int, deltas: Sequence[Delta]) -> list[Any]:
        """The chunks that carry deltas which were taken."""
        if not (deltas and self.head.stream):
            return []
        reply = self._replies[choice]
        encoded = [self._delta(delta) for delta in deltas]
        return self._chunks([self._choice_chunk(reply, delta) for delta in encoded if delta])

    def _note(self, reply: _ChatChoice, entries: Sequence[LogprobEntry]) -> None:
        if entries:
            news = chat_logprobs(self._vocab, entries)["content"] or []
            reply.logprobs += news
            if self.head.stream:
                reply.news += news

    def _choice_chunk(self, reply: _ChatChoice, delta: ChatCompletionDelta) -> dict[str, Any]:
        logprobs: ChatCompletionLogprobs | None = None
        none_at_all = reply.finish_reason and reply.queue is not None and not reply.logprobs
        if reply.news or none_at_all:
            logprobs = {"content": reply.news, "refusal": None}
            reply.news = []
        return {
            "index": reply.index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": reply.finish_reason,
        }

    # -- deltas ----------------------------------------------------------------------------------

    def _delta(self, delta: Delta) -> ChatCompletionDelta:
        call = delta.tool_call
        if call is None and delta.reasoning:
            return {"reasoning_content": delta.reasoning}
        if call is None:
            return {"content": delta.content}
        function: ChatCompletionFunctionCallChunk = {"arguments": call.arguments}
        if call.name is not None:
            function = {"name": call.name, "arguments": call.arguments}
        if self._legacy:  # ``functions`` knew a single call
            return {} if call.index else {"function_call": function}
        chunk: ChatCompletionMessageToolCallChunk = {"index": call.index, "function": function}
        if call.name is not None:
            chunk["id"] = call.id or ""
            chunk["type"] = "function"
        return {"tool_calls": [chunk]}

    # -- the whole -------------------------------------------------------------------------------

    def response(self) -> CreateChatCompletionResponse:
        """The whole response, or the part that has been generated so far."""
        choices: list[ChatCompletionResponseChoice] = []
        for reply in self._replies:
            message: Any = reply.stream.finish().as_message()
            if self._legacy and "tool_calls" in message:
                message["function_call"] = message.pop("tool_calls")[0]["function"]
            logprobs: ChatCompletionLogprobs | None = None
            if reply.queue is not None:
                logprobs = {"content": reply.logprobs, "refusal": None}
            choices.append(
                {
                    "index": reply.index,
                    "message": message,
                    "logprobs": logprobs,
                    "finish_reason": reply.finish_reason,
                }
            )
        return cast("CreateChatCompletionResponse", self._whole("chat.completion", choices))
