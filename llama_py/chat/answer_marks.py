"""``Wrapping``: the marks that a family writes around its answers, and that are not part of them.

``<|START_RESPONSE|>`` and ``<|END_RESPONSE|>`` are such marks. Most families have none. They are
read off llama.cpp's description of the reply: the texts directly before its content, up to the
reasoning or the beginning of the reply, and those behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llama_py.chat.calls import peg
from llama_py.chat.calls.peg import Arena
from llama_py.tenants import remembering

__all__ = ["BARE", "Mark", "Wrapping", "reads_reasoning", "says_one_answer", "wrapping_of"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A text beside the answer.

    Attributes:
        text: of it.
        needed: the parser does not read a reply without it.
    """

    text: str
    needed: bool


@dataclass(frozen=True, slots=True)
class Wrapping:
    """The marks around an answer.

    Attributes:
        before: the one that opens it; "" if there is none.
        needed: the parser does not read an answer without ``before``.
        after: those behind it, in their order.
    """

    before: str = ""
    needed: bool = False
    after: tuple[Mark, ...] = ()

    def opened_by(self, prompt: str) -> Wrapping:
        """What of it an answer still has that begins where the prompt ends."""
        for length in range(len(self.before), 0, -1):
            if prompt.endswith(self.before[:length]):
                return Wrapping(self.before[length:], self.needed, self.after)
        return self


BARE = Wrapping()


@remembering(64)
def wrapping_of(arena: str) -> Wrapping:
    """The marks of the replies that llama.cpp describes with this arena (JSON text).

    There are none where it has no place for reasoning: what comes before an answer is the prompt.
    """
    tree = Arena(arena)
    path = _path_to_content(tree, tree.root) if peg.REASONING in tree.tags(tree.root) else None
    if path is None:
        return BARE
    before, after = list(_beside(tree, path, -1)), list(_beside(tree, path, 1))
    before.reverse()
    if not before:
        return BARE
    needed = any(mark.needed for mark in before)
    return Wrapping("".join(mark.text for mark in before), needed, tuple(after))


@remembering(64)
def reads_reasoning(arena: str) -> bool:
    """Whether the parser of these replies reads any reasoning apart from the content.

    Some families have marks that it does not look for.
    """
    tree = Arena(arena)
    return peg.REASONING in tree.tags(tree.root)


@remembering(64)
def says_one_answer(arena: str) -> bool:
    """Whether each of these replies has its content at one place, behind reasoning or none."""
    tree = Arena(arena)
    path = _path_to_content(tree, tree.root) or []
    kinds = {tree.nodes[at]["type"] for at in path if tree.nodes[at].get("max_count") != 1}
    return bool(path) and kinds <= {"sequence", "rule", "ref", "tag", "atomic"}


def _path_to_content(tree: Arena, at: int, seen: tuple[int, ...] = ()) -> list[int] | None:
    """The nodes down to the last content of a reply, one that calls nothing if there is one."""
    node = tree.nodes[at]
    if at in seen:
        return None
    if node.get("tag") == peg.CONTENT:
        return [at]
    speaking = [child for child in tree.children(at) if peg.CONTENT in tree.tags(child)]
    speaking.reverse()
    for child in sorted(speaking, key=lambda child: bool(tree.names(child))):
        below = _path_to_content(tree, child, (*seen, at))
        if below is not None:
            return [at, *below]
    return None


def _beside(tree: Arena, path: list[int], step: int) -> Iterator[Mark]:
    """The texts that stand beside the content, outwards from it."""
    for at, child in zip(reversed(path[:-1]), reversed(path[1:]), strict=True):
        if tree.nodes[at]["type"] != "sequence":
            continue
        parts = tree.children(at)
        place = parts.index(child) + step
        while 0 <= place < len(parts):
            kind = tree.nodes[parts[place]]["type"]
            text = tree.text_in(parts[place])
            may_lack = kind == "repetition" and peg.REASONING not in tree.tags(parts[place])
            if text:
                yield Mark(text, kind != "repetition")
            elif not (may_lack or kind in ("epsilon", "space", "end")):
                return
            place += step
