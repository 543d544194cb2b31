"""Where the bytes of a picture or a sound come from: data URLs, files, addresses, arrays.

Nothing is read that was not allowed: files only below the folders that the caller names, addresses
only where they are switched on, and then never those of the machine itself or of its network.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import ipaddress
import math
import os
import re
import socket
import struct
import threading
import time
import urllib.parse
import zlib
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_py.errors import MediaError, ParameterTypeError
from llama_py.media.files import MediaFile, look_at
from llama_py.media.limits import MediaLimits
from llama_py.regular_files import open_regular

if TYPE_CHECKING:
    from http.client import HTTPConnection

__all__ = ["check_file", "decode_base64", "picture_bytes", "read_url", "sound_bytes"]

_DATA = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.DOTALL | re.IGNORECASE)
#: The alphabet for addresses and file names to the usual one.
_PLAIN = str.maketrans("-_", "+/")
#: Addresses of IPv6 that end in one of IPv4.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_REDIRECTS = (301, 302, 303, 307, 308)


def check_file(data: bytes, where: str, limits: MediaLimits) -> MediaFile:
    """Raise ``MediaError`` unless a file may be decoded."""
    if len(data) > limits.most_bytes:
        raise MediaError(f"{where} has {len(data)} bytes; at most {limits.most_bytes} are allowed")
    found = look_at(data, where)
    if found.width * found.height > limits.most_pixels:
        raise MediaError(
            f"{where} is a picture of {found.width} by {found.height} pixels; at most "
            f"{limits.most_pixels} pixels are allowed, so make it smaller"
        )
    if math.isinf(found.seconds):
        raise MediaError(f"{where} does not say how long it is; send WAV with samples, or MP3")
    if found.seconds > limits.most_seconds:
        raise MediaError(
            f"{where} says that it has {found.seconds:.0f} seconds of sound; at most "
            f"{limits.most_seconds:.0f} are allowed"
        )
    return found


def decode_base64(text: str, where: str) -> bytes:
    """The bytes of base64, with or without white space and padding, of either alphabet.

    Raises:
        MediaError: it is none.
    """
    plain = "".join(text.split()).translate(_PLAIN).rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MediaError(f"{where} is no base64: {error}") from None


def read_url(url: str, where: str, limits: MediaLimits) -> bytes:
    """The file at an address, or a path.

    Raises:
        MediaError: it cannot be read, or may not be.
    """
    url = url.strip()
    if url[:5].lower() == "data:":
        head = _DATA.match(url)
        if head is None:
            raise MediaError(f"{where} is no data URL: data:image/png;base64,... is expected")
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


# -- what Python programs have --------------------------------------------------------------------


def picture_bytes(source: Any) -> bytes:
    """A picture as a file: from a path, bytes, an array ``(h, w, 3)``, or an image of Pillow."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    if isinstance(source, (str, os.PathLike)):
        return _own_file(source)
    if hasattr(source, "save") and hasattr(source, "convert"):  # Pillow
        out = io.BytesIO()
        source.convert("RGB").save(out, format="PNG")
        return out.getvalue()
    import numpy as np

    pixels = np.asarray(source)
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[:, :, None], 3, axis=2)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (3, 4):
        raise ParameterTypeError(
            "a picture is a path, bytes, an image of Pillow, or a uint8 array (height, width, 3), "
            f"not {type(source).__name__} of {pixels.dtype} {pixels.shape}"
        )
    height, width = pixels.shape[:2]
    rows = np.zeros((height, 1 + 3 * width), np.uint8)
    rows[:, 1:] = pixels[:, :, :3].reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    # Without compression to speak of.
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


def _own_file(source: str | os.PathLike[str]) -> bytes:
    try:
        with open_regular(source) as file:
            return file.readall()
    except OSError as error:
        raise MediaError(f"{os.fspath(source)} cannot be read: {error}") from None


def sound_bytes(source: Any, sample_rate: int | None = None) -> bytes:
    """A sound as a file: from a path, bytes, or float samples ``(n,)`` with their rate."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    if isinstance(source, (str, os.PathLike)):
        return _own_file(source)
    import numpy as np

    samples = np.asarray(source, np.float32)
    if samples.ndim != 1 or not sample_rate:
        raise ParameterTypeError(
            "a sound is a path, bytes, or samples (n,) with their sample_rate, not "
            f"{type(source).__name__} of shape {samples.shape}"
        )
    body = samples.astype("<f4").tobytes()
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, 3, 1, sample_rate, 4 * sample_rate, 4, 32)
    data = head + struct.pack("<4sI", b"data", len(body)) + body
    return struct.pack("<4sI4s", b"RIFF", 4 + len(data), b"WAVE") + data
