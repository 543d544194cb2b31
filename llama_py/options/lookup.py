"""Where the last tokens of a text occurred before: what ``PromptLookup`` drafts from. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Tokens: TypeAlias = NDArray[np.intc]

__all__ = ["LONGEST_MATCH", "followed", "renamed"]

#: Tokens before a match that are compared to choose between several matches.
LONGEST_MATCH = 32
#: An edit: the most tokens since it began, and the most that they replace.
_TAIL, _GONE = 6, 6
#: So many of the last tokens are compared with what they repeat, to learn what is called otherwise.
_COMPARED = 512
#: Tokens before an edit that must be those of what is edited, and by how many times ``ngram``.
_BEFORE, _TIMES = 6, 2


def followed(tokens: Tokens, ngram: int) -> int | None:
    """The place in ``tokens`` from which on it may repeat itself, or None.

    It is behind an earlier occurrence of the last ``ngram`` tokens. If there is none, the text may
    repeat another one with an edit: a longer match ends shortly before the end, and what was said
    last comes in the other text shortly behind that match.

    Args:
        tokens: int32 ``(n,)``.
    """
    place = _last_match(tokens, ngram)
    if place is not None:
        return place + 1
    if ngram == 1 or len(tokens) <= _TAIL:
        return None
    before = max(_BEFORE, _TIMES * ngram)
    for back in range(2, _TAIL + 1):  # what was changed, and at least one token behind it
        place = _last_match(tokens[:-back], before)
        if place is None:
            continue
        end = min(place + 1 + _GONE, len(tokens) - 1)  # before the last token: it repeats another
        tail, source = tokens[-back:].tolist(), tokens[place + 1 : end].tolist()
        found = [count for count, token in enumerate(source, 1) if token == tail[-1]]
        if not found:
            return None
        best: int = max(found, key=lambda n: (_common_end(source[:n], tail), -abs(n - back)))
        return place + 1 + best
    return None


def renamed(tokens: Tokens, start: int, count: int) -> list[int]:
    """``count`` tokens from ``start`` on, as they may be repeated: renamed where others were.

    A token that was repeated as another one, between two that were repeated as they are, is taken
    to be called otherwise from then on. What it became where the same token came before it counts
    first, and what it became last counts then.

    Args:
        tokens: int32 ``(n,)``.
        start: as ``followed`` gives it; at most ``n - count``.
    """
    found: list[int] = tokens[start : start + count].tolist()
    known = min(start, len(tokens) - start, _COMPARED)
    source, said = tokens[start - known : start], tokens[len(tokens) - known :]
    same = source == said
    alone = ~same[1:-1] & same[:-2] & same[2:]
    if not alone.any():
        return found
    names = {*source[1:-1][alone].tolist()}
    before = [int(tokens[start - 1]), *found]
    for index, token in enumerate(found):
        if token in names:
            places = (source[1:] == token).nonzero()[0] + 1
            alike = places[source[places - 1] == before[index]]
            found[index] = int(said[(alike if len(alike) else places)[-1]])
    return found


def _common_end(one: list[int], other: list[int]) -> int:
    """How many tokens at their ends are the same."""
    count = 0
    while count < min(len(one), len(other)) and one[-1 - count] == other[-1 - count]:
        count += 1
    return count


def _last_match(tokens: Tokens, size: int) -> int | None:
    """Where the last tokens occurred before: of the longest matches, the end of the latest."""
    last = len(tokens) - 1
    if last < size:
        return None
    places = (tokens[size - 1 : last] == tokens[last]).nonzero()[0] + (size - 1)
    for back in range(1, LONGEST_MATCH):
        if not len(places) or (back >= size and len(places) == 1):
            break
        reachable = places[places >= back]
        longer = reachable[tokens[reachable - back] == tokens[last - back]]
        if back >= size and not len(longer):
            break
        places = longer
    return int(places[-1]) if len(places) else None
