"""What clients see of calls that a model writes by itself: in plain JSON, and in the general form.

The model is steered to the text of the reply; the clients are the official ones, in each dialect,
with streams and without.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.chat import families
from tests.server.scripted import Prompter, scripted_serving

FUNCTION = {"name": "get_weather", "description": "The weather of a city."}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
ARGUMENTS = {"city": "Paris", "days": 3}
CALL = json.dumps({"name": "get_weather", "arguments": ARGUMENTS})
MARKED = f"<tool_call>\n{CALL}\n</tool_call>"
ASKED = {"role": "user", "content": "What is the weather in Paris?"}
RESULT = "sunny, 21 degrees"
ANSWER = "It is sunny."


@dataclass
class Seen:
    """What a client saw of one reply.

    Attributes:
        calls: (id, name, text of the arguments) of each.
        pieces: the texts that came, one after the other.
        turn: what the client sends back of it.
    """

    calls: list[tuple[str, str, str]]
    pieces: list[str]
    reason: str
    prompt: int
    completion: int
    cached: int
    turn: list[Any] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


Ask = Callable[[Prompter, list[Any], bool], Seen]


# ---- clients ------------------------------------------------------------------------------------


def ask_chat(prompter: Prompter, messages: list[Any], stream: bool) -> Seen:
    tools: Any = [{"type": "function", "function": {**FUNCTION, "parameters": SCHEMA}}]
    options: Any = {"model": "tiny", "messages": messages, "tools": tools, "temperature": 0}
    with prompter.server.openai() as client:
        if not stream:
            reply = client.chat.completions.create(**options)
            message, usage = reply.choices[0].message, reply.usage
            calls = [
                (c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()
            ]
            pieces, reason = [message.content or ""], reply.choices[0].finish_reason
        else:
            calls, pieces, reason, usage = [], [], "", None
            for chunk in client.chat.completions.create(
                **options, stream=True, stream_options={"include_usage": True}
            ):
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    pieces.append(choice.delta.content or "")
                    reason = choice.finish_reason or reason
                    for part in choice.delta.tool_calls or ():
                        if part.index == len(calls):
                            calls.append((part.id, part.function.name, ""))
                        known = calls[part.index]
                        calls[part.index] = (*known[:2], known[2] + part.function.arguments)
    made = [
        {"id": a, "type": "function", "function": {"name": b, "arguments": c}} for a, b, c in calls
    ]
    said: Any = {"role": "assistant", "content": "".join(pieces) or None}
    results = [{"role": "tool", "tool_call_id": call[0], "content": RESULT} for call in calls]
    cached = usage.prompt_tokens_details.cached_tokens
    seen = Seen(calls, pieces, reason, usage.prompt_tokens, usage.completion_tokens, cached)
    seen.turn = [{**said, "tool_calls": made} if made else said, *results]
    return seen


def ask_messages(prompter: Prompter, messages: list[Any], stream: bool) -> Seen:
    options: Any = {
        "model": "tiny",
        "max_tokens": 200,
        "messages": messages,
        "tools": [{**FUNCTION, "input_schema": SCHEMA}],
        "extra_body": {"temperature": 0},
    }
    pieces: list[str] = []
    with prompter.server.anthropic() as client:
        if stream:
            with client.messages.stream(**options) as events:
                pieces += events.text_stream
                reply = events.get_final_message()
        else:
            reply = client.messages.create(**options)
            pieces += (block.text for block in reply.content if block.type == "text")
    calls = [
        (block.id, block.name, json.dumps(block.input))
        for block in reply.content
        if block.type == "tool_use"
    ]
    results = [{"type": "tool_result", "tool_use_id": c[0], "content": RESULT} for c in calls]
    content = [block.model_dump(exclude_none=True) for block in reply.content]
    usage, cached = reply.usage, reply.usage.cache_read_input_tokens or 0
    prompt = usage.input_tokens + cached + (usage.cache_creation_input_tokens or 0)
    seen = Seen(calls, pieces, reply.stop_reason, prompt, usage.output_tokens, cached)
    seen.turn = [{"role": "assistant", "content": content}]
    seen.turn += [{"role": "user", "content": results}] if results else []
    return seen


def ask_responses(prompter: Prompter, messages: list[Any], stream: bool) -> Seen:
    options: Any = {
        "model": "tiny",
        "input": messages,
        "tools": [{"type": "function", **FUNCTION, "parameters": SCHEMA, "strict": False}],
        "temperature": 0,
    }
    pieces: list[str] = []
    streamed: dict[str, str] = {}
    with prompter.server.openai() as client:
        if stream:
            for event in client.responses.create(**options, stream=True):
                if event.type == "response.output_text.delta":
                    pieces.append(event.delta)
                elif event.type == "response.function_call_arguments.delta":
                    streamed[event.item_id] = streamed.get(event.item_id, "") + event.delta
                elif event.type == "response.completed":
                    reply = event.response
        else:
            reply = client.responses.create(**options)
            pieces.append(reply.output_text)
    made = [item for item in reply.output if item.type == "function_call"]
    if stream:
        assert streamed == {item.id: item.arguments for item in made}
    calls = [(item.call_id, item.name, item.arguments) for item in made]
    usage, cached = reply.usage, reply.usage.input_tokens_details.cached_tokens
    seen = Seen(calls, pieces, reply.status, usage.input_tokens, usage.output_tokens, cached)
    seen.turn = [item.model_dump(exclude_none=True) for item in reply.output]
    seen.turn += [
        {"type": "function_call_output", "call_id": call[0], "output": RESULT} for call in calls
    ]
    return seen


#: Dialect -> how to ask, and why a reply ended that calls, and one that does not.
DIALECTS: dict[str, tuple[Ask, str, str]] = {
    "chat": (ask_chat, "tool_calls", "stop"),
    "messages": (ask_messages, "tool_use", "end_turn"),
    "responses": (ask_responses, "completed", "completed"),
}


# ---- servers ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def qwen() -> Iterator[Prompter]:
    """Its template has a form for tools."""
    with scripted_serving(families.source("Qwen-Qwen2.5-7B-Instruct")) as prompter:
        yield prompter


@pytest.fixture(scope="module")
def gemma() -> Iterator[Prompter]:
    """Its template has none."""
    with scripted_serving(families.source("google-gemma-2-2b-it")) as prompter:
        yield prompter


def check_round(prompter: Prompter, dialect: str, stream: bool, text: str, said: str = "") -> Seen:
    """Ask, get a call, answer it, and get an answer; returns what was seen of the second turn."""
    ask, called, ended = DIALECTS[dialect]
    prompter.text = text
    first = ask(prompter, [ASKED], stream)
    assert (first.text.strip(), first.reason) == (said, called)
    ((call_id, name, arguments),) = first.calls
    assert call_id
    assert (name, json.loads(arguments)) == ("get_weather", ARGUMENTS)
    assert first.completion > 10
    prompter.text = ANSWER
    second = ask(prompter, [ASKED, *first.turn], stream)
    assert (second.text, second.reason, second.calls) == (ANSWER, ended, [])
    assert second.prompt > first.prompt + first.completion
    whole = first.prompt + (first.completion if text.endswith(MARKED) else 0)
    assert second.cached >= whole - 8, (first, second)
    return second


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("text", [CALL, f"```json\n{CALL}\n```"], ids=["bare", "fenced"])
def test_a_call_in_plain_json(qwen: Prompter, text: str, dialect: str, stream: bool) -> None:
    check_round(qwen, dialect, stream, text)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("said", ["", "I look it up."])
def test_a_call_in_the_general_form(gemma: Prompter, said: str, dialect: str, stream: bool) -> None:
    check_round(gemma, dialect, stream, f"{said}\n{MARKED}" if said else MARKED, said)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_call_in_plain_json_where_the_form_is_the_general_one(
    gemma: Prompter, dialect: str, stream: bool
) -> None:
    check_round(gemma, dialect, stream, CALL)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "text",
    [
        ANSWER,
        f"Call this:\n{CALL}",
        CALL.replace("get_weather", "get_time"),
        CALL.replace("3", '"three"'),
        '```json\n{"name": "Tom", "legs": 4}\n```',
    ],
)
def test_any_other_text_arrives_as_it_is(qwen: Prompter, text: str, dialect: str) -> None:
    ask, _, ended = DIALECTS[dialect]
    qwen.text = text
    for stream in (False, True):
        seen = ask(qwen, [ASKED], stream)
        assert (seen.text, seen.reason, seen.calls) == (text, ended, [])


def test_an_answer_in_json_is_streamed_from_where_it_is_none_of_a_call(qwen: Prompter) -> None:
    qwen.text = '{"name": "Tom", "kind": "cat", "legs": 4}'
    pieces = [piece for piece in ask_chat(qwen, [ASKED], True).pieces if piece]
    assert pieces[0].startswith('{"name": "')
    assert len(pieces) > 5


def test_a_server_may_leave_plain_json_alone() -> None:
    template = families.source("Qwen-Qwen2.5-7B-Instruct")
    with scripted_serving(template, json_calls=False) as prompter:
        prompter.text = CALL
        for ask, _, ended in DIALECTS.values():
            seen = ask(prompter, [ASKED], False)
            assert (seen.text, seen.reason, seen.calls) == (CALL, ended, [])


@pytest.mark.parametrize("kind", ["qwen", "gemma"])
def test_a_session_answers_the_call(kind: str, request: pytest.FixtureRequest) -> None:
    prompter: Prompter = request.getfixturevalue(kind)
    llm: Any = prompter.server.service.models.models[0].llama
    tool = {"type": "function", "function": {**FUNCTION, "parameters": SCHEMA}}
    chat = llm.chat_session(tools=[tool], temperature=0)
    prompter.text = CALL if kind == "qwen" else MARKED
    assert str(chat.send(ASKED["content"])).strip() == ""
    (call,) = chat.tool_calls
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS
    prompter.text = ANSWER
    assert str(chat.send_tool_result(call["id"], RESULT)) == ANSWER
    assert [message["role"] for message in chat.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    if kind == "gemma":
        assert llm.cache_info["reused"] > 0
