"""The deepest role boundary that is held is found: transcripts of agents, in every chat template.

Two agents with one preamble (several system messages, and tools) take turns. The prompts are those
that the templates of llama.cpp make; memory and vocabulary are plain Python, so that every template
can be tried with each kind of memory.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from llama_py.errors import TemplateError
from llama_py.memory.kinds import MemoryTraits
from tests.chat import families
from tests.chat.openai import chat_request
from tests.memory.fake_memory import FULL, RECURRENT, FakeRig, window

#: A boundary may be passed by for a checkpoint that is so close before it.
AGAIN = 24
#: Templates that change what they wrote behind the last message: the opening of a reply, or a
#: message of their own. Where memory cannot be cut, only the preamble is certain to be reused.
REWRITING = ("MiniMax-M2", "CohereForAI-c4ai-command-r-plus-tool_use")
#: Templates that write the system message into the user's.
NO_PREAMBLE = (
    "google-gemma-2-2b-it",
    "google-translategemma-4b-it",
    "mistralai-Mistral-Nemo-Instruct-2407",
)
MEMORIES = {"full": FULL, "window": window(32), "recurrent": RECURRENT}

Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Prompt:
    """A prompt of a transcript, and the offsets at which its messages begin, in bytes."""

    text: bytes
    boundaries: tuple[int, ...]

    def shared_with(self, other: Prompt) -> int:
        pairs = enumerate(zip(self.text, other.text, strict=False))
        least = min(len(self.text), len(other.text))
        return next((at for at, (one, two) in pairs if one != two), least)

    def common_boundary(self, other: Prompt) -> int:
        """The deepest place where in both of them a message begins."""
        shared = self.shared_with(other)
        common = {*self.boundaries} & {*other.boundaries}
        return max((at for at in common if at <= shared), default=0)


def transcript(agent: str) -> Messages:
    """What one of them says; the first two messages are those of both."""
    messages: Messages = [
        {"role": "system", "content": "You are an agent that works in a repository."},
        {"role": "system", "content": "Tools run in a sandbox. Be brief."},
        {"role": "user", "content": f"{agent} asks: what is the weather in Paris, and 58 + 69?"},
    ]
    asked: list[tuple[str, dict[str, Any]]] = [
        ("get_weather", {"city": agent, "days": 47}),
        ("add", {"a": 58, "b": 69}),
    ]
    for number, (name, given) in enumerate(asked):
        call_id = f"{agent[:4]:x<8}{number}"
        call = families.call(name, given, call_id)
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": call_id, "name": name}
        messages += [said, {**result, "content": json.dumps({agent: [number] * 12})}]
    messages.append({"role": "assistant", "content": f"It is sunny, {agent}."})
    messages.append({"role": "user", "content": "And tomorrow?"})
    messages.append({"role": "assistant", "content": "Rain."})
    return messages


def plain(messages: Messages) -> Messages:
    """Without tools, for templates that have no form for them."""
    return [
        {"role": each["role"].replace("tool", "user"), "content": each["content"] or "I look."}
        for each in messages
    ]


@cache
def prompts_of(name: str, agent: str) -> tuple[Prompt, ...]:
    """The prompt before each turn of the assistant."""
    template = families.load(name)
    messages = transcript(agent)
    try:
        return _rendered(template, messages, families.TOOLS)
    except TemplateError:
        return _rendered(template, plain(messages), None)


def _rendered(template: Any, messages: Messages, tools: Any) -> tuple[Prompt, ...]:
    found = []
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            request = chat_request(messages[:index], tools=tools, now=0, enable_thinking=False)
            rendered = template.render(request)
            starts = tuple(len(rendered.prompt[:at].encode()) for at in rendered.message_starts)
            found.append(Prompt(rendered.prompt.encode(), starts))
    return tuple(found)


def reused_in_turn(
    traits: MemoryTraits, agents: list[tuple[Prompt, ...]]
) -> list[tuple[Prompt, list[Prompt], int]]:
    """The agents take turns: each prompt, those before it, and how much of it was reused."""
    rig = FakeRig(traits, n_seq_max=8, n_ctx=1 << 20)
    before: list[Prompt] = []
    out = []
    for turn in zip(*agents, strict=True):
        for prompt in turn:
            resolved = rig.cache.resolve_text(prompt.text, prompt.boundaries)
            lease = rig.begin(resolved, size=512)
            out.append((prompt, [*before], lease.info.reused))
            rig.reply(lease, [*b" no"])
            before.append(prompt)
    return out


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("name", families.names())
def test_each_prompt_resumes_at_the_deepest_boundary(name: str, memory: str) -> None:
    agents = [prompts_of(name, agent) for agent in ("Anna", "Bert")]
    for prompt, before, reused in reused_in_turn(MEMORIES[memory], agents):
        shared = max((prompt.shared_with(other) for other in before), default=0)
        if memory == "full":  # any place will do
            assert reused >= min(shared, len(prompt.text) - 1)
        else:
            deepest = max((prompt.common_boundary(other) for other in before), default=0)
            if name in REWRITING and memory == "recurrent":
                deepest = min(deepest, prompt.boundaries[0])
            assert reused >= deepest - AGAIN, prompt.text[reused : deepest + 40]


@pytest.mark.parametrize("name", sorted({*families.names()} - {*NO_PREAMBLE}))
def test_the_preamble_ends_at_a_boundary(name: str) -> None:
    """What two agents share is found: system messages and tools, up to what the first one asks."""
    one, two = (prompts_of(name, agent)[0] for agent in ("Anna", "Bert"))
    shared = one.shared_with(two)
    deepest = max((at for at in one.boundaries if at <= shared), default=0)
    between = one.text[deepest:shared]
    assert b"sandbox" not in between, between
    assert b"get_weather" not in between, between
