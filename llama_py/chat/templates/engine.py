"""``TemplateEngine``: a template's text from Jinja2, and what llama.cpp knows of its family.

llama.cpp's chat code adapts messages to a template, and says how replies of its family are
constrained and read. It asks for the text of the template (``python_jinja``) three times a request,
with and without the opening of the reply. What else it says depends on the options and on the
*shape* of a request, the kinds of its messages in order: for a shape that is known, the template is
rendered once, and the rest is taken from the first request.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise, product, starmap
from typing import Any, Literal, NamedTuple

from llama_py.chat.templates.budget import TemplateBudget
from llama_py.chat.templates.capabilities import capabilities_of, tells_nothing_apart
from llama_py.chat.templates.python_jinja import template_of
from llama_py.core.chat import TemplateHandle
from llama_py.errors import TemplateError, TemplateLimitError
from llama_py.tenants import Remembered

__all__ = ["TemplateEngine"]

Inputs = Mapping[str, Any]
Values = dict[str, Any]
Key = tuple[str, frozenset[tuple[Any, Any]]]
_MOST_KNOWN = 64
#: In templates with these words llama.cpp takes white space from around the messages, so that what
#: it does depends on the words.
_TRIMMED = "You have access to the following functions in JSONSchema format"


#: In the marks that begin calls, whatever the family.
_OF_CALLS = re.compile("tool|function|action", re.IGNORECASE)


class _Form(NamedTuple):
    """What llama.cpp does with a conversation for a template.

    Attributes:
        objects: tool arguments go to the template as objects, not as text.
        thoughts: each reply has reasoning, which may be empty.
    """

    objects: bool = True
    thoughts: bool = False


@dataclass(frozen=True, slots=True)
class _Known:
    """The answer for a shape.

    Attributes:
        params: llama.cpp's answer, without the prompt.
        form: what the template is given.
        bos: text of BOS that is taken from the beginning of the prompt.
    """

    params: dict[str, Any]
    form: _Form
    bos: str


class _Renderings:
    """The renderings of one request: all within one budget, and each only once.

    Args:
        given: the request.
        now: its time, in seconds since the epoch; None is the clock.

    Attributes:
        made: the variables of each, and its text.
        refusal: why one was not allowed; llama.cpp's code takes it for one of many failures.
    """

    def __init__(self, given: Any = None, now: float | None = None) -> None:
        self._budget = TemplateBudget(given)
        self._now = now
        self._texts: dict[tuple[str, bytes], str] = {}
        self.made: list[tuple[Values, str]] = []
        self.refusal: TemplateLimitError | None = None

    def answer(self, source: str, values: bytes | None) -> str:
        if values is None:
            template_of(source)  # raises where it does not parse
            return json.dumps(capabilities_of(partial(self._render, source)))
        if (source, values) not in self._texts:
            given = json.loads(values)
            self._texts[source, values] = text = self._render(source, given)
            self.made.append((given, text))
        return self._texts[source, values]

    def _render(self, source: str, values: Values) -> str:
        try:
            return template_of(source).render(_with_nulls(source, values), self._budget, self._now)
        except TemplateLimitError as error:
            self.refusal = error
            raise

    def check(self) -> None:
        """Raise if one of them was not allowed."""
        if self.refusal is not None:
            raise self.refusal.with_traceback(None) from None


class TemplateEngine:
    """Renders requests. Safe to use from several threads.

    Args:
        model: the model whose template to use; only read here.
        text: a Jinja template in place of the model's.
        bos, eos: texts of those tokens.

    Raises:
        TemplateError: the template does not parse, or goes over a limit; or there is none.
    """

    def __init__(
        self, model: Any = None, text: str | None = None, *, bos: str = "", eos: str = ""
    ) -> None:
        self._bos, self._eos = bos, eos
        self._closed = False
        given = {} if model is not None else {"bos": bos, "eos": eos}
        renderings = _Renderings()
        self._handle = TemplateHandle(model, text, render=renderings.answer, **given)
        renderings.check()
        #: Shapes whose variables are known, and those that llama.cpp makes of their words.
        self._known: Remembered[Key, _Known | Literal[False]] = Remembered(_MOST_KNOWN)

    @cached_property
    def info(self) -> Mapping[str, Any]:
        """Facts about the template; the keys are those of ``llama_py_chat_templates_info``."""
        return self._handle.info(_Renderings().answer)

    def close(self) -> None:
        """Free what llama.cpp holds."""
        self._closed = True
        self._handle.close()

    def apply(self, inputs: Inputs) -> dict[str, Any]:
        """The answer of ``llama_py_chat_apply``.

        Raises:
            TemplateError: the template refuses the messages, or goes over a limit.
        """
        key = None if self._closed else _key(inputs)
        known = None if key is None else self._known.get(key)
        if known and (quick := self._as_before(inputs, known)):
            return quick
        renderings = _Renderings(inputs, inputs.get("now"))
        params = _with_whole_thoughts(self._handle.apply(inputs, renderings.answer))
        renderings.check()
        if key is not None and known is None:
            self._known.put(key, self._learned(inputs, params, renderings) or False)
        return params

    def prompt(self, inputs: Inputs) -> str:
        """The prompt of these inputs alone, which takes less."""
        try:
            return str(self.apply({**inputs, "prompt_only": True})["prompt"])
        except TemplateError:  # a family may need what llama.cpp adds to its messages
            return str(self.apply(inputs)["prompt"])

    # ---- shapes that are known -----------------------------------------------------------------

    def _as_before(self, inputs: Inputs, known: _Known) -> dict[str, Any] | None:
        """The answer for a request of a known shape; None if llama.cpp has to be asked."""
        try:
            values = self._values(inputs, known.form)
        except ValueError:  # arguments that are no JSON
            return None
        template = template_of(self._source(inputs))
        budget = TemplateBudget(values)
        prompt = template.render(_with_nulls(template.source, values), budget)
        prompt = prompt.removeprefix(known.bos)
        if not prompt.endswith(known.params["generation_prompt"]):
            return None
        return {**known.params, "prompt": prompt}

    def _learned(
        self, inputs: Inputs, params: dict[str, Any], renderings: _Renderings
    ) -> _Known | None:
        """The form of a request, if the template was given what one of the forms gives it."""
        if _TRIMMED in self._source(inputs):
            return None
        for form in self._forms(inputs["messages"]):
            try:
                values = self._values(inputs, form)
            except ValueError:
                continue
            for given, text in renderings.made:
                for bos in dict.fromkeys(("", self._bos)):
                    if given == values and text.removeprefix(bos) == params["prompt"]:
                        return _Known({**params, "prompt": ""}, form, bos)
        return None

    def _forms(self, messages: Any) -> Iterator[_Form]:
        calls = any("tool_calls" in message for message in messages)
        replies = any(_is_without_thoughts(message) for message in messages)
        return starmap(
            _Form,
            product((True, False) if calls else (True,), (False, True) if replies else (False,)),
        )

    def _source(self, inputs: Inputs) -> str:
        tools = self.info["source_tool_use"] if inputs.get("tools") else ""
        return str(tools or self.info["source"])

    def _values(self, inputs: Inputs, form: _Form) -> Values:
        values = {
            "messages": self._messages(inputs["messages"], form),
            "bos_token": self._bos,
            "eos_token": self._eos,
            "enable_thinking": inputs["enable_thinking"],
            "date_string": time.strftime("%d %b %Y"),
            "datetime": time.strftime("%b %d %Y"),
            **inputs["template_kwargs"],
        }
        if inputs["add_generation_prompt"]:
            values["add_generation_prompt"] = True
        if inputs.get("tools"):
            values["tools"] = inputs["tools"]
        return values

    def _messages(self, messages: Any, form: _Form) -> list[Mapping[str, Any]]:
        out: list[Mapping[str, Any]] = []
        for message in messages:
            if message["role"] == "developer" and "<|channel|>" not in self.info["source"]:
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
        if system and len(out) > 1 and not self.info["caps"].get("supports_system_role", True):
            first, second = out[0]["content"], out[1]["content"]
            if isinstance(first, str) and isinstance(second, str):
                out[:2] = [{**out[1], "content": f"{first}\n{second}"}]
        return out


def _with_whole_thoughts(params: dict[str, Any]) -> dict[str, Any]:
    """The answer, where reasoning ends with its own mark or that of the answer.

    Of some families llama.cpp says that the mark of a call ends it, too. A thought may mention
    one, above all where somebody asks about tools.
    """
    ends = params["thinking_end_tags"]
    parser = params["parser"]
    if not ends or not parser["arena"] or not _OF_CALLS.search(parser["arena"]):
        return params
    arena = json.loads(parser["arena"])
    nodes = arena["parsers"]
    changed = False
    for node in nodes:
        inner = nodes[node["child"]] if node.get("tag") == "reasoning" else {}
        delimiters = inner.get("delimiters", ())
        kept = [each for each in delimiters if not _OF_CALLS.search(each)]
        if kept and len(kept) < len(delimiters):
            inner["delimiters"] = kept
            changed = True
    if not changed:
        return params
    kept = [each for each in ends if not _OF_CALLS.search(each)]
    text = json.dumps(arena, ensure_ascii=False, separators=(",", ":"))
    return {**params, "thinking_end_tags": kept, "parser": {**parser, "arena": text}}


@lru_cache(16)
def _tells_nothing_apart(source: str) -> bool:
    return tells_nothing_apart(template_of(source).render)


def _with_nulls(source: str, values: Values) -> Values:
    """The variables, with null for the words of a call that has none, where that matters."""
    messages = values["messages"]
    if not any(message.get("tool_calls") for message in messages):
        return values
    if not _tells_nothing_apart(source):
        return values
    nulls = [
        {**message, "content": None}
        if message.get("tool_calls") and message.get("content") == ""
        else message
        for message in messages
    ]
    return {**values, "messages": nulls}


def _is_without_thoughts(message: Mapping[str, Any]) -> bool:
    return message["role"] == "assistant" and "reasoning_content" not in message


def _key(inputs: Inputs) -> Key | None:
    """The options and the shape of a request; None for requests whose answer may depend on more."""
    if inputs.get("continue_final_message") or inputs.get("now") is not None:
        return None
    messages = inputs["messages"]
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
