"""Where the bytes of a picture or a sound come from: data URLs, files, addresses.

Nothing is read that was not allowed: files only below the folders that the caller names, addresses
only where they are switched on, and then never those of the machine itself or of its network.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import ipaddress
import re
import socket
import threading
import time
import urllib.parse
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_py.errors import MediaError
from llama_py.media.limits import MediaLimits
from llama_py.regular_files import open_regular

if TYPE_CHECKING:
    from http.client import HTTPConnection

__all__ = ["decode_base64", "read_url"]

_DATA = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.DOTALL | re.IGNORECASE)
#: The alphabet for addresses and file names to the usual one.
_PLAIN = str.maketrans("-_", "+/")
#: Addresses of IPv6 that end in one of IPv4.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_REDIRECTS = (301, 302, 303, 307, 308)


def decode_base64(text: str, where: str) -> bytes:
    """The bytes of base64, with or without white space and padding, of either alphabet.

    Raises:
        MediaError: it is none.
    """
    plain = "".join(text.split()).translate(_PLAIN).rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MediaError(f"{where} is not base64: {error}") from None


def read_url(url: str, where: str, limits: MediaLimits) -> bytes:
    """The file at an address, or a path.

    Raises:
        MediaError: it cannot be read, or may not be.
    """
    url = url.strip()
    if url[:5].lower() == "data:":
        head = _DATA.match(url)
        if head is None:
            raise MediaError(f"{where} is not a data URL: data:image/png;base64,... is expected")
        body = url[head.end() :]
        if "base64" in head[2].lower():
            return decode_base64(urllib.parse.unquote(body), where)
        return urllib.parse.unquote_to_bytes(body)
    try:
        scheme = urllib.parse.urlsplit(url).scheme.lower() if "://" in url else ""
    except ValueError as error:
        raise MediaError(f"{where} has an address that cannot be read: {error}") from None
    if scheme in ("http", "https"):
        if not limits.urls:
            raise MediaError(
                f"{where} is at an address, and those are not fetched (allow_urls); send the file "
                "itself as data:image/png;base64,..."
            )
        return _Fetch(where, limits).get(url)
    if scheme not in ("", "file"):
        raise MediaError(f"{where} has an address of the kind {scheme!r}; send a data: URL")
    name = urllib.parse.unquote(urllib.parse.urlsplit(url).path) if "://" in url else url
    return _read_path(name, where, limits)


def _read_path(name: str, where: str, limits: MediaLimits) -> bytes:
    if not limits.paths:
        raise MediaError(
            f"{where} is the path of a file, and none may be read (media_paths); send the file "
            "itself as data:image/png;base64,..."
        )
    try:
        path = Path(name).resolve(strict=True)
        if not any(path.is_relative_to(each.resolve()) for each in limits.paths):
            raise MediaError(f"{where} is not below the folders that may be read (media_paths)")
        with open_regular(path) as file:
            return file.read(limits.most_bytes + 1)
    except MediaError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # the last one for links in a circle
        raise MediaError(f"{where} cannot be read: {error}") from None


def _is_public(text: str) -> bool:
    """Whether an address is one of the internet: also that within an address of IPv6 that leads
    to one of IPv4."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        number = int(address)
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(number & 0xFFFFFFFF)
        if inner is not None:
            return _is_public(str(inner))
        if address.teredo is not None or address.is_site_local or number >> 32 == 0:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _looked_up(host: str, port: int, seconds: float) -> list[str]:
    """The addresses of a name. The system's resolver knows no limit, so a thread asks it, which is
    left alone when the time is over.

    Raises:
        OSError: there is no such name, or nobody said so in time.
    """
    found: Future[list[str]] = Future()

    def ask() -> None:
        try:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.set_result([str(each[4][0]) for each in answers])
        except Exception as error:
            found.set_exception(error)
        finally:
            _lookups.release()

    if not _lookups.acquire(timeout=seconds):
        raise TimeoutError("too many names are being looked up")
    threading.Thread(target=ask, name="llama_py-lookup", daemon=True).start()
    if not wait([found], seconds).done:
        raise TimeoutError(f"the name was not looked up within {seconds:.1f} seconds")
    return found.result()


#: Threads that wait for the resolver: no more are left alone than these.
_lookups = threading.BoundedSemaphore(16)


def _shut(connection: Any) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Fetch:
    """Fetches one file. Addresses of this machine and of private networks are refused, also those
    that a name or a redirect leads to: the connection goes to the very address that was checked."""

    def __init__(self, where: str, limits: MediaLimits) -> None:
        self._where = where
        self._limits = limits
        self._end = time.monotonic() + limits.seconds

    def get(self, url: str) -> bytes:
        for _ in range(self._limits.redirects + 1):
            answer = self._ask(url)
            if isinstance(answer, bytes):
                return answer
            url = answer
        raise MediaError(f"{self._where} is behind more than {self._limits.redirects} redirects")

    def _ask(self, url: str) -> bytes | str:
        """The file, or the address that it is at."""
        # Loading a model needs neither this nor ssl.
        from http.client import HTTPException as http_error  # noqa: N813

        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise MediaError(f"{self._where} leads to an address that is not fetched")
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
            connection = self._connect(parts.scheme, parts.hostname, port)
            raw = connection.sock
            # However slowly it sends, byte by byte: then its connection ends.
            watch = threading.Timer(self._left(), _shut, (raw,))
            watch.daemon = True
            watch.start()
            try:
                answer = self._read(connection, parts)
            finally:
                watch.cancel()
                connection.close()
            return answer if isinstance(answer, bytes) else urllib.parse.urljoin(url, answer)
        except MediaError:
            raise
        except (OSError, http_error, ValueError) as error:
            raise MediaError(f"{self._where} cannot be fetched: {error}") from None

    def _connect(self, scheme: str, host: str, port: int) -> HTTPConnection:
        addresses = _looked_up(host, port, self._left())
        if not all(_is_public(address.partition("%")[0]) for address in addresses):
            raise MediaError(
                f"{self._where} is at an address of this machine or of a private network, "
                "which is not fetched"
            )
        from http.client import HTTPConnection, HTTPSConnection

        kind = HTTPSConnection if scheme == "https" else HTTPConnection
        connection = kind(host, port, timeout=self._limits.seconds)
        # The name is looked up once: what was checked is what is connected to.
        raw = socket.create_connection((addresses[0], port), timeout=self._left())
        if isinstance(connection, HTTPSConnection):
            import ssl

            try:
                raw = ssl.create_default_context().wrap_socket(raw, server_hostname=host)
            except BaseException:
                raw.close()
                raise
        connection.sock = raw
        return connection

    def _left(self) -> float:
        """Seconds that are left for all of it.

        Raises:
            TimeoutError: none.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"it took longer than {self._limits.seconds:g} seconds")
        return left

    def _read(self, connection: HTTPConnection, parts: urllib.parse.SplitResult) -> bytes | str:
        target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        connection.request("GET", target, headers={"Accept": "image/*, audio/*"})
        answer = connection.getresponse()
        if answer.status in _REDIRECTS:
            return answer.getheader("Location") or ""
        if answer.status != 200:
            raise MediaError(f"{self._where} cannot be fetched: HTTP status {answer.status}")
        most = self._limits.most_bytes
        data = answer.read(most + 1)
        self._left()  # it may have been cut off
        if len(data) > most:
            raise MediaError(f"{self._where} has more than the {most} bytes that are allowed")
        return data
