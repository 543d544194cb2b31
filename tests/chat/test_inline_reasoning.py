"""``reasoning_format="none"``: a call or an answer that has to come, behind what the model thinks.

A prompt that opens the reasoning, or closes it, is where llama.cpp's own grammars do not fit.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from llama_py.chat.constraints import render_constrained
from llama_py.chat.rendered import RenderedChat
from llama_py.chat.stream import parse_reply
from llama_py.core.vocab import Vocab
from tests.chat import families
from tests.chat.generated import Writer, vocabulary
from tests.chat.openai import chat_request
from tests.chat.test_generated_calls import SCHEMAS, SOME, calls_of, streamed, tools_of

FAMILIES = [
    pytest.param(name, id=name, marks=() if name in SOME else pytest.mark.long)
    for name in families.names()
]
ANSWER = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMAS["count_up"]}}


@pytest.fixture(scope="module")
def vocab() -> Iterator[Vocab]:
    with vocabulary() as found:
        yield found


def rendered_of(family: str, reasoning: str, thinking: bool, **options: Any) -> RenderedChat:
    request = chat_request(
        families.USER, reasoning_format=reasoning, enable_thinking=thinking, **options
    )
    return render_constrained(families.load(family), request, None)


@pytest.mark.parametrize("thinking", [True, False], ids=["thinking", "not"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_required_call_comes(family: str, thinking: bool, vocab: Vocab) -> None:
    options: dict[str, Any] = {"tools": tools_of(family), "tool_choice": "required"}
    rendered = rendered_of(family, "none", thinking, **options)
    apart = rendered_of(family, "auto", thinking, **options)
    inside = bool(parse_reply(apart, "Hm.").reasoning)
    begin = f"Hm.{apart.thinking_ends[0]}" if inside else ""
    reply = Writer(vocab, random.Random(3)).write(rendered, begin)
    assert reply.ended, reply.text
    parsed = parse_reply(rendered, reply.text)
    assert parsed.tool_calls, reply.text
    assert not parsed.reasoning
    if inside:
        # The prompt's own opening of the thought (a line break, in Apriel's words) is part of it.
        end = apart.thinking_ends[0]
        assert parsed.content.startswith(apart.thinking_start), reply.text
        assert parsed.content.partition(end)[0].rstrip().endswith("Hm."), reply.text
        assert parsed.content.rstrip().endswith(end), reply.text
    pieces = streamed(rendered, reply.text, random.Random(4))
    assert (pieces.content, calls_of(pieces)) == (parsed.content, calls_of(parsed))


@pytest.mark.parametrize("name", ["Qwen3.5-4B", "deepseek-ai-DeepSeek-V3.2", "IFM-K2-Horizon"])
def test_an_answer_follows_the_schema_behind_the_reasoning(name: str, vocab: Vocab) -> None:
    rendered = rendered_of(name, "none", True, response_format=ANSWER)
    reply = Writer(vocab, random.Random(3)).write(rendered, f"Hm.{rendered.thinking_ends[0]}")
    content = parse_reply(rendered, reply.text).content
    thought, end, answer = content.partition(rendered.thinking_ends[0].strip())
    assert (thought.rstrip(), bool(end)) == (f"{rendered.thinking_start}Hm.", True)
    assert "number" in json.loads(answer.strip().removeprefix("```json").removesuffix("```"))


def test_without_reasoning_the_content_is_the_answer(vocab: Vocab) -> None:
    rendered = rendered_of("Qwen3.5-4B", "none", False, response_format=ANSWER)
    reply = Writer(vocab, random.Random(3)).write(rendered)
    assert "number" in json.loads(parse_reply(rendered, reply.text).content)


def test_a_reply_that_is_cut_off_while_it_thinks_is_an_open_thought() -> None:
    rendered = rendered_of("Qwen3.5-4B", "none", True, response_format=ANSWER)
    assert parse_reply(rendered, "Hm, well").content == "<think>Hm, well"
