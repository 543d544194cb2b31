"""``/v1/audio/transcriptions``, with OpenAI's client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.media.pictures import chirp, tone, wav
from tests.media.projectors import tiny_projector
from tests.media.text_models import media_model
from tests.server.serving import Server, serving, tiny_settings

_PATH = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server whose model hears."""
    settings = tiny_settings(media_model("full"), mmproj=str(tiny_projector("gemma4ua")))
    with serving(settings) as server:
        yield server


def asked(server: Server, data: bytes, **options: Any) -> Any:
    with server.openai() as client:
        return client.audio.transcriptions.create(
            model="tiny", file=("a.wav", data), extra_body={"max_tokens": 6}, **options
        )


def test_a_recording_becomes_a_text(server: Server) -> None:
    reply = asked(server, wav(tone()))
    assert reply.text
    assert reply.usage.input_token_details.audio_tokens == 10
    assert reply.usage.total_tokens == reply.usage.input_tokens + 6
    again = asked(server, wav(tone()))
    assert again.text == reply.text


def test_language_and_prompt_are_part_of_the_prompt(server: Server) -> None:
    plain = asked(server, wav(tone())).usage.input_tokens
    assert asked(server, wav(tone()), language="de").usage.input_tokens > plain
    assert asked(server, wav(tone()), prompt="a").usage.input_tokens < plain


def test_another_recording_is_another_one(server: Server) -> None:
    with server.http() as http:
        for sound in (chirp(), tone(880)):
            form = {"model": "tiny", "max_tokens": "1"}
            reply = http.post(_PATH, files={"file": ("a.wav", wav(sound))}, data=form).json()
            details = reply["usage"]["input_token_details"]
            # Behind a sound that was never sent, nothing can be reused.
            assert details["cached_tokens"] < reply["usage"]["input_tokens"] - 10


def test_bare_text(server: Server) -> None:
    expected = asked(server, wav(tone())).text
    assert asked(server, wav(tone()), response_format="text") == f"{expected}\n"


def test_a_stream(server: Server) -> None:
    expected = asked(server, wav(tone())).text
    with server.openai() as client:
        stream = client.audio.transcriptions.create(
            model="tiny",
            file=("a.wav", wav(tone())),
            stream=True,
            extra_body={"max_tokens": 6},
        )
        events = [*stream]
    assert [event.type for event in events[-1:]] == ["transcript.text.done"]
    assert "".join(event.delta for event in events[:-1]) == expected == events[-1].text


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"response_format": "srt"}, "response_format"),
        ({"response_format": "x"}, "response_format"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": "nan"}, "temperature"),
    ],
)
def test_what_is_wrong_is_named(server: Server, form: dict[str, str], param: str) -> None:
    with server.http() as http:
        refused = http.post(_PATH, files={"file": ("a.wav", wav(tone()))}, data=form)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param


def test_a_file_that_is_none(server: Server) -> None:
    with server.http() as http:
        refused = http.post(_PATH, files={"file": ("a.wav", b"abc")})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "file"
        refused = http.post(_PATH, files={"other": ("a.wav", b"abc")})
        assert refused.json()["error"]["code"] == "missing_required_parameter"
        assert http.post(_PATH, json={"model": "tiny"}).status_code == 415
        for body in (b"", b"--x", b"--x\r\n\r\n", b"--x\r\nA: b\r\n\r\nc\r\n--x--"):
            kind = {"Content-Type": "multipart/form-data; boundary=x"}
            assert http.post(_PATH, content=body, headers=kind).status_code in (400, 415)
        bare = {"Content-Type": "multipart/form-data"}
        assert http.post(_PATH, content=b"a", headers=bare).status_code == 400


def test_models_that_do_not_hear_say_so() -> None:
    settings = tiny_settings(media_model("full"), mmproj=str(tiny_projector("mlp")))
    with serving(settings) as server, pytest.raises(openai.BadRequestError) as caught:
        asked(server, wav(tone()))
    assert "hears nothing" in str(caught.value)
