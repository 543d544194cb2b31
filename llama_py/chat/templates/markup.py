"""``Markup``: the texts that structure a prompt, which a message could forge.

These are the texts of the vocabulary's special tokens, and the texts that the template itself looks
for in messages. (Qwen3's, for example, treats a user message that begins with ``<tool_response>``
as the result of a tool.) Tokens for ordinary text (runs of spaces, the HTML tags in Gemma's
vocabulary) are not markup.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from jinja2 import nodes
from jinja2.nodes import Node

from llama_py.chat.templates.python_jinja import parse
from llama_py.errors import TemplateError

__all__ = ["Markup"]

#: A text in brackets, as markers are written: ``<think>``, ``[INST]``, ``<|im_end|>``.
_BRACKETED = re.compile(r"[<\[【«].+[>\]】»]", re.DOTALL)
#: A name beside a bracket or bar: ``<b>``, ``]~b]``, ``｜DSML｜``.
_MARKED = re.compile(r"[<>\[\]|｜].*\w|\w.*[<>\[\]|｜]", re.DOTALL)
#: What only markers have in their texts, whatever the template is.
_BARS = ("<|", "|>", "<｜", "｜>")
#: Markers that models know from their training, even if their template never writes them.
_KNOWN = frozenset(
    f"{start}{name}>"
    for name in ("think", "tool_call", "tool_calls", "tool_response", "tools")
    for start in ("<", "</")
)
#: Characters behind the first one that decide whether a place is worth a closer look.
_AHEAD = 2


class Markup:
    """Finds the texts that a message could forge.

    Args:
        control: texts of the tokens that plain text never becomes (control tokens, the unknown
            one).
        defined: texts of user-defined tokens, which plain text does become; the markers among
            them count.
        sources: the chat template's texts, () if there is none.

    Attributes:
        tokens: those texts that are special tokens.
        escapes: matches where JSON writes a character of one of the texts as an escape.
    """

    def __init__(
        self, control: Iterable[str], defined: Iterable[str] = (), sources: Iterable[str] = ()
    ) -> None:
        written, looked_for = _literals(sources)
        marks = (
            text
            for text in defined
            if any(bar in text for bar in _BARS)
            or text in _KNOWN
            or (text in written and len(text) > 2 and _MARKED.search(text))
        )
        self.tokens = frozenset(text for text in (*control, *marks) if text.strip())
        words = {text.strip() for text in looked_for}
        self._texts = self.tokens | {word for word in words if _BRACKETED.fullmatch(word)}
        lengths, ahead = defaultdict(set), defaultdict(set)
        for text in self._texts:
            lengths[text[0]].add(len(text))
            ahead[text[0]].add(text[1 : 1 + _AHEAD])
        self._lengths = {first: tuple(sorted(some)) for first, some in lengths.items()}
        # A candidate is one character, so that overlapping places are all found, and the first one
        # of a text, so that ``re`` can skip everything else.
        branches = [
            f"{re.escape(first)}(?:{'|'.join(f'(?={re.escape(rest)})' for rest in sorted(some))})"
            for first, some in sorted(ahead.items())
        ]
        self._candidate = re.compile("|".join(branches)) if branches else None
        characters = set("".join(self._texts))
        codes = "|".join(sorted(f"{ord(char):04x}" for char in characters)) or "(?!)"
        short = "".join(char for char in '"/\\' if char in characters)
        letters = f"|[{re.escape(short)}])" if short else ")"
        self.escapes = re.compile(rf"\\(?:u(?:{codes})" + letters, re.I)

    @classmethod
    def of(cls, special: Mapping[bytes, bool], sources: Iterable[str]) -> Markup:
        """The markup of a vocabulary (from ``Vocab.special_texts``) and a template.

        Texts that are not UTF-8 are left out, because no message contains them.
        """
        texts: tuple[list[str], list[str]] = ([], [])
        for text, always in special.items():
            with suppress(UnicodeDecodeError):
                texts[always].append(text.decode())
        return cls(*texts, sources)

    def find(self, text: str) -> Iterator[tuple[int, str]]:
        """(offset in characters, markup) for each occurrence in ``text``; they may overlap."""
        texts, lengths = self._texts, self._lengths
        if self._candidate is None:
            return
        for match in self._candidate.finditer(text):
            at = match.start()
            for length in lengths[text[at]]:
                if (found := text[at : at + length]) in texts:
                    yield at, found

    def token_ranges(self, text: str) -> list[tuple[int, int]]:
        """Where the text has those of special tokens: (start, end) in characters, disjoint."""
        ranges: list[tuple[int, int]] = []
        for start, found in self.find(text):
            end = start + len(found)
            if found not in self.tokens:
                continue
            if ranges and start < ranges[-1][1]:
                ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
            else:
                ranges.append((start, end))
        return ranges


# ---- what a template writes and looks for -----------------------------------------------------

_QUOTED = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""")


def _literals(sources: Iterable[str]) -> tuple[str, frozenset[str]]:
    """The literals of templates.

    Returns:
        All of them in one text, one after the other; and those that a template compares texts
        with, looks for in them, splits them at, or has given a name to.
    """
    written: list[str] = []
    looked_for: set[str] = set()
    for source in sources:
        try:
            tree = parse(source)
        except TemplateError:  # of a format that is not a template of Jinja's
            written.append(source)
            looked_for.update(one or other for one, other in _QUOTED.findall(source))
            continue
        written += (data.data for data in tree.find_all(nodes.TemplateData))
        written += _strings(tree)
        # Where a template may contain a text that it looks for in messages.
        looking: list[Node] = [assigned.node for assigned in tree.find_all(nodes.Assign)]
        for compared in tree.find_all(nodes.Compare):
            looking += [compared.expr, *(operand.expr for operand in compared.ops)]
        for call in tree.find_all(nodes.Call):
            looking += call.args
        for filtered in tree.find_all(nodes.Filter):
            looking += filtered.args
        looked_for.update(text for place in looking for text in _strings(place))
    return "\n".join(written), frozenset(looked_for)


def _strings(tree: Node) -> Iterator[str]:
    constants = [tree] if isinstance(tree, nodes.Const) else tree.find_all(nodes.Const)
    return (constant.value for constant in constants if isinstance(constant.value, str))
