"""``NativeReply``: replies in the form of llama-server's ``/completion``, whole and as events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llama_py.chat.vocab import VocabLike
from llama_py.dialects.failures import Failure, openai_error
from llama_py.dialects.llama_server.line_limits import Indentation, LineLimit
from llama_py.dialects.logprobs import LogprobEntry, LogprobQueue, reply_piece
from llama_py.dialects.token_texts import prompt_bytes
from llama_py.dialects.usage import PromptProgress, make_timings
from llama_py.dialects.wire_json import frame, text_bytes
from llama_py.engine.request import Event, FinishEvent, Record, TokenEvent

__all__ = ["NativeReply", "Shape", "chosen_fields"]

#: What JSON says of a probability of zero.
_IMPOSSIBLE = -3.4028234663852886e38


@dataclass(frozen=True, slots=True)
class Shape:
    """The parts that a reply consists of.

    Attributes:
        model: its name.
        settings: the options of the request, as they were understood.
        return_tokens: a whole reply has its tokens; events always have theirs.
        timings: every event has timings.
        fields: the members that the last event, or the whole reply, has; all of them if empty.
        slot: the slot that the client asked for, or -1.
        indentation: what every line but the first begins with; the reply ends before another one.
        expose_prompt: it has the prompt.
    """

    model: str
    settings: Mapping[str, Any]
    stream: bool = False
    return_tokens: bool = False
    timings: bool = False
    fields: tuple[str, ...] = ()
    slot: int = -1
    indentation: int = 0
    expose_prompt: bool = False


@dataclass(slots=True)
class _NativeChoice:
    """One completion. ``shown``: how many of its tokens were in an event."""

    index: int
    record: Record
    limit: LineLimit | None
    queue: LogprobQueue | None
    block: Indentation
    text: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    probs: list[dict[str, Any]] = field(default_factory=list)
    shown: int = 0
    has_new_line: bool = False
    finish: FinishEvent | None = None


class NativeReply:
    """Encodes the replies of one call (see ``dialects.wire.WireReply``).

    Args:
        limits: for each record, what ends it by its time or its indentation, if something does.
    """

    def __init__(
        self,
        shape: Shape,
        records: Sequence[Record],
        vocab: VocabLike,
        limits: Sequence[LineLimit | None],
    ) -> None:
        self._shape = shape
        self._vocab = vocab
        self._replies: list[_NativeChoice] = []
        for index, record in enumerate(records):
            queue = None
            if record.request.generation.logprobs is not None:
                queue = LogprobQueue(reply_piece(vocab, record.request))
            block = Indentation(shape.indentation)
            self._replies.append(_NativeChoice(index, record, limits[index], queue, block))

    # -- events ---------------------------------------------------------------------------------

    def open(self) -> bytes:
        """Nothing: the first event has text."""
        return b""

    def feed(self, index: int, event: Event) -> bytes:
        """An event with the text that has become certain; at the end, one with everything else."""
        reply = self._replies[index]
        if isinstance(event, TokenEvent):
            reply.tokens.append(event.token)
            if reply.queue is None:
                return self._add(reply, event.text, ()) if event.text else b""
            reply.queue.add(event.token, event.logprobs)
            return self._add(reply, event.text, reply.queue.release(len(event.text)))
        reply.finish = event
        # The token that ends a reply comes without an event of its own.
        reply.tokens += reply.record.generated[len(reply.tokens) :]
        entries = []
        if reply.queue is not None:
            entries = reply.queue.finish(len(event.text), stopped=event.stop is not None)
        frames = self._add(reply, event.text, entries)
        if event.error is not None or not self._shape.stream:
            return frames
        return frames + frame(self._final(reply))

    def _add(self, reply: _NativeChoice, text: str, entries: Sequence[LogprobEntry]) -> bytes:
        text = reply.block.kept(text) if self._shape.indentation else text
        probs = [self._probabilities(entry) for entry in entries]
        reply.has_new_line = reply.has_new_line or "\n" in text
        if not self._shape.stream:
            reply.text.append(text)
            reply.probs += probs
            return b""
        waiting = reply.tokens[reply.shown :]
        if not text and not probs and (reply.finish is None or not waiting):
            return b""
        reply.shown = len(reply.tokens)
        if not probs and not self._shape.timings:
            return self._quick(reply, text, waiting)
        partial = {**self._head(reply), "content": text, "tokens": waiting, "stop": False}
        if probs:
            partial["completion_probabilities"] = probs
        if self._shape.timings:
            partial["timings"] = make_timings([reply.record], len(reply.tokens))
        return frame(partial)

    def _quick(self, reply: _NativeChoice, text: str, tokens: Sequence[int]) -> bytes:
        """An event that is nothing but text: its JSON differs in few places."""
        record = reply.record
        return (
            b'data: {"index":%d,"content":%b,"tokens":[%b],"stop":false,"id_slot":%d,'
            b'"tokens_predicted":%d,"tokens_evaluated":%d}\n\n'
        ) % (
            reply.index,
            text_bytes(text),
            ",".join(map(str, tokens)).encode("ascii"),
            self._slot(record),
            len(reply.tokens),
            record.n_prompt,
        )

    def _head(self, reply: _NativeChoice) -> dict[str, Any]:
        return {
            "index": reply.index,
            "id_slot": self._slot(reply.record),
            "tokens_predicted": len(reply.tokens),
            "tokens_evaluated": reply.record.n_prompt,
        }

    def _slot(self, record: Record) -> int:
        slot = self._shape.slot
        return slot if slot >= 0 else int(record.cache.get("sequence", -1))

    def _probabilities(self, entry: LogprobEntry) -> dict[str, Any]:
        known = entry.logprobs
        ids = [] if known is None else known.ids.tolist()
        values = [] if known is None else known.logprobs.tolist()
        top = [self._probability(*each) for each in zip(ids, values, strict=True)]
        chosen = self._probability(entry.token, 0.0 if known is None else known.logprob)
        return {**chosen, "top_logprobs": top}

    def _probability(self, token: int, logprob: float) -> dict[str, Any]:
        piece = self._vocab.piece(token)
        return {
            "id": token,
            "token": piece.decode("utf-8", "ignore"),
            "bytes": list(piece),
            "logprob": max(logprob, _IMPOSSIBLE),
        }

    def progress(self, progress: PromptProgress) -> bytes:
        """An event without text that says how much of the prompt is done."""
        partial = {**self._head(self._replies[0]), "content": "", "tokens": [], "stop": False}
        partial["prompt_progress"] = progress.told()
        if self._shape.timings:
            partial["timings"] = progress.timings()
        return frame(partial)

    def keep_alive(self) -> bytes:
        """A comment."""
        return b":\n\n"

    def close(self) -> bytes:
        """Nothing: the last event of each reply has said that it is the last one."""
        return b""

    def fail(self, failure: Failure) -> bytes:
        """The error, as an event of its own."""
        return frame(openai_error(failure)[1])

    # -- whole ----------------------------------------------------------------------------------

    def whole(self) -> Any:
        """The reply; a list of them, if there are several."""
        replies = [self._final(reply) for reply in self._replies]
        return replies[0] if len(replies) == 1 else replies

    def _final(self, reply: _NativeChoice) -> dict[str, Any]:
        record, shape = reply.record, self._shape
        final = {
            **self._head(reply),
            "content": "".join(reply.text),
            "tokens": reply.tokens if shape.return_tokens and not shape.stream else [],
            "stop": True,
            "model": shape.model,
            "generation_settings": dict(shape.settings),
            "has_new_line": reply.has_new_line,
            **self._ending(reply),
            "tokens_cached": record.n_prompt + max(0, len(reply.tokens) - 1),
            "timings": make_timings([record], len(reply.tokens)),
        }
        if shape.expose_prompt:
            text = prompt_bytes(self._vocab, record.tokens)
            final["prompt"] = text.decode("utf-8", "replace")
        if reply.probs:
            final["completion_probabilities"] = reply.probs
        return chosen_fields(final, shape.fields) if shape.fields else final

    def _ending(self, reply: _NativeChoice) -> dict[str, Any]:
        """What ended it, and whether that was the context, before as much as was asked for."""
        finish, most = reply.finish, reply.record.request.generation.max_tokens
        ended = finish is not None and finish.reason == "length"
        truncated = ended and (most is None or len(reply.tokens) < most)
        if finish is None or finish.reason not in ("stop", "length"):
            kind = "none"
        elif finish.stop is not None:
            kind = "word"
        else:
            limited = reply.limit is not None and reply.limit.met
            kind = "limit" if finish.reason == "length" or limited else "eos"
        word = finish.stop if finish is not None else None
        return {"truncated": truncated, "stop_type": kind, "stopping_word": word or ""}


def chosen_fields(reply: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """The members that ``response_fields`` names, under these names.

    A slash leads into an object; what does not exist is left out.
    """
    chosen: dict[str, Any] = {}
    for path in paths:
        value: Any = reply
        for name in path.split("/"):
            if not isinstance(value, Mapping) or name not in value:
                break
            value = value[name]
        else:
            chosen[path] = value
    return chosen
