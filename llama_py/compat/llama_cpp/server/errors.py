"""Errors in the form of OpenAI's API."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

__all__ = ["ErrorResponse", "ErrorResponseFormatters", "RouteErrorHandler"]


class ErrorResponse(TypedDict):
    """What ``error`` is in the body of a response."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponseFormatters:
    """Errors of ``Llama`` as responses: a status and an ``ErrorResponse``."""

    @staticmethod
    def context_length_exceeded(request: Any, match: Any) -> tuple[int, ErrorResponse]:
        """A prompt that does not fit; the groups of the match are its tokens and the limit."""
        tokens, limit = int(match.group(1)), int(match.group(2))
        message = (
            f"This model's maximum context length is {limit} tokens, but the prompt has {tokens}"
        )
        return 400, ErrorResponse(
            message=message,
            type="invalid_request_error",
            param="messages",
            code="context_length_exceeded",
        )

    @staticmethod
    def model_not_found(request: Any, match: Any) -> tuple[int, ErrorResponse]:
        """A model that is not there; the group of the match is its path."""
        return 400, ErrorResponse(
            message=f"The model `{match.group(1)}` does not exist",
            type="invalid_request_error",
            param=None,
            code="model_not_found",
        )


class RouteErrorHandler:
    """A class of routes of FastAPI, which llama_py's server has not: a name to import."""
