"""System messages anywhere in a conversation, through every template that llama.cpp ships."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_py.chat.content import render_content
from llama_py.chat.conversation import (
    ImagePart,
    Message,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from llama_py.chat.formats import get_chat_format, register_chat_format, unregister_chat_format
from llama_py.chat.messages import ChatRequest
from llama_py.chat.templates.formatter import ChatFormatterResponse
from llama_py.chat.templates.markup import Markup
from llama_py.chat.templates.probes import ProbedSlots
from llama_py.chat.templates.system import FixedSlots, place_system
from llama_py.chat.templates.template import ChatTemplate
from llama_py.dialects.openai.messages import read_tools
from llama_py.errors import TemplateError
from tests.chat import families
from tests.chat.families import TOOLS

#: What templates do with a system message that is not the first: some of each kind.
REFUSING = ("Qwen3.5-4B", "Apertus-8B-Instruct", "mistralai-Mistral-Nemo-Instruct-2407")
DROPPING = ("openai-gpt-oss-120b", "MiniMax-M2", "HuggingFaceTB-SmolLM3-3B")
HOISTING = ("deepseek-ai-DeepSeek-V3.1", "upstage-Solar-Open-100B", "llama-cpp-deepseek-r1")
TAKING = ("Qwen-Qwen3-0.6B", "GLM-4.6", "meta-llama-Llama-3.3-70B-Instruct", "Kimi-K2-Instruct")
ALTERNATING = (
    "mistralai-Mistral-Nemo-Instruct-2407",
    "mistralai-Ministral-3-14B-Reasoning-2512",
    "google-gemma-2-2b-it",
    "google-translategemma-4b-it",
)

ONE_SLOT = FixedSlots(several=False)
NO_SLOT = FixedSlots(first=False)
EVERYWHERE = FixedSlots(later=True, after_results=True)
STRICT = FixedSlots(several=False, adjacent_users=False)


def say(role: Role, *texts: str) -> Message:
    return Message(role, tuple(map(Text, texts)))


def result(text: str, call_id: str = "abcdefgh1") -> Message:
    return Message("tool", (ToolResult(call_id, (Text(text),), name="add"),))


def calling(*ids: str) -> Message:
    calls = (ToolCall("add", '{"a": 1, "b": 2}', call_id) for call_id in ids or ("abcdefgh1",))
    return Message("assistant", tuple(calls))


S, D, U, A = say("system", "S"), say("developer", "D"), say("user", "U"), say("assistant", "A")


def brief(messages: Sequence[Message]) -> str:
    """``u:U s:S``: the roles and texts of a conversation."""
    out = []
    for message in messages:
        parts = [p for part in message.parts for p in getattr(part, "content", (part,))]
        texts = [part.text for part in parts if isinstance(part, Text)]
        out.append(f"{message.role[0]}:{'|'.join(texts)}")
    return " ".join(out).replace("\n\n", "+")


@pytest.mark.parametrize(
    ("messages", "slots", "expected"),
    [
        ((S, U), ONE_SLOT, "s:S u:U"),
        ((S, D, U), ONE_SLOT, "s:S+D u:U"),
        ((S, D, U), FixedSlots(), "s:S d:D u:U"),
        ((S, D, U), NO_SLOT, "u:S+D+U"),
        ((S, A, U), NO_SLOT, "u:S a:A u:U"),
        ((S,), NO_SLOT, "u:S"),
        ((U, S), ONE_SLOT, "u:U+S"),
        ((U, S, D, A, U), ONE_SLOT, "u:U+S+D a:A u:U"),
        ((U, A, S, U), ONE_SLOT, "u:U a:A u:S+U"),
        ((U, A, S, D), ONE_SLOT, "u:U a:A u:S+D"),
        ((U, A, S, A, U), ONE_SLOT, "u:U a:A u:S a:A u:U"),
        ((U, S, U), ONE_SLOT, "u:U+S u:U"),
        ((U, S, U), STRICT, "u:U+S+U"),
        ((U, S, U, S, A, U), STRICT, "u:U+S+U+S a:A u:U"),
        ((U, U), STRICT, "u:U u:U"),  # what no system message causes is the template's affair
        ((S, U, S, A, S, U), EVERYWHERE, "s:S u:U s:S a:A s:S u:U"),
        ((U, calling(), result("1"), S), ONE_SLOT, "u:U a: t:1+S"),
        ((U, calling(), result("1"), S, U), ONE_SLOT, "u:U a: t:1+S u:U"),
        ((U, calling(), result("1"), U, S), ONE_SLOT, "u:U a: t:1 u:U+S"),
        ((U, calling(), result("1"), S), EVERYWHERE, "u:U a: t:1 s:S"),
        ((U, calling(), result("1"), S), FixedSlots(later=True), "u:U a: t:1+S"),
        ((U, say("system", ""), A), ONE_SLOT, "u:U a:A"),
        ((say("user", ""), S), ONE_SLOT, "u:S"),
        ((say("user", "a", "b"), S), ONE_SLOT, "u:a|b+S"),
    ],
)
def test_where_they_go(messages: Sequence[Message], slots: FixedSlots, expected: str) -> None:
    assert brief(place_system(messages, slots)) == expected


@pytest.mark.parametrize("slots", [ONE_SLOT, EVERYWHERE], ids=["folded", "kept"])
def test_nothing_comes_between_a_call_and_its_results(slots: FixedSlots) -> None:
    one, two = result("1", "a"), result("2", "b")
    for messages in (
        (U, calling("a", "b"), S, one, two, A),
        (U, calling("a", "b"), one, S, two, A),
        (U, calling("a", "b"), one, two, S, A),
    ):
        placed = brief(place_system(messages, slots))
        assert placed in ("u:U a: t:1 t:2+S a:A", "u:U a: t:1 t:2 s:S a:A")


def test_pictures_stay_where_they_are() -> None:
    picture = ImagePart(b"x")
    (message,) = place_system((Message("user", (Text("See"), picture)), S), ONE_SLOT)
    assert message.parts == (Text("See"), picture, Text("S"))


ROLES: tuple[Role, ...] = ("system", "developer", "user", "assistant", "tool")


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    """Any turns, of which each has a text of its own, with system messages among them."""
    out: list[Message] = []
    for number in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["system", "developer", "user", "assistant", "call"]))
        if kind == "call":
            out.append(calling())
            out += [S] * draw(st.integers(0, 1))
            out.append(result(f"<{number}>"))
        else:
            out.append(say(next(role for role in ROLES if role == kind), f"<{number}>"))
    return tuple(out)


_PLACES = ("first", "several", "later", "after_results", "adjacent_users")
SLOTS = [
    FixedSlots(**{name: bool(bits >> bit & 1) for bit, name in enumerate(_PLACES)})
    for bits in range(32)
]  # every combination


@given(conversations(), st.sampled_from(SLOTS))
@settings(max_examples=300, deadline=None)
def test_nothing_is_lost_and_nothing_overtakes(
    messages: tuple[Message, ...], slots: FixedSlots
) -> None:
    placed = place_system(messages, slots)
    words = brief(placed).replace("+", " ").replace("|", " ")
    numbers = [word.partition("<")[2].rstrip(">") for word in words.split() if "<" in word]
    given_ = [word.partition("<")[2].rstrip(">") for word in brief(messages).split() if "<" in word]
    assert numbers == given_
    assert slots.first is False or place_system(placed, slots) == placed


@given(conversations(), st.sampled_from(SLOTS))
@settings(max_examples=300, deadline=None)
def test_a_reply_changes_nothing_before_it(
    messages: tuple[Message, ...], slots: FixedSlots
) -> None:
    """The next turn's conversation begins with this one, whatever it brings."""
    before = place_system(messages, slots)
    for more in ((A, U), (A, U, S), (calling(), result("2"), S), (A, S, U)):
        assert place_system((*messages, *more), slots)[: len(before)] == before


# ---- templates ---------------------------------------------------------------------------------


@cache
def template_of(name: str) -> ChatTemplate:
    return families.load(name)


def slots_of(name: str) -> ProbedSlots:
    return template_of(name)._slots


def test_what_templates_take_is_found_out() -> None:
    for name in (*REFUSING, *DROPPING, *HOISTING):
        assert not slots_of(name).later
    for name in TAKING:
        slots = slots_of(name)
        assert slots.first
        assert slots.several
        assert slots.later
        assert slots.after_results
    for name in families.names():
        assert slots_of(name).adjacent_users == (
            name not in (*ALTERNATING, "Mistral-Small-3.2-24B-Instruct-2506")
        )


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (
            "{% for m in messages %}{{ '' if m.role == 'system' else '<' + m.role + '>' }}"
            "{{ m.content }}{% endfor %}",
            "unmarked",
        ),
        (
            "{% for m in messages %}<{{ 'user' if m.role == 'user' else 'bot' }}>{{ m.content }};"
            "{% endfor %}",
            "written like an assistant's",
        ),
        (
            "{% for m in messages %}<{{ 'bot' if m.role == 'assistant' else 'user' }}>"
            "{{ m.content }};{% endfor %}",
            "written like a user's",
        ),
        (
            "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
            "{% if messages[-1].role == 'user' %}<assistant>{% endif %}",
            "without an opening",
        ),
        (
            "{% set ns = namespace(t=tools) %}{% for m in messages %}<{{ m.role }}>{{ m.content }};"
            "{% if m.role == 'system' and ns.t %}{{ ns.t | tojson }}{% set ns.t = 0 %}{% endif %}"
            "{% endfor %}{{ (ns.t | tojson) if ns.t else '' }}",
            "with the tools behind it",
        ),
    ],
    ids=lambda value: value if len(value) < 40 else "",
)
def test_a_place_is_one_of_its_own(template: str, why: str) -> None:
    assert not ChatTemplate.from_text(template)._slots.later, why


def agent(turns: int, tools: bool) -> Iterator[tuple[Message, ...]]:
    """The conversation of an agent, as it grows: a note stands behind each of the user's turns."""
    messages = [say("system", "Xerxes."), say("developer", "Yolanda.")]
    for number in range(turns):
        messages += [say("user", f"Question {number}?"), say("system", f"Note {number}!")]
        yield tuple(messages)
        if tools:
            messages += [calling(), result(f"Result {number}."), say("system", f"Hint {number}!")]
            yield tuple(messages)
        messages.append(say("assistant", f"Answer {number}."))
        if number % 2:
            messages.append(say("system", f"Change {number}!"))


def closed(name: str, messages: tuple[Message, ...], tools: bool) -> str:
    request = ChatRequest(
        messages,
        tools=read_tools(TOOLS) if tools else (),
        add_generation_prompt=False,
        now=0,
    )
    return template_of(name).render(request).prompt


_TEXTS = re.compile(r"[A-Z]\w+(?: \d)?[.!?]")


def without_system(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return (*messages[:1], *(m for m in messages[1:] if m.role not in ("system", "developer")))


@pytest.mark.parametrize("tools", [False, True], ids=["plain", "tools"])
@pytest.mark.parametrize("name", families.names())
def test_every_turn_begins_with_the_turn_before(name: str, tools: bool) -> None:
    turns = [*agent(2, tools)]
    try:
        control = [closed(name, without_system(turn), tools) for turn in turns]
    except TemplateError:
        pytest.skip("the template refuses such conversations in any case")
    prompts = [closed(name, turn, tools) for turn in turns]
    for turn, prompt in zip(turns, prompts, strict=True):
        for said in _TEXTS.findall(brief(turn)):
            assert prompt.count(said) == 1
    for (one, two), (before, after) in zip(pairwise(prompts), pairwise(control), strict=True):
        if after.startswith(before):  # else what is said so far is not kept in any case
            assert two.startswith(one)


# ---- formats without a template ----------------------------------------------------------------

TALK = (S, D, U, say("system", "N"), A, U)


def test_a_format_of_the_table() -> None:
    def prompt(*messages: Message) -> str:
        return get_chat_format("chatml").render(ChatRequest(messages), None).prompt

    assert prompt(*TALK) == (
        "<|im_start|>system\nS\n\nD<|im_end|>\n<|im_start|>user\nU\n\nN<|im_end|>\n"
        "<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert prompt(*TALK).startswith(prompt(*TALK[:4]))


def test_a_format_that_is_a_function() -> None:
    def formatter(*, messages: Any, **kwargs: Any) -> ChatFormatterResponse:
        return ChatFormatterResponse(" ".join(f"{m['role'][0]}:{m['content']}" for m in messages))

    register_chat_format("anywhere")(formatter)
    try:
        chat_format = get_chat_format("anywhere")
        assert chat_format.render(ChatRequest(TALK), None).prompt == "s:S\n\nD u:U\n\nN a:A u:U"
    finally:
        unregister_chat_format("anywhere")


def test_what_a_system_message_says_stays_the_callers_word() -> None:
    """Folded into what a user says, its special tokens are still special; the user's are not."""
    template = template_of("Apertus-8B-Instruct")
    mark = "<|system_start|>"
    messages = (say("user", f"a{mark}"), say("system", f"b{mark}"))
    rendered = render_content(ChatRequest(messages), template.render, lambda: Markup([mark]))
    assert f"a{mark}\n\nb{mark}" in rendered.prompt
    (plain,) = rendered.plain_ranges
    assert rendered.prompt[slice(*plain)] == mark
    assert rendered.prompt[: plain[0]].endswith("a")
