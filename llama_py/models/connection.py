"""``HubConnection``: requests to a hub. Its token goes to the hub's own host, and to no other."""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from llama_py.errors import DownloadError, LlamaError, ModelNotFoundError, ParameterError
from llama_py.version import __version__

__all__ = ["Again", "HubConnection", "Response", "is_offline"]

_HUB = "https://huggingface.co"
#: Seconds without a byte after which a connection counts as cut.
_SILENCE = 10.0
_MOST_REDIRECTS = 5
#: Bytes of a list of files.
_LONGEST_ANSWER = 64 << 20
_PIECE = 1 << 16
#: Seconds.
_LONGEST_LIST = 120.0
_MOST_PAGES = 1000
#: Seconds that a hub which answers 429 may ask for before that is an error.
_LONGEST_PAUSE = 60.0

Response = http.client.HTTPResponse


class Again(Exception):
    """The request failed in a way that the next one may not.

    Attributes:
        pause: the seconds that the hub asks for, or None.
        from_start: the part that was asked for is not to be had.
        unreachable: nobody answered.
    """

    def __init__(
        self,
        reason: str,
        pause: float | None = None,
        *,
        from_start: bool = False,
        unreachable: bool = False,
    ) -> None:
        super().__init__(reason)
        self.pause, self.from_start, self.unreachable = pause, from_start, unreachable


def is_offline() -> bool:
    """Whether the environment forbids to ask a hub (``HF_HUB_OFFLINE``)."""
    given = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return given.upper() in ("1", "ON", "YES", "TRUE")


class HubConnection:
    """Requests to one hub.

    The address is that of ``MODEL_ENDPOINT`` or ``HF_ENDPOINT``, the token that of ``HF_TOKEN``, or
    the one that ``hf auth login`` wrote. Proxies are those of the environment.
    """

    def __init__(self) -> None:
        named = os.environ.get("MODEL_ENDPOINT") or os.environ.get("HF_ENDPOINT") or _HUB
        if not re.match(r"https?://[^/\s]", named):
            raise ParameterError(f"HF_ENDPOINT is {named!r}; expected an address: https://...")
        self.endpoint = named.rstrip("/")
        named = os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT", "")
        self._timeout = float(named) if named.isdigit() and int(named) else _SILENCE
        self._token = _token()
        self._opener = urllib.request.build_opener(
            _NoRedirects, urllib.request.HTTPSHandler(context=_certificates())
        )

    def pages(self, path: str, what: str) -> Iterator[Any]:
        """The JSON of an address and of those that its ``Link: ...; rel="next"`` name."""
        url: str | None = self.endpoint + path
        for _ in range(_MOST_PAGES):
            if url is None:
                return
            with self.get(url, what) as response:
                text = _text(response)
                url = _next_page(url, response.headers.get("Link", ""))
            try:
                yield json.loads(text)
            except (ValueError, RecursionError):
                raise DownloadError(f"{what}: the answer of {self.endpoint} is not JSON") from None

    @contextmanager
    def get(self, url: str, what: str, start: int = 0) -> Iterator[Response]:
        """The answer to a request, after its redirects.

        Args:
            what: the thing that is asked for, for messages.
            start: the first byte that is wanted.

        Raises:
            ModelNotFoundError: the hub does not have it, or not for this token.
            DownloadError: it refuses for another reason.
            Again: another try may succeed: the connection was cut, the hub is busy.
        """
        try:
            with self._follow(url, what, start) as response:
                yield response
        except LlamaError:  # some are OSErrors as well
            raise
        except urllib.error.URLError as error:
            raise Again(f"{self.endpoint}: {error.reason}", unreachable=True) from error
        except (OSError, http.client.HTTPException) as error:
            raise Again(str(error) or type(error).__name__) from error

    def _follow(self, url: str, what: str, start: int) -> Response:
        for _ in range(_MOST_REDIRECTS):
            try:
                answer: Response = self._opener.open(
                    urllib.request.Request(url, headers=self._headers(url, start)),
                    timeout=self._timeout,
                )
                return answer
            except urllib.error.HTTPError as refusal:
                with refusal:
                    url = self._elsewhere(url, refusal, what)
        raise DownloadError(f"{what}: more than {_MOST_REDIRECTS} redirects, the last to {url}")

    def _headers(self, url: str, start: int) -> dict[str, str]:
        headers = {"User-Agent": f"llama-py/{__version__}", "Accept-Encoding": "identity"}
        if self._token and _host(url) == _host(self.endpoint):
            headers["Authorization"] = f"Bearer {self._token}"
        if start:
            headers["Range"] = f"bytes={start}-"
        return headers

    def _elsewhere(self, url: str, refusal: urllib.error.HTTPError, what: str) -> str:
        """Where a redirect leads to.

        Raises:
            ModelNotFoundError, DownloadError, Again: it is not a redirect.
        """
        place = refusal.headers.get("Location")
        if refusal.code not in (301, 302, 303, 307, 308) or not place:
            raise _error(refusal.code, refusal.headers, what)
        try:
            target = urljoin(url, place)
            _host(target)
        except ValueError:
            raise DownloadError(
                f"{what}: {url} leads to {place!r}, which is not an address"
            ) from None
        if urlsplit(target).scheme not in ("https", urlsplit(url).scheme):
            raise DownloadError(f"{what}: {url} leads to {target}, which is not encrypted")
        return target


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """``urllib`` would send the token along, and forget the range."""

    def http_error_302(self, *_: Any) -> None:
        """Leave it to the caller, the address unread."""

    http_error_301 = http_error_303 = http_error_302  # type: ignore[assignment]
    http_error_307 = http_error_308 = http_error_302  # type: ignore[assignment]


def _host(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _text(response: Response) -> bytes:
    """The body of a list.

    Raises:
        Again: it was cut, or hardly moves.
    """
    text, since = b"", time.monotonic()
    while len(text) <= _LONGEST_ANSWER and (piece := response.read1(_PIECE)):
        text += piece
        if time.monotonic() - since > _LONGEST_LIST:
            raise Again(f"a list took more than {_LONGEST_LIST:.0f} seconds")
    if response.length and len(text) <= _LONGEST_ANSWER:
        raise Again("the connection was cut")
    return text


def _token() -> str:
    """The token of the environment, or of the file that ``hf auth login`` writes.

    Raises:
        ParameterError: it cannot be sent. The message does not have it.
    """
    token = _named_token()
    if not re.fullmatch(r"[!-~]*", token):
        raise ParameterError(
            "HF_TOKEN (or the file of hf auth login) has other characters than a token"
        )
    return token


def _named_token() -> str:
    named = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")
    if named:
        return named.strip()
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    place = os.environ.get("HF_TOKEN_PATH") or f"{home}/token"
    try:
        return Path(place).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, ValueError, RuntimeError):
        return ""


def _certificates() -> ssl.SSLContext:
    """The system's certificates; those of ``certifi`` where the system has none (macOS)."""
    context = ssl.create_default_context()
    if not context.cert_store_stats()["x509_ca"] and not ssl.get_default_verify_paths().capath:
        try:
            import certifi
        except ImportError:
            return context
        context.load_verify_locations(certifi.where())
    return context


def _next_page(url: str, link: str) -> str | None:
    """The next page of a list; only one of the same host."""
    for each in link.split(","):
        address, _, relation = each.partition(";")
        if 'rel="next"' in relation:
            target = urljoin(url, address.strip(" <>"))
            return target if _host(target) == _host(url) else None
    return None


def _error(status: int, headers: Message, what: str) -> Exception:
    """The exception that a status is."""
    code = headers.get("X-Error-Code", "")
    if code == "GatedRepo" or (status == 403 and not code):
        return ModelNotFoundError(
            f"{what} asks for consent: accept its terms on the hub, then log in (hf auth login, or "
            "set HF_TOKEN)"
        )
    if status in (401, 404) and code not in ("EntryNotFound", "RevisionNotFound"):
        return ModelNotFoundError(
            f"there is no {what}, or it is private (then: hf auth login, or set HF_TOKEN)"
        )
    if status == 404:
        return ModelNotFoundError(f"there is no {what}")
    if status == 429:
        pause = _pause(headers.get("Retry-After", ""))
        if pause is not None and pause > _LONGEST_PAUSE:
            return DownloadError(f"{what}: the hub asks to wait for {pause:.0f} seconds")
        return Again("the hub has too many requests (429)", pause)
    if status == 416:
        return Again("the hub has no such part of it (416)", from_start=True)
    if status >= 500 or status in (408, 425):
        return Again(f"the hub answers {status}", _pause(headers.get("Retry-After", "")))
    return DownloadError(f"{what}: the hub answers {status}")


def _pause(given: str) -> float | None:
    """The seconds that ``Retry-After`` names, as a number or as a date."""
    try:
        return max(float(given), 0.0)
    except ValueError:
        pass
    try:
        return max(parsedate_to_datetime(given).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError):
        return None
