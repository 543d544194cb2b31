"""What the limits on connections rely on in uvicorn and h11, beyond what they document.

They override methods of its protocols. If a release renamed one, a limit would be gone and nobody
would notice; so ``check_uvicorn`` looks for all of them before a server starts.
"""

from __future__ import annotations

import importlib
from typing import Any

import h11

from llama_py.errors import NativeLibraryError

__all__ = ["check_uvicorn"]

_BOTH = (
    "connection_lost",
    "connection_made",
    "data_received",
    "on_response_complete",
    "pause_writing",
    "resume_writing",
    "send_400_response",
    "timeout_keep_alive_handler",
)
_METHODS = {
    "H11Protocol": _BOTH,
    "HttpToolsProtocol": (
        *_BOTH, "on_body", "on_header", "on_headers_complete", "on_message_complete"
    ),
}  # fmt: skip
_ATTRIBUTES = {
    "H11Protocol": ("conn", "cycle", "flow", "transport"),
    "HttpToolsProtocol": ("cycle", "flow", "parser", "transport"),
    "RequestResponseCycle": ("more_body", "response_complete", "response_started"),
}


def check_uvicorn(protocol: type[Any]) -> None:
    """Raise if a protocol of uvicorn's lacks something that the limits need.

    Raises:
        NativeLibraryError: which it is; another release of uvicorn has to be installed.
    """
    name = protocol.__name__
    if name not in _METHODS:
        return
    missing = [method for method in _METHODS[name] if not callable(getattr(protocol, method, None))]
    missing += _unset(protocol, _ATTRIBUTES[name])
    if name == "H11Protocol":
        missing += _unset(h11.Connection, ("_receive_buffer",))
    cycle = getattr(importlib.import_module(protocol.__module__), "RequestResponseCycle", None)
    if cycle is None:
        missing.append("RequestResponseCycle")
    else:
        missing += _unset(cycle, _ATTRIBUTES["RequestResponseCycle"])
    if missing:
        raise NativeLibraryError(
            f"this release of uvicorn has no {', '.join(missing)} ({name}), on which the limits on "
            "connections rely; install one that llama-py[server] allows"
        )


def _unset(kind: type[Any], names: tuple[str, ...]) -> list[str]:
    """The attributes that the constructor of a class does not set."""
    return [name for name in names if name not in kind.__init__.__code__.co_names]
