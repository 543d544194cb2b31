"""``StoredState``: a sequence outside of the context, and what is known of one in a store.

A fingerprint is a text that two states have in common only if one context can load both. It begins
with the format of what describes a state, the llama.cpp that wrote its bytes, and the model; what
follows are the settings. Its beginning is read here for one purpose: whoever finds nothing reused
after an update is told that it was the update (``refusal``). A text that begins otherwise is that
of other settings: it may have been written by anybody.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import ParameterError

__all__ = [
    "Checkpoint",
    "EntryInfo",
    "Key",
    "Refusal",
    "Segment",
    "StoredMatch",
    "StoredState",
    "refusal",
    "why_refused",
]

#: Names an entry of a store. Never used again for another one.
Key = str


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The part of a sequence's state that cannot be cut, as it was after ``position`` tokens.

    Attributes:
        position: tokens evaluated when it was taken.
        state: uint8 ``(nbytes,)``, the partial state.
    """

    position: int
    state: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """The cells ``[start, end)`` of a sequence, which a store keeps apart from the rest.

    A conversation that grows is written as a chain of segments: what is there already is never
    written again, and two branches share the segments of their common beginning.

    Attributes:
        key: its name in the store that has it.
        start, end: positions of the cells.
        nbytes: bytes of its state.
        state: uint8 ``(nbytes,)``, the state of a sequence that holds these cells only; None where
            only the store has it.
    """

    key: Key
    start: int
    end: int
    nbytes: int
    state: NDArray[np.uint8] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StoredState:
    """A sequence, as it can be brought back into a context with the same fingerprint.

    Attributes:
        tokens: int32 ``(n,)``, what was evaluated.
        offsets: int64 ``(n + 1,)``, where each token starts in ``text``; None if unknown.
        text: the key (``text_keys.py``) of the tokens, from ``offsets[0]`` to ``offsets[-1]``; None
            if unknown.
        state: uint8 ``(nbytes,)``, the state of the cells that are in no segment, which is the
            whole sequence if there are none; read-only in what a store returns.
        checkpoints: partial states of positions along ``tokens``.
        pos_min: the smallest position that was in memory (window caches drop the first ones).
        fingerprint: model file, context parameters, KV types, adapters, library version.
        session: the conversation that it belongs to, or None.
        sources: uint8 ``(n,)``, where each token comes from (``text.Source``); None with ``text``.
        segments: the first cells, without gaps from position 0 on; ``state`` has those behind them.

    Raises:
        ParameterError: shapes that contradict each other.
    """

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64] | None
    text: bytes | None
    state: NDArray[np.uint8]
    checkpoints: tuple[Checkpoint, ...]
    pos_min: int
    fingerprint: str
    session: str | None
    sources: NDArray[np.uint8] | None = None
    segments: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        if (self.offsets is None) != (self.text is None):
            raise ParameterError("a stored state has both text and offsets, or neither")
        if self.text is not None and self.sources is None:
            object.__setattr__(self, "sources", np.zeros(len(self.tokens), np.uint8))
        if self.sources is not None and self.sources.shape != self.tokens.shape:
            raise ParameterError(
                f"{len(self.tokens)} tokens need as many sources, not {self.sources.size}"
            )
        if self.offsets is not None and self.offsets.shape != (len(self.tokens) + 1,):
            raise ParameterError(
                f"{len(self.tokens)} tokens need {len(self.tokens) + 1} offsets, "
                f"not {self.offsets.size}"
            )
        starts = [0, *(segment.end for segment in self.segments)]
        if starts != [*(each.start for each in self.segments), min(starts[-1], len(self.tokens))]:
            raise ParameterError("the segments of a stored state must follow each other")

    @property
    def nbytes(self) -> int:
        """Bytes of everything in it."""
        described = self.tokens.nbytes + (self.offsets.nbytes if self.offsets is not None else 0)
        described += self.sources.nbytes if self.sources is not None else 0
        states = self.state.nbytes + sum(c.state.nbytes for c in self.checkpoints)
        states += sum(segment.nbytes for segment in self.segments)
        return described + len(self.text or b"") + states


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """What is known of an entry without reading its state.

    Attributes:
        length: tokens.
        checkpoints: positions of its checkpoints.
        nbytes: bytes that it takes in its store.
    """

    key: Key
    fingerprint: str
    session: str | None
    length: int
    pos_min: int
    checkpoints: tuple[int, ...]
    nbytes: int


class StoredMatch(NamedTuple):
    """An entry that begins like a prompt: the first ``matched`` of its ``length`` tokens do."""

    key: Key
    matched: int
    length: int
    pos_min: int
    checkpoints: tuple[int, ...]
    session: str | None


# --- fingerprints ---------------------------------------------------------------------------------

#: Why a stored state is not used: it is of another llama.cpp, or of another format; or else the
#: model, a setting or an adapter is another one. The empty string: it is used.
Refusal = Literal["", "version", "settings"]

_BEGINNING = re.compile(r"\((\d{1,6}), '([\w.+-]{1,64})', '([0-9a-f]{1,128})', ", re.ASCII)


class _Maker(NamedTuple):
    state_format: str
    llama_cpp: str
    model: str


def _maker(fingerprint: str) -> _Maker | None:
    found = _BEGINNING.match(fingerprint)
    return _Maker(*found.groups()) if found else None


def refusal(own: str, other: str) -> Refusal:
    """Why a state with the fingerprint ``other`` is of no use where it should be ``own``."""
    if own == other:
        return ""
    mine, theirs = _maker(own), _maker(other)
    if mine is None or theirs is None or mine.model != theirs.model:
        return "settings"
    return "settings" if mine == theirs else "version"


def why_refused(own: str, other: str) -> str:
    """The same as a sentence without its subject, which is something that was saved."""
    mine, theirs = _maker(own), _maker(other)
    if refusal(own, other) != "version" or mine is None or theirs is None:
        return "was made by another model, or under other settings (fingerprint)"
    if mine.llama_cpp != theirs.llama_cpp:
        return (
            f"was written with llama.cpp {theirs.llama_cpp}, and this is {mine.llama_cpp}, which "
            "does not read states of other versions"
        )
    return (
        f"has the format {theirs.state_format}, and this llama_py reads the format "
        f"{mine.state_format}"
    )
