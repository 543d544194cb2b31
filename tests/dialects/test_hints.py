"""The name of what a conversation begins with, which tells its pictures apart."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llama_py.dialects.routing_hints import opening_of


def body(data: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": data}}, {"type": "text", "text": "What?"}]
    return {"messages": [{"role": "user", "content": parts}], **more}


def test_long_parts_count_and_reach_no_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = 0

    def dumps(value: Any, **options: Any) -> str:
        nonlocal longest
        text = json.dumps(value, **options)
        longest = max(longest, len(text))
        return text

    monkeypatch.setattr(
        "llama_py.dialects.routing_hints.json", type("json", (), {"dumps": staticmethod(dumps)})
    )
    one, other = "data:," + "x" * 1_000_000, "data:," + "x" * 999_999 + "y"
    assert opening_of(body(one)) == opening_of(body(one, max_tokens=3))
    assert opening_of(body(one)) != opening_of(body(other))
    assert 0 < longest < 1000
