"""Checks of texts and JSON values that come with a chat request.

The values are passed to llama.cpp as JSON, whose errors name a column of a text that the caller
never saw. The errors raised here name the place instead (``messages[0].content``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from llama_py.errors import ParameterError, ParameterTypeError, shown
from llama_py.options.checks import whole_text

__all__ = ["check_json", "check_text", "read_arguments", "wrapped_arguments"]

#: Deeper than any real value, and well within what the recursion here and in C++ can take.
_MAX_DEPTH = 200
#: Larger integers have no double, as which llama.cpp's JSON reads them.
_MOST_BITS = 1023
#: Numbers between this and its negative need no closer look.
_SAFE = 1e300


def read_arguments(text: str, where: str) -> str:
    """The arguments of a call as JSON text of an object.

    The model may have written something else, or the beginning of one, where its reply was cut off.
    Then that is the only member of an object, so that the conversation can go on.

    Raises:
        ParameterError: they are JSON with a value that cannot be used, such as NaN.
    """
    text = whole_text(text, where)
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return wrapped_arguments(text)
    check_json(value, where)
    return (text or "{}") if isinstance(value, dict) else wrapped_arguments(text)


def wrapped_arguments(text: str) -> str:
    """An object, as JSON text, for arguments that are none."""
    return json.dumps({"invalid_arguments": text}, ensure_ascii=False)


def check_text(value: Any, where: str) -> str:
    """Return a string that can be encoded as UTF-8, or raise an error that names ``where``."""
    if not isinstance(value, str):
        raise ParameterTypeError(f"{where} must be a string, not {shown(value)}")
    return whole_text(value, where)


def check_json(value: Any, where: str) -> None:
    """Raise unless ``value`` consists of JSON values: objects, lists, strings, numbers, null.

    Raises:
        ParameterTypeError: a value or a key of another type.
        ParameterError: NaN, infinity, a lone surrogate, or more levels than can be read back.
    """
    if not _is_sound(value, 0):  # which is quicker than to keep track of the places
        _look_closer(value, where, 0)


def _is_sound(value: Any, depth: int) -> bool:
    """True if the value is certainly valid; ``_look_closer`` decides the less usual cases."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii())
    if value is None or kind is bool:
        return True
    if kind is int or kind is float:
        return bool(-_SAFE < value < _SAFE)
    if depth == _MAX_DEPTH:
        return False
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or not key.isascii() or not _is_sound(item, depth + 1):
                return False
        return True
    return kind is list and all(_is_sound(item, depth + 1) for item in value)


def _look_closer(value: Any, where: str, depth: int) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        whole_text(value, where)
    elif isinstance(value, int):
        if value.bit_length() > _MOST_BITS:
            raise ParameterError(f"{where} is an integer of {value.bit_length()} bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ParameterError(f"{where} is {value}, which JSON cannot express; use null")
    elif depth == _MAX_DEPTH:
        raise ParameterError(f"{where} is nested more than {_MAX_DEPTH} levels deep")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ParameterTypeError(f"{where} has the key {shown(key)}; keys must be strings")
            whole_text(key, f"{where}: the key {shown(key)}")
            _look_closer(item, f"{where}.{key}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _look_closer(item, f"{where}[{index}]", depth + 1)
    else:
        raise ParameterTypeError(f"{where} is {shown(value)}, which is not a value of JSON")
