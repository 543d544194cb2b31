"""``MediaReading``: what the pictures and sounds of one request cost together.

A conversation may be rendered several times before it is submitted, because it has to be shortened,
or because a template writes no pictures where they stand. Each picture is decoded once all the
same; and together they become this many bytes of pixels and samples at most.
"""

from __future__ import annotations

from typing import Any

from llama_py.errors import MediaError
from llama_py.media.limits import MediaLimits

__all__ = ["MediaReading"]


class MediaReading:
    """The pictures and sounds that a request has had so far.

    Attributes:
        known: what they became, by digest.
    """

    def __init__(self) -> None:
        self.known: dict[bytes, Any] = {}
        self._decoded = 0

    def add(self, name: bytes, medium: Any, nbytes: int, where: str, limits: MediaLimits) -> None:
        """Note one.

        Args:
            nbytes: of its pixels or samples.

        Raises:
            MediaError: together they are more than is allowed.
        """
        self._decoded += nbytes
        if self._decoded > limits.most_decoded:
            raise MediaError(
                f"up to {where}, the pictures and sounds of this request are {self._decoded} bytes "
                f"of pixels (3 each) and samples (4 each); at most {limits.most_decoded} are "
                "allowed (max_media_decoded), so send smaller ones, or fewer"
            )
        self.known[name] = medium
