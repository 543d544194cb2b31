"""Embeddings on the wire: OpenAI's form, and llama-server's own."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_py.chat.vocab import VocabLike
from llama_py.dialects.failures import Kind, RequestError, failure_of
from llama_py.dialects.fields import Fields, as_text, wrong_type, wrong_value
from llama_py.dialects.known_fields import Dialect, ours
from llama_py.dialects.limits import RequestLimits
from llama_py.dialects.media_parts import MEDIA_PARTS, marked_parts, read_marked_prompt
from llama_py.dialects.token_texts import mixed_tokens
from llama_py.dialects.wire_json import json_bytes, vector_bytes
from llama_py.embeddings.inputs import is_single
from llama_py.errors import MediaError, ParameterError, TokenizationError, shown

__all__ = ["EmbeddingBody", "encode_native", "encode_openai", "naming", "read_embedding"]

Vectors = NDArray[np.float32]

#: What llama-server's ``embd_normalize`` may be: none, or of length 1.
_NORMS = {-1: False, 2: True}


@dataclass(frozen=True, slots=True)
class EmbeddingBody:
    """A request that was read.

    Attributes:
        inputs: texts, lists of token ids, or objects with parts in ``content``.
        base64: vectors are wanted as the bytes of little-endian float32 numbers.
        normalize: vectors of length 1 are wanted, or not; None: the client did not say.
        native: the answer is llama-server's own, and not OpenAI's.
    """

    inputs: list[Any]
    base64: bool
    dimensions: int | None
    normalize: bool | None
    truncate: bool
    native: bool = False


def read_embedding(
    body: Mapping[str, Any], limits: RequestLimits, vocab: VocabLike
) -> EmbeddingBody:
    """The body of ``/v1/embeddings``, or of ``/embeddings`` with ``content``.

    Beside OpenAI's forms of ``input`` there are llama-server's: an object with ``prompt_string``
    (and ``multimodal_data``) or with ``content`` (a list of parts), and a list of token ids and
    texts, which is one input.

    Raises:
        RequestError: it cannot be answered.
    """
    fields = Fields(ours(Dialect.EMBEDDINGS, body, limits).fields)
    name = "content" if "content" in fields and "input" not in fields else "input"
    inputs = _inputs(fields.get(name), name, limits, vocab)
    encoding = fields.text("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise wrong_value("encoding_format", f"is {shown(encoding)}; expected 'float' or 'base64'")
    dimensions = fields.integer("dimensions", 1, 2**31)
    norm = fields.integer("embd_normalize", -1)
    if norm is not None and norm not in _NORMS:
        raise wrong_value("embd_normalize", f"is {norm}; expected -1 (none) or 2 (Euclidean)")
    normalize = fields.flag("normalize")
    if normalize is None and norm is not None:
        normalize = _NORMS[norm]
    return EmbeddingBody(
        inputs,
        encoding == "base64",
        dimensions,
        normalize,
        bool(fields.flag("truncate")),
        name == "content",
    )


def _inputs(given: Any, name: str, limits: RequestLimits, vocab: VocabLike) -> list[Any]:
    if given is None:
        raise RequestError(Kind.MISSING, f"the field {name!r} is missing", name)
    if not isinstance(given, (str, list, Mapping)):
        raise wrong_type(name, "a text, a list of texts, or token ids", given)
    single = isinstance(given, Mapping) or is_single(given) or _is_mixed(given)
    inputs = [given] if single else [*given]
    if not inputs:
        raise wrong_value(name, "is an empty list; give at least one text")
    if len(inputs) > limits.max_inputs:
        raise wrong_value(
            name, f"has {len(inputs)} entries, and this server takes {limits.max_inputs} at once"
        )
    places = [name if single else f"{name}[{index}]" for index in range(len(inputs))]
    return [_input(each, place, vocab) for each, place in zip(inputs, places, strict=True)]


def _input(given: Any, place: str, vocab: VocabLike) -> str | list[Any] | dict[str, Any]:
    if isinstance(given, Mapping):
        given = _object(Fields(given, place))
        if isinstance(given, dict):
            return given
    if isinstance(given, str):
        if not given:
            raise wrong_value(place, "is an empty text; there is nothing to embed")
        return as_text(given, place)
    if not isinstance(given, list):
        raise wrong_type(place, "a text or a list of token ids", given)
    if _is_mixed(given):
        return mixed_tokens(vocab, place, given, add_special=True, parse_special=True)
    return given


def _is_mixed(given: Any) -> bool:
    """Whether it is a list of token ids and texts, which are one input together."""
    if not isinstance(given, list) or not any(isinstance(each, str) for each in given):
        return False
    return any(isinstance(each, int) and not isinstance(each, bool) for each in given)


def _object(given: Fields) -> str | dict[str, Any]:
    """The text of an object: ``prompt_string``, or the parts in ``content`` as one text; with
    pictures or sounds among them, an object with parts in ``content``."""
    if "content" not in given:
        marked = read_marked_prompt(given.values, given.where)
        if marked is not None:
            return {"content": marked_parts(marked)}
        return given.needed_text("prompt_string")
    parts = given.list("content")
    place = given.place("content")
    fields = [Fields(part, f"{place}[{index}]") for index, part in enumerate(parts)]
    for part in fields:
        kind = part.get("type")
        if kind != "text" and kind not in MEDIA_PARTS:
            raise wrong_value(
                part.place("type"), f"is {shown(kind)}; expected text, image_url or input_audio"
            )
    if all(part.get("type") == "text" for part in fields):
        return "".join(part.needed_text("text") for part in fields)
    return {"content": parts}


@contextlib.contextmanager
def naming(*fields: str) -> Iterator[None]:
    """Let errors say which field they are about: their messages begin with its place."""
    try:
        yield
    except (MediaError, ParameterError, TokenizationError) as error:
        place = re.match(r"(\w+)(\[\d+\])?", str(error))
        if place is None or place[1] not in fields:
            raise
        raise RequestError.of(replace(failure_of(error), param=place[0])) from None


# ---- answers ---------------------------------------------------------------------------------


def encode_openai(vectors: Vectors, n_tokens: int, model: str, *, as_base64: bool) -> bytes:
    """OpenAI's answer, for float32 ``(n, d)``."""
    rows = []
    for index, vector in enumerate(vectors):
        if as_base64:
            text = b'"%b"' % base64.b64encode(vector.astype("<f4", copy=False).tobytes())
        else:
            text = vector_bytes(vector)
        rows.append(b'{"object":"embedding","index":%d,"embedding":%b}' % (index, text))
    usage = json_bytes({"prompt_tokens": n_tokens, "total_tokens": n_tokens})
    head = b'{"object":"list","model":%b,"usage":%b,"data":[' % (json_bytes(model), usage)
    return head + b",".join(rows) + b"]}"


def encode_native(tables: Iterable[Vectors]) -> bytes:
    """llama-server's own answer, for float32 ``(n, d)`` of each input.

    That is a single row, or one for each token if the model does not pool them.
    """
    data = b",".join(
        b'{"index":%d,"embedding":[%b]}' % (index, b",".join(map(vector_bytes, table)))
        for index, table in enumerate(tables)
    )
    return b"[" + data + b"]"
