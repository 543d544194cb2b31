"""The input of a stored reply, as the list that ``GET /v1/responses/{id}/input_items`` gives.

https://platform.openai.com/docs/api-reference/responses/input-items
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.responses.items import Item
from llama_py.errors import shown

__all__ = ["input_list"]

_USUAL, _MOST = 20, 100
#: What the ids of items begin with, by their type.
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}
_ORDERS = ("asc", "desc")


def input_list(items: Sequence[Item], response_id: str, query: Mapping[str, str]) -> dict[str, Any]:
    """A page of the items that a reply answers.

    Args:
        items: all of them, the oldest first.
        query: ``limit`` (20), ``order`` (``desc``: the newest first) and ``after``, an id.

    Raises:
        RequestError: one of these is wrong.
    """
    wanted, order = query.get("limit", str(_USUAL)), query.get("order", "desc")
    most = int(wanted.lstrip("0")[:9] or 0) if wanted.isdecimal() else 0
    if not 1 <= most <= _MOST:
        message = f"limit={shown(wanted)} must be a number from 1 to {_MOST}"
        raise RequestError(Kind.INVALID_VALUE, message, "limit")
    if order not in _ORDERS:
        message = f"order must be one of {', '.join(_ORDERS)}, not {shown(order)}"
        raise RequestError(Kind.INVALID_VALUE, message, "order")
    listed = [_complete(item, response_id, index) for index, item in enumerate(items)]
    if order == "desc":
        listed.reverse()
    rest, after = listed, query.get("after")
    if after is not None:
        ids = [item["id"] for item in listed]
        if after not in ids:
            message = f"after={shown(after)} is not an item of this response"
            raise RequestError(Kind.INVALID_VALUE, message, "after")
        rest = listed[ids.index(after) + 1 :]
    page = rest[:most]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(page) < len(rest),
    }


def _complete(item: Item, response_id: str, index: int) -> dict[str, Any]:
    """An item with what clients may leave out: its type, its id and the parts of a text."""
    kind = item.get("type") or "message"
    own = f"{_PREFIXES.get(str(kind), 'item')}_{response_id.removeprefix('resp_')}_{index}"
    found = {**item, "type": kind, "id": item.get("id") or own}
    if kind == "message":
        content = item.get("content")
        if isinstance(content, str) and item.get("role") == "assistant":
            beside: dict[str, Any] = {"annotations": [], "logprobs": []}
            content = [{"type": "output_text", "text": content, **beside}]
        elif isinstance(content, str):
            content = [{"type": "input_text", "text": content}]
        found["content"] = content
        found.setdefault("status", "completed")
    return found
