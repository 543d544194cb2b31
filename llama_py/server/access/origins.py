"""Which hosts and origins are let in: DNS rebinding, and web pages of others (CORS).

Browsers send cookies, and reach what only this machine can reach, on behalf of any page. So a
request that names a host that is not this server, or comes from a page that it does not serve, is
refused, unless the settings name it. Programs send no ``Origin`` and notice nothing of this.
"""

from __future__ import annotations

import re

from llama_py.dialects.failures import Failure, Kind
from llama_py.errors import shown
from llama_py.server.config.setting_readers import LOCAL_PAGES, is_loopback
from llama_py.server.config.settings import Settings

__all__ = ["HostCheck", "OriginCheck", "preflight_headers"]

_ANY = "*"
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+( *, *[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")
_PLACE = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s\[\]@:/?#\\,]+))(?::([0-9]{0,5}))?")
_DEFAULT_PORTS = {"http": 80, "https": 443}

Headers = list[tuple[str, str]]


class HostCheck:
    """Whether a request means this server.

    Whoever gets a browser to resolve a name of his to 127.0.0.1 still has that name in ``Host``. A
    request without one is refused as well: HTTP/1.1 asks for it, and tricks need it gone.
    """

    def __init__(self, settings: Settings) -> None:
        self._names = {*settings.allowed_hosts}
        self._loopback = any(map(is_loopback, settings.network_hosts))
        closed = self._loopback and not settings.open_hosts
        self._any = _ANY in self._names or not (self._names or closed)

    def refusal(self, hosts: list[str]) -> Failure | None:
        """Why a request with these ``Host`` headers is refused, or None."""
        if self._any:
            return None
        name = _place(hosts[0])[0] if len(hosts) == 1 else ""
        if name and (name in self._names or (self._loopback and is_loopback(name))):
            return None
        shown_name = shown(hosts[0]) if hosts else "missing"
        message = f"the Host header is {shown_name}, which is not allowed; see allowed_hosts"
        return Failure(Kind.FORBIDDEN, message)


class OriginCheck:
    """Whether a page may call, and the headers that tell its browser so."""

    def __init__(self, settings: Settings) -> None:
        self._origins = {*settings.cors_origins}
        self._local = LOCAL_PAGES in self._origins

    def look(
        self, origin: str | None, host: str, site: str | None
    ) -> tuple[Failure | None, Headers]:
        """Why a request from a page is refused, or None; and the headers of the answer.

        Args:
            origin: the header ``Origin``, which browsers send with what scripts of pages ask for.
            host: the header ``Host``.
            site: the header ``Sec-Fetch-Site``, which no page can set; or None.
        """
        if _ANY in self._origins:
            any_ = [("Access-Control-Allow-Origin", _ANY), _EXPOSED]
            return None, any_ if origin is not None else []
        if origin is None:  # an image or a script, for example, whose address is one of ours
            message = "pages of others may not load anything from this server; see cors_origins"
            return Failure(Kind.FORBIDDEN, message) if site == "cross-site" else None, []
        if origin.lower() in self._origins or (
            self._local and _is_local(origin)
        ):  # never with credentials: keys are not cookies
            return None, [("Access-Control-Allow-Origin", origin), _EXPOSED, _VARY]
        if site == "same-origin" or _is_same(origin, host):
            return None, [_VARY]
        message = f"pages of {shown(origin)} may not call this server; see cors_origins"
        return Failure(Kind.FORBIDDEN, message), [_VARY]


_VARY = ("Vary", "Origin")
_EXPOSED = ("Access-Control-Expose-Headers", "x-request-id, request-id, retry-after")


def _is_local(origin: str) -> bool:
    """Whether a page came from this machine itself, at whatever port."""
    scheme, _, place = origin.lower().partition("://")
    return scheme in _DEFAULT_PORTS and is_loopback(_place(place)[0])


def _is_same(origin: str, host: str) -> bool:
    """Whether a page of this origin was served under this ``Host``.

    Only the port is compared beside the name: a proxy may have ended TLS.
    """
    scheme, _, place = origin.lower().partition("://")
    default = _DEFAULT_PORTS.get(scheme)
    (name, port), (asked, asked_port) = _place(place), _place(host)
    return bool(name) and (name, port or default) == (asked, asked_port or default)


def _place(text: str) -> tuple[str, int | None]:
    """Name and port of ``host[:port]``, and nothing else: no user, no path. "" if it is none."""
    found = _PLACE.fullmatch(text.lower())
    if found is None or int(found[3] or 0) > 65535:
        return "", None
    return found[1] or found[2].rstrip("."), int(found[3]) if found[3] else None


def preflight_headers(wanted: str | None) -> Headers:
    """The answer to a browser that asks whether it may send a request with these headers."""
    headers = [
        ("Access-Control-Allow-Methods", "GET, POST, DELETE"),
        ("Access-Control-Max-Age", "600"),
    ]
    if wanted and _HEADER_NAMES.fullmatch(wanted.strip()):
        headers.append(("Access-Control-Allow-Headers", wanted))
    return headers
