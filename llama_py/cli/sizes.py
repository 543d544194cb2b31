"""Numbers of bytes, as people read them."""

from __future__ import annotations

__all__ = ["shown_bytes"]

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def shown_bytes(count: int) -> str:
    """Such as ``1.5 GiB``."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}"
