"""Which session a request belongs to (regression case 31)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llama_py.dialects.session_ids import MAX_SESSION_ID, label_of, owner_of, session_of
from llama_py.errors import ParameterError, ParameterTypeError

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
CLAUDE = json.dumps({"device_id": "d", "account_uuid": "", "session_id": "s-1"})

#: (body, headers, session), in the order in which the names count.
NAMED: list[tuple[dict[str, Any], dict[str, str], str | None]] = [
    ({"session_id": "anna"}, {"x-session-id": "other"}, "anna"),
    ({"user": "bob"}, {"x-session-id": "anna"}, "anna"),
    ({"user": "bob"}, {"x-claude-code-session-id": "c-1"}, "c-1"),
    ({"prompt_cache_key": "k"}, {"session-id": "codex"}, "codex"),
    ({}, {"x-session-id": "a", "x-claude-code-session-id": "b", "session-id": "c"}, "a"),
    ({"prompt_cache_key": "k", "user": "bob"}, {}, "k"),
    ({"user": "bob"}, {}, "bob"),
    ({"metadata": {"user_id": CLAUDE}}, {}, "s-1"),
    ({"metadata": {"user_id": CLAUDE}, "user": "bob"}, {}, "bob"),
    ({"metadata": {"user_id": "user_123"}}, {}, "user_123"),
    ({"metadata": {"user_id": "{no json"}}, {}, "{no json"),
    ({}, {}, None),
]
#: What looks like a name, and is none.
UNNAMED: list[dict[str, Any]] = [
    {},
    {"user": ""},
    {"user": None},
    {"user": 7},
    {"user": ["bob"]},
    {"session_id": None},
    {"prompt_cache_key": {"a": 1}},
    {"metadata": "bob"},
    {"metadata": {"user_id": 5}},
    {"metadata": {"session_id": "s"}},
]


@pytest.mark.parametrize(("body", "headers", "session"), NAMED)
def test_the_order_of_the_names(
    body: dict[str, Any], headers: dict[str, str], session: str | None
) -> None:
    assert session_of({**CHAT, **body}, headers) == session


@pytest.mark.parametrize("body", UNNAMED)
def test_a_role_never_selects_a_session(body: dict[str, Any]) -> None:
    assert session_of({**CHAT, **body}, {"content-type": "application/json"}) is None


def test_headers_of_other_dialects_count_in_each() -> None:
    headers = {"x-claude-code-session-id": "c-1", "anthropic-version": "2023-06-01"}
    assert session_of({"input": "hello"}, headers) == "c-1"
    assert session_of({"prompt": "user"}, headers) == "c-1"


@pytest.mark.parametrize(
    "value", ["", "a" * (MAX_SESSION_ID + 1), "a\nb", "a\x1fb", "\ud800", ".."]
)
def test_a_session_id_that_is_no_name_is_refused(value: str) -> None:
    with pytest.raises(ParameterError, match="session_id"):
        session_of({"session_id": value}, {})
    with pytest.raises(ParameterTypeError, match="session_id must be a string"):
        session_of({"session_id": 5}, {})


@pytest.mark.parametrize("value", ["x" * 5000, "bob\x1fanna", "a\nb", "\udcff", "."])
def test_other_fields_are_shortened_and_never_refused(value: str) -> None:
    name = session_of({"user": value}, {})
    assert name is not None
    assert len(name) == 32
    assert name == session_of({"user": value}, {})
    assert name != session_of({"user": value + "x"}, {})


def test_labels_of_two_tenants_differ() -> None:
    labels = {label_of("", "anna"), label_of("key-a", "anna"), label_of("key-b", "anna")}
    assert len(labels) == 3
    assert owner_of(label_of("key-a", "anna") or "") == ("key-a", "anna")
    assert owner_of(label_of("", "anna") or "") == ("", "anna")
    assert label_of("key-a", None) is None
