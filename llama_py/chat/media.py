"""Pictures and sounds in a conversation: where they are in the prompt.

A template knows nothing of them. It gets a marker in place of each, a text that nothing else
contains, and writes it where the model's family wants a picture to be; what the markers stand for
takes their places when the prompt is tokenized.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from llama_py.chat.conversation import AudioPart, ImagePart, Message, Part, ToolResult
from llama_py.chat.messages import ChatRequest
from llama_py.chat.rendered import RenderedChat
from llama_py.errors import MediaError, TemplateError

__all__ = ["media_of", "render_media"]

Media = ImagePart | AudioPart

#: What the markers of this process have in them.
_SECRET = secrets.token_hex(12)


def media_of(messages: Sequence[Message]) -> Iterator[tuple[str, Media]]:
    """The pictures and sounds of a conversation, each with its place in it."""
    for index, message in enumerate(messages):
        for number, part in enumerate(message.parts):
            where = f"messages[{index}].content[{number}]"
            if isinstance(part, ImagePart | AudioPart):
                yield where, part
            elif isinstance(part, ToolResult):
                for inner, each in enumerate(part.content):
                    if isinstance(each, ImagePart | AudioPart):
                        yield f"messages[{index}].content[{inner}]", each


def render_media(
    request: ChatRequest,
    render: Callable[[ChatRequest], RenderedChat],
    read: Callable[[Media, str], Any],
    most: int,
) -> RenderedChat:
    """Render a conversation that may have pictures and sounds.

    Args:
        render: renders a request with ``marker`` set in each of them.
        read: what the prompt gets in place of one; its place in the conversation is for errors.
        most: how many there may be.

    Raises:
        TemplateError: the template leaves one out.
        MediaError: there are too many, or one cannot be used.
    """
    found = [*media_of(request.messages)]
    if not found:
        return render(request)
    if len(found) > most:
        raise MediaError(
            f"messages has {len(found)} pictures and sounds; at most {most} are allowed (max_media)"
        )
    media = [read(part, where) for where, part in found]
    # The same for prompts that are compared with each other; another one if a message has it.
    secret = _SECRET if _SECRET not in repr(request.messages) else secrets.token_hex(12)
    counted = iter(range(len(found)))
    messages = tuple(
        replace(message, parts=tuple(_marked(part, secret, counted) for part in message.parts))
        for message in request.messages
    )
    rendered = render(replace(request, messages=messages))
    places = [
        (match.start(), match.end(), int(match[1]))
        for match in re.finditer(_marker(secret, r"(\d+)"), rendered.prompt)
    ]
    for number in {*range(len(found))} - {number for _, _, number in places}:
        raise TemplateError(
            f"the chat template leaves out {found[number][0]}: it writes no pictures and sounds "
            "there; put it into a message of the user"
        )
    return replace(
        rendered, media=tuple((start, end, media[number]) for start, end, number in places)
    )


def _marker(secret: str, number: str) -> str:
    return f"<__media_{secret}_{number}__>"


def _marked(part: Any, secret: str, counted: Iterator[int]) -> Part:
    if isinstance(part, ImagePart | AudioPart):
        return replace(part, marker=_marker(secret, str(next(counted))))
    if isinstance(part, ToolResult):
        content: tuple[Any, ...] = tuple(_marked(each, secret, counted) for each in part.content)
        return replace(part, content=content)
    marked: Part = part
    return marked
