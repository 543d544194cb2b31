"""Chat formats by name, and templates by name, put pictures where they stand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llama_py import Image, Llama
from llama_py.chat.formats.named import FORMATS
from tests.media.pictures import disc, png
from tests.media.projectors import tiny_projector
from tests.media.text_models import media_model

SAID = [{"role": "user", "content": ["Look:", Image(png(disc())), "What is it?"]}]


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(media_model("full"), mmproj=tiny_projector("mlp"), n_ctx=1024) as model:
        yield model


@pytest.mark.parametrize(
    "name", [*FORMATS, "chatml-function-calling", "llama.cpp:vicuna", "llama.cpp:command-r"]
)
def test_pictures_stand_between_the_texts_around_them(llm: Llama, name: str) -> None:
    llm.chat_format = name
    rendered = llm.runtime.calls.rendered(SAID, {})
    ((start, end, medium),) = rendered.media
    assert rendered.prompt[:start].rstrip().endswith("Look:")
    assert rendered.prompt[end:].lstrip().startswith("What is it?")
    assert len(medium.tokens) == 16
    reply = llm.create_chat_completion(SAID, max_tokens=1)
    texts = [{"role": "user", "content": ["Look:", "What is it?"]}]
    plain = llm.create_chat_completion(texts, max_tokens=1)
    # Line breaks between texts may be gone where a picture is between them.
    assert reply["usage"]["prompt_tokens"] >= plain["usage"]["prompt_tokens"] + 14
