"""Parts of messages with pictures and sounds, in the forms of OpenAI's APIs, and llama-server's
prompts with a marker in the text for each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from llama_py.chat.checks import check_text
from llama_py.chat.conversation import AudioPart, ImagePart, Message, Part, Text, ToolResult
from llama_py.chat.messages import ChatRequest
from llama_py.chat.rendered import RenderedChat
from llama_py.dialects.context import CallContext
from llama_py.engine.media import PlacedMedium
from llama_py.engine.request import Prompt
from llama_py.errors import MediaError, ParameterError, ParameterTypeError, TemplateError, shown
from llama_py.media.files import look_at
from llama_py.media.sources import decode_base64
from llama_py.options.checks import whole_text

__all__ = [
    "MEDIA_MARKER",
    "MEDIA_PARTS",
    "MarkedPrompt",
    "PlacedAudio",
    "PlacedImage",
    "is_picture_url",
    "marked_parts",
    "prompt_with_media",
    "read_marked_prompt",
    "read_media_part",
    "render_results",
]

#: Stands for a picture or a sound in the text of a prompt that has them beside it.
MEDIA_MARKER: Final = "<__media__>"
#: The words of a tool's result that has none, where its pictures are shown behind it.
_SHOWN_BELOW = "[What the tool returned is shown in the next message.]"
#: Chat completions: ``image_url``, ``input_audio``; Responses: ``input_image``; and others.
MEDIA_PARTS: Final = (
    "image_url",
    "image",
    "input_image",
    "input_audio",
    "audio_url",
    "video_url",
)


@dataclass(frozen=True, slots=True)
class PlacedImage(ImagePart):
    """A picture that knows its place in what was sent, which errors name.

    A conversation may have other places: neighbours of the same role become one message.
    """

    where: str = field(default="", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class PlacedAudio(AudioPart):
    """A recording that knows its place; see ``PlacedImage``."""

    where: str = field(default="", repr=False, compare=False)


def is_picture_url(url: str) -> bool:
    """Whether it is a data URL that says that it holds a picture, of whatever format."""
    return url.strip()[:11].lower() == "data:image/"


def read_media_part(part: Mapping[str, Any], kind: str, where: str) -> ImagePart | AudioPart:
    """A part of one of these types. What an address leads to is read later.

    Raises:
        ParameterError: it has another form.
        MediaError: its base64 is none.
    """
    if kind == "video_url":
        raise ParameterError(f"{where} is a video, and no model here sees films; send pictures")
    given = part.get("image_url" if kind == "input_image" else kind)
    if kind == "input_audio":
        name = f"{where}.input_audio"
        if not isinstance(given, Mapping) or not isinstance(given.get("data"), str):
            raise ParameterTypeError(
                f'{name} must be an object {{"data": BASE64, "format": "wav"}}, not {shown(given)}'
            )
        data = decode_base64(given["data"], f"{name}.data")
        return PlacedAudio(data, f"audio/{given.get('format')}", where=where)
    url = given.get("url") if isinstance(given, Mapping) else given
    name = f"{where}.{'image_url' if kind == 'input_image' else kind}"
    if not isinstance(url, str):
        raise ParameterTypeError(
            f'{name} must be an address such as "data:image/png;base64,...", or an object with '
            f"it as url, not {shown(url)}"
        )
    kinds = PlacedAudio if kind == "audio_url" else PlacedImage
    return kinds(url=check_text(url, name), where=where)


# ---- prompts ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MarkedPrompt:
    """A prompt with ``MEDIA_MARKER`` in its text in place of each of its media.

    Attributes:
        where: its place in the body.
    """

    text: str
    files: tuple[bytes, ...] = field(repr=False)
    where: str


def read_marked_prompt(given: Mapping[str, Any], where: str) -> MarkedPrompt | None:
    """``{"prompt_string": ..., "multimodal_data": [BASE64, ...]}``; None if there are no data.

    Raises:
        ParameterError: it has another form, or another number of markers.
        MediaError: its base64 is none.
    """
    data = given.get("multimodal_data")
    if data is None or data == []:
        return None
    name = f"{where}.multimodal_data"
    if not isinstance(data, list) or not all(isinstance(each, str) for each in data):
        raise ParameterTypeError(f"{name} must be a list of texts in base64, not {shown(data)}")
    text = given.get("prompt_string")
    if not isinstance(text, str):
        raise ParameterTypeError(f"{where}.prompt_string must be a string, not {shown(text)}")
    markers = text.count(MEDIA_MARKER)
    if markers != len(data):
        raise ParameterError(
            f"{name} has {len(data)} entries, and prompt_string has {MEDIA_MARKER} {markers} "
            "times; each stands for one"
        )
    files = tuple(decode_base64(each, f"{name}[{i}]") for i, each in enumerate(data))
    return MarkedPrompt(whole_text(text, where), files, where)


def marked_parts(given: MarkedPrompt) -> list[str | ImagePart | AudioPart]:
    """The texts of a prompt, and between them its pictures and sounds.

    Raises:
        MediaError: one is of no known format.
    """
    name = f"{given.where}.multimodal_data"
    texts = given.text.split(MEDIA_MARKER)
    parts: list[str | ImagePart | AudioPart] = [texts[0]]
    for index, (data, text) in enumerate(zip(given.files, texts[1:], strict=True)):
        where = f"{name}[{index}]"
        is_picture = look_at(data, where).kind == "image"
        kind = PlacedImage if is_picture else PlacedAudio
        parts += [kind(data, where=where), text]
    return parts


def prompt_with_media(context: CallContext, given: MarkedPrompt) -> Prompt:
    """What the engine evaluates.

    Raises:
        ParameterError: the model has no projector for them.
        MediaError: there are too many, or one cannot be used.
    """
    name = f"{given.where}.multimodal_data"
    if not (context.sees or context.hears):
        raise ParameterError(f"{name}: this model reads text only (it has no projector)")
    if len(given.files) > context.max_media:
        raise MediaError(
            f"{name} has {len(given.files)} pictures and sounds; at most {context.max_media} are "
            "allowed (max_media)"
        )
    text, media = given.text.encode(), []
    places = re.finditer(re.escape(MEDIA_MARKER.encode()), text)
    for index, (place, data) in enumerate(zip(places, given.files, strict=True)):
        where = f"{name}[{index}]"
        part = (ImagePart if look_at(data, where).kind == "image" else AudioPart)(data)
        medium = context.medium(part, where)
        media.append(PlacedMedium(place.start(), place.end(), medium))
    return Prompt(text=text, media=tuple(media))


# ---- results of tools --------------------------------------------------------------------------


def render_results(
    request: ChatRequest, render: Callable[[ChatRequest], RenderedChat]
) -> RenderedChat:
    """Render a conversation. Many templates write only words of a tool's result; then its pictures
    and sounds are shown by the user, right behind the results.

    Such a template does so in every turn, so that prompts still begin alike.

    Raises:
        TemplateError, ParameterError, MediaError: as ``render``.
    """
    try:
        return render(request)
    except TemplateError:
        messages = _behind_results(request.messages)
        if messages == request.messages:
            raise
        return render(replace(request, messages=messages))


def _behind_results(messages: Sequence[Message]) -> tuple[Message, ...]:
    out: list[Message] = []
    shown: list[ImagePart | AudioPart] = []
    for message in messages:
        if message.role == "tool":
            parts = tuple(_without_media(part, shown) for part in message.parts)
            out.append(replace(message, parts=parts))
            continue
        if shown and message.role == "user":
            message = replace(message, parts=(*shown, *message.parts))
        elif shown:
            out.append(Message("user", tuple(shown)))
        shown.clear()
        out.append(message)
    return (*out, Message("user", tuple(shown))) if shown else tuple(out)


def _without_media(part: Part, shown: list[ImagePart | AudioPart]) -> Part:
    if not isinstance(part, ToolResult):
        return part
    media = [each for each in part.content if isinstance(each, ImagePart | AudioPart)]
    if not media:
        return part
    shown += media
    words = [each for each in part.content if isinstance(each, Text)]
    return replace(part, content=tuple(words) or (Text(_SHOWN_BELOW),))
