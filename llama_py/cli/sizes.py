"""Numbers of bytes, as people read them."""

from __future__ import annotations

__all__ = ["read_bytes", "shown_bytes"]

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def shown_bytes(count: int) -> str:
    """Such as ``1.5 GiB``."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}"


def read_bytes(text: str) -> int:
    """The number of bytes that somebody wrote: ``8GiB``, ``8G``, ``512 MiB``, ``1000000``.

    Raises:
        ValueError: it is none.
    """
    number = text.strip().rstrip("bBiI")
    unit = number[-1:].upper()
    power = "KMGT".find(unit) + 1 if unit else 0
    value = float(number[:-1] if power else number) * 1024**power
    if not 0 <= value < 2**62:
        raise ValueError(text)
    return int(value)
