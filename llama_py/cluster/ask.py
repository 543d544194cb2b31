"""What goes between the gateway and a replica: an ``Ask`` there, and an answer in pieces back."""

from __future__ import annotations

from dataclasses import dataclass, field

from llama_py.dialects.routing_hints import Hint
from llama_py.server.access.keys import Caller

__all__ = ["AnswerHead", "AnswerTail", "Ask", "Piece"]


@dataclass(frozen=True, slots=True)
class Ask:
    """An HTTP request, whose key and limits were looked at.

    Attributes:
        method, path, query, headers, body: as they came. The API key is not among the headers.
        caller: who asks.
        id: names it in logs.
        hint: what the router knows it by.
    """

    method: str
    path: str
    query: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    caller: Caller = field(default_factory=Caller)
    id: str = ""
    hint: Hint = field(default_factory=Hint)


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The beginning of an answer.

    Attributes:
        replica: who answers.
    """

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    replica: str


@dataclass(frozen=True, slots=True)
class AnswerTail:
    """An answer's facts when it is over.

    Attributes:
        response: the id of the reply in the dialect; empty if it has none.
        prompt_tokens, cached_tokens, generated_tokens: as in the log; 0 if no model was asked.
    """

    response: str = ""
    model: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0


Piece = AnswerHead | bytes | AnswerTail
