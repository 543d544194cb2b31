"""Chats: what a caller gets for the tokens that a model samples."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_py.chat.templates.template import ChatTemplate
from llama_py.core.vocab import Vocab
from llama_py.dialects.openai.chat import parse_chat
from llama_py.dialects.openai.fold import fold_chat
from llama_py.errors import DecodeError
from tests.dialects.playing import Context, drive

HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
TOOLS = [{"type": "function", "function": WEATHER}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def chat(context: Context, *replies: str, **options: Any) -> tuple[Any, Any]:
    """The chunks and the response for given replies."""
    call = parse_chat(context, HELLO, n=len(replies), **options)
    vocab = context.vocab
    tokens = [vocab.tokenize(text, add_special=False, parse_special=True) for text in replies]
    return drive(vocab, call, tokens)


def deltas(chunks: list[Any]) -> list[Any]:
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"]]


def test_a_chat_has_the_shape_of_openai(context: Context) -> None:
    chunks, response = chat(context, "Hi there.<|im_end|>")
    assert chunks == []
    assert response["id"].startswith("chatcmpl-")
    assert response["object"] == "chat.completion"
    assert response["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi there."},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert response["usage"]["completion_tokens"] == response["timings"]["predicted_n"]


def test_a_stream_begins_with_the_role_and_ends_with_the_reason(context: Context) -> None:
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    chunks, response = chat(context, "Hi there.<|im_end|>", **options)
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert deltas(chunks)[0] == {"role": "assistant"}
    assert deltas(chunks)[-1] == {}
    reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"]]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert "".join(delta.get("content", "") for delta in deltas(chunks)) == "Hi there."
    assert chunks[-1]["usage"] == response["usage"]


def test_a_tool_call(context: Context) -> None:
    _, response = chat(context, f"One moment. {CALL}<|im_end|>", tools=TOOLS)
    choice = response["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"].strip() == "One moment."
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["id"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}


def test_a_streamed_tool_call_comes_in_fragments(context: Context) -> None:
    chunks, _ = chat(context, f"{CALL}<|im_end|>", tools=TOOLS, stream=True)
    calls = [call for delta in deltas(chunks) for call in delta.get("tool_calls", [])]
    assert calls[0]["function"]["name"] == "get_weather"
    assert calls[0]["type"] == "function"
    assert calls[0]["id"]
    assert all(call["index"] == 0 for call in calls)
    assert not any("id" in call or "name" in call["function"] for call in calls[1:])
    assert len(calls) > 3
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert json.loads(arguments) == {"city": "Paris"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    message = fold_chat(chunks)["choices"][0]["message"]
    assert message["content"] is None


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", ["tools", "functions"])
def test_a_call_that_was_cut_off_is_no_call_to_make(
    context: Context, name: str, stream: bool
) -> None:
    """Half of a call's arguments is not JSON: ``length`` keeps a client from running it."""
    given: Any = {"tools": TOOLS, "functions": [WEATHER]}[name]
    cut = CALL[: CALL.index("Par") + 3]
    chunks, response = chat(context, cut, stream=stream, **{name: given})
    whole = fold_chat(chunks) if stream else response
    (choice,) = whole["choices"]
    assert choice["finish_reason"] == "length"
    message = choice["message"]
    call = message["tool_calls"][0]["function"] if name == "tools" else message["function_call"]
    assert call["name"] == "get_weather"
    with pytest.raises(ValueError, match="Unterminated"):
        json.loads(call["arguments"])


def test_functions_are_answered_with_a_function_call(context: Context) -> None:
    for stream in (False, True):
        chunks, response = chat(context, f"{CALL}<|im_end|>", functions=[WEATHER], stream=stream)
        choice = (fold_chat(chunks) if stream else response)["choices"][0]
        assert choice["finish_reason"] == "function_call"
        assert "tool_calls" not in choice["message"]
        assert choice["message"]["function_call"]["name"] == "get_weather"
        arguments = json.loads(choice["message"]["function_call"]["arguments"])
        assert arguments == {"city": "Paris"}


THINKING = """{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{{- '<|im_start|>assistant\n' -}}
{%- if message.reasoning_content -%}
{{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' -}}
{%- endif -%}
{{- message.content + '<|im_end|>\n' -}}
{%- else -%}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}
{%- if enable_thinking is defined and not enable_thinking -%}{{- '<think>\n\n</think>\n\n' -}}
{%- endif -%}{%- endif -%}"""


def test_reasoning_is_apart_from_the_answer(vocab: Vocab) -> None:
    context = Context(vocab, ChatTemplate.from_text(THINKING, eos="<|im_end|>"))
    reply = "<think>\nTwo and two.\n</think>\n\nFour.<|im_end|>"
    for stream in (False, True):
        chunks, response = chat(context, reply, stream=stream)
        message: Any = (fold_chat(chunks) if stream else response)["choices"][0]["message"]
        assert message["content"].strip() == "Four."
        assert message["reasoning_content"].strip() == "Two and two."
        usage = response["usage"]
        reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
        assert 0 < reasoning < usage["completion_tokens"]


def test_an_error_is_never_a_stop(context: Context) -> None:
    call = parse_chat(context, HELLO, stream=True)
    tokens = context.vocab.tokenize("half an answ", add_special=False)
    chunks, response = drive(context.vocab, call, [tokens], DecodeError("broken"))
    assert chunks[-1]["choices"][0]["finish_reason"] == "error"
    assert response["choices"][0]["message"]["content"] == "half an answ"


def test_several_choices(context: Context) -> None:
    chunks, response = chat(context, "One.<|im_end|>", "Two.", stream=True)
    contents = [choice["message"]["content"] for choice in response["choices"]]
    assert contents == ["One.", "Two."]
    assert [choice["finish_reason"] for choice in response["choices"]] == ["stop", "length"]
    roles = [c["index"] for ch in chunks for c in ch["choices"] if "role" in c["delta"]]
    assert roles == [0, 1]


def test_logprobs_have_text_and_bytes(context: Context) -> None:
    _, response = chat(context, "Hé 你<|im_end|>", logprobs=True, top_logprobs=2)
    entries = response["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "Hé 你"
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    assert set(entries[0]["top_logprobs"][0]) == {"token", "logprob", "bytes"}


def test_logprobs_without_alternatives(context: Context) -> None:
    _, response = chat(context, "Hi<|im_end|>", logprobs=True)
    assert response["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    _, response = chat(context, "Hi<|im_end|>", logprobs=False)
    assert response["choices"][0]["logprobs"] is None


@given(data=st.data())
def test_a_stream_adds_up_to_the_response(
    vocab: Vocab, template: ChatTemplate, data: st.DataObject
) -> None:
    context = Context(vocab, template)
    ids = st.integers(0, vocab.n_tokens - 1).filter(lambda token: not vocab.is_eog(token))
    call_ids = vocab.tokenize(CALL, add_special=False, parse_special=True)
    noise = st.lists(ids, max_size=12)
    reply = data.draw(st.one_of(noise, noise.map(lambda some: some + call_ids)))
    options: dict[str, Any] = {
        "logprobs": data.draw(st.booleans()),
        "tools": data.draw(st.sampled_from([None, TOOLS])),
        "stop": data.draw(st.sampled_from([None, ["ab", "e"]])),
    }
    streaming: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    chunks, response = drive(vocab, parse_chat(context, HELLO, **options, **streaming), [reply])
    assert fold_chat(chunks) == response
    plain = drive(vocab, parse_chat(context, HELLO, **options), [reply])[1]
    assert without_ids(plain["choices"][0]["message"]) == without_ids(
        response["choices"][0]["message"]
    )
    assert plain["usage"] == response["usage"]
    assert plain["choices"][0]["finish_reason"] == response["choices"][0]["finish_reason"]


def without_ids(message: Any) -> Any:
    calls = [{**call, "id": ""} for call in message.get("tool_calls", [])]
    return {**message, "tool_calls": calls}
