"""``Failure``: what went wrong with a request, and what each dialect says about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = ["Failure", "Kind"]


class Kind(Enum):
    """The rows of the table of errors."""

    INVALID_JSON = "invalid_json"
    MISSING = "missing_required_parameter"
    INVALID_TYPE = "invalid_type"
    INVALID_VALUE = "invalid_value"
    UNKNOWN_PARAMETER = "unknown_parameter"
    MODEL_NOT_FOUND = "model_not_found"
    UNAUTHORIZED = "invalid_api_key"
    FORBIDDEN = "permission_denied"
    NOT_FOUND = "not_found"
    METHOD = "method_not_allowed"
    OVERFLOW = "context_length_exceeded"
    BODY_TOO_LARGE = "request_too_large"
    QUEUE_FULL = "server_is_overloaded"
    RATE_LIMIT = "rate_limit_exceeded"
    UNAVAILABLE = "unavailable"
    TIMEOUT = "timeout"
    NOT_IMPLEMENTED = "not_implemented"
    CACHE_FULL = "cache_full"
    INTERNAL = "server_error"


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, in no dialect's form.

    Attributes:
        message: a sentence with the value and the remedy.
        param: the place in the body (``messages[2].content``), or None.
        code: in place of the kind's own, or None.
        retry_after: seconds after which to try again, or None.
        details: further fields of the error object.
    """

    kind: Kind
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
