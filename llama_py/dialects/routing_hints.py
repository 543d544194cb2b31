"""``Hint``: what a router may know of a request: its model, its session, and how its text begins.

The text of a request is cut into blocks: at the borders of messages, and longer ones after each
``BLOCK`` bytes. Each block is named by a digest of itself and of everything before it, so that two
requests share a digest if they begin with the same text, whatever follows. It is text, not tokens:
no tokenizer is needed where requests are routed, and the tokens of a reply need not be known.

Digests begin with the owner and the model: nothing is shared between keys, so nobody's request may
be drawn to where another one's text is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["BLOCK", "MOST_BLOCKS", "Hint", "hint_of", "opening_of"]

#: Bytes of a block of a long message.
BLOCK = 1024
#: Blocks of a request that are named; what follows counts as new.
MOST_BLOCKS = 2048

#: Where the dialects have what is rendered first, then what grows.
_FIRST = ("tools", "functions", "system", "instructions", "input_extra", "input_prefix")
_GROWING = ("messages", "input", "prompt")


@dataclass(frozen=True, slots=True)
class Hint:
    """See the module.

    Attributes:
        model: the id of the model; empty where there is only one.
        session: the conversation, with its owner; None if the request names none.
        blocks: a digest for each block of text, from the beginning.
        ends: where each of them ends, in bytes from the beginning.
        size: bytes of the whole text.
    """

    model: str = ""
    session: str | None = None
    blocks: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    size: int = 0


def hint_of(
    body: Mapping[str, Any], *, owner: str = "", model: str = "", session: str | None = None
) -> Hint:
    """The hint for a request with this body, in whatever dialect.

    Args:
        owner: whose text it is; nothing is shared with others.
    """
    blocks: list[int] = []
    ends: list[int] = []
    size = 0
    digest = _digest(b"", f"{owner}\x1f{model}".encode("utf-8", "surrogatepass"))
    for piece in _pieces(body):
        size += len(piece)
        if len(blocks) < MOST_BLOCKS:
            digest = _digest(digest, piece)
            blocks.append(int.from_bytes(digest, "little"))
            ends.append(size)
    return Hint(model, session, tuple(blocks), tuple(ends), size)


def opening_of(body: Mapping[str, Any], *, owner: str = "") -> str:
    """The name of what a conversation begins with; empty if the request has no text.

    It is that of its tools, its system prompt and what the user says first, so that all turns of
    a conversation have the same one; of a text, its first ``BLOCK`` bytes.

    Args:
        owner: whose text it is: others have another name for the same.
    """
    digest, found = _digest(b"", owner.encode("utf-8", "surrogatepass")), False
    for piece in _opening(body):
        digest, found = _digest(digest, piece.encode("utf-8", "surrogatepass")), True
    return digest.hex() if found else ""


def _opening(body: Mapping[str, Any]) -> Iterator[str]:
    for name in _FIRST:
        yield from _parts(body.get(name))
    for name in _GROWING:
        value = body.get(name)
        if isinstance(value, str):
            yield value[:BLOCK]
        elif isinstance(value, Sequence):
            for each in value:
                yield _text(_abridged(each))
                if not isinstance(each, Mapping) or each.get("role") == "user":
                    return


def _abridged(value: Any) -> Any:
    """The same for the same value, without what is as long as a picture: the encoder of JSON would
    hold up all threads for it."""
    if isinstance(value, str):
        long = len(value) > BLOCK
        return _digest(b"", value.encode("utf-8", "surrogatepass")).hex() if long else value
    if isinstance(value, Mapping):
        return {name: _abridged(each) for name, each in value.items()}
    return [_abridged(each) for each in value] if isinstance(value, list) else value


def _digest(before: bytes, piece: bytes) -> bytes:
    return hashlib.blake2b(piece, key=before, digest_size=8).digest()


def _pieces(body: Mapping[str, Any]) -> Iterator[bytes]:
    """The blocks of what a template renders, in that order; each message begins with a new one."""
    for name in (*_FIRST, *_GROWING):
        for text in _parts(body.get(name)):
            data = text.encode("utf-8", "surrogatepass")
            for start in range(0, len(data), BLOCK):
                yield data[start : start + BLOCK]


def _parts(value: Any) -> Iterable[str]:
    if value is None:
        return ()
    if isinstance(value, list):
        return (_text(each) for each in value)
    return (_text(value),)


def _text(value: Any) -> str:
    """The text of a value; a message in one form, whatever the order of its fields."""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
