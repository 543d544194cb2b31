"""``enforceable``: tools whose schemas can be enforced, whatever clients send.

Clients describe their tools in all of JSON Schema, and have no use for an error that says which
keyword is not supported here: they would have to give up. So the model is shown the schema as it
is, and where it cannot be made a grammar, a call may have any object as its arguments.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from llama_py.chat.bounds import check_tools
from llama_py.chat.conversation import Tool
from llama_py.core.chat import schema_to_gbnf
from llama_py.errors import GrammarError

__all__ = ["enforceable"]

_log = logging.getLogger("llama_py")

_ANY: Mapping[str, Any] = {"type": "object"}
#: Schemas of which is remembered whether they can be enforced, and up to which size.
_MOST_KNOWN, _LONGEST_KNOWN = 512, 1 << 15


def enforceable(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """The tools, with ``enforced`` set where their own parameters cannot be.

    Their schemas become one grammar. If that would be too large, the largest ones are not enforced.

    Args:
        tools: with schemas that can be written as JSON.
    """
    checked = [tool if _is_enforceable(tool) else _loosened(tool) for tool in tools]
    if _fit(checked):
        return tuple(checked)
    by_size = sorted(range(len(tools)), key=lambda place: -_size(checked[place]))
    low, high = 1, len(tools)
    while low < high:  # how many of the largest have to go
        middle = (low + high) // 2
        if _fit(_without(checked, by_size[:middle])):
            high = middle
        else:
            low = middle + 1
    return tuple(_without(checked, by_size[:high]))


def _is_enforceable(tool: Tool) -> bool:
    text = json.dumps(tool.parameters)
    check = _problem if len(text) <= _LONGEST_KNOWN else _problem.__wrapped__
    problem = check(text)
    if problem:
        _log.info("the parameters of the tool %r are not enforced: %s", tool.name, problem)
    return not problem


@lru_cache(_MOST_KNOWN)
def _problem(text: str) -> str:
    """Why a schema cannot be enforced; "" if it can."""
    schema = json.loads(text)
    if (schema.get("type") or "object") != "object":
        return f"they are of the type {schema['type']!r}, and arguments are an object"
    try:
        check_tools([schema])
        schema_to_gbnf(schema)
    except GrammarError as error:
        return str(error)
    return ""


def _loosened(tool: Tool) -> Tool:
    return replace(tool, enforced=_ANY)


def _without(tools: Sequence[Tool], places: Sequence[int]) -> list[Tool]:
    return [_loosened(tool) if i in places else tool for i, tool in enumerate(tools)]


def _size(tool: Tool) -> int:
    return 0 if tool.enforced is not None else len(json.dumps(tool.parameters))


def _fit(tools: Sequence[Tool]) -> bool:
    try:
        check_tools([tool.schema_of_calls for tool in tools])
    except GrammarError:
        return False
    return True
