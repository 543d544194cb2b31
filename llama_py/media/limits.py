"""``MediaLimits``: which pictures and sounds may be read, and what they may cost.

Every model has them, and few see a picture: what reads those is imported with the first one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["MediaLimits"]


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """What may be read. ``docs/pictures.md`` says what it comes to in seconds and bytes.

    Attributes:
        paths: folders below which files may be read (``file://`` addresses, and paths).
        urls: ``http`` and ``https`` addresses may be fetched.
        most_bytes: of one file.
        most_pixels: of one picture.
        most_sound_seconds: of one sound.
        most_media: pictures and sounds in one prompt.
        most_decoded: bytes of all pictures and sounds of one request as pixels (3 bytes each) and
            samples (4 bytes each).
        seconds: for fetching one, redirects included.
        redirects: that are followed.
    """

    paths: tuple[Path, ...] = ()
    urls: bool = False
    most_bytes: int = 32 << 20
    most_pixels: int = 64_000_000
    most_sound_seconds: float = 3600.0
    most_media: int = 64
    most_decoded: int = 1 << 30
    seconds: float = 10.0
    redirects: int = 3
