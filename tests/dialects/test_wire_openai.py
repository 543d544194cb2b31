"""OpenAI's frames: those that are put together from bytes say what the encoders say."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from llama_py.chat.templates.template import ChatTemplate
from llama_py.core.vocab import Vocab
from llama_py.dialects import wire_json
from llama_py.dialects.failures import Failure, Kind
from llama_py.dialects.limits import RequestLimits
from llama_py.dialects.openai.bodies import read_chat, read_completion
from llama_py.dialects.usage import PromptProgress
from llama_py.dialects.wire import WireCall, WireReply
from llama_py.dialects.wire_json import DONE, json_bytes, text_bytes
from llama_py.engine.request import Record
from tests.dialects.playing import Context, play
from tests.dialects.test_encode_chat import THINKING

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}
#: What JSON has to escape, what servers of events have to keep on one line, and other scripts.
NASTY = 'A "quote", a \\ and a\nline\r\n\t\x00\x1f\x7f\u2028\u2029 ünïcödé 你好 🙂 <b>&amp;</b>'
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@pytest.fixture(params=["orjson", "json"], autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the quick library, and without."""
    if request.param == "json":
        monkeypatch.setattr(wire_json, "orjson", None)
    else:
        pytest.importorskip("orjson")


def tokens_of(vocab: Vocab, text: str) -> list[int]:
    return vocab.tokenize(text, add_special=False, parse_special=True)


def replayed(call: WireCall, vocab: Vocab, *texts: str) -> tuple[WireReply, bytes]:
    """The reply to a call whose choices are these texts, and all of its frames."""
    records = [Record(request) for request in call.requests]
    reply = call.encoder(records)
    frames = reply.open()
    for index, (record, text) in enumerate(zip(records, texts, strict=True)):
        for event in play(vocab, record, tokens_of(vocab, text)):
            frames += reply.feed(index, event)
    return reply, frames + reply.close()


def chunks_of(frames: bytes) -> list[Any]:
    """What a client reads: each event is one line."""
    assert frames.endswith(DONE)
    events = frames.removesuffix(DONE).decode().split("\n\n")
    assert events.pop() == ""
    return [json.loads(event.removeprefix("data: ")) for event in events]


def encoded(call: Any, vocab: Vocab, *texts: str) -> list[Any]:
    """The chunks that the encoder makes of the same events."""
    records = [Record(request) for request in call.requests]
    encoder = call.encoder(records)._encoder
    chunks: list[Any] = list(encoder.open())
    for index, (record, text) in enumerate(zip(records, texts, strict=True)):
        for event in play(vocab, record, tokens_of(vocab, text)):
            chunks += encoder.feed(index, event)
    return [*chunks, *encoder.close()]


def comparable(chunks: list[Any]) -> list[Any]:
    """Chunks without what differs each time: ids of calls, and times."""
    for chunk in chunks:
        chunk.pop("timings", None)
        for choice in chunk["choices"]:
            for call in choice.get("delta", {}).get("tool_calls", ()):
                call.pop("id", None)
            if choice.get("delta", {}).get("role"):
                choice["delta"].pop("content", None)
    return json.loads(json.dumps(chunks))  # type: ignore[no-any-return]


BODIES: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({}, (NASTY + "<|im_end|>",)),
    ({"n": 2}, ("One.<|im_end|>", "Two")),
    ({"stream_options": {"include_usage": True}}, ("One.<|im_end|>",)),
    ({"logprobs": True, "top_logprobs": 2}, (NASTY,)),
    ({"tools": [WEATHER]}, (f"Let me see.{CALL}<|im_end|>",)),
    ({"stop": ["ee"]}, ("one two three four",)),
    ({}, ("<|im_end|>",)),
]


@pytest.mark.parametrize(("options", "texts"), BODIES, ids=lambda value: str(value)[:40])
def test_chat_frames_are_the_chunks_of_the_encoder(
    context: Context, options: dict[str, Any], texts: tuple[str, ...]
) -> None:
    call = read_chat(context, {**HELLO, **options}, RequestLimits(), "m")
    _, frames = replayed(call, context.vocab, *texts)
    wanted = encoded(call, context.vocab, *texts)
    assert comparable(chunks_of(frames)) == comparable(wanted)


def test_reasoning_frames(vocab: Vocab) -> None:
    context = Context(vocab, ChatTemplate.from_text(THINKING, eos="<|im_end|>"))
    call = read_chat(context, HELLO, RequestLimits(), "m")
    _, frames = replayed(call, vocab, "<think>\nTwo and two.\n</think>\n\nFour.<|im_end|>")
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks_of(frames)]
    assert deltas[0] == {"role": "assistant", "content": None}
    reasoning = [next(iter(delta)) for delta in deltas[1:-1]]
    assert reasoning == sorted(reasoning, reverse=True)  # all of it before all of the content
    assert "".join(delta.get("reasoning_content", "") for delta in deltas).strip() == "Two and two."
    assert "".join(delta.get("content") or "" for delta in deltas).strip() == "Four."
    assert deltas[-1] == {}


@pytest.mark.parametrize(
    "options", [{}, {"echo": True}, {"logprobs": 1}, {"echo": True, "logprobs": 0}]
)
def test_completion_frames_are_the_chunks_of_the_encoder(
    context: Context, options: dict[str, Any]
) -> None:
    body = {"prompt": "Once", "stream": True, **options}
    call = read_completion(context, body, RequestLimits(), "m")
    _, frames = replayed(call, context.vocab, NASTY)
    assert comparable(chunks_of(frames)) == comparable(encoded(call, context.vocab, NASTY))


@pytest.mark.parametrize("read", [read_chat, read_completion])
def test_token_ids(context: Context, read: Callable[..., WireCall]) -> None:
    """Each chunk has those since the one before, also of tokens whose text was held back."""
    body = {**HELLO, "prompt": "Once", "return_token_ids": True, "stop": ["<<>>"]}
    call = read(context, body, RequestLimits(), "m")
    reply, frames = replayed(call, context.vocab, "12 << 34 你")
    told = [each for chunk in chunks_of(frames) for each in chunk["choices"][0]["token_ids"]]
    assert told == tokens_of(context.vocab, "12 << 34 你")
    whole = read(context, {**body, "stream": False}, RequestLimits(), "m")
    reply, _ = replayed(whole, context.vocab, "12 << 34 你")
    response: Any = reply.whole()
    assert response["choices"][0]["token_ids"] == told


def test_token_ids_of_the_best_replies(context: Context) -> None:
    body = {"prompt": ["Once", "Twice"], "n": 1, "best_of": 2, "return_token_ids": True}
    call = read_completion(context, body, RequestLimits(), "m")
    # ``play`` finds a token the likelier, the smaller its id is.
    best, other = sorted(["x", "y"], key=lambda text: tokens_of(context.vocab, text))
    reply, _ = replayed(call, context.vocab, other, best, best, other)
    choices = reply.whole()["choices"]
    assert [choice["text"] for choice in choices] == [best, best]
    assert [choice["token_ids"] for choice in choices] == [tokens_of(context.vocab, best)] * 2


def test_a_failure_ends_what_is_open(context: Context) -> None:
    """Choices that have ended stay as they were; the others do not look as if they had."""
    call = read_chat(context, {**HELLO, "n": 2}, RequestLimits(), "m")
    records = [Record(request) for request in call.requests]
    reply = call.encoder(records)
    reply.open()
    for event in play(context.vocab, records[0], tokens_of(context.vocab, "One.<|im_end|>")):
        reply.feed(0, event)
    failed, error = chunks_of(reply.fail(Failure(Kind.CACHE_FULL, "no room")))
    assert [(c["index"], c["finish_reason"]) for c in failed["choices"]] == [(1, "error")]
    assert error["error"] == {
        "message": "no room",
        "type": "server_error",
        "param": None,
        "code": "cache_full",
    }


def test_progress_has_a_list_of_choices(context: Context) -> None:
    call = read_chat(context, HELLO, RequestLimits(), "m")
    reply = call.encoder([Record(request) for request in call.requests])
    (chunk,) = chunks_of(reply.progress(PromptProgress(30, 10, 40, 0.25, 0.1)) + DONE)
    assert chunk["choices"] == []
    assert "timings" not in chunk
    assert chunk["prompt_progress"] == {"total": 40, "cache": 10, "processed": 30, "time_ms": 250}


@pytest.mark.parametrize("read", [read_chat, read_completion])
def test_each_chunk_with_its_timings(context: Context, read: Callable[..., WireCall]) -> None:
    """All but the first one of a chat: nothing has happened by then."""
    body = {**HELLO, "prompt": "Once", "timings_per_token": True}
    call = read(context, {**body, "stream_options": {"include_usage": True}}, RequestLimits(), "m")
    reply, frames = replayed(call, context.vocab, "12 34")
    chunks = [each for each in chunks_of(frames) if "role" not in str(each["choices"])]
    counts = [chunk["timings"]["predicted_n"] for chunk in chunks]
    assert counts[:-2] == [*range(1, counts[-1] + 1)]
    assert len(counts) > 3
    (first,) = chunks_of(reply.progress(PromptProgress(10, 10, 40, 0.25, 0.1)) + DONE)
    assert {first["timings"][name] for name in ("prompt_n", "prompt_ms", "predicted_n")} == {0}
    (second,) = chunks_of(reply.progress(PromptProgress(30, 10, 40, 0.25, 0.1)) + DONE)
    assert second["timings"]["prompt_per_second"] == pytest.approx(200)


@pytest.mark.parametrize("text", [NASTY, "", "\ud800 half", "\U0001f642", "\\u0041"])
def test_any_text_is_json(text: str) -> None:
    assert json.loads(text_bytes(text)) == text
    assert json.loads(json_bytes({"text": text, "number": 2**70})) == {
        "text": text,
        "number": 2**70,
    }
    assert b"\n" not in json_bytes([text])
