"""The parts of the prefix tree: runs of tokens with their text, and nodes.

``prefix.py`` puts them together.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from llama_py.errors import ParameterError

__all__ = [
    "H",
    "Node",
    "OffsetInput",
    "Root",
    "Span",
    "TokenInput",
    "common_bytes",
    "common_tokens",
]

H = TypeVar("H", bound=Hashable, default=Any)
Tokens = NDArray[np.int32]
Sources = NDArray[np.uint8]
TokenInput = Sequence[int] | NDArray[np.integer[Any]]
OffsetInput = Sequence[int] | NDArray[np.integer[Any]] | None


def common_tokens(a: Tokens, b: Tokens) -> int:
    """How many leading elements two 1-D arrays share."""
    n = min(len(a), len(b))
    if n == 0:
        return 0
    differs = a[:n] != b[:n]
    first = int(differs.argmax())
    return first if differs[first] else n


def common_bytes(a: bytes, b: bytes, start: int = 0) -> int:
    """How many leading bytes of ``a`` agree with ``b[start:]``."""
    if b.startswith(a, start):
        return len(a)
    n = min(len(a), len(b) - start)
    if n <= 0:
        return 0
    differs = np.frombuffer(a, np.uint8, n) != np.frombuffer(b, np.uint8, n, start)
    first = int(differs.argmax())
    return first if differs[first] else n


class Span:
    """A run of tokens and, if it is known, their text; offsets count from the run's start.

    ``sources`` says of each token with text where it comes from (``text.Source``): 0 is the
    tokenizer, any other odd number a model.
    """

    __slots__ = ("offsets", "sources", "text", "tokens")

    def __init__(
        self,
        tokens: Tokens,
        offsets: Tokens | None = None,
        text: bytes | None = None,
        sources: Sources | None = None,
    ) -> None:
        self.tokens = tokens
        self.offsets = offsets
        self.text = text
        self.sources = np.zeros(len(tokens), np.uint8) if sources is None else sources

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def key(self) -> bytes | None:
        """The text of the first token."""
        if self.offsets is None or self.text is None:
            return None
        return self.text[: self.offsets[1]]

    def piece(self, start: int, stop: int) -> Span:
        """A copy of a part, so that a cut edge does not keep the whole one in memory."""
        tokens = self.tokens[start:stop].copy()
        if self.offsets is None or self.text is None:
            return Span(tokens)
        offsets = self.offsets[start : stop + 1]
        text = self.text[offsets[0] : offsets[-1]]
        return Span(tokens, offsets - offsets[0], text, self.sources[start:stop].copy())

    def joined(self, tail: Span) -> Span:
        """This run and the one that follows it. Both know their text, or neither does."""
        tokens = np.concatenate([self.tokens, tail.tokens])
        if self.offsets is None or self.text is None or tail.offsets is None or tail.text is None:
            return Span(tokens)
        offsets = np.concatenate([self.offsets, tail.offsets[1:] + self.offsets[-1]])
        sources = np.concatenate([self.sources, tail.sources])
        return Span(tokens, offsets, self.text + tail.text, sources)

    def learn_sources(self, other: Span, start: int) -> None:
        """The same tokens with the same text came again, as a part of ``other``.

        What the tokenizer gave in one place is the tokenizer's, and a reply that ended in one of
        them may end here.
        """
        if self.text is not None and other.text is not None:
            again = other.sources[start : start + len(self)]
            self.sources = np.where((self.sources == 0) | (again == 0), 0, self.sources | again)


def make_span(
    tokens: TokenInput,
    offsets: OffsetInput,
    text: bytes | None,
    sources: NDArray[np.uint8] | None = None,
) -> Span:
    """Copy and check what a caller passed."""
    ids: Tokens = np.array(tokens, np.int32).reshape(-1)
    if offsets is None or text is None:
        return Span(ids)
    at = np.asarray(offsets, np.int64)
    if at.shape != (len(ids) + 1,):
        raise ParameterError(f"{len(ids)} tokens need {len(ids) + 1} offsets, not {at.size}")
    starts = at - at[0]
    if starts[-1] != len(text) or bool((np.diff(starts) < 0).any()) or len(text) >= 2**31:
        raise ParameterError(
            f"the offsets {at[0]}..{at[-1]} do not fit a text of {len(text)} bytes"
        )
    if sources is not None and sources.shape != ids.shape:
        raise ParameterError(f"{len(ids)} tokens need {len(ids)} sources, not {sources.size}")
    origin = None if sources is None else np.array(sources, np.uint8)
    return Span(ids, starts.astype(np.int32), bytes(text), origin)


class TextFan(Generic[H]):
    """A node's children by the text of their first token.

    A system prompt can have thousands of continuations. Trying each would cost as much as there
    are, so whole tokens are looked up in a dict, and the longest part of a token in a sorted list.
    """

    __slots__ = ("by_text", "keys", "lengths", "longest")

    def __init__(self) -> None:
        self.by_text: dict[bytes, list[Node[H]]] = {}
        self.keys: list[bytes] = []
        #: How many keys have which length: white space that belongs to a token may be long.
        self.lengths: Counter[int] = Counter()
        self.longest = 0

    def add(self, key: bytes, child: Node[H]) -> None:
        if key not in self.by_text:
            insort(self.keys, key)
            self.by_text[key] = []
            self.lengths[len(key)] += 1
            self.longest = max(self.longest, len(key))
        self.by_text[key].append(child)

    def remove(self, key: bytes, child: Node[H]) -> None:
        same = self.by_text[key]
        same.remove(child)
        if not same:
            del self.by_text[key]
            del self.keys[bisect_left(self.keys, key)]
            self.lengths[len(key)] -= 1
            if not self.lengths[len(key)]:
                del self.lengths[len(key)]

    def whole(self, text: bytes, start: int) -> Iterator[Node[H]]:
        """Children whose first token lies completely in ``text[start:]``."""
        left = len(text) - start
        for length in self.lengths:
            if length <= left:
                yield from self.by_text.get(text[start : start + length], ())

    def partial(self, text: bytes, start: int) -> int:
        """Most bytes of ``text[start:]`` that agree with the first token of any child."""
        rest = text[start : start + self.longest]
        near = bisect_left(self.keys, rest)
        return max(
            (common_bytes(k, rest) for k in self.keys[max(0, near - 1) : near + 1]), default=0
        )


class Node(Generic[H]):
    """The end of an edge: ``span`` leads here from ``parent``; ``depth`` counts tokens to here.

    A node keeps its children alive and not its parent: a tree that nobody has any more is gone at
    once, with its holders.
    """

    __slots__ = ("__weakref__", "_parent", "children", "depth", "fan", "holders", "span")

    def __init__(self, parent: Node[H] | None, span: Span) -> None:
        self.parent = parent
        self.span = span
        self.depth: int = len(span) + (parent.depth if parent else 0)
        self.children: dict[int, Node[H]] = {}
        self.fan: TextFan[H] | None = None
        self.holders: dict[H, None] = {}

    @property
    def parent(self) -> Node[H] | None:
        """The node that this one's edge begins at, None for the root."""
        return self._parent() if self._parent is not None else None

    @parent.setter
    def parent(self, node: Node[H] | None) -> None:
        self._parent: weakref.ref[Node[H]] | None = None if node is None else weakref.ref(node)

    @property
    def start(self) -> int:
        """Tokens above this node's edge."""
        return self.depth - len(self.span)

    def attach(self, child: Node[H]) -> None:
        child.parent = self
        self.children[int(child.span.tokens[0])] = child
        key = child.span.key
        if key is not None:
            self.fan = self.fan or TextFan()
            self.fan.add(key, child)

    def detach(self, child: Node[H]) -> None:
        del self.children[int(child.span.tokens[0])]
        key = child.span.key
        if key is not None and self.fan is not None:
            self.fan.remove(key, child)
            self.fan = self.fan if self.fan.keys else None

    def upwards(self) -> Iterator[Node[H]]:
        """This node and those above it, without the root."""
        node: Node[H] = self
        while (parent := node.parent) is not None:
            yield node
            node = parent

    def below(self, skip: Node[H] | None = None) -> Iterator[H]:
        """The holders under this node (not its own), leaving out the branch ``skip``."""
        stack = [child for child in self.children.values() if child is not skip]
        while stack:
            node = stack.pop()
            yield from node.holders
            stack.extend(node.children.values())


class Root(Node[H]):
    """The beginning of all paths of one namespace."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: Hashable) -> None:
        super().__init__(None, Span(np.empty(0, np.int32), None, b""))
        self.namespace = namespace


def above(node: Node[H]) -> Node[H]:
    """The parent of a node that is not the root."""
    parent = node.parent
    assert parent is not None
    return parent
