"""``document``: the whole description, as OpenAPI 3.1."""

from __future__ import annotations

import re
from typing import Any

from llama_py.dialects.failures import Failure, Kind, anthropic_error, ollama_error, openai_error
from llama_py.server.config.settings import Settings
from llama_py.server.openapi.bodies import request_schemas
from llama_py.server.openapi.replies import reply_schemas
from llama_py.server.openapi.schemas import Schema, reference
from llama_py.server.operations import PUBLIC, TAGS, Operation, Operations
from llama_py.version import __version__

__all__ = ["document"]

#: How every operation that is not public may fail.
_ALWAYS = (Kind.UNAUTHORIZED, Kind.RATE_LIMIT, Kind.UNAVAILABLE, Kind.INTERNAL)
#: And one that takes a body.
_WITH_BODY = (
    Kind.INVALID_JSON,
    Kind.MISSING,
    Kind.INVALID_TYPE,
    Kind.INVALID_VALUE,
    Kind.BODY_TOO_LARGE,
)
_PLACE = re.compile(r"{(\w+)}")
_KEYS: list[dict[str, list[str]]] = [{"bearer": []}, {"x-api-key": []}]


def document(settings: Settings, operations: Operations) -> dict[str, Any]:
    """The OpenAPI description of a server."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations.described:
        for path in operation.paths:
            item = paths.setdefault(path, {})
            item[operation.method.lower()] = _operation(operation, path, settings)
    tags = {tag for ways in paths.values() for each in ways.values() for tag in each["tags"]}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "llama_py",
            "version": __version__,
            "description": "GGUF language models behind the APIs of OpenAI, Anthropic, Ollama and "
            "llama-server.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": settings.root_path or "/"}],
        "tags": [
            {"name": name, "description": text} for name, text in TAGS.items() if name in tags
        ],
        "paths": paths,
        "components": {
            "schemas": {**request_schemas(settings), **reply_schemas()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(operation: Operation, path: str, settings: Settings) -> dict[str, Any]:
    own = operation.paths[0]
    summary = operation.summary if path == own else f"{operation.summary}: as `{own}`"
    words = re.sub(r"\W+", "_", path).strip("_") or "page"
    replies: dict[str, Any] = {}
    if operation.reply is not None:
        replies["application/json"] = {"schema": reference(operation.reply)}
    elif operation.media_type != "application/json":
        replies[operation.media_type] = {"schema": {"type": "string"}}
    if operation.events:
        schema = {"type": "string", "description": operation.events}
        replies["text/event-stream"] = {"schema": schema}
    success = {"description": operation.summary, **({"content": replies} if replies else {})}
    described: dict[str, Any] = {
        "operationId": f"{operation.method.lower()}_{words}",
        "tags": [operation.tag],
        "summary": summary,
        "responses": {"200": success, **_failures(operation, settings)},
    }
    if operation.text:
        described["description"] = operation.text
    if operation.scope is PUBLIC:
        described["security"] = []
    else:  # who asks for no key takes any, and none
        described["security"] = _KEYS if settings.api_keys else [{}, *_KEYS]
    parameters = _parameters(operation, path)
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        content = {operation.body_type: {"schema": reference(operation.body)}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _parameters(operation: Operation, path: str) -> list[dict[str, Any]]:
    text: Schema = {"type": "string", "minLength": 1}
    places = [
        {"name": name, "in": "path", "required": True, "schema": text}
        for name in _PLACE.findall(path)
    ]
    queries = [
        {
            "name": each.name,
            "in": "query",
            "required": False,
            "description": each.text,
            "schema": {"type": each.kind},
        }
        for each in operation.parameters
    ]
    return [*places, *queries]


def _failures(operation: Operation, settings: Settings) -> dict[str, Any]:
    kinds = [*operation.failures]
    if operation.body is not None:
        kinds += _WITH_BODY
    elif operation.parameters:
        kinds.append(Kind.INVALID_VALUE)
    if operation.scope is not PUBLIC:
        kinds += _ALWAYS
    form = "AnthropicError" if operation.is_anthropic else "Error"
    schema = reference("OllamaError" if operation.is_ollama else form)
    by_status: dict[int, list[str]] = {}
    for kind in kinds:
        failure = Failure(kind, "")
        if operation.is_anthropic:
            status = anthropic_error(failure)[0]
        elif operation.is_ollama:
            status = ollama_error(failure)[0]
        else:
            status = openai_error(failure, settings.overflow_status)[0]
        by_status.setdefault(status, []).append(kind.value)
    return {
        str(status): {
            "description": ", ".join(dict.fromkeys(names)),
            "content": {"application/json": {"schema": schema}},
        }
        for status, names in sorted(by_status.items())
    }
