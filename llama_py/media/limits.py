"""``MediaLimits``: which pictures and sounds may be read.

Every model has them, and few see a picture: what reads those is imported with the first one.
"""

from __future__ import annotations

from pathlib import Path

from llama_py.quick_dataclass import dataclass

__all__ = ["MediaLimits"]


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """What may be read.

    Attributes:
        paths: folders below which files may be read (``file://`` addresses, and paths).
        urls: ``http`` and ``https`` addresses may be fetched.
        most_bytes: of one file.
        most_pixels: of one picture, as its header says.
        most_media: pictures and sounds in one prompt.
        most_seconds: of one sound, as its header says.
        seconds: for fetching one, redirects included.
        redirects: that are followed.
    """

    paths: tuple[Path, ...] = ()
    urls: bool = False
    most_bytes: int = 32 << 20
    most_pixels: int = 64_000_000
    most_media: int = 64
    most_seconds: float = 7200.0
    seconds: float = 10.0
    redirects: int = 3
