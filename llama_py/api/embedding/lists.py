"""``EmbeddingLists``: what ``Llama.embed`` and ``create_embedding`` return, in plain lists."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeAlias

from llama_py.api.embedding.calls import EmbeddingCalls, own_pooling
from llama_py.api.port import ModelPort
from llama_py.dialects.openai.types import CreateEmbeddingResponse
from llama_py.embeddings.inputs import as_list
from llama_py.embeddings.pooling import POOLINGS

__all__ = ["EmbeddingLists", "VectorLists"]

#: A vector; a list of them, or the vectors of a text's tokens; or a list of those.
VectorLists: TypeAlias = list[float] | list[list[float]] | list[list[list[float]]]


class EmbeddingLists:
    """The calls of one ``Llama``.

    Args:
        pooling_type: llama.cpp's number for how vectors are pooled, -1 for what the file says.
    """

    def __init__(self, port: ModelPort, pooling_type: int) -> None:
        self._port = port
        self._given = pooling_type

    @property
    def pooling_type(self) -> int:
        """See ``Llama.pooling_type``."""
        if self._given >= 0:
            return self._given
        return POOLINGS[own_pooling(self._port.model) or "none"]

    @cached_property
    def calls(self) -> EmbeddingCalls:
        """What queues calls; a model without a way of pooling of its own is pooled by the mean."""
        name = next((name for name, each in POOLINGS.items() if each == self._given), None)
        port = self._port
        return EmbeddingCalls(port.model, port.embedding_queue, port.media, name)

    def lists(
        self, inputs: str | Sequence[str], normalize: bool, truncate: bool
    ) -> tuple[list[Any], int]:
        """The vectors of inputs, and the number of their tokens; see ``Llama.embed``."""
        options: dict[str, Any] = {"normalize": normalize, "truncate": truncate}
        pooling = self.pooling_type
        if pooling == POOLINGS["none"]:
            tokens = self.calls.token_vectors(inputs, name="input", **options)
            found = tokens.result()
            single = not isinstance(found, list)
            lists = found.tolist() if single else [each.tolist() for each in found]
            return lists, tokens.n_tokens
        if pooling == POOLINGS["rank"]:
            scores = self.calls.scores(inputs, truncate=truncate)
            return scores.result().tolist(), scores.n_tokens
        vectors = self.calls.vectors(inputs, name="input", **options)
        return vectors.result().tolist(), vectors.n_tokens

    def response(self, inputs: str | Sequence[str], model: str) -> CreateEmbeddingResponse:
        """See ``Llama.create_embedding``."""
        texts = inputs if isinstance(inputs, (list, tuple)) else as_list(inputs, "input")
        vectors, count = self.lists(texts, False, True)
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "embedding": vector, "index": index}
                for index, vector in enumerate(vectors)
            ],
            "model": model,
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }
