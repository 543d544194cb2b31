"""Every template that llama.cpp ships: rendering, and reading replies in the family's format."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any

import jinja2
import pytest

from llama_py.chat.stream import ChatStream, ParsedReply, fold, parse_reply
from llama_py.chat.templates.template import ChatTemplate
from llama_py.errors import TemplateError
from tests.chat import families, transformers_jinja
from tests.chat.families import (
    BOS,
    CONTENT,
    EOS,
    KINDS,
    REASONING,
    TOOLS,
    USER,
    WEATHER,
    Sample,
    sample,
)
from tests.chat.openai import chat_request

NAMES = families.names()

#: Templates in which llama.cpp finds no form for tool calls. They get a general one.
NO_TOOLS = (
    "HuggingFaceTB-SmolLM3-3B",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "google-gemma-2-2b-it",
    "google-translategemma-4b-it",
    "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
)

_OPENING = "the template's opening of the reasoning is counted as reasoning"
_LFM2 = "llama.cpp parses reasoning of LFM2 only where the template mentions it"
_ONE_CALL = "the template writes one call per message"
_NOT_SHOWN = "the template leaves tool calls out of finished messages"
_SEPARATE = "llama.cpp expects every call in its own section"
_ARGS = "llama.cpp takes [ARGS] for a part of the name (a lazy grammar makes models follow)"
_CALL_ID = (
    "llama.cpp takes its own probe's call id for a fixed text (a grammar makes models follow)"
)
_R_PLUS = "the template puts instructions after the user's message"

#: (template, kind) that cannot work, and why. Each entry fails the tests once it does.
KNOWN = {
    ("Apriel-1.6-15b-Thinker-fixed", "content"): _OPENING,
    ("Apriel-1.6-15b-Thinker-fixed", "call"): _OPENING,
    ("Apriel-1.6-15b-Thinker-fixed", "calls"): _OPENING,
    ("Apriel-1.6-15b-Thinker-fixed", "reasoning"): _OPENING,
    ("Apriel-1.6-15b-Thinker-fixed", "reasoning+call"): _OPENING,
    ("CohereForAI-c4ai-command-r-plus-tool_use", "calls"): _R_PLUS,
    ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "reasoning"): "no reasoning without tools",
    ("GigaChat3-10B-A1.8B", "calls"): _ONE_CALL,
    ("GigaChat3.1-10B-A1.8B", "calls"): _ONE_CALL,
    ("LFM2-8B-A1B", "calls"): _NOT_SHOWN,
    ("LFM2-8B-A1B", "reasoning"): _LFM2,
    ("LFM2-8B-A1B", "reasoning+call"): _LFM2,
    ("LFM2.5-Instruct", "calls"): _NOT_SHOWN,
    ("LFM2.5-Instruct", "reasoning"): _LFM2,
    ("LFM2.5-Instruct", "reasoning+call"): _LFM2,
    ("MiniMax-M1", "calls"): _SEPARATE,
    ("MiniMax-M2", "calls"): _SEPARATE,
    ("Mistral-Small-3.2-24B-Instruct-2506", "call"): _ARGS,
    ("Mistral-Small-3.2-24B-Instruct-2506", "calls"): _ARGS,
    ("NVIDIA-Nemotron-Nano-v2", "content"): "reasoning is turned off by words in a message",
    ("llama-cpp-rwkv-world", "reasoning"): "the template adds an opening after every message",
    ("meetkai-functionary-medium-v3.2", "calls"): _SEPARATE,
    ("meta-llama-Llama-3.1-8B-Instruct", "calls"): _ONE_CALL,
    ("meta-llama-Llama-3.2-3B-Instruct", "calls"): _ONE_CALL,
    ("meta-llama-Llama-3.3-70B-Instruct", "calls"): _ONE_CALL,
    ("openai-gpt-oss-120b", "calls"): _ONE_CALL,
    ("unsloth-mistral-Devstral-Small-2507", "reasoning"): "the template drops such a message",
    ("upstage-Solar-Open-100B", "call"): _CALL_ID,
    ("upstage-Solar-Open-100B", "calls"): _CALL_ID,
}


def says(reply: ParsedReply, expected: Sample) -> bool:
    """Whether a reply says what the sample does; white space around it does not matter."""
    try:
        calls = [(call.name, json.loads(call.arguments)) for call in reply.tool_calls]
    except ValueError:
        return False
    reasoning = expected.message.get("reasoning_content", "")
    return (
        reply.complete
        and reply.content.strip() == expected.message["content"]
        and reply.reasoning.strip() == reasoning
        and calls == expected.calls
        and all(call.id for call in reply.tool_calls)
    )


def cases() -> list[Any]:
    out = []
    for name in NAMES:
        for kind in KINDS:
            if "call" in kind and name in NO_TOOLS:
                continue
            reason = KNOWN.get((name, kind))
            marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
            out.append(pytest.param(name, kind, id=f"{name}-{kind}", marks=marks))
    return out


def pieces(text: str, rng: random.Random) -> list[str]:
    """The text in pieces of 1 to 12 characters."""
    out = []
    while text:
        length = rng.randint(1, 12)
        out.append(text[:length])
        text = text[length:]
    return out


def stream(expected: Sample, parts: list[str]) -> ParsedReply:
    """Parse in pieces; check that the deltas add up to the reply."""
    parser = ChatStream(expected.rendered)
    deltas = [delta for part in parts for delta in parser.feed(part)]
    deltas += parser.flush()
    reply, folded = parser.finish(), fold(deltas)
    folded.complete = reply.complete
    assert folded == reply
    return reply


@pytest.mark.parametrize(("name", "kind"), cases())
def test_reply_parses_whole_and_in_every_split(name: str, kind: str) -> None:
    if "reasoning" in kind and not families.load(name).supports_thinking:
        assert not families.load(name).render(chat_request(USER)).thinking_ends
        return
    expected = sample(name, kind)
    assert says(parse_reply(expected.rendered, expected.text), expected)
    rng = random.Random(f"{name} {kind}")
    assert says(stream(expected, list(expected.text)), expected)
    for _ in range(3):
        assert says(stream(expected, pieces(expected.text, rng)), expected)


@pytest.mark.parametrize("name", NAMES)
def test_text_flows(name: str) -> None:
    """Text is not kept back until the end: all but a few characters is told at once."""
    kind = "reasoning" if families.load(name).supports_thinking else "content"
    if (name, kind) in KNOWN:
        kind = "content"
    expected = sample(name, kind)
    parser = ChatStream(expected.rendered)
    told = fold([delta for char in expected.text for delta in parser.feed(char)])
    assert told.content.strip() or told.reasoning.strip()
    for field, text in (("content", CONTENT), ("reasoning", REASONING)):
        if getattr(told, field):
            assert len(getattr(told, field).strip()) >= len(text) - 2


@pytest.mark.parametrize("name", NO_TOOLS)
def test_tools_without_a_form_are_an_error_where_no_other_is_wanted(name: str) -> None:
    template = ChatTemplate.from_text(families.source(name), tool_form="template")
    with pytest.raises(TemplateError, match="no form for tool calls"):
        template.render(chat_request(USER, tools=TOOLS))
    template.render(chat_request(USER, tools=TOOLS, tool_choice="none"))


def test_tables_name_templates_that_exist() -> None:
    assert {name for name, _ in KNOWN} | set(NO_TOOLS) <= set(NAMES)
    assert len(NAMES) >= 70


# ---- rendering ---------------------------------------------------------------------------------

_HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": 'Say "hello" <b>twice</b>'},
    {"role": "assistant", "content": "Hello, hello."},
    {"role": "user", "content": "Weather in Paris?"},
]
_TOOL_HISTORY: list[dict[str, Any]] = [
    *_HISTORY,
    {"role": "assistant", "content": "", "tool_calls": [WEATHER]},
    {
        "role": "tool",
        "tool_call_id": WEATHER["id"],
        "name": "get_weather",
        "content": '{"sunny": true}',
    },
    {"role": "assistant", "content": "Sunny."},
    {"role": "user", "content": "Thanks, é!"},
]

#: (template, with tools) that Transformers refuses or renders otherwise, and why.
OTHERWISE = {
    ("CohereForAI-c4ai-command-r-plus-tool_use", False): "iterates over tools, which are none",
    ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", False): "iterates over tools, which are none",
    ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", False): "iterates over tools, which are none",
    ("Kimi-K2-Instruct", True): "changes a list, which its sandbox forbids",
    ("Kimi-K2-Thinking", True): "changes a list, which its sandbox forbids",
    ("fireworks-ai-llama-3-firefunction-v2", False): "needs a variable that nobody gives it",
    ("fireworks-ai-llama-3-firefunction-v2", True): "needs a variable that nobody gives it",
    ("google-gemma-2-2b-it", False): "refuses system messages; llama.cpp merges them",
    ("google-gemma-2-2b-it", True): "refuses tool messages",
    ("google-translategemma-4b-it", True): "refuses tool messages",
    ("google-gemma-4-31B-it-interleaved", True): "llama.cpp rearranges tool results",
    ("llama-cpp-deepseek-r1", True): "writes a generator as JSON",
}


def with_empty_reasoning(messages: list[Any]) -> list[Any]:
    return [
        {"reasoning_content": "", **each} if each["role"] == "assistant" else each
        for each in messages
    ]


def translated(messages: list[Any]) -> list[Any]:
    """A system message is part of the first text, and each text has its languages."""
    first, second, *rest = messages
    second = {**second, "content": f"{first['content']}\n{second['content']}"}
    languages = {"source_lang_code": "en-GB", "target_lang_code": "en-GB"}
    return [
        {**each, "content": [{"type": "text", "text": each["content"], **languages}]}
        if each["role"] == "user"
        else each
        for each in [second, *rest]
    ]


#: What llama.cpp makes of messages for templates that refuse others.
GIVEN: dict[str, Callable[[list[Any]], list[Any]]] = {
    "IFM-K2-Horizon": with_empty_reasoning,
    "google-translategemma-4b-it": translated,
}


def rendered_by_python(name: str, with_tools: bool, objects: bool, empty: Any = "") -> str:
    messages: list[Any] = copy.deepcopy(_TOOL_HISTORY if with_tools else _HISTORY)
    for message in messages:
        if "tool_calls" in message:
            message["content"] = empty
    messages = GIVEN.get(name, list)(messages)
    for message in messages:
        for entry in message.get("tool_calls", ()):
            if objects:  # some templates want the arguments as text, others as an object
                entry["function"]["arguments"] = json.loads(entry["function"]["arguments"])
    return transformers_jinja.render(
        families.source(name),
        messages=messages,
        tools=TOOLS if with_tools else None,
        bos_token=BOS,
        eos_token=EOS,
        add_generation_prompt=True,
        enable_thinking=True,
        date_string=time.strftime("%d %b %Y"),
        datetime=time.strftime("%b %d %Y"),
    )


def rendered_by_us(name: str, with_tools: bool) -> str:
    messages = _TOOL_HISTORY if with_tools else _HISTORY
    tools = TOOLS if with_tools else None
    choice = "none" if name in NO_TOOLS else None
    request = chat_request(messages, tools=tools, tool_choice=choice)
    source = families.source(name)
    template = ChatTemplate.from_text(
        source, bos=families.BOS, eos=families.EOS, tool_form="template"
    )
    return template.render(request).prompt


@pytest.mark.parametrize("with_tools", [False, True], ids=["plain", "tools"])
@pytest.mark.parametrize("name", NAMES)
def test_renders_as_transformers_does(name: str, with_tools: bool) -> None:
    if (name, with_tools) in OTHERWISE:
        assert_renders_otherwise(name, with_tools)
        return
    ours = rendered_by_us(name, with_tools)
    theirs = []
    for objects, empty in product((True, False), ("", None)):
        with suppress(jinja2.TemplateError, TypeError):
            theirs.append(rendered_by_python(name, with_tools, objects, empty))
    assert ours in theirs


def assert_renders_otherwise(name: str, with_tools: bool) -> None:
    """What Transformers cannot confirm still contains every message (or is refused by both)."""
    try:
        theirs = rendered_by_python(name, with_tools, True)
    except (jinja2.TemplateError, TypeError):
        theirs = ""
    try:
        ours = rendered_by_us(name, with_tools)
    except TemplateError:
        assert theirs == ""
        return
    assert ours != theirs
    assert all(text in ours for text in ("Be brief.", "Hello, hello.", "Weather in Paris?"))


@pytest.mark.parametrize("name", NAMES)
def test_message_starts(name: str) -> None:
    """A message starts between the end of the one before and its own text."""
    rendered = families.load(name).render(chat_request(_HISTORY, now=0))
    prompt, starts = rendered.prompt, rendered.message_starts
    assert list(starts) == sorted(set(starts))
    assert all(0 < start < len(prompt) for start in starts)
    before = prompt.find("Hello, hello.") + len("Hello, hello.")
    assert any(before <= start < prompt.find("Weather in Paris?") for start in starts)
    assert prompt.endswith(rendered.generation_prompt)
    for start in starts:  # never inside a marker
        assert not prompt[:start].endswith(("<", "<|"))


@pytest.mark.parametrize("with_tools", [False, True], ids=["plain", "tools"])
@pytest.mark.parametrize("name", NAMES)
def test_a_template_variable_turns_reasoning_off_everywhere(name: str, with_tools: bool) -> None:
    """``chat_template_kwargs`` is how many programs say it; prompt and parser have to agree."""
    if with_tools and name in NO_TOOLS:
        return
    template = families.load(name)
    tools = TOOLS if with_tools else None
    for thinking in (False,) if with_tools else (False, True):
        variables = {"enable_thinking": thinking}
        said = template.render(chat_request(USER, tools=tools, enable_thinking=thinking))
        by_variable = template.render(chat_request(USER, tools=tools, template_kwargs=variables))
        assert by_variable == said
