"""``TemplateHandle`` and ``ReplyParser``: owners of what the chat library makes.

The library (``native/shim``) wraps llama.cpp's C++ chat code and speaks JSON. This module turns
that into Python values and typed errors; what the values mean is the business of ``llama_py.chat``.
The library renders no template itself: it asks a function of the caller.
"""

from __future__ import annotations

import ctypes
import json
import secrets
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

from llama_py._native import chat_h
from llama_py._native.llama_h import llama_model_p
from llama_py.core import logs
from llama_py.core.handle import Handle
from llama_py.errors import (
    GrammarError,
    LlamaError,
    NativeLibraryError,
    ParameterError,
    TemplateError,
)

__all__ = ["ReplyParser", "TemplateHandle", "TemplateRenderer", "schema_to_gbnf", "take_text"]

#: Renders a template: its text and its variables, as a JSON object, to the text that they make.
#: Without variables, the answer is an object of bools: what the template can express
#: (``llama_py_chat_renderer``).
TemplateRenderer = Callable[[str, bytes | None], str]

#: The message where llama.cpp passes on an exception without its type.
_NO_REASON = "std::exception"
#: Characters of a text that are written at once. Longer ones would keep other threads waiting: the
#: interpreter lets them go on between two calls, and not within one.
_AT_ONCE = 1 << 17
#: What may be such a text, or have one inside.
_MAY_BE_LONG = (str, dict, list, tuple)


def _dump(value: Any) -> bytes:
    # ASCII only: NUL and everything else that C strings dislike travels as an escape.
    long: dict[str, str] = {}
    try:
        shortened = _without_long(value, long)
    except RecursionError:  # the json module reaches deeper
        shortened, long = value, {}
    try:
        text = json.dumps(shortened, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ParameterError(f"this cannot be written as JSON: {error}") from error
    parts: list[str] = []
    for name, each in long.items():  # in the order in which the names stand in the text
        before, _, text = text.partition(name)
        starts = range(0, len(each), _AT_ONCE)
        parts += [before, *(json.dumps(each[at : at + _AT_ONCE])[1:-1] for at in starts)]
    return b"".join([part.encode("ascii") for part in [*parts, text]])


def _without_long(value: Any, long: dict[str, str]) -> Any:
    """``value`` with names in place of its long texts, which are entered in ``long``."""
    if isinstance(value, str):
        if len(value) <= _AT_ONCE:
            return value
        name = secrets.token_hex(16)
        long[name] = value
        return name
    if isinstance(value, dict):
        return {
            key: _without_long(each, long) if isinstance(each, _MAY_BE_LONG) else each
            for key, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_without_long(each, long) for each in value]
    return value


def _take(text: Any) -> bytes:
    """Copy a string that the library returned, and free it."""
    try:
        return ctypes.string_at(text)
    finally:
        chat_h.llama_py_chat_string_free(text)


def _call(function: Callable[..., Any], kind: type[LlamaError], *arguments: Any) -> Any:
    """Call a function whose last argument is ``char ** error``; raise ``kind`` if it is set."""
    error = ctypes.POINTER(ctypes.c_char)()
    result = function(*arguments, ctypes.byref(error))
    if error:  # type: ignore[truthy-bool]  # a ctypes pointer is false when it is NULL
        raise kind(_take(error).decode("utf-8", "replace"))
    return result


def take_text(text: Any) -> str:
    """A message that the library returned, which is freed."""
    return _take(text).decode("utf-8", "replace")


@cache
def _check_library() -> None:
    """Raise NativeLibraryError if the library was built from another source than this file."""
    logs.install()  # before the library loads the backends, which speak
    found, expected = chat_h.llama_py_chat_abi_version(), chat_h.LLAMA_PY_CHAT_ABI_VERSION
    if found != expected:
        raise NativeLibraryError(
            f"the chat library has ABI version {found}, this package needs {expected}; rebuild it, "
            "or unset LLAMA_PY_LIB"
        )


def _rendering(render: TemplateRenderer, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the library that may ask for the text of a template."""
    failures: list[BaseException] = []

    def answer(source: bytes | None, values: bytes | None, out: int | None) -> bool:
        try:
            if failures and not isinstance(failures[-1], TemplateError):
                raise failures[-1]
            text, fine = render((source or b"").decode("utf-8", "replace"), values), True
        except BaseException as error:  # nothing may be raised through C: it is raised below
            failures.append(error)
            text, fine = str(error), False
        raw = text.encode("utf-8", "replace")
        chat_h.llama_py_chat_answer(out, raw, len(raw))
        return fine

    try:
        return _call(function, TemplateError, *arguments, chat_h.llama_py_chat_renderer(answer))
    except TemplateError as error:
        told = str(error)
        for failure in reversed(failures):
            refused = isinstance(failure, TemplateError)
            if not refused or str(failure) in told or told == _NO_REASON:
                raise failure.with_traceback(None) from None
        raise
    finally:
        failures.clear()


class TemplateHandle(Handle[chat_h.llama_py_chat_templates_p]):
    """A chat template that llama.cpp has looked at. May be used from several threads at once.

    Args:
        model: the model whose template and BOS / EOS texts to use. Only read here: the handle
            does not need it any more afterwards.
        text: a Jinja template, in place of the model's.
        render: renders it, often.
        bos, eos: the texts of those tokens, for a template without a model.

    Raises:
        TemplateError: the template does not parse, or there is none.
    """

    def __init__(
        self,
        model: llama_model_p | None = None,
        text: str | None = None,
        *,
        render: TemplateRenderer,
        bos: str = "",
        eos: str = "",
    ) -> None:
        _check_library()
        pointer = _rendering(
            render,
            chat_h.llama_py_chat_templates_init,
            llama_model_p() if model is None else model,
            None if text is None else text.encode(),
            bos.encode(),
            eos.encode(),
        )
        super().__init__(pointer, chat_h.llama_py_chat_templates_free)

    def info(self, render: TemplateRenderer) -> dict[str, Any]:
        """Facts about the template; the keys are those of ``llama_py_chat_templates_info``."""
        with self.in_use() as pointer:
            text = _rendering(render, chat_h.llama_py_chat_templates_info, pointer)
        return cast("dict[str, Any]", json.loads(_take(text)))

    def apply(self, inputs: Mapping[str, Any], render: TemplateRenderer) -> dict[str, Any]:
        """Render a conversation; the keys are those of ``llama_py_chat_apply``.

        Raises:
            TemplateError: the template refuses these messages.
        """
        given = _dump(inputs)
        with self.in_use() as pointer:  # another thread may close the model meanwhile
            text = _rendering(render, chat_h.llama_py_chat_apply, pointer, given)
        return cast("dict[str, Any]", json.loads(_take(text)))


class ReplyParser(Handle[chat_h.llama_py_chat_parser_p]):
    """The parser of one reply. Belongs to one thread at a time.

    Args:
        spec: the ``parser`` entry of what ``TemplateHandle.apply`` returned.

    Raises:
        TemplateError: that is not a parser.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        pointer = _call(chat_h.llama_py_chat_parser_init, TemplateError, _dump(spec))
        super().__init__(pointer, chat_h.llama_py_chat_parser_free)

    def parse(self, text: str, partial: bool = False) -> dict[str, Any]:
        """Parse a whole reply, or with ``partial`` the beginning of one, to an OpenAI message."""
        raw = text.encode("utf-8", "replace")
        out = _call(chat_h.llama_py_chat_parse, TemplateError, self.pointer, raw, len(raw), partial)
        return cast("dict[str, Any]", json.loads(_take(out)))

    def feed(self, text: str, final: bool = False) -> list[dict[str, Any]]:
        """Take the next piece; return what is new (see ``llama_py_chat_parser_feed``)."""
        raw = text.encode("utf-8", "replace")
        out = _call(
            chat_h.llama_py_chat_parser_feed, TemplateError, self.pointer, raw, len(raw), final
        )
        return cast("list[dict[str, Any]]", json.loads(_take(out))) if out else []


def schema_to_gbnf(schema: Any) -> str:
    """Convert a JSON schema to a GBNF grammar with llama.cpp's converter.

    Raises:
        GrammarError: the converter rejects the schema. (It also ignores much of what it does not
            support; ``llama_py.chat.constraints`` looks for that first.)
    """
    _check_library()
    text = _call(chat_h.llama_py_chat_schema_to_grammar, GrammarError, _dump(schema))
    return _take(text).decode()
