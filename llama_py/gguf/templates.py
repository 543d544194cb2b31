"""Limits of chat templates, checked before llama.cpp reads them.

llama.cpp's parser and interpreter of templates are recursive, and nothing limits their depth: a
few kilobytes of brackets overflow the stack, which ends the process. ``template_problem`` finds
that by reading the tags as llama.cpp's lexer does. It reads no meaning into them: what a template
computes is limited elsewhere (``chat.templates.python_jinja``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["MAX_LENGTH", "MAX_NESTING", "template_problem"]

#: Characters. Published templates have at most some tens of thousands, and 2^17 compile in seconds.
MAX_LENGTH: Final = 1 << 17
#: Levels of brackets and blocks, and operators in a row; published templates have up to fifty.
MAX_NESTING: Final = 400
#: Levels of all macros together, because each of them may call the next one.
_MAX_LEVELS: Final = 4 * MAX_NESTING

_OPENS: Final = re.compile(r"\{[{%#]")
_TOKENS: Final = re.compile(
    r"""(?P<quoted>'(?:[^'\\]|\\[\s\S])*'|"(?:[^"\\]|\\[\s\S])*")"""
    r"|(?P<end>[%}]\})|(?P<comment>\{\#)|(?P<word>\w+)|(?P<other>[^\s\w])",
    re.ASCII,
)
_BLOCKS: Final = frozenset({"if", "for", "macro", "call", "filter", "set"})
_FUNCTIONS: Final = frozenset({"macro", "call"})


@dataclass(slots=True)
class _TemplateBlock:
    """A block that is open.

    Attributes:
        first: its word.
        outside: levels around it.
        levels: its own: one for itself, and one for each ``elif``.
        deepest: levels in it.
    """

    first: str
    outside: int
    levels: int = 1
    deepest: int = 0


def template_problem(text: str) -> str:
    """Why a template must not reach llama.cpp; empty if it may."""
    if len(text) > MAX_LENGTH:
        return f"it has {len(text)} characters, and the limit is {MAX_LENGTH}"
    blocks: list[_TemplateBlock] = []
    functions = 0
    for line, first, depth, assigns in _tags(text):
        levels = blocks[-1].outside + blocks[-1].levels if blocks else 0
        if levels + depth > MAX_NESTING:
            return f"line {line} is nested more than {MAX_NESTING} levels deep"
        for block in blocks:
            block.deepest = max(block.deepest, levels + depth - block.outside)
        if first in _BLOCKS and not (first == "set" and assigns):
            blocks.append(_TemplateBlock(first, levels))
        elif first == "elif" and blocks:
            blocks[-1].levels += 1
        elif first.startswith("end") and blocks:
            ended = blocks.pop()
            functions += ended.deepest if ended.first in _FUNCTIONS else 0
            if functions > _MAX_LEVELS:
                return f"its macros have more than {_MAX_LEVELS} levels together"
    return ""


def _tags(text: str) -> Iterator[tuple[int, str, int, bool]]:
    """The tags of a template: line, first word, how deep it nests, and whether it has an ``=``."""
    place, line, counted = 0, 1, 0
    while opened := _OPENS.search(text, place):
        line += text.count("\n", counted, opened.start())
        counted = opened.start()
        if opened[0] == "{#":
            end = text.find("#}", opened.end())
            if end < 0:
                return
            place = end + 2
            continue
        place, first, deepest, assigns = _tag(text, opened.end())
        yield line, first if opened[0] == "{%" else "", deepest, assigns


def _tag(text: str, place: int) -> tuple[int, str, int, bool]:
    """Where the tag ends whose tokens begin at ``place``, its first word, how deep it nests (every
    token between two commas may be a level of its own), and whether it has an ``=``."""
    first, assigns, deepest = "", False, 0
    levels, depth = [0], 0
    for token in _TOKENS.finditer(text, place):
        kind, written = token.lastgroup, token[0]
        if kind == "comment" or (kind == "end" and (written == "%}" or len(levels) == 1)):
            end = token.start() if kind == "comment" else token.end()
            return end, first, deepest, assigns
        for character in written if kind == "end" else (written,):
            if character in ("(", "[", "{"):
                levels.append(0)
            elif character in (")", "]", "}") and len(levels) > 1:
                depth -= levels.pop()
            elif character == ",":
                depth -= levels[-1]
                levels[-1] = 0
                continue
            levels[-1] += 1
            depth += 1
            deepest = max(deepest, depth)
        first = first or (written if kind == "word" else "")
        assigns = assigns or written == "="
    return len(text), first, deepest, assigns
