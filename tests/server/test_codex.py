"""Sessions of Codex: every request is understood, and each turn evaluates only what is new."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.dialects.test_encode_chat import THINKING
from tests.patience import PATIENCE
from tests.responses_streams import check, events_of, text_of
from tests.server.codex import HEADERS, TOOLS, Codex, message, output_of
from tests.server.serving import demo_settings, serving


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with serving(demo_settings(n_ctx=8192)) as server, server.http(headers=HEADERS) as http:
        yield http


def send(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    reply = http.post("/v1/responses", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    return check(events_of(reply.content))


def used(response: dict[str, Any]) -> tuple[int, int, int]:
    """Tokens of the prompt, those of them that were cached, and tokens of the reply."""
    usage = response["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    return usage["input_tokens"], cached, usage["output_tokens"]


def test_a_conversation_evaluates_only_what_is_new(http: httpx.Client) -> None:
    codex = Codex("What is 3 + 4?", temperature=0)
    before = 0
    for question, answer in (("What is 5 + 4?", "7"), ("My name is Alice.", "9"), ("Bye", "Alice")):
        response = send(http, codex.body())
        prompt, cached, written = used(response)
        assert answer in text_of(response)
        assert cached >= before, "all of the turns before is in memory"
        before = prompt + written
        codex.answered(response["output"])
        codex.say(question)
    prompt, cached, _ = used(send(http, codex.body()))
    assert cached >= before
    assert prompt - cached < 25
    sessions = http.get("/v1/sessions").json()["data"]
    assert HEADERS["session-id"] in [session["id"] for session in sessions]


def test_codex_sees_that_the_server_is_there() -> None:
    """It counts no comments: without an event it would give up, and begin again."""
    settings = demo_settings({"ping_interval": 0.1}, n_ctx=4096)
    with serving(settings) as server, server.http(headers=HEADERS) as http:
        engine = server.service.models.loaded[0].llama.runtime.loaded.driver
        busy, go_on = threading.Event(), threading.Event()

        def occupy() -> None:
            busy.set()
            go_on.wait(PATIENCE)

        thread = threading.Thread(target=engine.run, args=(occupy,))
        thread.start()
        busy.wait()
        body = Codex("What is 3 + 4?", temperature=0).body()
        with http.stream("POST", "/v1/responses", json=body) as reply:
            data = b""
            for chunk in reply.iter_bytes():
                data += chunk
                if data.count(b"event: response.in_progress\n") >= 4:
                    go_on.set()
        thread.join()
    events = events_of(data)
    assert "7" in text_of(check(events))
    assert [event["type"] for event in events[1:5]] == ["response.in_progress"] * 4


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "custom", "name": "apply_patch"},
        {"type": "function", "name": "get_weather"},
        {"type": "function", "name": "update_plan"},
    ],
    ids=str,
)
def test_calls_and_their_results(http: httpx.Client, choice: Any) -> None:
    codex = Codex("What is the weather in Paris?", temperature=0, max_output_tokens=80)
    codex.items.append(message("user", f"Use {choice}."))
    response = send(http, {**codex.body(), "tool_choice": choice})
    prompt = used(response)[0]
    calls = [item for item in response["output"] if item["type"].endswith("_call")]
    assert calls
    for call in calls:
        assert call["name"] in {"exec_command", "write_stdin", "update_plan", "apply_patch",
                                "get_weather"}  # fmt: skip
        assert (call.get("namespace") == "mcp__weather__") == (call["name"] == "get_weather")
        assert (call["type"] == "custom_tool_call") == (call["name"] == "apply_patch")
    codex.answered(response["output"])
    second = send(http, codex.body())
    assert used(second)[1] >= prompt, "all of the first prompt is reused"
    codex.answered(second["output"])
    codex.say("What is 3 + 4?")
    assert used(send(http, codex.body()))[1] >= used(second)[0]


def test_a_result_may_be_a_list(http: httpx.Client) -> None:
    codex = Codex("What is on the screen?", temperature=0, max_output_tokens=20)
    call = {"type": "function_call", "name": "exec_command", "arguments": "{}", "call_id": "call_1"}
    parts = [
        {"type": "input_text", "text": "a screenshot"},
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
    ]
    sizes = []
    for result in ("as a text", parts, parts[1:], []):
        codex.items += [call, output_of(call, result)]
        sizes.append(used(send(http, codex.body()))[0])
    assert sizes == sorted({*sizes}), "each result is in the prompt, an image as what stands for it"


def test_items_of_other_servers_are_taken(http: httpx.Client) -> None:
    codex = Codex("hello", temperature=0, max_output_tokens=5)
    codex.items += [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}],
         "content": None, "encrypted_content": "gAAAAABpX9"},
        {"type": "web_search_call", "status": "completed", "action": {"type": "search"}},
        {"type": "local_shell_call", "call_id": "call_9", "status": "completed",
         "action": {"type": "exec", "command": ["ls"]}},
        {"type": "ghost_snapshot", "ghost_commit": {"id": "0"}},
        {"type": "message", "role": "assistant", "content": [], "phase": "commentary"},
        {"type": "compaction", "encrypted_content": "gAAAAABpX9"},
        message("assistant", "Hi."),
        message("user", "hello again"),
    ]  # fmt: skip
    response = send(http, codex.body())
    counted = http.post("/v1/responses/input_tokens", json=codex.body()).json()
    assert counted["input_tokens"] == used(response)[0]


#: Takes one system message, first, and then users and assistants in turn.
_STRICT = """{%- set rest = messages %}
{%- if messages[0].role == 'system' %}{% set rest = messages[1:] -%}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{% endif %}
{%- for message in rest -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{- raise_exception('After the optional system message, roles must alternate') }}{% endif -%}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"""


def test_a_strict_template_takes_it_as_well() -> None:
    """Codex begins with several messages of developers, and of the user."""
    with (
        serving(demo_settings(n_ctx=4096, chat_template=_STRICT)) as server,
        server.http(headers=HEADERS) as http,
    ):
        codex = Codex("My name is Alice.", temperature=0, tools=[], instructions="Be brief.")
        first = send(http, codex.body())
        codex.answered(first["output"])
        codex.items.append(message("developer", "<model_switch>Another model.</model_switch>"))
        codex.say("What is my name?")
        second = send(http, codex.body())
        assert "Alice" in text_of(second)
        assert used(second)[1] >= used(first)[0], "nothing was moved to the front"


def test_two_sessions_at_once_share_what_is_common(http: httpx.Client) -> None:
    first, second = (Codex(text, temperature=0) for text in ("What is 1 + 1?", "What is 1 + 2?"))
    prompt = used(send(http, first.body()))[0]
    assert used(send(http, {**second.body(), "prompt_cache_key": "other"}))[1] > prompt - 20


def test_an_overflow_is_told_in_the_stream(http: httpx.Client) -> None:
    codex = Codex("word " * 9000)
    response = send(http, codex.body())
    assert response["status"] == "failed"
    assert response["error"]["code"] == "context_length_exceeded"
    assert len(response["tools"]) == len(TOOLS)


#: Opens a block of thoughts, which a limit closes, and shows those of earlier turns.
_THINKS = THINKING.replace(
    "{{- '<|im_start|>assistant\n' -}}\n{%- if enable",
    "{{- '<|im_start|>assistant\n<think>\n' -}}\n{%- if enable",
)


def test_reasoning_that_is_replayed_is_in_memory() -> None:
    """The template shows thoughts: leaving them out would change the prompt."""
    fields = {"temperature": 0, "tools": [], "reasoning_budget": 5, "max_output_tokens": 40}
    with (
        serving(demo_settings(n_ctx=4096, chat_template=_THINKS)) as server,
        server.http(headers=HEADERS) as http,
    ):
        codex = Codex("Count to 9.", **fields)
        first = send(http, codex.body())
        thought = first["output"][0]
        assert [item["type"] for item in first["output"]] == ["reasoning", "message"]
        assert first["usage"]["output_tokens_details"]["reasoning_tokens"] >= 4
        codex.answered(first["output"])
        codex.say("What is 5 + 4?")
        prompts = [used(send(http, codex.body()))]
        place = next(i for i, item in enumerate(codex.items) if item["type"] == "reasoning")
        for kept in ("content", "summary", "encrypted_content", "nothing"):
            empty = {"type": "reasoning", "summary": []}
            codex.items[place] = {**empty, **{k: v for k, v in thought.items() if k == kept}}
            prompts.append(used(send(http, codex.body())))
    whole = used(first)[0] + len(thought["content"][0]["text"].split())
    assert prompts[0][1] >= whole, "the thoughts are in memory as well"
    assert {prompt for prompt, _, _ in prompts[:4]} == {prompts[0][0]}
    assert prompts[4][0] < prompts[0][0] - 4
