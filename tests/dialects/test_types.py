"""Replies have the shapes that their types declare: every key, and no other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from typing_extensions import NotRequired, is_typeddict

from llama_py import GenerationTimeout, Llama, demo_model_path
from llama_py.dialects.openai.types import (
    CreateChatCompletionResponse,
    CreateChatCompletionStreamResponse,
    CreateCompletionResponse,
    CreateCompletionStreamResponse,
)

HELLO = [{"role": "user", "content": "Hello!"}]
FUNCTION = {
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
TOOLS = [{"type": "function", "function": FUNCTION}]


def fits(value: Any, kind: Any, where: str = "reply") -> str:
    """What of ``value`` is not of this type, or nothing."""
    if get_origin(kind) is NotRequired:
        return fits(value, get_args(kind)[0], where)
    if is_typeddict(kind):
        return _fits_keys(value, kind, where)
    if get_origin(kind) is list:
        items = enumerate(value) if isinstance(value, list) else [(0, value)]
        return next(
            filter(None, (fits(v, get_args(kind)[0], f"{where}[{i}]") for i, v in items)), ""
        )
    if get_origin(kind) is dict:
        return "" if isinstance(value, dict) else where
    if get_origin(kind) is Literal:
        return "" if value in get_args(kind) else f"{where}: {value!r}"
    if get_args(kind):
        tried = [fits(value, each, where) for each in get_args(kind)]
        return "" if "" in tried else tried[0]
    wanted = (int, float) if kind is float else kind
    return "" if isinstance(value, wanted) and type(value) is not bool else f"{where}: {value!r}"


def _fits_keys(value: Any, kind: Any, where: str) -> str:
    if not isinstance(value, dict):
        return f"{where}: {value!r}"
    odd = (kind.__required_keys__ - value.keys()) | (value.keys() - kind.__annotations__.keys())
    if odd:
        return f"{where}: {sorted(odd)}"
    hints = get_type_hints(kind)
    return first(fits(value[key], hints[key], f"{where}.{key}") for key in value)


def first(complaints: Iterable[str]) -> str:
    return next(filter(None, complaints), "")


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(demo_model_path(), n_ctx=1024, n_threads=1) as model:
        yield model


WITH_USAGE: list[dict[str, Any]] = [{}, {"stream_options": {"include_usage": True}}]
COMPLETIONS: list[dict[str, Any]] = [
    {},
    {"logprobs": 2, "echo": True},
    {"n": 2, "best_of": 3, "temperature": 1.0, "seed": 1},
    {"stop": ["e"]},
]
CHATS: list[dict[str, Any]] = [
    {},
    {"logprobs": True, "top_logprobs": 2},
    {"logprobs": True, "n": 2},
    {"tools": TOOLS, "tool_choice": "required"},
    {"functions": [FUNCTION], "function_call": {"name": "get_weather"}},
    {"response_format": {"type": "json_object"}},
]


@pytest.mark.parametrize("options", COMPLETIONS, ids=str)
def test_completions(llm: Llama, options: dict[str, Any]) -> None:
    reply: Any = llm.create_completion("Once upon", max_tokens=8, **options)
    assert fits(dict(reply), CreateCompletionResponse) == ""
    if "best_of" in options:
        return
    for more in WITH_USAGE:
        for chunk in llm.create_completion("Once", max_tokens=8, stream=True, **options, **more):
            assert fits(chunk, CreateCompletionStreamResponse) == ""


@pytest.mark.parametrize("options", CHATS, ids=lambda options: "-".join(options))
def test_chats(llm: Llama, options: dict[str, Any]) -> None:
    reply: Any = llm.create_chat_completion(HELLO, max_tokens=40, **options)
    assert fits(dict(reply), CreateChatCompletionResponse) == ""
    for more in WITH_USAGE:
        chunks = llm.create_chat_completion(HELLO, max_tokens=40, stream=True, **options, **more)
        for chunk in chunks:
            assert fits(chunk, CreateChatCompletionStreamResponse) == ""


def test_what_there_is_of_a_reply_that_failed(llm: Llama) -> None:
    with pytest.raises(GenerationTimeout) as caught:
        llm.create_chat_completion(HELLO, timeout=0.0)
    assert fits(dict(caught.value.partial), CreateChatCompletionResponse) == ""


def test_the_check_itself_notices() -> None:
    good: dict[str, Any] = {"id": "a", "object": "text_completion", "created": 1, "model": "m"}
    good |= {"choices": [], "system_fingerprint": "b0"}
    assert fits(good, CreateCompletionStreamResponse) == ""
    wrong: list[dict[str, Any]] = [{"id": 5}, {"choices": [{}]}, {"more": 1}, {"object": "x"}]
    for change in wrong:
        assert fits({**good, **change}, CreateCompletionStreamResponse)
    assert fits(good, CreateCompletionResponse)  # which has a usage
