"""Calls that embed, for both faces: ``Embedder`` and ``Llama``.

``EmbeddingCalls`` checks what was given and queues it; a ``PendingEmbedding`` is what a thread or
an event loop then waits for.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from llama_py.api.embedding.media_inputs import read_media_input
from llama_py.api.media import ModelMedia
from llama_py.core.model import Model
from llama_py.embeddings.inputs import Input, as_list, fitted, has_parts, is_single, tokenized
from llama_py.embeddings.pairs import Pairs
from llama_py.embeddings.pooling import POOLINGS, Rows, check_dimensions, pool, shorten
from llama_py.embeddings.queue import EmbeddingJob, EmbeddingQueue
from llama_py.errors import (
    GenerationTimeout,
    ParameterError,
    ParameterTypeError,
    RequestCancelled,
    shown,
)
from llama_py.options.checks import whole_text
from llama_py.params import check_bool, check_number

if TYPE_CHECKING:
    from llama_py.embeddings.vector_cache import VectorCache

__all__ = ["EmbeddingCalls", "PendingEmbedding", "Progress", "Ranked", "own_pooling"]

T = TypeVar("T")
Progress = Callable[[int, int], "bool | None"]

#: Seconds between two looks: at the progress, and for signals where no wait is ended by one.
_LOOK = 0.1


@dataclass(frozen=True, slots=True)
class Ranked:
    """One document of ``rerank``.

    Attributes:
        index: its place among the documents that were given.
        score: how well it fits the query; larger is better. Scores of different models cannot be
            compared.
        document: its text.
        labels: the scores of all outputs of the model's head by name; empty if they have no names.
    """

    index: int
    score: float
    document: str
    labels: dict[str, float] = field(default_factory=dict)


class PendingEmbedding(Generic[T]):
    """A call that was queued.

    Attributes:
        n_tokens: tokens of all inputs together.
    """

    def __init__(
        self, job: EmbeddingJob, finish: Callable[[], T], known: Sequence[Input] | None = None
    ) -> None:
        """``known`` are inputs that need no computing; None: ``finish`` writes nothing."""
        self._job = job
        self._finish = finish
        self._known, self._keeps = len(known or ()), known is not None
        self.n_tokens = sum(map(len, job.inputs)) + sum(map(len, known or ()))

    def result(self, timeout: float | None = None, progress: Progress | None = None) -> T:
        """Wait for the result.

        Args:
            timeout: seconds, after which nothing more is computed.
            progress: called with the inputs that are done and all of them, by this thread, a few
                times a second. Returning False or raising ends the call.

        Raises:
            GenerationTimeout, RequestCancelled: it ended early.
            DecodeError, ClosedError: it could not be computed.
        """
        end = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                left = _LOOK if end is None else max(0.0, min(_LOOK, end - time.monotonic()))
                with contextlib.suppress(NotYet):
                    self._job.future.exception(left)
                    break
                if end is not None and time.monotonic() >= end:
                    done, total = self._progress()
                    raise GenerationTimeout(
                        f"{done} of {total} inputs were embedded within {timeout} seconds"
                    )
                self._report(progress)
            self._report(progress)
            self._job.future.result()
        except CancelledError:
            raise RequestCancelled("the embedding was cancelled") from None
        except BaseException:  # also Ctrl-C: nobody wants the rest
            self._job.cancel()
            raise
        return self._finish()

    def _report(self, progress: Progress | None) -> None:
        if progress is None:
            return
        if progress(*self._progress()) is False:
            raise RequestCancelled("the embedding was stopped, because progress returned False")

    def _progress(self) -> tuple[int, int]:
        return self._job.done + self._known, len(self._job.inputs) + self._known

    async def wait(self, timeout: float | None = None) -> T:
        """``result`` for an event loop. Cancelling the task cancels the call."""
        import asyncio  # who does not need it starts sooner

        await self.wait_done(timeout)
        return await asyncio.to_thread(self._finish) if self._keeps else self._finish()

    def finished(self) -> T:
        """The result of a call that is done."""
        self._job.future.result(0)
        return self._finish()

    async def wait_done(self, timeout: float | None = None) -> None:
        """Wait until it is done, as ``wait`` does."""
        import asyncio  # who does not need it starts sooner

        waited = asyncio.wrap_future(self._job.future)
        try:
            await asyncio.wait_for(waited, timeout)
        except (TimeoutError, asyncio.TimeoutError):
            self._job.cancel()
            raise GenerationTimeout(
                f"the inputs were not embedded within {timeout} seconds"
            ) from None
        except asyncio.CancelledError:
            self._job.cancel()
            raise

    def cancel(self) -> None:
        """Compute nothing more."""
        self._job.cancel()


class EmbeddingCalls:
    """Checks and queues calls for one model.

    Args:
        media: its pictures and sounds; None: it reads texts only.
        pooling: how the vectors of a text become one, None for the model's own way.
        cache: keeps the vectors of texts.
    """

    def __init__(
        self,
        model: Model,
        queue: EmbeddingQueue,
        media: ModelMedia | None,
        pooling: str | None = None,
        cache: VectorCache | None = None,
    ) -> None:
        self._model = model
        self._cache = cache
        self._embedding_queue = queue
        self._media = media
        self.pooling = pooling or own_pooling(model) or "mean"

    @property
    def limit(self) -> int:
        """Tokens of the longest input."""
        return self._embedding_queue.limit

    def vectors(
        self,
        inputs: Any,
        *,
        normalize: bool = True,
        dimensions: int | None = None,
        truncate: bool = False,
        pooling: str | None = None,
        name: str = "inputs",
    ) -> PendingEmbedding[NDArray[np.float32]]:
        """One vector for each input: float32 ``(n, d)``, or ``(d,)`` of a single one."""
        how = self._pooling(pooling)
        check_bool("normalize", normalize)
        width = self._model.n_embd_out
        check_dimensions(dimensions, width)
        tokens = self._tokens(inputs, truncate, name)
        table = np.empty((len(tokens), width), np.float32)
        cache, missing, keys = self._cache, [*range(len(tokens))], list[bytes | None]()
        if cache is not None:
            keys = cache.keys(tokens, how)
            missing = cache.read(keys, table)

        def put(index: int, rows: Rows) -> None:
            table[missing[index]] = pool(rows, how)

        def finish() -> NDArray[np.float32]:
            if cache is not None:
                cache.write(keys, table, missing)
            return _one_of(shorten(table, dimensions, normalize), inputs)

        wanted = {*missing}
        known = [each for index, each in enumerate(tokens) if index not in wanted]
        computed = [tokens[index] for index in missing]
        return self._start(computed, put, finish, known=None if cache is None else known)

    def token_vectors(
        self,
        inputs: Any,
        *,
        normalize: bool = True,
        dimensions: int | None = None,
        truncate: bool = False,
        name: str = "inputs",
    ) -> PendingEmbedding[Any]:
        """The vectors of the tokens of each input: arrays ``(n_tokens, d)``, or a single one."""
        check_bool("normalize", normalize)
        check_dimensions(dimensions, self._model.n_embd_out)
        tokens = self._tokens(inputs, truncate, name)
        tables: list[Any] = [None] * len(tokens)

        def put(index: int, rows: Rows) -> None:
            tables[index] = shorten(rows, dimensions, normalize)

        return self._start(tokens, put, lambda: tables[0] if is_single(inputs) else tables)

    def scores(
        self, inputs: Any, *, normalize: bool = False, truncate: bool = False
    ) -> PendingEmbedding[NDArray[np.float32]]:
        """What the classification head makes of each input: float32 ``(n, n_labels)``."""
        check_bool("normalize", normalize)
        self._check_head()
        tokens = self._tokens(inputs, truncate, "inputs", texts_only=True)
        table = np.empty((len(tokens), self._model.n_labels), np.float32)

        def finish() -> NDArray[np.float32]:
            result = self._probabilities(table) if normalize else table
            return _one_of(result, inputs)

        return self._start(tokens, table.__setitem__, finish, ranks=True)

    def ranking(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        normalize: bool = False,
        truncate: bool = False,
        name: str = "documents",
    ) -> PendingEmbedding[list[Ranked]]:
        """Documents, the best one first."""
        check_bool("normalize", normalize)
        check_bool("truncate", truncate)
        texts = _texts(query, documents)
        if top_n is not None:
            check_number("top_n", top_n, 1, integer=True)
        self._check_head()
        limit = self._embedding_queue.limit
        tokens = [self._pairs.tokens(query, each, limit if truncate else None) for each in texts]
        fitted(self._model.vocab, tokens, limit, False, name)
        table = np.empty((len(tokens), self._model.n_labels), np.float32)

        def finish() -> list[Ranked]:
            scores = self._probabilities(table) if normalize else table
            best = np.argsort(-scores[:, 0], kind="stable")[:top_n] if len(texts) else ()
            ranked = []
            for index in map(int, best):
                labels = dict(zip(self._model.labels, map(float, scores[index]), strict=False))
                ranked.append(Ranked(index, float(scores[index, 0]), texts[index], labels))
            return ranked

        return self._start(tokens, table.__setitem__, finish, ranks=True)

    @cached_property
    def _pairs(self) -> Pairs:
        return Pairs(self._model.vocab, self._model.chat_template("rerank"))

    def _probabilities(self, scores: Rows) -> Rows:
        """Numbers from 0 to 1: the logistic function of a single score, softmax of several."""
        if scores.shape[1] == 1:
            return np.asarray(1.0 / (1.0 + np.exp(-np.clip(scores, -80, 80))), np.float32)
        if self._model.architecture in ("qwen3", "qwen3vl"):  # llama.cpp did that
            return scores
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)

    def _check_head(self) -> None:
        if not self._model.n_labels:
            raise ParameterError.about_model(
                self._model.path,
                "has no classification head, so that it cannot rank or classify; load a reranker, "
                "or compare embeddings",
            )

    def _pooling(self, pooling: str | None) -> str:
        how = pooling or self.pooling
        if how not in POOLINGS:
            raise ParameterError(f"pooling={shown(pooling)}: expected one of mean, cls, last")
        if how == "rank":
            raise ParameterError(
                'this model is a reranker: call rerank() or classify(), or give pooling="cls"'
            )
        if how == "none":
            raise ParameterError(
                'with pooling="none" each token has a vector of its own: call embed_tokens()'
            )
        return how

    def _tokens(
        self, inputs: Any, truncate: bool, name: str, *, texts_only: bool = False
    ) -> Sequence[Input]:
        check_bool("truncate", truncate)
        self._embedding_queue.check()
        vocab = self._model.vocab
        read: list[Input] = []
        for index, each in enumerate(as_list(inputs, name)):
            where = f"{name}[{index}]"
            if not has_parts(each):
                read.append(tokenized(vocab, each, where))
            elif texts_only:
                raise ParameterError(f"{where}: pictures and sounds cannot be classified")
            else:
                read.append(read_media_input(self._model, self._media, each, where))
        return fitted(vocab, read, self._embedding_queue.limit, truncate, name)

    def _start(
        self,
        tokens: Sequence[Input],
        put: Callable[[int, Rows], None],
        finish: Callable[[], T],
        *,
        ranks: bool = False,
        known: Sequence[Input] | None = None,
    ) -> PendingEmbedding[T]:
        job = EmbeddingJob(tokens, ranks, put)
        self._embedding_queue.submit(job)
        return PendingEmbedding(job, finish, known)


def _one_of(table: Rows, inputs: Any) -> Rows:
    """The only row of what was given as one input, else all rows."""
    rows: Rows = table[0] if is_single(inputs) else table
    return rows


def own_pooling(model: Model) -> str | None:
    """How the model's file says that vectors become one; None if it does not say."""
    number = model.metadata.get(f"{model.architecture}.pooling_type")
    return next((name for name, each in POOLINGS.items() if str(each) == number), None)


def _texts(query: Any, documents: Any) -> list[str]:
    if not isinstance(query, str):
        raise ParameterTypeError(f"query must be a text, not {shown(query)}")
    whole_text(query, "query")
    if isinstance(documents, (str, bytes, dict)) or not hasattr(documents, "__iter__"):
        raise ParameterTypeError(f"documents must be a list of texts, not {shown(documents)}")
    texts = [*documents]
    for index, each in enumerate(texts):
        if not isinstance(each, str):
            raise ParameterTypeError(f"documents[{index}] must be a text, not {shown(each)}")
        whole_text(each, f"documents[{index}]")
    return texts
