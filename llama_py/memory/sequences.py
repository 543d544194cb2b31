"""What one sequence of the context holds, a prompt whose tokens are known, and a ``Lease``.

Equal tokens are not proof of equal cells: what was evaluated twice was rounded twice. Two sequences
have the same cells only where one is a fork of the other, and where both were restored from the
same copy. So each stretch of cells that was evaluated in one go gets a number (``Runs``), which
forks take over, and a store keeps one copy of what has the same numbers (``Kept``).
"""

from __future__ import annotations

import itertools
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile, zip_longest
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from llama_py.memory.positions import TEXT, Positions, any_media, border
from llama_py.memory.prompt_tokens import Source
from llama_py.memory.text_keys import TextKeys
from llama_py.states.prefix import TokenInput, common_tokens
from llama_py.states.state import Refusal, Segment
from llama_py.states.store import StateStore

__all__ = [
    "CacheInfo",
    "Kept",
    "Lease",
    "LiveSequence",
    "Namespace",
    "ResolvedPrompt",
    "ReuseInfo",
    "Runs",
    "as_tokens",
    "cells_of",
    "common_prefix",
    "cut_at",
    "first_run",
    "shared_by",
]

#: The first cell of each stretch, ascending, and the number of the stretch. The last one is open:
#: what is evaluated next belongs to it.
Runs = tuple[tuple[int, int], ...]

_numbers = itertools.count(1)
_LAST = sys.maxsize
#: Places at which segments begin that are remembered: 64 GiB of them, or what is gone.
_MANY = 16_384


def first_run() -> Runs:
    """Of a sequence that has no cells yet."""
    return ((0, next(_numbers)),)


def cut_at(runs: Runs, count: int) -> Runs:
    """Only the first ``count`` cells are still the same: after a cut, and of a fork."""
    return (*(run for run in runs if run[0] < count), (count, next(_numbers)))


def shared_by(one: Runs, other: Runs) -> int | None:
    """How many first cells two sequences share; None: all that the shorter one has."""
    for mine, theirs in zip_longest(one, other):
        if mine != theirs:
            return min(run[0] for run in (mine, theirs) if run is not None)
    return None


def cells_of(runs: Runs, start: int, end: int) -> Runs:
    """The name of the cells ``[start, end)``: equal only for cells that are the same."""
    first, last = bisect_right(runs, (start, _LAST)), bisect_left(runs, (end, 0))
    return ((start, runs[first - 1][1]), *runs[first:last])


class Kept:
    """The segments that a store has of cells which are in memory, or were.

    The store may have lost them meanwhile: ``chain`` asks it.
    """

    def __init__(self, store: StateStore) -> None:
        self.store = store
        #: By the first cell and its stretch: the cells of a segment, and the segment.
        self._known: dict[tuple[int, int], dict[Runs, Segment]] = {}

    def add(self, runs: Runs, segment: Segment) -> None:
        """The store has these cells of a sequence."""
        cells = cells_of(runs, segment.start, segment.end)
        self._known.setdefault(cells[0], {})[cells] = segment
        while len(self._known) > _MANY:
            del self._known[next(iter(self._known))]  # the oldest: it is copied once more

    def chain(self, runs: Runs, start: int, length: int) -> tuple[Segment, ...]:
        """Segments that follow each other from ``start`` on, as far as the store has them.

        The last one ends before ``length``: an entry has cells of its own behind its segments.
        """
        found: list[Segment] = []
        while True:
            known = self._known.get(cells_of(runs, start, start + 1)[0], {})
            fitting = [
                segment
                for cells, segment in known.items()
                if segment.end < length and cells_of(runs, start, segment.end) == cells
            ]
            if not fitting:
                break
            found.append(max(fitting, key=lambda segment: segment.end))
            start = found[-1].end
        if not self.store.holds([segment.key for segment in found]):
            found = [*takewhile(lambda each: self.store.holds([each.key]), found)]
        return tuple(found)


#: Within it, equal tokens have equal states: the adapters and their scales, and whatever else
#: changes what a model computes. Entries of different namespaces never share anything.
Namespace = Hashable

#: Conversations that one goes on with, and that are given back when it is forgotten; a client that
#: names each request differently would make a long list.
_MOST_PASSED_ON = 8

_clock = itertools.count(1)


def as_tokens(tokens: TokenInput) -> NDArray[np.int32]:
    """Token ids as int32 ``(n,)``; an array that is one already is not copied."""
    return np.asarray(tokens, np.int32).reshape(-1)


def common_prefix(a: TokenInput, b: TokenInput) -> int:
    """How many leading tokens two prompts share."""
    return common_tokens(as_tokens(a), as_tokens(b))


@dataclass(slots=True, eq=False)
class LiveSequence:
    """A sequence that is in memory. A holder in the prefix index; compared by identity.

    Attributes:
        number: its id in the context.
        namespace: what its state was computed with.
        tokens: what is in memory, in order. Changed only after a successful decode.
        positions: which positions these take.
        text: the key (``text_keys.py``) of the first ``len(offsets) - 1`` of those tokens. It ends
            where tokens come that were given as tokens, or evaluated by hand.
        offsets: offset of each token in ``text``, and of the end.
        sources: uint8, where each token with text comes from (``text.Source``).
        busy: a request is using it, or a caller who evaluates by hand.
        by_hand: it is such a caller.
        reserved: a caller goes on forking from it: it is not continued, and evicted last.
        session: the conversation it was last used for.
        passed_on: the conversations that this one goes on with, the latest last: of each the
            session, and how many of the first tokens are its own.
        offloaded_key, saved_key: its entries in the stores, if an older state of it is there.
        offloaded_length, saved_length: tokens that it had when it was written there last.
        runs: which cells it has, so that the stores keep one copy of those it shares.
        shares: the same of what lies in memory: what was loaded again lies there a second time.
        pending: the tokens that were sampled last and are not in memory: one, as a rule. The index
            knows their text, so that a reply which ends with them is found whole: its tokens are
            kept, and the prompt is cut behind them, where the next message begins.
        pending_ends: after how many tokens, ``pending`` included, a reply may end in a prompt that
            contains it.
        indexed: how many of its tokens the prefix index knows, ``pending`` not counted.
        transient: nobody will ask for its last tokens again: it is neither offloaded nor saved.
    """

    number: int
    namespace: Namespace = ()
    tokens: list[int] = field(default_factory=list)
    positions: Positions = TEXT
    text: bytes = b""
    offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    sources: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    busy: bool = False
    by_hand: bool = False
    reserved: bool = False
    session: str | None = None
    passed_on: tuple[tuple[str, int], ...] = ()
    offloaded_key: str | None = None
    offloaded_length: int = 0
    saved_key: str | None = None
    saved_length: int = 0
    runs: Runs = field(default_factory=first_run)
    shares: Runs = field(default_factory=first_run)
    pending: tuple[int, ...] = ()
    pending_ends: frozenset[int] = frozenset()
    indexed: int = 0
    transient: bool = False
    last_used: int = 0

    def touch(self) -> None:
        """Mark as just used."""
        self.last_used = next(_clock)

    @property
    def end(self) -> int:
        """The position of the next token."""
        return self.positions.after(len(self.tokens))

    @property
    def last(self) -> int:
        """The largest position that its tokens take, -1 if there are none."""
        return self.positions.last(len(self.tokens))

    def forget_stored(self) -> None:
        """It becomes another branch: what the stores have of it stays there."""
        self.offloaded_key = self.saved_key = None
        self.offloaded_length = self.saved_length = 0
        count = len(self.tokens)
        self.runs, self.shares = cut_at(self.runs, count), cut_at(self.shares, count)
        self.passed_on = tuple((name, min(length, count)) for name, length in self.passed_on)

    def pass_on(self) -> None:
        """Another session goes on with it: what the stores have of this one stays there."""
        if self.session is not None:
            others = [each for each in self.passed_on if each[0] != self.session]
            self.passed_on = (*others, (self.session, len(self.tokens)))[-_MOST_PASSED_ON:]
        self.offloaded_key = self.saved_key = None
        self.offloaded_length = self.saved_length = 0

    @property
    def spelled(self) -> int:
        """How many of its tokens have a text that is known."""
        return len(self.offsets) - 1

    def spell(self, text: bytes, offsets: NDArray[np.int64], sources: NDArray[np.uint8]) -> None:
        """Set what is known of the text."""
        self.text, self.offsets, self.sources = text, offsets, sources

    def forget_text_after(self, count: int) -> None:
        """Shorten the text to ``count`` tokens, if it is longer."""
        if self.spelled > count:
            offsets = self.offsets[: count + 1]
            self.spell(self.text[: int(offsets[-1])], offsets, self.sources[:count])


@dataclass(slots=True, eq=False)
class ResolvedPrompt:
    """A prompt whose tokens are known.

    Attributes:
        tokens: int32 ``(n,)``, the prompt, at least one token.
        text: its key (``text_keys.py``), or None: it was given as tokens.
        offsets: int64 ``(n + 1,)`` offsets of the tokens in ``text``, or None.
        boundaries: positions (in tokens) at which the second and later messages begin, ascending.
        by_text: how many tokens come from a cached text instead of the tokenizer.
        sources: uint8 ``(n,)``, where each comes from (``text.Source``), or None.
        namespace: only what is cached in this namespace can be reused for it.
        has_media: there are pictures or sounds among the tokens (``positions``).
        positions: which positions the tokens take.
    """

    tokens: NDArray[np.int32]
    text: bytes | None = None
    offsets: NDArray[np.int64] | None = None
    boundaries: tuple[int, ...] = ()
    by_text: int = 0
    sources: NDArray[np.uint8] | None = None
    namespace: Namespace = ()
    has_media: bool = field(init=False, default=False)
    positions: Positions = field(init=False, default=TEXT)

    def __post_init__(self) -> None:
        self.has_media = any_media(self.tokens)
        if self.has_media:
            self.positions = Positions.of(self.tokens)

    def border(self, count: int) -> int:
        """The largest number of leading tokens, ``count`` at most, that it can be cut to."""
        return border(self.tokens, count) if self.has_media else count

    @property
    def behind_media(self) -> int:
        """After how many tokens the last picture or sound has ended; 0 if there is none."""
        return int(np.flatnonzero(self.tokens < 0)[-1]) + 1 if self.has_media else 0

    def message_at(self, position: int) -> int | None:
        """Index of the message that a token belongs to, or None if it is not known."""
        return bisect_right(self.boundaries, position) if self.boundaries else None

    def shared_with(self, other: ResolvedPrompt) -> int:
        """How many leading tokens can be evaluated once for both prompts."""
        if self.namespace != other.namespace:
            return 0
        return common_tokens(self.tokens, other.tokens)

    def extended(self, sampled: Sequence[int], text_keys: TextKeys) -> ResolvedPrompt:
        """This prompt with sampled tokens behind it, and their text as far as it is known."""
        tokens = np.concatenate([self.tokens, as_tokens(sampled)])
        text, offsets, sources = self.text, self.offsets, self.sources
        keys = [text_keys.of(token) for token in sampled]
        unclear = any(key.ambiguous for key in keys)
        if text is None or offsets is None or sources is None or unclear:
            return ResolvedPrompt(tokens, boundaries=self.boundaries, namespace=self.namespace)
        pieces = [key.text for key in keys]
        ends = offsets[-1] + np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
        origin = np.full(len(pieces), Source.SAMPLED, np.uint8)
        return replace(
            self,
            tokens=tokens,
            text=text + b"".join(pieces),
            offsets=np.concatenate([offsets, ends]),
            by_text=0,
            sources=np.concatenate([sources, origin]),
        )


class ReuseInfo(TypedDict, total=False):
    """Reuse of a reply's prompt; empty as long as the reply waits for a place.

    Attributes:
        path: how the common beginning was found: by its tokens, by its text, or there was none
            (``cold``).
        action: what was done with the sequence that had it: ``evaluate`` is a new one, ``continue``
            the same, ``fork`` a copy, ``load`` one from a store, ``restore`` one from a checkpoint.
        reused: prompt tokens that were in memory, or in a store.
        evaluated: the other prompt tokens.
        restored_bytes: of checkpoints and stored states that were loaded.
        reason: why no more was reused; empty if all but the last token was.
        refused: a store has more of the prompt, which cannot be used: it was written by another
            version (``version``), or the model or a setting is another one (``settings``). It
            stays there until it makes room. Empty otherwise.
        sequence: its number in the context.
        session: the ``session_id`` of the call.
    """

    path: Literal["cold", "tokens", "text"]
    action: Literal["evaluate", "continue", "fork", "load", "restore"]
    reused: int
    evaluated: int
    restored_bytes: int
    reason: str
    refused: Refusal
    sequence: int
    session: str | None


@dataclass(slots=True)
class CacheInfo:
    """What happened to the beginning of one prompt; see ``ReuseInfo``."""

    path: str = "cold"
    action: str = "evaluate"
    reused: int = 0
    evaluated: int = 0
    restored_bytes: int = 0
    reason: str = ""
    refused: Refusal = ""
    sequence: int = -1
    session: str | None = None

    def as_dict(self) -> ReuseInfo:
        """For ``llm.cache.info``."""
        return cast(ReuseInfo, {name: getattr(self, name) for name in self.__slots__})


@dataclass(slots=True, eq=False)
class Lease:
    """A request's right to one sequence.

    Attributes:
        sequence: the sequence; its tokens are a prefix of the prompt until the prompt is done.
        prompt: what is to be evaluated.
        cuts: after how many tokens a chunk is to end, ascending: for a checkpoint, if the memory
            needs some, or because somebody goes on from there.
        info: what was reused.
        drafted: tokens in memory that may have to be removed again: a draft that is not verified
            yet, of which ``sequence.tokens`` lists what was accepted so far.
        restart: for memory that cannot be cut: how many tokens there were before the draft, and the
            partial state there.
    """

    sequence: LiveSequence
    prompt: ResolvedPrompt
    cuts: list[int]
    info: CacheInfo
    drafted: int = 0
    restart: tuple[int, NDArray[np.uint8]] | None = None

    @property
    def held(self) -> int:
        """Tokens in memory."""
        return len(self.sequence.tokens)

    @property
    def position(self) -> int:
        """The position of the next token; for text, ``held``."""
        return self.sequence.end

    @property
    def remaining(self) -> int:
        """Prompt tokens that are still to be evaluated."""
        return max(0, len(self.prompt.tokens) - len(self.sequence.tokens))
