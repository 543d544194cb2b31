"""Rendering long conversations quickly.

llama.cpp renders a conversation three times per request (with and without the opening of the reply,
to find that opening) and analyses the template each time, and its Jinja engine takes about ten
times as long as Python's. For a hundred turns, that costs as much time as hundreds of tokens. So
when llama.cpp has rendered a request and Python's Jinja produced the same prompt byte for byte,
further requests of the same *shape* are rendered by Python. The other results (grammar, parser,
opening) depend only on the options, and are taken from the first request.

The shape of a request is its options and the kinds of its messages in order. Templates that Python
renders differently, or not at all, stay with llama.cpp.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

from llama_py.chat.templates.jinja import Jinja2ChatFormatter
from llama_py.errors import TemplateError
from llama_py.tenants import Remembered

__all__ = ["QuickRenderer"]

Inputs = Mapping[str, Any]
Key = tuple[str, frozenset[tuple[Any, Any]]]
_MOST_KNOWN = 64
#: In templates with these words llama.cpp takes white space from around the messages, so that what
#: it does depends on the words.
_TRIMMED = "You have access to the following functions in JSONSchema format"


@dataclass(frozen=True, slots=True)
class _Known:
    """llama.cpp's answer for a shape.

    Attributes:
        params: its answer, without the prompt.
        objects: tool arguments go to the template as objects, not as text.
        bos: BOS text that llama.cpp takes from the beginning of the prompt.
    """

    params: dict[str, Any]
    objects: bool
    bos: str


class QuickRenderer:
    """Renders requests like those that it has learned. Safe to use from several threads.

    Args:
        info: what ``TemplateHandle.info`` returns; a function, because it is not always needed.
        bos, eos: texts of those tokens.
    """

    def __init__(self, info: Callable[[], Mapping[str, Any]], bos: str, eos: str) -> None:
        self._get_info = info
        self._bos, self._eos = bos, eos
        #: Those that Python renders, and those that it does not.
        self._known: Remembered[Key, _Known | Literal[False]] = Remembered(_MOST_KNOWN)

    def render(self, inputs: Inputs) -> dict[str, Any] | None:
        """The answer of ``TemplateHandle.apply``, or None if llama.cpp has to render it."""
        known = self._find(inputs)
        if known is None:
            return None
        prompt = self._prompt(inputs, known.objects, known.bos)
        if prompt is None or not prompt.endswith(known.params["generation_prompt"]):
            return None
        return {**known.params, "prompt": prompt}

    def learn(self, inputs: Inputs, params: dict[str, Any]) -> None:
        """Remember what llama.cpp answered, if Python gives the same prompt."""
        key = _key(inputs)
        if key is None:
            return
        if key not in self._known:
            self._known.put(key, self._compare(inputs, params) or False)

    def _find(self, inputs: Inputs) -> _Known | None:
        key = _key(inputs)
        if key is None:
            return None
        return self._known.get(key) or None

    def _compare(self, inputs: Inputs, params: dict[str, Any]) -> _Known | None:
        calls = any("tool_calls" in message for message in inputs["messages"])
        for objects in (True, False) if calls else (True,):
            for bos in ("", self._bos) if self._bos else ("",):
                if self._prompt(inputs, objects, bos) == params["prompt"]:
                    return _Known({**params, "prompt": ""}, objects, bos)
        return None

    # ---- Python's Jinja ------------------------------------------------------------------------

    @cached_property
    def _info(self) -> Mapping[str, Any]:
        return self._get_info()

    @cached_property
    def _formatters(self) -> dict[bool, Jinja2ChatFormatter | None]:
        """One for requests without tools, one for requests with."""
        plain, tools = self._info["source"], self._info["source_tool_use"]
        return {False: self._formatter(plain), True: self._formatter(tools or plain)}

    def _formatter(self, source: str) -> Jinja2ChatFormatter | None:
        if _TRIMMED in source:
            return None
        try:
            return Jinja2ChatFormatter(source, self._eos, self._bos)
        except TemplateError:
            return None

    def _prompt(self, inputs: Inputs, objects: bool, bos: str) -> str | None:
        formatter = self._formatters[bool(inputs.get("tools"))]
        if formatter is None:
            return None
        try:
            prompt = formatter(**self._values(inputs, objects)).prompt
        except Exception:  # whatever it was: this is a short cut, and llama.cpp has the last word
            return None
        return prompt.removeprefix(bos)

    def _values(self, inputs: Inputs, objects: bool) -> dict[str, Any]:
        values = {
            "messages": self._messages(inputs["messages"], objects),
            "enable_thinking": inputs["enable_thinking"],
            "date_string": time.strftime("%d %b %Y"),
            "datetime": time.strftime("%b %d %Y"),
            "add_generation_prompt": inputs["add_generation_prompt"],
            **inputs["template_kwargs"],
        }
        if inputs.get("tools"):
            values["tools"] = inputs["tools"]
        return values

    def _messages(self, messages: Any, objects: bool) -> list[Mapping[str, Any]]:
        out = [self._message(message, objects) for message in messages]
        system = bool(out) and out[0]["role"] == "system"
        if system and len(out) > 1 and not self._info["caps"].get("supports_system_role", True):
            first, second = out[0]["content"], out[1]["content"]
            if isinstance(first, str) and isinstance(second, str):
                out[:2] = [{**out[1], "content": f"{first}\n{second}"}]
        return out

    def _message(self, message: Mapping[str, Any], objects: bool) -> Mapping[str, Any]:
        if message["role"] == "developer" and "<|channel|>" not in self._info["source"]:
            message = {**message, "role": "system"}
        if objects and "tool_calls" in message:
            calls = [_with_object(call) for call in message["tool_calls"]]
            message = {**message, "tool_calls": calls}
        return message


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}


def _kinds(messages: Any) -> list[tuple[Any, ...]]:
    """The properties of each message, apart from its words, on which rendering may depend."""
    out, calls = [], list[Any]()
    for message in messages:
        content = message["content"]
        kind = [message["role"], bool(content), "reasoning_content" in message, "name" in message]
        if message["role"] == "tool":  # results may be sorted, and JSON be taken apart
            called = message.get("tool_call_id")
            kind += [calls.index(called) if called in calls else -1, content.lstrip()[:1] in "{["]
        else:
            calls = [call.get("id") for call in message.get("tool_calls", ())]
            kind.append(len(calls))
        out.append(tuple(kind))
    return out


def _key(inputs: Inputs) -> Key | None:
    """The options and the shape of a request; None for requests that llama.cpp should render."""
    messages = inputs["messages"]
    if inputs["continue_final_message"] or inputs["now"] is not None:
        return None
    if any(isinstance(message["content"], list) for message in messages):
        return None
    kinds = [None, *_kinds(messages), None]
    options = {name: value for name, value in inputs.items() if name != "messages"}
    try:
        text = json.dumps(options, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return None  # llama.cpp's side says what is wrong with it
    return text, frozenset(pairwise(kinds))
