"""Which parts of a tool's schema a grammar enforces, where it cannot enforce all of it.

Agents send the schemas of tools that others have written, for validators that know every keyword
there is. A reply is better checked less than refused. So what cannot be enforced is left out of the
grammar, and nothing else: the prompt shows the schema as it was given, and the names of arguments
stay, because many families write each argument with a mark of its own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from llama_py.chat.bounds import check_tools
from llama_py.chat.conversation import Tool
from llama_py.chat.messages import ChatRequest
from llama_py.chat.template import RenderedChat
from llama_py.core.chat import schema_to_gbnf
from llama_py.core.gbnf_check import check_gbnf
from llama_py.errors import GrammarError, ParameterError, shown

__all__ = ["any_arguments", "enforceable", "render_leniently"]

_log = logging.getLogger("llama_py")

_ANY: Mapping[str, Any] = {"type": "object"}
_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
#: Each argument of a schema is tried by itself, unless there are too many or it is too large.
_MOST_TRIED, _LARGEST_TRIED = 100, 1 << 16


def enforceable(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """The tools, with what of their schemas can be enforced, each by itself and all together."""
    out = tuple(_enforceable(tool) for tool in tools)
    for candidates in (out, tuple(map(_with_types, out))):
        try:
            check_tools([tool.schema for tool in candidates])
        except GrammarError:
            continue
        return candidates
    return any_arguments(tools)


def render_leniently(
    request: ChatRequest, render: Callable[[ChatRequest], RenderedChat]
) -> RenderedChat:
    """Render a conversation whose tools are ``enforceable``.

    They may still be too much for one grammar. Then any arguments will do.

    Raises:
        TemplateError, GrammarError: as ``render``.
    """
    rendered = render(request)
    if not request.uses_tools or rendered.grammar is None:
        return rendered
    try:
        check_gbnf(rendered.grammar.gbnf, rendered.grammar.root)
    except GrammarError:
        return render(replace(request, tools=any_arguments(request.tools)))
    return rendered


def any_arguments(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """The tools, with any JSON object for arguments."""
    return tuple(replace(tool, enforced=_ANY) for tool in tools)


def _enforceable(tool: Tool) -> Tool:
    try:
        text = json.dumps(tool.parameters)
    except (TypeError, ValueError, RecursionError):
        return replace(tool, enforced=_ANY)
    found = _loosened(text)
    return tool if found is None else replace(tool, enforced=json.loads(found))


def _with_types(tool: Tool) -> Tool:
    return replace(tool, enforced=_only_types(tool.schema))


@lru_cache(maxsize=256)
def _loosened(text: str) -> str | None:
    """What can be enforced of a schema, as JSON text; None if it is all of it."""
    schema = json.loads(text)
    problem = _problem(schema)
    if problem is None:
        return None
    _log.info("a tool's schema is enforced in parts only: %s", shown(problem, 300))
    found = next(each for each in _candidates(schema, len(text)) if _problem(each) is None)
    return json.dumps(found)


def _candidates(schema: Mapping[str, Any], size: int) -> Iterator[Mapping[str, Any]]:
    """Weaker and weaker schemas; the last one always works."""
    properties = schema.get("properties")
    few = isinstance(properties, Mapping) and len(properties) <= _MOST_TRIED
    if few and size <= _LARGEST_TRIED:
        yield _in_parts(schema)
    yield _only_types(schema)
    yield _ANY


def _in_parts(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of an object, with those arguments free that cannot be enforced."""
    kept = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    tried = {
        name: _type_of(part) if _problem({**kept, **_object({name: part}, [])}) else part
        for name, part in schema["properties"].items()
    }
    return {**kept, **_object(tried, schema.get("required"))}


def _only_types(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return _ANY
    types = {name: _type_of(part) for name, part in properties.items()}
    return _object(types, schema.get("required"))


def _object(properties: Mapping[str, Any], required: Any) -> dict[str, Any]:
    names = required if isinstance(required, list) else []
    known = [name for name in names if isinstance(name, str) and name in properties]
    return {"type": "object", "properties": properties, "required": [*dict.fromkeys(known)]}


def _type_of(part: Any) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return {"type": kind} if isinstance(kind, str) and kind in _TYPES else {}


def _problem(schema: Mapping[str, Any]) -> str | None:
    """Why a schema cannot be enforced as a whole, None if it can."""
    try:
        check_tools([schema])
        check_gbnf(schema_to_gbnf(schema))
    except (GrammarError, ParameterError, RecursionError) as error:
        return str(error)
    return None
