"""What it costs to read pictures and sounds, measured in a process of its own.

``python -m tests.media.costs NAME ...`` reads hostile files, ``--fuzz KIND SECONDS SEED`` broken
ones; both write what became of them as JSON. Memory is the peak of the process, above what it had
before (Linux).
"""

from __future__ import annotations

import gc
import json
import random
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from llama_py.core.model import Model
from llama_py.core.projector import Projector
from llama_py.engine.media import MediaEncoder
from llama_py.errors import MediaError
from llama_py.media.limits import MediaLimits
from llama_py.params import ModelParams
from tests.media.broken import chunk, raw_png
from tests.media.encoded import scene, spoken, written
from tests.media.pictures import RATE
from tests.media.projectors import tiny_projector
from tests.media.text_models import media_model

__all__ = ["HOSTILE", "fuzz", "measured"]

ROOT = Path(__file__).parents[2]
_MIB = 1 << 20


# ---- files that cost more than they look ------------------------------------------------------


def _two_forms() -> bytes:
    """A WAV that is read by its first description, and decoded by its second."""
    forms = [struct.pack("<HHIIHH", 1, 1, rate, 2 * rate, 2, 16) for rate in (384_000, 1)]
    body = b"WAVE" + b"".join(b"fmt " + struct.pack("<I", 16) + form for form in forms)
    body += b"data" + struct.pack("<I", _MIB) + bytes(_MIB)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _slow_wav() -> bytes:
    """Two hours of sound in 720 kB."""
    form = struct.pack("<HHIIHH", 1, 1, 50, 100, 2, 16)
    body = b"WAVEfmt " + struct.pack("<I", 16) + form
    body += b"data" + struct.pack("<I", 700_000) + bytes(700_000)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _apples_png() -> bytes:
    """A PNG whose size does not stand where it usually does: 16384 x 16384."""
    whole = raw_png(16384, 16384, rows=bytes(_MIB))
    return whole[:8] + chunk(b"CgBI", b"\0" * 8) + whole[8:]


def _bomb() -> bytes:
    """A PNG of one pixel that unpacks to 600 MB."""
    packer = zlib.compressobj(1)
    packed = b"".join(packer.compress(bytes(_MIB)) for _ in range(600)) + packer.flush()
    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def _long_mp3() -> bytes:
    """Eight hours at 8 kbit/s, which nothing in it says."""
    minute = written(
        "mp3", np.zeros(8000 * 60, np.float32), samplerate=8000, compression_level=0.99
    )
    frames = minute[minute.index(minute[:2], 4) :]
    return frames * (28_000_000 // len(frames))


def _scans() -> bytes:
    """A progressive JPEG of 49 megapixels with very many scans."""
    from PIL import Image

    picture = Image.new("RGB", (7000, 7000))
    import io

    out = io.BytesIO()
    picture.save(out, "JPEG", progressive=True)
    whole = out.getvalue()
    last = whole.rindex(b"\xff\xda")
    return whole[:last] + whole[last:-2] * 3000 + whole[-2:]


def _exif_that_repeats() -> bytes:
    """EXIF with 2,000 values that all lie in the same 20 MB."""
    size = 20 * _MIB - 25_000
    values = b"".join(struct.pack("<HHII", tag, 7, size, 8) for tag in range(2000))
    block = b"II*\0" + struct.pack("<IH", 8, 2000) + values
    block += bytes(20 * _MIB - len(block))
    return raw_png(8, 8, extra=chunk(b"eXIf", block))


#: Name: what writes it, most MiB of memory and seconds of the processor that reading may take.
HOSTILE: Final[dict[str, tuple[Callable[[], bytes], int, float]]] = {
    "two forms": (_two_forms, 64, 2),
    "slow wav": (_slow_wav, 64, 2),
    "another place for the size": (_apples_png, 64, 2),
    "one pixel of 600 MB": (_bomb, 64, 2),
    "long mp3": (_long_mp3, 600, 20),
    "scans": (_scans, 64, 2),
    "exif that repeats": (_exif_that_repeats, 128, 2),
    "restarts": (lambda: b"\xff\xd8\xff" + b"\xd0\xff" * (16 * _MIB - 2), 64, 2),
    "padding": (lambda: b"\xff\xd8" + b"\xff" * (32 * _MIB - 2), 64, 2),
    "parts of a png": (lambda: raw_png(8, 8, extra=chunk(b"teSt", b"") * 2_500_000), 128, 2),
    "parts of a wav": (
        lambda: b"RIFF" + b"\xff" * 4 + b"WAVE" + (b"junk" + bytes(4)) * (4 * _MIB - 2),
        256,
        4,
    ),
    "tags": (lambda: b"ID3\4\0\0\0\0\0\0" * 3_000_000, 64, 2),
    "comment of a gif": (
        lambda: b"GIF89a\x08\0\x08\0\0\0\0\x21\xfe" + (b"\xff" + bytes(255)) * (127 << 10),
        64,
        2,
    ),
    "webp 16383 x 16383": (
        lambda: b"RIFF\x1a\0\0\0WEBPVP8L\x0d\0\0\0\x2f\xfe\xff\xff\x0f\x07\0\0\0\0\0\0\0\0",
        64,
        2,
    ),
}


# ---- mutations ---------------------------------------------------------------------------------


def _seeds(kind: str) -> list[bytes]:
    if kind == "sound":
        formats = ("wav", "flac", "mp3", "ogg")
        return [
            written(each, spoken(1, RATE, 0.3), samplerate=rate)
            for each in formats
            for rate in (16000, 44100)
        ]
    small = scene(1, 40, 30)
    return [
        *(written(each, small) for each in ("png", "jpeg", "webp", "gif", "bmp")),
        written("jpeg", small, progressive=True),
        written("webp", small, lossless=True),
        raw_png(9, 7, colour=6, interlaced=True),
    ]  # fmt: skip


def _mutated(draw: random.Random, seeds: list[bytes]) -> bytes:
    """A file that was cut, in which bytes were changed, or parts put twice or elsewhere."""
    data = bytearray(draw.choice(seeds))
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        at, size = draw.randrange(len(data)), draw.choice((1, 2, 4, 8, 12, 40))
        match draw.randrange(7):
            case 0:
                del data[at:]
            case 1:
                data[at : at + size] = draw.randbytes(size)
            case 2:  # often a length, or a width
                data[at : at + 4] = draw.choice(
                    (b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\0\0\x40\0")
                )
            case 3:
                data[at:at] = data[at : at + draw.choice((4, 26, 200))]
            case 4:
                del data[at : at + size]
            case 5:
                other = draw.choice(seeds)
                data[at:] = other[draw.randrange(len(other)) :]
            case _:
                head = min(len(data), 64)
                data[draw.randrange(head)] ^= 1 << draw.randrange(8)
        if not data:
            return b"\0"
    return bytes(data)


def _with_sums(data: bytes) -> bytes:
    """A PNG whose parts have the right sums again, so that more of it is read."""
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        return data
    out, at = data[:8], 8
    while at + 12 <= len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        body = data[at + 4 : at + 8 + size]
        out += data[at : at + 4] + body + struct.pack(">I", zlib.crc32(body))
        at += 12 + size
    return out + data[at:]


# ---- the process -------------------------------------------------------------------------------


def _memory(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0


@contextmanager
def _encoder(limits: MediaLimits) -> Iterator[MediaEncoder]:
    with (
        Model(media_model("full"), ModelParams()) as model,
        Projector(model, tiny_projector("omni"), n_threads=1) as projector,
    ):
        encoder = MediaEncoder(projector, limits, n_ubatch=1 << 30)
        encoder.read(written("png", scene(1)), "it")  # what is loaded with the first
        encoder.read(written("wav", spoken(1, 8000), samplerate=8000), "it")
        yield encoder
        encoder.close()


def _read(encoder: MediaEncoder, data: bytes) -> str:
    try:
        return f"{len(encoder.read(data, 'it').tokens)} tokens"
    except MediaError as error:
        return f"MediaError: {error}"


def _hostile(names: list[str]) -> Iterator[dict[str, Any]]:
    with _encoder(MediaLimits()) as encoder:
        for name in names:
            data = HOSTILE[name][0]()
            gc.collect()
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            before, begun = _memory("VmRSS"), time.process_time()
            became = _read(encoder, data)
            seconds, peak = time.process_time() - begun, _memory("VmHWM") - before
            yield {"name": name, "became": became, "peak": peak, "seconds": seconds}


def _fuzz(kind: str, seconds: float, seed: int) -> dict[str, Any]:
    draw, seeds = random.Random(seed), _seeds(kind)
    limits = MediaLimits(most_pixels=4_000_000, most_sound_seconds=120)
    counts: Counter[str] = Counter()
    slowest = 0.0
    with _encoder(limits) as encoder:
        before, end = _memory("VmRSS"), time.monotonic() + seconds
        while time.monotonic() < end:
            data = _mutated(draw, seeds)
            data = _with_sums(data) if draw.random() < 0.7 else data
            begun = time.process_time()
            became = _read(encoder, data)
            slowest = max(slowest, time.process_time() - begun)
            counts["MediaError" if became.startswith("MediaError") else "read"] += 1
        peak = _memory("VmHWM") - before
    return {"counts": counts, "peak": peak, "slowest": slowest}


def _run(*arguments: str, seconds: float = 300) -> list[Any]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.media.costs", *arguments]
    ran = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert ran.returncode == 0, (ran.returncode, ran.stdout[-500:], ran.stderr[-2000:])
    return [json.loads(line) for line in ran.stdout.splitlines()]


def measured() -> list[dict[str, Any]]:
    """What reading each of ``HOSTILE`` takes."""
    return _run(*HOSTILE)


def fuzz(kind: str, seconds: float, seed: int) -> dict[str, Any]:
    """Read mutated files for some seconds: how many were read, and refused; the most memory."""
    (found,) = _run("--fuzz", kind, str(seconds), str(seed), seconds=seconds + 120)
    return dict(found)


if __name__ == "__main__":
    if sys.argv[1] == "--fuzz":
        print(json.dumps(_fuzz(sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))))
    else:
        for each in _hostile(sys.argv[1:]):
            print(json.dumps(each), flush=True)
