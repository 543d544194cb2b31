"""Parts of messages with pictures and sounds, in the forms of OpenAI's APIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llama_py.chat.checks import check_text
from llama_py.chat.conversation import Audio, Image
from llama_py.errors import ParameterError, ParameterTypeError, shown
from llama_py.media.sources import decode_base64

__all__ = ["MEDIA_PARTS", "read_media_part"]

#: Chat completions: ``image_url``, ``input_audio``; Responses: ``input_image``; and others.
MEDIA_PARTS: Final = (
    "image_url",
    "image",
    "input_image",
    "input_audio",
    "audio_url",
    "video_url",
)


def read_media_part(part: Mapping[str, Any], kind: str, where: str) -> Image | Audio:
    """A part of one of these types. What an address leads to is read later.

    Raises:
        ParameterError: it has another form.
        MediaError: its base64 is none.
    """
    if kind == "input_audio":
        return _sound(part.get("input_audio"), f"{where}.input_audio")
    if kind == "video_url":
        raise ParameterError(f"{where} is a video, and no model here sees films; send pictures")
    given = part.get("image_url" if kind == "input_image" else kind)
    url = given.get("url") if isinstance(given, Mapping) else given
    name = f"{where}.{'image_url' if kind == 'input_image' else kind}"
    if not isinstance(url, str):
        raise ParameterTypeError(
            f'{name} must be an address such as "data:image/png;base64,...", or an object with '
            f"it as url, not {shown(url)}"
        )
    return (Audio if kind == "audio_url" else Image)(url=check_text(url, name))


def _sound(given: Any, where: str) -> Audio:
    if not isinstance(given, Mapping) or not isinstance(given.get("data"), str):
        raise ParameterTypeError(
            f'{where} must be an object {{"data": BASE64, "format": "wav"}}, not {shown(given)}'
        )
    return Audio(decode_base64(given["data"], f"{where}.data"), f"audio/{given.get('format')}")
