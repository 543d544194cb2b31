"""Log-probabilities of tokens, aligned with the text that a reader sees, in both OpenAI formats."""

from __future__ import annotations

import codecs
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from llama_py.chat.vocab import VocabLike
from llama_py.dialects.openai.types import (
    ChatCompletionLogprobs,
    ChatCompletionLogprobToken,
    ChatCompletionTopLogprobToken,
    CompletionLogprobs,
)
from llama_py.engine.request import GenerationRequest, TokenLogprobs

__all__ = [
    "LogprobEntry",
    "LogprobQueue",
    "chat_logprobs",
    "completion_logprobs",
    "empty_completion_logprobs",
    "extend_completion_logprobs",
    "reply_piece",
]

#: Reported for a probability of zero, as OpenAI does: JSON has no infinity.
_IMPOSSIBLE = -9999.0


class LogprobEntry(NamedTuple):
    """A token, and where its text begins, in characters. ``logprobs`` None: not known."""

    start: int
    end: int
    token: int
    logprobs: TokenLogprobs | None


class LogprobQueue:
    """Entries that wait until the text of their token is shown.

    Text may be held back because it could begin a stop string. If it does, the entries of the
    tokens that make up the stop string are not reported, just as their text.

    Args:
        piece: the bytes of a token as the text has them.
        offset: characters before the first token.
    """

    def __init__(self, piece: Callable[[int], bytes], offset: int = 0) -> None:
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._position = self._shown = offset
        self._waiting: deque[LogprobEntry] = deque()

    def add(self, token: int, logprobs: TokenLogprobs | None) -> None:
        """Add the next token of the reply."""
        start = self._position
        self._position = end = start + len(self._decoder.decode(self._piece(token)))
        if self._decoder.getstate()[0]:
            end += 1  # it begins a character that another token completes
        self._waiting.append(LogprobEntry(start, end, token, logprobs))

    def release(self, shown: int) -> list[LogprobEntry]:
        """Say that so many more characters are shown; take the entries that this covers."""
        self._shown += shown
        waiting, limit = self._waiting, self._shown
        ready = []
        while waiting and waiting[0].end <= limit:
            ready.append(waiting.popleft())
        return ready

    def finish(self, shown: int, *, stopped: bool) -> list[LogprobEntry]:
        """Take the rest. ``stopped``: a stop string cut off what is not shown."""
        self._shown += shown
        rest = [e for e in self._waiting if not stopped or e.start < self._shown]
        self._waiting.clear()
        return rest


def reply_piece(vocab: VocabLike, request: GenerationRequest) -> Callable[[int], bytes]:
    """The bytes of a token as the text of this request's reply has them."""
    if request.echo_special:
        return vocab.piece
    visible = request.visible
    if not visible:
        return vocab.plain_piece
    return lambda token: vocab.piece(token) if token in visible else vocab.plain_piece(token)


# ---- completions -----------------------------------------------------------------------------


def empty_completion_logprobs() -> CompletionLogprobs:
    """No entries yet."""
    return {"tokens": [], "token_logprobs": [], "text_offset": [], "top_logprobs": []}


def completion_logprobs(vocab: VocabLike, entries: Sequence[LogprobEntry]) -> CompletionLogprobs:
    """Entries in the format of completions."""
    out = empty_completion_logprobs()
    for start, _, token, logprobs in entries:
        text = _shown_text(vocab.piece(token))
        out["tokens"].append(text)
        out["text_offset"].append(start)
        if logprobs is None:
            out["token_logprobs"].append(None)
            out["top_logprobs"].append(None)
            continue
        top: dict[str, float] = {}
        for other, value in zip(logprobs.ids.tolist(), logprobs.logprobs.tolist(), strict=True):
            top.setdefault(_shown_text(vocab.piece(other)), _finite(value))
        top.setdefault(text, _finite(logprobs.logprob))
        out["token_logprobs"].append(_finite(logprobs.logprob))
        out["top_logprobs"].append(top)
    return out


def extend_completion_logprobs(whole: CompletionLogprobs, part: CompletionLogprobs) -> None:
    """Append the lists of a part."""
    whole["tokens"] += part["tokens"]
    whole["token_logprobs"] += part["token_logprobs"]
    whole["text_offset"] += part["text_offset"]
    whole["top_logprobs"] += part["top_logprobs"]


def _shown_text(piece: bytes) -> str:
    """The text of a token; bytes that are not text by themselves the way OpenAI writes them."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


# ---- chat ------------------------------------------------------------------------------------


def chat_logprobs(vocab: VocabLike, entries: Sequence[LogprobEntry]) -> ChatCompletionLogprobs:
    """Entries in the format of chat completions."""
    content: list[ChatCompletionLogprobToken] = []
    for _, _, token, logprobs in entries:
        if logprobs is None:
            content.append({**_entry(vocab, token, _IMPOSSIBLE), "top_logprobs": []})
            continue
        others = zip(logprobs.ids.tolist(), logprobs.logprobs.tolist(), strict=True)
        top = [_entry(vocab, other, value) for other, value in others]
        content.append({**_entry(vocab, token, logprobs.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def _entry(vocab: VocabLike, token: int, logprob: float) -> ChatCompletionTopLogprobToken:
    piece = vocab.piece(token)
    return {
        "token": piece.decode("utf-8", "replace"),
        "logprob": _finite(logprob),
        "bytes": list(piece),
    }


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _IMPOSSIBLE
