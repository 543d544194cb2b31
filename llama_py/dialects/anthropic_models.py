"""The list of models in Anthropic's form, for clients that send ``anthropic-version``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from llama_py.errors import ParameterError, shown

__all__ = ["model_info", "model_page"]

#: Entries of a page, by default and at most.
_USUAL, _MOST = 20, 1000


def model_info(model: Mapping[str, Any]) -> dict[str, Any]:
    """One model.

    Args:
        model: with its ``id``, when it was ``created`` in seconds since 1970, and its
            ``context_length`` in tokens, if that is known.
    """
    created = datetime.fromtimestamp(int(model["created"]), timezone.utc)
    length = model.get("context_length")
    return {
        "type": "model",
        "id": model["id"],
        "display_name": model["id"],
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": length,
        "max_tokens": length,
    }


def model_page(models: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """A page of the list.

    Args:
        models: see ``model_info``.
        query: ``limit``, and ``after_id`` or ``before_id``, of the request's query string.

    Raises:
        ParameterError: a value cannot be used.
    """
    limit = _limit(query.get("limit"))
    ids = [str(model["id"]) for model in models]
    start, end = 0, len(ids)
    if "after_id" in query:
        start = _index(ids, query["after_id"], "after_id") + 1
    elif "before_id" in query:
        end = _index(ids, query["before_id"], "before_id")
        start = max(0, end - limit)
    page = [model_info(model) for model in models[start : min(end, start + limit)]]
    backwards = "before_id" in query and "after_id" not in query
    return {
        "data": page,
        "has_more": start > 0 if backwards else start + len(page) < end,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }


def _limit(text: str | None) -> int:
    if text is None:
        return _USUAL
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= _MOST):
        raise ParameterError(f"limit is {shown(text)}; it must be an integer from 1 to {_MOST}")
    return int(text)


def _index(ids: Sequence[str], wanted: str, name: str) -> int:
    if wanted not in ids:
        raise ParameterError(f"{name} is {shown(wanted)}, and there is no such model")
    return ids.index(wanted)
