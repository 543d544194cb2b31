"""The official client of Ollama's talks to the server, by each of its ways to call."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any, cast

import httpx
import ollama
import pytest

from llama_py import demo_model_path
from llama_py.server.access.keys import ApiKey
from llama_py.server.config.settings import ModelSettings, Settings
from tests.chat.families import template_folder
from tests.media.pictures import disc, png
from tests.patience import PATIENCE
from tests.server.scripted import scripted_serving
from tests.server.serving import Server, demo_settings, serving
from tests.server.test_two_keys import PROJECTOR

MODEL = "demo"
SUM = [{"role": "user", "content": "What is 2 + 3?"}]
PARIS = [{"role": "user", "content": "What is the weather in Paris?"}]
GREEDY = {"temperature": 0}


def get_weather(city: str) -> str:
    """Get the weather of a city.

    Args:
        city: Its name.
    """
    return json.dumps({"temperature": 21, "condition": f"sunny in {city}"})


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(demo_settings(mmproj=str(PROJECTOR))) as running:
        yield running


def client_of(server: Server, **options: Any) -> ollama.Client:
    return ollama.Client(host=server.url, timeout=PATIENCE, **options)


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[ollama.Client]:
    with client_of(server) as client:
        yield client


def said(chunks: Any) -> str:
    return "".join(chunk.message.content or "" for chunk in chunks)


# ---- chats -----------------------------------------------------------------------------------


def test_a_reply_whole_and_as_a_stream(client: ollama.Client) -> None:
    whole = client.chat(MODEL, SUM, options=GREEDY)
    assert (whole.message.content, whole.done, whole.done_reason) == ("2 + 3 = 5.", True, "stop")
    assert whole.eval_count == 6
    assert whole.prompt_eval_count
    assert whole.total_duration
    assert whole.eval_duration
    assert whole.created_at
    assert abs(datetime.fromisoformat(whole.created_at).timestamp() - time.time()) < 60
    chunks = [*client.chat(MODEL, SUM, options=GREEDY, stream=True)]
    assert said(chunks) == whole.message.content
    assert [chunk.done for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].eval_count == 6


def test_a_stream_is_the_default_and_has_lines_of_json(server: Server) -> None:
    body = {"model": MODEL, "messages": SUM, "options": GREEDY}
    answer = httpx.post(f"{server.url}/api/chat", json=body, timeout=PATIENCE)
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == "2 + 3 = 5."
    assert lines[-1]["done"]


def test_asynchronous_calls(server: Server) -> None:
    async def talk() -> str:
        async with ollama.AsyncClient(host=server.url, timeout=PATIENCE) as client:
            stream = await client.chat(MODEL, SUM, options=GREEDY, stream=True)
            streamed = "".join([chunk.message.content or "" async for chunk in stream])
            whole = await client.generate(MODEL, "What is 2 + 3?", options=GREEDY)
            assert streamed == whole.response
            assert len((await client.embed(MODEL, "Hello")).embeddings) == 1
            assert (await client.list()).models
            return streamed

    assert asyncio.run(talk()) == "2 + 3 = 5."


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_and_its_result_is_used(client: ollama.Client, stream: bool) -> None:
    def ask(messages: Any) -> ollama.Message:
        given: dict[str, Any] = {"tools": [get_weather], "options": GREEDY}
        if not stream:
            return cast("ollama.Message", client.chat(MODEL, messages, **given).message)
        chunks = [*client.chat(MODEL, messages, stream=True, **given)]
        calls = [call for chunk in chunks for call in chunk.message.tool_calls or ()]
        return ollama.Message(role="assistant", content=said(chunks), tool_calls=calls or None)

    asked = ask(PARIS)
    assert asked.tool_calls
    (call,) = asked.tool_calls
    assert (call.function.name, dict(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    result = {"role": "tool", "tool_name": "get_weather", "content": get_weather("Paris")}
    assert "21 degrees" in str(ask([*PARIS, asked, result]).content)


def test_the_prompt_is_that_of_other_dialects(server: Server, client: ollama.Client) -> None:
    """Ollama's messages have no ids: a result belongs to the first open call of its name."""
    calls = [{"function": {"name": "f", "arguments": {"x": number}}} for number in (1, 2)]
    results = [{"role": "tool", "tool_name": "f", "content": text} for text in ("one", "two")]
    theirs: list[Any] = [*PARIS, {"role": "assistant", "tool_calls": calls}, *results]
    body = {"model": MODEL, "messages": theirs, "options": {"num_predict": 0}, "stream": False}
    found = httpx.post(f"{server.url}/api/chat", json=body, timeout=PATIENCE).json()
    named: list[Any] = [{**call, "id": str(at)} for at, call in enumerate(calls)]
    answered = [{**each, "tool_call_id": str(at)} for at, each in enumerate(results)]
    ours = [*PARIS, {"role": "assistant", "tool_calls": named}, *answered]
    body = {"messages": ours, "max_tokens": 0}
    usage = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE).json()
    assert found["prompt_eval_count"] == usage["usage"]["prompt_tokens"] > 40


def test_a_format_is_honoured(client: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    for reply in (
        client.chat(MODEL, SUM, format=schema, options=GREEDY).message.content,
        client.generate(MODEL, "What is 2 + 3?", format=schema, options=GREEDY).response,
    ):
        assert [*json.loads(str(reply))] == ["sum"]
    free = client.chat(MODEL, SUM, format="json", options={**GREEDY, "num_predict": 200})
    assert str(free.message.content).startswith("{")


@pytest.mark.parametrize(
    ("options", "text", "reason"),
    [
        ({"num_predict": 3}, "2 + 3", "length"),
        ({"num_predict": -1}, "2 + 3 = 5.", "stop"),
        ({"stop": [" ="]}, "2 + 3", "stop"),
        ({"num_ctx": 512, "num_gpu": 0, "num_thread": 2, "num_keep": 4}, "2 + 3 = 5.", "stop"),
        ({"seed": 1, "top_k": 1, "top_p": 0.9, "min_p": 0.0}, "2 + 3 = 5.", "stop"),
        ({"repeat_last_n": 0, "repeat_penalty": 2.0}, "2 + 3 = 5.", "stop"),
    ],
)
def test_options(client: ollama.Client, options: dict[str, Any], text: str, reason: str) -> None:
    found = client.chat(MODEL, SUM, options={**GREEDY, **options})
    assert (found.message.content, found.done_reason) == (text, reason)


def test_options_without_effect_are_named_in_the_log(
    client: ollama.Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.chat(MODEL, SUM, options={**GREEDY, "low_vram": True, "num_predikt": 3})
    warned = " ".join(each.message for each in caplog.records if each.levelname == "WARNING")
    assert "'low_vram' has no effect" in warned
    assert "'num_predikt' has no effect here (unknown)" in warned


def test_log_probabilities(client: ollama.Client) -> None:
    options = {**GREEDY, "num_predict": 2}
    given: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "options": options}
    chat = client.chat(MODEL, SUM, **given).logprobs
    streamed = [*client.chat(MODEL, SUM, stream=True, **given)]
    assert chat
    assert [each.token for each in chat] == ["2", " +"]
    assert len(chat[0].top_logprobs or ()) == 2
    assert [each for chunk in streamed for each in chunk.logprobs or ()] == chat
    raw = client.generate(MODEL, "2 + 3 =", raw=True, **given).logprobs
    assert raw
    assert all(each.logprob <= 0 for each in raw)


def test_pictures(client: ollama.Client) -> None:
    picture = png(disc())
    asked = {"role": "user", "content": "Which colour is it?", "images": [picture]}
    seen = client.chat(MODEL, [asked], options=GREEDY)
    given: dict[str, Any] = {"images": [base64.b64encode(picture).decode()], "options": GREEDY}
    answered = client.generate(MODEL, "Which colour is it?", **given)
    assert seen.message.content == answered.response
    assert int(seen.prompt_eval_count or 0) > 20


def test_thoughts_are_not_part_of_the_text() -> None:
    template = (template_folder() / "Qwen-Qwen3-0.6B.jinja").read_text(encoding="utf-8")
    with scripted_serving(template) as prompter, client_of(prompter.server) as client:
        prompter.text = "<think>\nFive?\n</think>\n\nFive."
        whole = client.chat("tiny", SUM)
        assert (str(whole.message.thinking).strip(), whole.message.content) == ("Five?", "Five.")
        chunks = [*client.chat("tiny", SUM, think=True, stream=True)]
        assert "".join(chunk.message.thinking or "" for chunk in chunks).strip() == "Five?"
        assert said(chunks).strip() == "Five."
        asked = client.generate("tiny", "What is 2 + 3?")
        assert (str(asked.thinking).strip(), asked.response) == ("Five?", "Five.")
        assert "thinking" in (client.show("tiny").capabilities or ())


# ---- generating ------------------------------------------------------------------------------


def test_a_prompt_is_a_question_and_raw_is_a_text(client: ollama.Client) -> None:
    asked = client.generate(MODEL, "What is 2 + 3?", options=GREEDY)
    assert (asked.response, asked.done_reason) == ("2 + 3 = 5.", "stop")
    chunks = [*client.generate(MODEL, "What is 2 + 3?", options=GREEDY, stream=True)]
    assert "".join(str(chunk.response) for chunk in chunks) == asked.response
    system = client.generate(MODEL, "What is 2 + 3?", system="Be brief.", options=GREEDY)
    assert int(system.prompt_eval_count or 0) > int(asked.prompt_eval_count or 0)
    raw = client.generate(MODEL, "2 + 3 =", raw=True, options=GREEDY)
    assert int(raw.prompt_eval_count or 0) < int(asked.prompt_eval_count or 0)


# ---- what is refused -------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[ollama.Client], Any], int, str]] = {
    "a larger context": (
        lambda client: client.chat(MODEL, SUM, options={"num_ctx": 10**6}),
        400,
        "options.num_ctx is 1000000, and the context of this model has 2048",
    ),
    "a prompt that is too long": (
        lambda client: client.chat(MODEL, [{"role": "user", "content": "x " * 5000}]),
        400,
        "prompt is too long: 5009 tokens",
    ),
    "the same as a stream": (
        lambda client: [
            *client.chat(MODEL, [{"role": "user", "content": "x " * 5000}], stream=True)
        ],
        400,
        "prompt is too long",
    ),
    "a template": (
        lambda client: client.generate(MODEL, "Hi", template="{{ .Prompt }}"),
        400,
        "template is not supported",
    ),
    "tokens of a context": (
        lambda client: client.generate(MODEL, "Hi", context=[1, 2]),
        400,
        "context is not supported here: send the text",
    ),
    "a suffix": (lambda client: client.generate(MODEL, "a", suffix="b"), 400, "infill tokens"),
    "a wrong option": (
        lambda client: client.chat(MODEL, SUM, options={"num_predict": "9x"}),
        400,
        "num_predict must be an integer",
    ),
    "a wrong role": (
        lambda client: client.chat(MODEL, [{"role": "nobody", "content": "x"}]),
        400,
        r"messages\[0\].role is 'nobody'",
    ),
    "no duration": (lambda client: client.chat(MODEL, SUM, keep_alive="soon"), 400, "keep_alive"),
    "what there is not": (lambda client: client.pull("x"), 404, "there is no POST /api/pull"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_error_is_one_sentence(client: ollama.Client, case: str) -> None:
    call, status, message = REFUSED[case]
    with pytest.raises(ollama.ResponseError, match=message) as caught:
        call(client)
    assert caught.value.status_code == status


def test_json_without_its_type_is_taken_from_programs_and_not_from_pages(server: Server) -> None:
    body = json.dumps({"model": MODEL, "messages": SUM, "stream": False})
    head = {"Content-Type": "application/x-www-form-urlencoded"}
    ask = f"{server.url}/api/chat"
    assert httpx.post(ask, content=body, headers=head, timeout=PATIENCE).status_code == 200
    for name, value in (("Origin", server.url), ("Sec-Fetch-Site", "same-origin")):
        refused = httpx.post(ask, content=body, headers={**head, name: value}, timeout=PATIENCE)
        assert refused.status_code == 415
        assert "application/json" in refused.json()["error"]


# ---- vectors ---------------------------------------------------------------------------------


def test_embeddings(client: ollama.Client) -> None:
    both = client.embed(MODEL, ["Hello", "The sky is blue."])
    single = client.embed(MODEL, "Hello")
    assert len(both.embeddings) == 2
    assert both.embeddings[0] == pytest.approx(single.embeddings[0], abs=1e-4)
    assert sum(each * each for each in single.embeddings[0]) == pytest.approx(1, abs=1e-4)
    assert len(client.embed(MODEL, "Hello", dimensions=8).embeddings[0]) == 8
    old = client.embeddings(MODEL, "Hello").embedding
    size = sum(each * each for each in old) ** 0.5
    assert [each / size for each in old] == pytest.approx(single.embeddings[0], abs=1e-4)
    assert client.embed(MODEL, "word " * 3000).embeddings  # its end is left out
    with pytest.raises(ollama.ResponseError, match="too long"):
        client.embed(MODEL, "word " * 3000, truncate=False)


# ---- models ----------------------------------------------------------------------------------


def two_models() -> Settings:
    path = demo_model_path()
    first = ModelSettings(id="one", path=path, aliases=("uno", "claude-*"))
    return Settings(models=(first, ModelSettings(id="two:8b", path=path)))


def test_models_are_listed_shown_loaded_and_unloaded() -> None:
    with serving(two_models()) as server, client_of(server) as client:
        assert [each.model for each in client.list().models] == ["one", "uno", "two:8b"]
        listed = client.list().models[0]
        assert listed.details
        assert listed.details.quantization_level == "Q8_0"
        assert int(listed.size or 0) > 10**6
        assert listed.modified_at
        assert listed.modified_at < datetime.now(timezone.utc)
        assert client.ps().models == []
        assert client.generate("one").done_reason == "load"
        assert [each.model for each in client.ps().models] == ["one"]
        assert client.ps().models[0].context_length == 2048
        assert client.generate("one", keep_alive=0).done_reason == "unload"
        assert client.ps().models == []
        assert client.chat("one:latest", SUM, options=GREEDY).message.content == "2 + 3 = 5."
        with pytest.raises(ollama.ResponseError, match="nine") as caught:
            client.chat("nine", SUM)
        assert caught.value.status_code == 404


def test_a_model_stays_as_long_as_it_is_asked_to() -> None:
    with serving(two_models()) as server, client_of(server) as client:
        client.chat("one", SUM, keep_alive="10m")
        expires = client.ps().models[0].expires_at
        assert expires
        assert 500 < (expires - datetime.now(timezone.utc)).total_seconds() <= 600
        other = {"model": "one", "messages": SUM, "max_tokens": 1, "keep_alive": "1h"}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=other, timeout=PATIENCE)
        assert answer.status_code == 200
        expires = client.ps().models[0].expires_at
        assert expires
        assert 3000 < (expires - datetime.now(timezone.utc)).total_seconds() <= 3600
        client.chat("one", SUM, keep_alive=-1)
        assert str(client.ps().models[0].expires_at).startswith("9999")
        client.chat("one", SUM, keep_alive=0.1)
        until = time.monotonic() + PATIENCE
        while client.ps().models and time.monotonic() < until:
            time.sleep(0.05)
        assert client.ps().models == []
        client.chat("one", SUM)  # that was for the time before
        assert str(client.ps().models[0].expires_at).startswith("9999")


def test_what_a_model_can_do_is_said(server: Server, client: ollama.Client) -> None:
    shown = client.show(MODEL)
    assert shown.capabilities == ["completion", "tools", "vision"]
    assert shown.modelinfo
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["llama.context_length"] == 2048
    assert "tokenizer.ggml.tokens" in shown.modelinfo
    assert "{%" in str(shown.template)


def test_probes(server: Server) -> None:
    assert httpx.head(server.url).status_code == 200
    assert httpx.head(f"{server.url}/api/tags").status_code == 200
    version = httpx.get(f"{server.url}/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) > (0, 6, 4)  # editors ask for that


def test_keys() -> None:
    keys = (ApiKey("team", "sk-0123456789abcdef", frozenset({"chat"})),)
    head = {"Authorization": "Bearer sk-0123456789abcdef"}
    with (
        serving(demo_settings({"api_keys": keys})) as server,
        client_of(server) as nobody,
        client_of(server, headers=head) as client,
    ):
        with pytest.raises(ollama.ResponseError, match="API key is needed") as caught:
            nobody.list()
        assert caught.value.status_code == 401
        assert client.chat(MODEL, SUM, options=GREEDY, keep_alive=0).done
        assert client.ps().models  # who is no operator cannot send it away
        with pytest.raises(ollama.ResponseError, match="scope 'admin'"):
            client.generate(MODEL, keep_alive=0)
