"""Files of pictures and sounds to pixels and samples: the one way from bytes of others to arrays.

Pillow and libsndfile decode (the extra ``media``). Both are asked for the formats of ``files.py``
alone, and say how large a picture or a sound is before it is decoded. What they do not bound is
bounded here: their loops over the parts of a file, by the number of reads (they hold the
interpreter); scans of a JPEG, each of which may take as long as the whole picture; and samples,
which are counted while they come.
"""

from __future__ import annotations

import importlib
import io
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import MediaError
from llama_py.media.arrays import Decoded, Source
from llama_py.media.files import look_at
from llama_py.media.limits import MediaLimits

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

__all__ = ["read_picture", "read_sound"]

_PLUGINS = {"png": "Png", "jpeg": "Jpeg", "webp": "WebP", "gif": "Gif", "bmp": "Bmp"}
#: Reads of a picture's file; encoders write parts of some kilobytes.
_MOST_READS = 100_000
#: Scans of a progressive JPEG with its previews; encoders write about ten.
_MOST_SCANS = 100
#: How a scan begins: its mark, and its length for one to four components.
_SCAN = re.compile(rb"\xff\xda\0[\x08\x0a\x0c\x0e]")
#: Rows and samples that are converted at once, and samples that the filter of rates looks back.
_ROWS, _BLOCK, _RESPONSE = 256, 1 << 16, 1 << 12
#: What libsndfile calls the formats of ``files.py``; WAVEX is a form of WAV.
_SOUNDS = frozenset({"WAV", "WAVEX", "FLAC", "MP3", "OGG"})
#: Samples per second of what may be a sound.
_RATES = range(1000, 384_001)
#: Bytes behind the last sample of an MP3 that may be tags.
_TAGS = 16384
#: The tag of EXIF that says how a picture is turned.
_ORIENTATION = 0x0112


def read_picture(source: Source, where: str, limits: MediaLimits) -> NDArray[np.uint8]:
    """The pixels of a picture, uint8 ``(height, width, 3)``: upright, the first frame of several,
    the colours under what is transparent.

    Args:
        where: its name in errors.

    Raises:
        MediaError: it is damaged or too large, or Pillow is missing.
    """
    if isinstance(source, Decoded):
        _check_size(source.values.shape[1], source.values.shape[0], where, limits)
        return source.values
    with _damaged(where), _opened(source, where) as image:
        _check_size(image.width, image.height, where, limits)
        image.load()
        return _upright(image)


def read_sound(source: Source, rate: int, where: str, limits: MediaLimits) -> NDArray[np.float32]:
    """The samples of a sound, float32 ``(n,)``: the mean of its channels, at ``rate`` per second.

    Args:
        where: its name in errors.

    Raises:
        MediaError: it is damaged or too long, or soundfile is missing.
    """
    if isinstance(source, Decoded):
        return _resampled([source.values], source.rate, rate, where, limits)
    file = io.BytesIO(source)
    found = _from_file(file, rate, where, limits)
    # libsndfile guesses how long an MP3 is that does not say it, and stops there.
    if look_at(source, where).format == "mp3" and len(source) - file.tell() > _TAGS:
        found = _from_file(_Longer(source), rate, where, limits)
    return found


# ---- pictures ------------------------------------------------------------------------------------


class _Reads(io.BytesIO):
    """A file that is read this many times at most."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        """As ever.

        Raises:
            ValueError: too often.
        """
        self.count += 1
        if self.count > _MOST_READS:
            raise ValueError(f"it has more than {_MOST_READS} parts")
        return super().read(size)


def _opened(data: bytes, where: str) -> PillowImage:
    """A picture of which the header was read.

    Not by Pillow's ``open``, whose limits are those of the whole process, and which takes other
    formats as well.
    """
    format = look_at(data, where).format
    if format == "jpeg" and len(_SCAN.findall(data)) > _MOST_SCANS:
        raise MediaError(f"{where} has more than {_MOST_SCANS} scans; save it as baseline JPEG")
    _library("PIL", "pillow", where)
    opened: PillowImage = _reader(format)(_Reads(data))
    return opened


@cache
def _reader(format: str) -> Any:
    """Pillow's class for files of a format; it knows no more of EXIF than which side is up.

    Pillow copies each value that is in it, and warns of each that is damaged.
    """
    plugin = importlib.import_module(f"PIL.{_PLUGINS[format]}ImagePlugin")
    exif = importlib.import_module("PIL.Image").Exif

    def getexif(self: PillowImage) -> Any:
        found = exif()
        found[_ORIENTATION] = _orientation(self.info.get("exif") or b"")
        return found

    base = getattr(plugin, f"{_PLUGINS[format]}ImageFile")
    return type(base.__name__, (base,), {"getexif": getexif})


def _orientation(block: bytes) -> int:
    """What EXIF says of the sides, 1 to 8; 1 if it says nothing, or is damaged."""
    block = block.removeprefix(b"Exif\0\0")
    order = ">" if block.startswith(b"MM") else "<"
    try:
        (start,) = struct.unpack_from(f"{order}4xI", block)
        (count,) = struct.unpack_from(f"{order}H", block, start)
        for at in range(start + 2, start + 2 + 12 * count, 12):
            tag, value = struct.unpack_from(f"{order}H6xH", block, at)
            if tag == _ORIENTATION:
                return int(value)
    except struct.error:
        pass
    return 1


def _upright(image: PillowImage) -> NDArray[np.uint8]:
    """Its pixels, by strips: whole pictures in other modes would be there twice."""
    from PIL import ImageOps

    ImageOps.exif_transpose(image, in_place=True)
    width, height = image.size
    pixels = np.empty((height, width, 3), np.uint8)
    for top in range(0, height, _ROWS):
        strip = image.crop((0, top, width, min(height, top + _ROWS)))
        pixels[top : top + _ROWS] = _colours(strip, image)
    return pixels


def _colours(strip: PillowImage, image: PillowImage) -> NDArray[np.uint8]:
    """Red, green and blue of a strip. What is transparent has the colour that is stored there; in a
    GIF, which stores none, that of its background, and black without one."""
    if strip.mode.startswith("I"):  # 16 bits of grey
        grey = (np.asarray(strip).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    colours = np.asarray(strip.convert("RGB"))
    clear = image.info.get("transparency")
    if image.format != "GIF" or not isinstance(clear, int):
        return colours
    behind = image.info.get("background", 0)
    palette = image.getpalette() or [each for each in range(256) for _ in range(3)]
    shown = np.array(palette[3 * behind : 3 * behind + 3] if behind else [0, 0, 0], np.uint8)
    return np.where((np.asarray(strip) == clear)[:, :, None], shown, colours)


def _check_size(width: int, height: int, where: str, limits: MediaLimits) -> None:
    if not (width and height):
        raise MediaError(f"{where} is a picture of {width} by {height} pixels")
    if width * height > limits.most_pixels:
        raise MediaError(
            f"{where} is a picture of {width} by {height} pixels; at most {limits.most_pixels} "
            "pixels are allowed (max_image_pixels), so make it smaller"
        )


# ---- sounds --------------------------------------------------------------------------------------


class _Longer(io.BytesIO):
    """A file that says at its end that it is longer than any MP3 of this many bytes."""

    def tell(self) -> int:
        """Where it is; at the end, far behind that."""
        at = super().tell()
        return at if at < self.getbuffer().nbytes else 64 * at


def _from_file(file: io.BytesIO, rate: int, where: str, limits: MediaLimits) -> NDArray[np.float32]:
    soundfile = _library("soundfile", "soundfile", where)
    with _damaged(where), soundfile.SoundFile(file) as sound:
        if sound.format not in _SOUNDS:
            raise MediaError(f"{where} is a sound of the format {sound.format}, which is not read")
        return _resampled(_blocks(sound), sound.samplerate, rate, where, limits)


def _blocks(sound: Any) -> Iterator[NDArray[np.float32]]:
    """The means of its channels, float32 ``(n,)``, until there are no more."""
    frames = max(1, _BLOCK // sound.channels)
    sound.seekable = lambda: False  # else it seeks behind each block, and an MP3 is broken there
    while len(block := sound.read(frames, dtype="float32", always_2d=True)):
        with np.errstate(over="ignore", invalid="ignore"):  # whoever gets them looks
            yield block.mean(axis=1)


def _resampled(
    blocks: Iterable[NDArray[np.float32]], own: int, rate: int, where: str, limits: MediaLimits
) -> NDArray[np.float32]:
    """Samples at another rate; no more than are allowed are ever held."""
    if own not in _RATES:
        raise MediaError(
            f"{where} has {own} samples per second; from {_RATES[0]} to {_RATES[-1]} are read"
        )
    most = int(4 * limits.most_sound_seconds * rate)
    held = bytearray()
    for block in blocks if own == rate else _at_rate(blocks, own, rate):
        held += block.tobytes()
        if len(held) > most:
            raise MediaError(
                f"{where} is longer than {limits.most_sound_seconds:g} seconds "
                "(max_sound_seconds); send it in parts"
            )
    return np.frombuffer(held, np.float32)


# Another rate as llama.cpp's own decoder (miniaudio) makes it, so that a sound is the same vectors
# here and there: linear interpolation, with a Butterworth filter of the fourth order on the side
# that has more samples.


def _at_rate(
    blocks: Iterable[NDArray[np.float32]], own: int, rate: int
) -> Iterator[NDArray[np.float32]]:
    if own > rate:
        return _interpolated(_filtered(blocks, rate / own), own, rate)
    return _filtered(_interpolated(blocks, own, rate), own / rate)


def _interpolated(
    blocks: Iterable[NDArray[np.float32]], own: int, rate: int
) -> Iterator[NDArray[np.float32]]:
    """Straight lines between samples; the first one goes from silence to the first sample."""
    last, start, done = np.zeros(1, np.float32), -1, 0
    for block in blocks:
        held = np.concatenate([last, block])
        end = ((start + len(held)) * rate - 1) // own + 1
        whole, part = np.divmod(np.arange(done, end, dtype=np.int64) * own, rate)
        before = held[whole - 1 - start]
        yield before + (part / np.float32(rate)).astype(np.float32) * (held[whole - start] - before)
        last, start, done = held[-1:], start + len(block), end


def _filtered(
    blocks: Iterable[NDArray[np.float32]], cutoff: float
) -> Iterator[NDArray[np.float32]]:
    """The part below ``cutoff``, a share of half the rate, by overlapping transforms."""
    size = _BLOCK + _RESPONSE
    response = np.fft.rfft(_impulse(cutoff), size)
    before = np.zeros(_RESPONSE)
    for block in blocks:
        for start in range(0, len(block), _BLOCK):
            held = np.concatenate([before, block[start : start + _BLOCK]])
            shown = np.fft.irfft(np.fft.rfft(held, size) * response, size)
            yield shown[_RESPONSE : len(held)].astype(np.float32)
            before = held[-_RESPONSE:]


def _impulse(cutoff: float) -> NDArray[np.float64]:
    """The filter's response to a single sample, ``(_RESPONSE,)``."""
    around = np.exp(-1j * np.pi * np.arange(_RESPONSE // 2 + 1) / (_RESPONSE // 2))
    cosine = np.cos(np.pi * cutoff)
    found = np.ones_like(around)
    for angle in (np.pi / 8, 3 * np.pi / 8):
        damping = np.sin(np.pi * cutoff) * np.cos(angle)
        found *= (1 - cosine) / 2 * (1 + around) ** 2
        found /= 1 + damping - 2 * cosine * around + (1 - damping) * around**2
    return np.fft.irfft(found)


# ---- both ----------------------------------------------------------------------------------------


def _library(name: str, package: str, where: str) -> Any:
    """A module of the extra ``media``.

    Raises:
        MediaError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MediaError(
            f"{where} needs the package {package} to be decoded: pip install 'llama-py[media]'"
        ) from None


@contextmanager
def _damaged(where: str) -> Iterator[None]:
    """Everything that the libraries say of a file that they cannot decode as one error."""
    try:
        yield
    except MediaError:
        raise
    except MemoryError:
        raise MediaError(f"{where} cannot be decoded: there is too little memory for it") from None
    except Exception as error:  # of whatever class: what they raise for damaged files differs
        plain = str(error) if isinstance(error, (OSError, ValueError)) else "it is damaged"
        reason = getattr(error, "error_string", plain)  # libsndfile's, without objects of Python
        raise MediaError(f"{where} cannot be decoded: {reason}") from None
