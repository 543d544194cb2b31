"""The Responses API, as OpenAI's own client sees it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import openai
import pydantic
import pytest

from tests.responses_streams import check, events_of, kinds, text_of
from tests.server.serving import Server, demo_settings, serving

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TIME = {
    "type": "function",
    "name": "get_time",
    "description": "Get the time in a city.",
    "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(demo_settings(n_ctx=4096)) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    with server.openai() as client:
        yield client


def ask(client: Any, given: Any, **options: Any) -> Any:
    """A response; greedy, and by a model of any name."""
    return client.responses.create(model="any", input=given, **{"temperature": 0, **options})


def stream(client: Any, given: Any, **options: Any) -> list[Any]:
    return list(ask(client, given, stream=True, **options))


# ---- text ------------------------------------------------------------------------------------


def test_a_text(client: Any) -> None:
    reply = ask(client, "What is 3 + 4?", metadata={"a": "b"}, user="me")
    assert reply.output_text == "3 + 4 = 7."
    assert (reply.object, reply.status, reply.model) == ("response", "completed", "demo")
    assert reply.id.startswith("resp_")
    assert reply.metadata == {"a": "b"}
    assert (reply.temperature, reply.user, reply.error) == (0, "me", None)
    usage = reply.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens == 0


def test_the_model_may_be_missing(server: Server) -> None:
    with server.http() as http:
        for path in ("/v1/responses", "/responses", "/v1/responses?beta=true"):
            reply = http.post(path, json={"input": "What is 3 + 4?", "temperature": 0})
            assert reply.status_code == 200
            assert text_of(reply.json()) == "3 + 4 = 7."
            assert reply.json()["model"] == "demo"


def test_instructions_count(client: Any) -> None:
    with_them = ask(client, "What is 3 + 4?", instructions="You are a helpful assistant.")
    without = ask(client, "What is 3 + 4?")
    assert with_them.usage.input_tokens > without.usage.input_tokens + 4
    assert with_them.instructions == "You are a helpful assistant."


def test_a_reply_that_is_cut_off(client: Any) -> None:
    reply = ask(client, "Count to 9.", max_output_tokens=4)
    assert reply.status == "incomplete"
    assert reply.incomplete_details.reason == "max_output_tokens"
    assert reply.usage.output_tokens == 4
    events = stream(client, "Count to 9.", max_output_tokens=4)
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == reply.output_text


def test_more_than_there_is_room_for_is_as_much_as_there_is(client: Any) -> None:
    reply = ask(client, "What is 3 + 4?", max_output_tokens=10**9)
    assert reply.output_text == "3 + 4 = 7."


def test_a_stream_adds_up_to_the_reply(server: Server, client: Any) -> None:
    whole = ask(client, "Count to 9.")
    body = {"input": "Count to 9.", "temperature": 0, "stream": True}
    with server.http() as http:
        reply = http.post("/v1/responses", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.content.endswith(b"\n\ndata: [DONE]\n\n"), "Open Responses demands it"
    events = events_of(reply.content)
    assert text_of(check(events)) == whole.output_text == "1, 2, 3, 4, 5, 6, 7, 8, 9."
    assert kinds(events) == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip


def test_the_streaming_helper(client: Any) -> None:
    options = {"model": "any", "input": "What is 3 + 4?", "temperature": 0}
    with client.responses.stream(**options) as events:
        snapshots = [e.snapshot for e in events if e.type == "response.output_text.delta"]
        final = events.get_final_response()
    assert snapshots[-1] == final.output_text == "3 + 4 = 7."
    assert all(after.startswith(before) for before, after in pairwise(snapshots))


def test_the_asynchronous_client(server: Server) -> None:
    async def main() -> tuple[str, str, str]:
        async with server.async_openai() as client:
            options = {"model": "any", "input": "What is 3 + 4?", "temperature": 0}
            whole = await client.responses.create(**options)
            parts = await client.responses.create(**options, stream=True)
            text = "".join([e.delta async for e in parts if e.type == "response.output_text.delta"])
            async with client.responses.stream(**options) as events:
                final = await events.get_final_response()
            return whole.output_text, text, final.output_text

    assert asyncio.run(main()) == ("3 + 4 = 7.",) * 3


# ---- several turns ---------------------------------------------------------------------------


def test_a_conversation_by_items(client: Any) -> None:
    items: list[Any] = [{"role": "user", "content": "My name is Alice."}]
    first = ask(client, items)
    items += first.output
    items.append({"role": "user", "content": "What is my name?"})
    second = ask(client, items)
    assert second.output_text == "Your name is Alice."
    cached = second.usage.input_tokens_details.cached_tokens
    assert cached >= first.usage.total_tokens, "the first turn was in memory"


def test_a_conversation_by_id(client: Any) -> None:
    first = ask(client, "My name is Alice.")
    second = ask(client, "My number is 7.", previous_response_id=first.id, stream=True)
    second = list(second)[-1].response
    third = ask(client, "What is my name?", previous_response_id=second.id)
    assert third.output_text == "Your name is Alice."
    assert third.previous_response_id == second.id
    assert third.usage.input_tokens_details.cached_tokens >= second.usage.total_tokens
    other = ask(client, "What is my name?", previous_response_id=first.id)
    assert other.output_text == "Your name is Alice.", "a conversation may be continued twice"


def test_instructions_are_those_of_the_turn(client: Any) -> None:
    first = ask(client, "hello", instructions="You are a helpful assistant. " * 5)
    second = ask(client, "hello", previous_response_id=first.id)
    assert second.instructions is None
    assert second.usage.input_tokens < first.usage.total_tokens


def test_what_is_not_stored_cannot_be_continued(client: Any) -> None:
    first = ask(client, "hello", store=False)
    assert first.store is False
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "and?", previous_response_id=first.id)
    assert caught.value.code == "previous_response_not_found"
    assert caught.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_a_stored_reply_is_found_until_it_is_deleted(client: Any) -> None:
    reply = ask(client, "What is 3 + 4?")
    assert client.responses.retrieve(reply.id).to_dict() == reply.to_dict()
    client.responses.delete(reply.id)
    for method in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            method(reply.id)
        assert caught.value.code == "not_found"


def test_the_input_of_a_stored_reply_is_listed(client: Any) -> None:
    first = ask(client, "My name is Alice.")
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "My name?"}]}]
    second = ask(client, items, previous_response_id=first.id)

    def said(**query: Any) -> list[tuple[str, str]]:
        page = client.responses.input_items.list(second.id, **query)
        return [(item.role, item.content[0].text) for item in page]

    turns = [
        ("user", "My name is Alice."),
        ("assistant", first.output_text),
        ("user", "My name?"),
    ]
    assert said(order="asc") == turns
    assert said() == turns[::-1]
    assert said(limit=1) == turns[::-1], "the client asks for page after page"
    page = client.responses.input_items.list(second.id, limit=2, order="asc")
    assert page.has_more
    assert [item.type for item in page.data] == ["message", "message"]
    assert page.data[1].id == first.output[0].id
    assert said(after=page.data[0].id, order="asc") == turns[1:]
    alone = client.responses.input_items.list(first.id)
    assert [item.content[0].type for item in alone.data] == ["input_text"]


def test_what_is_wrong_with_a_list_of_input_items(client: Any) -> None:
    reply = ask(client, "My name is Alice.")
    with pytest.raises(openai.NotFoundError):
        client.responses.input_items.list("resp_0")
    queries = ({"limit": 0}, {"limit": 101}, {"limit": "00000000199"}, {"limit": "0" * 5000})
    for query in (*queries, {"order": "up"}, {"after": "msg_0"}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.input_items.list(reply.id, **query)
        assert caught.value.param == next(iter(query))


def test_a_stored_item_may_be_referred_to(client: Any) -> None:
    first = ask(client, "My name is Alice.")
    items = [
        {"role": "user", "content": "My name is Alice."},
        {"type": "item_reference", "id": first.output[0].id},
        {"role": "user", "content": "What is my name?"},
    ]
    assert ask(client, items).output_text == "Your name is Alice."


# ---- tools -----------------------------------------------------------------------------------


def test_a_tool_and_its_result(client: Any) -> None:
    items: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = ask(client, items, tools=[WEATHER])
    (call,) = first.output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    assert json.loads(call.arguments) == {"city": "Paris"}
    items += [
        call,
        {"type": "function_call_output", "call_id": call.call_id, "output": '{"sky": "sunny"}'},
    ]
    second = ask(client, items, tools=[WEATHER])
    assert second.output_text
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens


def test_a_streamed_call(client: Any) -> None:
    options: Any = {
        "model": "any", "input": "What is the weather in Paris?", "tools": [WEATHER],
        "temperature": 0,
    }  # fmt: skip
    with client.responses.stream(**options) as events:
        pieces = [e for e in events if e.type == "response.function_call_arguments.delta"]
        final = events.get_final_response()
    assert len(pieces) > 2
    assert pieces[-1].snapshot == final.output[0].arguments
    assert final.output[0].parsed_arguments == {"city": "Paris"}


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "get_time"}),
        ({"type": "function", "name": "get_time"}, {"get_time"}),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [
                {"type": "function", "name": "get_time"}]},
            {"get_time"},
        ),
        ("none", set()),
        ({"type": "allowed_tools", "mode": "auto", "tools": [
            {"type": "function", "name": "get_time"}]}, set()),
    ],
)  # fmt: skip
def test_tool_choice(client: Any, choice: Any, names: set[str]) -> None:
    for question in ("What is 3 + 4?", "What is the weather in Paris?"):
        reply = ask(
            client, question, tools=[WEATHER, TIME], tool_choice=choice, max_output_tokens=60
        )
        called = {item.name for item in reply.output if item.type == "function_call"}
        assert called <= (names or {"get_time"})
        if choice == "none":
            assert not called
            assert reply.output_text
        elif names:
            assert called
        assert reply.tool_choice == choice or reply.tool_choice.to_dict() == choice


def test_the_tools_of_a_namespace(client: Any) -> None:
    tools = [{"type": "namespace", "name": "geo", "description": "Places.", "tools": [WEATHER]}]
    choice = {"type": "function", "name": "get_weather"}
    reply = ask(client, "What is the weather in Paris?", tools=tools, tool_choice=choice)
    (call,) = reply.output
    assert (call.namespace, call.name) == ("geo", "get_weather")


def test_a_custom_tool(server: Server, client: Any) -> None:
    tools = [{"type": "custom", "name": "note", "description": "Write a note."}]
    options: Any = {"tools": tools, "tool_choice": "required", "max_output_tokens": 60}
    reply = ask(client, "Repeat: one two", **options)
    (call,) = reply.output
    assert (call.type, call.name) == ("custom_tool_call", "note")
    body = {"input": "Repeat: one two", "temperature": 0, "stream": True, **options}
    with server.http() as http:
        events = events_of(http.post("/v1/responses", json=body).content)
    assert check(events)["output"][0]["input"] == call.input
    assert "custom_tool_call_input.done" in kinds(events)


# ---- formats ---------------------------------------------------------------------------------


class Person(pydantic.BaseModel):
    name: str
    age: int


def test_a_json_schema(client: Any) -> None:
    options = {"model": "any", "input": "Give me JSON: name Bob, age 30", "temperature": 0}
    reply = client.responses.parse(**options, text_format=Person)
    assert isinstance(reply.output_parsed, Person)
    with client.responses.stream(**options, text_format=Person) as events:
        assert isinstance(events.get_final_response().output_parsed, Person)


def test_a_json_object(client: Any) -> None:
    question = "Give me a JSON object with name Alice and age 30."
    reply = ask(client, question, text={"format": {"type": "json_object"}})
    assert json.loads(reply.output_text) == {"name": "Alice", "age": 30}


def test_logprobs(client: Any) -> None:
    include = ["message.output_text.logprobs"]
    reply = ask(client, "What is 3 + 4?", include=include, top_logprobs=3)
    part = reply.output[0].content[0]
    assert "".join(entry.token for entry in part.logprobs) == part.text
    assert all(len(entry.top_logprobs) == 3 for entry in part.logprobs)
    assert all(entry.logprob <= 0 for entry in part.logprobs)


# ---- counting --------------------------------------------------------------------------------


def test_tokens_are_counted_as_they_are_evaluated(client: Any) -> None:
    first = ask(client, "My name is Alice.", tools=[WEATHER])
    for options in (
        {"input": "What is 3 + 4?"},
        {"input": "What is 3 + 4?", "instructions": "Be brief.", "tools": [WEATHER]},
        {"input": "And now?", "previous_response_id": first.id, "tools": [WEATHER]},
    ):
        counted = client.responses.input_tokens.count(model="any", **options)
        assert counted.object == "response.input_tokens"
        reply = client.responses.create(model="any", max_output_tokens=1, **options)
        assert counted.input_tokens == reply.usage.input_tokens


# ---- mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"input": 3}, "invalid_type", "input"),
        ({"input": None}, "missing_required_parameter", "input"),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
        ({"previous_response_id": "resp_0"}, "previous_response_not_found", "previous_response_id"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
    ],
)
def test_mistakes_are_told_before_anything_else(
    server: Server, body: dict[str, Any], code: str, param: str, streamed: bool
) -> None:
    with server.http() as http:
        reply = http.post("/v1/responses", json={"input": "x", **body, "stream": streamed})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)


def test_a_schema_that_cannot_be_enforced(client: Any) -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"type": "objekt"}}
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "x", text={"format": form})
    assert (caught.value.code, caught.value.param) == ("invalid_value", "text")


def test_a_prompt_that_is_too_long(client: Any) -> None:
    long = "word " * 5000
    with pytest.raises(openai.APIStatusError) as caught:
        ask(client, long)
    assert caught.value.status_code == 413
    assert caught.value.code == "context_length_exceeded"
    events = stream(client, long)
    assert [e.type for e in events] == [
        "response.created", "response.in_progress", "response.failed",
    ]  # fmt: skip
    assert events[-1].response.error.code == "context_length_exceeded"
    assert "prompt is too long" in events[-1].response.error.message


def test_methods_and_paths(server: Server) -> None:
    with server.http() as http:
        assert http.get("/v1/responses").status_code == 405
        reply = http.get("/v1/responses/resp_0")
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
        reply = http.get("/v1/responses/resp_0", params={"stream": "true"})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "stream")


def test_progress_and_timings_for_who_asks(server: Server) -> None:
    body = {"input": "word " * 600, "stream": True, "max_output_tokens": 4, "temperature": 0}
    with server.http() as http:
        plain = events_of(http.post("/v1/responses", json=body).content)
        asked = {"return_progress": True, "timings_per_token": True, "cache_prompt": False}
        more = events_of(http.post("/v1/responses", json={**body, **asked}).content)
    check(more)
    assert not any("timings" in each or "prompt_progress" in each for each in plain)
    told = [each for each in more if "prompt_progress" in each]
    assert {each["type"] for each in told} == {"response.in_progress"}
    assert told[0]["prompt_progress"]["processed"] == told[0]["prompt_progress"]["cache"]
    assert told[-1]["prompt_progress"]["processed"] == told[-1]["prompt_progress"]["total"]
    deltas = [each for each in more if each["type"] == "response.output_text.delta"]
    assert [each["timings"]["predicted_n"] for each in deltas] == [1, 2, 3, 4]
    assert more[-1]["timings"]["predicted_n"] == 4


def test_a_response_is_cancelled_by_its_id(server: Server, client: Any) -> None:
    """As its client sends it: a POST without a body, while the response is generated."""
    events = ask(
        client, "Count.", stream=True, extra_body={"ignore_eos": True}, max_output_tokens=4000
    )
    made = next(events)
    assert made.type == "response.created"
    ended = client.responses.cancel(made.response.id)
    assert (ended.id, ended.status, ended.output) == (made.response.id, "cancelled", [])
    kinds_left = [event.type for event in events]
    assert "response.completed" not in kinds_left


def test_a_response_that_has_ended_cannot_be_cancelled(client: Any) -> None:
    response = ask(client, "What is 2 + 3?")
    assert client.responses.cancel(response.id).status == "completed"
    with pytest.raises(openai.NotFoundError, match="no stored response 'resp_none'"):
        client.responses.cancel("resp_none")


def test_conversations_are_not_compacted(client: Any) -> None:
    with pytest.raises(
        openai.InternalServerError, match="not compacted here; pass trunc"
    ) as caught:
        client.with_options(max_retries=0).responses.compact(model="any", input="hello")
    assert caught.value.status_code == 501
