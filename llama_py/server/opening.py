"""``leased``: a model for a request, whose stream begins even while the model is still loaded.

Nothing can be said of a request before its model is there, not even that it is wrong. But clients
and proxies give up when there are no headers for a while. So a stream that has waited for
``ping_interval`` begins with signs of life; ``running`` goes on with it when the model has come.
What goes wrong from then on is an error in the stream. Replies without a stream just wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from starlette.requests import Request

from llama_py.dialects.failures import Failure, anthropic_error, openai_error
from llama_py.dialects.wire_json import DONE, event, frame
from llama_py.server.errors import dialect_of, route_path
from llama_py.server.pool.served_model import ServedModel
from llama_py.server.service import service_of
from llama_py.server.transport.bodies import model_of
from llama_py.server.transport.event_stream import EventStream
from llama_py.server.transport.extras import BODY, abort

__all__ = ["Opening", "leased", "opening_of"]

#: Clients of OpenAI's streams know comments; Anthropic's count only events.
_COMMENT = b": the model is being loaded\n\n"
_PING = event("ping", {"type": "ping"})


def leased(request: Request, body: Mapping[str, Any]) -> AbstractAsyncContextManager[ServedModel]:
    """The model that a body asks for, for a request that ``respond`` answers.

    Raises:
        as ``ModelPool.lease``.
    """
    service = service_of(request)
    models, name = service.models, model_of(body)
    if body.get("stream") is True and not models.is_ready(name):
        return _opened(request, models.lease(name, request.receive))
    return models.lease(name, request.receive)


@asynccontextmanager
async def _opened(
    request: Request, lease: AbstractAsyncContextManager[ServedModel]
) -> AsyncIterator[ServedModel]:
    opening = request.scope["state"]["opening"] = Opening(request)
    try:
        async with lease as model:
            opening.arrived()
            yield model
    finally:
        opening.close()


def opening_of(state: Mapping[str, Any]) -> Opening | None:
    """The stream of a request that has begun before its model was there, or None."""
    opening: Opening | None = state.get("opening")
    return opening if opening is not None and opening.begun else None


class Opening:
    """A stream that begins after a while.

    Attributes:
        begun: the headers are out, or on their way.
    """

    def __init__(self, request: Request) -> None:
        settings = service_of(request).settings
        self._request = request
        self._path = route_path(request.scope)
        anthropic = dialect_of(self._path) == "anthropic"
        self._sign = _PING if anthropic else _COMMENT
        self._out = EventStream(
            request._send,
            request.scope["state"][BODY],
            settings.ping_interval,
            settings.write_timeout,
            self._note_silence,
            self._give_up,
        )
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(settings.ping_interval, self._begin)
        self._beginning: asyncio.Future[None] | None = None

    @property
    def begun(self) -> bool:
        return self._beginning is not None

    def _begin(self) -> None:
        self._beginning = asyncio.ensure_future(self._out.begin(self._sign))

    def _note_silence(self) -> None:
        self._out.send_now(self._sign)

    def _give_up(self) -> None:
        """The client does not read; it counts as one that has left."""
        abort(self._request.scope)

    def arrived(self) -> None:
        """The model is there. What has not begun by now need not."""
        self._timer.cancel()

    async def stream(self) -> EventStream:
        """The stream that has begun, with room for more."""
        if self._beginning is not None:
            await self._beginning
        await self._out.flush()
        return self._out

    async def fail(self, failure: Failure) -> None:
        """End the stream with an error."""
        out = await self.stream()
        await out.send(self._error(failure), more=False)

    def _error(self, failure: Failure) -> bytes:
        if dialect_of(self._path) == "anthropic":
            request_id = self._request.scope["state"].get("request_id")
            return event("error", anthropic_error(failure, request_id)[1])
        _, body, _ = openai_error(failure)
        if not self._path.endswith("/responses"):
            return frame(body) + DONE
        told = {name: body["error"][name] for name in ("code", "message", "param")}
        return event("error", {"type": "error", "sequence_number": 0, **told, **body})

    def close(self) -> None:
        """Send nothing more by itself."""
        self._timer.cancel()
        self._out.close()
