"""Replies of the Responses API: the events of their streams, in order, and the same as a whole."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pydantic
import pytest
from openai.types.responses import FunctionTool

from llama_py.chat.templates.template import ChatTemplate
from llama_py.core.vocab import Vocab
from llama_py.dialects.failures import Failure, Kind
from llama_py.dialects.limits import RequestLimits
from llama_py.dialects.responses.parse import History, Nothing, parse_responses
from llama_py.dialects.wire_json import DONE
from llama_py.engine.request import FinishEvent, Record
from llama_py.errors import DecodeError
from tests.dialects.playing import Context, play
from tests.dialects.test_encode_chat import THINKING
from tests.responses_streams import calls_of, check, events_of, kinds, text_of

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edit files."}
CRM = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [WEATHER, PATCH]}
EOT = "<|im_end|>"


def call_text(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


class Played:
    """What a client gets when the model writes a given text."""

    def __init__(
        self,
        context: Context,
        text: str,
        *,
        error: BaseException | None = None,
        history: History | None = None,
        **body: Any,
    ) -> None:
        body = {"input": "hello", "stream": True, **body}
        self.context = context
        call = parse_responses(context, body, RequestLimits(), "tiny", history=history)
        record = Record(call.requests[0])
        tokens = context.vocab.tokenize(text, add_special=False, parse_special=True)
        reply = call.encoder([record])
        self.sizes: list[int] = []
        data = [reply.open()]
        for event in play(context.vocab, record, tokens, error):
            data.append(reply.feed(0, event))
            if isinstance(event, FinishEvent) and event.error is not None:
                data.append(reply.fail(Failure(Kind.INTERNAL, "it broke")))
                break
        else:
            data.append(reply.close())
        self.frames = data
        self.events = events_of(b"".join(data))
        self.response = check(self.events)
        self.kinds = kinds(self.events)
        whole = call.encoder([record])
        for event in play(context.vocab, record, tokens, error):
            whole.feed(0, event)
        self.whole = whole.whole()

    @property
    def output(self) -> list[Any]:
        items: list[Any] = self.response["output"]
        return items


Play = Callable[..., Played]


@pytest.fixture
def played(context: Context) -> Play:
    return lambda text, **body: Played(context, text, **body)


@pytest.fixture
def thought(vocab: Vocab) -> Play:
    """The same with a model that reasons."""
    context = Context(vocab, ChatTemplate.from_text(THINKING, eos=EOT))
    return lambda text, **body: Played(context, text, **body)


def same_but_ids(item: Any) -> Any:
    return {name: value for name, value in item.items() if name not in ("id", "call_id")}


# ---- golden sequences ------------------------------------------------------------------------

BEGIN = ["created", "in_progress"]
MESSAGE = [
    "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
    "content_part.done", "output_item.done",
]  # fmt: skip
CALL = [
    "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
    "output_item.done",
]  # fmt: skip
REASONING = [
    "output_item.added", "reasoning_text.delta", "reasoning_text.done", "output_item.done",
]  # fmt: skip


def test_text(played: Play) -> None:
    reply = played(f"Hi there.{EOT}")
    assert reply.kinds == [*BEGIN, *MESSAGE, "completed"]
    assert reply.output == [
        {
            "id": reply.output[0]["id"],
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [
                {"type": "output_text", "text": "Hi there.", "annotations": [], "logprobs": []}
            ],
        }
    ]
    assert reply.output[0]["id"].startswith("msg_")
    usage = reply.response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["output_tokens"] == sum(k["type"].endswith("delta") for k in reply.events)
    assert len([frame for frame in reply.frames if frame]) > 4, "each token is told at once"


def test_an_answer_without_a_word_is_a_message_all_the_same(played: Play) -> None:
    reply = played(EOT)
    assert reply.kinds == [*BEGIN, *[k for k in MESSAGE if "delta" not in k], "completed"]
    assert text_of(reply.response) == ""


def test_a_reply_that_is_cut_off_is_incomplete(played: Play) -> None:
    reply = played("Hi th", max_output_tokens=5)
    assert reply.kinds == [*BEGIN, *MESSAGE, "incomplete"]
    assert reply.response["status"] == "incomplete"
    assert reply.response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert reply.output[0]["status"] == "incomplete"
    assert reply.response["completed_at"] is None
    assert text_of(reply.response) == "Hi th"


def test_one_call(played: Play) -> None:
    reply = played(call_text("get_weather", '{"city": "Paris"}') + EOT, tools=[WEATHER])
    assert reply.kinds == [*BEGIN, *CALL, "completed"]
    (item,) = reply.output
    assert item["type"] == "function_call"
    assert item["id"].startswith("fc_")
    assert item["call_id"].startswith("call_")
    assert calls_of(reply.response) == [("get_weather", {"city": "Paris"})]
    done = next(e for e in reply.events if e["type"].endswith("arguments.done"))
    assert done["name"] == "get_weather"
    added = next(e for e in reply.events if e["type"].endswith("item.added"))
    assert added["item"] == {**item, "arguments": "", "status": "in_progress"}


def test_words_and_two_calls(played: Play) -> None:
    calls = [call_text("get_weather", f'{{"city": "{city}"}}') for city in ("Paris", "Rome")]
    reply = played(f"One moment. {' '.join(calls)}{EOT}", tools=[WEATHER])
    assert reply.kinds == [*BEGIN, *MESSAGE, *CALL, *CALL, "completed"]
    assert text_of(reply.response).strip() == "One moment."
    assert calls_of(reply.response) == [
        ("get_weather", {"city": "Paris"}),
        ("get_weather", {"city": "Rome"}),
    ]
    ids = [item["call_id"] for item in reply.output[1:]]
    assert len({*ids}) == 2


def test_a_call_that_is_cut_off(played: Play) -> None:
    text = call_text("get_weather", '{"city": "Paris"}')
    reply = played(text[: text.index("ris")], tools=[WEATHER])
    assert reply.kinds == [*BEGIN, *CALL, "incomplete"]
    assert reply.output[0]["status"] == "incomplete"
    assert reply.output[0]["arguments"] == '{"city": "Pa'


def test_reasoning(thought: Play) -> None:
    reply = thought(f"<think>\nTwo and two.\n</think>\n\nFour.{EOT}")
    assert reply.kinds == [*BEGIN, *REASONING, *MESSAGE, "completed"]
    reasoning, message = reply.output
    assert reasoning["id"].startswith("rs_")
    assert reasoning["summary"] == []
    assert [part["type"] for part in reasoning["content"]] == ["reasoning_text"]
    assert reasoning["content"][0]["text"].strip() == "Two and two."
    assert "encrypted_content" not in reasoning
    assert message["content"][0]["text"].strip() == "Four."
    usage = reply.response["usage"]
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]


def test_a_summary_of_the_reasoning_is_the_reasoning(thought: Play) -> None:
    reply = thought(f"<think>\nTwo and two.\n</think>\n\nFour.{EOT}", reasoning={"summary": "auto"})
    reasoning = [e for e in reply.events if e.get("output_index") == 0]
    order = [e["type"].removeprefix("response.") for e in reasoning]
    assert order[:2] == ["output_item.added", "reasoning_summary_part.added"]
    assert {*order[2:-4]} == {"reasoning_text.delta", "reasoning_summary_text.delta"}
    assert order[-4:] == [
        "reasoning_text.done", "reasoning_summary_text.done", "reasoning_summary_part.done",
        "output_item.done",
    ]  # fmt: skip
    item = reply.output[0]
    assert [part["text"] for part in item["summary"]] == [part["text"] for part in item["content"]]
    assert reply.response["reasoning"]["summary"] == "auto"


def test_a_client_that_asks_for_encrypted_reasoning_gets_something_to_keep(thought: Play) -> None:
    reply = thought(
        f"<think>\nTwo and two.\n</think>\n\nFour.{EOT}", include=["reasoning.encrypted_content"]
    )
    seal, _, text = reply.output[0]["encrypted_content"].partition(":")
    assert seal == "llama-py"
    assert base64.b64decode(text).decode().strip() == "Two and two."


def test_nothing_but_thoughts_until_the_end_of_the_room(thought: Play) -> None:
    reply = thought("<think>\nTwo and", max_output_tokens=4)
    assert reply.kinds == [*BEGIN, *REASONING, "incomplete"]
    assert reply.output[0]["status"] == "incomplete"


def test_nothing_but_thoughts_and_an_end(thought: Play) -> None:
    reply = thought(f"<think>\nTwo and two.\n</think>{EOT}")
    assert [item["type"] for item in reply.output] == ["reasoning", "message"]
    assert text_of(reply.response) == ""


def test_a_custom_tool_gets_text(played: Play) -> None:
    arguments = json.dumps({"input": '*** Begin "Patch"\n+ é'})
    reply = played(call_text("apply_patch", arguments) + EOT, tools=[PATCH])
    assert reply.kinds == [
        *BEGIN, "output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done",
        "output_item.done", "completed",
    ]  # fmt: skip
    assert same_but_ids(reply.output[0]) == {
        "type": "custom_tool_call",
        "status": "completed",
        "name": "apply_patch",
        "input": '*** Begin "Patch"\n+ é',
    }
    assert reply.output[0]["id"].startswith("ctc_")
    assert sum(e["type"].endswith("input.delta") for e in reply.events) > 3


def test_tools_of_a_namespace_get_their_names_back(played: Play) -> None:
    calls = [
        call_text("crm__get_weather", '{"city": "Paris"}'),
        call_text("crm__apply_patch", '{"input": "x"}'),
        call_text("get_weather", '{"city": "Rome"}'),
    ]
    reply = played(" ".join(calls) + EOT, tools=[CRM, WEATHER])
    found = [(item["name"], item.get("namespace"), item["type"]) for item in reply.output]
    assert found == [
        ("get_weather", "crm", "function_call"),
        ("apply_patch", "crm", "custom_tool_call"),
        ("get_weather", None, "function_call"),
    ]


# ---- failures --------------------------------------------------------------------------------


def test_an_error_in_the_middle(played: Play) -> None:
    reply = played("half an answ", error=DecodeError("broken"))
    assert reply.kinds[-1] == "failed"
    assert reply.response["status"] == "failed"
    assert reply.response["error"] == {"code": "server_error", "message": "it broke"}
    assert reply.output[0]["status"] == "incomplete"
    assert text_of(reply.response) == "half an answ"
    assert reply.response["completed_at"] is None


def test_a_prompt_that_is_too_long_fails_in_the_stream(context: Context) -> None:
    body = {"input": "hello", "stream": True}
    call = parse_responses(context, body, RequestLimits(), "tiny")
    assert call.overflows_in_stream
    reply = call.encoder(())
    failure = Failure(Kind.OVERFLOW, "prompt is too long: 9 tokens > 8 maximum")
    events = events_of(reply.open() + reply.fail(failure))
    response = check(events)
    assert kinds(events) == [*BEGIN, "failed"]
    assert response["error"]["code"] == "context_length_exceeded"
    assert response["usage"] is None


def test_a_sign_of_life_is_an_event(context: Context) -> None:
    call = parse_responses(context, {"input": "hello", "stream": True}, RequestLimits(), "tiny")
    record = Record(call.requests[0])
    reply = call.encoder([record])
    data = reply.open() + reply.keep_alive() + reply.keep_alive()
    for event in play(context.vocab, record, [65, 66]):
        data += reply.feed(0, event)
    events = events_of(data + reply.keep_alive() + reply.close())
    check(events)
    alive = [e for e in events if e["type"] == "response.in_progress"]
    assert len(alive) == 4
    assert all(e["response"] == alive[0]["response"] for e in alive)


class Kept(Nothing):
    """Remembers what is to be stored."""

    def __init__(self) -> None:
        self.replies: list[Any] = []

    def keep(self, earlier: Any, new: Any, response: Any) -> None:
        self.replies.append((new, response))


def test_only_what_ended_well_is_stored(played: Play) -> None:
    kept = Kept()
    played("half an answ", error=DecodeError("broken"), history=kept)
    assert kept.replies == []
    played(f"Hi.{EOT}", history=kept, store=False)
    assert kept.replies == []
    reply = played(f"Hi.{EOT}", history=kept)
    assert [response for _, response in kept.replies] == [reply.response, reply.whole]
    assert kept.replies[0][0] == [{"type": "message", "role": "user", "content": "hello"}]
    assert len(kept.replies) == 2
    played("Hi th", max_output_tokens=5, history=kept)
    assert kept.replies[-1][1]["status"] == "incomplete"


# ---- as a whole ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        f"Hi there.{EOT}",
        "Hi th",
        f"One moment. {call_text('get_weather', '{}')}{EOT}",
        call_text("apply_patch", '{"input": "x"}') + EOT,
    ],
)
def test_the_whole_is_what_a_stream_adds_up_to(played: Play, text: str) -> None:
    reply = played(text, tools=[WEATHER, PATCH])
    for name in ("status", "incomplete_details", "error", "usage", "tools", "model"):
        assert reply.whole[name] == reply.response[name]
    pairs = zip(reply.whole["output"], reply.output, strict=True)
    assert all(same_but_ids(one) == same_but_ids(other) for one, other in pairs)
    assert {*reply.whole} == {*reply.response}


# ---- log-probabilities -----------------------------------------------------------------------


def test_logprobs_are_those_of_the_text(played: Play) -> None:
    body: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    reply = played(f"Hi there.{EOT}", **body)
    part = reply.output[0]["content"][0]
    assert "".join(entry["token"] for entry in part["logprobs"]) == "Hi there."
    assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
    assert all(bytes(e["bytes"]).decode() == e["token"] for e in part["logprobs"])
    deltas = [e for e in reply.events if e["type"] == "response.output_text.delta"]
    assert [entry for e in deltas for entry in e["logprobs"]] == part["logprobs"]
    assert all("".join(x["token"] for x in e["logprobs"]) == e["delta"] for e in deltas)
    done = next(e for e in reply.events if e["type"] == "response.output_text.done")
    assert done["logprobs"] == part["logprobs"]


def test_marks_of_the_format_have_no_logprobs(thought: Play, played: Play) -> None:
    body: Any = {"include": ["message.output_text.logprobs"]}
    reply = thought(f"<think>\nTwo.\n</think>\n\nFour it is.{EOT}", **body)
    part = reply.output[1]["content"][0]
    assert "".join(entry["token"] for entry in part["logprobs"]).strip() == part["text"].strip()
    assert all(entry["top_logprobs"] == [] for entry in part["logprobs"])
    reply = played(f"Well. {call_text('get_weather', '{}')}{EOT}", tools=[WEATHER], **body)
    part = reply.output[0]["content"][0]
    assert "".join(entry["token"] for entry in part["logprobs"]).strip() == "Well."


def test_nobody_asked_for_logprobs(played: Play) -> None:
    reply = played(f"Hi there.{EOT}")
    assert reply.output[0]["content"][0]["logprobs"] == []
    deltas = [e for e in reply.events if e["type"] == "response.output_text.delta"]
    assert all(e["logprobs"] == [] for e in deltas)


def test_the_request_is_repeated_as_it_was_understood(context: Context) -> None:
    body = {"input": "hello", "text": {"format": None, "verbosity": "low"}}
    call = parse_responses(context, {**body, "max_output_tokens": 50.0}, RequestLimits(), "tiny")
    (begun, _) = events_of(call.encoder(()).open() + DONE)
    assert begun["response"]["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    assert json.dumps(begun["response"]["max_output_tokens"]) == "50"


def repeated(context: Context, **body: Any) -> Any:
    call = parse_responses(context, {"input": "hello", **body}, RequestLimits(), "tiny")
    (begun, _) = events_of(call.encoder(()).open() + DONE)
    return begun["response"]


def test_penalties_are_numbers_in_every_response(context: Context) -> None:
    response = repeated(context)
    assert (response["presence_penalty"], response["frequency_penalty"]) == (0.0, 0.0)
    response = repeated(context, presence_penalty=1, frequency_penalty=0.5)
    assert (response["presence_penalty"], response["frequency_penalty"]) == (1.0, 0.5)


def test_tools_are_repeated_with_all_their_members(context: Context) -> None:
    bare = {"type": "function", "name": "now"}
    full = {"type": "function", "name": "now", "strict": None, "description": None}
    full["parameters"] = None
    crm = {**CRM, "tools": [bare]}
    tools = repeated(context, tools=[bare, WEATHER, crm, {"type": "web_search"}])["tools"]
    assert tools == [full, WEATHER, {**CRM, "tools": [full]}, {"type": "web_search"}]
    Tools = pydantic.TypeAdapter(list[FunctionTool])
    assert [tool.strict for tool in Tools.validate_python(tools[:2])] == [None, True]


@pytest.mark.parametrize("tools", [5, [5], [{"type": "function", "name": "now"}]])
def test_a_group_in_a_group_is_repeated_as_it_is(context: Context, tools: Any) -> None:
    """It is left out, and its members are not read."""
    crm = {**CRM, "tools": [{"type": "namespace", "name": "inner", "tools": tools}]}
    assert repeated(context, tools=[crm])["tools"] == [crm]


def test_a_format_is_repeated_with_all_its_members(context: Context) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    form = {"type": "json_schema", "name": "a", "schema": schema}
    told = repeated(context, text={"format": form})["text"]["format"]
    assert told == {**form, "description": None, "strict": False}
    told = repeated(context, text={"format": {**form, "strict": True, "description": "b"}})
    assert told["text"]["format"] == {**form, "description": "b", "strict": True}
