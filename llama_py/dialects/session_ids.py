"""Which conversation a request belongs to: the names that clients give it, in every dialect.

Query strings and messages have no part in it: a ``"role": "user"`` never selects a session.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from llama_py.errors import ParameterError, ParameterTypeError, shown

__all__ = ["MAX_SESSION_ID", "check_session_id", "label_of", "owner_of", "session_of"]

#: Characters of a session's name. What clients send in other fields may be longer, and becomes a
#: digest.
MAX_SESSION_ID = 128

_HEADERS = ("x-session-id", "x-claude-code-session-id", "session-id")
_FIELDS = ("prompt_cache_key", "user")
#: Stands between a tenant and a session's name. No name of either has it.
_BETWEEN = "\x1f"


def session_of(body: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
    """The session that a request names, or None.

    In this order: ``session_id`` of the body; the headers ``X-Session-Id``,
    ``X-Claude-Code-Session-Id`` and ``session-id``; ``prompt_cache_key`` and ``user`` of the body;
    Anthropic's ``metadata.user_id``, of which only the session counts if it is JSON. A value that
    is empty or no text names nothing.

    Args:
        body: the request's body, in whatever dialect.
        headers: its headers, by lower-case names.

    Raises:
        ParameterError: ``session_id``, which has no other meaning, is not a name.
    """
    own = body.get("session_id")
    if own is not None:
        return check_session_id("session_id", own)
    found = [headers.get(name) for name in _HEADERS]
    found += [body.get(name) for name in _FIELDS]
    found.append(_of_metadata(body.get("metadata")))
    name = next((value for value in found if isinstance(value, str) and value), None)
    if name is None or _is_name(name):
        return name
    raw = name.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


def check_session_id(field: str, value: Any) -> str:
    """A name that a client gives a session in a field that has no other meaning.

    Raises:
        ParameterError: it is not a name.
    """
    if not isinstance(value, str):
        raise ParameterTypeError(f"{field} must be a string, not {type(value).__name__}")
    if not _is_name(value):
        raise ParameterError(
            f"{field}={shown(value, 40)} must have 1 to {MAX_SESSION_ID} printable characters, and "
            "not only dots"
        )
    return value


def _is_name(value: str) -> bool:
    """Whether it can be shown, and stand in the path of a URL."""
    return len(value) <= MAX_SESSION_ID and value.isprintable() and bool(value.strip("."))


def _of_metadata(metadata: Any) -> str | None:
    user = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    if not isinstance(user, str) or not user.startswith("{"):
        return user if isinstance(user, str) else None
    try:
        parts = json.loads(user)
    except (ValueError, RecursionError):
        return user
    session = parts.get("session_id") if isinstance(parts, dict) else None
    return session if isinstance(session, str) and session else user


def label_of(tenant: str, session: str | None) -> str | None:
    """The engine's name for a session of a tenant; "" is everybody."""
    if session is None or not tenant:
        return session
    return f"{tenant}{_BETWEEN}{session}"


def owner_of(label: str) -> tuple[str, str]:
    """The tenant and the session's name of a label."""
    tenant, between, session = label.partition(_BETWEEN)
    return (tenant, session) if between else ("", label)
