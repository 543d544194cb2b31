"""Reranking on the wire: in the form of Jina and Cohere, and in that of TEI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.fields import Fields, as_text, wrong_type, wrong_value
from llama_py.dialects.known_fields import Dialect, ours
from llama_py.dialects.limits import RequestLimits

__all__ = ["RerankBody", "encode_ranking", "read_rerank"]


class RankedDocument(Protocol):
    """``api.embedding.calls.Ranked``."""

    @property
    def index(self) -> int: ...
    @property
    def score(self) -> float: ...
    @property
    def document(self) -> str: ...


@dataclass(frozen=True, slots=True)
class RerankBody:
    """A request that was read.

    Attributes:
        normalize: scores from 0 to 1.
        with_text: the answer has the documents as well.
        tei: the answer is in the form of TEI: a list and nothing else.
    """

    query: str
    documents: list[str]
    top_n: int | None
    normalize: bool
    truncate: bool
    with_text: bool
    tei: bool


def read_rerank(body: Mapping[str, Any], limits: RequestLimits) -> RerankBody:
    """The body of ``/v1/rerank``: with ``documents`` (Jina, Cohere) or ``texts`` (TEI).

    Raises:
        RequestError: it cannot be answered.
    """
    fields = Fields(ours(Dialect.RERANK, body, limits).fields)
    tei = "texts" in fields and "documents" not in fields
    query = fields.needed_text("query")
    documents = _documents(fields.get("texts" if tei else "documents"), tei, limits)
    normalize = fields.flag("normalize")
    if normalize is None:  # scores of TEI are probabilities, unless they are to be raw
        normalize = tei and not fields.flag("raw_scores")
    return RerankBody(
        query,
        documents,
        fields.integer("top_n", 1),
        normalize,
        bool(fields.flag("truncate")),
        bool(fields.flag("return_text" if tei else "return_documents")),
        tei,
    )


def _documents(given: Any, tei: bool, limits: RequestLimits) -> list[str]:
    name = "texts" if tei else "documents"
    if given is None:
        raise RequestError(Kind.MISSING, f"the field {name!r} is missing", name)
    if not isinstance(given, list):
        raise wrong_type(name, "a list of texts", given)
    if not given:
        raise wrong_value(name, "is an empty list; give at least one text")
    if len(given) > limits.max_inputs:
        raise wrong_value(
            name, f"has {len(given)} entries, and this server takes {limits.max_inputs} at once"
        )
    places = [f"{name}[{index}]" for index in range(len(given))]
    return [
        Fields(each, place).needed_text("text") if isinstance(each, dict) else as_text(each, place)
        for each, place in zip(given, places, strict=True)
    ]


def encode_ranking(
    body: RerankBody, ranking: Sequence[RankedDocument], n_tokens: int, model: str
) -> object:
    """The answer, as an object of JSON."""
    if body.tei:
        return [
            {"index": each.index, "score": each.score}
            | ({"text": each.document} if body.with_text else {})
            for each in ranking
        ]
    results = [
        {"index": each.index, "relevance_score": each.score}
        | ({"document": {"text": each.document}} if body.with_text else {})
        for each in ranking
    ]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"object": "list", "model": model, "usage": usage, "results": results}
