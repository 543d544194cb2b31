"""``without_upgrades``: uvicorn's protocol, which reads requests that offer another protocol.

Java's client offers HTTP/2 with each request over plain HTTP. A server that does not want it has to
answer as if nothing was offered; but httptools takes what follows such a head for the other
protocol, and so the body is lost. Here the head is read once more, without the offer.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["without_upgrades"]

#: What belongs to an offer, as a header or as a word in ``Connection``.
_OFFER = frozenset({b"upgrade", b"http2-settings"})


class _WithoutUpgrades:
    """Goes before a protocol of uvicorn's. With h11, which keeps the body, nothing is left to do.

    The methods that begin with ``on_`` are called by httptools.
    """

    parser: Any
    url: bytes
    headers: list[tuple[bytes, bytes]]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._offered = False
        self._data = self._again = b""

    def data_received(self, data: bytes) -> None:
        """Some bytes came."""
        while data:
            self._data, self._again = data, b""
            super().data_received(data)  # type: ignore[misc]
            data = self._again
        self._data = b""  # a connection may be idle for long

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._offered = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if not self._offered:
            super().on_headers_complete()  # type: ignore[misc]

    def on_message_complete(self) -> None:
        """The request is there, or so it seems."""
        if not self._offered:
            super().on_message_complete()  # type: ignore[misc]

    def _unsupported_upgrade_warning(self) -> None:
        """Called when the parser has raised an exception that says how far it came."""
        error = sys.exc_info()[1]
        if self._offered and error is not None:
            self._again = self._head() + self._data[error.args[0] :]

    def _head(self) -> bytes:
        lines = [b"%s %s HTTP/1.1" % (self.parser.get_method(), self.url)]
        for name, value in self.headers:
            if name == b"connection":
                words = (word.strip() for word in value.split(b","))
                value = b", ".join(word for word in words if word.lower() not in _OFFER)
            if value and name not in _OFFER:
                lines.append(b"%s: %s" % (name, value))
        return b"\r\n".join((*lines, b"", b""))


def without_upgrades(protocol: type[Any]) -> type[Any]:
    """A protocol of uvicorn's that ignores offers of other protocols, bodies and all."""
    return type("WithoutUpgrades", (_WithoutUpgrades, protocol), {})
