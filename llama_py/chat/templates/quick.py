"""Rendering long conversations quickly.

llama.cpp renders a conversation three times per request (with and without the opening of the reply,
to find that opening), and its Jinja engine takes about ten times as long as Python's. For a hundred
turns, that costs as much time as hundreds of tokens. So
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
from functools import cached_property
from itertools import pairwise, product, starmap
from typing import Any, Literal, NamedTuple

from llama_py.chat.templates.jinja import Jinja2ChatFormatter
from llama_py.errors import TemplateError
from llama_py.quick_dataclass import dataclass
from llama_py.tenants import Remembered

__all__ = ["QuickRenderer"]

Inputs = Mapping[str, Any]
Key = tuple[str, frozenset[tuple[Any, Any]]]
_MOST_KNOWN = 64
#: In templates with these words llama.cpp takes white space from around the messages, so that what
#: it does depends on the words.
_TRIMMED = "You have access to the following functions in JSONSchema format"


class _Form(NamedTuple):
    """What llama.cpp does with a conversation for a template.

    Attributes:
        objects: tool arguments go to the template as objects, not as text.
        bos: BOS text that is taken from the beginning of the prompt.
        thoughts: each reply has reasoning, which may be empty.
    """

    objects: bool = True
    bos: str = ""
    thoughts: bool = False


@dataclass(frozen=True, slots=True)
class _Known:
    """llama.cpp's answer for a shape.

    Attributes:
        params: its answer, without the prompt.
        form: what the template is given.
    """

    params: dict[str, Any]
    form: _Form


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
        key = _key(inputs)
        known = None if key is None else self._known.get(key)
        if not known:
            return None
        prompt = self._prompt(inputs, known.form)
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

    def _compare(self, inputs: Inputs, params: dict[str, Any]) -> _Known | None:
        messages = inputs["messages"]
        calls = any("tool_calls" in message for message in messages)
        replies = any(_is_without_thoughts(message) for message in messages)
        forms = product(
            (True, False) if calls else (True,),
            ("", self._bos) if self._bos else ("",),
            (False, True) if replies else (False,),
        )
        for form in starmap(_Form, forms):
            if self._prompt(inputs, form) == params["prompt"]:
                return _Known({**params, "prompt": ""}, form)
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

    def _prompt(self, inputs: Inputs, form: _Form) -> str | None:
        formatter = self._formatters[bool(inputs.get("tools"))]
        if formatter is None:
            return None
        try:
            prompt = formatter(**self._values(inputs, form)).prompt
        except Exception:  # whatever it was: this is a short cut, and llama.cpp has the last word
            return None
        return prompt.removeprefix(form.bos)

    def _values(self, inputs: Inputs, form: _Form) -> dict[str, Any]:
        values = {
            "messages": self._messages(inputs["messages"], form),
            "enable_thinking": inputs["enable_thinking"],
            "date_string": time.strftime("%d %b %Y"),
            "datetime": time.strftime("%b %d %Y"),
            "add_generation_prompt": inputs["add_generation_prompt"],
            **inputs["template_kwargs"],
        }
        if inputs.get("tools"):
            values["tools"] = inputs["tools"]
        return values

    def _messages(self, messages: Any, form: _Form) -> list[Mapping[str, Any]]:
        out: list[Mapping[str, Any]] = []
        for message in messages:
            if message["role"] == "developer" and "<|channel|>" not in self._info["source"]:
                message = {**message, "role": "system"}
            if form.objects and "tool_calls" in message:
                calls = []
                for call in message["tool_calls"]:
                    function = {**call["function"]}
                    function["arguments"] = json.loads(function["arguments"])
                    calls.append({**call, "function": function})
                message = {**message, "tool_calls": calls}
            if form.thoughts and _is_without_thoughts(message):
                message = {**message, "reasoning_content": ""}
            out.append(message)
        system = bool(out) and out[0]["role"] == "system"
        if system and len(out) > 1 and not self._info["caps"].get("supports_system_role", True):
            first, second = out[0]["content"], out[1]["content"]
            if isinstance(first, str) and isinstance(second, str):
                out[:2] = [{**out[1], "content": f"{first}\n{second}"}]
        return out


def _is_without_thoughts(message: Mapping[str, Any]) -> bool:
    return message["role"] == "assistant" and "reasoning_content" not in message


def _key(inputs: Inputs) -> Key | None:
    """The options and the shape of a request; None for requests that llama.cpp should render."""
    messages = inputs["messages"]
    if inputs["continue_final_message"] or inputs["now"] is not None:
        return None
    if any(isinstance(message["content"], list) for message in messages):
        return None
    # The properties of each message, apart from its words, on which rendering may depend.
    kinds: list[tuple[Any, ...] | None] = [None]
    calls = list[Any]()
    for message in messages:
        content = message["content"]
        kind = [message["role"], bool(content), "reasoning_content" in message, "name" in message]
        if message["role"] == "tool":  # results may be sorted, and JSON be taken apart
            called = message.get("tool_call_id")
            kind += [calls.index(called) if called in calls else -1, content.lstrip()[:1] in "{["]
        else:
            calls = [call.get("id") for call in message.get("tool_calls", ())]
            kind.append(len(calls))
        kinds.append(tuple(kind))
    kinds.append(None)
    options = {name: value for name, value in inputs.items() if name != "messages"}
    try:
        text = json.dumps(options, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return None  # llama.cpp's side says what is wrong with it
    return text, frozenset(pairwise(kinds))
