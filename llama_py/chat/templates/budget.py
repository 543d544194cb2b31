"""``TemplateBudget``: how much a template may do; and what its functions announce beforehand.

Jinja2 (``python_jinja``) counts with it while a template runs. What costs far more than one step
within Python, where nothing can be counted, says here what it is going to take.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Set, ValuesView
from types import MappingProxyType
from typing import Any

from jinja2.utils import Namespace

__all__ = [
    "CONTAINERS",
    "MAX_BITS",
    "MAX_CALLS",
    "MAX_SECONDS",
    "MAX_STEPS",
    "NO_NUMBER_METHODS",
    "NO_TEXT_METHODS",
    "OF_KEYS",
    "LimitError",
    "TemplateBudget",
    "announce",
    "at_hand",
    "counted_function",
    "counted_items",
    "rendering",
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


class LimitError(BaseException):
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
                raise LimitError("it writes far more than it was given")

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
                raise LimitError(f"it takes more than {MAX_STEPS} steps")
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
                raise LimitError(f"it takes more than {MAX_SECONDS:g} seconds")

    def made(self, value: Any) -> Any:
        """A value was computed."""
        if isinstance(value, str):
            self.write(len(value))
        elif isinstance(value, (list, tuple, dict, Set)):
            self.step(len(value))
        elif isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise LimitError(f"it computes a number of more than {MAX_BITS} bits")
        return value

    def weigh(self, value: Any) -> int:
        """Characters of a value when it is written, at least. What is in it twice counts twice."""
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, CONTAINERS):
            return 16
        weight, rest = 0, [(value, 1)]
        while rest:
            each, depth = rest.pop()
            inner = _inside(each)
            if depth > MAX_NESTED:
                raise LimitError(f"it puts more than {MAX_NESTED} lists into each other")
            self.step(1 + len(inner))
            for one in inner:
                if isinstance(one, CONTAINERS):
                    rest.append((one, depth + 1))
                weight += len(one) + 8 if isinstance(one, str) else 16
            if weight > self.text_left:
                self.write(weight)
        return weight


#: What Python writes, compares or hashes with all that is in it.
CONTAINERS = (list, tuple, dict, Namespace, Set, KeysView, ValuesView, ItemsView, MappingProxyType)


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


rendering = _Local()


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


def announce(name: str, given: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """A filter, test or method of this name is going to be called."""
    count = rendering.count
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
        elif isinstance(each, CONTAINERS):
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
        raise LimitError("it rounds to more than 1000 digits")


def _adds(count: TemplateBudget, given: Any, others: list[Any], size: int) -> None:
    count.step(size * (len(given) if hasattr(given, "__len__") else 1) // 1000)


def _searches_and_splits(*told: Any) -> None:
    _searches(*told)
    _splits(*told)


#: Methods of dictionaries that look at no more than their keys.
OF_KEYS = frozenset(("get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"))
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
NO_TEXT_METHODS = frozenset(("encode", "format_map", "maketrans", "translate"))
#: Methods of a number that make bytes, which nothing counts.
NO_NUMBER_METHODS = frozenset(("from_bytes", "to_bytes"))


def counted_function(name: str, function: Any) -> Any:
    """A filter or test that says beforehand what it takes."""
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if name not in _SHALLOW:
            args = (*args[:skipped], *map(at_hand, args[skipped:]))
            kwargs = {key: at_hand(value) for key, value in kwargs.items()}
        announce(name, args[skipped], args[skipped + 1 :], kwargs)
        found = function(*args, **kwargs)
        count = rendering.count
        return counted_items(count, found) if isinstance(found, Iterator) else count.made(found)

    if skipped:
        wrapper.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
    return wrapper


def at_hand(value: Any) -> Any:
    """A value that can be weighed: items that are made one by one as a list."""
    return [*value] if isinstance(value, Iterator) else value


def counted_items(count: TemplateBudget, items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        count.step()
        yield item


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
