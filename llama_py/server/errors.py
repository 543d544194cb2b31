"""How a failure is told to a client: in the dialect of the path."""

from __future__ import annotations

from starlette.types import Scope

from llama_py.dialects.failures import Failure, anthropic_error, openai_error
from llama_py.dialects.wire_json import json_bytes

__all__ = ["dialect_of", "failure_answer", "route_path"]


def route_path(scope: Scope) -> str:
    """The path of a request below ``root_path``."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def dialect_of(path: str) -> str:
    """``"anthropic"`` or ``"openai"``: in whose form a path reports errors."""
    return "anthropic" if path == "/v1/messages" or path.startswith("/v1/messages/") else "openai"


def _is_anthropic(scope: Scope) -> bool:
    """By the path; what lists models answers in both forms, and a header says in which."""
    path = route_path(scope)
    if path.removeprefix("/v1").startswith("/models"):
        return any(name == b"anthropic-version" for name, _ in scope["headers"])
    return dialect_of(path) == "anthropic"


def failure_answer(
    scope: Scope, failure: Failure, overflow_status: int = 413
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body that report a failure."""
    if _is_anthropic(scope):
        status, body, headers = anthropic_error(failure, scope["state"].get("request_id"))
    else:
        status, body, headers = openai_error(failure, overflow_status)
    return status, {**headers, "Content-Type": "application/json"}, json_bytes(body)
