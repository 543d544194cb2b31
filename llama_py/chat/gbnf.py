"""Work on the text of GBNF grammars: renaming and uniting rules."""

from __future__ import annotations

import re

__all__ = ["call_or_answer", "only_calls", "rename_rules", "unite"]

# A quoted literal or a character class is skipped whole: rule names do not occur inside.
_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\#[^\n]*|<\[?[^>\n]*>|[a-zA-Z][a-zA-Z0-9-]*'
)


def rename_rules(grammar: str, prefix: str) -> str:
    """The same grammar with ``prefix`` before the name of every rule."""

    def rename(match: re.Match[str]) -> str:
        text = match.group()
        return prefix + text if text[0].isalpha() else text

    return _TOKEN.sub(rename, grammar)


#: Free text that may come before a required call, in the root rules that llama.cpp writes.
_PRELUDE = re.compile(r"\s[\w-]*until-\d+\??(?=\s+tool-calls?\b)")
#: The choice between an answer in a Markdown fence and a bare one.
_FENCED = re.compile(r'\("```json" .*? "```" \| space (response-format) space\)')


def unite(first: str, second: str) -> str:
    """A grammar of everything that one of two grammars with the root ``root`` accepts."""
    if not first or not second:
        return first or second
    parts = [rename_rules(first, "a-"), rename_rules(second, "b-")]
    return "\n".join(["root ::= a-root | b-root", *parts])


def call_or_answer(call: str, answer: str) -> str:
    """A grammar for a tool call or an answer that follows a schema, and for nothing around them.

    Args:
        call: llama.cpp's grammar for a reply that has to call a tool.
        answer: llama.cpp's grammar for a reply that has to follow a schema.
    """
    return unite(only_calls(call), _edit_root(_FENCED, r"\1", answer))


def only_calls(grammar: str) -> str:
    """llama.cpp's grammar for a reply that has to call a tool, without room for words before it."""
    return _edit_root(_PRELUDE, "", grammar)


def _edit_root(pattern: re.Pattern[str], replacement: str, grammar: str) -> str:
    lines = grammar.splitlines()
    return "\n".join(
        pattern.sub(replacement, line) if line.startswith("root ::=") else line for line in lines
    )
