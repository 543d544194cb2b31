"""``Replica``: the whole server with its models, without sockets: requests come through Ray.

It runs ``server.app`` as any ASGI server would, so that all dialects, sessions, metrics and limits
are those of one machine. Keys were looked at by the gateway; who asks comes with the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from starlette.applications import Starlette
from starlette.types import Message

from llama_py.api.kept.conversations import Conversations
from llama_py.api.llama import Llama
from llama_py.cluster.ask import AnswerHead, AnswerTail, Ask, Piece
from llama_py.cluster.held import HeldTexts
from llama_py.cluster.policy import ReplicaState
from llama_py.cluster.responses import SharedResponses
from llama_py.errors import ClosedError
from llama_py.server.app import create_app
from llama_py.server.config.settings import Settings
from llama_py.server.lifecycle import Phase
from llama_py.server.service import Service
from llama_py.server.transport.extras import CALLER
from llama_py.states.disk import database_of

__all__ = ["Replica"]


class Replica:
    """See the module. Ray makes one in a process of its own; so can a test, without Ray.

    Args:
        settings: of the server. Its keys and addresses have no influence here.
        name: what it is called in headers and metrics.
    """

    def __init__(self, settings: Settings, name: str = "") -> None:
        self.name = name or uuid.uuid4().hex[:8]
        self._settings = replace(settings, api_keys=(), api_key_file=None, allowed_hosts=("*",))
        self._app = cast(Starlette, create_app(self._settings))
        self._held = HeldTexts()
        self._stack = contextlib.AsyncExitStack()
        if settings.session_dir is not None:
            shared = SharedResponses(
                database_of(settings.session_dir / "states"),
                settings.max_stored_responses,
                settings.max_stored_bytes,
                settings.stored_seconds,
            )
            self._service.responses = shared
            self._stack.push_async_callback(asyncio.to_thread, shared.close)

    @property
    def _service(self) -> Service:
        service: Service = self._app.state.service
        return service

    async def start(self) -> None:
        """Load what is loaded at the start."""
        await self._stack.enter_async_context(self._app.router.lifespan_context(self._app))

    async def stop(self) -> None:
        """Write conversations, and close the models. What is in flight should be over."""
        self._service.lifecycle.phase = Phase.DRAINING
        await self._stack.aclose()

    # -- requests -------------------------------------------------------------------------------

    async def exchange(self, ask: Ask) -> AsyncIterator[Piece]:
        """Answer a request: its head, the body in pieces as they come, and what it was.

        Closing the iterator, or cancelling who reads it, is the client's leaving.
        """
        call = _Call(self._app, ask, self.name)
        try:
            async for piece in call.pieces():
                yield piece
        finally:
            await call.end()
        exchange, record = call.state.get("exchange"), call.state["record"]
        if exchange is None or not exchange.records:
            yield AnswerTail()
            return
        prompts = [each for each in exchange.records if not each.request.choice]
        if len(prompts) == 1 and prompts[0].reason in ("stop", "length"):
            whose = (record.model, prompts[0].request.namespace)
            self._held.note(ask.hint, tuple(prompts[0].tokens), whose)
        yield AnswerTail(
            exchange.id,
            record.model,
            record.prompt_tokens or 0,
            record.cached_tokens or 0,
            record.generated_tokens or 0,
        )

    # -- what others want to know ---------------------------------------------------------------

    async def state(self) -> ReplicaState:
        """How busy and how full it is, and what it holds."""
        return await asyncio.to_thread(self._look)

    def _look(self) -> ReplicaState:
        running = waiting = room = used = 0
        models: dict[str, Llama] = {}
        loaded = self._service.models.loaded
        for model in loaded:
            counted = model.counted
            report = counted[1] if counted is not None else None
            if report is None:  # it embeds, and remembers nothing
                continue
            models[model.id] = model.llama
            running += report.running
            waiting += report.waiting
            room += report.cells
            used += report.cells_used
        per_token = self._held.bytes_per_token
        texts, lost = self._held.look(partial(_in_memory, models))
        return ReplicaState(
            running,
            waiting,
            room * per_token,
            used * per_token,
            frozenset(model.id for model in loaded),
            tuple(texts),
            tuple(lost),
        )

    async def metrics(self) -> tuple[str, bytes]:
        """Its name, and its page of metrics."""
        page, _ = await asyncio.to_thread(self._service.metrics.page)
        return self.name, page

    async def whole(self, ask: Ask) -> tuple[AnswerHead, bytes]:
        """The whole answer to a request that is for every replica."""
        head, body = AnswerHead(500, (), self.name), b""
        async for piece in self.exchange(ask):
            if isinstance(piece, AnswerHead):
                head = piece
            elif isinstance(piece, bytes):
                body += piece
        return head, body

    async def forget(self, ask: Ask) -> None:
        """Forget a session that was deleted elsewhere; that it is not known here is no matter."""
        await self.whole(ask)


class _Call:
    """One request to an ASGI application, whose answer is read in pieces."""

    def __init__(self, app: Any, ask: Ask, name: str) -> None:
        self.state: dict[str, Any] = {CALLER: ask.caller}
        self._ask, self._name = ask, name
        self._out: asyncio.Queue[Piece | None] = asyncio.Queue()
        self._left = asyncio.Event()
        self._read = False
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": ask.method,
            "scheme": "http",
            "path": ask.path,
            "raw_path": ask.path.encode(),
            "query_string": ask.query,
            "root_path": "",
            "headers": [*ask.headers],
            "state": self.state,
        }
        self._task = asyncio.ensure_future(self._run(app, scope))

    async def _run(self, app: Any, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self._receive, self._send)
        finally:
            self._out.put_nowait(None)

    async def _receive(self) -> Message:
        if not self._read:
            self._read = True
            return {"type": "http.request", "body": self._ask.body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = tuple(message.get("headers", ()))
            self._out.put_nowait(AnswerHead(message["status"], headers, self._name))
        elif message.get("body"):
            self._out.put_nowait(bytes(message["body"]))

    async def pieces(self) -> AsyncIterator[Piece]:
        """The answer; what has come together is one piece."""
        over = False
        while not over:
            piece = await self._out.get()
            body: list[bytes] = []
            while piece is not None:
                if isinstance(piece, bytes):
                    body.append(piece)
                else:
                    yield piece
                if self._out.empty():
                    break
                piece = self._out.get_nowait()
            over = piece is None
            if body:
                yield b"".join(body)
        await self._task

    async def end(self) -> None:
        """Nobody reads it any more: the request ends, and has ended when this returns."""
        self._left.set()
        await asyncio.wait({self._task})


def _in_memory(
    models: Mapping[str, Llama], prompts: Sequence[tuple[Sequence[int], Any]]
) -> Sequence[int]:
    """How many tokens of each prompt are in memory; of a model that is not, none."""
    counts = [0] * len(prompts)
    for name, llama in models.items():
        own = [index for index, (_, (model, _)) in enumerate(prompts) if model == name]
        found = [(prompts[index][0], prompts[index][1][1]) for index in own]
        with contextlib.suppress(ClosedError):  # it was unloaded just now
            counts = Conversations(llama.runtime.port).in_memory(found)
            for index, count in zip(own, counts, strict=True):
                counts[index] = count
    return counts
