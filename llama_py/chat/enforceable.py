"""``enforceable``: tools whose schemas can be enforced, whatever clients send.

Clients describe their tools in all of JSON Schema, and have no use for an error that says which
keyword is not supported here: they would have to give up. So the model is shown the schema as it
is, and what of it cannot be made a grammar is not enforced. The names of the arguments stay, for
many families write each argument with a mark of its own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from llama_py.chat.conversation import Tool
from llama_py.chat.messages import ChatRequest
from llama_py.chat.rendered import RenderedChat
from llama_py.chat.schemas.bounds import check_tools
from llama_py.chat.schemas.tool_schemas import call_schema
from llama_py.core.chat import schema_to_gbnf
from llama_py.core.grammar.gbnf_check import check_gbnf
from llama_py.errors import GrammarError, ParameterError, shown
from llama_py.tenants import remembering

__all__ = ["enforceable", "render_leniently"]

_log = logging.getLogger("llama_py")

_ANY: Mapping[str, Any] = {"type": "object"}
_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
#: Schemas of which is remembered what can be enforced, and up to which size.
_MOST_KNOWN, _LONGEST_KNOWN = 512, 1 << 15
#: Each argument of a schema is tried by itself, unless there are more.
_MOST_TRIED = 100


def enforceable(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """The tools, with ``enforced`` set where their own parameters cannot be.

    Their schemas become one grammar. If that would be too large, less is enforced of the largest
    ones.

    Args:
        tools: with schemas that can be written as JSON.
    """
    checked = []
    for tool in tools:
        text = json.dumps(tool.parameters)
        problem, found = (_known_look if len(text) <= _LONGEST_KNOWN else _look)(text)
        if problem:
            why = shown(problem, 300)
            _log.info("not all parameters of the tool %r are enforced: %s", tool.name, why)
        checked.append(replace(tool, enforced=json.loads(found)) if problem else tool)
    if _fit(checked):
        return tuple(checked)
    with_types = _weakened(checked, _with_types)
    if _fit(with_types):
        return tuple(with_types)
    return tuple(_weakened(checked, _with_any_arguments))


def render_leniently(
    request: ChatRequest, render: Callable[[ChatRequest], RenderedChat]
) -> RenderedChat:
    """Render a conversation whose tools are ``enforceable``.

    A grammar may be too large for tools that are not. Then any arguments will do.

    Raises:
        TemplateError, GrammarError: as ``render``.
    """
    rendered = render(request)
    if not request.uses_tools or rendered.grammar is None:
        return rendered
    try:
        check_gbnf(rendered.grammar.gbnf, rendered.grammar.root)
    except GrammarError:
        tools = tuple(map(_with_any_arguments, request.tools))
        return render(replace(request, tools=tools))
    return rendered


# ---- one tool --------------------------------------------------------------------------------


def _look(text: str) -> tuple[str, str]:
    """Why a schema cannot be enforced, "" if it can; and what can be, as JSON text."""
    schema = json.loads(text)
    problem = _problem(schema)
    if not problem:
        return "", text
    few = len(text) <= _LONGEST_KNOWN
    found = next(each for each in _weaker(schema, few) if not _problem(each))
    return problem, json.dumps(found)


_known_look = remembering(_MOST_KNOWN)(_look)


def _problem(schema: Mapping[str, Any]) -> str:
    """Why a schema cannot be enforced as a whole, "" if it can."""
    if (schema.get("type") or "object") != "object":
        return f"they are of the type {shown(schema['type'])}, and arguments are an object"
    try:
        check_tools([schema])
        check_gbnf(schema_to_gbnf(call_schema("", schema)))
    except (GrammarError, ParameterError) as error:
        return str(error)
    return ""


def _weaker(schema: Mapping[str, Any], in_parts: bool) -> Iterator[Mapping[str, Any]]:
    """Weaker and weaker schemas; the last one always works."""
    properties = schema.get("properties")
    if in_parts and isinstance(properties, Mapping) and len(properties) <= _MOST_TRIED:
        # Those arguments are free that cannot be enforced.
        kept = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        tried = {
            name: _type_of(part) if _problem({**kept, **_object({name: part}, ())}) else part
            for name, part in properties.items()
        }
        yield {**kept, **_object(tried, schema.get("required"))}
    yield _only_types(schema)
    yield _ANY


def _only_types(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of an object, with nothing but the types of its arguments."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return _ANY
    types = {name: _type_of(part) for name, part in properties.items()}
    return _object(types, schema.get("required"))


def _object(properties: Mapping[str, Any], required: Any) -> dict[str, Any]:
    names = required if isinstance(required, list) else ()
    needed = dict.fromkeys(name for name in names if isinstance(name, str))
    return {"type": "object", "properties": properties, "required": [*needed]}


def _type_of(part: Any) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return {"type": kind} if isinstance(kind, str) and kind in _TYPES else {}


# ---- all together ------------------------------------------------------------------------------


def _with_types(tool: Tool) -> Tool:
    return replace(tool, enforced=_only_types(tool.schema_of_calls))


def _with_any_arguments(tool: Tool) -> Tool:
    return replace(tool, enforced=_ANY)


def _weakened(tools: Sequence[Tool], weaker: Callable[[Tool], Tool]) -> list[Tool]:
    """The tools, as few as possible of the largest ones weakened."""
    sizes = [len(json.dumps(tool.schema_of_calls)) for tool in tools]
    by_size = sorted(range(len(tools)), key=lambda place: -sizes[place])
    low, high = 1, len(tools)
    while low < high:
        middle = (low + high) // 2
        if _fit(_changed(tools, by_size[:middle], weaker)):
            high = middle
        else:
            low = middle + 1
    return _changed(tools, by_size[:high], weaker)


def _changed(
    tools: Sequence[Tool], places: Sequence[int], change: Callable[[Tool], Tool]
) -> list[Tool]:
    chosen = {*places}
    return [change(tool) if i in chosen else tool for i, tool in enumerate(tools)]


def _fit(tools: Sequence[Tool]) -> bool:
    try:
        check_tools([tool.schema_of_calls for tool in tools])
    except GrammarError:
        return False
    return True
