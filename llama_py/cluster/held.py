"""``HeldTexts``: which of the texts that a replica was sent are still in its memory.

A router takes what it sent to a replica for held. The engine evicts, though, and knows tokens, not
text. So for each request that was answered, its digests are noted here with its tokens; when the
replica is asked what it holds, the tokens are looked for in memory, and the digests are those of
as much of the text as of the tokens.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from llama_py.dialects.routing_hints import Hint

__all__ = ["HeldTexts"]

#: Says of each prompt, its tokens and whose they are, how many tokens are in memory.
Find = Callable[[Sequence[tuple[Sequence[int], Hashable]]], Sequence[int]]


@dataclass(frozen=True, slots=True)
class _Text:
    hint: Hint
    tokens: Sequence[int]
    whose: Hashable


class HeldTexts:
    """See the module. Any thread may use it.

    Args:
        most: texts that are remembered; what continues one takes its place.
        most_told: digests of each kind that ``look`` returns.
    """

    def __init__(self, most: int = 512, most_told: int = 8192) -> None:
        self._most, self._most_told = most, most_told
        self._lock = threading.Lock()
        #: By the digest of their last block.
        self._texts: OrderedDict[int, _Text] = OrderedDict()
        self._lost: OrderedDict[int, None] = OrderedDict()
        self._bytes = self._tokens = 0

    @property
    def bytes_per_token(self) -> float:
        """Of the texts that came so far."""
        return self._bytes / self._tokens if self._tokens else 4.0

    def note(self, hint: Hint, tokens: Sequence[int], whose: Hashable) -> None:
        """A request was answered: its prompt is in memory now.

        Args:
            whose: which model and owner the tokens belong to.
        """
        if not hint.blocks or not tokens:
            return
        with self._lock:
            self._bytes += hint.size
            self._tokens += len(tokens)
            for digest in hint.blocks[:-1]:  # this one holds whatever those did
                self._texts.pop(digest, None)
            self._texts[hint.blocks[-1]] = _Text(hint, tokens, whose)
            self._texts.move_to_end(hint.blocks[-1])
            for digest in hint.blocks:
                self._lost.pop(digest, None)
            while len(self._texts) > self._most:
                self._forget(*self._texts.popitem(last=False)[1].hint.blocks)

    def look(self, find: Find) -> tuple[list[int], list[int]]:
        """The digests that are held, and those that were and are no more."""
        with self._lock:
            texts = [*self._texts.values()]
        held: dict[int, None] = {}
        lost: list[int] = []
        found = find([(text.tokens, text.whose) for text in texts])
        for text, count in zip(texts, found, strict=True):
            # Blocks that lie within as much of the text as of the tokens.
            most = count / len(text.tokens) * text.hint.size + 1
            there = sum(end <= most for end in text.hint.ends)
            held.update(dict.fromkeys(text.hint.blocks[:there]))
            lost += text.hint.blocks[there:]
        with self._lock:
            self._forget(*(digest for digest in lost if digest not in held))
            for digest in held:
                self._lost.pop(digest, None)
            return [*held][-self._most_told :], [*self._lost]

    def _forget(self, *digests: int) -> None:
        self._lost.update(dict.fromkeys(digests))
        while len(self._lost) > self._most_told:
            self._lost.popitem(last=False)
