"""What the server itself tells a client, in the dialect of the path: failures, signs of life."""

from __future__ import annotations

from starlette.types import Scope

from llama_py.dialects.failures import Failure, anthropic_error, ollama_error, openai_error
from llama_py.dialects.wire_json import DONE, event, frame, json_bytes

__all__ = [
    "OLLAMA",
    "failure_answer",
    "failure_event",
    "route_path",
    "sign_of_life",
    "stream_type",
]

#: How the paths of Ollama's dialect begin.
OLLAMA = "/api/"

#: Clients of OpenAI's streams know comments; Anthropic's count only events.
_COMMENT = b": the model is being loaded\n\n"
_PING = event("ping", {"type": "ping"})


def route_path(scope: Scope) -> str:
    """The path of a request below ``root_path``."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _is_anthropic(scope: Scope) -> bool:
    """By the path; what lists models answers in both forms, and a header says in which."""
    path = route_path(scope)
    if path.removeprefix("/v1").startswith("/models"):
        return any(name == b"anthropic-version" for name, _ in scope["headers"])
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def _is_ollama(scope: Scope) -> bool:
    return route_path(scope).startswith(OLLAMA)


def stream_type(scope: Scope) -> str:
    """The media type of a stream."""
    return "application/x-ndjson" if _is_ollama(scope) else "text/event-stream; charset=utf-8"


def failure_answer(
    scope: Scope, failure: Failure, overflow_status: int = 413
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body that report a failure."""
    if _is_anthropic(scope):
        status, body, headers = anthropic_error(failure, scope["state"].get("request_id"))
    elif _is_ollama(scope):
        status, body, headers = ollama_error(failure)
    else:
        status, body, headers = openai_error(failure, overflow_status)
    return status, {**headers, "Content-Type": "application/json"}, json_bytes(body)


def failure_event(scope: Scope, failure: Failure) -> bytes:
    """The end of a stream of events that fails before its dialect has an encoder for it."""
    if _is_anthropic(scope):
        request_id = scope["state"].get("request_id")
        return event("error", anthropic_error(failure, request_id)[1])
    if _is_ollama(scope):
        return json_bytes(ollama_error(failure)[1]) + b"\n"
    _, body, _ = openai_error(failure)
    if not route_path(scope).endswith("/responses"):
        return frame(body) + DONE
    told = {name: body["error"][name] for name in ("code", "message", "param")}
    return event("error", {"type": "error", "sequence_number": 0, **told, **body})


def sign_of_life(scope: Scope) -> bytes:
    """What a stream of events says while its model is still loaded."""
    if _is_ollama(scope):  # its lines have no comments; the headers are sign enough
        return b""
    return _PING if _is_anthropic(scope) else _COMMENT
