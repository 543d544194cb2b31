"""Reply streams: any split gives what the whole gives, and nothing that was generated is lost."""

from __future__ import annotations

import json
import logging
import time
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llama_py import Llama, demo_model_path
from llama_py.chat.rendered import RenderedChat
from llama_py.chat.schemas.json_place import broken_off
from llama_py.chat.stream import ChatStream, Delta, ParsedReply, fold, parse_reply
from llama_py.chat.templates.template import ChatTemplate
from tests.chat import families
from tests.chat.families import TOOLS, USER, sample
from tests.chat.openai import chat_request

#: Families that differ in how they mark reasoning, content and calls.
FAMILIES = (
    "Qwen-Qwen3-0.6B",  # <think>, JSON in <tool_call>
    "Qwen3-Coder",  # XML parameters
    "openai-gpt-oss-120b",  # channels
    "deepseek-ai-DeepSeek-V3.1",  # markers that are not ASCII
    "mistralai-Mistral-Nemo-Instruct-2407",  # a JSON array
    "google-gemma-4-31B-it",  # values that are not JSON
    "LFM2.5-8B-A1B",  # Python calls
    "meta-llama-Llama-3.1-8B-Instruct",  # bare JSON
    "Kimi-K2-Instruct",  # ids in the markers
    "MiniMax-M3",
)

_REPLY = st.text(
    alphabet=st.one_of(
        st.sampled_from('ab <>|{}[]"\\\n:,/=_'), st.characters(exclude_categories=["Cs"])
    ),
    max_size=60,
)


def ids() -> Any:
    counter = count()
    return lambda: f"call{next(counter)}"


def whole(rendered: RenderedChat, text: str) -> ParsedReply:
    stream = ChatStream(rendered, new_id=ids())
    stream.feed(text)
    return without_ids(stream.finish())


def split(text: str, cuts: list[int]) -> list[str]:
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(places)]


def without_ids(reply: ParsedReply) -> ParsedReply:
    """Some families write the id after the arguments, when a stream has told another one."""
    for call in reply.tool_calls:
        call.id = ""
    return reply


def streamed(rendered: RenderedChat, parts: list[str]) -> ParsedReply:
    stream = ChatStream(rendered, new_id=ids())
    deltas = [delta for part in parts for delta in stream.feed(part)] + stream.flush()
    reply, folded = stream.finish(), fold(deltas)
    folded.complete = reply.complete
    assert folded == reply
    return without_ids(reply)


def rendered(name: str, tools: bool = True) -> RenderedChat:
    return families.load(name).render(chat_request(USER, tools=TOOLS if tools else None))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("kind", ["content", "call", "reasoning+call"])
def test_splits_of_replies(name: str, kind: str) -> None:
    if "reasoning" in kind and not families.load(name).supports_thinking:
        kind = "content"
    expected = sample(name, kind)
    whole_reply = whole(expected.rendered, expected.text)

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.integers(0, len(expected.text)), max_size=20))
    def check(cuts: list[int]) -> None:
        assert streamed(expected.rendered, split(expected.text, cuts)) == whole_reply

    check()


@pytest.mark.parametrize("name", FAMILIES)
def test_cut_off_replies(name: str) -> None:
    """A reply that a limit ends anywhere gives the same in one piece and in many."""
    expected = sample(name, "call")
    for end in range(0, len(expected.text), 3):
        text = expected.text[:end]
        one, many = whole(expected.rendered, text), streamed(expected.rendered, list(text))
        assert one == many, text


@pytest.mark.parametrize("name", FAMILIES)
def test_any_text_in_any_split(name: str) -> None:
    target = rendered(name)

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(_REPLY, st.lists(st.integers(0, 60), max_size=10))
    def check(text: str, cuts: list[int]) -> None:
        reply = streamed(target, split(text, cuts))
        shown = reply.content + reply.reasoning
        if not reply.tool_calls and reply.complete:
            assert "".join(text.split()) == "".join(shown.split())

    check()


@pytest.mark.parametrize(
    "text", ["a <", "a <to", "1 < 2 <tool_cal", "<", "x\n<tool_call", "<think"]
)
def test_a_possible_marker_at_the_end_is_text(text: str) -> None:
    target = rendered("Qwen3-Coder")
    for reply in (whole(target, text), streamed(target, list(text))):
        assert reply.content == text
        assert reply.complete


def test_markers_are_never_told() -> None:
    """No delta ends in what later turns out to be the beginning of a marker."""
    expected = sample("Qwen-Qwen3-0.6B", "call")
    stream = ChatStream(expected.rendered)
    told = fold([delta for char in "Fine. " + expected.text for delta in stream.feed(char)])
    assert told.content.strip() == "Fine."
    assert [call.name for call in told.tool_calls] == ["get_weather"]


def test_text_after_a_call_is_not_lost() -> None:
    expected = sample("Qwen3-Coder", "call")
    text = expected.text + "\nThat is all."
    for reply in (whole(expected.rendered, text), streamed(expected.rendered, list(text))):
        assert [call.name for call in reply.tool_calls] == ["get_weather"]
        assert "That is all." in reply.content


@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "Qwen-QwQ-32B"])
def test_white_space_is_content_only_without_a_call(name: str) -> None:
    answer = rendered(name)
    call = '<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>'
    thought = f"{answer.thinking_start}Hm.{answer.thinking_ends[0]}"
    for said, calls, content in (
        (f"\n\n \n{call}", 1, ""),
        (f"\n\n \nYes.\n{call}", 1, "Yes.\n"),
        ("\n\n \n", 0, "\n"),
    ):
        text = (thought if "think" not in answer.generation_prompt else thought[7:]) + said
        reply = whole(answer, text)
        assert len(reply.tool_calls) == calls
        assert reply.content.endswith(content)
        assert bool(reply.content.strip()) is bool(content.strip())
        assert bool(reply.content) is bool(content)
        assert without_ids(streamed(answer, list(text))) == without_ids(reply)


def test_plain_replies_pass_through() -> None:
    target = rendered("Qwen-Qwen2.5-7B-Instruct", tools=False)
    assert target.plain
    stream = ChatStream(target)
    assert stream.feed("a <tool_call> b") == [Delta(content="a <tool_call> b")]
    assert stream.feed("") == []
    assert stream.flush() == []
    assert stream.finish() == ParsedReply("a <tool_call> b")


def test_ids_and_argument_fragments() -> None:
    expected = sample("Qwen-Qwen3-0.6B", "calls")
    stream = ChatStream(expected.rendered, new_id=ids())
    deltas = [delta for char in expected.text for delta in stream.feed(char)] + stream.flush()
    calls = [delta.tool_call for delta in deltas if delta.tool_call is not None]
    heads = [call for call in calls if call.name is not None]
    assert [(call.index, call.id, call.name) for call in heads] == [
        (0, "call0", "get_weather"),
        (1, "call1", "add"),
    ]
    assert len(calls) > 4  # the arguments come in pieces
    assert stream.has_tool_calls
    message = stream.finish().as_message()
    assert message["content"] is None
    arguments = [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]]
    assert arguments == [{"city": "Paris", "days": 47}, {"a": 58, "b": 69}]


def test_continued_message() -> None:
    """The reader has the beginning of a continued message already."""
    template = families.load("Qwen-Qwen3-0.6B")
    messages = [*USER, {"role": "assistant", "content": "It is"}]
    target = template.render(chat_request(messages, continue_final_message=True))
    assert target.prompt.endswith("It is")
    assert streamed(target, list(" sunny.")).content == " sunny."


def growth(name: str, tools: bool, text: str) -> tuple[float, float]:
    """Seconds for the first and for the last eighth of a reply's pieces."""
    target = families.load(name).render(chat_request(USER, tools=TOOLS if tools else None))
    stream = ChatStream(target)
    pieces = [text[i : i + 4] for i in range(0, len(text), 4)]
    n, times = len(pieces) // 8, []
    for part in (pieces[:n], pieces[n:-n], pieces[-n:]):
        start = time.thread_time()
        for piece in part:
            stream.feed(piece)
        times.append(time.thread_time() - start)
    return times[0], times[2]


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "openai-gpt-oss-120b", "Qwen3-Coder"])
def test_no_work_that_grows_with_the_reply(name: str, tools: bool) -> None:
    opening = {
        "Qwen-Qwen3-0.6B": "<think>hm</think>",
        "openai-gpt-oss-120b": "<|channel|>final<|message|>",
    }.get(name, "")
    text = opening + "Words < and <b>markup</b> and\nlines. " * 2000
    first, last = growth(name, tools, text)
    assert last < 5 * first + 0.05


def test_template_text_is_the_only_input() -> None:
    """Two templates at once do not disturb each other."""
    one, two = families.load("Qwen-Qwen3-0.6B"), families.load("Qwen3-Coder")
    assert isinstance(one, ChatTemplate)
    assert one.render(chat_request(USER, now=0)) == one.render(chat_request(USER, now=0))
    assert parse_reply(two.render(chat_request(USER)), "hi").content == "hi"


@pytest.mark.parametrize("opening", ["", '<tool_call>\n{"name": "add", "arguments": {"a": '])
@pytest.mark.parametrize("bracket", ["[", '{"a":'])
def test_endless_nesting_is_text(opening: str, bracket: str) -> None:
    target = rendered("Qwen-Qwen3-0.6B")
    text = opening + bracket * 20_000
    reply = streamed(target, [text[i : i + 500] for i in range(0, len(text), 500)])
    assert reply.content.endswith(bracket * 10_000)
    assert reply == whole(target, text)


def test_deep_arguments_are_parsed() -> None:
    target = rendered("Qwen-Qwen3-0.6B")
    nested = "[" * 100 + "]" * 100
    text = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    assert whole(target, "Look: " + nested + text).tool_calls[0].name == "add"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"a": 1}', None),
        ("", None),
        ("12", None),
        ("prose", None),
        ('"ab', "$, a string of 2 characters"),
        ('{"people": [{"name": "A"}, {"name": "Bob', "$.people[1].name, a string of 3 characters"),
        ('{"a": [1, 2', "$.a[1], a number of 1 characters"),
        ('{"a": 12.5', "$.a, a number of 4 characters"),
        ('{"a": "x\\', "$.a, a string of 2 characters"),
        ('{"a": 1, "b', "$, a string of 1 characters"),
        ('{"a": {"b": true', "$.a.b"),
        ('{"a": 1,', "$"),
    ],
)
def test_the_place_where_json_breaks_off(text: str, place: str | None) -> None:
    assert broken_off(text) == place


def test_a_reply_that_is_cut_says_where(caplog: pytest.LogCaptureFixture) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    wanted: Any = {"type": "json_object", "schema": schema}
    question: Any = [{"role": "user", "content": "Say something long."}]
    with Llama(demo_model_path()) as llm, caplog.at_level(logging.INFO, "llama_py"):
        options: Any = {"max_tokens": 8, "temperature": 0}
        reply = llm.create_chat_completion(question, response_format=wanted, **options)
        assert reply["choices"][0]["finish_reason"] == "length"
        assert "the reply ends within $.a, a string of" in caplog.text
        caplog.clear()
        llm.create_chat_completion(question, **options)
        assert "ends within" not in caplog.text
