"""Input of templates: messages, tools and options as JSON values, in llama.cpp's form.

That form is OpenAI's, with a content that is one text wherever there is one text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_py.chat.conversation import (
    AudioPart,
    ImagePart,
    Message,
    Part,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from llama_py.chat.messages import ChatRequest

__all__ = ["choice_value", "inputs_of", "message_values", "tool_values"]

Values = dict[str, Any]


def inputs_of(request: ChatRequest, messages: Sequence[Message] | None = None) -> Values:
    """A request in the form of ``llama_py_chat_apply``.

    Args:
        messages: in place of its own.
    """
    kwargs = dict(request.template_kwargs)
    thinking = request.enable_thinking
    if thinking is None:
        thinking = bool(kwargs.get("enable_thinking", True))
    if request.reasoning_effort == "none":
        thinking = False
    elif request.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", request.reasoning_effort)
    going_on = request.continue_final_message
    mode = request.tool_choice.mode
    return {
        "messages": message_values(request.messages if messages is None else messages),
        "tools": tool_values(request.shown_tools) or None,
        "tool_choice": "required" if mode == "named" else mode,
        "parallel_tool_calls": request.parallel_tool_calls,
        "template_kwargs": kwargs,
        "enable_thinking": thinking,
        "reasoning_format": request.reasoning_format,
        "continue_final_message": going_on,
        "add_generation_prompt": request.add_generation_prompt and not going_on,
        "now": request.now,
    }


def tool_values(tools: Sequence[Tool]) -> list[Values]:
    """Tools as functions."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            },
        }
        for tool in tools
    ]


def choice_value(choice: ToolChoice) -> str | Values:
    """Which tool to call, as ``tool_choice``."""
    if choice.mode == "named":
        return {"type": "function", "function": {"name": choice.name}}
    return choice.mode


def message_values(messages: Sequence[Message]) -> list[Values]:
    """Messages with ``role`` and ``content``, and what else they have."""
    return [_message(message) for message in messages]


def _message(message: Message) -> Values:
    parts = message.parts
    if len(parts) == 1 and isinstance(text := parts[0], Text) and not message.name:
        return {"role": message.role, "content": text.text}  # most messages, quickly
    if message.role == "tool":
        result = next(part for part in parts if isinstance(part, ToolResult))
        out: Values = {"role": "tool", "content": _content(result.content)}
        if name := message.name or result.name:
            out["name"] = name
        out["tool_call_id"] = result.call_id
        return out
    out = {"role": message.role, "content": _content(parts)}
    if message.name:
        out["name"] = message.name
    thoughts = [part.text for part in parts if isinstance(part, Thinking) and part.text]
    if thoughts:
        out["reasoning_content"] = "\n".join(thoughts)
    for part in parts:
        if isinstance(part, ToolCall):
            function = {"name": part.name, "arguments": part.arguments}
            call: Values = {"type": "function", "function": function}
            if part.id:
                call["id"] = part.id
            out.setdefault("tool_calls", []).append(call)
    return out


def _content(parts: Sequence[Part]) -> str | list[Values]:
    values: list[Values] = []
    for part in parts:
        if isinstance(part, Text):
            values.append({"type": "text", "text": part.text})
        elif isinstance(part, ImagePart | AudioPart):
            values.append({"type": "media_marker", "text": part.marker})
    if len(values) > 1 or (values and values[0]["type"] != "text"):
        return values
    return values[0]["text"] if values else ""
