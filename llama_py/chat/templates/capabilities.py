"""``capabilities_of``: what a template can express, found out by rendering small conversations.

llama.cpp's chat code asks this of each template, and adapts messages to it: what has no place of
its own becomes part of something that has one. A template can do what shows in its text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llama_py.errors import TemplateError

__all__ = ["capabilities_of", "tells_nothing_apart"]

Values = dict[str, Any]
Render = Callable[[Values], str]

#: What is looked for in a prompt.
_SAID, _NAME, _KEY, _VALUE, _SECOND = (
    "Zebra",
    "probe_tool",
    "probe_key",
    "probeValue",
    "probeSecond",
)
_EFFORTS = ("none", "low", "high", "max")
_USER = {"role": "user", "content": "Hello"}
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A probe.",
        "parameters": {
            "type": "object",
            "properties": {_KEY: {"type": "string", "description": "A key."}},
            "required": [_KEY],
        },
    },
}


def capabilities_of(render: Render) -> dict[str, bool]:
    """The abilities of a template, with llama.cpp's names.

    Args:
        render: the text of its variables; raises a ``TemplateError`` where it refuses them.
    """

    def shown(*messages: Values, **variables: Any) -> str:
        """The prompt, or nothing where there is none."""
        values = {"messages": messages, "bos_token": "", "eos_token": "", **variables}
        for completed in (values, {**values, "messages": [*map(_with_thoughts, messages)]}):
            try:
                return render({"tools": [], "add_generation_prompt": True, **completed})
            except TemplateError:
                continue
        return ""

    objects = _calls(shown, {_KEY: _VALUE}, {_KEY: _SECOND})
    # A dictionary that is written as it is has Python's quotes: arguments are meant as text.
    takes_objects = _VALUE in objects and f"{{'{_KEY}': '{_VALUE}'" not in objects
    texts = "" if takes_objects else _calls(shown, _as_text(_VALUE), _as_text(_SECOND))
    calls = objects if takes_objects else texts
    return {
        **_contents(shown),
        "supports_system_role": _SAID in shown({"role": "system", "content": _SAID}, _USER),
        "supports_tools": _NAME in shown(_USER, tools=[_TOOL]),
        "supports_tool_calls": _VALUE in calls,
        "supports_parallel_tool_calls": _VALUE in calls and _SECOND in calls,
        "supports_object_arguments": takes_objects,
        "supports_preserve_reasoning": _SAID in _with_history(shown),
        "supports_reasoning_effort": len({shown(_USER, **_effort(each)) for each in _EFFORTS}) > 1,
    }


def tells_nothing_apart(render: Render) -> bool:
    """Whether a call without words is written otherwise than one with an empty text.

    Then the template means null, which OpenAI's form has there; some write an empty message else.
    """
    prompts = []
    for content in ("", None):
        asking = {"role": "assistant", "content": content, "tool_calls": [_call(1, {_KEY: _VALUE})]}
        result = {"role": "tool", "content": "Result", "tool_call_id": "call00001", "name": _NAME}
        values = {"messages": [_USER, asking, result, _USER], "tools": [_TOOL]}
        try:
            prompts.append(render({"bos_token": "", "eos_token": "", **values}))
        except TemplateError:
            return False
    empty, null = prompts
    return null != empty and "none" not in null.lower() and "null" not in null


def _call(number: int, arguments: Any) -> Values:
    function = {"name": _NAME, "arguments": arguments}
    return {"id": f"call0000{number}", "type": "function", "function": function}


def _contents(shown: Callable[..., str]) -> dict[str, bool]:
    """Whether the content of a message may be a text, and a list of parts."""
    text = shown({"role": "user", "content": _SAID})
    parts = shown({"role": "user", "content": [{"type": "text", "text": _SAID}]})
    typed = _SAID in parts and not any(mark in parts for mark in ("'type'", '"type"'))
    return {"supports_string_content": _SAID in text or not typed, "supports_typed_content": typed}


def _calls(shown: Callable[..., str], first: Any, second: Any) -> str:
    """A conversation with two calls; where a template takes one only, with that."""
    calls = [_call(1, first), _call(2, second)]
    for some in (calls, calls[:1]):
        asking = {"role": "assistant", "content": "", "tool_calls": some}
        results = [
            {"role": "tool", "content": "Result", "tool_call_id": call["id"], "name": _NAME}
            for call in some
        ]
        answer = {"role": "assistant", "content": "So it is."}
        prompt = shown(_USER, asking, *results, answer, _USER, tools=[_TOOL])
        if _VALUE in prompt:
            return prompt
    return ""


def _as_text(value: str) -> str:
    return f'{{"{_KEY}": "{value}"}}'


def _with_history(shown: Callable[..., str]) -> str:
    """A conversation that keeps the reasoning of all its replies, if the template can."""
    reply = {"role": "assistant", "content": "Hello.", "reasoning_content": "Well."}
    messages = (_USER, {**reply, "reasoning_content": _SAID}, _USER, reply, _USER)
    keeps = dict.fromkeys(("clear_thinking", "truncate_history_thinking", "drop_thinking"), False)
    return shown(*messages, enable_thinking=True, preserve_thinking=True, **keeps)


def _effort(effort: str) -> Values:
    return {"enable_thinking": True, "reasoning_effort": effort, "reasoning_strength": effort}


def _with_thoughts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """With empty reasoning, which some templates need in each reply."""
    return {"reasoning_content": "", **message} if message["role"] == "assistant" else message
