"""What goes over the wire, byte by byte: the order of frames, and what each of them has."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import httpx
import pytest

from llama_py.server.transport.event_stream import EventStream
from tests.responses_streams import check, events_of
from tests.server.leaving import Visitor, joined_chunks, until
from tests.server.serving import Server, demo_settings, serving
from tests.server.test_openai_client import TOOLS, WEATHER
from tests.slowness import slow_steps

SUM = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "temperature": 0}
STREAM = {**SUM, "stream": True}


def frames_of(server: Server, path: str, body: dict[str, Any]) -> list[Any]:
    """The data of each event; the last one is text."""
    with server.http() as http:
        reply = http.post(path, json=body)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in reply.headers
    events = reply.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def masked(frames: list[Any]) -> list[str]:
    """Frames without what differs each time, as JSON."""
    ids = {(frame["id"], frame["created"], frame["model"]) for frame in frames}
    assert len(ids) == 1  # the same in all of them
    for frame in frames:
        assert re.fullmatch(r"(chat)?cmpl-[0-9a-f-]{36}", frame.pop("id"))
        assert abs(frame.pop("created") - time.time()) < 600
        assert frame.pop("model") == "demo"
        assert re.fullmatch(r"b[1-9]\d*-llama_py-.+", frame.pop("system_fingerprint"))
        for choice in frame["choices"]:
            for call in choice.get("delta", {}).get("tool_calls", ()):
                if "id" in call:
                    call["id"] = "ID"
        if "timings" in frame:
            frame["timings"] = sorted(frame["timings"])
    return [json.dumps(frame, separators=(",", ":")) for frame in frames]


TIMINGS = (
    '"timings":["cache_n","predicted_ms","predicted_n","predicted_per_second",'
    '"predicted_per_token_ms","prompt_ms","prompt_n","prompt_per_second","prompt_per_token_ms"]'
)


def chunk(delta: str, finish: str = "null", rest: str = "") -> str:
    """A chunk with one choice."""
    return (
        '{"object":"chat.completion.chunk","choices":[{"index":0,"delta":'
        f'{delta},"logprobs":null,"finish_reason":{finish}}}]{rest}}}'
    )


def test_a_chat(server: Server) -> None:
    assert masked(frames_of(server, "/v1/chat/completions", STREAM)) == [
        chunk('{"role":"assistant","content":null}'),
        *(chunk(f'{{"content":"{text}"}}') for text in ("2", " +", " 3", " =", " 5", ".")),
        chunk("{}", '"stop"', f",{TIMINGS}"),
    ]


def test_usage_is_the_last_chunk(server: Server) -> None:
    body = {**STREAM, "stream_options": {"include_usage": True, "include_obfuscation": False}}
    frames = frames_of(server, "/v1/chat/completions", body)
    assert [frame["usage"] for frame in frames[:-1]] == [None] * (len(frames) - 1)
    last = frames[-1]
    assert last["choices"] == []
    cached = last["usage"].pop("prompt_tokens_details")
    assert cached.keys() == {"cached_tokens"}
    assert last["usage"] == {"prompt_tokens": 14, "completion_tokens": 6, "total_tokens": 20}
    assert last["timings"]["predicted_n"] == 6, "clients read the last chunk"


def test_usage_that_nobody_asked_for_is_counted_all_the_same(server: Server) -> None:
    """Regression 27."""
    frames = frames_of(server, "/v1/chat/completions", STREAM)
    assert not any("usage" in frame for frame in frames)
    assert frames[-1]["timings"]["predicted_n"] == 6


def test_a_tool_call(server: Server) -> None:
    body = {"messages": [WEATHER], "tools": TOOLS, "temperature": 0, "stream": True}
    first, *parts, last = frames_of(server, "/v1/chat/completions", body)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "tool_calls"
    calls = [each["choices"][0]["delta"]["tool_calls"][0] for each in parts]
    assert calls[0].keys() == {"index", "id", "type", "function"}
    assert calls[0]["function"]["name"] == "get_weather"
    assert all(call.keys() == {"index", "function"} for call in calls[1:])
    assert all(call["index"] == 0 for call in calls)
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert json.loads(arguments) == {"city": "Paris"}


def test_a_completion(server: Server) -> None:
    body = {"prompt": "one two", "max_tokens": 2, "temperature": 0, "stream": True}
    frames = frames_of(server, "/v1/completions", body)
    texts = [frame["choices"][0].pop("text") for frame in frames]
    rest = '"index":0,"logprobs":null,"finish_reason":'
    assert masked(frames) == [
        f'{{"object":"text_completion","choices":[{{{rest}null}}]}}',
        f'{{"object":"text_completion","choices":[{{{rest}null}}]}}',
        f'{{"object":"text_completion","choices":[{{{rest}"length"}}],{TIMINGS}}}',
    ]
    with server.http() as http:
        whole = http.post("/v1/completions", json={**body, "stream": False}).json()
    assert "".join(texts) == whole["choices"][0]["text"]


def test_progress_of_a_prompt() -> None:
    """Only for who asks, and with what was there before."""
    body = {**STREAM, "return_progress": True, "max_tokens": 2}
    body["messages"] = [{"role": "user", "content": "one two three " * 300}]
    with serving(demo_settings(n_batch=32, n_ubatch=32)) as server:
        frames = frames_of(server, "/v1/chat/completions", body)
        told = [frame["prompt_progress"] for frame in frames if "prompt_progress" in frame]
        again = frames_of(server, "/v1/chat/completions", body)
    assert len(told) > 1
    done = [each["processed"] for each in told]
    assert done == sorted(done)
    assert done[-1] == told[-1]["total"]
    assert (done[0], len(done)) == (0, 2 + (done[-1] - 1) // 32), "the first one before anything"
    assert [each["cache"] for each in told] == [0] * len(told)
    assert all(each.keys() == {"total", "cache", "processed", "time_ms"} for each in told)
    told = [each["prompt_progress"] for each in again if "prompt_progress" in each]
    assert [each["cache"] for each in told] == [told[0]["total"] - 1] * 2
    assert [each["processed"] for each in told] == [told[0]["total"] - 1, told[0]["total"]]


def test_progress_of_a_prompt_that_is_there_before_anybody_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop is busy until the reply is complete: its first frames are still in order."""
    begin = EventStream.begin

    async def busily(self: EventStream, frames: bytes) -> None:
        await begin(self, frames)
        time.sleep(0.3)  # the loop does nothing else meanwhile

    monkeypatch.setattr(EventStream, "begin", busily)
    body = {**STREAM, "return_progress": True, "max_tokens": 2}
    with serving(demo_settings()) as server:
        role, first, told, *rest = frames_of(server, "/v1/chat/completions", body)
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert first["prompt_progress"]["processed"] == first["prompt_progress"]["cache"]
    progress = told["prompt_progress"]
    assert progress["processed"] == progress["total"] > 10
    assert [each["choices"][0]["delta"] for each in rest] == [
        {"content": "2"}, {"content": " +"}, {},
    ]  # fmt: skip


def test_the_first_frame_comes_before_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers and the role go out at once; until there is a place, comments keep it alive."""
    slow_steps(monkeypatch)
    with serving(demo_settings({"ping_interval": 0.1}, n_seq_max=1)) as server:
        endless = {**SUM, "ignore_eos": True, "max_tokens": 1500}
        running = Visitor(server, "/v1/chat/completions", endless)
        until(lambda: running.record.started, "it has begun")
        waiting = Visitor(server, "/v1/chat/completions", STREAM)
        begun = waiting.read_until(b": keep-alive\n\n")
        assert b"HTTP/1.1 200 OK" in begun
        assert b'"role":"assistant"' in begun
        assert not waiting.record.started
        running.leave()
        assert b'"content":"2"' in waiting.read_until(b"[DONE]")
        waiting.leave()


def test_a_failure_in_the_middle(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression 9: never a stop. The choice ends with "error", and then the error comes."""
    engine = server.service.models.models[0].llama.runtime.loaded.engine
    sample = engine._sampling.sample
    left = [4]

    def failing(*given: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise MemoryError("0x7f00deadbeef")
        sample(*given)

    monkeypatch.setattr(engine._sampling, "sample", failing)
    # With log-probabilities, so that each step is sampled by itself.
    asked = {**STREAM, "logprobs": True}
    *parts, failed, error = frames_of(server, "/v1/chat/completions", asked)
    assert len(parts) > 1, "it fails in the middle"
    assert [part["choices"][0]["finish_reason"] for part in parts] == [None] * len(parts)
    assert failed["choices"][0]["finish_reason"] == "error"
    assert error["error"].keys() == {"message", "type", "param", "code"}
    assert error["error"]["code"] == "server_error"
    assert "deadbeef" not in str(error)
    left[0] = 4
    with server.http() as http:
        whole = http.post("/v1/chat/completions", json={**SUM, "logprobs": True})
        assert (whole.status_code, whole.json()["error"]["code"]) == (500, "server_error")
        monkeypatch.undo()
        assert http.post("/v1/chat/completions", json=SUM).status_code == 200


def test_cancelling_by_id(server: Server) -> None:
    """From another connection; the reply ends there, and the stream as usual."""
    visitor = Visitor(server, "/v1/chat/completions", {**STREAM, "ignore_eos": True})
    until(lambda: visitor.exchange.id, "it has an id")
    with server.http() as http:
        path = "/v1/chat/completions/control"
        body = {"id": visitor.exchange.id, "action": "cancel"}
        assert http.post(path, json=body).json() == {"success": True}
        ending = visitor.read_until(b"[DONE]")
        assert b'"finish_reason":"cancelled"' in ending
        assert b"error" not in ending
        until(lambda: not server.service.exchanges, "it is over")
        again: httpx.Response = http.post(path, json=body)
        assert (again.status_code, again.json()["error"]["param"]) == (404, "id")
        assert http.post(path, json={**body, "action": "jump"}).status_code == 400
    visitor.leave()


@pytest.mark.parametrize("stream", [False, True])
def test_cancelling_a_response_by_id(server: Server, stream: bool) -> None:
    """Its items are complete, and it does not claim that the model had nothing more to say."""
    endless = {"input": "What is 2 + 3?", "stream": stream, "logit_bias": {"2": False}}
    visitor = Visitor(server, "/v1/responses", endless)
    until(lambda: len(visitor.record.generated) > 4, "it has begun to answer")
    with server.http() as http:
        body = {"id": visitor.exchange.id, "action": "cancel"}
        assert http.post("/v1/chat/completions/control", json=body).json() == {"success": True}
    if stream:
        events = events_of(joined_chunks(visitor.read_until(b"\r\n0\r\n\r\n")))
        assert events[-1]["type"] == "response.incomplete"
        response = check(events)
    else:
        response = json.loads(visitor.read_until(b'"user":null}').partition(b"\r\n\r\n")[2])
    assert (response["status"], response["error"]) == ("cancelled", None)
    assert response["output"][0]["status"] == "incomplete"
    assert response["usage"]["output_tokens"] > 4
    visitor.leave()


def test_counting(server: Server) -> None:
    """Exactly what the prompt has, tools included; also where it would not fit."""
    body = {"messages": [WEATHER], "tools": TOOLS, "max_tokens": 1}
    with server.http() as http:
        count = http.post("/v1/chat/completions/input_tokens", json=body).json()
        usage = http.post("/v1/chat/completions", json=body).json()["usage"]
        assert count == {
            "object": "response.input_tokens",
            "input_tokens": usage["prompt_tokens"],
        }
        long = {"messages": [{"role": "user", "content": "one two three " * 3000}]}
        too_long = http.post("/v1/chat/completions", json=long).json()["error"]
        count = http.post("/v1/chat/completions/input_tokens", json=long).json()
        assert count["input_tokens"] >= too_long["n_prompt_tokens"] > too_long["n_ctx"]
