"""The official client of Anthropic's talks to the server, by each of its ways to call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any, Literal

import anthropic
import pydantic
import pytest

from tests.chat import families
from tests.patience import PATIENCE
from tests.server.serving import Server, demo_settings, serving

GREEDY = {"temperature": 0}
#: With an upper bound, without which a small model may never end a text.
SHORT = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Get the weather of a city.", "input_schema": CITY}
TIME = {"name": "get_time", "description": "The time in a city.", "input_schema": CITY}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def use(call_id: str, name: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def result(call_id: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


SUM = [user("What is 2 + 3?")]
PARIS = [user("What is the weather in Paris?")]
ASKED = [*PARIS, assistant(use("toolu_abcdefghi", "get_weather", city="Paris"))]

CASES: dict[str, dict[str, Any]] = {
    "text": {"messages": SUM},
    "system": {"messages": SUM, "system": [{"type": "text", "text": "Be brief."}]},
    "multi-turn": {
        "messages": [user("My name is Ann."), assistant({"type": "text", "text": "Hi."}), *SUM]
    },
    "prefill": {"messages": [*SUM, {"role": "assistant", "content": "2 + 3"}]},
    "stop": {"messages": SUM, "stop_sequences": ["never", " ="]},
    "length": {"messages": SUM, "max_tokens": 3},
    "auto": {"messages": PARIS, "tools": [WEATHER, TIME], "tool_choice": {"type": "auto"}},
    "any": {"messages": SUM, "tools": [WEATHER, TIME], "tool_choice": {"type": "any"}},
    "none": {"messages": PARIS, "tools": [WEATHER, TIME], "tool_choice": {"type": "none"}},
    "named": {
        "messages": PARIS,
        "tools": [WEATHER, TIME],
        "tool_choice": {"type": "tool", "name": "get_time"},
    },
    "result": {
        "messages": [
            *ASKED,
            user(
                [result("toolu_abcdefghi", json.dumps({"temperature": 21, "condition": "sunny"}))]
            ),
        ],
        "tools": [WEATHER],
    },
    "failed result": {
        "messages": [
            *ASKED,
            user([result("toolu_abcdefghi", [{"type": "text", "text": "?"}], is_error=True)]),
        ],
        "tools": [WEATHER],
    },
    "schema": {
        "messages": SUM,
        "output_config": {"format": {"type": "json_schema", "schema": SHORT}},
    },
}


@pytest.fixture(scope="module")
def claude(server: Server) -> Iterator[Any]:
    with server.anthropic() as client:
        yield client


def arguments(case: str) -> dict[str, Any]:
    return {"model": "any", "max_tokens": 60, "extra_body": GREEDY, **CASES[case]}


# ---- ways to call ------------------------------------------------------------------------------


def whole(server: Server, given: dict[str, Any]) -> Any:
    with server.anthropic() as client:
        return client.messages.create(**given)


def helped(server: Server, given: dict[str, Any]) -> Any:
    with server.anthropic() as client, client.messages.stream(**given) as stream:
        said = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert said == "".join(block.text for block in message.content if block.type == "text")
    return message


def raw(server: Server, given: dict[str, Any]) -> Any:
    """As somebody reads the events who has no helper."""
    blocks: list[dict[str, Any]] = []
    grown: list[str] = []
    with server.anthropic() as client:
        for event in client.messages.create(stream=True, **given):
            if event.type == "message_start":
                message = event.message
            elif event.type == "content_block_start":
                assert event.index == len(blocks)
                blocks.append(event.content_block.to_dict())
                grown = []
            elif event.type == "content_block_delta":
                assert event.index == len(blocks) - 1
                grown.append(getattr(event.delta, event.delta.type.removesuffix("_delta"), ""))
                if event.delta.type == "input_json_delta":
                    grown[-1] = event.delta.partial_json
            elif event.type == "content_block_stop":
                block = blocks[-1]
                if block["type"] == "tool_use":
                    block["input"] = json.loads("".join(grown))
                else:
                    block[block["type"]] = "".join(grown)
            elif event.type == "message_delta":
                message.stop_reason = event.delta.stop_reason
                message.stop_sequence = event.delta.stop_sequence
                message.usage = event.usage
    message.content = blocks
    return message


def awaited(server: Server, given: dict[str, Any]) -> Any:
    async def run() -> Any:
        async with async_client(server) as client:
            return await client.messages.create(**given)

    return asyncio.run(run())


def awaited_stream(server: Server, given: dict[str, Any]) -> Any:
    async def run() -> Any:
        async with (
            async_client(server) as client,
            client.messages.stream(**given) as stream,
        ):
            return await stream.get_final_message()

    return asyncio.run(run())


def async_client(server: Server) -> Any:
    return anthropic.AsyncAnthropic(
        base_url=server.url, api_key="none", max_retries=0, timeout=PATIENCE
    )


WAYS: list[Callable[[Server, dict[str, Any]], Any]] = [whole, helped, raw, awaited, awaited_stream]


def plain(message: Any) -> dict[str, Any]:
    """What a reply says, without what differs from call to call."""
    blocks = [block if isinstance(block, dict) else block.to_dict() for block in message.content]
    kept = ("type", "text", "name", "input")
    content = [{key: block[key] for key in kept if key in block} for block in blocks]
    usage = message.usage
    prompt = usage.input_tokens + usage.cache_read_input_tokens
    assert usage.cache_creation_input_tokens == 0
    return {
        "content": content,
        "stop": (message.stop_reason, message.stop_sequence),
        "tokens": (prompt, usage.output_tokens),
    }


@pytest.mark.parametrize("case", CASES)
def test_every_way_to_call_gives_the_same(server: Server, case: str) -> None:
    replies = [plain(way(server, arguments(case))) for way in WAYS]
    assert all(reply == replies[0] for reply in replies)
    CHECKS[case](replies[0])


def _calls(reply: Any) -> list[tuple[str, Any]]:
    assert reply["stop"] == ("tool_use", None)
    return [(b["name"], b["input"]) for b in reply["content"] if b["type"] == "tool_use"]


def _text(reply: Any, reason: str = "end_turn", stop: str | None = None) -> str:
    assert reply["stop"] == (reason, stop)
    (block,) = reply["content"]
    return str(block["text"])


def _is(*wanted: bool) -> None:
    assert all(wanted)


CHECKS: dict[str, Callable[[Any], None]] = {
    "text": lambda reply: _is(_text(reply) == "2 + 3 = 5."),
    "system": lambda reply: _is("5" in _text(reply)),
    "multi-turn": lambda reply: _is("5" in _text(reply)),
    "prefill": lambda reply: _is(_text(reply).startswith(" = 5")),
    "stop": lambda reply: _is(_text(reply, "stop_sequence", " =") == "2 + 3"),
    "length": lambda reply: _is(_text(reply, "max_tokens") == "2 + 3", reply["tokens"][1] == 3),
    "auto": lambda reply: _is(_calls(reply) == [("get_weather", {"city": "Paris"})]),
    "any": lambda reply: _is(len(_calls(reply)) > 0),
    "none": lambda reply: _is(bool(_text(reply))),
    "named": lambda reply: _is({name for name, _ in _calls(reply)} == {"get_time"}),
    "result": lambda reply: _is("21" in _text(reply)),
    "failed result": lambda reply: _is(bool(_text(reply))),
    "schema": lambda reply: _is(isinstance(json.loads(_text(reply))["city"], str)),
}


# ---- what else a client sees -------------------------------------------------------------------


def test_two_calls_at_once_and_their_results(server: Server, claude: Any) -> None:
    """A model is asked for two calls; both come back in one message, in another order."""
    messages = [
        *PARIS,
        assistant(
            use("toolu_0123456789ab_one", "get_weather", city="Paris"),
            use("toolu_0123456789ab_two", "get_weather", city="Rome"),
        ),
        user(
            [
                result("toolu_0123456789ab_two", "7 degrees"),
                result("toolu_0123456789ab_one", "18 degrees"),
                {"type": "text", "text": "Which city is warmer?"},
            ]
        ),
    ]
    reply = claude.messages.create(
        model="any", max_tokens=40, messages=messages, tools=[WEATHER], extra_body=GREEDY
    )
    assert reply.content
    assert reply.stop_reason in ("end_turn", "tool_use", "max_tokens")


def test_the_tool_runner_of_the_client(claude: Any) -> None:
    """It asks the server to hold the conversation, and goes on without when that is refused."""
    asked: list[str] = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        asked.append(city)
        return json.dumps({"temperature": 21, "condition": "sunny"})

    runner = claude.beta.messages.tool_runner(
        model="any", max_tokens=60, messages=PARIS, tools=[get_weather], extra_body=GREEDY
    )
    first, last = runner
    assert asked == ["Paris"]
    assert first.stop_reason == "tool_use"
    assert "21" in last.content[0].text
    known = first.usage.input_tokens + first.usage.cache_read_input_tokens
    assert last.usage.cache_read_input_tokens >= known + first.usage.output_tokens - 1


class Verdict(pydantic.BaseModel):
    ok: bool
    kind: Literal["a", "b"]


def test_parsed_replies(claude: Any) -> None:
    given = {"model": "any", "max_tokens": 60, "messages": SUM, "extra_body": GREEDY}
    parsed = claude.messages.parse(output_format=Verdict, **given).parsed_output
    assert isinstance(parsed, Verdict)
    with claude.messages.stream(output_format=Verdict, **given) as stream:
        assert stream.get_final_message().parsed_output == parsed


def test_nothing_is_generated_for_no_tokens(claude: Any) -> None:
    """``max_tokens=0`` only fills the cache."""
    question = [user("What is the capital of Italy, if you please?")]
    first = claude.messages.create(model="any", max_tokens=0, messages=question)
    assert (first.content, first.stop_reason) == ([], "max_tokens")
    assert first.usage.output_tokens == 0
    second = claude.messages.create(model="any", max_tokens=5, messages=question)
    assert second.usage.input_tokens == 1


@pytest.mark.parametrize("case", ["text", "system", "auto", "result", "prefill"])
def test_count_tokens_is_exact(claude: Any, case: str) -> None:
    given = CASES[case]
    names = ("messages", "system", "tools", "tool_choice", "thinking")
    counted = claude.messages.count_tokens(
        model="any", **{name: given[name] for name in names if name in given}
    )
    usage = claude.messages.create(**arguments(case)).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_count_tokens_counts_replies_as_they_were_written(claude: Any) -> None:
    """A sampled reply may have other tokens than its text; the next prompt keeps them."""
    question = user("Tell me something odd about the number 7.")
    hot = {"temperature": 3, "top_k": 0, "top_p": 1}
    reply = claude.messages.create(model="any", max_tokens=60, messages=[question], extra_body=hot)
    messages = [question, {"role": "assistant", "content": reply.content}, *SUM]
    counted = claude.messages.count_tokens(model="any", messages=messages).input_tokens
    usage = claude.messages.create(model="any", max_tokens=4, messages=messages).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens
    assert usage.cache_read_input_tokens > reply.usage.output_tokens


def test_count_tokens_of_what_does_not_fit(server: Server, claude: Any) -> None:
    words = "word " * 20_000
    counted = claude.messages.count_tokens(model="any", messages=[user(words)]).input_tokens
    assert counted > 20_000
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.messages.create(model="any", max_tokens=5, messages=[user(words)])
    assert "prompt is too long: " in str(caught.value)


def test_the_models_of_the_server(server: Server, claude: Any) -> None:
    (model,) = claude.models.list(limit=1000)
    assert (model.id, model.type) == ("demo", "model")
    assert claude.models.retrieve("demo").id == "demo"


def test_the_reply_names_the_model_that_answers(claude: Any) -> None:
    reply = claude.messages.create(model="claude-haiku-4-5", max_tokens=2, messages=SUM)
    assert reply.model == "demo"
    assert reply.id.startswith("msg_")
    assert reply._request_id


# ---- thinking ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def thinker() -> Iterator[Server]:
    """The bundled model in the format of a family whose replies begin with reasoning.

    It has not learned that, so that nothing ends its reasoning but a budget.
    """
    template = families.source("Qwen-QwQ-32B")
    with serving(demo_settings(chat_template=template)) as server:
        yield server


def thoughts(server: Server, way: Callable[..., Any], thinking: Any, **more: Any) -> Any:
    given: dict[str, Any] = {"messages": SUM, "thinking": thinking, "extra_body": GREEDY}
    return way(server, {"model": "any", "max_tokens": 30, **given, **more})


@pytest.mark.parametrize("way", [whole, helped, awaited_stream])
def test_thinking_comes_first_and_is_limited(thinker: Server, way: Callable[..., Any]) -> None:
    reply = thoughts(thinker, way, {"type": "enabled", "budget_tokens": 4})
    thinking, text = reply.content
    assert (thinking.type, text.type) == ("thinking", "text")
    assert thinking.thinking.strip()
    assert thinking.signature
    assert text.text
    assert 4 <= reply.usage.output_tokens_details.thinking_tokens < reply.usage.output_tokens


def test_thinking_can_be_hidden_and_sent_back(thinker: Server) -> None:
    shown = thoughts(thinker, whole, {"type": "enabled", "budget_tokens": 4})
    thinking = {"type": "enabled", "budget_tokens": 4, "display": "omitted"}
    hidden = thoughts(thinker, helped, thinking)
    assert hidden.content[0].thinking == ""
    assert hidden.content[0].signature != shown.content[0].signature
    assert hidden.content[1].text == shown.content[1].text
    counts = []
    with thinker.anthropic() as client:
        for reply in (shown, hidden):
            messages = [*SUM, {"role": "assistant", "content": reply.content}, *SUM]
            counts.append(client.messages.count_tokens(model="any", messages=messages))
    assert counts[0] == counts[1]


def test_thinking_can_be_turned_off(thinker: Server) -> None:
    reply = thoughts(thinker, whole, {"type": "disabled"})
    assert [block.type for block in reply.content] == ["text"]
