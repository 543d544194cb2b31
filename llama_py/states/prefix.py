"""``PrefixIndex``: what is cached, found by its tokens or by its text.

A radix tree over token ids. Every *holder* (a live sequence, a checkpoint, a stored state: any
hashable object) sits at the end of one token path; paths that begin alike share their edges, so
tokens and text are kept once per shared edge. An edge is a run of tokens compared in bulk (numpy
for tokens, ``bytes.startswith`` for text), which is why a lookup costs what the prompt's length
costs, and not the number of holders.

Beside the tokens, an edge knows the bytes that they stand for (as keys: ``text_keys.py``).
``match_text`` walks those: a prompt that begins with cached text gets the tokens that are really in
memory, also where tokenizing that text again would give others. The same tokens may come with
different texts (a leading space, a begin-of-sequence marker that one caller spells out); then the
first text stays. Tokens without text, such as those of a prompt that was given as tokens, are found
by their tokens only.

Every entry belongs to a *namespace*, which has a tree of its own: equal tokens and texts of two
namespaces have nothing in common.

Safe to call from any thread: each method holds a lock while it runs, and nothing that takes long
runs in it. What a method returns does not change afterwards.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Generic, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from llama_py.errors import ParameterError

__all__ = [
    "H",
    "Node",
    "OffsetInput",
    "PrefixIndex",
    "Root",
    "Span",
    "TextPath",
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


_NO_TOKENS: Tokens = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class TextPath:
    """Cached tokens that a prompt begins with.

    Attributes:
        tokens: int32 ``(n,)``, those that lie completely inside the match.
        offsets: int64 ``(n + 1,)``, the byte of the prompt where each token starts, and the end of
            the last one; ``offsets[0] == 0``.
        matched: bytes of the prompt that agree with this path, ``>= offsets[-1]``: the rest lies
            inside the token after the last one, or in a reply that the prompt does not contain
            to its end.
        sources: uint8 ``(n,)``, where each token comes from (``text.Source``).
    """

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    matched: int
    sources: NDArray[np.uint8]


class _PathPlace(NamedTuple):
    """``tokens`` of a path, which cover ``covered`` bytes."""

    covered: int
    tokens: int


_START = _PathPlace(0, 0)


@dataclass(slots=True)
class _TextHit(Generic[H]):
    """The best place that ``match_text`` has seen: ``place`` on the way to ``node``."""

    node: Node[H]
    place: _PathPlace = _START
    matched: int = 0

    def offer(self, node: Node[H], place: _PathPlace, matched: int) -> None:
        """Prefer more whole tokens' bytes, then more bytes, then fewer tokens for them."""
        rank = (place.covered, matched, -place.tokens)
        if rank > (self.place.covered, self.matched, -self.place.tokens):
            self.node, self.place, self.matched = node, place, matched


class PrefixIndex(Generic[H]):
    """A radix tree of token paths with holders at their ends.

    ``offsets``, ``text`` and ``sources`` of any method describe the ``tokens`` next to them:
    ``(n + 1,)`` byte offsets from any base, the bytes from ``offsets[0]`` to ``offsets[-1]``, and
    ``(n,)`` values of ``text.Source`` (None: all are the tokenizer's). Offsets and text are None
    where the text of these tokens is not known: such tokens are found by ``match_tokens`` only.
    """

    def __init__(self) -> None:
        # A signal's handler may fork, which waits for this, while its own thread is in here.
        self._lock = threading.RLock()
        self._roots: dict[Hashable, Root[H]] = {}
        self._ends: dict[H, Node[H]] = {}

    def _forked(self) -> None:
        """For ``forks.hold``: a fork waits until no thread is in here, so nothing is half done."""

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, holder: object) -> bool:
        return holder in self._ends

    def __iter__(self) -> Iterator[H]:
        return iter(list(self._ends))

    # --- changing -----------------------------------------------------------------------------

    def insert(
        self,
        holder: H,
        tokens: TokenInput,
        offsets: OffsetInput = None,
        text: bytes | None = None,
        sources: NDArray[np.uint8] | None = None,
        *,
        namespace: Hashable = (),
    ) -> None:
        """Put ``holder`` at the end of ``tokens``; one that is elsewhere moves."""
        span = make_span(tokens, offsets, text, sources)
        with self._lock:
            root = self._roots.get(namespace)
            if root is None:
                root = self._roots[namespace] = Root(namespace)
            self._place(holder, self._grow(root, span))

    def extend(
        self,
        holder: H,
        tokens: TokenInput,
        offsets: OffsetInput = None,
        text: bytes | None = None,
        sources: NDArray[np.uint8] | None = None,
    ) -> None:
        """Move ``holder`` further down: ``tokens`` follow those that it has.

        Raises:
            KeyError: there is no such holder.
        """
        span = make_span(tokens, offsets, text, sources)
        with self._lock:
            self._place(holder, self._grow(self._ends[holder], span))

    def truncate(self, holder: H, length: int) -> None:
        """Move ``holder`` up to its first ``length`` tokens.

        Raises:
            KeyError: there is no such holder.
            ParameterError: it has fewer tokens.
        """
        with self._lock:
            node = self._ends[holder]
            if not 0 <= length <= node.depth:
                raise ParameterError(f"cannot cut a path of {node.depth} tokens to {length}")
            while node.parent is not None and node.start >= length:
                node = node.parent
            self._place(holder, self._split(node, length - node.start) if length else node)

    def rename(self, old: H, new: H) -> None:
        """Put ``new`` where ``old`` was (an offloaded sequence becomes a stored state)."""
        with self._lock:
            self._place(new, self._ends[old])
            if new != old:
                self._remove(old)

    def remove(self, holder: H) -> None:
        """Forget ``holder``, and the path that only it used. One that is not here is no error."""
        with self._lock:
            if holder in self._ends:
                self._remove(holder)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._roots = {}
            self._ends = {}

    # --- asking -------------------------------------------------------------------------------

    def length_of(self, holder: H) -> int:
        """Tokens on the path of ``holder``."""
        return self._ends[holder].depth

    def tokens_of(self, holder: H) -> NDArray[np.int32]:
        """The path of ``holder``: a new int32 array ``(length_of(holder),)``."""
        with self._lock:
            spans = [node.span.tokens for node in self._ends[holder].upwards()]
        return np.concatenate([_NO_TOKENS, *reversed(spans)])

    def match_tokens(
        self, tokens: TokenInput, *, side: int | None = None, namespace: Hashable = ()
    ) -> list[tuple[H, int]]:
        """Holders that begin like ``tokens``, with the number of tokens shared, deepest first.

        Of equally deep ones, those that end there come first. ``side`` limits how many are listed
        of those that leave the path at one place: they are alike, and a shared system prompt can
        have thousands. Holders that end on the path are always listed.
        """
        ids = np.asarray(tokens, np.int32)
        found: list[tuple[H, int]] = []
        with self._lock:
            root = self._roots.get(namespace)
            if root is None:
                return found
            node, shared = _descend(root, ids)
            skip: Node[H] | None = None
            for upper in node.upwards():
                depth = min(upper.depth, shared)
                here: Iterator[H] = iter(upper.holders)
                if depth == upper.depth:
                    found.extend((holder, depth) for holder in here)
                    here = iter(())
                aside = islice(chain(here, upper.below(skip)), side)
                found.extend((holder, depth) for holder in aside)
                skip = upper
        return found

    def match_depth(self, tokens: TokenInput, *, namespace: Hashable = ()) -> int:
        """The most leading tokens that any holder shares with ``tokens``."""
        ids = np.asarray(tokens, np.int32)
        with self._lock:
            root = self._roots.get(namespace)
            return _descend(root, ids)[1] if root else 0

    def match_text(self, text: bytes, *, namespace: Hashable = ()) -> TextPath | None:
        """The path whose text is the longest prefix of ``text``; None if no token lies inside it.

        All paths are tried that read like ``text``, whatever their tokens. The longest is the one
        whose complete tokens cover most bytes; of those that cover the same, the one that agrees
        furthest into its next token, then the one with fewer tokens. Tokens without any text are
        part of the path only where a token with text follows. A path does not end in the middle
        of a reply.
        """
        with self._lock:
            root = self._roots.get(namespace)
            return _longest_text(root, text) if root else None

    # --- the tree -----------------------------------------------------------------------------

    def _remove(self, holder: H) -> None:
        node = self._ends.pop(holder)
        del node.holders[holder]
        self._prune(node)

    def _grow(self, node: Node[H], span: Span) -> Node[H]:
        """The node at the end of ``span`` below ``node``, made where it is missing."""
        at = 0
        while at < len(span):
            child = node.children.get(int(span.tokens[at]))
            if child is None:
                leaf = Node(node, span.piece(at, len(span)))
                node.attach(leaf)
                return leaf
            shared = common_tokens(child.span.tokens, span.tokens[at:])
            node = self._split(child, shared)
            node.span.learn_sources(span, at)
            if node.span.text is None and span.text is not None:
                parent = above(node)
                parent.detach(node)
                node.span = span.piece(at, at + len(node.span))
                parent.attach(node)
            self._join(above(node))
            at += shared
        return node

    def _split(self, node: Node[H], count: int) -> Node[H]:
        """The node that ends ``count`` tokens into the edge to ``node``."""
        if count == len(node.span):
            return node
        parent, span = above(node), node.span
        parent.detach(node)
        upper = Node(parent, span.piece(0, count))
        node.span = span.piece(count, len(span))
        parent.attach(upper)
        upper.attach(node)
        return upper

    def _place(self, holder: H, node: Node[H]) -> None:
        old = self._ends.get(holder)
        self._ends[holder] = node
        node.holders[holder] = None
        if old is not None and old is not node:
            del old.holders[holder]
            self._prune(old)

    def _prune(self, node: Node[H]) -> None:
        """Drop ``node`` and what is above it as far as nobody needs it."""
        while node.parent is not None and not node.holders and not node.children:
            parent = node.parent
            parent.detach(node)
            node = parent
        if isinstance(node, Root):
            if not node.holders and not node.children:
                self._roots.pop(node.namespace, None)
        else:
            self._join(node)

    def _join(self, node: Node[H]) -> None:
        """Make one edge of the two around ``node``, if it has one child and no holder."""
        if node.parent is None or node.holders or len(node.children) != 1:
            return
        (child,) = node.children.values()
        if (child.span.text is None) != (node.span.text is None):
            return
        node.parent.detach(node)
        child.span = node.span.joined(child.span)
        node.parent.attach(child)


def _descend(root: Node[H], tokens: Tokens) -> tuple[Node[H], int]:
    """The node whose edge holds the last shared token, and how many are shared."""
    node, shared = root, 0
    while shared == node.depth and shared < len(tokens):
        child = node.children.get(int(tokens[shared]))
        if child is None:
            break
        node = child
        shared += common_tokens(child.span.tokens, tokens[shared:])
    return node, shared


def _longest_text(root: Node[H], text: bytes) -> TextPath | None:
    """What ``match_text`` returns, for one namespace."""
    best = _TextHit(root)
    stack = [(root, _START, _START)]
    while stack:
        node, at, whole = stack.pop()
        fan = node.fan
        best.offer(node, whole, at.covered + (fan.partial(text, at.covered) if fan else 0))
        for child in fan.whole(text, at.covered) if fan else ():
            agreed = common_bytes(child.span.text or b"", text, at.covered)
            offsets = child.span.offsets
            assert offsets is not None
            # Of the bytes that agree, those of whole tokens. Tokens without text at the end are
            # not counted: nothing in the prompt asks for them.
            covered = int(offsets[offsets.searchsorted(agreed, "right") - 1])
            count = int(offsets.searchsorted(covered))
            ended = _last_whole(child, count)
            here = whole if ended is None else _PathPlace(at.covered + ended[0], ended[1])
            if covered == len(child.span.text or b""):
                place = _PathPlace(at.covered + covered, child.start + count)
                stack.append((child, place, here))
            else:
                best.offer(child, here, at.covered + agreed)
    return _text_path(best) if best.place.covered else None


def _text_path(hit: _TextHit[H]) -> TextPath:
    spans = [node.span for node in hit.node.upwards()][::-1]
    tokens = np.concatenate([_NO_TOKENS, *(span.tokens for span in spans)])
    sources = np.concatenate([np.empty(0, np.uint8), *(span.sources for span in spans)])
    offsets = [np.zeros(1, np.int64)]
    for span in spans:
        assert span.offsets is not None  # only edges with text were walked
        offsets.append(offsets[-1][-1] + span.offsets[1:].astype(np.int64))
    count = hit.place.tokens
    at = np.concatenate(offsets)[: count + 1]
    return TextPath(tokens[:count], at, hit.matched, sources[:count])


def _last_whole(child: Node[H], count: int) -> _PathPlace | None:
    """The last place in the first ``count`` tokens of an edge that is not within a reply.

    Returns:
        Bytes of the edge, and tokens of the path; None if there is none.
    """
    # 1 is a sampled token that no reply ends with.
    places = np.flatnonzero(child.span.sources[:count] != 1)
    if not len(places):
        return None
    offsets = child.span.offsets
    assert offsets is not None
    last = int(places[-1]) + 1
    return _PathPlace(int(offsets[last]), child.start + last)
