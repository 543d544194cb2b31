"""What OpenAI's endpoints refuse, in which words, and what they let pass."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llama_py.options import CHAT as CHAT_OPTIONS
from llama_py.options import COMPLETION as COMPLETION_OPTIONS
from llama_py.server import call_defaults, exchange
from llama_py.server.access.keys import ApiKey
from tests.server.leaving import Visitor, until
from tests.server.serving import Server, demo_settings, serving
from tests.server.test_openai_client import SCHEMA, SUM, TOOLS
from tests.slowness import slow_steps

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
MISSING = "missing_required_parameter"


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http() as http:
        yield http


def error_of(reply: httpx.Response) -> tuple[int, str, str | None]:
    """Status, code and param of an error."""
    error = reply.json()["error"]
    assert error.keys() >= {"message", "type", "param", "code"}
    assert error["message"]
    return reply.status_code, error["code"], error["param"]


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


WRONG: list[tuple[dict[str, Any], str, str | None]] = [
    ({}, MISSING, "messages"),
    ({"messages": None}, MISSING, "messages"),
    ({"messages": []}, "invalid_value", "messages"),
    ({"messages": "Hello"}, "invalid_type", "messages"),
    ({"messages": ["Hello"]}, "invalid_type", "messages[0]"),
    ({"messages": [SUM, {"role": "robot", "content": ""}]}, "invalid_value", "messages[1].role"),
    ({"messages": [SUM, {"role": "user"}]}, MISSING, "messages[1].content"),
    (
        user([{"type": "image_url", "image_url": {}}]),
        "invalid_type",
        "messages[0].content[0].image_url",
    ),
    (user([{"type": "text"}]), MISSING, "messages[0].content[0].text"),
    ({"messages": [{"content": "Hello"}]}, MISSING, "messages[0].role"),
    ({"messages": [SUM, None]}, "invalid_type", "messages[1]"),
    ({"messages": [SUM], "functions": 5}, "invalid_type", "functions"),
    ({"messages": [SUM], "functions": [{}]}, MISSING, "functions[0].name"),
    (
        {"messages": [SUM], "response_format": {"type": "json_schema", "json_schema": {}}},
        MISSING,
        "response_format.json_schema.schema",
    ),
    (
        {"messages": [SUM], "response_format": {"type": "json_object", "schema": {"format": 5}}},
        "invalid_value",
        "response_format",
    ),
    ({"messages": [SUM], "stream": "yes"}, "invalid_type", "stream"),
    ({"messages": [SUM], "model": 7}, "invalid_type", "model"),
    ({"messages": [SUM], "temperature": "hot"}, "invalid_type", "temperature"),
    ({"messages": [SUM], "top_p": 2}, "invalid_value", "top_p"),
    ({"messages": [SUM], "n": 9}, "invalid_value", "n"),
    ({"messages": [SUM], "n": 10**30}, "invalid_value", "n"),
    ({"messages": [SUM], "n": 0}, "invalid_value", "n"),
    ({"messages": [SUM], "n": 100.0}, "invalid_value", "n"),
    ({"messages": [SUM], "logprobs": True, "top_logprobs": 21.0}, "invalid_value", "top_logprobs"),
    ({"messages": [SUM], "logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
    ({"messages": [SUM], "top_logprobs": 2}, "invalid_value", "top_logprobs"),
    ({"messages": [SUM], "stop": ["a"] * 17}, "invalid_value", "stop"),
    ({"messages": [SUM], "stop": [1]}, "invalid_type", "stop"),
    ({"messages": [SUM], "tools": TOOLS * 300}, "invalid_value", "tools"),
    ({"messages": [SUM], "tools": [{"type": "function"}]}, MISSING, "tools[0].function"),
    ({"messages": [SUM], "tools": TOOLS, "tool_choice": "maybe"}, "invalid_value", "tool_choice"),
    ({"messages": [SUM], "tool_choice": "required"}, "invalid_value", "tool_choice"),
    (
        {"messages": [SUM], "tools": TOOLS, "tool_choice": {"type": "allowed_tools"}},
        MISSING,
        "tool_choice.allowed_tools",
    ),
    (
        {"messages": [SUM], "response_format": {"type": "table"}},
        "invalid_value",
        "response_format.type",
    ),
    (
        {"messages": [SUM], "response_format": {**SCHEMA, "json_schema": {"schema": {"type": 3}}}},
        "invalid_value",
        "response_format",
    ),
    ({"messages": [SUM], "grammar": "root ::= ("}, "invalid_value", "grammar"),
    ({"messages": [SUM], "logit_bias": {"x": 1}}, "invalid_value", "logit_bias"),
    ({"messages": [SUM], "logit_bias": {"10000000": 1}}, "invalid_value", "logit_bias"),
    (
        {"messages": [SUM], "logit_bias": {str(token): False for token in range(1536)}},
        "invalid_value",
        "logit_bias",
    ),
    ({"messages": [SUM], "reasoning_effort": "utmost"}, "invalid_value", "reasoning_effort"),
    ({"messages": [SUM], "session_id": ""}, "invalid_value", "session_id"),
    ({"messages": [SUM], "priority": "high"}, "invalid_type", "priority"),
    ({"messages": [SUM], "samplers": ["top_k"] * 65}, "invalid_value", "samplers"),
    ({"messages": [SUM], "samplers": ";" * 65}, "invalid_value", "samplers"),
    (
        {"messages": [SUM], "dry_sequence_breakers": [str(n) for n in range(65)]},
        "invalid_value",
        "dry_sequence_breakers",
    ),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("body", "code", "param"), WRONG, ids=lambda value: str(value)[:60])
def test_what_is_wrong_has_a_place(
    http: httpx.Client, body: dict[str, Any], code: str, param: str | None, stream: bool
) -> None:
    """Before the headers of a stream as well."""
    reply = http.post(CHAT, json={"stream": stream, **body})
    assert error_of(reply) == (400, code, param)


WRONG_COMPLETIONS: list[tuple[dict[str, Any], str, str | None]] = [
    ({}, MISSING, "prompt"),
    ({"prompt": {"a": 1}}, "invalid_type", "prompt"),
    ({"prompt": [[1], "a", 3]}, "invalid_type", "prompt"),
    ({"prompt": [-1]}, "invalid_value", "prompt"),
    ({"prompt": [10**9]}, "invalid_value", "prompt"),
    ({"prompt": ["a"] * 65}, "invalid_value", "prompt"),
    ({"prompt": "a", "best_of": 9}, "invalid_value", "best_of"),
    ({"prompt": "a", "best_of": 1, "n": 2}, "invalid_value", "best_of"),
    ({"prompt": "a", "best_of": 2, "stream": True}, "invalid_value", "best_of"),
    ({"prompt": "a", "logprobs": 21}, "invalid_value", "logprobs"),
    ({"prompt": "a", "suffix": "b"}, "invalid_value", "suffix"),  # this model cannot do that
]


@pytest.mark.parametrize(("body", "code", "param"), WRONG_COMPLETIONS, ids=lambda v: str(v)[:60])
def test_what_is_wrong_with_a_completion(
    http: httpx.Client, body: dict[str, Any], code: str, param: str | None
) -> None:
    assert error_of(http.post(COMPLETION, json=body)) == (400, code, param)


BODIES: list[tuple[bytes, str]] = [
    (b"", "empty"),
    (b"{", "not JSON"),
    (b"[1]", "must be a JSON object"),
    (b'"text"', "must be a JSON object"),
    (b'{"a": NaN}', "NaN"),
    (b'{"a": "\xff"}', "UTF-8"),
    ('{"a": 1}'.encode("utf-16"), "UTF-8"),
    (b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}", "nested"),
    (b'{"a": ' + b"[" * 100_000, "nested"),
    (b'{"a": 1' + b"0" * 10_000 + b"}", "not JSON"),
]


@pytest.mark.parametrize(("body", "words"), BODIES, ids=lambda value: str(value)[:30])
def test_what_is_no_body(http: httpx.Client, body: bytes, words: str) -> None:
    reply = http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert error_of(reply) == (400, "invalid_json", None)
    assert words in reply.json()["error"]["message"]


def test_a_file_that_begins_with_a_mark_of_its_encoding(http: httpx.Client) -> None:
    body = b'\xef\xbb\xbf{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}'
    reply = http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 200


def test_half_a_character_is_let_pass(http: httpx.Client) -> None:
    """Agents cut texts in the middle of a pair of surrogates; where a text must be encoded, that
    is said of the place."""
    body = b'{"messages": [{"role": "user", "content": "cut \\ud83d"}], "max_tokens": 1}'
    reply = http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 200 or error_of(reply)[2] == "messages[0].content"


#: What may be sent, and changes nothing.
HARMLESS: list[dict[str, Any]] = [
    {"on_progress": 3, "speculative": {"kind": "x"}, "chat_template_path": "/etc/passwd"},
    {"chat_template": None, "lora_path": "", "regex": None, "format": "", "echo": False, "n": 1},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": None}},
    {"stop": "", "grammar": ""},
    {"stop": ["", "seven"]},
    {"response_format": {"type": None}},
    {"tools": [], "parallel_tool_calls": True},
    {"tools": [{"type": "web_search"}, {"type": "mcp", "server_label": "x"}]},
    {"metadata": {"a": "b"}, "store": True, "service_tier": "flex", "verbosity": "low"},
    {"modalities": ["text"], "prediction": None, "safety_identifier": "x", "user": ""},
    {"model": ""},
    {"model": None, "seed": None, "stop": None, "tools": None, "n": None, "max_tokens": None},
    {"max_tokens": 10**30},
]


@pytest.mark.parametrize("options", HARMLESS, ids=lambda value: str(value)[:60])
def test_what_changes_nothing(http: httpx.Client, options: dict[str, Any]) -> None:
    reply = http.post(CHAT, json={"messages": [SUM], "temperature": 0, **options})
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["message"]["content"] == "2 + 3 = 5."


#: Of a type that does not exist.
ODD_TOOL = {
    "type": "function",
    "function": {
        "name": "run",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "strange"}},
            "required": ["command"],
        },
    },
}


def test_a_tool_whose_schema_cannot_be_enforced(http: httpx.Client) -> None:
    body = {"messages": [SUM], "temperature": 0, "tools": [ODD_TOOL], "max_tokens": 60}
    assert http.post(CHAT, json=body).status_code == 200
    forced = http.post(CHAT, json={**body, "tool_choice": "required"})
    call = forced.json()["choices"][0]["message"]["tool_calls"][0]["function"]
    assert call["name"] == "run"
    assert [*json.loads(call["arguments"])] == ["command"]


def test_a_body_above_the_limit() -> None:
    """With a length that is declared, and with one that turns out."""
    with serving(demo_settings({"max_body_bytes": 5000})) as server, server.http() as http:

        def pieces() -> Iterator[bytes]:
            yield b'{"messages": "'
            for _ in range(100):
                yield b"x" * 100

        headers = {"content-type": "application/json"}
        for content in (b'{"a": "' + b"x" * 6000 + b'"}', pieces()):
            reply = http.post(CHAT, content=content, headers=headers)
            assert error_of(reply) == (413, "request_too_large", None)
            message = reply.json()["error"]["message"]
            assert not any(word in message for word in ("prompt", "context", "token"))
        assert http.post(CHAT, json={"messages": [SUM]}).status_code == 200


def test_a_custom_tool_of_a_chat_is_refused_in_words(http: httpx.Client) -> None:
    """It was left out, so that the model did not know what the client could do."""
    tools = [{"type": "custom", "custom": {"name": "x", "description": "y"}}]
    reply = http.post(CHAT, json={"messages": [SUM], "tools": tools})
    assert error_of(reply) == (501, "not_implemented", "tools[0]")
    assert "/v1/responses" in reply.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_are_an_empty_reply(http: httpx.Client, stream: bool) -> None:
    """``max_tokens: 0`` was no limit. The prompt is evaluated, and there for the next request."""
    for path, body in ((CHAT, {"messages": [SUM]}), (COMPLETION, {"prompt": "one two three"})):
        reply = http.post(path, json={**body, "max_tokens": 0, "stream": stream})
        assert reply.status_code == 200, reply.text
        if stream:
            chunks = [json.loads(line[6:]) for line in reply.text.split("\n\n")[:-2]]
            choices = [each for chunk in chunks for each in chunk["choices"]]
            texts = [each.get("text") or each.get("delta", {}).get("content") for each in choices]
            assert not any(texts)
            assert choices[-1]["finish_reason"] == "length"
            continue
        found = reply.json()
        (choice,) = found["choices"]
        assert choice["finish_reason"] == "length"
        assert not choice.get("text", choice.get("message", {}).get("content"))
        assert found["usage"]["completion_tokens"] == 0
        assert found["usage"]["prompt_tokens"] > 2
    limited = http.post(CHAT, json={"messages": [SUM], "max_completion_tokens": 0}).json()
    assert limited["usage"]["completion_tokens"] == 0


def test_a_strict_server() -> None:
    """And other settings of what a request may ask for."""
    chosen = {"strict": True, "overflow_status": 400, "max_choices": 1, "max_messages": 2}
    with serving(demo_settings(chosen)) as server, server.http() as http:
        good = {"messages": [SUM], "max_tokens": 1, "temperature": 0}
        assert http.post(CHAT, json=good).status_code == 200
        assert http.post(CHAT, json={**good, "tools": [ODD_TOOL]}).status_code == 400
        unknown = http.post(CHAT, json={**good, "temprature": 1})
        assert error_of(unknown) == (400, "unknown_parameter", "temprature")
        variables = {"chat_template_kwargs": {"mystery": 1}}
        unknown = http.post(CHAT, json={**good, **variables})
        assert error_of(unknown)[1:] == ("unknown_parameter", "chat_template_kwargs.mystery")
        endless = http.post(CHAT, json={**good, "chat_template_kwargs": {"n" * 100_000: 1}})
        assert len(endless.content) < 1000
        assert len(http.post(CHAT, json={**good, "n" * 100_000: 1}).content) < 1000
        assert error_of(http.post(CHAT, json={**good, "n": 2}))[2] == "n"
        assert error_of(http.post(CHAT, json={"messages": [SUM] * 3}))[2] == "messages"
        long = http.post(CHAT, json=user("one two three " * 3000))
        assert error_of(long) == (400, "context_length_exceeded", None)


def test_an_overflow_touches_nothing(http: httpx.Client) -> None:
    """Regressions 8 and 9: streaming or not, nothing is cut off, and the conversation goes on."""
    turn: list[dict[str, Any]] = [{"role": "user", "content": "Please repeat: red, blue, tree."}]
    options = {"temperature": 0, "session_id": "overflowing"}
    first = http.post(CHAT, json={"messages": turn, **options}).json()
    answer = first["choices"][0]["message"]
    for stream in (False, True):
        long = {"role": "user", "content": "one two three " * 3000}
        body = {"messages": [*turn, answer, long], "stream": stream, **options}
        assert error_of(http.post(CHAT, json=body)) == (413, "context_length_exceeded", None)
    messages = [*turn, answer, {"role": "user", "content": "What is 2 + 3?"}]
    again = http.post(CHAT, json={"messages": messages, **options}).json()
    known = first["usage"]["total_tokens"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= known - 1
    assert again["choices"][0]["message"]["content"] == "2 + 3 = 5."


def test_whoever_asks_for_another_path(http: httpx.Client) -> None:
    assert error_of(http.get("/v1/nothing")) == (404, "not_found", None)
    reply = http.get(CHAT)
    assert error_of(reply) == (405, "method_not_allowed", None)
    assert reply.headers["allow"] == "POST"
    assert http.post(f"{CHAT}?api-version=1", json={"messages": [SUM]}).status_code == 200


def test_a_reply_that_takes_too_long(http: httpx.Client) -> None:
    """What there was by then is counted, and a stream ends with the error."""
    body = {"messages": [SUM], "timeout": 1e-6}
    reply = http.post(CHAT, json=body)
    assert error_of(reply) == (504, "timeout", None)
    assert reply.json()["error"]["usage"]["prompt_tokens"] == 14
    frames = http.post(CHAT, json={**body, "stream": True}).text.split("\n\n")
    failed, error = (json.loads(frame.removeprefix("data: ")) for frame in frames[-4:-2])
    assert failed["choices"][0]["finish_reason"] == "error"
    assert error["error"]["code"] == "timeout"
    assert frames[-2] == "data: [DONE]"


def test_the_servers_limit_of_time() -> None:
    """It holds for every request, also for one that allows itself more."""
    with serving(demo_settings({"request_timeout": 1e-6})) as server, server.http() as http:
        for options in ({}, {"timeout": 60}):
            reply = http.post(CHAT, json={"messages": [SUM], **options})
            assert error_of(reply) == (504, "timeout", None)


def test_no_place_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """``queue_timeout``: who waits longer is told to come again."""
    slow_steps(monkeypatch, 0.02)  # a long reply takes half a minute
    with serving(demo_settings({"queue_timeout": 0.2}, n_seq_max=1)) as server:
        endless = {"messages": [SUM], "ignore_eos": True, "max_tokens": 1500}
        visitor = Visitor(server, CHAT, endless)
        until(lambda: visitor.record.started, "it has begun")
        with server.http() as http:
            reply = http.post(CHAT, json={"messages": [SUM]})
        assert error_of(reply) == (503, "server_is_overloaded", None)
        assert reply.headers["retry-after"]
        assert not visitor.record.reason
        visitor.leave()


def test_what_a_request_itself_takes_is_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prompt, or a slow machine, is no reason to be refused where nobody is in the way."""
    adapted = call_defaults.adapted

    def slowly(*arguments: Any) -> Any:
        time.sleep(0.4)
        return adapted(*arguments)

    monkeypatch.setattr(exchange, "adapted", slowly)
    slow_steps(monkeypatch, 0.02)  # a long reply takes half a minute
    with serving(demo_settings({"queue_timeout": 0.2}, n_seq_max=1)) as server:
        with server.http() as http:
            assert http.post(CHAT, json={"messages": [SUM], "max_tokens": 2}).status_code == 200
        endless = {"messages": [SUM], "ignore_eos": True, "max_tokens": 1500}
        visitor = Visitor(server, CHAT, endless)
        until(lambda: visitor.record.started, "it has begun")
        with server.http() as http:
            reply = http.post(CHAT, json={"messages": [SUM]})
        assert error_of(reply) == (503, "server_is_overloaded", None)
        visitor.leave()


def test_a_full_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_steps(monkeypatch)
    with serving(demo_settings(n_seq_max=1, max_waiting=1)) as server, server.http() as http:
        endless = {"messages": [SUM], "ignore_eos": True, "max_tokens": 1500}
        visitors = [Visitor(server, CHAT, endless) for _ in range(2)]
        until(lambda: all(each.exchange.records for each in visitors), "two are there")
        for stream in (False, True):
            reply = http.post(CHAT, json={"messages": [SUM], "stream": stream})
            assert error_of(reply) == (503, "server_is_overloaded", None)
            assert reply.headers["retry-after"] == "1"
        for visitor in visitors:
            visitor.leave()


def test_a_model_that_is_reset_meanwhile(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody in this process clears it: who is in the middle is told, and may come again."""
    slow_steps(monkeypatch)
    endless = {"messages": [SUM], "ignore_eos": True, "max_tokens": 1500, "stream": True}
    visitor = Visitor(server, CHAT, endless)
    until(lambda: len(visitor.record.generated) > 3, "it generates")
    server.service.models.models[0].llama.reset(cancel=True)
    assert b'"code":"unavailable"' in visitor.read_until(b"[DONE]")
    visitor.leave()


def test_alice_and_bob() -> None:
    """Regression 7: a session is what a request names, and no message; what one key evaluated is
    not reused for another."""
    keys = {"api_keys": (ApiKey("alice", "key-of-alice"), ApiKey("bob", "key-of-bob"))}
    secret = {"messages": [{"role": "user", "content": "My number is 17. Count from 1 to 5."}]}

    def cached(http: httpx.Client, key: str, body: dict[str, Any]) -> int:
        headers = {"authorization": f"Bearer {key}"}
        usage = http.post(CHAT, json={"max_tokens": 1, **body}, headers=headers).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    with serving(demo_settings(keys)) as server, server.http() as http:
        assert cached(http, "key-of-alice", secret) == 0
        assert cached(http, "key-of-bob", {**secret, "user": "alice"}) == 0
        assert cached(http, "key-of-alice", {**secret, "user": "bob"}) > 10
        assert cached(http, "key-of-bob", secret) > 10
    with serving(demo_settings({**keys, "share_prefixes": True})) as server, server.http() as http:
        assert cached(http, "key-of-alice", secret) == 0
        assert cached(http, "key-of-bob", secret) > 10


# ---- anything at all ---------------------------------------------------------------------------

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
message = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "system", "tool", "developer"]) | values,
        "content": st.text(max_size=20) | values,
        "tool_calls": values,
        "tool_call_id": values,
        "name": values,
        "reasoning_content": values,
    },
)
#: All options but those that make a reply long.
FIELDS = sorted(
    {*CHAT_OPTIONS.options, *COMPLETION_OPTIONS.options, "return_progress", "return_token_ids"}
    - {"max_tokens", "max_completion_tokens", "timeout"}
)
body = st.fixed_dictionaries(
    {
        "messages": st.just([SUM]) | st.lists(message, max_size=3) | values,
        "prompt": st.text(max_size=20) | values,
    },
    optional=dict.fromkeys(FIELDS, values),
)


def check_any(http: httpx.Client, body: dict[str, Any]) -> None:
    """It is answered, or refused in OpenAI's form; and nothing else."""
    for path in (CHAT, COMPLETION):
        # Surrogates cannot be sent by this client, and have a test of their own.
        data = json.dumps({"max_tokens": 2, "timeout": 20, **body}).encode()
        reply = http.post(path, content=data, headers={"content-type": "application/json"})
        assert reply.status_code in (200, 400, 413), (body, reply.text)
        if reply.status_code != 200:
            error_of(reply)
        elif "error" in reply.text:
            assert '"code":"server_error"' not in reply.text, (body, reply.text)


@settings(max_examples=25, deadline=None, suppress_health_check=[*HealthCheck])
@given(body=body)
def test_any_body(http: httpx.Client, body: dict[str, Any]) -> None:
    check_any(http, body)


@pytest.mark.long
@settings(max_examples=2500, deadline=None, suppress_health_check=[*HealthCheck])
@given(body=body)
def test_thousands_of_bodies(http: httpx.Client, body: dict[str, Any]) -> None:
    check_any(http, body)
