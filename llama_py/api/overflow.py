"""Policies for conversations that do not fit. Without one, such a call is an error.

A policy is set for a ``Llama``, a session or a call (``overflow=TrimMessages()``). It drops whole
messages, never parts of one, and reports which.

Dropping messages changes the beginning of the prompt, and everything after it must be evaluated
again. So a policy may drop more than it must, in *bites*; the turns until the next bite cost only
their new tokens. Callers pass the whole history with every call, and nothing is remembered between
calls: the end of a bite depends only on the dropped messages, counted from the oldest, so that a
longer history is cut at the same place again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Protocol

from llama_py.errors import ContextOverflowError, ParameterTypeError
from llama_py.params import check_number
from llama_py.tenants import Remembered

__all__ = ["MessageSizes", "OverflowPolicy", "OverflowReport", "TrimMessages", "fit"]

Message = Mapping[str, Any]
#: Indexes of messages that are dropped together.
Unit = Sequence[int]

#: Tokens that a template writes around a message, roughly.
_AROUND = 5
#: Texts of a tenant whose sizes are remembered.
_MOST_KNOWN = 4096


@dataclass(frozen=True, slots=True)
class OverflowReport:
    """The messages that a policy left out, and the room that is left.

    Attributes:
        dropped: the messages, oldest first.
        prompt_tokens: tokens of what is left.
        limit: tokens that it had to fit into.
        spare: tokens by which the conversation may grow until something is dropped again.
        places: the indexes that ``dropped`` had in the conversation.
    """

    dropped: tuple[Message, ...]
    prompt_tokens: int
    limit: int
    spare: int = 0
    places: tuple[int, ...] = ()


class OverflowPolicy(Protocol):
    """Chooses what to leave out of a conversation.

    A policy may also have an attribute ``bite``, see ``TrimMessages``; without one, no more is
    dropped than has to be.
    """

    @property
    def reserve(self) -> int:
        """Tokens to keep free for the reply."""

    def shorten(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        """The conversation with a little less in it; None if nothing more can go."""


@dataclass(frozen=True, slots=True)
class TrimMessages:
    """Drops the oldest turns: a user message and what follows it, up to the next user message.

    System messages and the last user message with everything after it always stay, and so do the
    calls and results of tools with the turn that they belong to.

    Turns are dropped in bites: when the conversation is full, about its oldest half goes, and the
    next turns find the rest of it in memory. So a full conversation evaluates about two tokens for
    each new one. Dropping exactly as much as must go (``bite=0``) keeps the most history, and
    evaluates nearly all of it again with every turn.

    Attributes:
        reserve: tokens to keep free for the reply.
        bite: the share of the room for the conversation that goes at once, from 0 to 1. The room
            is what the system message, the tools and ``reserve`` leave of the context.
    """

    reserve: int = 256
    bite: float = 0.5

    def __post_init__(self) -> None:
        check_number("reserve", self.reserve, 0, integer=True)
        check_number("bite", self.bite, 0, 1)

    def shorten(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        """The conversation without its oldest turn; None if only the last turn is left."""
        units = self.units(messages)
        return _without(messages, units[:1]) if units else None

    def units(self, messages: Sequence[Message]) -> list[Unit]:
        """The turns that may go, oldest first: indexes of their messages."""
        roles = [message.get("role") for message in messages]
        rest = [index for index, role in enumerate(roles) if role not in ("system", "developer")]
        users = [place for place, index in enumerate(rest) if roles[index] == "user"]
        # Whatever stands before the first user message (a greeting, say) goes first.
        starts = [0, *users] if users and users[0] else users
        return [rest[start:end] for start, end in pairwise(starts)]


class MessageSizes:
    """About how many tokens a message takes, wherever it stands.

    Templates write more around a message, and may leave something of it out; that depends on what
    follows, which an estimate for finding the same places again must not.

    Args:
        count: tokens of a text.
    """

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count
        self._known: Remembered[tuple[int, int], int] = Remembered(_MOST_KNOWN)

    def of(self, message: Message) -> int:
        """Tokens of one message, without its pictures and sounds."""
        content = message.get("content") if isinstance(message, Mapping) else None
        parts = [content] if isinstance(content, str) else content
        total = _AROUND
        for part in parts if isinstance(parts, (list, tuple)) else ():
            text = part.get("text") if isinstance(part, Mapping) else part
            total += self._of_text(text) if isinstance(text, str) else 0
        calls = message.get("tool_calls") if isinstance(message, Mapping) else None
        return total + (self.of_json(calls) if calls else 0)

    def of_json(self, value: Any) -> int:
        """Tokens of a value as JSON: tools, or calls of tools."""
        return self._of_text(json.dumps(value, default=str))

    def _of_text(self, text: str) -> int:
        key = hash(text), len(text)
        size = self._known.get(key)
        if size is None:
            size = self._count(text)
            self._known.put(key, size)
        return size


def fit(
    count: Callable[[Sequence[Message]], int],
    limit: int,
    policy: OverflowPolicy,
    messages: Sequence[Message],
    *,
    size: Callable[[Message], int] | None = None,
    fixed: int = 0,
) -> tuple[Sequence[Message], OverflowReport | None]:
    """Shorten a conversation until it fits.

    Args:
        count: tokens of a conversation's prompt. It is asked a few times, for conversations that
            nearly fit.
        limit: tokens that the context holds.
        size: about how many tokens a message takes; it has to be the same in every conversation.
        fixed: about how many tokens the prompt has beside its messages.

    Raises:
        ContextOverflowError: it does not fit even with everything dropped that may be.
        ParameterTypeError: this is no policy.
    """
    lacks = not hasattr(policy, "shorten") or not hasattr(policy, "reserve")
    if lacks or isinstance(policy, type):
        raise ParameterTypeError(
            f"overflow must be a policy such as TrimMessages(), or None, not {policy!r}"
        )
    wanted = max(1, limit - policy.reserve)
    levels = _Levels(messages, _units(policy, messages), size or (lambda each: count([each])))
    room = wanted - fixed - levels.opening
    allowed = levels.ends(getattr(policy, "bite", 0.0) * max(0, room))
    known: dict[int, int] = {}

    def tokens_at(place: int) -> int:
        if place not in known:
            known[place] = count(levels.kept(allowed[place]))
        return known[place]

    most = wanted - fixed
    guess = next((i for i, n in enumerate(allowed) if levels.left(n) <= most), len(allowed) - 1)
    place = _first(lambda i: tokens_at(i) <= wanted, len(allowed), guess)
    place = min(place, len(allowed) - 1)
    tokens = tokens_at(place)
    if tokens > limit:  # between both, the reply gets less room than was asked for
        raise ContextOverflowError(tokens, limit, limit)
    places = levels.places(allowed[place])
    if not places:
        return messages, None
    dropped = tuple(messages[index] for index in places)
    spare = max(0, wanted - tokens)
    return levels.kept(allowed[place]), OverflowReport(dropped, tokens, limit, spare, places)


class _Levels:
    """A conversation without its first 0, 1, 2, ... units."""

    def __init__(
        self, messages: Sequence[Message], units: Sequence[Unit], size: Callable[[Message], int]
    ) -> None:
        self._messages = messages
        self._units = units
        sizes = [size(message) for message in messages]
        self._gone = [0, *accumulate(sum(sizes[index] for index in unit) for unit in units)]
        self._total = sum(sizes)
        first = units[0][0] if units and len(units[0]) else len(messages)
        #: Tokens of what comes before everything that may go: the system message.
        self.opening = sum(sizes[:first])

    def left(self, level: int) -> int:
        """About how many tokens are left at a level."""
        return self._total - self._gone[level]

    def ends(self, bite: float) -> list[int]:
        """The levels at which a bite may end: those that first reach a multiple of ``bite``.

        And those behind the last of them, in case that this is not enough.
        """
        gone = self._gone
        if bite < 1:
            return [*range(len(gone))]
        marks = [
            level for level in range(1, len(gone)) if gone[level] // bite > gone[level - 1] // bite
        ]
        last = marks[-1] if marks else 0
        return [0, *marks, *range(last + 1, len(gone))]

    def kept(self, level: int) -> Sequence[Message]:
        return _without(self._messages, self._units[:level]) if level else self._messages

    def places(self, level: int) -> tuple[int, ...]:
        """Indexes of the messages that are dropped at a level."""
        return tuple(sorted(index for unit in self._units[:level] for index in unit))


def _without(messages: Sequence[Message], units: Sequence[Unit]) -> list[Message]:
    # By place: a caller may have put one and the same message into several turns.
    gone = {index for unit in units for index in unit}
    return [message for index, message in enumerate(messages) if index not in gone]


def _units(policy: OverflowPolicy, messages: Sequence[Message]) -> Sequence[Unit]:
    """What a policy would drop, step by step."""
    if isinstance(policy, TrimMessages) and type(policy).shorten is TrimMessages.shorten:
        return policy.units(messages)
    units: list[Unit] = []
    places = [*range(len(messages))]
    kept: Sequence[Message] = messages
    while (shorter := policy.shorten(kept)) is not None and len(shorter) < len(kept):
        left = [*shorter]
        gone: list[int] = []
        for index in range(len(kept) - 1, -1, -1):  # the oldest go first, so from the end
            if left and left[-1] is kept[index]:
                left.pop()
            else:
                gone.append(index)
        units.append([places[index] for index in reversed(gone)])
        places = [place for index, place in enumerate(places) if index not in {*gone}]
        kept = shorter
    return units


def _first(fits: Callable[[int], bool], count: int, guess: int) -> int:
    """The first of ``count`` places that fits, where all behind one that fits do; else ``count``.

    It looks around ``guess`` first, and further away in growing steps.
    """
    below, above, step = -1, count, 1  # the last that does not fit, and the first that does
    place = guess
    while above - below > 1:
        if fits(place):
            above, place = place, place - step
        else:
            below, place = place, place + step
        step *= 2
        if below >= 0 and above < count:
            place = (below + above) // 2
        place = min(max(place, below + 1), above - 1)
    return above
