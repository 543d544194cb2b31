"""``AsyncEmbedder``: the calls of ``Embedder`` for asyncio (and uvloop)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self, Unpack

from llama_py import forks
from llama_py.api.embedding.calls import PendingEmbedding, Ranked
from llama_py.api.embedding.embedder import Embedder
from llama_py.embeddings.inputs import EmbeddingInput
from llama_py.errors import ClosedError, ParameterError
from llama_py.options import EmbedderOptions

if TYPE_CHECKING:
    from llama_py.api.llama import Llama

__all__ = ["AsyncEmbedder"]

T = TypeVar("T")

#: Threads that tokenize. More would only wait for each other.
_WORKERS = 2


class AsyncEmbedder:
    """An ``Embedder`` whose calls are awaited. Cancelling a task cancels its call.

    Args:
        model_path: a GGUF file, with the same options as ``Embedder``. Loading blocks;
            ``await AsyncEmbedder.load(...)`` does not.
        embedder: one that is used instead, and stays open.
        llama: as of ``Embedder``.

    Attributes:
        embedder: what computes.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str] | None = None,
        *,
        embedder: Embedder | None = None,
        llama: Llama | None = None,
        **options: Unpack[EmbedderOptions],
    ) -> None:
        if embedder is not None and (model_path is not None or llama is not None or options):
            raise ParameterError("embedder: it was made already; leave out everything else")
        if options.get("in_place"):
            raise ParameterError("in_place: what is computed in place cannot be awaited")
        self._owned = embedder is None
        made = Embedder(model_path, llama=llama, **options) if embedder is None else embedder
        self.embedder = made
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="llama_py-embed")
        self._closed = False
        self._process = forks.current()

    @classmethod
    async def load(
        cls, model_path: str | os.PathLike[str], **options: Unpack[EmbedderOptions]
    ) -> Self:
        """Load a model without blocking the event loop."""
        return await asyncio.to_thread(partial(cls, model_path, **options))

    async def embed(
        self,
        inputs: EmbeddingInput | Sequence[EmbeddingInput],
        *,
        normalize: bool = True,
        dimensions: int | None = None,
        truncate: bool = False,
        timeout: float | None = None,
    ) -> NDArray[np.float32]:
        """``Embedder.embed``, awaited."""
        options = {"normalize": normalize, "dimensions": dimensions, "truncate": truncate}
        return await self._call(partial(self._calls.vectors, inputs, **options), timeout)

    async def embed_tokens(
        self,
        inputs: EmbeddingInput | Sequence[EmbeddingInput],
        *,
        normalize: bool = True,
        dimensions: int | None = None,
        truncate: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """``Embedder.embed_tokens``, awaited."""
        options = {"normalize": normalize, "dimensions": dimensions, "truncate": truncate}
        return await self._call(partial(self._calls.token_vectors, inputs, **options), timeout)

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        normalize: bool = False,
        truncate: bool = False,
        timeout: float | None = None,
    ) -> list[Ranked]:
        """``Embedder.rerank``, awaited."""
        options = {"top_n": top_n, "normalize": normalize, "truncate": truncate}
        return await self._call(partial(self._calls.ranking, query, documents, **options), timeout)

    async def classify(
        self,
        inputs: EmbeddingInput | Sequence[EmbeddingInput],
        *,
        normalize: bool = False,
        truncate: bool = False,
        timeout: float | None = None,
    ) -> NDArray[np.float32]:
        """``Embedder.classify``, awaited."""
        options = {"normalize": normalize, "truncate": truncate}
        return await self._call(partial(self._calls.scores, inputs, **options), timeout)

    @property
    def _calls(self) -> Any:
        return self.embedder.calls

    async def _call(self, start: Callable[[], PendingEmbedding[T]], timeout: float | None) -> T:
        """Tokenize and queue in a worker thread, and wait."""
        if self._closed:
            raise ClosedError("this AsyncEmbedder was closed; make a new one")
        if self._process.inherited:  # where its threads are not
            raise forks.refuse()
        started = self._workers.submit(start)
        try:
            pending = await asyncio.wrap_future(started)
        except asyncio.CancelledError:
            started.add_done_callback(_abandon)
            raise
        return await pending.wait(timeout)

    def close(self) -> None:
        """Stop the threads; close the embedder if it was made by this object."""
        if self._closed:
            return
        self._closed = True
        if self._process.inherited:
            return
        if self._owned:
            self.embedder.close()
        self._workers.shutdown()

    async def aclose(self) -> None:
        """``close`` without blocking the event loop."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _abandon(started: Future[PendingEmbedding[Any]]) -> None:
    """Nobody waits for a call that was being queued."""
    if not started.cancelled() and started.exception() is None:
        started.result().cancel()
