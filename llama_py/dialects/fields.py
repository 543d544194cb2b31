"""Reads the fields of a JSON body. Whatever is wrong is a ``RequestError`` with its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_py.chat.checks import check_json, check_text
from llama_py.dialects.failures import Kind, RequestError
from llama_py.errors import ParameterError, ParameterTypeError, shown
from llama_py.options import Option
from llama_py.options.checks import fits_a_float

__all__ = ["Fields", "missing", "whole", "whole_number", "wrong_type", "wrong_value"]


def wrong_type(where: str, wanted: str, value: Any) -> RequestError:
    """The error for a value of the wrong type, with what was expected (``a string``)."""
    return RequestError(Kind.INVALID_TYPE, f"{where} must be {wanted}, not {shown(value)}", where)


def wrong_value(where: str, problem: str) -> RequestError:
    """The error for a value that cannot be used; the message is the place and the problem."""
    return RequestError(Kind.INVALID_VALUE, f"{where} {problem}", where)


def missing(where: str, remedy: str) -> RequestError:
    """The error for a field that is not there."""
    return RequestError(Kind.MISSING, f"{where} is missing; {remedy}", where)


def whole_number(value: Any) -> Any:
    """JSON has one kind of number: 16.0 is an integer where one is wanted."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def whole(option: Option, value: Any) -> Any:
    """The value of an option, as an integer where it is one."""
    wanted = int in option.kinds and float not in option.kinds
    return whole_number(value) if wanted else value


class Fields:
    """An object of a body. null is the same as a field that is not there.

    Args:
        value: what stands there.
        where: its place (``input[2]``); empty for the body.

    Attributes:
        values: the object's fields.

    Raises:
        RequestError: it is not an object.
    """

    def __init__(self, value: Any, where: str = "") -> None:
        if not isinstance(value, Mapping):
            raise wrong_type(where or "the body", "an object", value)
        self.values = value
        self._where = where

    def place(self, name: str) -> str:
        """The place of a field."""
        return f"{self._where}.{name}" if self._where else name

    @property
    def where(self) -> str:
        """Its own place."""
        return self._where

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def get(self, name: str) -> Any:
        """A field as it is, None if it is not there."""
        return self.values.get(name)

    def text(self, name: str) -> str | None:
        """A string that can be encoded."""
        value = self.values.get(name)
        return None if value is None else as_text(value, self.place(name))

    def needed_text(self, name: str) -> str:
        """A string that has to be there."""
        value = self.text(name)
        if value is None:
            raise missing(self.place(name), "it must be a string")
        return value

    def flag(self, name: str) -> bool | None:
        """A boolean."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise wrong_type(self.place(name), "true or false", value)
        return value

    def integer(self, name: str, low: int, high: int | None = None) -> int | None:
        """An integer within a range."""
        value = whole_number(self.values.get(name))
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(self.place(name), "an integer", value)
        if not fits_a_float(value) or value < low or (high is not None and value > high):
            limits = f"at least {low}" if high is None else f"{low} to {high}"
            raise wrong_value(self.place(name), f"is {shown(value)}; it must be {limits}")
        return value

    def list(self, name: str) -> list[Any]:
        """A list; empty if it is not there."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise wrong_type(self.place(name), "a list", value)
        return value

    def json(self, name: str) -> Any:
        """Any value, which can be written as JSON again."""
        value = self.values.get(name)
        as_json(value, self.place(name))
        return value

    def fields(self, name: str) -> Fields | None:
        """An object within this one."""
        value = self.values.get(name)
        return None if value is None else Fields(value, self.place(name))


def as_text(value: Any, where: str) -> str:
    """A string that can be encoded.

    Raises:
        RequestError: it is none, or contains half of a surrogate pair.
    """
    try:
        return check_text(value, where)
    except ParameterTypeError as error:
        raise RequestError(Kind.INVALID_TYPE, str(error), where) from None
    except ParameterError as error:
        raise RequestError(Kind.INVALID_VALUE, str(error), where) from None


def as_json(value: Any, where: str) -> None:
    """Check that a value can be written as JSON.

    Raises:
        RequestError: it contains NaN, half of a surrogate pair, or too many levels.
    """
    try:
        check_json(value, where)
    except ParameterError as error:
        raise RequestError(Kind.INVALID_VALUE, str(error), where) from None
