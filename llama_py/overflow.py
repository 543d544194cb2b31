"""What to do when a conversation does not fit: by default nothing, which is an error.

A policy is asked for it, per ``Llama`` or per call (``overflow=TrimMessages()``). It drops whole
messages, never parts of one, and says which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from llama_py.errors import ContextOverflowError

__all__ = ["OverflowPolicy", "OverflowReport", "TrimMessages", "fit"]

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OverflowReport:
    """What was left out.

    Attributes:
        dropped: the messages, oldest first.
        prompt_tokens: tokens of what is left.
        limit: tokens that it had to fit into.
    """

    dropped: tuple[Message, ...]
    prompt_tokens: int
    limit: int


class OverflowPolicy(Protocol):
    """Chooses what to leave out of a conversation."""

    @property
    def reserve(self) -> int:
        """Tokens to keep free for the reply."""

    def shorten(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        """The conversation with a little less in it; None if nothing more can go."""


@dataclass(frozen=True, slots=True)
class TrimMessages:
    """Drops the oldest turn: a user message and what follows it, up to the next user message.

    System messages and the last user message with everything after it always stay.

    Attributes:
        reserve: tokens to keep free for the reply.
    """

    reserve: int = 256

    def shorten(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        """The conversation without its oldest turn; None if only the last turn is left."""
        roles = [message.get("role") for message in messages]
        rest = [index for index, role in enumerate(roles) if role not in ("system", "developer")]
        users = [place for place, index in enumerate(rest) if roles[index] == "user"]
        if not users:
            return None
        # Whatever stands before the first user message (a greeting, say) goes first.
        cut = users[0] if users[0] > 0 else (users[1] if len(users) > 1 else 0)
        if cut == 0:
            return None
        # By place: a caller may have put one and the same message into several turns.
        dropped = {*rest[:cut]}
        return [message for index, message in enumerate(messages) if index not in dropped]


def fit(
    count: Callable[[Sequence[Message]], int],
    limit: int,
    policy: OverflowPolicy,
    messages: Sequence[Message],
) -> tuple[Sequence[Message], OverflowReport | None]:
    """Shorten a conversation until it fits.

    Args:
        count: tokens of a conversation's prompt.
        limit: tokens that the context holds.

    Raises:
        ContextOverflowError: it does not fit even with everything dropped that may be.
    """
    wanted = max(1, limit - policy.reserve)
    kept = messages
    tokens = count(kept)
    while tokens > wanted:
        shorter = policy.shorten(kept)
        if shorter is None or len(shorter) >= len(kept):
            if tokens <= limit:
                break  # the reply gets less room than was asked for
            raise ContextOverflowError(tokens, limit, limit)
        kept, tokens = shorter, count(shorter)
    dropped = _missing(messages, kept)
    return kept, OverflowReport(dropped, tokens, limit) if dropped else None


def _missing(messages: Sequence[Message], kept: Sequence[Message]) -> tuple[Message, ...]:
    """What of ``messages`` is not in ``kept``. The oldest go first, so this begins at the end."""
    left, missing = [*kept], []
    for message in reversed(messages):
        if left and left[-1] is message:
            left.pop()
        else:
            missing.append(message)
    return tuple(reversed(missing))
