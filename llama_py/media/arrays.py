"""``Decoded``: a picture or a sound as the array that encoders get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Decoded", "Source"]


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """What a program has as numbers, and no file.

    Attributes:
        values: a picture, uint8 ``(height, width, 3)``, or a sound, float32 ``(n,)``.
        rate: samples per second; 0 for pictures.
    """

    values: NDArray[Any]
    rate: int = 0


#: A file, or what would be in it.


#: A file, or what it would be decoded to.
Source = bytes | Decoded
