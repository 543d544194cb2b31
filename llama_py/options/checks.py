"""Checks of single values; each error names the argument, what was given, and what is allowed."""

from __future__ import annotations

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
    "number_reader",
    "read_function",
    "read_functions",
    "read_mapping",
    "read_string",
    "read_text",
    "read_texts",
    "refuse_unknown",
    "whole_text",
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
        if low is not None and high is not None:
            allowed = f"allowed is {low} to {high}"
        elif low is not None:
            allowed = f"it must be at least {low}"
        else:
            allowed = f"it must be at most {high}" if high is not None else "it must be finite"
        raise ParameterError(f"{name}={shown(value)} is out of range: {allowed}")


def number_reader(
    name: str, kind: type[Any], low: float | None, high: float | None
) -> Callable[[Any], Any]:
    """A function that returns a value as ``int`` or ``float``, checked as ``check_number`` does."""
    integer = kind is int

    def read(value: Any) -> Any:
        check_number(name, value, low, high, integer=integer)
        return kind(value)

    return read


def fits_a_float(value: Any) -> bool:
    """True for a finite number that is not too large for a double."""
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of more than 1024 bits
        return False


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
    """A string that can be encoded, and may be empty only if ``empty``."""
    return whole_text(read_string(name, value, empty=empty), name)


def read_string(name: str, value: Any, *, empty: bool = False) -> str:
    """Any string, also a path whose name on disk is not UTF-8; see ``read_text``."""
    if not isinstance(value, str):
        raise ParameterTypeError(f"{name} must be a string, not {described(value)}")
    if not value and not empty:
        raise ParameterError(f"{name} is empty; give a text, or leave it out")
    return value


def whole_text(text: str, where: str) -> str:
    """The text, with surrogate pairs joined to the characters they stand for.

    Raises:
        ParameterError: it contains half of a pair, which has no UTF-8 form.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        try:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            pass
        place, code = _lone_surrogate(text, error.start)
        raise ParameterError(
            f"{where} has a lone surrogate (U+{code:04X}, half of a character) at index {place}, "
            'which cannot be encoded; text.encode("utf-8", "replace").decode() puts a question '
            "mark in its place"
        ) from None
    return text


def _lone_surrogate(text: str, start: int) -> tuple[int, int]:
    """Index and code of the first surrogate without its other half."""
    place = start
    while place < len(text):
        code = ord(text[place])
        following = ord(text[place + 1]) if place + 1 < len(text) else 0
        if 0xD800 <= code < 0xDC00 and 0xDC00 <= following < 0xE000:
            place += 2
        elif 0xD800 <= code < 0xE000:
            return place, code
        else:
            place += 1
    return start, ord(text[start])


def read_mapping(name: str, value: Any) -> Mapping[Any, Any]:
    """A dictionary."""
    check_kind(name, value, (Mapping,), "a dictionary")
    return value  # type: ignore[no-any-return]


def read_texts(name: str, value: Any) -> tuple[str, ...]:
    """A string or several, as a tuple."""
    found = _several(name, value, "a string or a list of strings", lambda v: isinstance(v, str))
    return tuple(whole_text(text, name) for text in found)


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


#: What other libraries and servers call a parameter -> what it is called here.
_ELSEWHERE: Mapping[str, str] = {
    "batch_size": "n_batch",
    "cache_prompt": "reuse",
    "context_length": "n_ctx",
    "context_size": "n_ctx",
    "ctx_size": "n_ctx",
    "device": "n_gpu_layers",
    "do_sample": "temperature",
    "flash_attention": "flash_attn",
    "format": "response_format",
    "gpu_layers": "n_gpu_layers",
    "json_schema": "response_format",
    "lora": "lora_path",
    "max_completion_tokens": "max_tokens",
    "max_context": "n_ctx",
    "max_length": "max_tokens",
    "max_model_len": "n_ctx",
    "max_new_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_seq_len": "n_ctx",
    "model": "model_path",
    "n_predict": "max_tokens",
    "ngl": "n_gpu_layers",
    "num_ctx": "n_ctx",
    "num_gpu": "n_gpu_layers",
    "num_predict": "max_tokens",
    "num_thread": "n_threads",
    "num_threads": "n_threads",
    "random_seed": "seed",
    "rep_pen": "repeat_penalty",
    "repetition_penalty": "repeat_penalty",
    "schema": "response_format",
    "stop_sequences": "stop",
    "stop_words": "stop",
    "temp": "temperature",
    "think": "enable_thinking",
    "thinking": "enable_thinking",
    "threads": "n_threads",
}


def refuse_unknown(function: str, name: str, known: Iterable[str]) -> UnknownParameterError:
    """The error for a parameter that does not exist; it suggests the one that is likely meant.

    That is the one that other libraries call so, or else the nearest name.
    """
    names = sorted(known)
    elsewhere = _ELSEWHERE.get(name.lower())
    import difflib  # for the error only

    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if elsewhere in names:
        close = [elsewhere]
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return UnknownParameterError(f"{function}() has no parameter {name!r}{hint}")
