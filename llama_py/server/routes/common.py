"""Helpers of several modules of routes."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llama_py.dialects.wire_json import json_bytes
from llama_py.server.service import service_of, tenant_of

__all__ = ["cancel_reply", "json_response"]


def json_response(value: Any, status: int = 200) -> Response:
    """A value as JSON, also one with halves of surrogate pairs."""
    return Response(json_bytes(value), status, media_type="application/json")


def cancel_reply(request: Request, wanted: Any) -> bool:
    """End the reply with this id, as if its client had left; False if there is none of the caller.

    Only replies that are being generated, or wait for that.
    """
    tenant = tenant_of(request)
    for exchange in service_of(request).exchanges:
        if exchange.id and exchange.id == wanted and exchange.tenant == tenant:
            exchange.cancel()
            return True
    return False
