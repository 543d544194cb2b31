"""Where the grammar of calls begins in families whose calls have no mark that llama.cpp waits for.

Llama 3.x writes a call as plain JSON, and nothing says where one begins but its own words. Their
replies are read as ``plain_calls`` reads them, and the grammar waits for the beginning of a reply
that names a tool. Functionary writes the name of the tool behind ``>>>``, the first one of which is
the end of the prompt: llama.cpp waits for one in the reply, and its grammar begins behind it. (A
section with a call that follows one with words is not a call to its parser, but words.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llama_py.chat.calls import peg

__all__ = ["begins_with_json", "patterns_of_json", "patterns_of_sections", "waits_for_sections"]

#: llama.cpp's trigger for the sections of Functionary.
_SECTION = ">>>(?!all)"
#: White space between marks, as the grammar of calls has it.
_SPACE = r"(?: |\n{1,2}[ \t]{0,20})?"
#: Names in one regular expression, which has a largest length.
_MOST_NAMES = 100
_SPECIAL = re.compile(r"[.^$|()*+?\[\]{}\\]")


def begins_with_json(arena: str) -> bool:
    """Whether a call begins with the bracket of a JSON object, and not with a mark.

    Args:
        arena: llama.cpp's description of a reply that has to call a tool, as JSON text.
    """
    form = peg.arena_of(arena)
    for at in form.walk(form.root):
        node = form.nodes[at]
        if node["type"] == "rule" and form.names(at):
            literals = (form.nodes[each] for each in form.walk(at))
            texts = (str(each["literal"]) for each in literals if each["type"] == "literal")
            return next((text for text in texts if text.strip()), "").startswith("{")
    return False


def patterns_of_json(names: Sequence[str]) -> tuple[str, ...]:
    """Regular expressions of the beginning of a reply that calls one of these tools.

    The name has to be whole: an answer in JSON may have a ``"name"``, too.
    """
    kind = _SPACE.join(('"type"', ":", '"function"', ","))
    head = _SPACE.join((r"^[ \n\t]{0,24}(\{", f'(?:{kind}{_SPACE})?"name"', ":", '"(?:'))
    quoted = (json.dumps(name, ensure_ascii=False)[1:-1] for name in names)
    return tuple(f'{head}{each})")' for each in _choices(quoted))


def patterns_of_sections(names: Sequence[str]) -> tuple[str, ...]:
    """Regular expressions of the beginning of a call in Functionary's form."""
    return tuple(f"^((?:{each})\\n)" for each in _choices(names))


def waits_for_sections(params: Mapping[str, Any]) -> bool:
    """Whether llama.cpp would wait for a mark that its grammar does not begin with."""
    return [trigger["value"] for trigger in params["grammar_triggers"]] == [_SECTION]


def _choices(names: Iterable[str]) -> Iterable[str]:
    escaped = [_SPECIAL.sub(r"\\\g<0>", name) for name in names]
    for start in range(0, len(escaped), _MOST_NAMES):
        yield "|".join(escaped[start : start + _MOST_NAMES])
