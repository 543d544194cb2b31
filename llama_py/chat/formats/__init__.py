"""Chat formats by name, in place of the model's own template."""

from __future__ import annotations

from llama_py.chat.formats.registry import (
    ChatFormat,
    ChatHandler,
    chat_formats,
    get_chat_format,
    register_chat_format,
    unregister_chat_format,
)
from llama_py.chat.templates.formatter import (
    ChatFormatter,
    ChatFormatterResponse,
    Jinja2ChatFormatter,
)

__all__ = [
    "ChatFormat",
    "ChatFormatter",
    "ChatFormatterResponse",
    "ChatHandler",
    "Jinja2ChatFormatter",
    "chat_formats",
    "get_chat_format",
    "register_chat_format",
    "unregister_chat_format",
]
