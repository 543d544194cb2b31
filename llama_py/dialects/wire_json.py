"""JSON as bytes, and frames of server-sent events. ``orjson`` is used where it is installed."""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]

__all__ = ["DONE", "event", "frame", "json_bytes", "text_bytes", "vector_bytes"]

#: The last frame of OpenAI's streams.
DONE = b"data: [DONE]\n\n"


def json_bytes(value: Any) -> bytes:
    """A value as JSON on one line."""
    if orjson is not None:
        try:
            return orjson.dumps(value)
        except TypeError:  # half of a surrogate pair, or an integer of more than 64 bits
            pass
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def vector_bytes(vector: NDArray[np.float32]) -> bytes:
    """Float32 numbers as a list; as many digits as they have, where ``orjson`` writes them."""
    if orjson is not None and np.isfinite(vector).all():
        return orjson.dumps(np.ascontiguousarray(vector), option=orjson.OPT_SERIALIZE_NUMPY)
    return json_bytes(vector.tolist())


def text_bytes(text: str) -> bytes:
    """A string as JSON, with its quotes."""
    if orjson is not None:
        try:
            return orjson.dumps(text)
        except TypeError:  # half of a surrogate pair
            pass
    return encode_basestring_ascii(text).encode("ascii")


def frame(value: Any) -> bytes:
    """An event without a name."""
    return b"data: " + json_bytes(value) + b"\n\n"


def event(name: str, value: Any) -> bytes:
    """An event with a name."""
    return b"event: " + name.encode("ascii") + b"\ndata: " + json_bytes(value) + b"\n\n"
