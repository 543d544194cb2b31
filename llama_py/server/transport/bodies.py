"""``read_body``: the JSON object that a request carries, within limits."""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import Mapping
from typing import Any, NoReturn

from starlette.requests import Request

from llama_py.dialects.failures import Kind, RequestError
from llama_py.errors import shown
from llama_py.server.config.settings import Settings
from llama_py.server.transport.extras import abort
from llama_py.server.transport.forms import parse_form

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]

__all__ = ["model_of", "parse_body", "read_body", "read_bytes", "read_form"]

#: Bytes that take the event loop less time to parse than another thread takes to wake up.
_SMALL = 64 << 10


async def read_body(request: Request, settings: Settings) -> dict[str, Any]:
    """Read and parse the body of a request.

    Raises:
        RequestError: it is too large, no JSON, not an object, or nested too deeply.
    """
    data = await read_bytes(request, settings)
    if len(data) <= _SMALL:
        return parse_body(data, settings.max_json_depth)
    return await asyncio.to_thread(parse_body, data, settings.max_json_depth)


async def read_form(request: Request, settings: Settings) -> dict[str, Any]:
    """Read the form that a request carries: texts, and bytes for files.

    Raises:
        RequestError: it is too large, or no form.
    """
    data = await read_bytes(request, settings)
    return await asyncio.to_thread(parse_form, data, request.headers.get("content-type", ""))


async def read_bytes(request: Request, settings: Settings) -> bytes:
    """Read the body of a request as it is.

    Raises:
        RequestError: it is too large.
    """
    limit = settings.max_body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and len(declared) < 20 and int(declared) > limit:
        _refuse_size(declared, limit)
    chunks: list[bytes] = []
    size = 0
    patience = _Patience(request, settings.body_timeout)
    try:
        async for chunk in request.stream():
            patience.renew()
            size += len(chunk)
            if size > limit:
                _refuse_size(f"more than {limit}", limit)
            chunks.append(chunk)
    finally:
        patience.end()
    return b"".join(chunks)


def model_of(body: Mapping[str, Any]) -> str | None:
    """The name of the model that a request asks for, or None.

    Raises:
        RequestError: it is not a string.
    """
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        message = f"model must be a string, not {shown(model)}"
        raise RequestError(Kind.INVALID_TYPE, message, "model")
    return model


class _Patience:
    """Ends the connection of a client that pauses for too long; then it counts as one that left."""

    def __init__(self, request: Request, seconds: float) -> None:
        self._scope, self._seconds = request.scope, seconds
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._timer = self._loop.call_later(seconds, self._look)

    def renew(self) -> None:
        """Something came. The timer is not moved: it looks how long ago that was."""
        self._since = self._loop.time()

    def _look(self) -> None:
        left = self._since + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            abort(self._scope)

    def end(self) -> None:
        """Everything came, or nothing more is wanted."""
        self._timer.cancel()


def _refuse_size(size: str, limit: int) -> NoReturn:
    # Clients take the words "prompt", "context" and "token" for a conversation that is too long.
    message = f"request body of {size} bytes is larger than the limit of {limit} bytes"
    raise RequestError(Kind.BODY_TOO_LARGE, message)


def parse_body(data: bytes, max_depth: int) -> dict[str, Any]:
    """The object in a body; see ``read_body``."""
    value = _parse(data)
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise RequestError(Kind.INVALID_JSON, f"the body must be a JSON object, not {kind}")
    # Only what has more brackets than that can be nested more deeply.
    level: list[Any] = [value] if data.count(b"{") + data.count(b"[") > max_depth else []
    depth = 0
    while level:
        depth += 1
        if depth > max_depth:
            message = f"the body is nested too deeply; at most {max_depth} levels are allowed"
            raise RequestError(Kind.INVALID_JSON, message)
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [item for items in inner for item in items if isinstance(item, (dict, list))]
    return value


def _parse(data: bytes) -> Any:
    data = data.removeprefix(codecs.BOM_UTF8)  # editors of Windows write it into files
    if not data.strip():
        raise RequestError(Kind.INVALID_JSON, "the body is empty; send a JSON object")
    if orjson is not None:
        try:
            return orjson.loads(data)
        except ValueError:  # it is stricter about halves of surrogate pairs, which clients do send
            pass
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        message = f"the body is not UTF-8: byte {error.start} is {data[error.start]:#04x}"
    except RecursionError:
        message = "the body is nested too deeply"
    except ValueError as error:
        message = f"the body is not JSON: {error}"
    raise RequestError(Kind.INVALID_JSON, message)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
