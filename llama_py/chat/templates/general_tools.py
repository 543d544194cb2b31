"""A form of tools for templates that have none: how they are declared, called, and answered.

Gemma, Phi, SmolLM2 and most fine-tunes have a template that knows nothing of tools. For those the
conversation is rewritten before it is rendered (``written_out``): the tools are declared in the
system message, in the words that small models have seen most, calls become text of the assistant,
and results messages of the user. The template renders that like any other conversation, so that
each prompt begins with the one before it and the reply to that.

What the reply may be (grammar, trigger and parser) comes from a small template of our own
(``calling_template``), whose calls llama.cpp's chat code knows. It opens the reply as the model's
own template does, and has the same marks of reasoning.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from llama_py.chat.conversation import Message, Part, Text, Thinking, Tool, ToolCall, ToolResult
from llama_py.chat.templates.inputs import tool_values
from llama_py.chat.templates.normal_form import normal_form
from llama_py.chat.templates.system import Slots

__all__ = ["CALL_MARK", "calling_template", "written_out"]

#: What begins a call.
CALL_MARK = "<tool_call>"

_DECLARED = """\
# Tools

You can call these functions. Here they are, each as a JSON object in a line of its own:
<tools>
{tools}
</tools>

To call a function, write its name and its arguments as a JSON object between these marks:
<tool_call>
{{"name": "function-name", "arguments": {{"argument-name": "value"}}}}
</tool_call>"""

#: ``prefix`` opens a message of the assistant, ``opening`` the reply; JSON texts, as the marks.
_CALLING = """\
{%- for message in messages %}
{%- if message.role == "assistant" %}
{{- PREFIX }}
{%- if message.reasoning_content %}
{{- THOUGHT }}
{%- endif %}
{{- message.content or "" }}
{%- for call in message.tool_calls or [] %}
{{- "\\n" if not loop.first or message.content else "" }}
{{- '<tool_call>\\n{"name": ' + call.function.name | tojson + ', "arguments": ' }}
{{- call.function.arguments | tojson + "}\\n</tool_call>" }}
{%- endfor %}
{{- "<|end|>\\n" }}
{%- else %}
{{- "<|" + message.role + "|>\\n" + (message.content or "") }}
{%- if loop.first and tools %}
{{- "\\n<tools>" }}
{%- for tool in tools %}
{{- "\\n" + tool | tojson }}
{%- endfor %}
{{- "\\n</tools>" }}
{%- endif %}
{{- "<|end|>\\n" }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- OPENING }}
{%- endif %}
"""


def calling_template(opening: str, thinking: tuple[str, str] | None) -> str:
    """The text of a template whose replies may contain calls.

    Args:
        opening: how the model's own template opens a reply.
        thinking: the marks around the reasoning of its family, if it has some.
    """
    start, end = thinking or ("", "")
    prefix = opening.partition(start)[0] if start else opening
    thought = f'{json.dumps(start)} + "\\n" + message.reasoning_content + "\\n" + '
    thought += json.dumps(f"{end}\n\n")
    return (
        _CALLING.replace("PREFIX", json.dumps(prefix, ensure_ascii=False))
        .replace("THOUGHT", thought if thinking else '""')
        .replace("OPENING", json.dumps(opening, ensure_ascii=False))
    )


# ---- the conversation ---------------------------------------------------------------------------


def written_out(
    messages: Sequence[Message], tools: Sequence[Tool], slots: Slots
) -> tuple[Message, ...]:
    """The conversation as one without tools.

    Args:
        tools: those that it declares.
        slots: which system messages the template takes.
    """
    rest = list(_with_results(messages))
    if tools:  # which are declared in the system message, behind what it says
        lines = (json.dumps(value, ensure_ascii=False) for value in tool_values(tools))
        declared = _DECLARED.format(tools="\n".join(lines))
        if rest[0].role in ("system", "developer"):
            said = _text_of(rest[0].parts, "\n")
            text = f"{said}\n\n{declared}" if said else declared
            rest[0] = replace(rest[0], parts=(Text(text),))
        else:
            rest.insert(0, Message("system", (Text(declared),)))
    return normal_form(rest, slots)


def _with_results(messages: Sequence[Message]) -> Iterable[Message]:
    """With calls and results as text; the results of one turn are one message."""
    results: list[ToolResult] = []
    order: list[str] = []
    for message in messages:
        if message.role == "tool":
            results += (part for part in message.parts if isinstance(part, ToolResult))
            continue
        if results:
            yield _answer(results, order)
            results = []
        order = [part.id for part in message.parts if isinstance(part, ToolCall)]
        yield _calling(message) if order else message
    if results:
        yield _answer(results, order)


def _calling(message: Message) -> Message:
    """A message of the assistant with its calls as text, as a model would have written it."""
    said = _text_of(message.parts, "")
    calls = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            name = json.dumps(part.name, ensure_ascii=False)
            call = f'{{"name": {name}, "arguments": {part.arguments}}}'
            calls.append(f"{CALL_MARK}\n{call}\n</tool_call>")
    thoughts: list[Part] = [part for part in message.parts if isinstance(part, Thinking)]
    if said and not said[-1].isspace():  # some clients strip what the model wrote
        said += "\n"
    return replace(message, parts=(*thoughts, Text(said + "\n".join(calls))))


def _answer(results: Sequence[ToolResult], order: Sequence[str]) -> Message:
    """The results of a turn in the order of its calls: they have no names in this form."""
    places = {call_id: place for place, call_id in enumerate(order) if call_id}
    sorted_ = sorted(results, key=lambda result: places.get(result.call_id, len(places)))
    told = (_text_of(result.content, "\n") for result in sorted_)
    texts = (f"<tool_response>\n{text}\n</tool_response>" for text in told)
    return Message("user", (Text("\n".join(texts)),))


def _text_of(parts: Iterable[Part], between: str) -> str:
    """The texts among these parts as one."""
    return between.join(part.text for part in parts if isinstance(part, Text))
