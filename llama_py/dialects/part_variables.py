"""Variables of a template that stand in a text part of a message, in every dialect of chats.

TranslateGemma's published form says the languages there: ``{"type": "text", "text": ...,
"source_lang_code": "de", "target_lang_code": "fr-CA"}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_py.chat.checks import check_text

__all__ = ["part_variables"]

_NAMES = ("source_lang_code", "target_lang_code")


def part_variables(messages: Any, where: str = "messages") -> dict[str, str]:
    """What the parts of the user's messages say; the last one that says something counts.

    Args:
        messages: objects with ``role`` and ``content``; others are passed over.
        where: the place of the messages, for errors.

    Raises:
        ParameterError: a code is not text.
    """
    found: dict[str, str] = {}
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        return found
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or message.get("role") != "user":
            continue
        content = message.get("content")
        for j, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, Mapping):
                found |= _said(part, f"{where}[{i}].content[{j}]")
    return found


def _said(part: Mapping[str, Any], where: str) -> dict[str, str]:
    names = [name for name in _NAMES if part.get(name) is not None]
    return {name: check_text(part[name], f"{where}.{name}") for name in names}
