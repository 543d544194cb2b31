"""Whatever a client sends to ``/v1/responses`` is answered, or refused in OpenAI's form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.responses_streams import check, events_of
from tests.server.serving import demo_settings, serving
from tests.server.test_responses_client import TIME, WEATHER

_TEXTS = st.sampled_from(
    ["", "hi", "call_1", "user", "message", "get_weather", "é \U0001f600", "\x00"]
)
_LEAVES: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXTS | st.text(max_size=8)
)  # fmt: skip
_JSON = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            _TEXTS | st.sampled_from(["type", "role", "content", "name"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


def nearly(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What is right most of the time."""
    return st.integers(0, 30).flatmap(lambda n: value if n else _JSON)


def an_object(needed: dict[str, Any], **others: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fixed = {
        name: nearly(v if isinstance(v, st.SearchStrategy) else st.just(v))
        for name, v in needed.items()
    }
    return st.fixed_dictionaries(fixed, optional={k: nearly(v) for k, v in others.items()})


_PARTS = st.lists(
    an_object(
        {"type": st.sampled_from(["input_text", "output_text", "refusal", "input_image"])},
        text=_TEXTS, refusal=_TEXTS, image_url=_TEXTS,
    ),
    max_size=3,
)  # fmt: skip
_ITEMS = st.one_of(
    an_object(
        {"role": st.sampled_from(["user", "assistant", "developer", "system"]),
         "content": _TEXTS | _PARTS},
        type=st.just("message"), id=_TEXTS, status=st.just("completed"),
    ),
    an_object({"type": "reasoning"}, summary=_PARTS, content=_PARTS, encrypted_content=_TEXTS),
    an_object(
        {"type": st.sampled_from(["function_call", "custom_tool_call"]), "name": "get_weather"},
        arguments=st.sampled_from(["{}", '{"city": "Rome"}', "{", ""]), input=_TEXTS,
        call_id=_TEXTS, namespace=_TEXTS,
    ),
    an_object(
        {"type": st.sampled_from(["function_call_output", "custom_tool_call_output"]),
         "output": _TEXTS | _PARTS},
        call_id=_TEXTS,
    ),
    an_object({"type": st.sampled_from(["item_reference", "web_search_call"]), "id": _TEXTS}),
)  # fmt: skip
_FUNCTIONS = st.sampled_from([WEATHER, TIME, {"type": "web_search"}]) | an_object(
    {"type": st.sampled_from(["function", "custom"]), "name": _TEXTS},
    description=_TEXTS, parameters=_JSON, strict=st.booleans(), format=_JSON,
)  # fmt: skip
_TOOLS = st.lists(
    _FUNCTIONS | an_object({"type": "namespace", "name": _TEXTS, "tools": st.lists(_FUNCTIONS)}),
    max_size=3,
)
_CHOICES = an_object(
    {"type": st.sampled_from(["function", "allowed_tools"])}, name=_TEXTS, tools=_TOOLS
)
_BODIES = an_object(
    {"input": _TEXTS | st.lists(_ITEMS, min_size=1, max_size=4)},
    tools=_TOOLS,
    tool_choice=st.sampled_from(["auto", "none", "required"]) | _CHOICES,
    instructions=_TEXTS,
    stream=st.booleans(),
    store=st.booleans(),
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1),
    top_logprobs=st.integers(0, 25),
    include=st.lists(_TEXTS | st.just("message.output_text.logprobs"), max_size=2),
    text=an_object({"format": an_object({"type": st.sampled_from(["text", "json_object"])})}),
    reasoning=an_object({}, effort=st.sampled_from(["low", "none"]), summary=st.just("auto")),
    previous_response_id=st.sampled_from([None] * 9 + ["resp_0"]),
    metadata=st.dictionaries(_TEXTS, _TEXTS, max_size=2),
    parallel_tool_calls=st.booleans(),
    truncation=st.sampled_from(["auto", "disabled"]),
    prompt_cache_key=_TEXTS,
    user=_TEXTS,
    model=_TEXTS,
    logit_bias=_JSON,
    seed=_JSON,
    something_new=_JSON,
)  # fmt: skip


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with serving(demo_settings(n_ctx=1024)) as server, server.http() as http:
        yield http


def check_answer(http: httpx.Client, body: Any) -> int:
    """Send a body, and check what comes back. Returns the status."""
    reply = http.post(
        "/v1/responses", content=json.dumps(body), headers={"content-type": "application/json"}
    )
    if reply.status_code != 200:
        assert 400 <= reply.status_code < 500, (reply.status_code, reply.text)
        error = reply.json()["error"]
        assert {*error} >= {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert "Traceback" not in error["message"]
    elif reply.headers["content-type"].startswith("text/event-stream"):
        assert events_of(reply.content)[-1]["response"]["status"] != "in_progress"
    else:
        assert reply.json()["status"] in ("completed", "incomplete")
    return reply.status_code


def short(body: dict[str, Any]) -> dict[str, Any]:
    return {"max_output_tokens": 3, **body}


@settings(max_examples=250, deadline=None, suppress_health_check=[*HealthCheck], derandomize=True)
@given(_BODIES)
@example({"input": "x", "max_output_tokens": 10**400})
@example(
    {"input": "x", "tools": [{"type": "function", "name": "f", "parameters": {"$ref": "#/x"}}]}
)
@example({"input": [{"role": "user", "content": "x", "id": {}}], "metadata": {"\ud800": ""}})
def test_any_body_is_answered_or_refused(http: httpx.Client, body: dict[str, Any]) -> None:
    check_answer(http, short(body))


@pytest.mark.long
@settings(max_examples=5000, deadline=None, suppress_health_check=[*HealthCheck])
@given(_BODIES)
def test_very_many_bodies(http: httpx.Client, body: dict[str, Any]) -> None:
    check_answer(http, short(body))


@settings(max_examples=50, deadline=None, suppress_health_check=[*HealthCheck], derandomize=True)
@given(_JSON)
def test_any_json_is_answered_or_refused(http: httpx.Client, body: Any) -> None:
    check_answer(http, short(body) if isinstance(body, dict) else body)


def test_most_of_these_bodies_are_not_refused(http: httpx.Client) -> None:
    """A test that sent nothing but nonsense would find nothing."""
    found: list[int] = []

    @settings(max_examples=60, deadline=None, database=None, derandomize=True,
              suppress_health_check=[*HealthCheck])  # fmt: skip
    @given(_BODIES)
    def run(body: dict[str, Any]) -> None:
        found.append(check_answer(http, short(body)))

    run()
    assert found.count(200) > len(found) // 10


def test_streams_of_good_bodies_keep_their_form(http: httpx.Client) -> None:
    for item in ("hi", [{"role": "user", "content": "hi"}, {"type": "web_search_call"}]):
        body = short({"input": item, "stream": True, "tools": [WEATHER], "something_new": 1})
        check(events_of(http.post("/v1/responses", json=body).content))
