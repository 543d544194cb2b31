"""``CallOpening``: the texts around the mark at which a reply turns from words to a call.

llama.cpp waits for a mark in the text, and its grammar of calls begins there. A family may write
more before it: Kimi K2 opens a section of calls first, Kimi K3 an empty answer. And where the mark
is not a token of the vocabulary, its last letters may share one with what comes next: ``>[`` or
``><``. Both are read off llama.cpp's description of the reply.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from llama_py.chat.calls import peg
from llama_py.chat.calls.peg import Arena
from llama_py.tenants import remembering

__all__ = ["SPACE", "CallOpening", "openings_of"]

#: In ``CallOpening.behind``: white space, or none.
SPACE = None
#: Pieces behind a mark: a token is not longer than these.
_MOST_BEHIND = 4


@dataclass(frozen=True, slots=True)
class CallOpening:
    """One way to begin a call in place of an answer.

    Attributes:
        mark: the text from which on the grammar of calls holds.
        before: texts that stand before it in this order; each may be missing.
        behind: what has to follow it, as far as that is fixed: texts, and ``SPACE``.
    """

    mark: str
    before: tuple[str, ...] = ()
    behind: tuple[str | None, ...] = ()


@remembering(64)
def openings_of(arena: str, marks: tuple[str, ...], prompt: str) -> tuple[CallOpening, ...]:
    """The openings with these marks, in their order.

    Args:
        arena: llama.cpp's description of the reply, as JSON text; "" if it has none.
        marks: texts for which it waits.
        prompt: the end of the prompt, which opens the reply; what it has said is not said again.
    """
    if not arena:
        return tuple(map(CallOpening, marks))
    tree = peg.arena_of(arena)
    openings = []
    for mark in marks:
        ways = [(way, _behind(tree, way, mark)) for way in _ways_to_literals(tree)]
        found = [(way, behind) for way, behind in ways if behind is not None]
        # Each tool may have its own way, with its name behind the mark.
        common = _common([behind for _, behind in found])
        before = [text for way, _ in found[:1] for text in _before(tree, way)]
        unsaid = tuple(text for text in reversed(before) if text not in prompt)
        openings.append(CallOpening(mark, unsaid, common))
    return tuple(openings)


def _common(sequences: Sequence[tuple[str | None, ...]]) -> tuple[str | None, ...]:
    """The common beginning of these."""
    columns = zip(*sequences, strict=False)
    same = takewhile(lambda column: len(set(column)) == 1, columns)
    return tuple(column[0] for column in same)


def _ways_to_literals(tree: Arena) -> Iterator[list[int]]:
    """The nodes from the root down to each literal, in the order of the text, each node once."""
    seen: set[int] = set()
    todo: list[list[int]] = [[tree.root]]
    while todo:
        way = todo.pop()
        at = way[-1]
        if at in seen:
            continue
        seen.add(at)
        if tree.nodes[at].get("literal"):
            yield way
        todo += ([*way, child] for child in reversed(tree.children(at)))


def _behind(tree: Arena, way: Sequence[int], mark: str) -> tuple[str | None, ...] | None:
    """What follows the mark that begins with the literal at the end of this way; None: it does not.

    The mark may end within that literal, or consist of several.
    """
    found: list[str | None] = []
    for piece in _pieces(tree, way):
        if not mark:
            found.append(piece)
        elif piece is None or not (piece.startswith(mark) or mark.startswith(piece)):
            return None
        elif rest := piece[len(mark) :]:
            mark = ""
            found.append(rest)
        else:
            mark = mark[len(piece) :]
        if len(found) == _MOST_BEHIND:
            break
    return None if mark else tuple(found)


def _pieces(tree: Arena, way: Sequence[int]) -> Iterator[str | None]:
    """The literal at the end of this way, and what has to follow as long as there is one way."""
    yield tree.nodes[way[-1]]["literal"]
    for depth in range(len(way) - 2, -1, -1):
        if tree.nodes[way[depth]]["type"] == "repetition":
            return  # what follows may be the same once more
        if tree.nodes[way[depth]]["type"] == "sequence":
            parts = tree.children(way[depth])
            for part in parts[parts.index(way[depth + 1]) + 1 :]:
                if not (yield from _fixed(tree, part)):
                    return


def _fixed(
    tree: Arena, at: int, over: frozenset[int] = frozenset()
) -> Generator[str | None, None, bool]:
    """The pieces of a node up to the first that may differ; returns whether there is none.

    Arguments may always differ, and so may what contains itself (``over`` are the nodes above).
    """
    node = tree.nodes[at]
    kind, parts = node["type"], tree.children(at)
    if at in over or node.get("tag") in (peg.ARGS, peg.ARG):
        return False
    over |= {at}
    if kind == "literal":
        if node["literal"]:
            yield str(node["literal"])
    elif kind == "space":
        yield SPACE
    elif kind == "choice" or (kind == "repetition" and node["min_count"]):
        yield from _common(
            [tuple(islice(_fixed(tree, part, over), _MOST_BEHIND)) for part in parts]
        )
        return False
    elif kind in ("sequence", "rule", "ref", "tag", "atomic"):
        for part in parts:
            if not (yield from _fixed(tree, part, over)):
                return False
    else:
        return kind in ("epsilon", "and", "not")
    return True


def _before(tree: Arena, way: Sequence[int]) -> Iterator[str]:
    """The texts that may stand before the literal at the end of this way, backwards from it.

    A call in place of an answer has no content: that is passed over.
    """
    for depth in range(len(way) - 2, -1, -1):
        if tree.nodes[way[depth]]["type"] != "sequence":
            continue
        parts = tree.children(way[depth])
        for part in reversed(parts[: parts.index(way[depth + 1])]):
            node, kind, tags = tree.nodes[part], tree.nodes[part]["type"], tree.tags(part)
            may_lack = kind == "repetition" and not node["min_count"] and node["max_count"] == 1
            # A reply can go without white space and content, not without reasoning and calls.
            empty = kind in ("epsilon", "space", "not", "and") or peg.CONTENT in tags
            if may_lack and (text := tree.text_in(part)):
                yield text
            elif not empty or peg.REASONING in tags or tree.names(part):
                return
