"""llama.cpp's chat templates by name, which are C++ and not Jinja."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

from llama_py._native import llama_h as C
from llama_py.errors import TemplateError

__all__ = ["apply_named_template", "named_templates"]


@cache
def named_templates() -> tuple[str, ...]:
    """The names, sorted."""
    count = C.llama_chat_builtin_templates(None, 0)
    names = (ctypes.c_char_p * count)()
    C.llama_chat_builtin_templates(names, count)
    return tuple(name.decode() for name in names if name is not None)


def apply_named_template(name: str, messages: Sequence[tuple[str, str]], opening: bool) -> str:
    """The prompt of a conversation.

    Args:
        name: one of ``named_templates()``.
        messages: (role, text) pairs.
        opening: the text that opens the reply is added, if the template has one.

    Raises:
        TemplateError: there is a NUL character, which ends a text in C; or llama.cpp fails.
    """
    chat = (C.llama_chat_message * len(messages))()
    for entry, (role, text) in zip(chat, messages, strict=True):
        if "\0" in text or "\0" in role:
            raise TemplateError(f"the template {name!r} of llama.cpp cannot write a NUL character")
        entry.role, entry.content = role.encode(), text.encode()
    arguments = name.encode(), chat, len(messages), opening
    size = C.llama_chat_apply_template(*arguments, None, 0)
    buffer = ctypes.create_string_buffer(max(size, 0) + 1)
    if size < 0 or C.llama_chat_apply_template(*arguments, buffer, size) != size:
        raise TemplateError(f"llama.cpp cannot render this conversation with its {name!r}")
    return buffer.raw[:size].decode()
