"""Anthropic's tools, and which of them to call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from llama_py.chat.checks import check_json, check_text
from llama_py.chat.conversation import Tool, ToolChoice
from llama_py.dialects.anthropic.blocks import check_list, check_object, note_ignored
from llama_py.errors import ParameterError, ParameterTypeError, shown

__all__ = ["read_tool_choice", "read_tools"]

_MODES: dict[str, Literal["auto", "required", "none", "named"]] = {
    "auto": "auto",
    "any": "required",
    "none": "none",
    "tool": "named",
}


def read_tools(value: Any) -> tuple[Tool, ...]:
    """The tools that the model may call.

    Tools that run on Anthropic's servers have a type and no schema; they are left out.

    Raises:
        ParameterError: with the place of the first mistake.
    """
    if value is None:
        return ()
    tools = [_tool(each, f"tools[{i}]") for i, each in enumerate(check_list(value, "tools"))]
    return tuple(tool for tool in tools if tool is not None)


def _tool(value: Any, where: str) -> Tool | None:
    tool = check_object(value, where)
    if _is_left_out(tool):
        note_ignored("tools", shown(tool["type"]))
        return None
    name = check_text(tool.get("name"), f"{where}.name")
    if not name:
        raise ParameterError(f"{where}.name is empty")
    description = tool.get("description")
    text = "" if description is None else check_text(description, f"{where}.description")
    place = f"{where}.input_schema"
    schema = check_object(tool.get("input_schema"), place)
    kind = schema.get("type", "object")
    if kind != "object":
        raise ParameterError(f'{place}.type is {shown(kind)}; an input has the type "object"')
    check_json(schema, place)
    return Tool(name, text, schema if "type" in schema else {"type": "object", **schema})


def _is_left_out(tool: Mapping[str, Any]) -> bool:
    return tool.get("type") not in (None, "custom") and "input_schema" not in tool


def read_tool_choice(
    value: Any, tools: Sequence[Tool], given: Sequence[Mapping[str, Any]] = ()
) -> tuple[ToolChoice, bool | None]:
    """Which tools to call, and whether several at once; None leaves that to the template.

    Args:
        tools: those that there are.
        given: those of the request. One that was left out cannot be chosen, and no other one is in
            its place.

    Raises:
        ParameterError: there is no such choice.
    """
    if value is None:
        return ToolChoice(), None
    choice = check_object(value, "tool_choice")
    kind = choice.get("type")
    if not isinstance(kind, str) or kind not in _MODES:
        raise ParameterError(
            f"tool_choice.type is {shown(kind)}; expected one of {', '.join(_MODES)}"
        )
    alone = choice.get("disable_parallel_tool_use")
    if alone is not None and not isinstance(alone, bool):
        raise ParameterTypeError(
            f"tool_choice.disable_parallel_tool_use must be true or false, not {shown(alone)}"
        )
    parallel = False if alone else None
    if kind in ("any", "tool") and not tools and not given:
        raise ParameterError("tool_choice is given, but there are no tools to choose from")
    if not tools:  # those that were to be chosen from may have been left out
        return ToolChoice(), parallel
    name = check_text(choice.get("name"), "tool_choice.name") if kind == "tool" else ""
    if kind == "tool" and any(_is_left_out(each) and each.get("name") == name for each in given):
        return ToolChoice(), parallel
    return ToolChoice(_MODES[kind], name), parallel
