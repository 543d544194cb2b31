"""llama.cpp's description of a reply's format, as a tree that Python can walk.

llama.cpp builds a parser for each request with tools, and sends it as JSON (the *arena*). The tags
in it say what a piece of a reply is: content, reasoning, the name of a tool, an argument and its
value. Its rules have names, too, which differ from family to family and mean nothing here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from llama_py.errors import TemplateError
from llama_py.tenants import remembering

__all__ = ["Arena", "Node", "arena_of"]

Node = Mapping[str, Any]

CONTENT = "content"
REASONING = "reasoning"
NAME = "tool-name"
ARGS = "tool-args"
ARG = "tool-arg"
ARG_NAME = "tool-arg-name"
ARG_OPEN = "tool-arg-open"
ARG_CLOSE = "tool-arg-close"
VALUE = "tool-arg-value"
STRING_VALUE = "tool-arg-string-value"

#: Kinds of nodes that consist of one other node.
_ONE = frozenset({"rule", "tag", "atomic", "gbnf", "ac", "schema", "repetition"})
_MANY = frozenset({"sequence", "choice"})
_LEAVES = frozenset(
    {"epsilon", "start", "end", "literal", "and", "not", "any", "space", "chars", "string", "until"}
)


class Arena:
    """The nodes of a format.

    Raises:
        TemplateError: a kind of node is unknown, so that nothing can be said about the format.
    """

    def __init__(self, text: str) -> None:
        data = json.loads(text)
        self.nodes: list[Node] = data["parsers"]
        self.rules: Mapping[str, int] = data["rules"]
        self.root: int = data["root"]
        unknown = {node["type"] for node in self.nodes} - _ONE - _MANY - _LEAVES - {"ref"}
        if unknown:
            raise TemplateError(
                f"llama.cpp describes a format with {sorted(unknown)}, unknown here"
            )
        self._names = _Under(self, lambda node: self._tagged(node, NAME))
        self._arguments = _Under(self, lambda node: self._tagged(node, ARG, ARG_NAME))
        self._tags = _Under(self, lambda node: [node["tag"]] if node["type"] == "tag" else [])
        self._kinds = _Under(self, lambda node: [node["type"]])

    def children(self, at: int) -> list[int]:
        """The nodes that this one consists of; what only looks ahead has none."""
        node = self.nodes[at]
        kind = node["type"]
        if kind == "ref":
            return [self.rules[node["name"]]]
        if kind in _MANY:
            return list(node["children"])
        return [node["child"]] if kind in _ONE else []

    def names(self, at: int) -> frozenset[str]:
        """The tools that are called under this node."""
        return self._names(at)

    def arguments(self, at: int) -> frozenset[str]:
        """The arguments that are written under this node, each with marks of its own."""
        return self._arguments(at)

    def tags(self, at: int) -> frozenset[str]:
        """The tags under this node."""
        return self._tags(at)

    def kinds(self, at: int) -> frozenset[str]:
        """The kinds of nodes under this node."""
        return self._kinds(at)

    def nullable(self, at: int, seen: frozenset[int] = frozenset()) -> bool:
        """Whether the text of this node may be empty."""
        node = self.nodes[at]
        kind = node["type"]
        if at in seen:
            return False
        seen = seen | {at}
        if kind == "literal":
            return not node["literal"]
        if kind == "chars":
            return bool(node["min_count"] == 0)
        if kind == "repetition" and node["min_count"] == 0:
            return True
        if kind in ("any", "string", "schema"):
            return bool(kind == "string")
        parts = [self.nullable(child, seen) for child in self.children(at)]
        return any(parts) if kind == "choice" else all(parts)

    def walk(self, at: int) -> Iterator[int]:
        """All nodes under this one, itself first, in the order of the text."""
        seen: set[int] = set()
        todo = [at]
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                yield at
                todo += reversed(self.children(at))

    def literal_under(self, at: int, tag: str) -> str:
        """The first literal text under the first node with this tag; "" if there is none."""
        for found in self.walk(at):
            if self.nodes[found].get("tag") == tag:
                return self._text(found)
        return ""

    def text_in(self, at: int) -> str:
        """The text of a node that is nothing but a text, or may be; "" for all others."""
        while self.nodes[at]["type"] in ("repetition", "rule", "ref", "atomic"):
            (at,) = self.children(at)
        node = self.nodes[at]
        return str(node["literal"]) if node["type"] == "literal" else ""

    def _text(self, at: int) -> str:
        nodes = (self.nodes[found] for found in self.walk(at))
        return next((str(node["literal"]) for node in nodes if node["type"] == "literal"), "")

    def _tagged(self, node: Node, tag: str, inner: str = "") -> list[str]:
        """The text in a node with this tag, there under the tag ``inner``; [] for other nodes."""
        if node["type"] != "tag" or node["tag"] != tag:
            return []
        at = node["child"]
        text = self.literal_under(at, inner) if inner else self._text(at)
        return [text] if text else []


class _Under:
    """The findings of all nodes under a node, remembered."""

    def __init__(self, arena: Arena, find: Callable[[Node], list[str]]) -> None:
        self._arena, self._find = arena, find
        self._known: dict[int, frozenset[str]] = {}

    def __call__(self, at: int) -> frozenset[str]:
        if at not in self._known:
            nodes = self._arena.nodes
            found = (text for each in self._arena.walk(at) for text in self._find(nodes[each]))
            self._known[at] = frozenset(found)
        return self._known[at]


@remembering(16)
def arena_of(text: str) -> Arena:
    """The arena of this JSON text."""
    return Arena(text)
