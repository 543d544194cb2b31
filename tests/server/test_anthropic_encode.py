"""Golden sequences of events in Anthropic's form, and what the official client makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import anthropic
import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_py.chat.rendered import RenderedChat
from llama_py.chat.templates.template import ChatTemplate
from llama_py.core.model import Model
from llama_py.core.vocab import Vocab
from llama_py.dialects.anthropic.encode import MessageHead, MessageReply
from llama_py.dialects.anthropic.messages import read_call
from llama_py.dialects.anthropic.tool_input import ToolInput
from llama_py.dialects.failures import Failure, Kind
from llama_py.dialects.limits import RequestLimits
from llama_py.dialects.usage import PromptProgress
from llama_py.engine.request import FinishEvent, GenerationRequest, Prompt, Record, TokenEvent
from llama_py.params import ModelParams
from tests.chat import families
from tests.dialects.playing import Context
from tests.models import tiny_model

NAMES = ("add", "weather")
TOOLS = [
    {
        "name": name,
        "input_schema": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        },
    }
    for name in NAMES
]


@pytest.fixture(scope="module")
def vocab() -> Iterator[Vocab]:
    with Model(tiny_model("full"), ModelParams(vocab_only=True)) as model:
        yield model.vocab


@pytest.fixture(scope="module")
def context(vocab: Vocab) -> Context:
    """A family that reasons, and that writes calls as JSON between marks."""
    template = ChatTemplate.from_text(families.source("Qwen-Qwen3-0.6B"), eos="<|im_end|>")
    return Context(vocab, template)


def reply_of(
    context: Context,
    pieces: Sequence[str],
    finish: FinishEvent | None = None,
    *,
    prompt: int = 10,
    reused: int = 0,
    **body: Any,
) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    """The events of a reply that comes in these pieces, and the whole."""
    body = {"messages": [{"role": "user", "content": "Hi."}], "tools": TOOLS, **body}
    call = read_call(context, body, RequestLimits(), "m", request_id="req_1")
    record = Record(call.requests[0], tokens=[0] * prompt)
    reply = call.encoder([record])
    frames = reply.open()
    record.cache = {"reused": reused}
    for piece in pieces:
        frames += reply.feed(0, TokenEvent(1, piece))
    frames += reply.feed(0, finish or FinishEvent("stop"))
    frames += reply.close()
    whole: Any = reply.whole()
    return events_of(frames), whole


def events_of(frames: bytes) -> list[tuple[str, Any]]:
    """(name, data) of each event; each is in a form that every client reads."""
    out = []
    for frame in frames.decode().split("\n\n")[:-1]:
        name, data = frame.split("\n")
        assert name.startswith("event: ")
        assert data.startswith("data: ")
        out.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
        assert out[-1][1]["type"] == out[-1][0]
    return out


def short(events: Sequence[tuple[str, Any]]) -> list[str]:
    """Events in a few letters, texts of one block together."""
    out: list[str] = []
    for name, data in events:
        if name == "content_block_start":
            out.append(f"+{data['index']} {data['content_block']['type']}")
        elif name == "content_block_stop":
            out.append(f"-{data['index']}")
        elif name == "content_block_delta":
            (kind, grown) = data["delta"].values()
            mark = f"{data['index']} {kind.removesuffix('_delta')}: "
            if out[-1].startswith(mark):
                out[-1] += grown
            else:
                out.append(mark + grown)
        else:
            out.append(name)
    return out


def accumulated(frames: Sequence[tuple[str, Any]]) -> Any:
    """What the official client makes of a stream."""
    lines = "".join(f"event: {n}\ndata: {json.dumps(d)}\n\n" for n, d in frames)

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, text=lines, headers={"content-type": "text/event-stream"})

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    with (
        anthropic.Anthropic(api_key="x", http_client=http) as client,
        client.messages.stream(model="m", max_tokens=1, messages=[]) as stream,
    ):
        return stream.get_final_message()


START, END = ["message_start", "ping"], ["message_delta", "message_stop"]


def call_text(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


CASES: dict[str, tuple[list[str], list[str], str]] = {
    "text": (["Hello", ",", " you."], ["+0 text", "0 text: Hello, you.", "-0"], "end_turn"),
    "nothing": ([], [], "end_turn"),
    "only white space": ([" "], ["+0 text", "0 text:  ", "-0"], "end_turn"),
    "white space first": (["\n", "\n", "Yes"], ["+0 text", "0 text: Yes", "-0"], "end_turn"),
    "thinking": (
        ["<think>", "\nHm", "m.\n", "</think>", "\n\n", "Yes."],
        [
            *("+0 thinking", "0 thinking: Hmm.\n", "0 signature: llama-py", "-0"),
            *("+1 text", "1 text: Yes.", "-1"),
        ],
        "end_turn",
    ),
    "empty thinking": (
        ["<think>", "\n\n", "</think>", "\n\n", "Yes."],
        ["+0 text", "0 text: Yes.", "-0"],
        "end_turn",
    ),
    "a call": (
        [call_text("add", '{"a": "x", "b": 2}')],
        ["+0 tool_use", '0 input_json: {"a": "x", "b": 2}', "-0"],
        "tool_use",
    ),
    "a call without arguments": (
        ["\n", call_text("add", "{}")],
        ["+0 tool_use", "0 input_json: {}", "-0"],
        "tool_use",
    ),
    "all of it": (
        [
            *("<think>", "\nHm.\n", "</think>", "\n\nLet me look.\n"),
            *(call_text("add", '{"b": 1}'), "\n", call_text("weather", '{"a": ""}')),
        ],
        [
            *("+0 thinking", "0 thinking: Hm.\n", "0 signature: llama-py", "-0"),
            *("+1 text", "1 text: Let me look.", "-1"),
            *("+2 tool_use", '2 input_json: {"b": 1}', "-2"),
            *("+3 tool_use", '3 input_json: {"a": ""}', "-3"),
        ],
        "tool_use",
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [0, 1, 3])
def test_golden_sequences(context: Context, name: str, size: int) -> None:
    pieces, expected, reason = CASES[name]
    if size:
        text = "".join(pieces)
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
    events, whole = reply_of(context, pieces, reused=4)
    assert short(events) == [*START, *expected, *END]
    assert events[-2][1]["delta"] == {"stop_reason": reason, "stop_sequence": None}
    assert whole["stop_reason"] == reason
    message = accumulated(events)
    content = [block.to_dict() for block in message.content]
    for block in content:
        block.pop("parsed_output", None)
    assert content == whole["content"]
    assert message.usage.to_dict(exclude_none=True) == whole["usage"]
    assert [block["input"] for block in whole["content"] if block["type"] == "tool_use"] == [
        json.loads(line.partition(": ")[2]) for line in expected if "input_json" in line
    ]


def test_the_first_event_has_all_that_clients_need(context: Context) -> None:
    (name, data), *_ = reply_of(context, ["Yes"], reused=4)[0]
    assert name == "message_start"
    message = data["message"]
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "m",
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 10,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        },
    }


def test_what_was_reused_is_told_at_the_end(context: Context) -> None:
    events, whole = reply_of(context, ["Yes", "."], reused=4)
    usage = {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 2,
    }
    assert events[-2][1]["usage"] == usage
    assert whole["usage"] == usage


@pytest.mark.parametrize(
    ("finish", "reason", "sequence"),
    [
        (FinishEvent("length"), "max_tokens", None),
        (FinishEvent("stop", stop="END"), "stop_sequence", "END"),
        (FinishEvent("stop", stop="<|im_end|>"), "end_turn", None),
    ],
)
def test_why_a_reply_ends(
    context: Context, finish: FinishEvent, reason: str, sequence: Any
) -> None:
    events, whole = reply_of(context, ["Yes"], finish, stop_sequences=["END"])
    delta = {"stop_reason": reason, "stop_sequence": sequence}
    assert events[-2][1]["delta"] == delta
    assert whole["stop_reason"] == reason
    assert whole["stop_sequence"] == sequence


def test_held_back_text_belongs_to_the_reply(context: Context) -> None:
    events, whole = reply_of(context, ["Yes"], FinishEvent("length", text=" EN"))
    assert short(events)[2:5] == ["+0 text", "0 text: Yes EN", "-0"]
    assert whole["content"] == [{"type": "text", "text": "Yes EN"}]


def test_a_call_that_is_cut_off_is_an_object_without_the_last_argument(context: Context) -> None:
    text = call_text("add", '{"b": 2, "a": "half of a fi')[: -len("}\n</tool_call>")]
    events, whole = reply_of(context, list(text), FinishEvent("length"))
    assert short(events)[2:5] == ["+0 tool_use", '0 input_json: {"b": 2}', "-0"]
    assert whole["content"][0]["input"] == {"b": 2}
    assert whole["stop_reason"] == "max_tokens"


def test_what_there_is_of_a_call_when_a_reply_fails(context: Context) -> None:
    text = call_text("add", '{"b": 2, "a": "half of a fi')[: -len("}\n</tool_call>")]
    _, whole = reply_of(context, list(text), FinishEvent("error", error=TimeoutError()))
    assert whole["content"][0]["input"] == {"b": 2}


def test_hidden_thinking_can_be_sent_back(context: Context) -> None:
    pieces = ["<think>", "\nHm, é.\n", "</think>", "\n\nYes."]
    thinking = {"type": "adaptive", "display": "omitted"}
    events, whole = reply_of(context, pieces, thinking=thinking)
    assert [line[:13] for line in short(events)[2:5]] == ["+0 thinking", "0 signature: ", "-0"]
    assert "Hm" not in json.dumps(whole)
    block = whole["content"][0]
    assert block["thinking"] == ""
    question = {"role": "user", "content": "Hi."}
    seen: list[Any] = []

    class Watching(Context):
        def render_chat(self, request: Any) -> Any:
            seen.append(request.messages[1].parts[0].text)
            return super().render_chat(request)

    again = [question, {"role": "assistant", "content": whole["content"]}, question]
    watching = Watching(context.vocab, context.template)
    read_call(watching, {"messages": again}, RequestLimits(), "m")
    assert seen == ["Hm, é.\n"]


def test_ids_of_calls_are_unique_and_come_back_as_the_model_wrote_them(vocab: Vocab) -> None:
    context = Context(vocab, families.load("mistralai-Mistral-Nemo-Instruct-2407"))
    text = '[TOOL_CALLS][{"name": "add", "arguments": {"b": 1}, "id": "abc123XYZ"}]'
    replies = [reply_of(context, [text])[1]["content"][-1] for _ in range(2)]
    assert replies[0]["id"] != replies[1]["id"]
    result = {"type": "tool_result", "tool_use_id": replies[0]["id"], "content": "1"}
    messages = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": [replies[0]]},
        {"role": "user", "content": [result]},
    ]
    call = read_call(context, {"messages": messages, "tools": TOOLS}, RequestLimits(), "m")
    prompt = (call.requests[0].prompt.text or b"").decode()
    assert '"id": "abc123XYZ"' in prompt
    assert "toolu_" not in prompt


def test_an_error_ends_the_stream(context: Context) -> None:
    head = MessageHead("m", request_id="req_1")
    record = Record(GenerationRequest(Prompt(tokens=[1])))
    reply = MessageReply(head, record, RenderedChat(""))
    frames = reply.open() + reply.feed(0, TokenEvent(1, "Ye"))
    error = RuntimeError("gone")
    frames += reply.feed(0, FinishEvent("error", error=error))
    frames += reply.fail(Failure(Kind.INTERNAL, "It broke."))
    events = events_of(frames)
    assert short(events)[-1] == "error"
    assert events[-1][1] == {
        "type": "error",
        "error": {"type": "api_error", "message": "It broke."},
        "request_id": "req_1",
    }
    with pytest.raises(anthropic.APIStatusError, match="It broke"):
        accumulated(events)


def test_keep_alive_is_an_event(context: Context) -> None:
    reply = MessageReply(
        MessageHead("m"), Record(GenerationRequest(Prompt(tokens=[1]))), RenderedChat("")
    )
    assert events_of(reply.keep_alive()) == [("ping", {"type": "ping"})]
    assert reply.progress(PromptProgress(1, 0, 2, 0.1, 0.1)) == b""


# ---- arguments -----------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # What the scanner looks at comes often.
    | st.text(st.sampled_from('{}[]",:\\ ab\u00e9\n')),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=5)


def handed_out(text: str, size: int) -> str:
    given = ToolInput()
    parts = [given.feed(text[i : i + size]) for i in range(0, len(text), size)]
    out = "".join([*parts, given.end()])
    assert given.value == json.loads(out)
    return out


@settings(deadline=None)
@given(OBJECTS, st.integers(1, 9), st.booleans())
def test_complete_arguments_are_handed_out_as_they_are(
    value: dict[str, Any], size: int, ascii_only: bool
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert handed_out(text, size) == text


@settings(deadline=None)
@given(OBJECTS, st.integers(1, 9), st.data())
def test_arguments_that_are_cut_off_lose_their_last_member(
    value: dict[str, Any], size: int, data: Any
) -> None:
    text = json.dumps(value)
    cut = data.draw(st.integers(0, len(text) - 1))
    found = json.loads(handed_out(text[:cut], size))
    members = list(value.items())
    assert list(found.items()) == members[: len(found)]
    assert len(found) < len(members) or not members


@settings(deadline=None)
@given(st.text(st.sampled_from('{}[]",:\\ab1 e9-.\n')), st.integers(1, 9))
def test_whatever_a_model_writes_becomes_an_object(text: str, size: int) -> None:
    assert isinstance(json.loads(handed_out(text, size)), dict)


@pytest.mark.parametrize(
    "text", ["", " ", "[1]", '"x"', "{,}", '{"a": NaN}', '{"a": 1e999, "b": 1}']
)
def test_what_is_no_object_becomes_an_empty_one(text: str) -> None:
    assert handed_out(text, 1) == "{}"
