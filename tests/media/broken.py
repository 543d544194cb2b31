"""Pictures and sounds as nobody should send them: writers of small files, and what breaks them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final

from tests.media.pictures import disc, gradient, noise, png, tone, wav

__all__ = ["BAD_SOUNDS", "GOOD_PICTURES", "GOOD_SOUNDS", "hostile_pictures", "hostile_sounds"]

#: Bits of a pixel by the type of colour, for one channel of one bit.
_CHANNELS: Final = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def chunk(name: bytes, data: bytes, *, crc: int | None = None) -> bytes:
    """Write a chunk of a PNG."""
    body = name + data
    own = zlib.crc32(body) if crc is None else crc
    return struct.pack(">I", len(data)) + body + struct.pack(">I", own)


def raw_png(
    width: int,
    height: int,
    *,
    bits: int = 8,
    colour: int = 2,
    interlaced: bool = False,
    rows: bytes | None = None,
    extra: bytes = b"",
    value: int = 0x55,
) -> bytes:
    """Write a PNG of one value everywhere, or of ``rows`` as they are."""
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, int(interlaced))
    if rows is None:
        rows = b"".join(
            (b"\0" + bytes([value]) * ((w * bits * _CHANNELS[colour] + 7) // 8)) * h
            for w, h in _passes(width, height, interlaced)
        )
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + extra
        + chunk(b"IDAT", zlib.compress(rows, 9))
        + chunk(b"IEND", b"")
    )


def _passes(width: int, height: int, interlaced: bool) -> Iterator[tuple[int, int]]:
    if not interlaced:
        yield width, height
        return
    for x, y, dx, dy in (
        *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
        *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
    ):
        w, h = (width - x + dx - 1) // dx, (height - y + dy - 1) // dy
        if w > 0 and h > 0:
            yield w, h


def jpeg(
    width: int, height: int, components: int = 1, *, progressive: bool = False, data: bytes = b""
) -> bytes:
    """Write a grey picture, whatever its components mean; of a progressive one only the DC scan."""

    def segment(marker: int, body: bytes) -> bytes:
        return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body

    blocks = ((width + 7) // 8) * ((height + 7) // 8) * components
    # One code of one bit in each table: no difference, and the end of the block.
    table = bytes([1, *[0] * 15, 0])
    count = blocks * (1 if progressive else 2)
    bits = data or bytes((count + 7) // 8)
    frame = struct.pack(">BHHB", 8, height, width, components)
    frame += b"".join(bytes([n + 1, 0x11, 0]) for n in range(components))
    scan = bytes([components]) + b"".join(bytes([n + 1, 0]) for n in range(components))
    scan += bytes([0, 0 if progressive else 63, 0])
    return (
        b"\xff\xd8"
        + segment(0xDB, b"\0" + b"\x10" * 64)
        + segment(0xC2 if progressive else 0xC0, frame)
        + segment(0xC4, b"\0" + table)
        + segment(0xC4, b"\x10" + table)
        + segment(0xDA, scan)
        + bits
        + b"\xff\xd9"
    )


def gif(width: int = 8, height: int = 8, frames: int = 3) -> bytes:
    """Write a GIF of several frames, its codes not compressed."""
    out = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\xff\0\0\0\0\xff"
    for frame in range(frames):
        codes: list[int] = []
        for pixel in range(width * height):
            codes += [4] if pixel % 2 == 0 else []
            codes.append((pixel + frame) % 2)
        number, bits = 0, 0
        for code in [*codes, 5]:
            number |= code << bits
            bits += 3
        data = number.to_bytes((bits + 7) // 8, "little")
        blocks = b"".join(
            bytes([len(data[at : at + 255])]) + data[at : at + 255]
            for at in range(0, len(data), 255)
        )
        out += b"!\xf9\x04\0\x0a\0\0\0," + struct.pack("<HHHHB", 0, 0, width, height, 0)
        out += b"\x02" + blocks + b"\0"
    return out + b";"


def bmp(width: int = 4, height: int = 4, *, bits: int = 24, data: bytes | None = None) -> bytes:
    """Write a BMP."""
    row = (width * bits // 8 + 3) // 4 * 4
    body = b"\x7f" * (row * min(abs(height), 64)) if data is None else data
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, 0, len(body), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(body), 0, 0, 54) + head + body


def raw_wav(
    body: bytes, *, form: int = 1, channels: int = 1, rate: int = 16000, bits: int = 16
) -> bytes:
    """Write a WAV around bytes."""
    size = channels * bits // 8
    head = struct.pack("<HHIIHH", form, channels, rate, (rate * size) & 0xFFFFFFFF, size, bits)
    data = b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", len(body))
    return b"RIFF" + struct.pack("<I", len(data) + len(body)) + data + body


def _floats(value: float, count: int = 4096) -> bytes:
    return struct.pack(f"<{count}f", *[0.1, value] * (count // 2))


_PNG: Final = png(gradient())
_WAV: Final = wav(tone())
_JPEG: Final = jpeg(64, 64, 3)
_PALETTE: Final = chunk(b"PLTE", bytes(range(48)))

#: What is odd, and right all the same.
GOOD_PICTURES: Final[dict[str, Callable[[], bytes]]] = {
    "1 x 1": lambda: raw_png(1, 1),
    "1 x 5000": lambda: raw_png(1, 5000),
    "5000 x 1": lambda: raw_png(5000, 1),
    "2 x 30000": lambda: raw_png(2, 30000),
    "interlaced": lambda: raw_png(37, 21, interlaced=True),
    "paletted": lambda: raw_png(30, 30, bits=4, colour=3, extra=_PALETTE),
    "16 bits": lambda: raw_png(30, 30, bits=16),
    "alpha": lambda: raw_png(30, 30, colour=6),
    "grey and alpha": lambda: raw_png(30, 30, colour=4),
    "1 bit": lambda: raw_png(30, 30, bits=1, colour=0),
    "16 megapixels of nothing": lambda: raw_png(4000, 4000, colour=0, value=0),
    "jpeg": lambda: jpeg(64, 48),
    "jpeg in colours": lambda: _JPEG,
    "progressive jpeg": lambda: jpeg(64, 64, 1, progressive=True),
    "cmyk jpeg": lambda: jpeg(64, 64, 4),
    "jpeg 1 x 1": lambda: jpeg(1, 1),
    "animated gif": gif,
    "bmp": bmp,
    "bmp upside down": lambda: bmp(4, -4),
    "rubbish behind it": lambda: _PNG + b"\0" * 1000 + b"<svg>",
    "noise": lambda: png(noise(1, 200, 200)),
}


def hostile_pictures() -> dict[str, bytes]:
    """Pictures that are damaged or too large, by name."""
    bad = {
        f"png cut at {at}": _PNG[:at] for at in (1, 8, 12, 20, 25, 33, 41, 60, 100, len(_PNG) - 20)
    }
    bad |= {f"jpeg cut at {at}": _JPEG[:at] for at in (2, 3, 4, 20, 75, 80, 100, 140)}
    bad |= {
        "nothing": b"",
        "30000 x 30000": raw_png(30000, 30000, rows=b""),
        "0 x 0": raw_png(0, 0, rows=b""),
        "jpeg 65535 x 65535": jpeg(65535, 65535, data=b"\0" * 64),
        "jpeg 0 x 0": jpeg(0, 0, data=b"\0" * 64),
        "gif 65535 x 65535": gif(2, 2)[:6] + struct.pack("<HH", 65535, 65535) + gif(2, 2)[10:],
        "bmp of two billion": bmp(2**31 - 1, 2**31 - 1, data=b"\0" * 64),
        "bmp of 3 bits": bmp(4, 4, bits=3),
        "bmp of minus 4": bmp(-4, 4),
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="8" height="8"/>',
        "svg entity": b'<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
        "webp": b"RIFF\x1a\0\0\0WEBPVP8L" + b"\0" * 16,
        "heic": b"\0\0\0\x18ftypheic" + b"\0" * 16,
        "pdf": b"%PDF-1.7\n",
        "text": b"hello",
        "zeros": bytes(4096),
        "no data": raw_png(8, 8).replace(b"IDAT", b"iDAT"),
        "too little data": raw_png(64, 64, rows=b"\0" * 10),
        "broken zlib": _PNG.replace(zlib.compress(b"")[:2], b"\xff\xff", 1),
        "no palette": raw_png(8, 8, colour=3),
        "unknown colours": raw_png(8, 8, rows=b"\0" * 400).replace(
            b"\x08\x02\0\0\0", b"\x08\x05\0\0\0"
        ),
        "3 bits": raw_png(8, 8, rows=b"\0" * 400).replace(b"\x08\x02\0\0\0", b"\x03\x02\0\0\0"),
        "unknown filter": raw_png(8, 8, rows=(b"\x09" + b"\0" * 24) * 8),
        "a sound": _WAV,
    }
    return bad


#: What is odd, and right all the same.
GOOD_SOUNDS: Final[dict[str, Callable[[], bytes]]] = {
    "8 bits": lambda: raw_wav(b"\x80\x90" * 4000, bits=8),
    "24 bits": lambda: raw_wav(b"\0\1\2" * 8000, bits=24),
    "32 bits": lambda: raw_wav(b"\0\1\2\3" * 8000, bits=32),
    "float": lambda: raw_wav(_floats(-0.1), form=3, bits=32),
    "stereo": lambda: raw_wav(b"\0\1\2\3" * 8000, channels=2),
    "8 channels": lambda: raw_wav(bytes(range(16)) * 8000, channels=8),
    "48 kHz": lambda: raw_wav(b"\0\1" * 24000, rate=48000),
    "192 kHz": lambda: raw_wav(b"\0\1" * 96000, rate=192000),
    "8 kHz": lambda: raw_wav(b"\0\1" * 4000, rate=8000),
    "louder than 1": lambda: raw_wav(_floats(1e6), form=3, bits=32),
}
#: Damaged or impossible; some of the cut ones are read up to there.
BAD_SOUNDS: Final[tuple[str, ...]] = ("wav of nothing", "1 sample", "NaN", "infinite", "a picture")


def hostile_sounds() -> dict[str, bytes]:
    """Sounds that are damaged or impossible, by name."""
    bad = {f"wav cut at {at}": _WAV[:at] for at in (4, 11, 12, 20, 30, 40, 44, 45, 1000)}
    bad |= {
        "wav of nothing": raw_wav(b""),
        "1 sample": raw_wav(b"\0\1"),
        "1023 samples": raw_wav(b"\0\1" * 1023),
        "1025 samples": raw_wav(b"\0\1" * 1025),
        "NaN": raw_wav(_floats(float("nan")), form=3, bits=32),
        "infinite": raw_wav(_floats(float("inf")), form=3, bits=32),
        "larger than numbers": raw_wav(_floats(3e38), form=3, bits=32),
        "rate 0": raw_wav(b"\0\1" * 8000, rate=0),
        "rate 1": raw_wav(b"\0\1" * 8, rate=1),
        "rate 4 GHz": raw_wav(b"\0\1" * 8000, rate=2**32 - 1),
        "no channels": raw_wav(b"\0\1" * 8000, channels=0),
        "255 channels": raw_wav(b"\0\1" * 8000, channels=255),
        "0 bits": raw_wav(b"\0\1" * 8000, bits=0),
        "unknown form": raw_wav(b"\0\1" * 8000, form=0x55AA),
        "it says it is longer": _WAV[:40] + struct.pack("<I", 2**32 - 1) + _WAV[44:],
        "no form": b"RIFF\x10\0\0\0WAVEdata\x04\0\0\0abcd",
        "mp3 in name": b"\xff\xfb\x90\0" + b"\0" * 500,
        "id3 in name": b"ID3\x04\0\0\x7f\x7f\x7f\x7f",
        "flac of 60 billion samples": b"fLaC\0\0\0\x22" + b"\xff" * 40,
        "the same behind a tag": b"ID3\4\0\0\0\0\0\0fLaC\0\0\0\x22" + b"\xff" * 40,
        "mp3 of 4 billion frames": b"\xff\xfb\x90\0" + bytes(32) + b"Xing\0\0\0\1" + b"\xff" * 400,
        "adpcm of 4 billion samples": raw_wav(bytes(4096), form=2, bits=4),
        "ogg": b"OggS" + b"\0" * 60,
        "a picture": png(disc()),
    }
    return bad
