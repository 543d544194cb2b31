"""``ClientAddresses``: where requests come from.

A proxy in front of the server connects for others, and appends the address of each to
``X-Forwarded-For``. Whatever stands there before was sent by the client, so it counts as far as
those say it who are trusted, from the end.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from llama_py.server.config.setting_readers import UNIX

__all__ = ["ClientAddresses"]

#: Addresses in the header that are looked at.
_MOST = 16


class ClientAddresses:
    """Finds the address of a client.

    Args:
        proxies: who is trusted: addresses, networks, ``"unix"``.
    """

    def __init__(self, proxies: Sequence[str]) -> None:
        self._unix = UNIX in proxies
        self._networks = [
            ipaddress.ip_network(each, strict=False) for each in proxies if each != UNIX
        ]

    def find(self, peer: str, forwarded: Sequence[str]) -> str:
        """The address of a client.

        Args:
            peer: who has connected; "" over a Unix socket.
            forwarded: the headers ``X-Forwarded-For``.
        """
        if not self._unix and not self._networks:
            return peer
        named = [each.strip() for value in forwarded for each in value.split(",")][-_MOST:]
        while named and self._trusts(peer):
            address = _address(named.pop())
            if address is None:
                break
            peer = str(address)
        return peer

    def _trusts(self, peer: str) -> bool:
        address = _address(peer)
        if address is None:
            return self._unix and not peer
        return any(address in network for network in self._networks)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address, with a port or without; None if it is none. A zone, which may be any text, is
    left out."""
    if text.startswith("[") or text.count(":") == 1:
        text = text.rpartition(":")[0] if not text.endswith("]") else text
    try:
        address = ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
