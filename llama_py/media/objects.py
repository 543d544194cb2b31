"""``Image`` and ``Audio``: pictures and sounds that a program has, as parts of messages."""

from __future__ import annotations

import base64
import os
import struct
import zlib
from typing import TYPE_CHECKING, Any

from llama_py.errors import MediaError, ParameterTypeError
from llama_py.media.arrays import Decoded, Source
from llama_py.media.files import look_at
from llama_py.regular_files import open_regular

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Audio", "Image", "read_own_file"]


class _Medium:
    """A file in memory, or an array.

    Attributes:
        source: what it is.
        media_type: such as ``image/png``, of its ``data``.
    """

    __slots__ = ("media_type", "source")

    def __init__(self, source: Source, written_as: str, name: str) -> None:
        self.source = source
        self.media_type = written_as
        if isinstance(source, bytes):
            self.media_type = look_at(source, name).media_type

    @property
    def data(self) -> bytes:
        """The encoded file; an array is written as one without loss."""
        if isinstance(self.source, bytes):
            return self.source
        return (_as_wav if self.source.rate else _as_png)(self.source)

    def data_url(self) -> str:
        """The whole of it as ``data:image/png;base64,...``, for messages that go over HTTP."""
        return f"data:{self.media_type};base64,{base64.b64encode(self.data).decode()}"

    def __repr__(self) -> str:
        size = (
            f"{len(self.source)} bytes"
            if isinstance(self.source, bytes)
            else f"{self.source.values.dtype} {self.source.values.shape}"
        )
        return f"<{type(self).__name__} {self.media_type}, {size}>"


class Image(_Medium):
    """A picture, to be put into a message's ``content`` among its texts::

        {"role": "user", "content": ["What is this?", Image("cat.png")]}

    Args:
        source: a path, the bytes of a file (PNG, JPEG, WebP, GIF, BMP), an image of Pillow, or a
            uint8 array ``(height, width, 3)`` of red, green and blue. Files are decoded when a
            model reads them, with the extra ``media``; arrays need nothing.

    Raises:
        MediaError: it cannot be read, or is of another format.
        ParameterTypeError: it is none of these.
    """

    __slots__ = ()

    def __init__(self, source: Any) -> None:
        found = _file(source)
        picture = Decoded(_pixels(source)) if found is None else found
        super().__init__(picture, "image/png", _name(source, "the picture"))


class Audio(_Medium):
    """A sound, to be put into a message's ``content`` among its texts.

    Args:
        source: a path, the bytes of a file (WAV, FLAC, MP3, Ogg), or float samples ``(n,)`` between
            -1 and 1.
        sample_rate: samples per second, where there are samples.

    Raises:
        MediaError: it cannot be read, or is of another format.
        ParameterTypeError: it is none of these.
    """

    __slots__ = ()

    def __init__(self, source: Any, sample_rate: int | None = None) -> None:
        found = _file(source)
        sound = _samples(source, sample_rate) if found is None else found
        super().__init__(sound, "audio/wav", _name(source, "the sound"))


def read_own_file(source: str | os.PathLike[str]) -> bytes:
    """A file that the program names.

    Raises:
        MediaError: it cannot be read.
    """
    try:
        with open_regular(source) as file:
            return file.readall()
    except OSError as error:
        raise MediaError(f"{os.fspath(source)} cannot be read: {error.strerror or error}") from None


def _name(source: Any, otherwise: str) -> str:
    return os.fspath(source) if isinstance(source, (str, os.PathLike)) else otherwise


def _file(source: Any) -> bytes | None:
    """Its bytes, if it is a file or the path of one."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    return read_own_file(source) if isinstance(source, (str, os.PathLike)) else None


def _pixels(source: Any) -> NDArray[np.uint8]:
    """Pixels of an array or of an image of Pillow, uint8 ``(height, width, 3)``: a copy."""
    import numpy as np

    if hasattr(source, "save") and hasattr(source, "convert"):
        from PIL import ImageOps

        source = ImageOps.exif_transpose(source).convert("RGB")
    pixels = np.asarray(source)
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[:, :, None], 3, axis=2)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (3, 4):
        raise ParameterTypeError(
            "a picture is a path, bytes, an image of Pillow, or a uint8 array (height, width, 3), "
            f"not {type(source).__name__} of {pixels.dtype} {pixels.shape}"
        )
    return np.array(pixels[:, :, :3], order="C")


def _samples(source: Any, sample_rate: int | None) -> Decoded:
    import numpy as np

    samples = np.array(source, np.float32)
    if samples.ndim != 1 or not sample_rate:
        raise ParameterTypeError(
            "a sound is a path, bytes, or samples (n,) with their sample_rate, not "
            f"{type(source).__name__} of shape {samples.shape}"
        )
    return Decoded(samples, sample_rate)


# ---- arrays as files -----------------------------------------------------------------------------


def _as_png(picture: Decoded) -> bytes:
    import numpy as np

    height, width, _ = picture.values.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)
    rows[:, 1:] = picture.values.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    # Without compression to speak of.
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


def _as_wav(sound: Decoded) -> bytes:
    body, rate = sound.values.astype("<f4").tobytes(), sound.rate
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, 3, 1, rate, 4 * rate, 4, 32)
    data = head + struct.pack("<4sI", b"data", len(body)) + body
    return struct.pack("<4sI4s", b"RIFF", 4 + len(data), b"WAVE") + data
