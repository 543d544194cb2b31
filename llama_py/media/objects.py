"""``Image`` and ``Audio``: pictures and sounds that a program has, as parts of messages."""

from __future__ import annotations

import base64
import os
from typing import Any

from llama_py.media.files import look_at
from llama_py.media.sources import picture_bytes, sound_bytes

__all__ = ["Audio", "Image"]


class _Medium:
    """A file in memory.

    Attributes:
        data: the encoded file.
        media_type: such as ``image/png``.
    """

    __slots__ = ("data", "media_type")

    def __init__(self, data: bytes, name: str) -> None:
        self.data = data
        self.media_type = look_at(data, name).media_type

    def data_url(self) -> str:
        """The whole of it as ``data:image/png;base64,...``, for messages that go over HTTP."""
        return f"data:{self.media_type};base64,{base64.b64encode(self.data).decode()}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.media_type}, {len(self.data)} bytes>"


class Image(_Medium):
    """A picture, to be put into a message's ``content`` among its texts::

        {"role": "user", "content": ["What is this?", Image("cat.png")]}

    Args:
        source: a path, the bytes of a file (PNG, JPEG, GIF, BMP), an image of Pillow, or a uint8
            array ``(height, width, 3)`` of red, green and blue.

    Raises:
        MediaError: it cannot be read, or is of another format.
        ParameterTypeError: it is none of these.
    """

    __slots__ = ()

    def __init__(self, source: Any) -> None:
        super().__init__(picture_bytes(source), _name(source, "the picture"))


class Audio(_Medium):
    """A sound, to be put into a message's ``content`` among its texts.

    Args:
        source: a path, the bytes of a file (WAV, MP3, FLAC), or float samples ``(n,)`` between -1
            and 1.
        sample_rate: samples per second, where there are samples.

    Raises:
        MediaError: it cannot be read, or is of another format.
        ParameterTypeError: it is none of these.
    """

    __slots__ = ()

    def __init__(self, source: Any, sample_rate: int | None = None) -> None:
        super().__init__(sound_bytes(source, sample_rate), _name(source, "the sound"))


def _name(source: Any, otherwise: str) -> str:
    return os.fspath(source) if isinstance(source, (str, os.PathLike)) else otherwise
