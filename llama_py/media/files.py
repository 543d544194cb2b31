"""Formats of pictures and sounds, by their first bytes, and the size of a picture before it is
decoded: a file of a kilobyte may say that it has a billion pixels.

The formats are those that libmtmd decodes by itself: PNG, JPEG, GIF (its first frame) and BMP; WAV,
MP3 and FLAC.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

from llama_py.errors import MediaError

__all__ = ["MediaFile", "look_at"]

Kind = Literal["image", "audio"]

#: JPEG markers of frames that say how large the picture is (all but DHT, JPG and DAC).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
#: JPEG markers without a length behind them.
_BARE = frozenset([0x01, *range(0xD0, 0xDA)])
#: Formats that people send, and that are not read.
_OTHERS = (
    (b"<svg", "SVG"),
    (b"<?xml", "XML"),
    (b"%PDF", "PDF"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"OggS", "Ogg"),
)


@dataclass(frozen=True, slots=True)
class MediaFile:
    """What a file is.

    Attributes:
        kind: a picture or a sound.
        format: ``png``, ``jpeg``, ``gif``, ``bmp``, ``wav``, ``mp3``, ``flac``.
        width, height: of a picture, as its header says; 0 for sounds.
    """

    kind: Kind
    format: str
    width: int = 0
    height: int = 0

    @property
    def media_type(self) -> str:
        """Such as ``image/png``."""
        return f"{self.kind}/{self.format}"


def look_at(data: bytes, where: str) -> MediaFile:
    """The format of a file.

    Args:
        where: what it is called in errors.

    Raises:
        MediaError: it is none of the formats that can be read, or is cut off in its header.
    """
    if not data:
        raise MediaError(f"{where} is empty: there is no picture or sound in it")
    try:
        found = _picture(data) or _sound(data)
    except (struct.error, IndexError):
        raise MediaError(f"{where} is cut off: {len(data)} bytes are not a whole header") from None
    if found is None:
        raise MediaError(
            f"{where} is {_described(data)}; pictures are read as PNG, JPEG, GIF or BMP, and "
            "sounds as WAV, MP3 or FLAC"
        )
    if found.kind == "image" and not (found.width and found.height):
        raise MediaError(f"{where} is a picture of {found.width} by {found.height} pixels")
    return found


def _picture(data: bytes) -> MediaFile | None:
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return MediaFile("image", "png", *struct.unpack(">II", data[16:24]))
    if data[:3] == b"\xff\xd8\xff":
        return MediaFile("image", "jpeg", *_jpeg_size(data))
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return MediaFile("image", "gif", *struct.unpack("<HH", data[6:10]))
    if data[:2] == b"BM" and len(data) > 26:
        width, height = struct.unpack("<ii", data[18:26])
        return MediaFile("image", "bmp", abs(width), abs(height))
    return None


def _jpeg_size(data: bytes) -> tuple[int, int]:
    at = 2
    while True:
        while data[at] == 0xFF and data[at + 1] == 0xFF:  # padding
            at += 1
        if data[at] != 0xFF:
            return 0, 0
        marker = data[at + 1]
        if marker in _FRAMES:
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2
        if marker not in _BARE:
            at += max(2, struct.unpack(">H", data[at : at + 2])[0])


def _sound(data: bytes) -> MediaFile | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return MediaFile("audio", "wav")
    if data[:4] == b"fLaC":
        return MediaFile("audio", "flac")
    if data[:3] == b"ID3" or (data[0] == 0xFF and data[1] & 0xE0 == 0xE0):
        return MediaFile("audio", "mp3")
    return None


def _described(data: bytes) -> str:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "a WebP picture"
    if data[4:8] == b"ftyp":
        return "a picture or video in a container such as HEIC, AVIF or MP4"
    head = data[:64].lstrip().lower()
    for beginning, name in _OTHERS:
        if head.startswith(beginning.lower()):
            return f"{'an' if name in ('SVG', 'XML', 'Ogg') else 'a'} {name} file"
    return "of no known format"
