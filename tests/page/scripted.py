"""A server that speaks the API's wire format and says what a test tells it to.

For what the bundled model does not do on demand: a long prompt, five thousand tokens, a connection
that breaks, every kind of refusal. The page itself comes from the real routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from llama_py.server.routes import page
from tests.patience import PATIENCE

__all__ = [
    "Gate",
    "Refusal",
    "Scripted",
    "call",
    "finish",
    "progress",
    "running",
    "scripted",
    "text",
    "usage",
]

Chunk = dict[str, Any]

#: Seconds for a request to arrive.
_PATIENCE = PATIENCE


class Gate:
    """A place in a script that waits until the test opens it."""

    def __init__(self) -> None:
        self._open = threading.Event()

    def open(self) -> None:
        """Let the script go on."""
        self._open.set()

    async def wait(self) -> None:
        """Wait for ``open``, in the event loop."""
        while not self._open.is_set():
            await asyncio.sleep(0.005)


class Break:
    """The connection breaks here."""


@dataclass(frozen=True)
class Refusal:
    """An answer that is an error."""

    status: int
    code: str
    message: str
    headers: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> dict[str, Any]:
        """The error object of the API."""
        return {"message": self.message, "code": self.code, "type": self.code, **self.details}


#: A chunk, a number of seconds to wait, or one of the above in the middle of a stream.
Step = Chunk | float | Gate | Break | Refusal
Reply = Sequence[Step] | Refusal


def text(words: str, **delta: Any) -> Chunk:
    """A chunk with a piece of the reply."""
    return {"choices": [{"index": 0, "delta": {"content": words, **delta}, "finish_reason": None}]}


def thought(words: str) -> Chunk:
    """A chunk with a piece of the reasoning."""
    delta = {"reasoning_content": words}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def call(name: str, arguments: str, index: int = 0) -> Chunk:
    """A chunk with a call of a tool."""
    function = {"name": name, "arguments": arguments}
    calls = [{"index": index, "id": f"call_{index}", "type": "function", "function": function}]
    return {"choices": [{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": None}]}


def progress(total: int, cache: int, processed: int) -> Chunk:
    """A chunk that says how much of the prompt is done."""
    numbers = {"total": total, "cache": cache, "processed": processed, "time_ms": 10}
    return {"choices": [], "prompt_progress": numbers}


def finish(reason: str = "stop", **timings: float) -> Chunk:
    """The last chunk of a choice."""
    chunk = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    return {**chunk, "timings": {"predicted_per_second": 40.0, **timings}}


def usage(prompt: int, reused: int, reply: int) -> Chunk:
    """The chunk with the counts."""
    details = {"cached_tokens": reused}
    counts = {
        "prompt_tokens": prompt,
        "completion_tokens": reply,
        "total_tokens": prompt + reply,
        "prompt_tokens_details": details,
    }
    return {"choices": [], "usage": counts}


class Requests(list[dict[str, Any]]):
    """Bodies of requests; one that is asked for by its number may still be on its way."""

    def __getitem__(self, index: Any) -> Any:
        end = time.monotonic() + _PATIENCE
        while isinstance(index, int) and index >= len(self) and time.monotonic() < end:
            time.sleep(0.01)
        return super().__getitem__(index)


class Scripted:
    """What the server does and has done.

    Attributes:
        url: where it is.
        models: ids of its models.
        unloaded: which of them are loaded by their first request.
        n_ctx: tokens that the context holds.
        device_hint: what it says of a GPU that it does not use.
        modalities: what the models read beside texts, as it says of one.
        blind: ids of models that read nothing else.
        listed: the same, as it says in the list of all; None is nothing.
        key: the key that it wants, or "".
        requests: bodies of the chats, in order.
        per_message: tokens that it counts for each message.
        cancelled: chats whose client left.
        away: every request is refused as while a model is loaded.
    """

    def __init__(self, url: str = "") -> None:
        self.url = url
        self.models = ["model"]
        self.unloaded: set[str] = set()
        self.n_ctx = 4096
        self.device_hint = ""
        self.modalities = {"vision": False, "audio": False}
        self.blind: set[str] = set()
        self.listed: list[str] | None = None
        self.key = ""
        self.requests = Requests()
        self.sessions: list[dict[str, Any]] = []
        self.forgotten: list[str] = []
        self.per_message = 10
        self.cancelled = 0
        self.away = False
        self._replies: deque[Reply] = deque()
        self._gates: list[Gate] = []

    def reset(self) -> None:
        """Forget everything that it was told and has done."""
        for gate in self._gates:
            gate.open()
        self.__init__(self.url)  # type: ignore[misc]

    def will(self, *replies: Reply) -> None:
        """What it answers to the next chats; afterwards "OK."."""
        self._replies.extend(replies)
        steps = [step for reply in replies if not isinstance(reply, Refusal) for step in reply]
        self._gates += [step for step in steps if isinstance(step, Gate)]

    # -- the API --------------------------------------------------------------------------------

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            *page.ROUTES,
            Route("/health", self._health),
            Route("/props", self._props),
            Route("/v1/models", self._models),
            Route("/v1/sessions", self._sessions),
            Route("/v1/sessions/{id}", self._forget, methods=["DELETE"]),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/chat/completions/input_tokens", self._count, methods=["POST"]),
        ]

    def _refusal(self, request: Request) -> Response | None:
        if self.away:
            return _refused(Refusal(503, "unavailable", "the model is being loaded"))
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return _refused(Refusal(401, "invalid_api_key", "an API key is needed"))
        return None

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"}, 503 if self.away else 200)

    async def _props(self, request: Request) -> Response:
        params = {"temperature": 0.2, "top_p": 0.95, "top_k": 40, "min_p": 0.05}
        settings = {"n_ctx": self.n_ctx, "params": params}
        read = {} if request.query_params.get("model") in self.blind else self.modalities
        props = {"default_generation_settings": settings, "modalities": read}
        if self.device_hint:
            props["device_hint"] = self.device_hint
        return self._refusal(request) or JSONResponse(props)

    async def _models(self, request: Request) -> Response:
        data = [self._model(name) for name in self.models]
        return self._refusal(request) or JSONResponse({"object": "list", "data": data})

    def _model(self, name: str) -> dict[str, Any]:
        status = "unloaded" if name in self.unloaded else "loaded"
        model = {"id": name, "object": "model", "status": {"value": status}}
        return model if self.listed is None else {**model, "architecture": self._architecture()}

    def _architecture(self) -> dict[str, Any]:
        return {"input_modalities": self.listed, "output_modalities": ["text"]}

    async def _sessions(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": self.sessions})

    async def _forget(self, request: Request) -> Response:
        self.forgotten.append(request.path_params["id"])
        return JSONResponse({"deleted": True})

    async def _count(self, request: Request) -> Response:
        body = await request.json()
        return JSONResponse({"input_tokens": self.per_message * len(body["messages"])})

    async def _chat(self, request: Request) -> Response:
        refusal = self._refusal(request)
        self.requests.append(await request.json())
        if refusal is not None:
            return refusal
        reply = self._replies.popleft() if self._replies else [text("OK."), finish()]
        if isinstance(reply, Refusal):
            return _refused(reply)
        return StreamingResponse(self._stream(reply), media_type="text/event-stream")

    async def _stream(self, steps: Sequence[Step]) -> AsyncIterator[str]:
        try:
            first = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]}
            for step in [first, *steps]:
                if isinstance(step, dict):
                    yield _frame(step)
                elif isinstance(step, Gate):
                    await step.wait()
                elif isinstance(step, Refusal):
                    yield f"data: {json.dumps({'error': step.error})}\n\n"
                elif isinstance(step, Break):
                    await asyncio.sleep(0.05)  # what was said before arrives
                    raise ConnectionError("broken on purpose")
                else:
                    await asyncio.sleep(step)
            yield "data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


def _frame(chunk: Chunk) -> str:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "model"}
    return f"data: {json.dumps({**head, **chunk})}\n\n"


def _refused(refusal: Refusal) -> Response:
    return JSONResponse({"error": refusal.error}, refusal.status, refusal.headers)


@contextlib.contextmanager
def running(app: Starlette, port: int = 0) -> Iterator[str]:
    """Run an application until the end of the block; its address.

    Args:
        port: 0 takes a free one.
    """
    config = uvicorn.Config(
        app, "127.0.0.1", port, log_config=None, lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="scripted-server")
    thread.start()
    try:
        end = time.monotonic() + PATIENCE
        while not server.started and time.monotonic() < end:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)


@contextlib.contextmanager
def scripted(port: int = 0) -> Iterator[Scripted]:
    """A server that does as it is told, until the end of the block."""
    told = Scripted()
    with running(Starlette(routes=told.routes()), port) as told.url:
        yield told
