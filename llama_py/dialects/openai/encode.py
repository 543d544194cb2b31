"""Engine events to OpenAI's response dictionaries, for completions.

An encoder is passive: a driver of any kind calls ``open()`` once, ``feed(choice, event)`` for every
event, and ``close()`` at the end, and sends on the chunks that these return. ``response()`` is the
whole reply. A stream's chunks add up to that same object (see ``llama_py.dialects.openai.fold``).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from typing_extensions import Self

from llama_py.chat.vocab import VocabLike
from llama_py.dialects.context import CallContext
from llama_py.dialects.logprobs import (
    LogprobEntry,
    LogprobQueue,
    completion_logprobs,
    empty_completion_logprobs,
    extend_completion_logprobs,
    reply_piece,
)
from llama_py.dialects.openai.types import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionUsage,
    CreateCompletionResponse,
    FinishReason,
    Timings,
)
from llama_py.dialects.usage import make_timings, make_usage
from llama_py.engine.request import Event, FinishEvent, Record, TokenEvent
from llama_py.errors import ParameterError
from llama_py.options import ChatOptions, CompletionOptions
from llama_py.options.checks import check_bool
from llama_py.version import FINGERPRINT

__all__ = ["CompletionEncoder", "ResponseHead"]


@dataclass(slots=True)
class ResponseHead:
    """The fields that are the same in every chunk of a response.

    Attributes:
        model: the name that the response gives.
        prefix: beginning of the response's id.
        stream: ``feed`` returns chunks; otherwise nothing, and only ``response`` counts.
        include_usage: the last chunk has no choices and the usage, the others ``"usage": None``.
    """

    model: str
    prefix: str
    stream: bool = False
    include_usage: bool = False
    id: str = field(init=False)
    created: int = field(init=False)

    @classmethod
    def read(
        cls,
        options: CompletionOptions | ChatOptions,
        stream: Any,
        context: CallContext,
        prefix: str,
    ) -> Self:
        """The head of the response to a call.

        Raises:
            ParameterError: there are options for a stream, and there is none.
        """
        if stream is not None and type(stream) is not bool:
            check_bool("stream", stream)
        of_stream = options.get("stream_options")
        if of_stream is not None and not stream:
            raise ParameterError("stream_options is given, but stream is not True")
        usage = bool(of_stream and of_stream["include_usage"])
        return cls(options.get("model") or context.model_path, prefix, bool(stream), usage)

    def __post_init__(self) -> None:
        self.id = f"{self.prefix}-{uuid.uuid4()}"
        self.created = int(time.time())

    def chunk(self, kind: str, choices: list[Any]) -> dict[str, Any]:
        """A chunk, or with other choices a whole response."""
        chunk = {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        }
        if self.include_usage:
            chunk["usage"] = None
        return chunk


class EncoderBase:
    """The part that the encoders of completions and chats share.

    Attributes:
        head: id, time and name of the response.
        records: what is known of the request of each choice, in their order.
        error: what a request failed with, if one did.
    """

    #: ``object`` of a chunk.
    kind = ""

    def __init__(self, head: ResponseHead, records: Sequence[Record], per_prompt: int) -> None:
        self.head = head
        self.records = list(records)
        self._prompts = self.records[::per_prompt]
        self._completion_tokens = 0
        self._reasoning_tokens = 0
        self._unfinished = len(self.records)
        self._timings: Timings | None = None
        self.error: BaseException | None = None

    @property
    def finished(self) -> bool:
        """True when the last event of every choice was fed."""
        return self._unfinished == 0

    def _finish(self, event: FinishEvent) -> None:
        self._unfinished -= 1
        if event.error is not None and self.error is None:
            self.error = event.error

    def _chunks(self, choices: list[Any]) -> list[dict[str, Any]]:
        """One chunk for each choice; the one that finishes the response has the timings."""
        if not self.head.stream:
            return []
        chunks = [self.head.chunk(self.kind, [choice]) for choice in choices]
        if self.finished and choices[-1]["finish_reason"]:
            chunks[-1]["timings"] = self.timings()
        return chunks

    def close(self) -> list[Any]:
        """Chunks after everything else: the usage, if it was asked for.

        It has the timings as well: many clients look at the last chunk only.
        """
        if not (self.head.stream and self.head.include_usage):
            return []
        last = self.head.chunk(self.kind, [])
        return [{**last, "usage": self.usage(), "timings": self.timings()}]

    def kept(self) -> list[int]:
        """The choices that the response has, in its order, by the numbers that ``feed`` gets."""
        return [*range(len(self.records))]

    def _whole(self, kind: str, choices: list[Any]) -> dict[str, Any]:
        whole = self.head.chunk(kind, choices)
        return {**whole, "usage": self.usage(), "timings": self.timings()}

    def usage(self) -> CompletionUsage:
        """Tokens until now."""
        return make_usage(self._prompts, self._completion_tokens, self._reasoning_tokens)

    def timings(self) -> Timings:
        """Durations until now, or until the end."""
        if self._timings is not None:
            return self._timings
        timings = make_timings(self.records, self._completion_tokens)
        if self.finished:
            self._timings = timings
        return timings


@dataclass(slots=True)
class _CompletionChoice:
    """One choice while it is generated. Parts are joined once, at the end."""

    index: int
    record: Record
    queue: LogprobQueue | None
    logprobs: CompletionLogprobs | None
    begun: bool = False
    parts: list[str] = field(default_factory=list)
    total: float = 0.0
    count: int = 0
    finish_reason: FinishReason | None = None

    @property
    def mean_logprob(self) -> float:
        return self.total / self.count if self.count else float("-inf")


class CompletionEncoder(EncoderBase):
    """Encodes one call of ``create_completion``.

    Args:
        per_prompt: choices that were generated for each prompt.
        keep: choices that are returned for each prompt, the most likely ones.
        echoes: for each prompt the text that comes before its replies, "" for none.
        offsets: for each prompt its length in characters.
        logprobs: whether log-probabilities were asked for by the caller.
    """

    kind = "text_completion"

    def __init__(
        self,
        head: ResponseHead,
        records: Sequence[Record],
        vocab: VocabLike,
        *,
        per_prompt: int = 1,
        keep: int | None = None,
        echoes: Sequence[str] = ("",),
        offsets: Sequence[int] = (0,),
        logprobs: bool = False,
    ) -> None:
        super().__init__(head, records, per_prompt)
        self._vocab = vocab
        self._per_prompt = per_prompt
        self._keep = per_prompt if keep is None else keep
        self._echoes = echoes
        self._offsets = offsets
        self._replies: list[_CompletionChoice] = []
        for index, record in enumerate(records):
            reply = _CompletionChoice(index, record, None, None)
            if logprobs:
                piece = reply_piece(vocab, record.request)
                reply.queue = LogprobQueue(piece, offsets[index // per_prompt])
                reply.logprobs = empty_completion_logprobs()
            self._replies.append(reply)

    # -- events ----------------------------------------------------------------------------------

    def open(self) -> list[CreateCompletionResponse]:
        """Chunks before the first event."""
        return []

    def feed(self, choice: int, event: Event) -> list[CreateCompletionResponse]:
        """Take an event of a choice; return the chunks that it makes."""
        reply = self._replies[choice]
        chunks: list[Any] = []
        if not reply.begun:
            reply.begun = True
            echo = self._echoes[reply.index // self._per_prompt]
            if echo:
                of_prompt = None if reply.queue is None else self._prompt_entries(reply, echo)
                chunks = self._show(reply, echo, of_prompt)
        entries = None
        if isinstance(event, TokenEvent):
            self._completion_tokens += 1
            if event.logprobs is not None:
                reply.total += event.logprobs.logprob
                reply.count += 1
            if reply.queue is not None:
                reply.queue.add(event.token, event.logprobs)
                entries = reply.queue.release(len(event.text))
            if not event.text and not entries:
                return chunks
        else:
            self._finish(event)
            if reply.queue is not None:
                entries = reply.queue.finish(len(event.text), stopped=event.stop is not None)
            reply.finish_reason = event.reason  # type: ignore[assignment]
        return chunks + self._show(reply, event.text, entries)

    def take(self, choice: int, event: TokenEvent) -> str:
        """Take a token of a choice that has neither an echo nor log-probabilities.

        Returns:
            What it adds to the text.
        """
        self._completion_tokens += 1
        if event.text:
            self._replies[choice].parts.append(event.text)
        return event.text

    def _show(
        self, reply: _CompletionChoice, text: str, entries: Sequence[LogprobEntry] | None
    ) -> list[Any]:
        logprobs = None
        none_at_all = reply.finish_reason and reply.logprobs and not reply.logprobs["tokens"]
        if reply.logprobs is not None and (entries or none_at_all):
            logprobs = completion_logprobs(self._vocab, entries or ())
            extend_completion_logprobs(reply.logprobs, logprobs)
        if text:
            reply.parts.append(text)
        choice: CompletionChoice = {
            "text": text,
            "index": reply.index,
            "logprobs": logprobs,
            "finish_reason": reply.finish_reason,
        }
        return self._chunks([choice])

    def _prompt_entries(self, reply: _CompletionChoice, echo: str) -> list[LogprobEntry]:
        """The prompt's tokens without BOS; nothing is known about the first one."""
        tokens = reply.record.tokens
        known = [None, *reply.record.prompt_logprobs]
        if len(known) < len(tokens):  # the prompt was not evaluated to its end
            return []
        skip = int(tokens[:1] == [self._vocab.bos])
        begins = self._vocab.piece(tokens[skip])[:1] if skip < len(tokens) else b""
        # The tokenizer may have put a space before the text.
        offset = -1 if begins == b" " and not echo.startswith(" ") else 0
        queue = LogprobQueue(self._vocab.piece, offset)
        for position in range(skip, len(tokens)):
            queue.add(tokens[position], None if position == skip else known[position])
        entries = queue.finish(0, stopped=False)
        return [entry._replace(start=max(0, entry.start)) for entry in entries]

    # -- the whole -------------------------------------------------------------------------------

    def kept(self) -> list[int]:
        """See ``EncoderBase``; with ``best_of``, of each prompt's the most likely ones."""
        replies, size = self._replies, self._per_prompt
        if self._keep == size:
            return super().kept()
        groups = [replies[start : start + size] for start in range(0, len(replies), size)]
        ranked = [sorted(group, key=lambda reply: -reply.mean_logprob) for group in groups]
        return [reply.index for group in ranked for reply in group[: self._keep]]

    def response(self) -> CreateCompletionResponse:
        """The whole response, or the part that has been generated so far."""
        replies = [self._replies[choice] for choice in self.kept()]
        choices: list[CompletionChoice] = [
            {
                "text": "".join(reply.parts),
                "index": index,
                "logprobs": reply.logprobs,
                "finish_reason": reply.finish_reason,
            }
            for index, reply in enumerate(replies)
        ]
        return cast("CreateCompletionResponse", self._whole(self.kind, choices))
