"""OpenAI's conversations, read: messages, tools, which of them to call, and the reply's format.

Older forms (``functions``, ``function_call``, the role ``function``) are read here, so that no
other module knows them. Every mistake is a ``ParameterError`` that names the place
(``messages[3].content[0]``), the value found there, and the values that would be accepted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from llama_py.chat.checks import check_json, check_text, read_arguments
from llama_py.chat.conversation import (
    AudioPart,
    ImagePart,
    Message,
    Role,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from llama_py.dialects.media_parts import MEDIA_PARTS as _MEDIA_PARTS
from llama_py.dialects.media_parts import read_media_part
from llama_py.errors import ParameterError, ParameterTypeError, shown
from llama_py.media import objects
from llama_py.options.checks import whole_text

__all__ = ["read_messages", "read_parts", "read_response_format", "read_tool_choice", "read_tools"]

ROLES = ("system", "developer", "user", "assistant", "tool")
_SPEAKERS = ("user", "assistant", "system", "developer")
TOOL_CHOICES = ("auto", "none", "required")
_Mode = Literal["auto", "none", "required"]


def _check_mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ParameterTypeError(f"{where} must be an object, not {shown(value)}")
    return value


def _check_sequence(value: Any, where: str) -> Sequence[Any]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ParameterTypeError(f"{where} must be a list, not {shown(value)}")
    return value


# ---- content --------------------------------------------------------------------------------


def _part(part: Any, where: str) -> Text | ImagePart | AudioPart:
    if isinstance(part, str):
        return Text(whole_text(part, where))
    if isinstance(part, ImagePart | AudioPart):
        return part
    if isinstance(part, objects.Image | objects.Audio):
        made = ImagePart if isinstance(part, objects.Image) else AudioPart
        if isinstance(part.source, bytes):
            return made(part.source, part.media_type)
        return made(media_type=part.media_type, decoded=part.source)
    if not isinstance(part, Mapping):
        raise ParameterTypeError(
            f'{where} must be a part such as {{"type": "text", "text": ...}}, not {shown(part)}'
        )
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text"):
        return Text(check_text(part.get("text"), f"{where}.text"))
    if kind == "refusal":
        return Text(check_text(part.get("refusal"), f"{where}.refusal"))
    if kind in _MEDIA_PARTS:
        return read_media_part(part, kind, where)
    raise ParameterError(
        f'{where}.type is {shown(kind)}; expected "text", "image_url" or "input_audio"'
    )


def read_parts(content: Any, where: str) -> tuple[Text | ImagePart | AudioPart, ...]:
    """A list of parts of a message, as ``content`` has it.

    Raises:
        ParameterError, MediaError: it is none, or a part cannot be read.
    """
    parts = _check_sequence(content, where)
    return tuple(_part(part, f"{where}[{i}]") for i, part in enumerate(parts))


def _content(
    message: Mapping[str, Any], role: str, where: str
) -> tuple[Text | ImagePart | AudioPart, ...]:
    content = message.get("content")
    if isinstance(content, str):
        return (Text(whole_text(content, f"{where}.content")),)
    if content is None:
        if role == "assistant":
            return ()
        if "content" in message:  # null is a text of no words, as for llama-server
            return (Text(""),)
        raise ParameterError(
            f'{where}.content is missing; only an assistant message may have none, a "{role}" '
            "message needs a string or a list of parts"
        )
    if isinstance(content, (bytes, bytearray)):
        raise ParameterTypeError(
            f"{where}.content must be a string, not bytes; decode it first: content.decode()"
        )
    if isinstance(content, Sequence):
        return read_parts(content, f"{where}.content")
    if role == "tool":
        raise ParameterTypeError(
            f"{where}.content must be a string, not {shown(content)}; write a tool's result as "
            "text, for example with json.dumps(result)"
        )
    raise ParameterTypeError(
        f'{where}.content must be a string or a list of parts such as {{"type": "text", "text": '
        f"...}}, not {shown(content)}"
    )


# ---- tool calls ------------------------------------------------------------------------------


def _tool_call(call: Any, where: str) -> ToolCall:
    call = _check_mapping(call, where)
    kind = call.get("type")
    if kind not in (None, "function"):
        raise ParameterError(f'{where}.type is {shown(kind)}; only "function" exists')
    function = _check_mapping(call.get("function"), f"{where}.function")
    name = check_text(function.get("name"), f"{where}.function.name")
    given, place = function.get("arguments"), f"{where}.function.arguments"
    arguments = "{}"
    if isinstance(given, str):
        arguments = read_arguments(given, place)
    elif given is not None:
        check_json(given, place)
        arguments = read_arguments(json.dumps(given, ensure_ascii=False), place)
    return ToolCall(name, arguments, _optional(call, "id", where))


def _tool_calls(message: Mapping[str, Any], where: str) -> list[ToolCall]:
    legacy = message.get("function_call")
    if legacy is not None:
        call = {"id": _legacy_id(legacy), "function": legacy}
        return [_tool_call(call, f"{where}.function_call")]
    calls = message.get("tool_calls")
    if calls is None:
        return []
    calls = _check_sequence(calls, f"{where}.tool_calls")
    read = [_tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]
    if len(read) == 1 and not read[0].id:  # it is clear which one a result belongs to
        return [replace(read[0], id=f"call_{read[0].name}")]
    return read


def _legacy_id(call: Any) -> str:
    name = call.get("name") if isinstance(call, Mapping) else None
    return f"call_{name}"


def _optional(message: Mapping[str, Any], field: str, where: str) -> str:
    value = message.get(field)
    return "" if value is None else check_text(value, f"{where}.{field}")


def _call_id(message: Mapping[str, Any], previous: Sequence[Message], where: str) -> str:
    call_id = message.get("tool_call_id")
    if call_id is not None:
        return check_text(call_id, f"{where}.tool_call_id")
    # The calls in the last assistant message that have no result yet.
    asked: list[str] = []
    answered: set[str] = set()
    for earlier in reversed(previous):
        if earlier.role != "tool":
            ids = [part.id for part in earlier.parts if isinstance(part, ToolCall)]
            asked = [each for each in ids if each and each not in answered]
            break
        answered |= {part.call_id for part in earlier.parts if isinstance(part, ToolResult)}
    if len(asked) == 1:
        return asked[0]
    raise ParameterError(
        f"{where}.tool_call_id is missing, and the assistant message before it has "
        f"{len(asked)} calls with an id; say which one this is the result of"
    )


# ---- messages --------------------------------------------------------------------------------


#: Parts of the content of an assistant that say what it thought, as clients of several providers
#: send them back.
_THOUGHTS = ("thinking", "reasoning")


def _thoughts(message: Mapping[str, Any], where: str) -> tuple[list[Thinking], Mapping[str, Any]]:
    """An assistant's reasoning, and its message without the parts that say so."""
    said, rest, parts = [], [], message.get("content")
    for i, part in enumerate(parts if isinstance(parts, list) else ()):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in _THOUGHTS:
            said.append(_thought(part, kind, f"{where}.content[{i}]"))
        else:
            rest.append(part)
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    without = {**message, "content": rest} if said else message
    if reasoning:  # clients that send both send the same twice
        said = [Thinking(check_text(reasoning, f"{where}.reasoning_content"))]
    return said, without


def _thought(part: Mapping[str, Any], kind: str, where: str) -> Thinking:
    given, place = part.get(kind), f"{where}.{kind}"
    if given is None:
        given, place = part.get("text"), f"{where}.text"
    if not isinstance(given, list):
        return Thinking(check_text(given, place))
    texts = [_check_mapping(each, f"{place}[{i}]") for i, each in enumerate(given)]  # Mistral's
    return Thinking("".join(check_text(each.get("text"), f"{place}[].text") for each in texts))


def _message(given: Any, previous: Sequence[Message], where: str) -> Message:
    message = _check_mapping(given, where)
    role = message.get("role")
    if role == "function":  # the spelling before tools
        call_id = message.get("tool_call_id")
        message = {**message, "tool_call_id": _legacy_id(message) if call_id is None else call_id}
        role = "tool"
    if role not in ROLES:
        raise ParameterError(f"{where}.role is {shown(role)}; expected one of {', '.join(ROLES)}")
    thoughts: list[Thinking] = []
    if role == "assistant":
        thoughts, message = _thoughts(message, where)
    content = _content(message, role, where)
    name = _optional(message, "name", where)
    if role == "tool":
        call_id = _call_id(message, previous, where)
        return Message("tool", (ToolResult(call_id, content, name=name),))
    if role == "assistant":
        calls = _tool_calls(message, where)
        return Message("assistant", (*thoughts, *content, *calls), name)
    return Message(cast(Role, role), content, name)


def read_messages(messages: Any) -> tuple[Message, ...]:
    """Check messages and read them.

    Raises:
        ParameterError: with the place of the first mistake.
    """
    out: list[Message] = []
    for i, message in enumerate(_check_sequence(messages, "messages")):
        if type(message) is dict and len(message) == 2:  # most messages, quickly
            role, content = message.get("role"), message.get("content")
            if role in _SPEAKERS and type(content) is str and content.isascii():
                out.append(Message(role, (Text(content),)))
                continue
        out.append(_message(message, out, f"messages[{i}]"))
    return tuple(out)


# ---- tools -----------------------------------------------------------------------------------


def _tool(given: Any, where: str) -> Tool:
    tool = _check_mapping(given, where)
    kind = tool.get("type")
    if kind not in (None, "function"):
        raise ParameterError(f'{where}.type is {shown(kind)}; only "function" tools can be called')
    if tool.get("function") is None and "name" in tool:
        raise ParameterTypeError(
            f"{where}.function is missing: name, description and parameters belong into it, as in "
            f'{{"type": "function", "function": {{"name": {json.dumps(str(tool["name"]))[:60]}, '
            f'"parameters": {{...}}}}}}'
        )
    return _function(tool.get("function"), f"{where}.function")


def _function(given: Any, where: str) -> Tool:
    function = _check_mapping(given, where)
    name = check_text(function.get("name"), f"{where}.name")
    if not name:
        raise ParameterError(f"{where}.name is empty")
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    _check_mapping(parameters, f"{where}.parameters")
    description = check_text(function.get("description") or "", f"{where}.description")
    return Tool(name, description, parameters)


def read_tools(tools: Any, functions: Any = None) -> tuple[Tool, ...]:
    """Check tool definitions and read them; None means that there are none.

    Args:
        functions: what ``tools`` was called before 2024.

    Raises:
        ParameterError: with the place of the first mistake.
    """
    if tools is not None:
        given = _check_sequence(tools, "tools")
        return tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(given))
    if functions is None:
        return ()
    given = _check_sequence(functions, "functions")
    return tuple(_function(each, f"functions[{i}]") for i, each in enumerate(given))


def read_tool_choice(choice: Any) -> ToolChoice:
    """Check a ``tool_choice`` (or ``function_call``) and read it; None is ``auto``.

    Raises:
        ParameterError: it is none of the known words, and names no function.
    """
    if choice is None:
        return ToolChoice()
    if isinstance(choice, Mapping):
        if choice.get("type") == "allowed_tools":
            return _allowed_tools(choice)
        function = _check_mapping(choice.get("function", choice), "tool_choice.function")
        return ToolChoice("named", check_text(function.get("name"), "tool_choice.function.name"))
    return ToolChoice(_mode(choice, "tool_choice", "or a function"))


def _mode(choice: Any, name: str, others: str) -> _Mode:
    if choice == "any":
        choice = "required"
    if choice not in TOOL_CHOICES:
        expected = ", ".join(TOOL_CHOICES)
        raise ParameterError(f"{name} is {shown(choice)}; expected {expected} {others}".strip())
    return cast(_Mode, choice)


def _allowed_tools(choice: Mapping[str, Any]) -> ToolChoice:
    """Some of the tools; the prompt lists all of them, so that what is cached of it fits."""
    name = "tool_choice.allowed_tools"
    allowed = _check_mapping(choice.get("allowed_tools"), name)
    given = _check_sequence(allowed.get("tools"), f"{name}.tools")
    names = []
    for i, tool in enumerate(given):
        entry = _check_mapping(tool, f"{name}.tools[{i}]")
        function = _check_mapping(entry.get("function", entry), f"{name}.tools[{i}].function")
        names.append(check_text(function.get("name"), f"{name}.tools[{i}].function.name"))
    mode = allowed.get("mode")
    mode = "auto" if mode is None else _mode(mode, f"{name}.mode", "")
    return ToolChoice(mode, allowed=tuple(dict.fromkeys(names))) if names else ToolChoice("none")


# ---- the format of the reply -----------------------------------------------------------------


def read_response_format(response_format: Any) -> Any:
    """The JSON schema that a ``response_format`` asks for, or None for free text.

    ``{"type": "json_object"}`` allows any object. The schema may be given as llama-cpp-python does,
    in a key ``"schema"`` beside it, or as OpenAI does, in ``{"type": "json_schema",
    "json_schema": {"schema": ...}}``.
    """
    if response_format is None:
        return None
    if isinstance(response_format, type) and hasattr(response_format, "model_json_schema"):
        name = response_format.__name__
        raise ParameterTypeError(
            f"response_format must be an object, not the class {name}; for its schema, pass "
            f'{{"type": "json_object", "schema": {name}.model_json_schema()}}'
        )
    response_format = _check_mapping(response_format, "response_format")
    kind = response_format.get("type")
    if kind is None or kind == "text":
        return None
    if kind == "json_object":
        schema = response_format.get("schema")
        return {"type": "object"} if schema is None or schema == {} else schema
    if kind != "json_schema":
        raise ParameterError(
            f"response_format.type is {shown(kind)}; expected text, json_object or json_schema"
        )
    wrapper = _check_mapping(response_format.get("json_schema"), "response_format.json_schema")
    if "schema" not in wrapper:
        raise ParameterError("response_format.json_schema.schema is missing")
    schema = wrapper["schema"]
    if not isinstance(schema, (Mapping, bool)):
        raise ParameterTypeError("response_format.json_schema.schema must be a JSON schema")
    return {"type": "object"} if schema == {} else schema
