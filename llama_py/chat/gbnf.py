"""Work on the text of GBNF grammars: renaming and uniting rules."""

from __future__ import annotations

import re

__all__ = ["rename_rules", "unite"]

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


def unite(first: str, second: str) -> str:
    """A grammar of everything that one of two grammars with the root ``root`` accepts."""
    if not first or not second:
        return first or second
    parts = [rename_rules(first, "a-"), rename_rules(second, "b-")]
    return "\n".join(["root ::= a-root | b-root", *parts])
