"""Embeddings and reranking, in the forms of OpenAI, llama-server, Jina, Cohere and TEI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from llama_py.api.embedding.calls import PendingEmbedding
from llama_py.dialects.embeddings import (
    EmbeddingBody,
    encode_native,
    encode_openai,
    naming,
    read_embedding,
)
from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.reranking import encode_ranking, read_rerank
from llama_py.dialects.wire_json import json_bytes
from llama_py.server.access.keys import CHAT
from llama_py.server.operations import EMBEDDED, Operation, Routes
from llama_py.server.service import Service, in_thread, service_of
from llama_py.server.transport.bodies import model_of, read_body
from llama_py.server.transport.extras import client_left

__all__ = ["ROUTES", "Embedded", "embedded"]

ROUTES = Routes("OpenAI")

T = TypeVar("T")


@ROUTES.post(
    "/v1/embeddings",
    "/embeddings",
    operation=Operation(
        CHAT,
        "Embed texts",
        text="`/embeddings` takes llama-server's `content` in place of `input` as well, and "
        "answers in its form then.",
        body="EmbeddingRequest",
        reply="Embeddings",
        failures=EMBEDDED,
    ),
)
async def _embed(request: Request) -> Response:
    body = await read_body(request, service_of(request).settings)
    return await embedded(request, body, _encode)


@dataclass(frozen=True, slots=True)
class Embedded:
    """Texts that a model has embedded.

    Attributes:
        read: what was asked for.
        each_token: the vectors are those of tokens.
    """

    model: str
    read: EmbeddingBody
    pending: PendingEmbedding[Any]
    each_token: bool

    @property
    def vectors(self) -> Any:
        """Float32 ``(n, d)``, or a table for each input."""
        return self.pending.finished()

    @property
    def n_tokens(self) -> int:
        """Of all inputs."""
        return self.pending.n_tokens


async def embedded(
    request: Request, body: dict[str, Any], encode: Callable[[Embedded], bytes]
) -> Response:
    """Embed the inputs of a body in OpenAI's form."""
    service = service_of(request)
    async with service.models.lease(model_of(body), request.receive) as model:
        calls = model.llama.runtime.embedding.calls
        # OpenAI's form has no place for the vectors of tokens.
        each_token = calls.pooling == "none" and request.url.path == "/embeddings"
        if calls.pooling == "none" and not each_token:
            message = "this model's tokens have a vector each: ask at /embeddings"
            raise RequestError(Kind.INVALID_VALUE, message)
        with naming("input", "content"):
            read = read_embedding(body, service.limits, model.llama.vocab)
        normalize = not each_token if read.normalize is None else read.normalize

        def start() -> PendingEmbedding[Any]:
            with naming("input", "content", "dimensions"):
                embed = calls.token_vectors if each_token else calls.vectors
                return embed(
                    read.inputs,
                    normalize=normalize,
                    dimensions=read.dimensions,
                    truncate=read.truncate,
                    name="content" if read.native else "input",
                )

        pending = await _queued(request, service, start)
        done = Embedded(model.id, read, pending, each_token)
        return await _answer(service, lambda: encode(done))


def _encode(done: Embedded) -> bytes:
    """In OpenAI's form, or llama-server's."""
    vectors = done.vectors
    if done.each_token:
        return encode_native(vectors)
    if done.read.native:
        return encode_native(vectors[:, None])
    return encode_openai(vectors, done.n_tokens, done.model, as_base64=done.read.base64)


@ROUTES.post(
    "/v1/rerank",
    "/rerank",
    "/v1/reranking",
    "/reranking",
    operation=Operation(
        CHAT,
        "Order documents by a query",
        text="In the form of Jina and Cohere (`documents`), or that of TEI (`texts`). The model "
        "needs a classification head.",
        body="RerankRequest",
        reply="Ranking",
        failures=EMBEDDED,
    ),
)
async def _rerank(request: Request) -> Response:
    service = service_of(request)
    body = await read_body(request, service.settings)
    async with service.models.lease(model_of(body), request.receive) as model:
        read = read_rerank(body, service.limits)
        calls = model.llama.runtime.embedding.calls

        def start() -> PendingEmbedding[Any]:
            with naming("query", "documents", "texts"):
                return calls.ranking(
                    read.query,
                    read.documents,
                    top_n=read.top_n,
                    normalize=read.normalize,
                    truncate=read.truncate,
                    name="texts" if read.tei else "documents",
                )

        pending = await _queued(request, service, start)
        name = model.id
        return await _answer(
            service,
            lambda: json_bytes(encode_ranking(read, pending.finished(), pending.n_tokens, name)),
        )


async def _queued(
    request: Request, service: Service, start: Callable[[], PendingEmbedding[T]]
) -> PendingEmbedding[T]:
    """Tokenize and queue a call in a worker thread, and wait until it is computed.

    Raises:
        ClientDisconnect: the client left; nothing more is computed for it.
        RequestError: the server stops before it is computed.
    """
    loop, lifecycle = asyncio.get_running_loop(), service.lifecycle
    pending = await loop.run_in_executor(service.embedding_workers, start)
    computed = loop.create_task(pending.wait_done(service.settings.request_timeout))
    gone = loop.create_task(client_left(request.receive))
    over = loop.create_task(lifecycle.until_over())
    try:
        await asyncio.wait([computed, gone, over], return_when=asyncio.FIRST_COMPLETED)
        if computed.done():
            computed.result()
        elif over.done():
            raise RequestError.of(lifecycle.interrupted())
        else:
            raise ClientDisconnect
    finally:
        for task in (computed, gone, over):
            task.cancel()
        pending.cancel()  # does nothing if it was computed
    return pending


async def _answer(service: Service, encode: Callable[[], bytes]) -> Response:
    return Response(await in_thread(service, encode), media_type="application/json")
