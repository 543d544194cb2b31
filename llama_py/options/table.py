"""``Table``: the options that a ``TypedDict`` declares, read at run time.

The ``TypedDict`` is the only declaration of an option. Type checkers and editors read it as the
signature of a call (``**options: Unpack[ChatOptions]``); this module reads the same names, types
and marks to check what was given, and so do the tables in the docs, the flags of the command line
and ``schema``.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as hints_of

from llama_py.errors import ParameterError, UnknownParameterError, shown
from llama_py.options.checks import (
    check_bool,
    check_number,
    number_reader,
    read_function,
    read_functions,
    read_mapping,
    read_text,
    read_texts,
    refuse_unknown,
)
from llama_py.options.marks import (
    Default,
    Doc,
    Empty,
    Ignored,
    NoneCounts,
    Numbered,
    Range,
    Reads,
    SameAs,
)
from llama_py.options.values import as_is

__all__ = ["Option", "Table"]

T = TypeVar("T")
M = TypeVar("M")
Reader = Callable[[str, Any], Any]

_ON_AND_OFF = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


class Option:
    """One option, as it was declared.

    Attributes:
        name: the name of the argument.
        kinds: the types that its value may have, without None.
        optional: None is allowed, and the same as not given,
        none_counts: except where it is a value of its own.
        read: checks a value and brings it to the form that the library uses.
    """

    def __init__(self, name: str, hint: Any) -> None:
        base, *marks = get_args(hint)
        self._marks: dict[type, Any] = {type(mark): mark for mark in marks}
        self.name = name
        union = get_args(base) if get_origin(base) in (Union, types.UnionType) else (base,)
        self.kinds = tuple(kind for kind in union if kind is not type(None))
        self.optional = len(self.kinds) < len(union) or Any in self.kinds
        self.none_counts = self.mark(NoneCounts) is not None
        self.read: Callable[[Any], Any] = self._reader()

    def mark(self, kind: type[M]) -> M | None:
        """The mark of this kind, or None."""
        return self._marks.get(kind)

    @property
    def doc(self) -> str:
        """The meaning of the option."""
        doc = self.mark(Doc)
        return doc.text if doc else ""

    @property
    def range(self) -> Range:
        """The numbers that it may be."""
        return self.mark(Range) or Range()

    @property
    def names(self) -> dict[str, int]:
        """The names that may be given in place of numbers."""
        numbered = self.mark(Numbered)
        return dict(zip(self.choices, numbered.numbers, strict=True)) if numbered else {}

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts that it may be, if only certain ones are allowed."""
        literals = [get_args(kind) for kind in self.kinds if get_origin(kind) is Literal]
        return tuple(text for texts in literals for text in texts if isinstance(text, str))

    def default(self, function: str | None = None) -> Any:
        """Its value for ``function`` if it is not given; None if that depends on something."""
        default = self.mark(Default)
        return default.of.get(function or "", default.value) if default else None

    def parse(self, text: str) -> Any:
        """The value that a text on the command line stands for, checked.

        Raises:
            ParameterError: it is not a value of this option.
        """
        kind: Any = self.kinds[0]
        value: Any = text
        if kind is bool and text not in self.choices:
            value = _ON_AND_OFF.get(text.lower(), text)
        elif kind in (int, float) and text not in self.choices:
            with suppress(ValueError):  # what is not a number is refused with the reason
                value = kind(text)
        return self.read(value)

    # -- reading --------------------------------------------------------------------------------

    def _reader(self) -> Callable[[Any], Any]:
        own = self.mark(Reads)
        if own is not None:
            return _bind(own.read, self.name)
        if self.names:
            return _number_by_name_reader(self.name, self.names)
        first, several = self.kinds[0], len(self.kinds) > 1
        origin = get_origin(first)
        if len(self.choices) and not several:
            return self._read_choice
        if first in (int, float):
            return number_reader(self.name, first, self.range.low, self.range.high)
        read: Reader
        if first is bool:
            read = _read_bool
        elif first is str:
            read = read_texts if several else partial(read_text, empty=self.mark(Empty) is not None)
        elif origin is get_origin(Callable[..., Any]):
            read = read_functions if several else read_function
        elif origin is get_origin(Mapping[str, Any]):
            read = read_mapping
        elif self.mark(Ignored) or self.mark(SameAs):
            read = as_is
        else:
            raise TypeError(f"{self.name}: say how {self.kinds} is read, with a mark Reads(...)")
        return _bind(read, self.name)

    def _read_choice(self, value: Any) -> str:
        text = read_text(self.name, value)
        if text not in self.choices:
            expected = ", ".join(self.choices)
            raise ParameterError(f"{self.name}={shown(text)}: expected one of {expected}")
        return text


class Table(Generic[T]):
    """The options of one call.

    Args:
        function: the name of the call, for messages and for defaults that differ between calls.
        declaration: the ``TypedDict``.
        others: further parameters of the call: a misspelled one is likely to be meant.
    """

    def __init__(self, function: str, declaration: type[T], others: Sequence[str] = ()) -> None:
        self.function = function
        self.declaration = declaration
        self._others = others

    @cached_property
    def options(self) -> Mapping[str, Option]:
        """The options by name, in the order in which they are declared."""
        hints = hints_of(self.declaration, include_extras=True)
        return {name: Option(name, hint) for name, hint in hints.items()}

    def __iter__(self) -> Iterator[Option]:
        return iter(self.options.values())

    def __getitem__(self, name: str) -> Option:
        return self.options[name]

    def read(self, given: Mapping[str, Any]) -> T:
        """The options that were given, checked, and in the form that the library uses.

        None is the same as not given, but for options where it has a meaning of its own.

        Raises:
            UnknownParameterError: one of the names is not known.
            ParameterError: a value is out of range or has the wrong type.
        """
        values: dict[str, Any] = {}
        options = self.options
        for name, value in given.items():
            option = options.get(name)
            if option is None:
                raise self.unknown(name)
            if value is not None or not option.optional:
                try:
                    values[name] = option.read(value)
                except ParameterError as error:
                    error.param = name
                    raise
            elif option.none_counts:
                values[name] = None
        if not self._unsettled.isdisjoint(values):
            self._settle(values)
        return values  # type: ignore[return-value]

    def complete(self, given: Mapping[str, Any]) -> T:
        """``read``, with the default of every option that was not given."""
        values = {name: option.default(self.function) for name, option in self.options.items()}
        return {**values, **self.read(given)}  # type: ignore[return-value, dict-item]

    def defaults(self) -> dict[str, Any]:
        """The default of every option that has one."""
        return dict(self.default_values)

    @cached_property
    def default_values(self) -> Mapping[str, Any]:
        """``defaults``, made once."""
        return {each.name: each.default(self.function) for each in self if each.mark(Default)}

    def unknown(self, name: str) -> UnknownParameterError:
        """The error for a name that is not known."""
        return refuse_unknown(self.function, name, (*self.options, *self._others))

    @cached_property
    def _unsettled(self) -> frozenset[str]:
        return frozenset(each.name for each in self if each.mark(SameAs) or each.mark(Ignored))

    def _settle(self, values: dict[str, Any]) -> None:
        """Bring other names of an option to its own, and drop what has no effect."""
        for other in self._unsettled & values.keys():
            value, same = values.pop(other), self.options[other].mark(SameAs)
            if same is not None:
                name = same.name
                value = self.options[name].read(value)
                if values.setdefault(name, value) not in (value, None):
                    raise ParameterError(
                        f"{name}={shown(values[name])} contradicts {other}={shown(value)}: "
                        f"{other} and {name} are the same thing"
                    )
                values[name] = value


def _bind(read: Reader, name: str) -> Callable[[Any], Any]:
    return lambda value: read(name, value)


def _number_by_name_reader(name: str, numbers: Mapping[str, int]) -> Callable[[Any], int]:
    known = ", ".join(f"{each!r} ({number})" for each, number in numbers.items())

    def read(value: Any) -> int:
        number = value
        if isinstance(value, str):
            number = numbers.get(value.lower().replace("-", "_"))
        else:
            check_number(name, value, integer=True)
        if number not in numbers.values():
            raise ParameterError(f"{name}={shown(value)}: expected one of {known}")
        return int(number)

    return read


def _read_bool(name: str, value: Any) -> bool:
    check_bool(name, value)
    return bool(value)
