"""``JinjaTemplate``: a chat template, rendered by Jinja2 within limits. The only renderer.

Templates come with models, and so from untrusted sources. They run in Jinja2's sandbox with the
settings of Transformers, for which templates are written; their steps, text and time are counted
while they run, and a rendering that goes over a limit ends with an error. Filters, methods and
operators that may cost far more than one step announce beforehand how much they will write.

What Transformers' settings refuse and llama.cpp's engine takes works, too: members of undefined
values, unknown variables in sums of texts and in JSON, and lists that a template appends to.
"""

from __future__ import annotations

import copy
import json
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Set
from datetime import datetime
from functools import cache, lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import SandboxedEnvironment
from jinja2.utils import Namespace, missing

from llama_py.chat.templates.budget import (
    CONTAINERS,
    MAX_BITS,
    MAX_CALLS,
    NO_NUMBER_METHODS,
    NO_TEXT_METHODS,
    OF_KEYS,
    LimitError,
    TemplateBudget,
    announce,
    at_hand,
    counted_function,
    counted_items,
    rendering,
)
from llama_py.errors import TemplateError, TemplateLimitError
from llama_py.gguf.templates import template_problem

__all__ = [
    "JinjaTemplate",
    "parse",
    "template_of",
]

# ---- what is counted in the template itself ------------------------------------------------------

_ROUND, _MADE, _WRITTEN, _COMPARED = "a round begins", "made", "written", "compared"
_BEGUN, _JOINED = "begun", "joined"


@jinja2.pass_context  # so that Jinja does not compute it when it compiles
def _round(context: Context, value: Any, size: int, parts: int) -> Any:
    count = rendering.count
    count.step(1 + parts)
    count.write(size)
    return value


@jinja2.pass_context
def _made(context: Context, value: Any) -> Any:
    return rendering.count.made(value)


@jinja2.pass_context
def _written(context: Context, value: Any) -> Any:
    """A value becomes text."""
    count = rendering.count
    count.write(len(value) if type(value) is str else count.weigh(value))
    return value


@jinja2.pass_context
def _begun(context: Context, value: Any) -> Any:
    """A value is the beginning of a text that is counted as a whole."""
    return value if type(value) is str else _written(context, value)


@jinja2.pass_context
def _joined(context: Context, value: str) -> str:
    """Texts were put together, all but the first of which were counted.

    Templates make their prompt longer part by part (``out = out ~ part``): that copies it each
    time, but only the last one is kept.
    """
    rendering.count.write(value.__sizeof__() >> 3)
    return value


@jinja2.pass_context
def _compared(context: Context, value: Any) -> Any:
    """A value is compared, or a key: Python looks at all that is in it."""
    if isinstance(value, CONTAINERS):
        rendering.count.weigh(value)
    elif isinstance(value, (str, range)):
        rendering.count.step(len(value) >> 6)
    return value


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
    change = _CHANGES.get(type(node))
    return node if change is None else change(node)


def _count_rounds(node: Any) -> Any:
    size = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
    parts = sum(1 for _ in node.find_all(Node)) >> 6  # what is written once may be run often
    start = nodes.Const("", lineno=node.lineno)
    node.body.insert(0, nodes.Output([_around(start, _ROUND, size, parts)], lineno=node.lineno))
    if isinstance(node, nodes.For) and node.test is not None:
        began = _around(nodes.Const(True, lineno=node.lineno), _ROUND, 0, parts)
        node.test = nodes.And(began, node.test, lineno=node.lineno)
    return node


def _count_value(node: Any) -> Any:
    loaded = not isinstance(node, nodes.Tuple) or node.ctx == "load"
    return _around(node, _MADE) if loaded else node


def _count_concat(node: Any) -> Any:
    node.nodes = [_around(each, _WRITTEN if i else _BEGUN) for i, each in enumerate(node.nodes)]
    return _around(node, _JOINED)


def _count_output(node: Any) -> Any:
    node.nodes = [
        each if isinstance(each, nodes.TemplateData) else _around(each, _WRITTEN)
        for each in node.nodes
    ]
    return node


def _count_compare(node: Any) -> Any:
    others = [operand for operand in node.ops if not isinstance(operand.expr, nodes.Const)]
    lone = len(others) == 1 and others[0].op not in ("in", "notin")
    if others and not (isinstance(node.expr, nodes.Const) and lone):
        node.expr = _around(node.expr, _COMPARED)
        for operand in others:
            operand.expr = _around(operand.expr, _COMPARED)
    return node


def _count_item(node: Any) -> Any:
    if isinstance(node.arg, nodes.Slice):
        return _around(node, _MADE) if node.ctx == "load" else node
    if not isinstance(node.arg, nodes.Const):
        node.arg = _around(node.arg, _COMPARED)
    return node


def _count_pair(node: Any) -> Any:
    if not isinstance(node.key, nodes.Const):
        node.key = _around(node.key, _COMPARED)
    return node


_CHANGES: dict[type[Node], Callable[[Any], Any]] = {
    nodes.For: _count_rounds,
    nodes.Macro: _count_rounds,
    nodes.CallBlock: _count_rounds,
    nodes.List: _count_value,
    nodes.Dict: _count_value,
    nodes.Tuple: _count_value,
    nodes.Concat: _count_concat,
    nodes.Output: _count_output,
    nodes.Compare: _count_compare,
    nodes.Getitem: _count_item,
    nodes.Pair: _count_pair,
}


class _Generation(Extension):
    """``{% generation %}``, with which Transformers marks what to train on: just its contents."""

    tags = {"generation"}  # noqa: RUF012  # Jinja declares it so

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(SandboxedEnvironment):
    """Jinja2 that counts."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def _generate(self, source: Any, *args: Any, **kwargs: Any) -> Any:
        return super()._generate(_counted(source), *args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr in NO_TEXT_METHODS:
            return False
        if isinstance(obj, int) and attr in NO_NUMBER_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        raise SecurityError(
            f"access to attribute {attribute!r} of {type(obj).__name__!r} object is unsafe."
        )

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        count = rendering.count
        if operator == "+" and type(left) is type(right) is str:  # most of them, quickly
            count.write(len(right))
            return _joined(context, left + right)
        if operator == "+" and (_is_unknown(left) or _is_unknown(right)):
            left, right = ("" if _is_unknown(each) else each for each in (left, right))
        if operator == "%" and isinstance(left, str):
            announce("format", left, (right,), {})
        elif operator == "*":
            for one, times in ((left, right), (right, left)):
                if isinstance(one, (str, list, tuple)) and isinstance(times, int):
                    grow = count.write if isinstance(one, str) else count.step
                    grow(len(one) * max(0, times))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * right > MAX_BITS:
                raise LimitError(f"it computes a number of more than {MAX_BITS} bits")
        elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
            count.step(len(left) + len(right))
        elif isinstance(left, Set):  # keys that are taken out are hashed
            right = at_hand(right)
            count.weigh(left)
            count.weigh(right)
        return count.made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        count = rendering.count
        if isinstance(__obj, Macro):
            count.calls += 1
            if count.calls > MAX_CALLS:
                raise LimitError(f"its macros call each other more than {MAX_CALLS} times deep")
            try:
                return count.made(super().call(__context, __obj, *args, **kwargs))
            finally:
                count.calls -= 1
        if isinstance(__obj, LoopContext) or __obj is Namespace or __obj is dict:
            count.step(1 + len(kwargs))
            for each in args:
                count.step(len(each) if hasattr(each, "__len__") else 1)
                if __obj is dict:  # keys are hashed with all that is in them
                    count.weigh(each)
        else:
            method = getattr(
                __obj, "__wrapped__", __obj
            )  # the sandbox puts its own around ``format``
            owner, name = getattr(method, "__self__", None), str(getattr(method, "__name__", ""))
            if isinstance(owner, list) and name in ("append", "insert", "pop"):
                count.step()
            else:
                args = tuple(map(at_hand, args))
                # A filter of that name looks at a length only.
                name = "counts" if name == "count" else name
                known = isinstance(owner, (str, *CONTAINERS))
                announce(name, owner if known and name not in OF_KEYS else "", args, kwargs)
        found = super().call(__context, __obj, *args, **kwargs)
        return counted_items(count, found) if isinstance(found, Iterator) else count.made(found)


def _is_unknown(value: Any) -> bool:
    """Whether it is a variable that the template was not given, or a member of one."""
    if not isinstance(value, jinja2.Undefined) or not value._undefined_name:
        return False
    return value._undefined_obj is missing or isinstance(value._undefined_obj, dict)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Not Jinja's own filter: that one escapes for HTML.
    return json.dumps(
        value,
        default=_plain,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _plain(value: Any) -> Any:
    """What Transformers' filter refuses and llama.cpp's writes: items one by one, and null."""
    if isinstance(value, Iterator):
        items = [*value]
        rendering.count.write(rendering.count.weigh(items))
        return items
    if isinstance(value, jinja2.Undefined):
        return None
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _raise_exception(message: str = "") -> str:
    raise jinja2.TemplateError(message)


def _range(*bounds: int) -> range:
    made = range(*bounds)
    rendering.count.step(len(made))
    return made


def _strftime_now(form: str) -> str:
    rendering.count.write(256 * len(form))  # Python makes room for as much
    now = rendering.now
    return (datetime.now() if now is None else datetime.fromtimestamp(now)).strftime(form)


#: Filters that nothing bounds, and functions that write what nobody asked for.
_LEFT_OUT = ("pprint", "random", "urlize", "xmlattr")


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
    for name in _LEFT_OUT:
        del environment.filters[name]
    for kind, functions in (("", environment.filters), ("is ", environment.tests)):
        for name, function in [*functions.items()]:
            functions[name] = counted_function(kind + name, function)
    for name, counting in (
        (_ROUND, _round), (_MADE, _made), (_WRITTEN, _written), (_COMPARED, _compared),
        (_BEGUN, _begun), (_JOINED, _joined),
    ):  # fmt: skip
        environment.filters[name] = counting
    del environment.globals["lipsum"]
    environment.globals |= {
        "raise_exception": _raise_exception,
        "range": _range,
        "strftime_now": _strftime_now,
    }
    return environment


# ---- templates -----------------------------------------------------------------------------------

#: Methods that change a list or a dictionary.
_MUTATING = re.compile(
    r"\.\s*(?:append|clear|extend|insert|pop|popitem|remove|reverse|setdefault|sort|update)\s*\("
)


class JinjaTemplate:
    """A template. Safe to use from several threads.

    Args:
        source: its text.

    Raises:
        TemplateError: it does not parse, with the line; or it is nested too deep to be read.
    """

    def __init__(self, source: str) -> None:
        if problem := template_problem(source):
            raise TemplateError(f"the chat template cannot be used: {problem}")
        self.source = source
        self._compiled = _compile(source)
        self._changes = bool(_MUTATING.search(source))

    def render(
        self,
        values: Mapping[str, Any],
        budget: TemplateBudget | None = None,
        now: float | None = None,
    ) -> str:
        """The text that it makes of these variables.

        Args:
            budget: what it may take; None is that of one rendering.
            now: the time for ``strftime_now``, in seconds since the epoch; None is the clock.

        Raises:
            TemplateError: it refuses the messages, fails at them, or goes over a limit.
        """
        given = copy.deepcopy(dict(values)) if self._changes else dict(values)
        outer = getattr(rendering, "count", None), getattr(rendering, "now", None)
        rendering.count = count = TemplateBudget(values) if budget is None else budget
        rendering.now = now
        count.begin()
        try:
            # Not ``render``: how that makes errors readable leaves cycles of frames behind.
            parts = self._compiled.root_render_func(self._compiled.new_context(given))
            return count.keep("".join(parts))
        except LimitError as error:
            raise TemplateLimitError(f"the chat template is refused, because {error}") from None
        except RecursionError:
            raise TemplateLimitError(
                "the chat template is refused, because it goes on within itself without an end"
            ) from None
        except MemoryError:
            raise TemplateLimitError("the chat template takes too much memory") from None
        except Exception as error:  # a template may divide by zero, index, recurse, ...
            told = _told(error)
            # Jinja's frames and the error know each other, and those below them the model.
            traceback.clear_frames(error.__traceback__)
            error.__traceback__ = None
            raise TemplateError(f"the chat template refuses these messages: {told}") from None
        finally:
            rendering.count, rendering.now = outer  # type: ignore[assignment]


@lru_cache(16)
def template_of(source: str) -> JinjaTemplate:
    """The template with this text; models that are loaded again have the same one."""
    return JinjaTemplate(source)


def _compile(source: str) -> jinja2.Template:
    try:
        compiled = _environment().from_string(source)
    except RecursionError:
        raise TemplateError("the chat template is nested too deep to be read") from None
    except Exception as error:  # a template may make Jinja raise anything (SyntaxError, ...)
        raise TemplateError(f"the chat template does not parse: {_told(error)}") from None
    # Jinja's chain of mappings is put together anew whenever a template is rendered.
    compiled.globals = dict(compiled.globals)
    return compiled


def parse(source: str) -> nodes.Template:
    """The tree of a template.

    Raises:
        TemplateError: it does not parse.
    """
    try:
        return _environment().parse(source)
    except (jinja2.TemplateError, RecursionError) as error:
        raise TemplateError(f"the chat template does not parse: {_told(error)}") from None


def _told(error: Exception) -> str:
    """The message of an error of Jinja; for other errors, their type as well."""
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"line {error.lineno}: {error.message}"
    if isinstance(error, jinja2.TemplateError):
        return str(error)
    return f"{type(error).__name__}: {error}"
