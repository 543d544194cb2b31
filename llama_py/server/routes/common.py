"""What several modules of routes need."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from llama_py.dialects.wire_json import json_bytes

__all__ = ["json_response"]


def json_response(value: Any, status: int = 200) -> Response:
    """A value as JSON, also one with halves of surrogate pairs."""
    return Response(json_bytes(value), status, media_type="application/json")
