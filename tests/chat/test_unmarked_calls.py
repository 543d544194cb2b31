"""Calls that begin with no mark, and words that look like calls and are none."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from llama_py.chat.calls.lazy_grammar import patterns_of_json, patterns_of_sections
from llama_py.chat.rendered import RenderedChat
from llama_py.chat.stream import ChatStream, parse_reply
from llama_py.core.grammar.sampler import GrammarSampler
from llama_py.core.vocab import Vocab
from tests.chat import families
from tests.chat.generated import vocabulary
from tests.chat.openai import chat_request
from tests.chat.test_general_tools import TEXTS, template_of

LLAMAS = [
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "meta-llama-Llama-3.3-70B-Instruct",
]
FUNCTIONARY = "meetkai-functionary-medium-v3.2"
ARGUMENTS = '{"city": "Paris", "days": 3}'
CALLS = [
    f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}',
    f'{{"type": "function", "name": "get_weather", "parameters": {ARGUMENTS}}}',
    f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}',
    f'```json\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n```',
    f'```\n{{"name": "get_weather", "parameters": {ARGUMENTS}}}\n```',
]
WORDS = [
    '{"a": 1}',
    'Here it is:\n{"name": "Bob", "parameters": 3}\nDone.',
    '```json\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n```',
    '[{"name": "x"}]',
    '{"name": "get_weather", "parameters": {"city": "Paris", "days": "x"}} and more',
    '{"name": "ls", "parameters": {"city": 1}}',
    '{"name": "get_weather", "parameters": {"city": "Pa',
    '{"name": "get_weather"}',
    'f(x=1) [f(x=1)] <b>x</b> {"',
    '[get_weather(city="Paris", days=3)]',
]


@pytest.fixture(scope="module")
def vocab() -> Iterator[Vocab]:
    with vocabulary() as found:
        yield found


def rendered_for(family: str) -> RenderedChat:
    request = chat_request(families.USER, tools=families.TOOLS, enable_thinking=False)
    return template_of(family).render(request)


def takes(vocab: Vocab, family: str, text: str, ends: bool = True) -> bool:
    """Whether a model may write this, and end there."""
    grammar = rendered_for(family).grammar
    assert grammar is not None
    sampler = GrammarSampler(vocab, grammar)
    try:
        for token in vocab.tokenize(text, add_special=False, parse_special=True):
            if not sampler.allows(token) or sampler.accept(token) is not None:
                return False
        return sampler.allows(vocab.eog_tokens()[0]) is ends
    finally:
        sampler.close()


@pytest.mark.parametrize("family", [*families.names(), *TEXTS])
def test_words_that_are_no_call_are_not_lost(family: str) -> None:
    rendered = rendered_for(family)
    begin = ""
    if parse_reply(rendered, "Hm.").reasoning:
        begin = f"Hm.{rendered.thinking_ends[0]}"
    for words in WORDS:
        reply = parse_reply(rendered, begin + words)
        assert not reply.tool_calls, words
        assert "".join(words.split()) in "".join(reply.content.split())


@pytest.mark.parametrize("text", CALLS)
@pytest.mark.parametrize("family", LLAMAS)
def test_calls_in_plain_json(family: str, text: str) -> None:
    rendered = rendered_for(family)
    for size in (len(text), 5, 1):
        stream = ChatStream(rendered)
        for start in range(0, len(text), size):
            stream.feed(text[start : start + size])
        reply = stream.finish()
        calls = [(call.name, call.arguments) for call in reply.tool_calls]
        assert (calls, reply.content) == ([("get_weather", ARGUMENTS)], "")


@pytest.mark.parametrize("family", LLAMAS)
def test_the_form_of_the_template_is_no_option(family: str) -> None:
    request = chat_request(families.USER, tools=families.TOOLS, json_calls=False)
    assert parse_reply(template_of(family).render(request), CALLS[0]).tool_calls


@pytest.mark.parametrize("family", LLAMAS)
def test_a_reply_that_names_a_tool_is_a_call_that_fits(vocab: Vocab, family: str) -> None:
    for text in (*CALLS[:2], f"\n{CALLS[0]}", json.dumps(json.loads(CALLS[0]), indent=2)):
        assert takes(vocab, family, text), text
    begin = '{"name": "get_weather", "parameters": {"city": "Paris", "days": '
    assert not takes(vocab, family, f'{begin}"x"}}}}')
    assert not takes(vocab, family, '{"name": "get_weather", "arguments": {"city": "Paris"}}')
    assert takes(vocab, family, '{"name": "get_weather", "parameters": ', ends=False)
    # Other words are free, JSON among them.
    free = ['{"name": "Bob", "age": 3}', '{"name": "get_weather_data"}', f"So: {CALLS[0]} ?", "Hi."]
    for text in free:
        assert takes(vocab, family, text), text


def test_functionarys_sections(vocab: Vocab) -> None:
    """The first mark of a section is the end of the prompt."""
    call = 'add\n{"a": 1, "b": 2}'
    assert takes(vocab, FUNCTIONARY, call)
    assert not takes(vocab, FUNCTIONARY, 'add\n{"a": "1"')
    for words in ("all\nadd\nthem >>> or not", "adding"):
        assert takes(vocab, FUNCTIONARY, words)
    reply = parse_reply(rendered_for(FUNCTIONARY), call)
    assert [each.arguments for each in reply.tool_calls] == ['{"a": 1, "b": 2}']


def test_many_tools_are_waited_for_by_several_expressions() -> None:
    names = [f"tool.{number}" for number in range(250)]
    for make in (patterns_of_json, patterns_of_sections):
        patterns = make(names)
        assert len(patterns) == 3
        assert r"tool\.249" in "".join(patterns)
        assert all(len(pattern) < 10_000 for pattern in patterns)
