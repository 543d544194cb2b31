"""``RehearsedHandle``: renders a template within limits, before llama.cpp renders it without any.

Templates come with models, and so from untrusted sources. Nothing can stop llama.cpp's interpreter
once it runs: a template that loops for hours, doubles a text sixty times or calls itself takes the
process with it. So the same conversation is rendered first by Python's Jinja2, whose loops, calls
and texts are counted here. What goes over a limit is refused, and never reaches native code.

A rehearsal is as good as the two engines are alike. Where Python fails at what llama.cpp can
render, it decides nothing, and a template that does something else in each of them on purpose is
not found out.
"""

from __future__ import annotations

import copy
import json
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from datetime import datetime
from functools import cache, lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import SandboxedEnvironment
from jinja2.utils import Namespace

from llama_py.core.chat import TemplateHandle
from llama_py.errors import TemplateError
from llama_py.quick_dataclass import dataclass

__all__ = ["Rehearsal", "RehearsedHandle"]

#: Rounds of loops, calls, filters and literals. A long conversation takes some thousands.
MAX_STEPS = 1_000_000
#: Characters that are written and put together in all, beside those that were given.
MAX_TEXT = 1 << 27
#: How often each character that was given may be written.
MAX_COPIES = 100
#: Lists in lists: llama.cpp writes, compares and frees them by recursion.
MAX_NESTED = 200
#: Calls of macros within each other.
MAX_CALLS = 100


class _LimitError(BaseException):
    """A template does more than one may. Nothing of Jinja takes it for an error of its own."""


@dataclass
class _Count:
    """How much one rendering may still do, and the lists and dictionaries that it has made.

    Attributes:
        made: each with its depth, by id; they are kept, so that ids stay theirs.
    """

    text_left: int
    steps_left: int = MAX_STEPS
    calls: int = 0
    made: dict[int, tuple[Any, int]] = field(default_factory=dict)

    def step(self, count: int = 1) -> None:
        self.steps_left -= count
        if self.steps_left < 0:
            raise _LimitError(f"it takes more than {MAX_STEPS} steps")

    def write(self, count: int) -> None:
        self.text_left -= count
        if self.text_left < 0:
            raise _LimitError("it writes far more than it was given")

    def value(self, value: Any) -> Any:
        """Something was computed."""
        if isinstance(value, str):
            self.text_left -= len(value)
            if self.text_left < 0:
                self.write(0)
        elif isinstance(value, (list, tuple, dict)):
            inner = _inside(value)
            self.step(len(inner))
            self.enter(value, 1 + max(map(self.depth, inner), default=0))
        return value

    def enter(self, value: Any, depth: int) -> None:
        if depth > MAX_NESTED:
            raise _LimitError(f"it puts more than {MAX_NESTED} lists into each other")
        self.made[id(value)] = (value, depth)

    def depth(self, value: Any) -> int:
        return self.made[id(value)][1] if id(value) in self.made else 0

    def put(self, holder: Any, value: Any) -> None:
        """A value becomes part of a list or a namespace, whose depth is from now on another one."""
        self.step()
        seen, rest = set[int](), [value]
        while rest:
            each = rest.pop()
            if each is holder:
                raise _LimitError("it puts a list into itself")
            if id(each) in self.made and id(each) not in seen:
                seen.add(id(each))
                rest += _inside(each)
        self.enter(holder, max(self.depth(holder), 1 + self.depth(value)))


def _inside(value: Any) -> list[Any]:
    return [*value.values()] if isinstance(value, (dict, _Space)) else [*value]


class _Space(Namespace):
    """A namespace that knows what is put into it."""

    def values(self) -> Any:
        attributes: dict[str, Any] = self._Namespace__attrs
        return attributes.values()

    def __setitem__(self, name: str, value: Any) -> None:
        _local.count.put(self, value)
        super().__setitem__(name, value)


class _Local(threading.local):
    """
    Attributes:
        count: of the rendering that the thread is in.
    """

    count: _Count


_local = _Local()


# -- what is counted -----------------------------------------------------------------------------

_ROUND, _VALUE = "a round begins", "a value was computed"


@jinja2.pass_context  # so that Jinja does not compute it when it compiles
def _round(context: Context, value: Any, size: int) -> str:
    _local.count.step()
    _local.count.write(size)
    return ""


@jinja2.pass_context
def _value(context: Context, value: Any) -> Any:
    return _local.count.value(value)


def _around(node: Any, name: str, *args: int) -> nodes.Filter:
    values: list[nodes.Expr] = [nodes.Const(arg) for arg in args]
    return nodes.Filter(node, name, values, [], None, None, lineno=node.lineno)


def _counted(node: Any) -> Any:
    """A tree with filters around what has to be counted."""
    for name, value in [*node.iter_fields()]:
        if isinstance(value, Node):
            setattr(node, name, _counted(value))
        elif isinstance(value, list):
            setattr(node, name, [_counted(x) if isinstance(x, Node) else x for x in value])
    if isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock)):
        size = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        start = nodes.Const("", lineno=node.lineno)
        node.body.insert(0, nodes.Output([_around(start, _ROUND, size)], lineno=node.lineno))
    if isinstance(node, nodes.CallBlock):  # whose call has to stay one
        call: Any = node.call
        inner: Any = call.node if isinstance(call, nodes.Filter) else call
        node.call = inner
        return node
    literal = isinstance(node, (nodes.List, nodes.Dict)) or (
        isinstance(node, nodes.Tuple) and node.ctx == "load"
    )
    filtered = type(node) is nodes.Filter and node.node is not None and node.name != _VALUE
    if literal or filtered or type(node) in (nodes.Call, nodes.Concat):
        return _around(node, _VALUE)
    if isinstance(node, nodes.Output):
        node.nodes = [
            each if isinstance(each, nodes.TemplateData) else _around(each, _VALUE)
            for each in node.nodes
        ]
    return node


def _before_text(name: str, text: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """What a filter or method is going to write that may be much longer than what it is given."""
    count = _local.count
    count.step()
    if name == "replace" and isinstance(text, str) and len(args) > 1:
        old, new = str(args[0]), str(args[1])
        count.write((text.count(old) if old else len(text) + 1) * len(new))
    elif name == "join":
        between, items = (text, args[0]) if isinstance(text, str) and args else (args[:1], text)
        between = between if isinstance(between, str) else str((*between, named.get("d", ""))[0])
        count.write(len(between) * len(items) if hasattr(items, "__len__") else 0)
    elif name not in ("range", "slice", "batch"):
        widths = [x for x in (*args, *named.values()) if isinstance(x, int)]
        lines = text.count("\n") + 1 if isinstance(text, str) else 1
        if name in ("indent", "tojson", "center", "ljust", "rjust", "zfill", "expandtabs"):
            count.write(sum(map(abs, widths)) * lines)


class _Generation(Extension):
    """``{% generation %}`` of Transformers: just its contents."""

    tags = {"generation"}  # noqa: RUF012  # Jinja declares it so

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(SandboxedEnvironment):
    """Jinja that counts, and that has the names that llama.cpp's engine has, and no others."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def _generate(self, source: Any, *args: Any, **kwargs: Any) -> Any:
        return super()._generate(_counted(source), *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise jinja2.TemplateError("llama.cpp has no operator **")
        count = _local.count
        if operator == "*":
            for text, times in ((left, right), (right, left)):
                if isinstance(text, (str, list, tuple)) and isinstance(times, int):
                    count.write(len(text) * max(0, times))
        elif isinstance(left, str) and isinstance(right, str):
            count.write(2 * (len(left) + len(right)))  # now, and for the text that is the value
            return super().call_binop(context, operator, left, right)
        return count.value(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        count = _local.count
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, list) and name == "append" and args:
            count.put(owner, args[0])
        _before_text(str(name), owner, args, kwargs)
        if not isinstance(__obj, Macro):
            return super().call(__context, __obj, *args, **kwargs)
        count.calls += 1
        if count.calls > MAX_CALLS:
            raise _LimitError(f"its macros call each other more than {MAX_CALLS} times deep")
        try:
            return super().call(__context, __obj, *args, **kwargs)
        finally:
            count.calls -= 1


def _wrapped(name: str, function: Any) -> Any:
    """A filter that says beforehand how much it writes."""
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        _before_text(name, args[skipped], args[skipped + 1 :], kwargs)
        found = function(*args, **kwargs)
        return [*found] if isinstance(found, Iterator) else found  # as llama.cpp does

    if skipped:
        wrapper.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
    return wrapper


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: str = "") -> str:
    raise jinja2.TemplateError(message)


def _range(*bounds: int) -> range:
    made = range(*bounds)
    _local.count.step(len(made))
    return made


def _method(name: str) -> Callable[..., Any]:
    return lambda value, *args: getattr(value, name)(*args)


#: Methods that llama.cpp has as filters, too.
_METHODS = (
    "endswith", "get", "keys", "lstrip", "rsplit", "rstrip", "split", "startswith", "strip",
    "values",
)  # fmt: skip


@cache
def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, loopcontrols],
        undefined=jinja2.ChainableUndefined,
        optimized=False,  # nothing is computed before it is counted
    )
    environment.filters["tojson"] = _tojson
    for name in _METHODS:
        environment.filters.setdefault(name, _method(name))
    for name, function in [*environment.filters.items()]:
        environment.filters[name] = _wrapped(name, function)
    environment.filters[_ROUND], environment.filters[_VALUE] = _round, _value
    environment.globals = {
        "dict": dict,
        "namespace": _Space,
        "raise_exception": _raise_exception,
        "range": _range,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    return environment


class Rehearsal:
    """A template, rendered within limits. Safe to use from several threads.

    Args:
        source: its text.

    Raises:
        TemplateError: it does not parse.
    """

    def __init__(self, source: str) -> None:
        try:
            self._template = _compiled(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template does not parse: line {error.lineno}: {error.message}"
            ) from error
        except RecursionError:
            raise TemplateError("the chat template is nested too deep to be read") from None
        except Exception as error:
            raise TemplateError(f"the chat template does not parse: {error}") from error
        self._changes = ".append(" in source or ".pop(" in source

    def render(self, values: Mapping[str, Any]) -> bool:
        """Render it, and forget what comes out. False: Python fails at it.

        Raises:
            TemplateError: it would go on for too long, or take too much memory.
        """
        given = copy.deepcopy(dict(values)) if self._changes else values
        outer: Any = getattr(_local, "count", None)
        _local.count = _Count(MAX_TEXT + MAX_COPIES * _length(values))
        try:
            # Not ``generate``: how that makes errors readable leaves cycles of frames behind.
            template = self._template
            for _ in template.root_render_func(template.new_context(dict(given))):
                pass
        except _LimitError as error:
            raise TemplateError(f"the chat template is refused, because {error}") from None
        except RecursionError:
            raise TemplateError(
                "the chat template is refused, because it goes on within itself without an end"
            ) from None
        except MemoryError:
            raise TemplateError("the chat template takes too much memory") from None
        except Exception as error:  # llama.cpp has the last word about everything else
            # Jinja's frames and the error know each other, and those below them the model.
            traceback.clear_frames(error.__traceback__)
            error.__traceback__ = None
            return False
        finally:
            _local.count = outer
        return True


@lru_cache(8)
def _compiled(source: str) -> jinja2.Template:
    """A template that is counted; models that are loaded again have the same one."""
    return _environment().from_string(source)


def _length(value: Any) -> int:
    """All characters in a value, each item counted as one."""
    total, rest = 0, [value]
    while rest:
        each = rest.pop()
        if isinstance(each, str):
            total += len(each)
        elif isinstance(each, Mapping):
            rest += each.keys()
            rest += each.values()
        elif isinstance(each, (list, tuple)):
            rest += each
        total += 1
    return total


# -- before llama.cpp ----------------------------------------------------------------------------

_CALL = {"id": "1", "type": "function", "function": {"name": "act", "arguments": {"a": 1}}}
_TOOL = {
    "type": "function",
    "function": {
        "name": "act",
        "description": "acts",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
_USER = {"role": "user", "content": "hello"}
#: Conversations like those with which llama.cpp finds out what a template can do.
_FIRST: tuple[Mapping[str, Any], ...] = (
    {"messages": []},
    {"messages": [_USER]},
    {"messages": [{"role": "system", "content": "be kind"}, _USER]},
    {
        "messages": [
            _USER,
            {"role": "assistant", "content": "", "tool_calls": [_CALL]},
            {"role": "tool", "content": "1", "tool_call_id": "1", "name": "act"},
            {"role": "assistant", "content": "yes", "reasoning_content": "well"},
            {"role": "user", "content": [{"type": "text", "text": "more"}]},
        ],
        "tools": [_TOOL],
    },
)


class RehearsedHandle(TemplateHandle):
    """A ``TemplateHandle`` that renders nothing that was not rehearsed.

    Args:
        sources: the texts of the template, and of that for tools if there is one.

    Raises:
        TemplateError: as ``TemplateHandle``; or the template goes over a limit.
    """

    def __init__(
        self,
        model: Any = None,
        text: str | None = None,
        *,
        sources: Iterable[str | None],
        bos: str = "",
        eos: str = "",
    ) -> None:
        self._rehearsals = [Rehearsal(source) for source in sources if source]
        self._tokens = {"bos_token": bos, "eos_token": eos}
        for conversation in _FIRST:
            self._rehearse(conversation)
        super().__init__(model, text, bos=bos, eos=eos)

    def apply(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        self._rehearse(inputs)
        return super().apply(inputs)

    def _rehearse(self, inputs: Mapping[str, Any]) -> None:
        values = {
            **self._tokens,
            "messages": [_with_objects(message) for message in inputs["messages"]],
            "tools": inputs.get("tools"),
            "add_generation_prompt": inputs.get("add_generation_prompt", True),
            "enable_thinking": inputs.get("enable_thinking", True),
            **(inputs.get("template_kwargs") or {}),
        }
        for rehearsal in self._rehearsals:
            if not rehearsal.render(values):
                rehearsal.render({**values, "messages": [*map(_completed, values["messages"])]})


def _completed(message: Any) -> Any:
    """A message with what llama.cpp adds for templates that want it: reasoning, languages."""
    if not isinstance(message, Mapping):
        return message
    if message.get("role") == "assistant":
        return {"reasoning_content": "", **message}
    text = message.get("content")
    if message.get("role") != "user" or not isinstance(text, str):
        return message
    part = {"type": "text", "text": text, "source_lang_code": "en", "target_lang_code": "en"}
    return {**message, "content": [part]}


def _with_objects(message: Any) -> Any:
    """A message whose calls have their arguments as objects, as most templates get them."""
    if not isinstance(message, Mapping) or not message.get("tool_calls"):
        return message
    calls = []
    try:
        for call in message["tool_calls"]:
            function = {**call["function"]}
            if isinstance(function["arguments"], str):
                function["arguments"] = json.loads(function["arguments"])
            calls.append({**call, "function": function})
    except (KeyError, TypeError, ValueError):
        return message
    return {**message, "tool_calls": calls}
