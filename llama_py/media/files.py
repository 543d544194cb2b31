"""Which format a file of a picture or a sound has, by its first bytes: nothing else of it is read
here. What is in it is for the libraries that decode it (``decoding.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llama_py.errors import MediaError

__all__ = ["MediaFile", "look_at"]

Kind = Literal["image", "audio"]

#: How files begin; RIFF is the beginning of several, which its form tells apart.
_BEGINNINGS: tuple[tuple[bytes, Kind, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image", "png"),
    (b"\xff\xd8\xff", "image", "jpeg"),
    (b"GIF87a", "image", "gif"),
    (b"GIF89a", "image", "gif"),
    (b"BM", "image", "bmp"),
    (b"fLaC", "audio", "flac"),
    (b"OggS", "audio", "ogg"),
    (b"ID3", "audio", "mp3"),
)
_FORMS: dict[bytes, tuple[Kind, str]] = {b"WEBP": ("image", "webp"), b"WAVE": ("audio", "wav")}
#: Formats that people send, and that are not read.
_OTHERS = (
    (b"<svg", "an SVG file"),
    (b"<?xml", "an XML file"),
    (b"%pdf", "a PDF file"),
    (b"ii*\0", "a TIFF file"),
    (b"mm\0*", "a TIFF file"),
)


@dataclass(frozen=True, slots=True)
class MediaFile:
    """The format of a file.

    Attributes:
        kind: a picture or a sound.
        format: ``png``, ``jpeg``, ``webp``, ``gif``, ``bmp``; ``wav``, ``flac``, ``mp3``, ``ogg``.
    """

    kind: Kind
    format: str

    @property
    def media_type(self) -> str:
        """Such as ``image/png``."""
        return f"{self.kind}/{self.format}"


def look_at(data: bytes, where: str) -> MediaFile:
    """The format of a file.

    Args:
        where: its name in errors.

    Raises:
        MediaError: it is none of the formats that can be read.
    """
    if not data:
        raise MediaError(f"{where} is empty: there is no picture or sound in it")
    for beginning, kind, format in _BEGINNINGS:
        if data.startswith(beginning):
            return MediaFile(kind, format)
    if data[:4] == b"RIFF" and data[8:12] in _FORMS:
        return MediaFile(*_FORMS[data[8:12]])
    if data[0] == 0xFF and data[1:2] >= b"\xe0":  # a frame of MPEG, without a tag before it
        return MediaFile("audio", "mp3")
    raise MediaError(
        f"{where} is {_described(data)}; pictures are read as PNG, JPEG, WebP, GIF or BMP, and "
        "sounds as WAV, FLAC, MP3 or Ogg"
    )


def _described(data: bytes) -> str:
    if data[4:8] == b"ftyp":
        return "a picture or video in a container such as HEIC, AVIF or MP4"
    head = data[:64].lstrip().lower()
    return next((name for start, name in _OTHERS if head.startswith(start)), "of no known format")
