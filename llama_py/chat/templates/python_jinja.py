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
import threading
import time
import traceback
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Set, ValuesView
from datetime import datetime
from functools import cache, lru_cache
from types import MappingProxyType
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

from llama_py.errors import TemplateError, TemplateLimitError
from llama_py.gguf.templates import template_problem

__all__ = [
    "JinjaTemplate",
    "TemplateBudget",
    "parse",
    "template_of",
]

#: Rounds of loops, calls, filters, items of lists. A long conversation takes some ten thousands.
MAX_STEPS = 1_000_000
#: Characters that one rendering writes and puts together, beside those that were given.
MAX_TEXT = 1 << 25
#: How often it may write each character that was given; published templates do up to eleven times.
MAX_COPIES = 16
#: Seconds. On a machine that is busy it gets half as many of processor time beyond that.
MAX_SECONDS = 5.0
#: Lists in lists: some of Python's functions go into them by recursion without a limit.
MAX_NESTED = 200
#: Calls of macros within each other.
MAX_CALLS = 100
#: Bits of a whole number.
MAX_BITS = 10_000
_STEPS_BETWEEN_LOOKS = 256


class _LimitError(BaseException):
    """A template does more than one may. Nothing of Jinja takes it for an error of its own."""


class TemplateBudget:
    """How much one request may still do with a template, in however many renderings.

    Args:
        given: the request; it is measured when it matters.
    """

    __slots__ = (
        *("_ends", "_given", "_next_look", "_text_most", "_used"),
        *("calls", "steps_left", "text_left"),
    )

    def __init__(self, given: Any = None) -> None:
        self.text_left = self._text_most = MAX_TEXT
        self.steps_left = self._next_look = MAX_STEPS
        self.calls = 0
        self._given = given
        self._ends = 0.0
        self._used: float | None = None

    def begin(self) -> None:
        """A rendering begins: what the last one wrote is gone."""
        self.text_left = self._text_most

    def keep(self, text: str) -> str:
        """A rendering ended with this text, which stays."""
        self._text_most -= len(text)
        return text

    def step(self, count: int = 1) -> None:
        self.steps_left -= count
        if self.steps_left < self._next_look:
            self._look()

    def write(self, count: int) -> None:
        self.text_left -= count
        if self.text_left < 0:
            self._add_for_given()
            if self.text_left < 0:
                raise _LimitError("it writes far more than it was given")

    def _add_for_given(self) -> None:
        size = 0 if self._given is None else length_of(self._given)
        self._given = None
        self._text_most += MAX_COPIES * size
        self.text_left += MAX_COPIES * size
        self.steps_left += size

    def _look(self) -> None:
        if self.steps_left < 0:
            self._add_for_given()
            if self.steps_left < 0:
                raise _LimitError(f"it takes more than {MAX_STEPS} steps")
        self._next_look = self.steps_left - _STEPS_BETWEEN_LOOKS
        now = time.monotonic()  # a hundredth of what it takes to ask for the processor's time
        if not self._ends:
            self._ends = now + MAX_SECONDS
        elif now > self._ends:
            self._ends = now + MAX_SECONDS / 50
            used = time.thread_time()
            if self._used is None:
                self._used = used
            elif used - self._used > MAX_SECONDS / 2:
                raise _LimitError(f"it takes more than {MAX_SECONDS:g} seconds")

    def made(self, value: Any) -> Any:
        """A value was computed."""
        if isinstance(value, str):
            self.write(len(value))
        elif isinstance(value, (list, tuple, dict, Set)):
            self.step(len(value))
        elif isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise _LimitError(f"it computes a number of more than {MAX_BITS} bits")
        return value

    def weigh(self, value: Any) -> int:
        """Characters of a value when it is written, at least. What is in it twice counts twice."""
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, _CONTAINERS):
            return 16
        weight, rest = 0, [(value, 1)]
        while rest:
            each, depth = rest.pop()
            inner = _inside(each)
            if depth > MAX_NESTED:
                raise _LimitError(f"it puts more than {MAX_NESTED} lists into each other")
            self.step(1 + len(inner))
            for one in inner:
                if isinstance(one, _CONTAINERS):
                    rest.append((one, depth + 1))
                weight += len(one) + 8 if isinstance(one, str) else 16
            if weight > self.text_left:
                self.write(weight)
        return weight


#: What Python writes, compares or hashes with all that is in it.
_CONTAINERS = (list, tuple, dict, Namespace, Set, KeysView, ValuesView, ItemsView, MappingProxyType)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, Namespace):
        value = value._Namespace__attrs
    if isinstance(value, (dict, MappingProxyType)):
        return [*value.keys(), *value.values()]
    return [*value]


class _Local(threading.local):
    """
    Attributes:
        count: of the rendering that the thread is in.
        now: for that rendering, seconds since the epoch; None is the clock.
    """

    count: TemplateBudget
    now: float | None


_local = _Local()


# ---- what a template's functions say beforehand -------------------------------------------------

#: Filters and tests ("is ...") that look at no more than one level of what they are given.
_SHALLOW = frozenset(
    (
        *("attr", "batch", "count", "d", "default", "first", "float", "int", "items", "last"),
        *("length", "list", "map", "reject", "rejectattr", "reverse", "select", "selectattr"),
        *("slice", "is boolean", "is callable", "is defined", "is divisibleby", "is even"),
        *("is false", "is filter", "is float", "is integer", "is iterable", "is mapping"),
        *("is none", "is number", "is odd", "is sameas", "is sequence", "is string", "is test"),
        *("is true", "is undefined"),
    )
)
#: Filters that make items of the characters of a text.
_ITERATING = frozenset(
    ("batch", "groupby", "list", "map", "max", "min", "reject", "select", "slice", "sort", "unique")
)
#: The most characters that each one may become.
_ESCAPING = {"e": 6, "escape": 6, "forceescape": 6, "tojson": 6, "urlencode": 12}
_NUMBERS = re.compile(r"\d+")
#: Where Python takes a line, or a word, to end.
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_ASCII_SPACE = " \n\t\r\v\f\x1c\x1d\x1e\x1f"


def _before(name: str, given: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """A filter, test or method of this name is going to be called."""
    count = _local.count
    count.step(1 + len(given) if name in _ITERATING and isinstance(given, str) else 1)
    if name in _SHALLOW:
        if name in ("batch", "slice"):
            count.step(sum(abs(x) for x in (*args, *named.values()) if isinstance(x, int)))
        return
    others = [*args, *named.values()]
    size = count.weigh(given)
    beside = sum(map(count.weigh, others))
    count.write(size * _ESCAPING.get(name, 1) + beside)
    count.step(size >> 6)
    special = _COSTS.get(name)
    if special is not None:
        special(count, given, others, size)


def _replaces(count: TemplateBudget, text: Any, others: list[Any], size: int) -> None:
    if len(others) > 1:
        old, new = str(others[0]), str(others[1])
        times = str(text).count(old) if old else size + 1
        count.write(times * len(new))


def _joins(count: TemplateBudget, given: Any, others: list[Any], size: int) -> None:
    # A method of what stands between, or a filter of what is joined.
    items, between = (others[:1], [given]) if isinstance(given, str) else ([given], others)
    times = max((len(x) if hasattr(x, "__len__") else MAX_STEPS for x in items), default=0)
    count.write(times * max((len(x) for x in between if isinstance(x, str)), default=0))


def _widens(count: TemplateBudget, given: Any, others: list[Any], size: int) -> None:
    """Lines or items are moved, by as many characters as a number or text says."""
    widths = [len(x) if isinstance(x, str) else abs(x) for x in _flat(others) if _measures(x)]
    if isinstance(given, str):
        lines = 1 + given.count("\t") + sum(map(given.count, _LINE_ENDS))
    else:
        lines = 1 + size * 8  # what is in lists is moved several times, and weighs 16 at least
    count.write(sum(widths) * lines)


def _measures(value: Any) -> bool:
    return isinstance(value, (str, int))


def _wraps(count: TemplateBudget, given: Any, others: list[Any], size: int) -> None:
    """A text may be put between all characters, and each cut copies what is left of a word."""
    count.step(size // 2)
    width = max([1, *(x for x in others if isinstance(x, int))])
    count.write(size * max((len(x) for x in others if isinstance(x, str)), default=0))
    count.step(size * (size // width) // 1000)


def _strips(count: TemplateBudget, given: Any, others: list[Any], size: int) -> None:
    """Each comment that is taken out copies the text, and its words are split."""
    count.step(str(given).count("<") * size // 1000)
    _splits(count, given, [], size)


def _formats(count: TemplateBudget, given: Any, others: list[Any], size: int) -> None:
    """A text with places for others; each may say how wide it is."""
    text = str(given)
    widths = sum(int(digits[:12]) for digits in _NUMBERS.findall(text))
    widths += sum(abs(x) for x in _numbers_in(others))
    places = text.count("%") + text.count("{")
    count.step(places)
    count.write(widths + places * (1 + sum(map(count.weigh, others))))


def _numbers_in(value: Any) -> Iterator[int]:
    """Whole numbers in a value that was weighed: a place may take its width from any of them."""
    rest = [value]
    while rest:
        each = rest.pop()
        if isinstance(each, int):
            yield each
        elif isinstance(each, _CONTAINERS):
            rest += _inside(each)


def _flat(values: list[Any]) -> Iterator[Any]:
    for value in values:
        yield from value if isinstance(value, tuple) else (value,)


def _searches(count: TemplateBudget, given: Any, others: list[Any], size: int) -> None:
    """From the end, where Python compares each place with all of what is looked for."""
    sought = max((len(x) for x in others if isinstance(x, str)), default=0)
    count.step(size * sought // 1000)


def _splits(count: TemplateBudget, given: Any, others: list[Any], size: int) -> None:
    text, sought = str(given), [x for x in others if isinstance(x, str) and x]
    if not sought and not text.isascii():
        _cuts(count, given, others, size)
    else:
        count.step(sum(map(text.count, sought or _ASCII_SPACE)))


def _cuts(count: TemplateBudget, given: Any, others: list[Any], size: int) -> None:
    """Each second character may begin a word."""
    count.step(size // 2)


def _rounds(count: TemplateBudget, given: Any, others: list[Any], size: int) -> None:
    if any(isinstance(x, int) and abs(x) > 1000 for x in others):
        raise _LimitError("it rounds to more than 1000 digits")


def _adds(count: TemplateBudget, given: Any, others: list[Any], size: int) -> None:
    count.step(size * (len(given) if hasattr(given, "__len__") else 1) // 1000)


def _searches_and_splits(*told: Any) -> None:
    _searches(*told)
    _splits(*told)


#: Methods of dictionaries that look at no more than their keys.
_OF_KEYS = frozenset(("get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"))
_COSTS: dict[str, Callable[[TemplateBudget, Any, list[Any], int], None]] = {
    "replace": _replaces,
    "join": _joins,
    "format": _formats,
    "round": _rounds,
    "sum": _adds,
    "rsplit": _searches_and_splits,
    "striptags": _strips,
    "wordwrap": _wraps,
    **dict.fromkeys(("rfind", "rindex", "rpartition"), _searches),
    **dict.fromkeys(("split", "splitlines"), _splits),
    **dict.fromkeys(("title", "wordcount"), _cuts),
    **dict.fromkeys(("indent", "tojson", "center", "ljust", "rjust"), _widens),
    **dict.fromkeys(("zfill", "expandtabs"), _widens),
}
#: Methods of a text that no limit is known for.
_NO_TEXT_METHODS = frozenset(("encode", "format_map", "maketrans", "translate"))
#: Methods of a number that make bytes, which nothing counts.
_NO_NUMBER_METHODS = frozenset(("from_bytes", "to_bytes"))


def _counted_function(name: str, function: Any) -> Any:
    """A filter or test that says beforehand what it takes."""
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if name not in _SHALLOW:
            args = (*args[:skipped], *map(_at_hand, args[skipped:]))
            kwargs = {key: _at_hand(value) for key, value in kwargs.items()}
        _before(name, args[skipped], args[skipped + 1 :], kwargs)
        found = function(*args, **kwargs)
        count = _local.count
        return _counted_items(count, found) if isinstance(found, Iterator) else count.made(found)

    if skipped:
        wrapper.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
    return wrapper


def _at_hand(value: Any) -> Any:
    """A value that can be weighed: items that are made one by one as a list."""
    return [*value] if isinstance(value, Iterator) else value


def _counted_items(count: TemplateBudget, items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        count.step()
        yield item


# ---- what is counted in the template itself ------------------------------------------------------

_ROUND, _MADE, _WRITTEN, _COMPARED = "a round begins", "made", "written", "compared"
_BEGUN, _JOINED = "begun", "joined"


@jinja2.pass_context  # so that Jinja does not compute it when it compiles
def _round(context: Context, value: Any, size: int, parts: int) -> Any:
    count = _local.count
    count.step(1 + parts)
    count.write(size)
    return value


@jinja2.pass_context
def _made(context: Context, value: Any) -> Any:
    return _local.count.made(value)


@jinja2.pass_context
def _written(context: Context, value: Any) -> Any:
    """A value becomes text."""
    count = _local.count
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
    _local.count.write(value.__sizeof__() >> 3)
    return value


@jinja2.pass_context
def _compared(context: Context, value: Any) -> Any:
    """A value is compared, or a key: Python looks at all that is in it."""
    if isinstance(value, _CONTAINERS):
        _local.count.weigh(value)
    elif isinstance(value, (str, range)):
        _local.count.step(len(value) >> 6)
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
        if isinstance(obj, str) and attr in _NO_TEXT_METHODS:
            return False
        if isinstance(obj, int) and attr in _NO_NUMBER_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        raise SecurityError(
            f"access to attribute {attribute!r} of {type(obj).__name__!r} object is unsafe."
        )

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        count = _local.count
        if operator == "+" and type(left) is type(right) is str:  # most of them, quickly
            count.write(len(right))
            return _joined(context, left + right)
        if operator == "+" and (_is_unknown(left) or _is_unknown(right)):
            left, right = ("" if _is_unknown(each) else each for each in (left, right))
        if operator == "%" and isinstance(left, str):
            _before("format", left, (right,), {})
        elif operator == "*":
            for one, times in ((left, right), (right, left)):
                if isinstance(one, (str, list, tuple)) and isinstance(times, int):
                    grow = count.write if isinstance(one, str) else count.step
                    grow(len(one) * max(0, times))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * right > MAX_BITS:
                raise _LimitError(f"it computes a number of more than {MAX_BITS} bits")
        elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
            count.step(len(left) + len(right))
        elif isinstance(left, Set):  # keys that are taken out are hashed
            right = _at_hand(right)
            count.weigh(left)
            count.weigh(right)
        return count.made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        count = _local.count
        if isinstance(__obj, Macro):
            count.calls += 1
            if count.calls > MAX_CALLS:
                raise _LimitError(f"its macros call each other more than {MAX_CALLS} times deep")
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
                args = tuple(map(_at_hand, args))
                # A filter of that name looks at a length only.
                name = "counts" if name == "count" else name
                known = isinstance(owner, (str, *_CONTAINERS))
                _before(name, owner if known and name not in _OF_KEYS else "", args, kwargs)
        found = super().call(__context, __obj, *args, **kwargs)
        return _counted_items(count, found) if isinstance(found, Iterator) else count.made(found)


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
        _local.count.write(_local.count.weigh(items))
        return items
    if isinstance(value, jinja2.Undefined):
        return None
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _raise_exception(message: str = "") -> str:
    raise jinja2.TemplateError(message)


def _range(*bounds: int) -> range:
    made = range(*bounds)
    _local.count.step(len(made))
    return made


def _strftime_now(form: str) -> str:
    _local.count.write(256 * len(form))  # Python makes room for as much
    now = _local.now
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
            functions[name] = _counted_function(kind + name, function)
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
        outer = getattr(_local, "count", None), getattr(_local, "now", None)
        _local.count = count = TemplateBudget(values) if budget is None else budget
        _local.now = now
        count.begin()
        try:
            # Not ``render``: how that makes errors readable leaves cycles of frames behind.
            parts = self._compiled.root_render_func(self._compiled.new_context(given))
            return count.keep("".join(parts))
        except _LimitError as error:
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
            _local.count, _local.now = outer  # type: ignore[assignment]


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


def length_of(value: Any) -> int:
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
