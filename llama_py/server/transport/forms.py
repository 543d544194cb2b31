"""``parse_form``: the fields and files of a ``multipart/form-data`` body."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from llama_py.dialects.failures import Kind, RequestError

__all__ = ["parse_form"]

_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
_NAME = re.compile(rb'[;\s]name="([^"]*)"', re.IGNORECASE)
_IS_FILE = re.compile(rb"[;\s]filename\*?=", re.IGNORECASE)
#: Parts of a form, and bytes of the headers of one.
_MOST_PARTS, _MOST_HEAD = 64, 4096


def parse_form(data: bytes, content_type: str) -> dict[str, Any]:
    """Texts by their names, and bytes for files. Of fields with the same name the last one counts.

    Raises:
        RequestError: it is not a form.
    """
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise _broken("the Content-Type names no boundary")
    boundary = b"--" + (found[1] or found[2]).encode("latin-1", "replace")
    end = b"\r\n" + boundary
    # A line break before the first boundary makes it like the others.
    data = b"\r\n" + data
    at, form = data.find(end), dict[str, Any]()
    for _ in range(_MOST_PARTS + 1):
        if at < 0:
            raise _broken("it ends before its last boundary")
        at += len(end)
        if data[at : at + 2] == b"--":
            return form
        start = data.find(b"\r\n", at)
        at = data.find(end, start)
        if start < 0 or at < 0:
            raise _broken("it ends before its last boundary")
        _add(form, data, start, at)
    raise _broken(f"it has more than {_MOST_PARTS} parts")


def _add(form: dict[str, Any], data: bytes, start: int, end: int) -> None:
    """Read the part between two places, which begins with a line break and its headers."""
    blank = data.find(b"\r\n\r\n", start, min(end, start + _MOST_HEAD))
    if blank < 0:
        raise _broken("a part has no headers, or too many")
    head, body = data[start:blank], data[blank + 4 : end]
    name = _NAME.search(head)
    if name is None:
        raise _broken("a part has no name")
    key = unquote(name[1].decode("utf-8", "replace"))
    if _IS_FILE.search(head):
        form[key] = body
        return
    try:
        form[key] = body.decode("utf-8")
    except UnicodeDecodeError:
        raise _broken(f"the field {key[:40]!r} is not UTF-8") from None


def _broken(why: str) -> RequestError:
    return RequestError(Kind.INVALID_VALUE, f"the body is not a multipart form: {why}")
