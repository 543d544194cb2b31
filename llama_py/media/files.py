"""Formats of pictures and sounds, by their first bytes, and the size of a picture before it is
decoded: a file of a kilobyte may say that it has a billion pixels.

The formats are those that libmtmd decodes by itself: PNG, JPEG, GIF (its first frame) and BMP; WAV,
MP3 and FLAC.
"""

from __future__ import annotations

import math
import struct
from typing import Literal

from llama_py.errors import MediaError
from llama_py.quick_dataclass import dataclass

__all__ = ["MediaFile", "look_at"]

Kind = Literal["image", "audio"]

#: JPEG markers of frames that say how large the picture is (all but DHT, JPG and DAC).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
#: JPEG markers without a length behind them.
_BARE = frozenset([0x01, *range(0xD0, 0xDA)])
#: Forms of WAV with so many bytes for each sample: integers, floats, A-law, mu-law, and what says
#: which of them further behind.
_SAMPLED = frozenset([1, 3, 6, 7, 0xFFFE])
#: Bytes in which an MP3 may say how many frames it has, and seconds of the usual one.
_FIRST_FRAME, _LONGEST_FRAME = 4096, 1152 / 32000
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
        seconds: of a sound, as its headers say; 0 for pictures, and where they say nothing.
    """

    kind: Kind
    format: str
    width: int = 0
    height: int = 0
    seconds: float = 0.0

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


# The decoder allocates what a header says, so that a few bytes could ask for terabytes.


def _sound(data: bytes) -> MediaFile | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return MediaFile("audio", "wav", seconds=_wav_seconds(data))
    at = 0
    while data[at : at + 3] == b"ID3":  # tags, which FLAC may have before it as well as MP3
        a, b, c, d = struct.unpack("4B", data[at + 6 : at + 10])
        footer = 10 if data[at + 5] & 0x10 else 0
        at += 10 + ((a & 127) << 21 | (b & 127) << 14 | (c & 127) << 7 | (d & 127)) + footer
    if data[at : at + 4] == b"fLaC":
        (numbers,) = struct.unpack(">Q", data[at + 18 : at + 26])
        rate, samples = numbers >> 44, numbers & (1 << 36) - 1
        return MediaFile("audio", "flac", seconds=samples / rate if rate else math.inf)
    if at or (data[0] == 0xFF and data[1] & 0xE0 == 0xE0):
        return MediaFile("audio", "mp3", seconds=_mp3_seconds(data[at : at + _FIRST_FRAME]))
    return None


def _wav_seconds(data: bytes) -> float:
    """0 without a format, which is for the decoder to complain about."""
    at = 12
    while at + 8 <= len(data):
        name, size = struct.unpack("<4sI", data[at : at + 8])
        if name == b"fmt " and at + 24 <= len(data):
            form, channels, rate, _, _, bits = struct.unpack("<HHIIHH", data[at + 8 : at + 24])
            if form not in _SAMPLED:
                return math.inf  # its samples cannot be counted from its bytes
            frame = max(1, channels * bits // 8)
            return len(data) / frame / rate if rate else 0.0
        at += 8 + size + size % 2
    return 0.0


def _mp3_seconds(frame: bytes) -> float:
    """0 if there is no count of its frames; then they are counted when it is decoded."""
    for name, place in ((b"Xing", 8), (b"Info", 8), (b"VBRI", 14)):
        at = frame.find(name)
        if at >= 0 and (name == b"VBRI" or frame[at + 7] & 1):
            (frames,) = struct.unpack(">I", frame[at + place : at + place + 4])
            return float(frames * _LONGEST_FRAME)
    return 0.0


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
