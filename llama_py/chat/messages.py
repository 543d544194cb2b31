"""``ChatRequest``: one chat request, checked and normalised before anything is rendered.

The normal form is OpenAI's: messages with a role, tools as functions. Older forms (``functions``,
``function_call``, the ``function`` role) are converted here, so that no other module knows them.
Every mistake is a ``ParameterError`` that names the place (``messages[3].content[0]``), the value
found there, and the values that would be accepted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llama_py.chat.bounds import check_bounds, check_tools
from llama_py.chat.values import check_json, check_text, whole_text
from llama_py.errors import ParameterError, ParameterTypeError, shown
from llama_py.options import LOAD

__all__ = ["ChatRequest", "normalise_messages", "normalise_tools", "response_schema"]

Message = dict[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")
TOOL_CHOICES = ("auto", "none", "required")
CONTINUATIONS = (True, False, "content", "reasoning_content")
#: What a template sees under these names is the request's.
_NO_VARIABLES = ("messages", "tools")
_MEDIA_PARTS = ("image_url", "image", "input_image", "input_audio", "audio_url", "video_url")


def _check_mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ParameterTypeError(f"{where} must be an object, not {shown(value)}")
    return value


def _check_sequence(value: Any, where: str) -> Sequence[Any]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ParameterTypeError(f"{where} must be a list, not {shown(value)}")
    return value


# ---- content --------------------------------------------------------------------------------


def _part(part: Any, where: str) -> Message:
    if not isinstance(part, Mapping):
        raise ParameterTypeError(
            f'{where} must be a part such as {{"type": "text", "text": ...}}, not {shown(part)}'
        )
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text"):
        return {"type": "text", "text": check_text(part.get("text"), f"{where}.text")}
    if kind == "refusal":
        return {"type": "text", "text": check_text(part.get("refusal"), f"{where}.refusal")}
    if kind in _MEDIA_PARTS:
        raise ParameterError(
            f"{where} is a part of type {kind!r}, but no multimodal handler is loaded; load the "
            "model with its projector file (mmproj), or send text parts only"
        )
    raise ParameterError(f'{where}.type is {shown(kind)}; expected "text"')


def _content(message: Mapping[str, Any], role: str, where: str) -> str | list[Message]:
    content = message.get("content")
    if content is None:
        if role == "assistant":
            return ""
        raise ParameterError(
            f'{where}.content is missing; only an assistant message may have none, a "{role}" '
            "message needs a string or a list of parts"
        )
    if isinstance(content, str):
        return whole_text(content, f"{where}.content")
    if isinstance(content, (bytes, bytearray)) or not isinstance(content, Sequence):
        raise ParameterTypeError(_wrong_content(content, role, f"{where}.content"))
    return [_part(part, f"{where}.content[{i}]") for i, part in enumerate(content)]


def _wrong_content(content: Any, role: str, where: str) -> str:
    if isinstance(content, (bytes, bytearray)):
        return f"{where} must be a string, not bytes; decode it first: content.decode()"
    if role == "tool":
        return (
            f"{where} must be a string, not {shown(content)}; write a tool's result as text, for "
            "example with json.dumps(result)"
        )
    part = '{"type": "text", "text": ...}'
    return f"{where} must be a string or a list of parts such as {part}, not {shown(content)}"


# ---- tool calls ------------------------------------------------------------------------------


def _arguments(value: Any, where: str) -> str:
    if value is None or value == "":
        return "{}"
    if not isinstance(value, str):
        check_json(value, where)
        return whole_text(json.dumps(value, ensure_ascii=False), where)
    text = whole_text(value, where)
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParameterError(
            f"{where} is not JSON ({error}): {shown(value)}; send the text that the model wrote, "
            "or an object"
        ) from None
    check_json(parsed, where)
    return text


def _tool_call(call: Any, where: str) -> Message:
    call = _check_mapping(call, where)
    kind = call.get("type", "function")
    if kind != "function":
        raise ParameterError(f'{where}.type is {shown(kind)}; only "function" exists')
    function = _check_mapping(call.get("function"), f"{where}.function")
    name = check_text(function.get("name"), f"{where}.function.name")
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    out: Message = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if call.get("id") is not None:
        out["id"] = check_text(call["id"], f"{where}.id")
    return out


def _tool_calls(message: Mapping[str, Any], where: str) -> list[Message]:
    legacy = message.get("function_call")
    if legacy is not None:
        call = {"id": _legacy_id(legacy), "function": legacy}
        return [_tool_call(call, f"{where}.function_call")]
    calls = message.get("tool_calls")
    if calls is None:
        return []
    calls = _check_sequence(calls, f"{where}.tool_calls")
    return [_tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]


def _legacy_id(call: Any) -> str:
    name = call.get("name") if isinstance(call, Mapping) else None
    return f"call_{name}"


def _tool_call_id(message: Mapping[str, Any], previous: Sequence[Message], where: str) -> str:
    call_id = message.get("tool_call_id")
    if call_id is not None:
        return check_text(call_id, f"{where}.tool_call_id")
    asked = _open_calls(previous)
    if len(asked) == 1:
        return asked[0]
    raise ParameterError(
        f"{where}.tool_call_id is missing, and the assistant message before it has "
        f"{len(asked)} calls with an id; say which one this is the result of"
    )


def _open_calls(previous: Sequence[Message]) -> list[str]:
    """Ids of the calls in the last assistant message that have no result yet."""
    answered = set()
    for message in reversed(previous):
        if message["role"] == "tool":
            answered.add(message.get("tool_call_id"))
        else:
            ids = [call.get("id") for call in message.get("tool_calls", ())]
            return [i for i in ids if i is not None and i not in answered]
    return []


# ---- messages --------------------------------------------------------------------------------


def _assistant(message: Mapping[str, Any], out: Message, where: str) -> None:
    reasoning = message.get("reasoning_content", message.get("reasoning"))
    if reasoning:
        out["reasoning_content"] = check_text(reasoning, f"{where}.reasoning_content")
    calls = _tool_calls(message, where)
    if calls:
        out["tool_calls"] = calls


def _message(message: Any, previous: Sequence[Message], where: str) -> Message:
    message = _check_mapping(message, where)
    role = message.get("role")
    if role == "function":  # the spelling before tools
        legacy_id = _legacy_id(message)
        message = {"tool_call_id": legacy_id, **message}
        role = "tool"
    if role not in ROLES:
        raise ParameterError(f"{where}.role is {shown(role)}; expected one of {', '.join(ROLES)}")
    out: Message = {"role": role, "content": _content(message, role, where)}
    if message.get("name") is not None:
        out["name"] = check_text(message["name"], f"{where}.name")
    if role == "assistant":
        _assistant(message, out, where)
    if role == "tool":
        out["tool_call_id"] = _tool_call_id(message, previous, where)
    return out


def normalise_messages(messages: Any) -> tuple[Message, ...]:
    """Check messages and bring them to the current OpenAI form.

    Raises:
        ParameterError: with the place of the first mistake.
    """
    out: list[Message] = []
    for i, message in enumerate(_check_sequence(messages, "messages")):
        out.append(_message(message, out, f"messages[{i}]"))
    if not out:
        raise ParameterError("messages is empty; a chat needs at least one message")
    return tuple(out)


# ---- tools -----------------------------------------------------------------------------------


def _tool(tool: Any, where: str) -> Message:
    tool = _check_mapping(tool, where)
    kind = tool.get("type", "function")
    if kind != "function":
        raise ParameterError(f'{where}.type is {shown(kind)}; only "function" tools can be called')
    function = _check_mapping(tool.get("function"), f"{where}.function")
    name = check_text(function.get("name"), f"{where}.function.name")
    if not name:
        raise ParameterError(f"{where}.function.name is empty")
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    _check_mapping(parameters, f"{where}.function.parameters")
    description = check_text(function.get("description") or "", f"{where}.function.description")
    function = {"name": name, "description": description, "parameters": dict(parameters)}
    return {"type": "function", "function": function}


def normalise_tools(tools: Any) -> tuple[Message, ...]:
    """Check tool definitions; None means that there are no tools.

    Raises:
        ParameterError: a definition is wrong, or two tools have the same name; with the place.
    """
    if tools is None:
        return ()
    given = _check_sequence(tools, "tools")
    out = tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(given))
    names = [tool["function"]["name"] for tool in out]
    for name in names:
        if names.count(name) > 1:
            raise ParameterError(f"two tools are called {name!r}; a call could mean either")
    return out


def _is_about_tools(message: Mapping[str, Any]) -> bool:
    return message["role"] == "tool" or bool(message.get("tool_calls"))


def _tool_choice(choice: Any, names: Sequence[str]) -> str | Message:
    if choice is None:
        return "auto"
    if isinstance(choice, Mapping):
        function = choice.get("function", choice)
        name = _check_mapping(function, "tool_choice.function").get("name")
        if name not in names:
            known = ", ".join(names) or "none are given"
            raise ParameterError(f"tool_choice names {shown(name)}; the tools are: {known}")
        return {"type": "function", "function": {"name": name}}
    if choice == "any":
        choice = "required"
    if choice not in TOOL_CHOICES:
        expected = ", ".join(TOOL_CHOICES)
        raise ParameterError(f"tool_choice is {shown(choice)}; expected {expected} or a function")
    if choice == "required" and not names:
        raise ParameterError('tool_choice is "required", but there are no tools')
    return str(choice)


# ---- the format of the reply -----------------------------------------------------------------


def response_schema(response_format: Any) -> Any:
    """The JSON schema that a ``response_format`` asks for, or None for free text.

    ``{"type": "json_object"}`` allows any object. The schema may be given as llama-cpp-python does,
    in a key ``"schema"`` beside it, or as OpenAI does, in ``{"type": "json_schema",
    "json_schema": {"schema": ...}}``.
    """
    if response_format is None:
        return None
    response_format = _check_mapping(response_format, "response_format")
    kind = response_format.get("type", "text")
    if kind == "text":
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


def _check_template_kwargs(given: Any) -> None:
    check_json(_check_mapping(given, "chat_template_kwargs"), "chat_template_kwargs")
    for name in _NO_VARIABLES:
        if name in given:
            raise ParameterError(
                f"chat_template_kwargs.{name} would replace the conversation's own; pass {name} as "
                "an argument of the call"
            )


# ---- the request -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One chat request; checked and normalised when it is made.

    Attributes:
        messages: the conversation, normalised.
        tools: function tools, normalised.
        tool_choice: ``"auto"``, ``"none"``, ``"required"``, or ``{"function": {"name": ...}}``.
        parallel_tool_calls: allow several calls in a reply; None means if the template supports it.
        response_format: as in OpenAI's API.
        template_kwargs: further variables for the template, of any JSON type.
        enable_thinking: let a reasoning model reason; None is the model's default (yes).
        reasoning_effort: passed to templates that use it; ``"none"`` turns reasoning off.
        reasoning_budget: most tokens of reasoning (the engine enforces it); None for no limit.
        reasoning_format: ``"auto"`` parses reasoning out of the reply, ``"none"`` leaves it in.
        continue_final_message: the last message is the beginning of the reply. ``"content"`` and
            ``"reasoning_content"`` name the part that continues; True detects it.
        add_generation_prompt: end the prompt with the opening of an assistant message.
        now: the current time for the template, in seconds since the epoch; None for the clock's.
        functions, function_call: the names of ``tools`` and ``tool_choice`` before 2024.
        special_tokens_in_content: what the texts of special tokens in user and tool messages are:
            ``"text"``, ``"parse"`` (the tokens), or ``"refuse"`` (an error); None is the default
            of the model that was loaded.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: Mapping[str, Any] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    reasoning_budget: int | None = None
    reasoning_format: str = "auto"
    continue_final_message: bool | str = False
    add_generation_prompt: bool = True
    now: int | None = None
    functions: Sequence[Mapping[str, Any]] | None = None
    function_call: str | Mapping[str, Any] | None = None
    special_tokens_in_content: str | None = None

    def __post_init__(self) -> None:
        self._set("messages", normalise_messages(self.messages))
        tools = self.tools
        if self.functions is not None and tools is None:
            tools = [{"type": "function", "function": entry} for entry in self.functions]
        self._set("tools", normalise_tools(tools))
        choice = self.tool_choice if self.tool_choice is not None else self.function_call
        self._set("tool_choice", _tool_choice(choice, self.tool_names))
        schema = response_schema(self.response_format)
        if schema is not None:
            check_bounds(schema)
        check_tools(self.tools or ())
        _check_template_kwargs(self.template_kwargs)
        self._check_options()
        self._check_continuation()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_options(self) -> None:
        if self.reasoning_format not in ("auto", "none", "deepseek", "deepseek-legacy"):
            raise ParameterError(
                f'reasoning_format is {shown(self.reasoning_format)}; expected "auto" or "none"'
            )
        if self.special_tokens_in_content is not None:
            LOAD["special_tokens_in_content"].read(self.special_tokens_in_content)
        budget = self.reasoning_budget
        if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int)):
            raise ParameterTypeError(f"reasoning_budget must be an integer, not {shown(budget)}")

    def _check_continuation(self) -> None:
        if self.continue_final_message not in CONTINUATIONS:
            raise ParameterError(
                f"continue_final_message is {shown(self.continue_final_message)}; expected "
                'True, False, "content" or "reasoning_content"'
            )
        if not self.continue_final_message:
            return
        last = self.messages[-1]
        if last["role"] != "assistant" or last.get("tool_calls"):
            raise ParameterError(
                "continue_final_message needs an assistant message without tool calls at the end; "
                f'the last message has the role "{last["role"]}"'
            )

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The names of the tools, in order."""
        return tuple(tool["function"]["name"] for tool in self.tools or ())

    @property
    def forced_tool(self) -> str | None:
        """The name of the one tool that must be called, or None if ``tool_choice`` names none."""
        choice = self.tool_choice
        return str(choice["function"]["name"]) if isinstance(choice, Mapping) else None

    @property
    def uses_tools(self) -> bool:
        """True if the reply may contain tool calls."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def shown_tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools that the prompt lists.

        With ``tool_choice="none"`` they are not listed, because the model would write a call as
        text. A conversation that contains calls keeps the list, and with it its cached prefix.
        """
        if self.tool_choice == "none" and not any(map(_is_about_tools, self.messages)):
            return ()
        return self.tools or ()

    @property
    def schema(self) -> Any:
        """The JSON schema that the reply has to follow, or None."""
        return response_schema(self.response_format)
