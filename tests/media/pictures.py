"""Pictures and sounds that are drawn, not found: the same in every run.

Pictures are uint8 ``(height, width, 3)``, sounds float32 ``(samples,)`` at 16 kHz. ``png`` and
``wav`` write them as files with the standard library only.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = [
    "RATE",
    "Picture",
    "Sound",
    "chirp",
    "disc",
    "gradient",
    "noise",
    "plain",
    "png",
    "silence",
    "stripes",
    "tone",
    "wav",
]

Picture = npt.NDArray[np.uint8]
Sound = npt.NDArray[np.float32]

#: Samples of a second.
RATE: Final = 16000


def plain(red: int, green: int, blue: int, width: int = 56, height: int = 56) -> Picture:
    """Draw one colour everywhere."""
    return np.full((height, width, 3), (red, green, blue), np.uint8)


def gradient(width: int = 56, height: int = 56) -> Picture:
    """Draw red growing to the right, green growing downwards, and no blue."""
    picture = np.zeros((height, width, 3), np.uint8)
    picture[..., 0] = np.linspace(0, 255, width)[None, :]
    picture[..., 1] = np.linspace(0, 255, height)[:, None]
    return picture


def stripes(every: int = 8, width: int = 56, height: int = 56) -> Picture:
    """Draw black and white stripes from the top to the bottom."""
    light = (np.arange(width) // every) % 2 == 0
    row = np.where(light[:, None], 255, 0).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(row, (height, width, 3)))


def disc(radius: float = 0.3, width: int = 56, height: int = 56) -> Picture:
    """Draw a red disc on blue; its radius is given in widths."""
    y, x = np.mgrid[:height, :width]
    inside = (x - width / 2) ** 2 + (y - height / 2) ** 2 < (radius * width) ** 2
    return np.where(inside[..., None], (255, 0, 0), (0, 0, 255)).astype(np.uint8)


def noise(seed: int = 1, width: int = 56, height: int = 56) -> Picture:
    """Draw pixels at random: any number of different pictures."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def tone(hertz: float = 440.0, seconds: float = 0.4) -> Sound:
    """Make a sine wave."""
    times = np.arange(round(seconds * RATE)) / RATE
    return (0.5 * np.sin(2 * np.pi * hertz * times)).astype(np.float32)


def chirp(seconds: float = 0.4) -> Sound:
    """Make a tone that rises from 200 Hz to 2 kHz: no two parts of it are equal."""
    times = np.arange(round(seconds * RATE)) / RATE
    phase = 2 * np.pi * (200 * times + 900 * times**2 / seconds)
    return (0.5 * np.sin(phase)).astype(np.float32)


def silence(seconds: float = 0.4) -> Sound:
    """Make nothing to hear."""
    return np.zeros(round(seconds * RATE), np.float32)


def png(picture: Picture) -> bytes:
    """Write a picture as a PNG file of 8 bits for each colour."""
    height, width, _ = picture.shape
    rows = b"".join(b"\0" + row.tobytes() for row in picture)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(*part) for part in parts)


def _png_chunk(name: bytes, data: bytes) -> bytes:
    body = name + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def wav(sound: Sound, rate: int = RATE) -> bytes:
    """Write a sound as a WAV file of one channel with 16 bits."""
    samples = np.clip(np.round(sound * 32767), -32768, 32767).astype("<i2").tobytes()
    form = struct.pack("<HHIIHH", 1, 1, rate, 2 * rate, 2, 16)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form
    body += b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", len(body)) + body
