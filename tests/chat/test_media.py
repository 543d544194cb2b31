"""Pictures and sounds in the prompts of templates: each where it stands in its message."""

from __future__ import annotations

from typing import Any

import pytest

from llama_py.chat.conversation import AudioPart, ImagePart, Message, Text, ToolResult
from llama_py.chat.media import media_of, render_media
from llama_py.chat.messages import ChatRequest
from llama_py.chat.rendered import RenderedChat
from llama_py.errors import MediaError, TemplateError
from tests.chat import families

ONE, OTHER = ImagePart(b"one"), ImagePart(b"other")


def request(*messages: Message) -> ChatRequest:
    return ChatRequest(messages, now=0)


def rendered(name: str, *messages: Message) -> RenderedChat:
    template = families.load(name)
    return render_media(request(*messages), template.render, lambda part, where: part, 8)


def shown(found: RenderedChat) -> str:
    """The prompt with the pictures' bytes in place of their markers."""
    parts, at = [], 0
    for start, end, part in found.media:
        parts += [found.prompt[at:start], f"[{part.data.decode()}]"]
        at = end
    return "".join([*parts, found.prompt[at:]])


def without_spaces(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("name", families.names())
def test_every_template_writes_pictures_where_they_stand(name: str) -> None:
    parts = (Text("Here is"), ONE, Text("and here"), OTHER, Text("compare"))
    found = shown(rendered(name, Message("user", parts)))
    assert "Hereis[one]andhere[other]compare" in without_spaces(found)


@pytest.mark.parametrize("name", families.names())
def test_pictures_of_earlier_turns_stay(name: str) -> None:
    messages = (
        Message("user", (ONE, Text("What is this?"))),
        Message("assistant", (Text("A cat."),)),
        Message("user", (Text("And this?"), OTHER)),
    )
    found = without_spaces(shown(rendered(name, *messages)))
    assert found.index("[one]Whatisthis?") < found.index("Acat.") < found.index("Andthis?[other]")


def test_sounds_are_media_too() -> None:
    found = rendered(families.names()[0], Message("user", (AudioPart(b"tone"), Text("Listen."))))
    assert "[tone]" in shown(found)


def test_places_in_errors_are_those_of_the_messages() -> None:
    messages = [
        Message("user", (Text("a"), ONE)),
        Message("tool", (ToolResult("c", (Text("b"), OTHER)),)),
    ]
    places = [where for where, _ in media_of(messages)]
    assert places == ["messages[0].content[1]", "messages[1].content[1]"]


def test_a_template_that_leaves_a_picture_out_is_an_error() -> None:
    def render(asked: ChatRequest) -> RenderedChat:
        return RenderedChat("words only")

    with pytest.raises(TemplateError, match=r"leaves out messages\[0\]\.content\[0\]"):
        render_media(request(Message("user", (ONE,))), render, lambda part, where: part, 8)


def test_too_many_are_refused_before_any_is_read() -> None:
    def read(part: Any, where: str) -> Any:
        raise AssertionError(where)

    message = Message("user", (ONE,) * 9)
    with pytest.raises(MediaError, match="9 pictures and sounds; at most 8"):
        render_media(request(message), families.load(families.names()[0]).render, read, 8)


def test_a_marker_that_a_user_writes_is_text() -> None:
    words = "<__media_000000000000000000000000_0__>"
    found = rendered(families.names()[0], Message("user", (Text(words), ONE)))
    assert shown(found).count(words) == 1
    assert len(found.media) == 1
