"""Embeddings on the wire: OpenAI's form, and llama-server's own."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_py.dialects.failures import Kind, RequestError, failure_of
from llama_py.dialects.fields import Fields, as_text, wrong_type, wrong_value
from llama_py.dialects.limits import Limits
from llama_py.dialects.openai_bodies import note_unknown
from llama_py.dialects.wire_json import json_bytes, vector_bytes
from llama_py.embeddings.inputs import is_single
from llama_py.errors import ParameterError, TokenizationError

__all__ = ["EmbeddingBody", "encode_native", "encode_openai", "naming", "read_embedding"]

Vectors = NDArray[np.float32]

_KNOWN = frozenset(
    {"input", "content", "model", "encoding_format", "dimensions", "normalize", "truncate", "user"}
    | {"embd_normalize"}
)
#: What llama-server's ``embd_normalize`` may be: none, or of length 1.
_NORMS = {-1: False, 2: True}


@dataclass(frozen=True, slots=True)
class EmbeddingBody:
    """A request that was read.

    Attributes:
        inputs: texts, or lists of token ids.
        base64: vectors are wanted as the bytes of little-endian float32 numbers.
        native: the answer is llama-server's own, and not OpenAI's.
    """

    inputs: list[Any]
    base64: bool
    dimensions: int | None
    normalize: bool
    truncate: bool
    native: bool = False


def read_embedding(body: Mapping[str, Any], limits: Limits) -> EmbeddingBody:
    """The body of ``/v1/embeddings``, or of ``/embeddings`` with ``content``.

    Raises:
        RequestError: it cannot be answered.
    """
    note_unknown([name for name in body if name not in _KNOWN], limits)
    fields = Fields(body)
    name = "content" if "content" in fields and "input" not in fields else "input"
    inputs = _inputs(fields.get(name), name, limits)
    encoding = fields.text("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise wrong_value("encoding_format", f"is {encoding!r}; expected 'float' or 'base64'")
    return EmbeddingBody(
        inputs,
        encoding == "base64",
        fields.integer("dimensions", 1, 2**31),
        _normalized(fields),
        bool(fields.flag("truncate")),
        name == "content",
    )


def _inputs(given: Any, name: str, limits: Limits) -> list[Any]:
    if given is None:
        raise RequestError(Kind.MISSING, f"the field {name!r} is missing", name)
    if not isinstance(given, (str, list)):
        raise wrong_type(name, "a text, a list of texts, or token ids", given)
    inputs = [given] if is_single(given) else [*given]
    if not inputs:
        raise wrong_value(name, "is an empty list; give at least one text")
    if len(inputs) > limits.max_inputs:
        raise wrong_value(
            name, f"has {len(inputs)} entries, and this server takes {limits.max_inputs} at once"
        )
    for index, each in enumerate(inputs):
        place = name if is_single(given) else f"{name}[{index}]"
        if isinstance(each, str):
            if not each:
                raise wrong_value(place, "is an empty text; there is nothing to embed")
            as_text(each, place)
        elif not isinstance(each, list):
            raise wrong_type(place, "a text or a list of token ids", each)
    return inputs


def _normalized(fields: Fields) -> bool:
    number = fields.integer("embd_normalize", -1)
    if number is not None and number not in _NORMS:
        raise wrong_value("embd_normalize", f"is {number}; expected -1 (none) or 2 (Euclidean)")
    flag = fields.flag("normalize")
    if flag is not None:
        return flag
    return True if number is None else _NORMS[number]


@contextlib.contextmanager
def naming(*fields: str) -> Iterator[None]:
    """Let errors say which field they are about: their messages begin with its place."""
    try:
        yield
    except (ParameterError, TokenizationError) as error:
        place = re.match(r"(\w+)(\[\d+\])?", str(error))
        if place is None or place[1] not in fields:
            raise
        raise RequestError.of(replace(failure_of(error), param=place[0])) from None


# ---- answers ---------------------------------------------------------------------------------


def encode_openai(vectors: Vectors, n_tokens: int, model: str, *, as_base64: bool) -> bytes:
    """OpenAI's answer, for float32 ``(n, d)``."""
    shown = _base64 if as_base64 else vector_bytes
    data = b",".join(
        b'{"object":"embedding","index":%d,"embedding":%b}' % (index, shown(vector))
        for index, vector in enumerate(vectors)
    )
    usage = json_bytes({"prompt_tokens": n_tokens, "total_tokens": n_tokens})
    head = b'{"object":"list","model":%b,"usage":%b,"data":[' % (json_bytes(model), usage)
    return head + data + b"]}"


def _base64(vector: Vectors) -> bytes:
    return b'"%b"' % base64.b64encode(vector.astype("<f4", copy=False).tobytes())


def encode_native(vectors: Vectors) -> bytes:
    """llama-server's own answer: each vector in a list, as if there were several."""
    data = b",".join(
        b'{"index":%d,"embedding":[%b]}' % (index, vector_bytes(vector))
        for index, vector in enumerate(vectors)
    )
    return b"[" + data + b"]"
