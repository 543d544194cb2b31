"""``Operation``: what can be asked of the server, declared above the handler that answers it.

Who may ask, what is described in ``/openapi.json`` and what a cluster sends to all of its replicas
is derived from the declarations: ``Operations`` finds that of a request.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from llama_py.dialects.failures import Kind
from llama_py.server.access.keys import CHAT

__all__ = [
    "ANSWERED",
    "EMBEDDED",
    "MODEL",
    "ONE_MODEL",
    "PUBLIC",
    "TAGS",
    "DeclaredRoute",
    "Operation",
    "Operations",
    "Parameter",
    "Routes",
]

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

#: The scope of an operation that needs no key.
PUBLIC = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the query string."""

    name: str
    text: str
    kind: str = "string"


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that clients can ask for.

    Attributes:
        scope: what a key must have: ``CHAT``, ``ADMIN``; ``PUBLIC`` if no key is needed.
        summary: what it does, in a few words; ``text`` says more. Without, it is not described.
        body: the schema of what it takes, or None.
        reply: the schema of the reply; None if there is none, or if it is not JSON.
        events: what a stream consists of, if ``stream`` asks for one.
        media_type: of a reply that is not JSON.
        body_type: of what it takes.
        any_type: programs may send JSON without saying so (browsers may not).
        failures: how it may fail, beside what every operation may.
        parameters: of the query string.
        always: it is answered while the server loads or drains, too.
        every_replica: a cluster sends it to all of its replicas.
        method, paths: how; the first path is its own, the others are aliases. ``Routes`` sets them.
        tag: the chapter that it belongs to; that of its ``Routes``.
    """

    scope: str | None
    summary: str = ""
    text: str = ""
    body: str | None = None
    reply: str | None = None
    events: str = ""
    media_type: str = "application/json"
    body_type: str = "application/json"
    any_type: bool = False
    failures: Sequence[Kind] = ()
    parameters: Sequence[Parameter] = ()
    always: bool = False
    every_replica: bool = False
    method: str = ""
    paths: Sequence[str] = ()
    tag: str = ""

    @property
    def is_anthropic(self) -> bool:
        """Whether it speaks Anthropic's dialect."""
        return self.paths[0].startswith("/v1/messages")

    @property
    def is_ollama(self) -> bool:
        """Whether it speaks Ollama's dialect."""
        return self.paths[0].startswith("/api/")


TAGS = {
    "OpenAI": "Chats and completions as in OpenAI's API, also the Responses API.",
    "Anthropic": "Anthropic's Messages API.",
    "Ollama": "Ollama's API.",
    "Models": "What is offered, and what is in memory.",
    "Sessions": "Conversations that have a name.",
    "llama-server": "The endpoints that are llama.cpp's own.",
    "Operation": "For those who run the server.",
}

#: How whatever a model answers may fail.
ANSWERED = (
    Kind.MODEL_NOT_FOUND,
    Kind.OVERFLOW,
    Kind.QUEUE_FULL,
    Kind.CACHE_FULL,
    Kind.TIMEOUT,
)
EMBEDDED = (Kind.MODEL_NOT_FOUND, Kind.OVERFLOW, Kind.TIMEOUT)
ONE_MODEL = (Kind.MODEL_NOT_FOUND,)
MODEL = Parameter("model", "The model, if there are several.")

#: Where there is none, any key may learn that.
_MISSING = Operation(CHAT)
_CONVERTER = re.compile(r":\w+}")


class DeclaredRoute(Route):
    """A route, with the operation that it is a way to."""

    def __init__(self, path: str, handler: Handler, operation: Operation) -> None:
        super().__init__(path, handler, methods=[operation.method])
        self.operation = operation


class Routes(list[BaseRoute]):
    """The routes of a module, in the order in which it defines their handlers: ``@ROUTES.get``.

    Args:
        tag: the chapter of the description that their operations belong to.
    """

    def __init__(self, tag: str) -> None:
        super().__init__()
        self._tag = tag

    def get(self, *paths: str, operation: Operation) -> Callable[[Handler], Handler]:
        """Answers GET, and HEAD, at these paths."""
        return self._at("GET", paths, operation)

    def post(self, *paths: str, operation: Operation) -> Callable[[Handler], Handler]:
        """Answers POST at these paths."""
        return self._at("POST", paths, operation)

    def delete(self, *paths: str, operation: Operation) -> Callable[[Handler], Handler]:
        """Answers DELETE at these paths."""
        return self._at("DELETE", paths, operation)

    def head(self, *paths: str, operation: Operation) -> Callable[[Handler], Handler]:
        """Answers HEAD alone at these paths."""
        return self._at("HEAD", paths, operation)

    def _at(
        self, method: str, paths: Sequence[str], operation: Operation
    ) -> Callable[[Handler], Handler]:
        spelt = tuple(_CONVERTER.sub("}", path) for path in paths)
        declared = replace(operation, method=method, paths=spelt, tag=self._tag)

        def note(handler: Handler) -> Handler:
            self.extend(DeclaredRoute(path, handler, declared) for path in paths)
            return handler

        return note


class Operations:
    """The operations of an application.

    Attributes:
        described: those that ``/openapi.json`` is about, in the order of their routes.

    Args:
        routes: all of them, in the order in which they are tried.

    Raises:
        TypeError: a route says nothing of who may use it.
    """

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        found: list[Operation] = []
        self._exact: dict[tuple[str, str], Operation] = {}
        self._patterns: list[DeclaredRoute] = []
        for route in routes:
            if not isinstance(route, DeclaredRoute):
                raise TypeError(f"{route} declares no operation, so nobody knows who may use it")
            found.append(route.operation)
            if "{" in route.path:
                self._patterns.append(route)
                continue
            for method in route.methods or ():
                # A pattern that is tried before may stand in the way.
                operation = self._by_pattern(method, route.path) or route.operation
                self._exact.setdefault((method, route.path), operation)
        self.described = tuple({id(each): each for each in found if each.summary}.values())

    def find(self, method: str, path: str) -> Operation:
        """The operation that a request reaches, as the router finds it."""
        return self._exact.get((method, path)) or self._by_pattern(method, path) or _MISSING

    def _by_pattern(self, method: str, path: str) -> Operation | None:
        for route in self._patterns:
            if method in (route.methods or ()) and route.path_regex.match(path):
                return route.operation
        return None
