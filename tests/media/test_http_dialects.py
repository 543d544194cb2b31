"""Pictures and sounds over HTTP, in every dialect, with the official clients."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.media.pictures import disc, gradient, noise, png, tone, wav
from tests.media.projectors import tiny_projector
from tests.media.text_models import media_model
from tests.server.serving import Server, serving, tiny_settings

_WORDS = "What is this?"
_MOST = 6
#: Cells of a picture, and of the sound.
_CELLS = 16


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server whose model sees and hears."""
    settings = tiny_settings(media_model("full"), mmproj=str(tiny_projector("omni")), n_seq_max=4)
    with serving(settings) as server:
        yield server


@pytest.fixture(scope="module")
def blind() -> Iterator[Server]:
    """A server whose model reads text only."""
    with serving(tiny_settings(media_model("full"), mmproj=None, n_seq_max=2)) as server:
        yield server


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def url(data: bytes) -> str:
    return f"data:image/png;base64,{encoded(data)}"


def chat_parts(data: bytes) -> list[Any]:
    return [
        {"type": "text", "text": _WORDS},
        {"type": "image_url", "image_url": {"url": url(data)}},
    ]


def block(data: bytes) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": encoded(data)}
    return {"type": "image", "source": source}


#: Words, tokens of the prompt, and how many of those were reused.
Told = tuple[str, int, int]


def by_chat(server: Server, data: bytes) -> Told:
    with server.openai() as client:
        reply = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": chat_parts(data)}],
            max_tokens=_MOST,
            temperature=0,
        )
    usage = reply.usage
    reused = usage.prompt_tokens_details.cached_tokens
    return reply.choices[0].message.content, usage.prompt_tokens, reused


def by_streamed_chat(server: Server, data: bytes) -> Told:
    with server.openai() as client:
        chunks = [
            *client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": chat_parts(data)}],
                max_tokens=_MOST,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
        ]
    words = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    usage = chunks[-1].usage
    return words, usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens


def by_responses(server: Server, data: bytes) -> Told:
    content = [
        {"type": "input_text", "text": _WORDS},
        {"type": "input_image", "image_url": url(data), "detail": "high"},
    ]
    with server.openai() as client:
        reply = client.responses.create(
            model="tiny",
            input=[{"role": "user", "content": content}],
            max_output_tokens=_MOST,
            temperature=0,
        )
    usage = reply.usage
    return reply.output_text, usage.input_tokens, usage.input_tokens_details.cached_tokens


def by_file(server: Server, data: bytes) -> Told:
    content = [
        {"type": "input_text", "text": _WORDS},
        {"type": "input_file", "filename": "a.png", "file_data": url(data)},
    ]
    body = {"input": [{"role": "user", "content": content}], "max_output_tokens": _MOST}
    with server.http() as http:
        reply = http.post("/v1/responses", json={**body, "temperature": 0}).json()
    usage = reply["usage"]
    words = reply["output"][0]["content"][0]["text"]
    return words, usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]


def by_messages(server: Server, data: bytes) -> Told:
    content = [{"type": "text", "text": _WORDS}, block(data)]
    with server.anthropic() as client:
        reply = client.messages.create(
            model="tiny",
            messages=[{"role": "user", "content": content}],
            max_tokens=_MOST,
            extra_body={"temperature": 0},
        )
    usage = reply.usage
    reused = usage.cache_read_input_tokens or 0
    return reply.content[0].text, usage.input_tokens + reused, reused


def by_streamed_messages(server: Server, data: bytes) -> Told:
    content = [{"type": "text", "text": _WORDS}, block(data)]
    with (
        server.anthropic() as client,
        client.messages.stream(
            model="tiny",
            messages=[{"role": "user", "content": content}],
            max_tokens=_MOST,
            extra_body={"temperature": 0},
        ) as stream,
    ):
        reply = stream.get_final_message()
    usage = reply.usage
    reused = usage.cache_read_input_tokens or 0
    return reply.content[0].text, usage.input_tokens + reused, reused


def by_document(server: Server, data: bytes) -> Told:
    source = {"type": "content", "content": [block(data)]}
    content = [{"type": "text", "text": _WORDS}, {"type": "document", "source": source}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": _MOST}
    with server.http() as http:
        reply = http.post("/v1/messages", json={**body, "temperature": 0}).json()
    usage = reply["usage"]
    reused = usage["cache_read_input_tokens"]
    return reply["content"][0]["text"], usage["input_tokens"] + reused, reused


def marked(server: Server, data: bytes) -> dict[str, Any]:
    """A prompt in llama-server's form, as its template writes it."""
    with server.http() as http:
        body = {"messages": [{"role": "user", "content": chat_parts(data)}]}
        text = http.post("/apply-template", json=body).json()["prompt"]
    assert text.count("<__media__>") == 1
    return {"prompt_string": text, "multimodal_data": [encoded(data)]}


def by_completion(server: Server, data: bytes) -> Told:
    body = {"prompt": marked(server, data), "n_predict": _MOST, "temperature": 0}
    with server.http() as http:
        reply = http.post("/completion", json=body).json()
    return reply["content"], reply["tokens_evaluated"], reply["timings"]["cache_n"]


def by_completions(server: Server, data: bytes) -> Told:
    body = {"prompt": [marked(server, data)], "max_tokens": _MOST, "temperature": 0}
    with server.http() as http:
        reply = http.post("/v1/completions", json=body).json()
    usage = reply["usage"]
    words = reply["choices"][0]["text"]
    return words, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


_WAYS: dict[str, Callable[[Server, bytes], Told]] = {
    "chat": by_chat,
    "streamed chat": by_streamed_chat,
    "responses": by_responses,
    "file": by_file,
    "messages": by_messages,
    "streamed messages": by_streamed_messages,
    "document": by_document,
    "completion": by_completion,
    "completions": by_completions,
}


@pytest.mark.parametrize("way", _WAYS)
def test_every_dialect_means_the_same_prompt(server: Server, way: str) -> None:
    data = png(disc())
    expected = by_chat(server, data)
    words, tokens, reused = _WAYS[way](server, data)
    assert (words, tokens) == expected[:2]
    assert reused == tokens - 1, "the picture is found, and only the last token evaluated"


@pytest.mark.parametrize("way", _WAYS)
def test_another_picture_is_another_prompt(server: Server, way: str) -> None:
    seed = 100 + [*_WAYS].index(way)
    told = [_WAYS[way](server, png(noise(seed + 50 * n))) for n in range(2)]
    assert told[0][1] == told[1][1]
    assert all(reused < tokens - _CELLS for _, tokens, reused in told)


def test_another_picture_gets_other_logprobs(server: Server) -> None:
    def logprob(data: bytes) -> float:
        with server.openai() as client:
            reply = client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": chat_parts(data)}],
                max_tokens=1,
                temperature=0,
                logprobs=True,
                top_logprobs=5,
            )
        return float(reply.choices[0].logprobs.content[0].top_logprobs[0].logprob)

    one, other = logprob(png(disc())), logprob(png(gradient()))
    assert abs(one - other) > 1e-4
    assert abs(logprob(png(disc())) - one) < 1e-6


def test_a_second_question_reuses_the_picture(server: Server) -> None:
    data = png(noise(77))
    messages: list[Any] = [
        {"role": "user", "content": [block(data), {"type": "text", "text": "?"}]}
    ]
    with server.anthropic() as client:
        first = client.messages.create(model="tiny", messages=messages, max_tokens=4)
        messages += [{"role": "assistant", "content": first.content[0].text or "."}]
        messages += [{"role": "user", "content": "And now?"}]
        second = client.messages.create(model="tiny", messages=messages, max_tokens=4)
    assert second.usage.cache_read_input_tokens > _CELLS


def test_counts_are_those_of_usage(server: Server) -> None:
    data = png(disc())
    _, tokens, _ = by_chat(server, data)
    content = [{"type": "text", "text": _WORDS}, block(data)]
    with server.anthropic() as client:
        counted = client.messages.count_tokens(
            model="tiny", messages=[{"role": "user", "content": content}]
        )
    assert counted.input_tokens == tokens
    with server.http() as http:
        body = {"messages": [{"role": "user", "content": chat_parts(data)}]}
        counted = http.post("/v1/chat/completions/input_tokens", json=body).json()
        assert counted["input_tokens"] == tokens
        text = [{"role": "user", "content": [{"type": "text", "text": _WORDS}]}]
        body = {"messages": text}
        alone = http.post("/v1/chat/completions/input_tokens", json=body).json()
    assert tokens == alone["input_tokens"] + _CELLS


def test_pictures_count_where_a_prompt_is_too_long(server: Server) -> None:
    many = [part for n in range(60) for part in chat_parts(png(noise(n)))[1:]]
    with server.http() as http:
        body = {"messages": [{"role": "user", "content": many}], "max_tokens": 1}
        counted = http.post("/v1/chat/completions/input_tokens", json=body).json()["input_tokens"]
        refused = http.post("/v1/chat/completions", json={**body, "n": 1})
        assert counted > 60 * _CELLS
        if counted > 1024:
            assert refused.status_code == 413
            assert refused.json()["error"]["n_prompt_tokens"] == counted
        many = many * 2
        body = {"messages": [{"role": "user", "content": many}], "max_tokens": 1}
        refused = http.post("/v1/chat/completions", json=body)
    assert refused.status_code == 400
    assert "max_media" in refused.json()["error"]["message"]


def test_pictures_in_results_of_tools(server: Server) -> None:
    def counted(data: list[bytes]) -> tuple[int, int]:
        call = {"type": "tool_use", "id": "toolu_a", "name": "shot", "input": {}}
        content: list[Any] = [{"type": "text", "text": "here"}, *map(block, data)]
        messages = [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_a", "content": content}]},
        ]  # fmt: skip
        with server.anthropic() as client:
            one = client.messages.count_tokens(model="tiny", messages=messages).input_tokens
            reply = client.messages.create(model="tiny", messages=messages, max_tokens=2)
        usage = reply.usage
        assert one == usage.input_tokens + (usage.cache_read_input_tokens or 0)
        output = [{"type": "input_text", "text": "here"}]
        output += [{"type": "input_image", "image_url": url(each)} for each in data]
        items = [
            {"role": "user", "content": "Look."},
            {"type": "function_call", "call_id": "a", "name": "shot", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": output},
        ]
        with server.openai() as client:
            other = client.responses.create(model="tiny", input=items, max_output_tokens=2)
        return one, other.usage.input_tokens

    none, two = counted([]), counted([png(disc()), png(gradient())])
    assert none[0] == none[1]
    assert two[0] == two[1]
    assert two[0] >= none[0] + 2 * _CELLS


def test_sounds_in_chats(server: Server) -> None:
    sound = {"data": encoded(wav(tone())), "format": "wav"}
    content = [{"type": "text", "text": "?"}, {"type": "input_audio", "input_audio": sound}]
    with server.openai() as client:
        replies = [
            client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": content}], max_tokens=2
            )
            for _ in range(2)
        ]
    usage = replies[1].usage
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1


def test_what_a_model_reads_is_told(server: Server, blind: Server) -> None:
    for each, reads in ((server, ["text", "image", "audio"]), (blind, ["text"])):
        with each.http() as http:
            props = http.get("/props").json()
            listed = http.get("/v1/models").json()
        assert props["modalities"] == {
            "vision": "image" in reads, "audio": "audio" in reads, "video": False
        }  # fmt: skip
        assert props["media_marker"] == "<__media__>"
        assert listed["data"][0]["architecture"]["input_modalities"] == reads
        assert ("multimodal" in listed["models"][0]["capabilities"]) == (len(reads) > 1)


def test_models_that_read_text_go_on(blind: Server) -> None:
    data = png(disc())
    assert by_messages(blind, data)[1] > 0
    assert by_responses(blind, data)[1] > 0
    with blind.http() as http:
        body = {"messages": [{"role": "user", "content": chat_parts(data)}]}
        refused = http.post("/v1/chat/completions", json=body)
        assert refused.status_code == 400
        assert "mmproj" in refused.json()["error"]["message"]
        prompt = {"prompt_string": "<__media__>", "multimodal_data": [encoded(data)]}
        refused = http.post("/completion", json={"prompt": prompt})
    assert refused.status_code == 400
    assert "projector" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("data", "words"),
    [("AAAA", "no known format"), ("$$$", "not base64"), ("iVBORw0KGgo=", "cannot be decoded")],
)
def test_what_is_broken_has_its_place(server: Server, data: str, words: str) -> None:
    bad = f"data:image/png;base64,{data}"
    hello = {"role": "user", "content": "a"}
    source = {"type": "base64", "media_type": "image/png", "data": data}
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/chat/completions", {"messages": [
            {"role": "system", "content": "s"}, hello,
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": bad}}]}]},
            "messages[2].content[0]"),
        ("/v1/messages", {"max_tokens": 2, "system": "s", "messages": [
            hello, {"role": "user", "content": [{"type": "image", "source": source}]}]},
            "messages[1].content[0]"),
        ("/v1/responses", {"instructions": "s", "input": [
            hello, {"role": "user", "content": [{"type": "input_image", "image_url": bad}]}]},
            "input[1].content[0]"),
        ("/completion", {"prompt": {
            "prompt_string": "<__media__>", "multimodal_data": [data]}},
            "prompt.multimodal_data[0]"),
    ]  # fmt: skip
    with server.http() as http:
        for path, body, place in cases:
            refused = http.post(path, json=body)
            error = refused.json()["error"]
            assert refused.status_code == 400, refused.text
            assert error["type"] == "invalid_request_error"
            assert error["message"].startswith(place), error
            assert words in error["message"]


def test_markers_and_data_have_to_fit(server: Server) -> None:
    for prompt in (
        {"prompt_string": "a", "multimodal_data": [encoded(png(disc()))]},
        {"prompt_string": "<__media__>" * 2, "multimodal_data": [encoded(png(disc()))]},
        {"prompt_string": "<__media__>", "multimodal_data": "a"},
        {"multimodal_data": [encoded(png(disc()))]},
    ):
        with server.http() as http:
            for path in ("/completion", "/v1/completions"):
                assert http.post(path, json={"prompt": prompt}).status_code == 400


def test_a_body_that_is_too_large() -> None:
    settings = tiny_settings(
        media_model("full"), {"max_body_bytes": 20_000}, mmproj=str(tiny_projector("mlp"))
    )
    with serving(settings) as server, server.http() as http:
        body = {"messages": [{"role": "user", "content": chat_parts(png(noise(1, 100, 100)))}]}
        refused = http.post("/v1/chat/completions", json=body)
        assert refused.status_code == 413
        refused = http.post("/v1/messages", json={**body, "max_tokens": 2})
        assert refused.status_code == 413
        assert refused.json()["error"]["type"] == "request_too_large"
