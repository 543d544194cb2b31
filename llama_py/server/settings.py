"""``Settings``: how the server is configured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ModelSettings", "Settings"]


@dataclass(frozen=True)
class ModelSettings:
    """A model that is served.

    Attributes:
        id: its name in requests and responses.
        path: the GGUF file.
        aliases: further names.
        options: arguments of ``Llama``.
    """

    id: str
    path: str
    aliases: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """What ``create_app`` is told. Times are in seconds."""

    models: tuple[ModelSettings, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8080
    ping_interval: float = 10.0
    request_timeout: float | None = None
    write_timeout: float = 60.0
    max_body_bytes: int = 32 << 20
    max_json_depth: int = 200
    max_choices: int = 8
    max_top_logprobs: int = 20
    max_stops: int = 16
    max_tools: int = 512
    max_prompts: int = 64
    max_messages: int = 10_000
    overflow_status: int = 413
    strict: bool = False
