"""``Arguments``: keyword arguments, read by name and type; unknown names are an error."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from llama_py.errors import ParameterError, ParameterTypeError, UnknownParameterError, shown
from llama_py.params import check_bool, check_number

__all__ = ["Arguments", "check_known"]


def check_known(function: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise ``UnknownParameterError`` that names the nearest known parameter."""
    known = sorted(known)
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise UnknownParameterError(f"{function}() has no parameter {name!r}{hint}")


class Arguments:
    """Keyword arguments of one call. None is the same as not given.

    Raises:
        UnknownParameterError: one of the names is not known.
    """

    def __init__(self, function: str, given: Mapping[str, Any], known: frozenset[str]) -> None:
        if not given.keys() <= known:
            check_known(function, given, known)
        self._given = given

    def __contains__(self, name: str) -> bool:
        """Whether the caller gave a value other than None."""
        return self._given.get(name) is not None

    def given(self, name: str) -> bool:
        """Whether the caller gave the argument at all, None included."""
        return name in self._given

    def get(self, name: str, default: Any = None) -> Any:
        """The value as it is."""
        value = self._given.get(name)
        return default if value is None else value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or False."""
        value = self.get(name, default)
        check_bool(name, value)
        return bool(value)

    def optional_flag(self, name: str) -> bool | None:
        """True, False, or None if it was not given."""
        return self.flag(name) if name in self else None

    def integer(
        self, name: str, default: int | None = None, low: int | None = None, high: int | None = None
    ) -> int | None:
        """An integer in a range, or the default."""
        value = self.get(name)
        if value is None:
            return default
        check_number(name, value, low, high, integer=True)
        return int(value)

    def number(
        self, name: str, low: float | None = None, high: float | None = None
    ) -> float | None:
        """A finite number in a range, or None."""
        value = self.get(name)
        if value is None:
            return None
        check_number(name, value, low, high)
        return float(value)

    def text(self, name: str, *, empty: bool = False) -> str | None:
        """A string, or None."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise ParameterTypeError(f"{name} must be a string, not {_shown(value)}")
        if not value and not empty:
            raise ParameterError(f"{name} is empty; give a text, or leave it out")
        return value

    def choice(self, name: str, allowed: tuple[str, ...]) -> str | None:
        """One of some strings, or None."""
        value = self.text(name)
        if value is not None and value not in allowed:
            raise ParameterError(f"{name}={shown(value)}: expected one of {', '.join(allowed)}")
        return value

    def mapping(self, name: str) -> Mapping[Any, Any] | None:
        """A dictionary, or None."""
        value = self.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise ParameterTypeError(f"{name} must be a dictionary, not {_shown(value)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A string or several, as a tuple."""
        return tuple(
            self._items(name, str, "a string or a list of strings", lambda v: isinstance(v, str))
        )

    def functions(self, name: str) -> tuple[Callable[..., Any], ...]:
        """A callable or several, as a tuple."""
        what = "a function or a list of functions"
        return tuple(self._items(name, None, what, callable))

    def function(self, name: str) -> Callable[..., Any] | None:
        """A callable, or None."""
        value = self.get(name)
        if value is not None and not callable(value):
            raise ParameterTypeError(f"{name} must be a function, not {_shown(value)}")
        return value  # type: ignore[no-any-return]

    def _items(
        self, name: str, single: type | None, what: str, fits: Callable[[Any], bool]
    ) -> list[Any]:
        value = self.get(name, ())
        if isinstance(value, (list, tuple)):  # LogitsProcessorList is a list that can be called
            items = list(value)
        elif single is None or isinstance(value, single):
            items = [value]
        else:
            raise ParameterTypeError(f"{name} must be {what}, not {_shown(value)}")
        for item in items:
            if not fits(item):
                raise ParameterTypeError(f"{name} must be {what}, and contains {_shown(item)}")
        return items


def _shown(value: Any) -> str:
    return f"{type(value).__name__} ({shown(value, 60)})"
