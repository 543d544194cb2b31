"""Checks of single values; each error names the argument, what was given, and what is allowed."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from llama_py.errors import ParameterError, ParameterTypeError, UnknownParameterError, shown

__all__ = [
    "check_bool",
    "check_kind",
    "check_number",
    "fits_a_float",
    "is_bool",
    "read_function",
    "read_functions",
    "read_mapping",
    "read_text",
    "read_texts",
    "refuse_unknown",
]


def check_number(
    name: str,
    value: Any,
    low: float | None = None,
    high: float | None = None,
    *,
    integer: bool = False,
) -> None:
    """Raise unless ``value`` is a finite number (an ``int`` if ``integer``) within [low, high]."""
    wanted: Any = (int, Integral) if integer else (int, float, Real)  # numpy's are among these
    if isinstance(value, bool) or not isinstance(value, wanted):
        kind = "an integer" if integer else "a number"
        raise ParameterTypeError(f"{name} must be {kind}, not {described(value)}")
    too_low = low is not None and value < low
    too_high = high is not None and value > high
    if not fits_a_float(value) or too_low or too_high:
        raise ParameterError(f"{name}={shown(value)} is out of range: {_range_text(low, high)}")


def fits_a_float(value: Any) -> bool:
    """True for a finite number that is not too large for a double."""
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of more than 1024 bits
        return False


def _range_text(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"allowed is {low} to {high}"
    if low is not None:
        return f"it must be at least {low}"
    return f"it must be at most {high}" if high is not None else "it must be finite"


def check_bool(name: str, value: Any) -> None:
    """Raise unless ``value`` is a bool."""
    if not is_bool(value):
        raise ParameterTypeError(f"{name} must be True or False, not {described(value)}")


def is_bool(value: Any) -> bool:
    """True for a bool, numpy's included. Who has one has imported numpy."""
    if isinstance(value, bool):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.bool_)


def check_kind(name: str, value: Any, kinds: tuple[type, ...], what: str) -> None:
    """Raise unless ``value`` is an instance of one of ``kinds``, which are called ``what``."""
    if not isinstance(value, kinds):
        raise ParameterTypeError(f"{name} must be {what}, not {described(value)}")


def described(value: Any) -> str:
    """Type and value, for a message."""
    return f"{type(value).__name__} ({shown(value, 60)})"


def read_text(name: str, value: Any, *, empty: bool = False) -> str:
    """A string, which may be empty only if ``empty``."""
    if not isinstance(value, str):
        raise ParameterTypeError(f"{name} must be a string, not {described(value)}")
    if not value and not empty:
        raise ParameterError(f"{name} is empty; give a text, or leave it out")
    return value


def read_mapping(name: str, value: Any) -> Mapping[Any, Any]:
    """A dictionary."""
    check_kind(name, value, (Mapping,), "a dictionary")
    return value  # type: ignore[no-any-return]


def read_texts(name: str, value: Any) -> tuple[str, ...]:
    """A string or several, as a tuple."""
    return _several(name, value, "a string or a list of strings", lambda v: isinstance(v, str))


def read_functions(name: str, value: Any) -> tuple[Callable[..., Any], ...]:
    """A callable or several, as a tuple."""
    return _several(name, value, "a function or a list of functions", callable)


def read_function(name: str, value: Any) -> Callable[..., Any]:
    """A callable."""
    if not callable(value):
        raise ParameterTypeError(f"{name} must be a function, not {described(value)}")
    return value  # type: ignore[no-any-return]


def _several(name: str, value: Any, what: str, fits: Callable[[Any], bool]) -> tuple[Any, ...]:
    if isinstance(value, (list, tuple)):  # first: LogitsProcessorList is a list to be called
        for item in value:
            if not fits(item):
                raise ParameterTypeError(f"{name} must be {what}, and contains {described(item)}")
        return tuple(value)
    if not fits(value):
        raise ParameterTypeError(f"{name} must be {what}, not {described(value)}")
    return (value,)


def refuse_unknown(function: str, name: str, known: Iterable[str]) -> UnknownParameterError:
    """The error for a parameter that does not exist; it suggests the nearest one that does."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return UnknownParameterError(f"{function}() has no parameter {name!r}{hint}")
