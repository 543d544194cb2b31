"""Agents that share a preamble and take turns: what is shared is evaluated once.

Switching between them costs only what is new, also where not all have room, and one is offloaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from llama_py import Llama
from llama_py.bench.synthetic import TOOLS, make
from llama_py.memory.sequences import common_prefix
from tests.chat import families
from tests.models import tiny_model

KINDS = ("full", "iswa", "hybrid")
#: Lists tools, and writes calls and their results.
TEMPLATE = "Qwen-Qwen2.5-7B-Instruct"
N_REPLY = 4
#: Tokens that are evaluated again with a call: the opening of the reply, and the end of a message.
AGAIN = 16

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Call:
    """A call of an agent: its tokens, how many of them no earlier prompt begins with, and what
    was evaluated."""

    agent: int
    tokens: list[int]
    new: int
    evaluated: int
    action: str
    text: str


def agents(count: int, characters: int, longest: int) -> list[list[Messages]]:
    """The calls of each agent; they begin with the same system messages and tools.

    Args:
        longest: characters of a message.
    """
    found: list[list[Messages]] = []
    for number in range(count):
        messages = make(characters, seed=number + 1)
        messages = [{**message, "content": message["content"][:longest]} for message in messages]
        question = next(message for message in messages if message["role"] == "user")
        question["content"] = f"Agent {number}: {question['content']}"
        ends = (i for i, message in enumerate(messages) if message["role"] == "assistant")
        found.append([messages[:end] for end in ends])
    return found


def in_turn(calls: list[list[Messages]]) -> Iterator[tuple[int, Messages]]:
    for turn in range(max(map(len, calls))):
        for agent, own in enumerate(calls):
            if turn < len(own):
                yield agent, own[turn]


def play(llm: Llama, calls: list[list[Messages]]) -> list[Call]:
    done: list[Call] = []
    for agent, messages in in_turn(calls):
        prompt = llm.runtime.calls.prompt_of(messages, {"tools": TOOLS[:1]})
        tokens = llm.runtime.calls.tokens_of(prompt)
        shared = max((common_prefix(tokens, call.tokens) for call in done), default=0)
        reply = llm.create_chat_completion(
            messages, tools=TOOLS[:1], temperature=0.0, max_tokens=N_REPLY, ignore_eos=True
        )
        info = llm.cache.info
        said = reply["choices"][0]["message"]
        text = f"{said['content']}{said.get('tool_calls')}"
        new = len(tokens) - min(shared, len(tokens) - 1)
        done.append(Call(agent, tokens, new, info["evaluated"], info["action"], text))
    return done


def load(kind: str, **options: Any) -> Llama:
    exact = {"flash_attn": False, "type_k": 0, "type_v": 0, "verbose": False}
    exact |= {"n_threads": 1, "n_threads_batch": 1}
    path = tiny_model(kind, chat_template=families.source(TEMPLATE), n_ctx_train=16384)
    return Llama(str(path), **{**exact, **options})


def check(done: Sequence[Call]) -> None:
    for number, call in enumerate(done):
        assert call.evaluated <= call.new + AGAIN, f"call {number} of agent {call.agent}"
    first = {call.agent: call for call in reversed(done)}
    for agent, call in first.items():  # the preamble, and what is shared of the question
        assert agent == 0 or call.evaluated < len(call.tokens) / 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("room", ["cells for two", "sequences for two"])
def test_three_agents_take_turns(kind: str, room: str) -> None:
    _three_agents(kind, room, characters=2400, longest=100)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("room", ["all", "cells for two", "sequences for two"])
def test_three_long_agents_take_turns(kind: str, room: str) -> None:
    _three_agents(kind, room, characters=12_000, longest=4000)


def _three_agents(kind: str, room: str, characters: int, longest: int) -> None:
    calls = agents(3, characters, longest)
    with load(kind, n_ctx=512) as llm:
        prompts = [llm.runtime.calls.prompt_of(own[-1], {"tools": TOOLS[:1]}) for own in calls]
        ends = [llm.runtime.calls.tokens_of(prompt) for prompt in prompts]
    shared = common_prefix(ends[0], ends[1])
    lengths = sorted(len(tokens) + 4 * N_REPLY for tokens in ends)
    n_ctx = sum(lengths) + 256
    options: dict[str, Any] = {"n_seq_max": 12}
    if room == "cells for two":
        n_ctx = lengths[-1] + lengths[-2] - shared + 64
    elif room == "sequences for two":
        options = {"n_seq_max": 2}
    with load(kind, n_ctx=n_ctx, **options) as llm:
        done = play(llm, calls)
        check(done)
        if room != "all":
            assert "load" in {call.action for call in done}
        last = calls[0][-1]
        llm.reset()
        fresh = play(llm, [[last]])[0]
        assert fresh.text == [call.text for call in done if call.agent == 0][-1]
