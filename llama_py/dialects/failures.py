"""``Failure``: what went wrong with a request, and what each dialect says about it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from llama_py.errors import (
    CacheFullError,
    ClosedError,
    ContextOverflowError,
    DecodeError,
    DeviceUnavailableError,
    EngineDeadError,
    GenerationTimeout,
    GrammarError,
    InputTooLongError,
    IsolationError,
    LlamaError,
    MediaError,
    ModelChangedError,
    ParameterError,
    ParameterTypeError,
    QueueFullError,
    RequestCancelled,
    TemplateError,
    TokenizationError,
    UnknownParameterError,
)

__all__ = [
    "Failure",
    "Kind",
    "RequestError",
    "anthropic_error",
    "failure_of",
    "ollama_error",
    "openai_error",
    "openai_status",
]

_log = logging.getLogger("llama_py.server")

#: Characters of a message: a template's complaint may contain the whole conversation.
_LONGEST = 1000
#: Characters of a place, whose names may be a client's own.
_LONGEST_PLACE = 200


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


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
    HEADERS_TOO_LARGE = "request_headers_too_large"
    MEDIA_TYPE = "unsupported_media_type"
    QUEUE_FULL = "server_is_overloaded"
    RATE_LIMIT = "rate_limit_exceeded"
    UNAVAILABLE = "unavailable"
    TIMEOUT = "timeout"
    NOT_IMPLEMENTED = "not_implemented"
    CACHE_FULL = "cache_full"
    INTERNAL = "server_error"


@dataclass(frozen=True, slots=True)
class Failure:
    """An error, in no dialect's form.

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


class RequestError(Exception):
    """A request that is refused before it reaches a model.

    Attributes:
        failure: what the client is told.
    """

    def __init__(
        self,
        kind: Kind,
        message: str,
        param: str | None = None,
        *,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        place = param if param is None else _cut(param, _LONGEST_PLACE)
        self.failure = Failure(kind, _cut(message, _LONGEST), place, code, retry_after)
        super().__init__(message)

    @classmethod
    def of(cls, failure: Failure) -> RequestError:
        """The exception for a failure that is known already."""
        error = cls(failure.kind, failure.message)
        error.failure = failure
        return error


# ---- exceptions ------------------------------------------------------------------------------

#: The first class that an exception is an instance of says what kind of failure it is.
_KINDS: tuple[tuple[type[BaseException], Kind], ...] = (
    (UnknownParameterError, Kind.UNKNOWN_PARAMETER),
    (ParameterTypeError, Kind.INVALID_TYPE),
    (ParameterError, Kind.INVALID_VALUE),
    (MediaError, Kind.INVALID_VALUE),
    (GrammarError, Kind.INVALID_VALUE),
    (TemplateError, Kind.INVALID_VALUE),
    (TokenizationError, Kind.INVALID_VALUE),
    (IsolationError, Kind.INVALID_VALUE),
    (QueueFullError, Kind.QUEUE_FULL),
    (GenerationTimeout, Kind.TIMEOUT),
    (CacheFullError, Kind.CACHE_FULL),
    (RequestCancelled, Kind.UNAVAILABLE),
    (ClosedError, Kind.UNAVAILABLE),
)

#: What clients are told in place of the exception's own words, which are for who runs the server.
_WORDS = {
    Kind.QUEUE_FULL: "the server is overloaded: too many requests are waiting; try again later",
    Kind.CACHE_FULL: "there is no memory left for this request; try again when others have ended",
    Kind.UNAVAILABLE: "the model was closed or reset while this request was running; try again",
}
#: It names no path, as the error does.
_CHANGED = (
    "the file of this model was truncated or written to after it was loaded; it answers again when "
    "it has been unloaded and loaded (the server's log says more)"
)
_LOST = (
    "a device that computes this model is lost or cannot be reached; try again later, when the "
    "model has been loaded again"
)
_RETRY_AFTER = {Kind.QUEUE_FULL: 1.0, Kind.CACHE_FULL: 1.0, Kind.UNAVAILABLE: 1.0}


def failure_of(error: BaseException) -> Failure:
    """The failure that an exception means for the client.

    An exception that nobody foresaw is logged here with its traceback, and the client learns
    nothing about it.
    """
    if isinstance(error, RequestError):
        return error.failure
    if isinstance(error, ContextOverflowError):
        return _overflow(error)
    if isinstance(error, ModelChangedError):
        _log.error("a request was refused: %s", error)
        return Failure(Kind.UNAVAILABLE, _CHANGED)
    if isinstance(error, DeviceUnavailableError):
        _log.error("a request was refused: %s", error)
        return Failure(Kind.UNAVAILABLE, _LOST, retry_after=_RETRY_AFTER[Kind.UNAVAILABLE])
    if isinstance(error, EngineDeadError):
        _log.warning("a request ended early: %s", error.public or error)
        told = error.public or "the model's process died; try again"
        return Failure(Kind.UNAVAILABLE, told, code="engine_dead", retry_after=error.retry_after)
    for exception, kind in _KINDS:
        if isinstance(error, exception):
            message = _WORDS.get(kind) or getattr(error, "public", None) or str(error)
            message = _cut(message, _LONGEST)
            param = getattr(error, "param", None)
            return Failure(kind, message, param, retry_after=_RETRY_AFTER.get(kind))
    known = isinstance(error, LlamaError)
    _log.error("a request failed: %s", error, exc_info=None if known else error)
    message = "the server failed to answer this request; its log says why"
    if isinstance(error, DecodeError):
        message = f"the model could not be evaluated (code {error.code}); try again"
    return Failure(Kind.INTERNAL, message)


def _overflow(error: ContextOverflowError) -> Failure:
    """In the words by which every known client sees that the conversation has become too long."""
    count, fits = error.prompt_tokens, error.fits
    details: dict[str, Any] = {"n_prompt_tokens": count, "n_ctx": error.limit}
    if isinstance(error, InputTooLongError):
        place = f"{error.name}[{error.index}]"
        message = f"{place} is too long: {count} tokens > {fits} maximum; shorten it, or truncate"
        return Failure(Kind.OVERFLOW, message, place, details=details)
    message = (
        f"prompt is too long: {count} tokens > {fits} maximum; it exceeds the context window of "
        "this model (exceeds the available context size)"
    )
    if error.at_least:  # behind the words that clients look for
        message += f"; it has at least {count} tokens, and was not counted further"
        details["at_least"] = True
    return Failure(Kind.OVERFLOW, message, details=details)


# ---- dialects --------------------------------------------------------------------------------

_INVALID = "invalid_request_error"
_OVERLOADED = "overloaded_error"

#: Kind -> status and type of OpenAI's dialects, and of Anthropic's.
_ROWS: dict[Kind, tuple[int, str, int, str]] = {
    Kind.INVALID_JSON: (400, _INVALID, 400, _INVALID),
    Kind.MISSING: (400, _INVALID, 400, _INVALID),
    Kind.INVALID_TYPE: (400, _INVALID, 400, _INVALID),
    Kind.INVALID_VALUE: (400, _INVALID, 400, _INVALID),
    Kind.UNKNOWN_PARAMETER: (400, _INVALID, 400, _INVALID),
    Kind.MODEL_NOT_FOUND: (404, _INVALID, 404, "not_found_error"),
    Kind.UNAUTHORIZED: (401, _INVALID, 401, "authentication_error"),
    Kind.FORBIDDEN: (403, "permission_error", 403, "permission_error"),
    Kind.NOT_FOUND: (404, _INVALID, 404, "not_found_error"),
    Kind.METHOD: (405, _INVALID, 405, _INVALID),
    # OpenAI's clients look at the code, which is theirs; llama-server's look at this type.
    Kind.OVERFLOW: (413, "exceed_context_size_error", 400, _INVALID),
    Kind.BODY_TOO_LARGE: (413, _INVALID, 413, "request_too_large"),
    Kind.HEADERS_TOO_LARGE: (431, _INVALID, 431, _INVALID),
    Kind.MEDIA_TYPE: (415, _INVALID, 415, _INVALID),
    Kind.QUEUE_FULL: (503, "server_error", 529, _OVERLOADED),
    Kind.RATE_LIMIT: (429, "rate_limit_error", 429, "rate_limit_error"),
    Kind.UNAVAILABLE: (503, "unavailable_error", 529, _OVERLOADED),
    Kind.TIMEOUT: (504, "timeout_error", 504, "timeout_error"),
    Kind.NOT_IMPLEMENTED: (501, "not_supported_error", 501, "api_error"),
    Kind.CACHE_FULL: (503, "server_error", 529, _OVERLOADED),
    Kind.INTERNAL: (500, "server_error", 500, "api_error"),
}


def openai_status(kind: Kind, overflow_status: int = 413) -> int:
    """The HTTP status of a failure in OpenAI's dialects."""
    return overflow_status if kind is Kind.OVERFLOW else _ROWS[kind][0]


def openai_error(
    failure: Failure, overflow_status: int = 413
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers of a failure in OpenAI's dialects.

    Args:
        overflow_status: the status for a prompt that is too long.
    """
    error = {
        "message": failure.message,
        "type": _ROWS[failure.kind][1],
        "param": failure.param,
        "code": failure.code or failure.kind.value,
        **failure.details,
    }
    return openai_status(failure.kind, overflow_status), {"error": error}, _headers(failure)


def anthropic_error(
    failure: Failure, request_id: str | None = None
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers of a failure in Anthropic's dialect."""
    _, _, status, kind = _ROWS[failure.kind]
    error: dict[str, Any] = {"type": kind, "message": failure.message}
    if failure.code is not None:
        error["details"] = {"error_code": failure.code}
    return status, {"type": "error", "error": error, "request_id": request_id}, _headers(failure)


def ollama_error(failure: Failure) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers of a failure in Ollama's dialect."""
    return openai_status(failure.kind, 400), {"error": failure.message}, _headers(failure)


def _headers(failure: Failure) -> dict[str, str]:
    headers: dict[str, str] = {}
    if failure.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(failure.retry_after)))
    if failure.kind is Kind.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if failure.kind is Kind.BODY_TOO_LARGE:  # the rest of it is not kept
        headers["Connection"] = "close"
    return headers
