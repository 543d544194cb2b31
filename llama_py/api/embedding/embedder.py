"""``Embedder``: vectors of texts and pictures, and the order of documents by a query, from a GGUF
model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self, Unpack

from llama_py.api.embedding.calls import EmbeddingCalls, Progress, Ranked
from llama_py.api.loading import model_media
from llama_py.api.port import LoadedModel, ModelPort
from llama_py.core import backend
from llama_py.core.device_memory import fitted
from llama_py.core.model import Model
from llama_py.embeddings.computing import check_embeds, threads_and_computers
from llama_py.embeddings.inputs import EmbeddingInput
from llama_py.errors import ParameterError, ParameterTypeError
from llama_py.options import EMBEDDER, EmbedderOptions
from llama_py.options.values import read_path
from llama_py.params import ContextParams, ModelParams
from llama_py.version import LLAMA_CPP_COMMIT

if TYPE_CHECKING:
    from llama_py.api.llama import Llama
    from llama_py.core.vocab import Vocab
    from llama_py.embeddings.vector_cache import VectorCache

__all__ = ["Embedder"]

_OF_CONTEXT = ("n_ctx", "n_ubatch", "n_threads", "flash_attn")


class Embedder:
    """A model that embeds texts. It may be called from any number of threads.

    Inputs of all calls in flight are computed together, packed into batches, by one thread of its
    own. It belongs to the process that loaded it.

    Args:
        model_path: a GGUF file: an encoder (BERT and its relatives), or a decoder.
        llama: a loaded model to embed with instead; its weights are used again. It stays open
            when this object is closed.
        options: see ``EmbedderOptions``. With ``llama``, only ``pooling``.

    Raises:
        ModelNotFoundError, InvalidModelError: there is no such file, or it cannot be used.
        ParameterError: an option is wrong, or the model cannot embed.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str] | None = None,
        *,
        llama: Llama | None = None,
        **options: Unpack[EmbedderOptions],
    ) -> None:
        if (model_path is None) == (llama is None):
            raise ParameterError("give a model_path, or llama=, and not both")
        given = EMBEDDER.complete(options)
        unused = [name for name in options if name != "pooling"]
        if llama is not None and unused:
            raise ParameterError(f"{unused[0]}: the model in llama= was loaded already")
        if llama is not None and not hasattr(llama, "runtime"):
            raise ParameterTypeError(f"llama must be a Llama, not {type(llama).__name__}")
        self._arguments: dict[str, Any] = {"model_path": model_path, "llama": llama, **options}
        self._owned = llama is None
        self._port: ModelPort = (
            llama.runtime.port if llama is not None else _load(model_path, given)
        )
        try:
            port = self._port
            self.calls = EmbeddingCalls(
                port.model,
                port.embedding_queue,
                port.media,
                given["pooling"],
                _vector_cache(port.model, given),
            )
        except BaseException:
            if self._owned:
                self._port.close()
            raise

    # -- facts ---------------------------------------------------------------------------------

    @property
    def vocab(self) -> Vocab:
        """The model's tokens, and the functions that turn text into tokens and back."""
        return self._port.model.vocab

    @property
    def metadata(self) -> dict[str, str]:
        """The scalar metadata of the GGUF, as text."""
        return self._port.model.metadata

    @property
    def n_embd(self) -> int:
        """Dimensions of the vectors."""
        return self._port.model.n_embd_out

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest input."""
        return self.calls.limit

    @property
    def pooling(self) -> str:
        """How the vectors of a text's tokens become one: "mean", "cls", "last", "none", "rank"."""
        return self.calls.pooling

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the scores of ``classify``; empty if the file has none."""
        return self._port.model.labels

    # -- calls ---------------------------------------------------------------------------------

    def embed(
        self,
        inputs: EmbeddingInput | Sequence[EmbeddingInput],
        *,
        normalize: bool = True,
        dimensions: int | None = None,
        truncate: bool = False,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> NDArray[np.float32]:
        """Embed texts, lists of token ids (which get no special tokens), or pictures and sounds.

        A decoder with a projector (``mmproj``) embeds an ``Image``, an ``Audio``, or an object
        ``{"content": [PART, ...]}`` with parts as of a message::

            embedder.embed([Image("cat.png"), {"content": [Image("cat.png"), "What is this?"]}])

        Args:
            normalize: vectors of length 1, whose inner product is their cosine.
            dimensions: keep so many of the first dimensions, for models that were trained for it.
            truncate: leave out the end of inputs that are too long; otherwise they are an error.
            timeout: seconds for the whole call.
            progress: called with the inputs that are done and all of them. Returning False or
                raising ends the call.

        Returns:
            float32 ``(n, n_embd)``, in the order of the inputs; ``(n_embd,)`` of a single input.

        Raises:
            InputTooLongError: nothing was computed; it names the first one by its index.
            ParameterError, TokenizationError: an input cannot be embedded; it is named likewise.
        """
        pending = self.calls.vectors(
            inputs, normalize=normalize, dimensions=dimensions, truncate=truncate
        )
        return pending.result(timeout, progress)

    def embed_tokens(
        self,
        inputs: EmbeddingInput | Sequence[EmbeddingInput],
        *,
        normalize: bool = True,
        dimensions: int | None = None,
        truncate: bool = False,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """A vector for each token, without pooling: for late interaction; see ``embed``.

        Returns:
            A list of arrays, float32 ``(n_tokens, n_embd)``; an array of a single input.
        """
        pending = self.calls.token_vectors(
            inputs, normalize=normalize, dimensions=dimensions, truncate=truncate
        )
        return pending.result(timeout, progress)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        normalize: bool = False,
        truncate: bool = False,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> list[Ranked]:
        """Order documents by how well they fit a query, the best one first.

        The model needs a classification head. Query and document are put together in the form
        that it was trained with: its own template, or that of BERT.

        Args:
            top_n: most documents to return.
            normalize: scores from 0 to 1: the logistic function of a single score, softmax of
                several; otherwise they are what the model gives.
            truncate: leave out the end of documents that are too long.

        Raises:
            InputTooLongError: a document with the query; nothing was computed.
            ParameterError: the model has no classification head.
        """
        pending = self.calls.ranking(
            query, documents, top_n=top_n, normalize=normalize, truncate=truncate
        )
        return pending.result(timeout, progress)

    def classify(
        self,
        inputs: EmbeddingInput | Sequence[EmbeddingInput],
        *,
        normalize: bool = False,
        truncate: bool = False,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> NDArray[np.float32]:
        """The scores of the model's classification head; ``labels`` has their names.

        Returns:
            float32 ``(n, n_labels)``; ``(n_labels,)`` of a single input. See ``rerank``.
        """
        pending = self.calls.scores(inputs, normalize=normalize, truncate=truncate)
        return pending.result(timeout, progress)

    # -- life ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Free the model, if it was loaded by this object. Closing twice does nothing.

        Calls of other threads end with ``ClosedError``.
        """
        if self._owned:
            self._port.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """The arguments it was made with; unpickling loads the model again."""
        return self._arguments

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __repr__(self) -> str:
        if self._port.inherited:
            return "Embedder(of another process)"
        model = self._port.model
        return f"Embedder({Path(model.path).name!r}, n_embd={self.n_embd}, {self.pooling})"


def _vector_cache(model: Model, given: Any) -> VectorCache | None:
    if given["cache"] is None:
        return None
    from llama_py.embeddings.vector_cache import VectorCache

    overrides = sorted((model.params.kv_overrides or {}).items())
    identity = LLAMA_CPP_COMMIT, model.fingerprint, given["flash_attn"], overrides
    return VectorCache(given["cache"], given["cache_bytes"], identity)


def _load(model_path: Any, given: Any) -> LoadedModel:
    """A model that only embeds: without an engine."""
    path = read_path("model_path", model_path)
    params = ModelParams.of(given)
    if params.vocab_only:
        raise ParameterError("vocab_only: embedding needs the weights; leave it out")
    context = ContextParams(embeddings=True, **{name: given[name] for name in _OF_CONTEXT})
    backend.start()
    params = fitted(path, params, context)
    model = Model(path, params, progress=given["progress"], verbose=given["verbose"])
    try:
        check_embeds(model)
        media = None
        if not model.is_encoder:
            threads, _ = threads_and_computers(model, context)
            media = model_media(model, given, n_ubatch=context.n_ubatch, n_threads=lambda: threads)
        in_place = given["in_place"]
        return LoadedModel(model, None, (context, ()), in_place=in_place, media=media)
    except BaseException:
        model.close()
        raise
