"""Where messages start in a prompt.

Checkpoints are taken at such places: the tokenizer splits there in any case, and the next request
of the same conversation is likely to agree at least that far. A false positive, such as a delimiter
that a user quotes, costs one extra checkpoint.

llama.cpp knows the delimiters of some families. For the others they are learned once per template,
by rendering a probe conversation message by message: the text between the end of the prompt without
a message and the content of that message is the delimiter of its role.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any

from llama_py.errors import TemplateError

__all__ = ["common_length", "find_starts", "learn_delimiters"]

_PROBE = (
    ("system", "Qsystemq"),
    ("user", "Qfirstq"),
    ("assistant", "Qsecondq"),
    ("user", "Qthirdq"),
    ("assistant", "Qfourthq"),
    ("user", "Qfifthq"),
)
#: Shorter texts (a newline, "\n\n") would match all over a prompt.
_SHORTEST = 4
#: Longer texts have more in them than the start of a message, such as what a translator is told
#: before each text: of those the first line counts.
_LONGEST = 100


def find_starts(
    prompt: str, delimiters: Iterable[tuple[str, str]], opening: str = ""
) -> tuple[int, ...]:
    """Offsets of the delimiters in the prompt, and of the reply's opening at its end."""
    texts = sorted({text for _, text in delimiters if text}, key=len, reverse=True)
    starts: set[int] = set()
    if texts:
        pattern = re.compile("|".join(map(re.escape, texts)))
        starts.update(match.start() for match in pattern.finditer(prompt))
    if opening and prompt.endswith(opening):
        starts.add(_before_marker(prompt, len(prompt) - len(opening)))
    return tuple(sorted(starts - {0}))


def _before_marker(text: str, at: int) -> int:
    """Step back over the ``<|`` or ``<`` that two markers have in common."""
    while at > 0 and text[at - 1] in "<|[":
        at -= 1
    return at


def learn_delimiters(
    render: Callable[[list[dict[str, Any]]], str],
) -> tuple[tuple[str, str], ...]:
    """(role, text) pairs: the texts that start messages, as far as a probe conversation shows them.

    Args:
        render: renders messages as a prompt without a generation prompt.
    """
    for skip in (0, 1):  # with the system message; without, for templates that refuse it
        probe = [{"role": role, "content": text} for role, text in _PROBE[skip:]]
        try:
            return _learn(render, probe)
        except TemplateError:
            continue
    return ()


def _learn(
    render: Callable[[list[dict[str, Any]]], str], probe: list[dict[str, Any]]
) -> tuple[tuple[str, str], ...]:
    whole = render(probe)
    found: dict[tuple[str, str], None] = {}
    for count in range(1, len(probe)):
        message = probe[count]
        at = whole.find(message["content"])
        before = whole.find(probe[count - 1]["content"]) + len(probe[count - 1]["content"])
        try:
            prefix = render(probe[:count])
        except TemplateError:  # for example a conversation may not be a system message alone
            prefix = ""
        start = _before_marker(whole, common_length(whole, prefix))
        text = whole[start:at].rstrip()
        text = text if len(text) <= _LONGEST else text.partition("\n")[0]
        alien = any(entry["content"] in text for entry in probe)
        if before <= start < at and len(text) >= _SHORTEST and not alien:
            found[message["role"], text] = None
    return tuple(found)


def common_length(one: str, two: str) -> int:
    """Length of what two texts begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False)))
