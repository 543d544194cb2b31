"""``strict_lines``: uvicorn's protocol, which refuses lines that not every program reads alike.

Lines of HTTP end with CR LF. h11 also takes those that end with LF alone, and headers that go on in
the next line; a proxy in front of the server may see the end of the headers, or another header, in
another place. The faster parser refuses both by itself.
"""

from __future__ import annotations

from typing import Any

from h11 import LocalProtocolError
from h11._receivebuffer import ReceiveBuffer
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["strict_lines"]


class _Lines(ReceiveBuffer):
    """What has come and was not read. Which errors h11 makes of these it knows itself."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """The lines before an empty one: a head, or what stands behind a body."""
        size = len(self)
        lines = super().maybe_extract_lines()
        if lines is None:
            return None
        if size - len(self) != sum(len(line) + 2 for line in lines) + 2:
            raise LocalProtocolError("a line does not end with CR LF")
        if any(line.startswith((b" ", b"\t")) for line in lines):
            raise LocalProtocolError("a header goes on in the next line")
        return lines


class _Strict:
    """Goes before uvicorn's protocol for h11."""

    conn: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn._receive_buffer = _Lines()


def strict_lines(protocol: type[Any]) -> type[Any]:
    """A protocol of uvicorn's that refuses these requests."""
    if not issubclass(protocol, H11Protocol):
        return protocol
    return type("Strict", (_Strict, protocol), {})
