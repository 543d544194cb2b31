"""What goes wrong is said in Anthropic's form, and leaves nothing behind."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llama_py.api.runtime import Calls
from llama_py.engine.request import Prompt
from llama_py.server.access.keys import ApiKey
from tests.patience import PATIENCE
from tests.server.claude_code import PICTURE, TOOLS
from tests.server.leaving import Visitor, until
from tests.server.serving import Server, demo_settings, serving

HELLO = [{"role": "user", "content": "Hello."}]
#: A text that takes hundreds of tokens, and is not finished before.
LONG_TEXT = {
    "format": {
        "type": "json_schema",
        "schema": {
            "type": "object",
            "properties": {"a": {"type": "string", "minLength": 60_000}},
            "required": ["a"],
        },
    }
}
VERSION = {"anthropic-version": "2023-06-01"}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "any", "max_tokens": 8, "messages": HELLO, "temperature": 0, **fields}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(demo_settings({"max_body_bytes": 200_000}, n_ctx=1024, n_seq_max=2)) as server:
        yield server


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    with serving(demo_settings(n_ctx=512, n_seq_max=2)) as server:
        yield server


def post(server: Server, sent: Any, path: str = "/v1/messages", **headers: str) -> Any:
    with server.http() as http:
        return post_with(http, sent, path, **headers)


def post_with(http: Any, sent: Any, path: str, **headers: str) -> Any:
    data = sent if isinstance(sent, bytes) else json.dumps(sent)
    return http.post(
        path, content=data, headers={**VERSION, "content-type": "application/json", **headers}
    )


def error_of(response: Any, status: int, kind: str) -> str:
    """The message of an error, whose form is checked."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    told = response.json()
    assert told.keys() == {"type", "error", "request_id"}
    assert told["type"] == "error"
    assert told["error"]["type"] == kind
    assert told["request_id"] == response.headers["request-id"]
    message = told["error"]["message"]
    assert message
    assert "/opt/" not in message
    assert "Traceback" not in message
    return str(message)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (b"", "the body is empty"),
        (b"{", "the body is not JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"messages": "\xff"}', "not UTF-8"),
        ({}, "messages is missing"),
        (body(messages=[{"role": "boss", "content": "x"}]), r"messages\[0\].role is 'boss'"),
        (body(max_tokens=-2), "max_tokens=-2"),
        (body(model=7), "model must be a string"),
        (body(tools=[{"name": "f", "input_schema": 3}]), r"tools\[0\].input_schema must be"),
        (body(tool_choice={"type": "tool", "name": "g"}, tools=TOOLS), "tool_choice names 'g'"),
        (body(output_config={"format": {"type": "json_schema", "schema": {"enum": []}}}), "enum"),
        (body(messages=[{"role": "user", "content": [PICTURE]}]), "add a text"),
    ],
)
def test_mistakes_are_400(server: Server, stream: bool, sent: Any, complaint: str) -> None:
    if isinstance(sent, dict):
        sent = {**sent, "stream": stream}
    message = error_of(post(server, sent), 400, "invalid_request_error")
    assert re.search(complaint, message), message


def test_conversations_that_the_server_is_to_hold(server: Server) -> None:
    """Anthropic's client knows this code, and sends the conversation as a whole then."""
    response = post(server, body(thread={"type": "create"}))
    assert "send all messages" in error_of(response, 400, "invalid_request_error")
    assert response.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}


def test_paths_methods_and_types(server: Server) -> None:
    error_of(post(server, body(), "/v1/messages/batches"), 404, "not_found_error")
    with server.http() as http:
        response = http.get("/v1/messages")
    assert response.headers["allow"] == "POST"
    error_of(response, 405, "invalid_request_error")
    error_of(post(server, body(), **{"content-type": "text/plain"}), 415, "invalid_request_error")


def test_models_in_the_form_of_anthropic(server: Server) -> None:
    with server.http(headers=VERSION) as http:
        error_of(http.get("/v1/models?limit=0"), 400, "invalid_request_error")
        error_of(http.delete("/v1/models"), 405, "invalid_request_error")
    with server.http() as http:
        for limit in ("0", "", "1001", "-1", "000000001" + "0" * 4999):
            refused = http.get("/v1/models", params={"limit": limit})
            assert refused.json()["error"]["code"] == "invalid_value", limit[:9]
        assert http.get("/v1/models?limit=0000000001000").status_code == 200
    with serving(demo_settings({"api_keys": (ApiKey("one", "secret"),)})) as closed:
        for asked in (
            {"headers": VERSION},
            {"headers": {**VERSION, "x-api-key": "another"}},
        ):
            with closed.http(**asked) as http:
                error_of(http.get("/v1/models"), 401, "authentication_error")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_a_body_that_is_too_large(server: Server, path: str) -> None:
    """Clients take "prompt", "context" and "token" for a conversation that is too long."""
    response = post(server, body(system="x" * 300_000), path)
    message = error_of(response, 413, "request_too_large")
    assert not re.search("prompt|context|token", message)


@pytest.mark.parametrize("stream", [True, False])
def test_a_conversation_that_is_too_long(server: Server, stream: bool) -> None:
    """The words by which agents see that they have to shorten it."""
    long = [{"role": "user", "content": "word " * 3000}]
    counted = post(server, body(messages=long), "/v1/messages/count_tokens").json()["input_tokens"]
    response = post(server, body(messages=long, stream=stream))
    message = error_of(response, 400, "invalid_request_error")
    match = re.match(r"prompt is too long: (\d+) tokens > (\d+) maximum; ", message)
    assert match is not None
    assert int(match[1]) == counted
    assert int(match[2]) <= 1024
    assert "exceeds the context window" in message
    assert "exceeds the available context size" in message
    with server.anthropic() as client, pytest.raises(anthropic.BadRequestError, match="too long"):
        client.messages.create(model="any", max_tokens=8, messages=long, stream=stream)


def test_a_conversation_that_was_not_counted(server: Server) -> None:
    """It is too long in any case; what is known is said behind the words that agents know."""
    endless = [{"role": "user", "content": "word " * 30_000}]
    message = error_of(post(server, body(messages=endless)), 400, "invalid_request_error")
    match = re.match(r"prompt is too long: (\d+) tokens > (\d+) maximum; it exceeds", message)
    assert match is not None
    assert f"; it has at least {match[1]} tokens, and was not counted further" in message
    counted = post(server, body(messages=endless), "/v1/messages/count_tokens").json()
    assert counted["input_tokens"] > int(match[1])


def test_counting_endless_conversations_keeps_nobody_waiting(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, begun = threading.Event(), threading.Semaphore(0)
    tokens_of = Calls.tokens_of

    def slowly(calls: Calls, prompt: Prompt) -> list[int]:
        begun.release()
        assert counting.wait(PATIENCE)
        return tokens_of(calls, prompt)

    monkeypatch.setattr(Calls, "tokens_of", slowly)
    endless = body(messages=[{"role": "user", "content": "word " * 30_000}])
    with ThreadPoolExecutor(6) as threads:
        path = "/v1/messages/count_tokens"
        counts = [threads.submit(post, server, endless, path) for _ in range(6)]
        assert begun.acquire(timeout=PATIENCE)
        try:
            assert post(server, body()).status_code == 200
            assert not any(each.done() for each in counts)
        finally:
            counting.set()
        assert {each.result().status_code for each in counts} == {200}


def test_the_end_of_the_window_is_no_error(small: Server) -> None:
    long = [{"role": "user", "content": "word " * 200}]
    told = post(small, body(max_tokens=32_000, messages=long, output_config=LONG_TEXT)).json()
    assert told["stop_reason"] == "max_tokens"
    usage = told["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"] > 500


@pytest.mark.parametrize("stream", [True, False])
def test_keys(stream: bool) -> None:
    keys = (ApiKey("ann", "sk-ann", frozenset({"chat"})), ApiKey("root", "sk-r", frozenset()))
    with serving(demo_settings({"api_keys": keys})) as server:
        sent = body(stream=stream)
        error_of(post(server, sent), 401, "authentication_error")
        error_of(post(server, sent, **{"x-api-key": "no"}), 401, "authentication_error")
        error_of(post(server, sent, **{"x-api-key": "sk-r"}), 403, "permission_error")
        assert post(server, sent, **{"x-api-key": "sk-ann"}).status_code == 200
        assert post(server, sent, authorization="Bearer sk-ann").status_code == 200


def test_one_key_does_not_profit_from_another(server: Server) -> None:
    keys = (ApiKey("ann", "sk-ann"), ApiKey("bob", "sk-bob"))
    with serving(demo_settings({"api_keys": keys})) as own:
        sent = body(messages=[{"role": "user", "content": "The secret is 42. What is it?"}])
        cached = [
            post(own, sent, **{"x-api-key": key}).json()["usage"]["cache_read_input_tokens"]
            for key in ("sk-ann", "sk-bob", "sk-ann")
        ]
        assert cached[0] == cached[1] == 0
        assert cached[2] > 10


def test_the_time_limit() -> None:
    """Whole replies get a status, streams an event; both are free for the next."""
    limited = demo_settings({"request_timeout": 0.3}, n_ctx=32_768)
    sent = body(max_tokens=30_000, output_config=LONG_TEXT)
    with serving(limited) as server:
        error_of(post(server, sent), 504, "timeout_error")
        response = post(server, {**sent, "stream": True})
        assert response.status_code == 200
        name, data = response.text.strip().split("\n\n")[-1].split("\n")
        assert name == "event: error"
        told = json.loads(data.removeprefix("data: "))
        assert told["error"]["type"] == "timeout_error"
        assert told["request_id"] == response.headers["request-id"]
        with server.anthropic() as client, pytest.raises(anthropic.APIStatusError, match="time"):
            for _ in client.messages.create(stream=True, **sent_by_client(sent)):
                pass
        again = post(server, {**sent, "max_tokens": 2}).json()
        assert again["usage"]["input_tokens"] == 1


def sent_by_client(sent: dict[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in sent.items() if name != "temperature"}
    return {**known, "extra_body": {"temperature": 0}}


# ---- waiting -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def busy() -> Iterator[Server]:
    """A server with one place, which somebody has, and one to wait in."""
    options = {"n_ctx": 16_384, "n_seq_max": 1, "max_waiting": 1}
    with serving(demo_settings({"ping_interval": 0.1}, **options)) as server:
        holder = Visitor(server, "/v1/messages", body(max_tokens=16_000, output_config=LONG_TEXT))
        until(lambda: holder.record.generated, "it generates")
        yield server
        holder.leave()


def test_a_stream_begins_and_pings_while_it_waits_for_its_turn(busy: Server) -> None:
    visitor = Visitor(busy, "/v1/messages", body(stream=True))
    told = visitor.read_until(b'event: ping\ndata: {"type":"ping"}\n\n')
    assert b"event: message_start" in told
    for _ in range(3):
        visitor.read_until(b"event: ping")
    assert not visitor.record.started
    visitor.leave()
    visitor.wait_for_the_end()


@pytest.mark.parametrize("stream", [True, False])
def test_a_full_queue(busy: Server, stream: bool) -> None:
    waiting = Visitor(busy, "/v1/messages", body())
    assert waiting.record
    response = post(busy, body(stream=stream))
    assert "overloaded" in error_of(response, 529, "overloaded_error")
    assert int(response.headers["retry-after"]) >= 1
    counted = post(busy, body(), "/v1/messages/count_tokens")
    assert counted.json()["input_tokens"] > 0  # who only counts does not wait
    waiting.leave()
    waiting.wait_for_the_end()


# ---- leaving -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_frees_the_sequence_and_finds_the_prompt_again(
    server: Server, stream: bool
) -> None:
    question = [{"role": "user", "content": f"Tell me more about it, {stream}. " * 20}]
    sent = body(messages=question, max_tokens=900, output_config=LONG_TEXT)
    visitor = Visitor(server, "/v1/messages", {**sent, "stream": stream})
    until(lambda: len(visitor.record.generated) > 3, "it generates")
    visitor.leave()
    visitor.wait_for_the_end()
    assert visitor.record.reason == "cancelled"
    assert len(visitor.record.generated) < 500
    again = post(server, {**sent, "max_tokens": 2, "stream": False}).json()
    assert again["usage"]["input_tokens"] == 1


def test_pings_keep_a_silent_stream_alive() -> None:
    """Hidden thinking is silent, and so is a call whose argument is long."""
    settings = demo_settings({"ping_interval": 0.1}, n_ctx=4096)
    write = next(tool for tool in TOOLS if tool["name"] == "Write")
    sent = body(tools=[write], tool_choice={"type": "any"}, stream=True)
    with serving(settings) as server:
        for tokens in (100, 400, 1600):  # whatever is long enough on this machine
            frames = post(server, {**sent, "max_tokens": tokens}).text.split("\n\n")
            pings = [i for i, frame in enumerate(frames) if frame.startswith("event: ping")]
            start = next(i for i, frame in enumerate(frames) if '"tool_use"' in frame)
            assert pings[0] == 1
            if pings[-1] > start:
                return
    raise AssertionError("there was no ping in the silence")


# ---- any body ------------------------------------------------------------------------------------

SCRAPS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["text", "tool_use", "tool_result", "image", "thinking", "auto", "any"])
    | st.sampled_from(["user", "assistant", "system", "enabled", "object", "\ud800", "<|im_end|>"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "id", "name", "content", "x"]), inner)
    ),
    max_leaves=6,
)
SOUND: dict[str, Any] = {
    "model": "any",
    "max_tokens": 3,
    "stream": False,
    "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "What is the weather?"}, PICTURE]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "", "signature": "llama-py:SG0="},
                {"type": "tool_use", "id": "toolu_a", "name": "Bash", "input": {"command": "ls"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_a", "content": "sunny"}],
        },
        {"role": "system", "content": "Be brief."},
    ],
    "tools": [
        {
            "name": "Bash",
            "description": "Runs it.",
            "input_schema": {
                "type": "object",
                "properties": {"command": {"type": "string", "pattern": "^[a-z]+$"}},
                "required": ["command"],
            },
        }
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "stop_sequences": ["END"],
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 20,
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low"},
    "metadata": {"user_id": '{"session_id": "s"}'},
}


@st.composite
def changed(draw: st.DrawFn) -> dict[str, Any]:
    """A sound body with something else in a few places, and something missing in others."""
    sent = json.loads(json.dumps(SOUND))
    for _ in range(draw(st.integers(1, 3))):
        node: Any = sent
        while True:
            keys = [*(node if isinstance(node, dict) else range(len(node)))]
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(node[key], (dict, list)) and node[key] and draw(st.integers(0, 3)):
                node = node[key]
                continue
            if draw(st.integers(0, 3)):
                node[key] = draw(SCRAPS)
            else:
                del node[key]
            break
    return dict(sent)


def check_any(http: Any, sent: dict[str, Any], path: str) -> None:
    response = post_with(http, sent, path)
    if response.status_code == 200:
        if sent.get("stream") is True and path == "/v1/messages":
            assert response.text.rstrip().endswith('data: {"type":"message_stop"}')
        else:
            assert "error" not in response.json()
        return
    assert 400 <= response.status_code < 500, (sent, response.text)
    error_of(response, response.status_code, "invalid_request_error")


@pytest.fixture(scope="module")
def http(small: Server) -> Iterator[Any]:
    with small.http() as client:
        yield client


QUICK = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@QUICK
@given(sent=changed())
def test_any_body_is_answered(http: Any, path: str, sent: dict[str, Any]) -> None:
    check_any(http, sent, path)


@pytest.mark.long
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@settings(QUICK, max_examples=3000)
@given(sent=changed() | st.dictionaries(st.sampled_from([*SOUND]), SCRAPS))
def test_any_of_many_bodies_is_answered(http: Any, path: str, sent: dict[str, Any]) -> None:
    check_any(http, sent, path)
