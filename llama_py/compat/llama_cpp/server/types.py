"""The bodies of requests, which llama_py's server describes at ``/openapi.json``."""

from __future__ import annotations

from typing import Any

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"llama_cpp.server.types.{name} is a class of pydantic that llama_py has not got; its "
        "server describes the bodies of requests at /openapi.json"
    )
