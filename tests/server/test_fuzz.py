"""Whatever a body contains: no crash, no hang, and errors in the dialect of the path.

Bodies come from ``/openapi.json`` (schemathesis), those that it allows and those that it does not,
and from requests that work, in which one value is replaced (Hypothesis).
"""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from llama_py.server.app import routes_of
from llama_py.server.operations import Operations
from tests.patience import PATIENCE
from tests.server.serving import Server, demo_settings, serving

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis import GenerationMode

OPERATIONS = Operations(routes_of(demo_settings())).described
#: Bodies of the description for each operation, of which schemathesis makes two in a second.
FEW_DESCRIBED, MANY_DESCRIBED = 4, 50
#: Bodies with a wrong value.
FEW, MANY = 250, 5_000
SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
SLOW += [HealthCheck.large_base_example]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One that gives up on long replies."""
    limits = {"request_timeout": 0.3, "drain_seconds": 0.0}
    with serving(demo_settings(limits, n_ctx=512)) as server:
        yield server


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        yield client


def check(path: str, reply: httpx.Response) -> None:
    """A reply is a success, or an error that is the client's, in the dialect of the path."""
    assert reply.status_code != 500, reply.text
    if reply.status_code < 400:
        return
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    if path.startswith("/api/"):
        assert isinstance(body["error"], str)
        assert "Traceback" not in reply.text
        return
    error = body["error"]
    assert isinstance(error["message"], str)
    assert error["message"]
    assert "Traceback" not in reply.text
    if path.startswith("/v1/messages"):
        assert body["type"] == "error"
        assert {"type", "message"} <= error.keys()
    else:
        assert {"type", "code"} <= error.keys()


def check_stream(reply: httpx.Response) -> None:
    kind = reply.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        assert "server_error" not in reply.text
    if kind == "application/x-ndjson":
        assert all(isinstance(json.loads(line), dict) for line in reply.text.splitlines())


# -- bodies of the description ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def described(server: Server) -> Any:
    """The description, as schemathesis reads it."""
    return schemathesis.openapi.from_dict(httpx.get(f"{server.url}/openapi.json").json())


def send_some(http: httpx.Client, operation: Any, mode: Any, examples: int) -> None:
    """Requests that the description allows, or others."""

    @few_or_many(examples)
    @given(operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        reply = http.request(**request_of(case))
        check(operation.path, reply)
        check_stream(reply)

    try:
        send()
    except Unsatisfiable:  # nothing about it can be wrong
        assert mode is GenerationMode.NEGATIVE, "nothing that it allows was sent"


def few_or_many(examples: int) -> settings:
    """Always the same few ones, or many that are new each time."""
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=SLOW,
        database=None,
        derandomize=examples in (FEW, FEW_DESCRIBED),
    )


def request_of(case: Any) -> dict[str, Any]:
    sent = case.as_transport_kwargs(base_url="http://x")
    request = {name: sent.get(name) for name in ("method", "params", "headers", "json")}
    body = sent.get("data")
    content = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    return {**request, "url": httpx.URL(sent["url"]).raw_path.decode(), "content": content}


@pytest.mark.parametrize("path", [each.paths[0] for each in OPERATIONS if each.events])
def test_bodies_that_are_described(described: Any, http: httpx.Client, path: str) -> None:
    send_some(http, described[path]["POST"], GenerationMode.POSITIVE, FEW_DESCRIBED)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("way", [f"{each.method} {each.paths[0]}" for each in OPERATIONS])
def test_many_bodies_that_are_described(
    described: Any, http: httpx.Client, way: str, mode: Any
) -> None:
    method, path = way.split()
    send_some(http, described[path][method], mode, MANY_DESCRIBED)


# -- bodies that work, but for one value -----------------------------------------------------------

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
CHAT = {
    "model": "demo",
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "1"},
        {"role": "user", "content": "Go on."},
    ],
    "tools": [TOOL],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
    "logit_bias": {"3": 1.5},
    "stop": ["x"],
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "top_logprobs": 2,
    "temperature": 0.5,
    "max_tokens": 3,
    "stream": False,
    "n": 2,
}
PLAIN = {name: CHAT[name] for name in ("messages", "temperature", "max_tokens", "stop", "n")}
COMPLETION = {
    "prompt": ["Hello", "you"],
    "max_tokens": 3,
    "echo": True,
    "logprobs": 2,
    "best_of": 2,
    "stop": "x",
    "grammar": 'root ::= "a"+',
    "samplers": ["top_k"],
    "dry_sequence_breakers": ["x"],
}
MESSAGES = {
    "model": "demo",
    "max_tokens": 3,
    "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "Hello"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "text", "text": "Hi"},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "content": [{"type": "text", "text": "1"}],
                },
            ],
        },
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 3},
    "stop_sequences": ["x"],
    "metadata": {"user_id": "me"},
}
RESPONSES = {
    "model": "demo",
    "instructions": "Be kind.",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
        {"type": "reasoning", "summary": [], "content": [], "encrypted_content": None},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ],
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
    "tool_choice": "auto",
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"format": {"type": "json_schema", "name": "x", "schema": {}}},
    "include": ["reasoning.encrypted_content"],
    "max_output_tokens": 3,
    "store": False,
}
OLLAMA = {
    "model": "demo",
    "messages": [
        {"role": "user", "content": "Hello"},
        {
            "role": "assistant",
            "thinking": "hm",
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "tool_name": "f", "content": "1"},
    ],
    "tools": [TOOL],
    "think": False,
    "keep_alive": "5m",
    "options": {"num_ctx": 512, "num_predict": 3, "temperature": 0.5, "stop": ["x"]},
    "stream": False,
}
GENERATE = {
    "model": "demo",
    "prompt": "Hello",
    "system": "Be kind.",
    "format": "json",
    "options": {"num_predict": 3},
}
RAW = {"logprobs": True, "top_logprobs": 2, "stream": False, "options": {"num_predict": 3}}
NATIVE = {"prompt": "Hello", "n_predict": 3, "n_probs": 2, "samplers": ["top_k"], "stop": ["x"]}
RULED = {"prompt": "Hello", "n_predict": 3, "json_schema": {"type": "object"}}
BODIES: dict[str, list[Mapping[str, Any]]] = {
    "/v1/chat/completions": [CHAT, PLAIN, {**PLAIN, "stream": True}],
    "/v1/chat/completions/input_tokens": [CHAT],
    "/v1/completions": [COMPLETION, {**COMPLETION, "stream": True, "best_of": None}],
    "/v1/messages": [MESSAGES, {**MESSAGES, "stream": True}],
    "/v1/messages/count_tokens": [MESSAGES],
    "/v1/responses": [RESPONSES, {**RESPONSES, "stream": True}],
    "/v1/responses/input_tokens": [RESPONSES],
    "/api/chat": [OLLAMA, {**OLLAMA, "stream": True}],
    "/api/generate": [GENERATE, {"model": "demo", "prompt": "Hello", "raw": True, **RAW}],
    "/completion": [NATIVE, RULED],
    "/infill": [{"input_prefix": "a", "input_suffix": "b", "n_predict": 3}],
    "/tokenize": [{"content": ["a", 3], "with_pieces": True}],
    "/detokenize": [{"tokens": [3, 4]}],
    "/apply-template": [{"messages": CHAT["messages"], "tools": [TOOL]}],
}

EDGES = [0, -1, 2**31, -(2**31), 2**53, 2**63, 2**64, 10**400, 0.0, 1e308, -1e308, 1e-320, True]
TEXTS = ["", "\0", "\ud800", "é" * 3, "<|im_end|>", "{" * 50, "a" * 5000, "../x", "none", "auto"]
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, *EDGES, *TEXTS]) | st.text(max_size=8) | st.integers() | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "text", "content", "role", "$ref", "items", "name", "x"]),
            inner,
        )
    ),
    max_leaves=6,
)


PATTERNS = ["^a+$", "[", "(a|b){3,900}", "\\d{4}", "a{2000}", "(?=x)", "^(((a*)*)*)$", "[\ud800]"]
GRAMMARS = ['root ::= "a"', "root ::= root", "root ::= (", 'root ::= "a"{1,99999}', "x ::= [^", ""]


def schemas() -> st.SearchStrategy[Any]:
    """JSON schemas, of which some are none."""
    kinds = st.sampled_from(["object", "array", "string", "integer", "number", "null", "x", 3])
    small = st.integers(-2, 9) | st.sampled_from(EDGES)
    plain = st.fixed_dictionaries(
        {},
        optional={
            "type": kinds | st.lists(kinds, max_size=2),
            "pattern": st.sampled_from(PATTERNS),
            "format": st.sampled_from(["date", "uuid", "email", "x"]),
            "enum": st.lists(VALUES, max_size=3),
            "const": VALUES,
            "minLength": small,
            "maxLength": small,
            "minimum": small,
            "maximum": small,
            "minItems": small,
            "maxItems": small,
            "$ref": st.sampled_from(["#", "#/$defs/a", "#/x", "http://127.0.0.1:9/x", "file:///"]),
        },
    )
    return st.recursive(
        plain | VALUES,
        lambda inner: st.fixed_dictionaries(
            {},
            optional={
                "type": kinds,
                "properties": st.dictionaries(st.sampled_from(["a", "b", ""]), inner, max_size=2),
                "required": st.lists(st.sampled_from(["a", "c"]), max_size=2),
                "additionalProperties": inner,
                "items": inner,
                "prefixItems": st.lists(inner, max_size=2),
                "anyOf": st.lists(inner, max_size=2),
                "allOf": st.lists(inner, max_size=2),
                "not": inner,
                "$defs": st.dictionaries(st.just("a"), inner, max_size=1),
            },
        ),
        max_leaves=4,
    )


def like(value: Any) -> st.SearchStrategy[Any]:
    """Values of the same kind, which get further than others."""
    if isinstance(value, str):
        return st.sampled_from(TEXTS) | st.text(max_size=8)
    if isinstance(value, bool) or value is None:
        return st.booleans() | st.none()
    if isinstance(value, (int, float)):
        return st.integers(-2, 30) | st.sampled_from(EDGES)
    return schemas() if isinstance(value, dict) else st.lists(VALUES, max_size=3)


#: Where a schema or a grammar stands.
RULES = {"parameters", "input_schema", "schema", "json_schema", "grammar"}


def replacement(name: Any, value: Any) -> st.SearchStrategy[Any]:
    if name in RULES:
        return st.sampled_from(GRAMMARS) if isinstance(value, str) else schemas()
    return like(value) | like(value) | VALUES


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value inside of one."""
    inner: Any = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value) if isinstance(value, list) else inner
    for key, each in inner:
        yield (*way, key)
        yield from places(each, (*way, key))


@st.composite
def changed(draw: st.DrawFn) -> tuple[str, str]:
    """A path, and the JSON of a body in which one value or two are not what they should be."""
    path = draw(st.sampled_from(sorted(BODIES)))
    body: Any = copy.deepcopy(dict(draw(st.sampled_from(BODIES[path]))))
    for _ in range(draw(st.sampled_from([1, 1, 2]))):
        *way, last = draw(st.sampled_from([*places(body)]))
        holder = body
        for key in way:
            holder = holder[key]
        if way or draw(st.sampled_from([True, True, True, False])):
            holder[last] = draw(replacement(last, holder[last]))
        elif len(body) > 2:
            body.pop(last)
    return path, json.dumps(body)


def change_bodies(http: httpx.Client, examples: int) -> None:
    @few_or_many(examples)
    @given(changed())
    def send(request: tuple[str, str]) -> None:
        path, body = request
        headers = {"Content-Type": "application/json"}
        reply = http.post(path, content=body.encode("utf-8", "surrogatepass"), headers=headers)
        check(path, reply)
        check_stream(reply)

    send()


def test_bodies_with_a_wrong_value(http: httpx.Client) -> None:
    change_bodies(http, FEW)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_bodies_with_a_wrong_value(http: httpx.Client) -> None:
    change_bodies(http, MANY)


# -- bodies that are none --------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(BODIES))
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b"{}", b"\xff\xfe", b'{"a": NaN}', b"[" * 300, b'{"a":1}x'],
)
def test_bodies_that_are_no_objects(http: httpx.Client, path: str, body: bytes) -> None:
    reply = http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code in (400, 501)  # the model cannot fill in
    check(path, reply)


def test_the_server_is_well(server: Server, http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "temperature": 0}
    reply = http.post("/v1/chat/completions", json=body).json()
    assert reply["choices"][0]["message"]["content"] == "2 + 3 = 5."
    assert not server.service.exchanges
    assert math.isfinite(reply["usage"]["total_tokens"])
