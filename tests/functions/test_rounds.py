"""Calls are made until the conversation is answered; whatever goes wrong is a result."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from llama_py import AsyncLlama, Llama, demo_model_path
from llama_py.errors import ParameterError, ParameterTypeError
from llama_py.functions.rounds import (
    ArgumentsPiece,
    CallBegan,
    FunctionResult,
    RoundEnd,
    RunEnd,
    TextPiece,
    ToolLoop,
    ToolRun,
)


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(demo_model_path(), n_ctx=1024, n_seq_max=2) as made:
        yield made


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"21 degrees and sunny in {city}"


QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]


def test_a_real_model_calls_and_sees_the_result(llm: Llama) -> None:
    run = llm.run_tools(QUESTION, [get_weather], temperature=0, max_rounds=2, on_call=once())
    assert run.calls[0].values == {"city": "Paris"}
    assert run.calls[0].text == "21 degrees and sunny in Paris"
    assert run.messages[2]["content"] == run.calls[0].text
    assert [each["role"] for each in run.messages][:4] == ["user", "assistant", "tool", "assistant"]


def once() -> Callable[[Any], bool]:
    return lambda _: True


def test_each_round_evaluates_only_what_is_new(llm: Llama) -> None:
    events = [*llm.run_tools(QUESTION, [get_weather], stream=True, temperature=0, max_rounds=2)]
    first, second = (each.usage for each in events if isinstance(each, RoundEnd))
    cached = second["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["prompt_tokens"]
    assert isinstance(events[-1], RunEnd)
    assert any(isinstance(each, CallBegan) for each in events)
    assert any(isinstance(each, FunctionResult) for each in events)


def test_coroutines_are_awaited(llm: Llama) -> None:
    async def get_weather(city: str) -> str:
        await asyncio.sleep(0)
        return f"rain in {city}"

    async def main() -> ToolRun:
        async with AsyncLlama(llama=llm) as model:
            return await model.run_tools(QUESTION, [get_weather], temperature=0, max_rounds=1)

    run = asyncio.run(main())
    assert (run.calls[0].text, run.finished) == ("rain in Paris", "max_rounds")


def test_a_session_runs_tools_and_goes_on(llm: Llama) -> None:
    chat = llm.chat_session(temperature=0)
    run = chat.run("What is the weather in Paris?", [get_weather], max_rounds=2)
    assert chat.messages == run.messages
    assert run.calls[0].text == "21 degrees and sunny in Paris"
    before = chat.messages
    with pytest.raises(ParameterError):
        chat.run("And in Rome?", [get_weather], max_rounds=0)
    assert chat.messages == before


# ---- the loop, with replies that are given -----------------------------------------------------


def reply(text: str = "", calls: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """The chunks of a reply, in pieces."""
    pieces: list[dict[str, Any]] = [{"content": each} for each in text]
    for index, (name, arguments) in enumerate((calls or {}).items()):
        function = {"name": name.rstrip("_"), "arguments": ""}
        pieces.append({"tool_calls": [{"index": index, "id": f"c{index}", "function": function}]})
        for each in (arguments[:3], arguments[3:]):
            pieces.append({"tool_calls": [{"index": index, "function": {"arguments": each}}]})
    ended: list[dict[str, Any]] = [
        {"choices": [{"delta": {}, "finish_reason": "tool_calls" if calls else "stop"}]}
    ]
    return [{"choices": [{"delta": each}]} for each in pieces] + ended


def run_of(
    replies: list[list[dict[str, Any]]], tools: list[Callable[..., Any]], **options: Any
) -> tuple[ToolRun, list[Any]]:
    given = iter(replies)
    loop = ToolLoop([{"role": "user", "content": "x"}], tools, **options)
    events = [*loop.events(lambda _: next(given))]
    return loop.run, events


def test_the_events_come_in_order() -> None:
    replies = [reply("ab", {"get_weather": '{"city": "Rome"}'}), reply("done")]
    run, events = run_of(replies, [get_weather])
    kinds = [type(each) for each in events]
    assert kinds[:5] == [TextPiece, TextPiece, CallBegan, ArgumentsPiece, ArgumentsPiece]
    assert kinds[5:7] == [FunctionResult, RoundEnd]
    assert (run.text, run.finished, run.rounds) == ("done", "stop", 2)
    assert run.messages[1]["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}'


def fails(city: str) -> str:
    raise KeyError(city)


@pytest.mark.parametrize(
    ("tools", "call", "text"),
    [
        ([get_weather], {"wheather": "{}"}, "there is no tool wheather; there are: get_weather"),
        ([get_weather], {"get_weather": '{"town": "x"}'}, "city is missing"),
        ([get_weather], {"get_weather": '{"city": 3}'}, "city must be of type string, not 3"),
        ([get_weather], {"get_weather": '{"city"'}, 'the arguments are not JSON: {"city"'),
        ([fails], {"fails": '{"city": "x"}'}, "KeyError: 'x'"),
    ],
)
def test_what_goes_wrong_is_a_result(
    tools: list[Callable[..., Any]], call: dict[str, str], text: str
) -> None:
    run, _ = run_of([reply("", call), reply("I see.")], tools)
    assert run.calls[0].text == run.messages[2]["content"] == text
    assert run.calls[0].error is not None
    assert run.text == "I see."


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (True, "21 degrees and sunny in Rome"),
        ({"city": "Bonn"}, "21 degrees and sunny in Bonn"),
        (False, "this call was refused"),
        ("ask again tomorrow", "ask again tomorrow"),
    ],
)
def test_somebody_may_approve_change_or_refuse(answer: Any, text: str) -> None:
    replies = [reply("", {"get_weather": '{"city": "Rome"}'}), reply("done")]
    run, _ = run_of(replies, [get_weather], on_call=lambda call: answer)
    assert run.calls[0].text == text


def test_an_approval_that_says_nothing_is_an_error() -> None:
    replies = [reply("", {"get_weather": '{"city": "Rome"}'})]
    with pytest.raises(ParameterTypeError, match="on_call returned None"):
        run_of(replies, [get_weather], on_call=lambda call: None)


def test_calls_of_a_reply_run_beside_each_other_and_keep_their_order() -> None:
    running: list[str] = []

    def slow(name: str) -> str:
        running.append(name)
        until = time.monotonic() + 10
        while len(running) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        return f"{name} of {len(running)}"

    calls = {"slow": '{"name": "a"}', "slow_": '{"name": "b"}'}
    run, _ = run_of([reply("", calls), reply("done")], [slow])
    assert [each.text for each in run.calls] == ["a of 2", "b of 2"]


def test_a_call_that_takes_too_long_and_a_long_result() -> None:
    def sleeps() -> str:
        time.sleep(2)
        return ""

    run, _ = run_of([reply("", {"sleeps": "{}"}), reply("done")], [sleeps], timeout=0.05)
    assert run.calls[0].text == "TimeoutError: sleeps did not end within 0.05 seconds"

    def long() -> str:
        return "x" * 100

    run, _ = run_of([reply("", {"long": "{}"}), reply("done")], [long], max_result_chars=10)
    assert run.calls[0].text == "x" * 10 + "... (90 characters more)"
    assert run.calls[0].result == "x" * 100


def test_rounds_are_bounded_and_the_conversation_can_go_on() -> None:
    replies = [reply("", {"get_weather": '{"city": "Rome"}'}) for _ in range(3)]
    run, _ = run_of(replies, [get_weather], max_rounds=3)
    assert (run.finished, run.rounds, len(run.calls)) == ("max_rounds", 3, 3)
    assert run.messages[-1]["role"] == "tool"
    with pytest.raises(ParameterError, match="max_rounds must be at least 1"):
        ToolLoop([], [get_weather], max_rounds=0)
    with pytest.raises(ParameterError, match="two tools are called get_weather"):
        ToolLoop([], [get_weather, get_weather])


@dataclass
class Hour:
    hour: int

    def __post_init__(self) -> None:
        if self.hour > 23:
            raise ValueError("a day has 24 hours")


def wakes(at: Hour) -> str:
    return str(at.hour)


def ends(city: str) -> str:
    sys.exit(f"usage: {city}")


def half(city: str) -> str:
    return "x\ud800y"


@pytest.mark.parametrize(
    ("tool", "arguments", "text"),
    [
        (ends, '{"city": "x"}', "RuntimeError: the function wanted to end the program: usage: x"),
        (half, '{"city": "x"}', "x?y"),
        (wakes, '{"at": {"hour": 25}}', "the arguments do not fit: a day has 24 hours"),
    ],
)
def test_a_tool_cannot_end_the_run(tool: Callable[..., Any], arguments: str, text: str) -> None:
    replies = [reply("", {tool.__name__: arguments}), reply("done")]
    run, _ = run_of(replies, [tool])
    assert (run.calls[0].text, run.text) == (text, "done")
    assert asyncio.run(async_run_of(replies, [tool])).calls[0].text == text


async def async_run_of(
    replies: list[list[dict[str, Any]]], tools: list[Callable[..., Any]], **options: Any
) -> ToolRun:
    given = iter(replies)
    loop = ToolLoop([{"role": "user", "content": "x"}], tools, **options)

    async def ask(_: Any) -> AsyncIterator[Any]:
        for each in next(given):
            yield each

    async for _ in loop.async_events(ask):
        pass
    return loop.run


def test_an_approval_may_be_awaited_and_is_never_skipped() -> None:
    async def refuses(call: Any) -> bool:
        await asyncio.sleep(0)
        return False

    replies = [reply("", {"get_weather": '{"city": "Rome"}'}), reply("done")]
    run = asyncio.run(async_run_of(replies, [get_weather], on_call=refuses))
    assert run.calls[0].text == "this call was refused"
    with pytest.raises(ParameterError, match="only AsyncLlama awaits"):
        run_of(replies, [get_weather], on_call=refuses)


def test_a_partial_is_the_function_without_an_argument() -> None:
    async def tells(city: str, unit: str) -> str:
        return f"{city} in {unit}"

    tool = functools.partial(tells, unit="F")
    replies = [reply("", {"tells": '{"city": "Rome"}'}), reply("done")]
    assert run_of(replies, [tool])[0].calls[0].text == "Rome in F"
    assert asyncio.run(async_run_of(replies, [tool])).calls[0].text == "Rome in F"


def test_several_replies_at_once_are_refused(llm: Llama) -> None:
    with pytest.raises(ParameterError, match="n=2"):
        llm.run_tools(QUESTION, [get_weather], n=2)


HANGS = """
import asyncio, sys, time
from llama_py.functions.rounds import ToolLoop

def hangs() -> str:
    time.sleep(3600)

function = {"name": "hangs", "arguments": "{}"}
calls = [{"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c", "function": function}]}}]}]
def loop():
    return ToolLoop([], [hangs], timeout=0.1, max_rounds=1)
async def ask(_):
    yield calls[0]
async def main():
    return [each async for each in loop().async_events(ask)]
print([*loop().events(lambda _: calls)][-1].run.calls[0].text)
print(asyncio.run(main())[-1].run.calls[0].text)
"""


def test_a_tool_that_does_not_end_does_not_keep_the_program() -> None:
    command = [sys.executable, "-c", HANGS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.count("did not end within") == 2, done.stderr
