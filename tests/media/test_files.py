"""The format of a file, by its first bytes."""

from __future__ import annotations

import pytest

from llama_py.errors import MediaError
from llama_py.media.files import look_at
from tests.media.encoded import PICTURES, SOUNDS, written
from tests.media.pictures import disc, tone


@pytest.mark.parametrize("format", [*PICTURES, *SOUNDS, "webp", "ogg"])
def test_files_are_known_by_how_they_begin(format: str) -> None:
    kind = "audio" if format in {*SOUNDS, "ogg"} else "image"
    found = look_at(written(format, disc() if kind == "image" else tone()), "it")
    assert (found.kind, found.format, found.media_type) == (kind, format, f"{kind}/{format}")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"\0\0\0\x18ftypheic", "HEIC"),
        (b" <SVG xmlns", "an SVG file"),
        (b"II*\0", "a TIFF file"),
        (b"hello", "of no known format; pictures are read as PNG, JPEG, WebP, GIF or BMP"),
    ],
)
def test_what_is_not_read_is_named(data: bytes, said: str) -> None:
    with pytest.raises(MediaError, match=said):
        look_at(data, "it")
