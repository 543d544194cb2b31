"""Ordinary files of each format, made here; and libmtmd's helper, which decodes them."""

from __future__ import annotations

import ctypes
import io
import os
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import soundfile
from PIL import Image as Pillow

from llama_py._native import mtmd_h as M
from llama_py.core.projector import Projector
from tests.media import pictures

__all__ = ["PICTURES", "SOUNDS", "helper_decodes", "scene", "spoken", "written"]


def scene(seed: int, width: int = 160, height: int = 120) -> pictures.Picture:
    """Draw discs of colours that run into each other, with a little noise: as photographs are."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    picture = np.zeros((height, width, 3))
    picture += np.linspace(40, 200, width)[None, :, None] * random.uniform(0.3, 1, 3)
    for _ in range(6):
        far = (x - random.uniform(0, width)) ** 2 + (y - random.uniform(0, height)) ** 2
        near = np.exp(-far / random.uniform(50, 2000))[..., None]
        picture = picture * (1 - near) + near * random.uniform(0, 255, 3)
    picture += random.normal(0, 4, picture.shape)
    return np.asarray(np.clip(picture, 0, 255), np.uint8)


def spoken(seed: int, rate: int, seconds: float = 0.8) -> pictures.Sound:
    """Make tones that come and go above a little noise."""
    random = np.random.default_rng(seed)
    times = np.arange(round(seconds * rate)) / rate
    sound = random.normal(0, 0.01, times.shape)
    for _ in range(5):
        pitch, at = random.uniform(120, 2500), random.uniform(0, seconds)
        around = np.exp(-(((times - at) / 0.15) ** 2))
        sound += random.uniform(0.05, 0.2) * around * np.sin(2 * np.pi * pitch * times)
    return sound.astype(np.float32)


def _saved(format: str, mode: str = "RGB", **options: Any) -> Callable[[int], bytes]:
    def write(seed: int) -> bytes:
        size = 90 + 37 * (seed % 5), 70 + 29 * (seed % 7)
        out = io.BytesIO()
        picture = Pillow.fromarray(scene(seed, *size))
        if mode in ("RGBA", "LA"):
            picture.putalpha(Pillow.fromarray(scene(seed + 1, *size)).convert("L"))
        if mode == "I;16":
            grey = np.asarray(picture.convert("L")).astype(np.uint16) * 257
            Pillow.fromarray(grey).save(out, format)
        else:
            picture.convert(mode).save(out, format, **options)
        return out.getvalue()

    return write


def _written(format: str, rate: int, channels: int = 1, **options: Any) -> Callable[[int], bytes]:
    def write(seed: int) -> bytes:
        sides = [spoken(seed + side, rate) for side in range(channels)]
        out = io.BytesIO()
        soundfile.write(out, np.stack(sides, axis=1), rate, format=format, **options)
        return out.getvalue()

    return write


#: Ten writers of each format that libmtmd's helper reads as well.
PICTURES: Final[dict[str, list[Callable[[int], bytes]]]] = {
    "png": [
        *(_saved("PNG", mode) for mode in ("RGB", "RGBA", "L", "LA", "P", "1", "I;16")),
        _saved("PNG", compress_level=0),
        _saved("PNG", "RGB", optimize=True),
        _saved("PNG", "P", transparency=3),
    ],
    "jpeg": [
        *(_saved("JPEG", quality=quality) for quality in (40, 75, 95)),
        *(_saved("JPEG", subsampling=each) for each in (0, 1, 2)),
        _saved("JPEG", progressive=True),
        _saved("JPEG", "L"),
        _saved("JPEG", optimize=True),
        _saved("JPEG", restart_marker_rows=1),
    ],
    "gif": [
        *(_saved("GIF", mode) for mode in ("P", "L", "RGB", "1")),
        _saved("GIF", "P", interlace=0),
        _saved("GIF", "P", interlace=1),
        *(_saved("GIF", "P", transparency=each) for each in (0, 3, 9)),
        _saved("GIF", "L", transparency=90),
    ],
    "bmp": [*[_saved("BMP", mode) for mode in ("RGB", "L", "P", "RGBA", "1")] * 2],
}
SOUNDS: Final[dict[str, list[Callable[[int], bytes]]]] = {
    "wav": [
        *(_written("WAV", rate) for rate in (8000, 11025, 16000, 22050, 44100, 48000)),
        _written("WAV", 16000, subtype="FLOAT"),
        _written("WAV", 16000, subtype="PCM_24"),
        _written("WAV", 44100, 2),
        _written("WAV", 16000, subtype="ULAW"),
    ],
    "flac": [
        *(_written("FLAC", rate) for rate in (8000, 16000, 22050, 32000, 44100, 48000, 96000)),
        _written("FLAC", 16000, 2),
        _written("FLAC", 48000, 2),
        _written("FLAC", 16000, subtype="PCM_24"),
    ],
    "mp3": [
        *(_written("MP3", rate) for rate in (16000, 22050, 24000, 32000, 44100, 48000)),
        _written("MP3", 44100, 2),
        _written("MP3", 16000, bitrate_mode="VARIABLE"),
        _written("MP3", 16000, compression_level=0.1),
        _written("MP3", 16000, compression_level=0.8),
    ],
}


def helper_decodes(projector: Projector, data: bytes) -> npt.NDArray[Any]:
    """Pixels, uint8 ``(height, width, 3)``, or samples, float32 ``(n,)``, as libmtmd decodes."""
    options = M.mtmd_helper_init_opt_default()
    options.video_params.ffmpeg_bin_dir = os.fsencode(os.devnull)
    buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
    made = M.mtmd_helper_bitmap_init_from_buf(projector.pointer, buffer, len(data), False, options)
    bitmap = made.bitmap
    assert bitmap, "the helper reads it"
    try:
        size = int(M.mtmd_bitmap_get_n_bytes(bitmap))
        address = ctypes.cast(M.mtmd_bitmap_get_data(bitmap), ctypes.c_void_p).value or 0
        held = bytes((ctypes.c_ubyte * size).from_address(address))
        if M.mtmd_bitmap_is_audio(bitmap):
            return np.frombuffer(held, np.float32)
        width, height = int(M.mtmd_bitmap_get_nx(bitmap)), int(M.mtmd_bitmap_get_ny(bitmap))
        return np.frombuffer(held, np.uint8).reshape(height, width, 3)
    finally:
        M.mtmd_bitmap_free(bitmap)


def written(format: str, content: npt.NDArray[Any], **options: Any) -> bytes:
    """A picture or a sound at ``RATE`` as a file."""
    out = io.BytesIO()
    if content.ndim == 3:
        Pillow.fromarray(content).save(out, format, **options)
    else:
        options.setdefault("samplerate", pictures.RATE)
        soundfile.write(out, content, format=format.upper(), **options)
    return out.getvalue()
