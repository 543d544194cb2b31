"""Readers of the settings that are not plain numbers, texts or switches."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llama_py.errors import ParameterError, ParameterTypeError, shown
from llama_py.options.checks import check_number, described, read_text

__all__ = [
    "LOCAL_PAGES",
    "is_loopback",
    "read_addresses",
    "read_directory",
    "read_file",
    "read_hosts",
    "read_list",
    "read_model_id",
    "read_origins",
    "read_root_path",
    "read_status",
    "socket_path",
]

_ORIGIN = re.compile(
    r"[a-z][a-z0-9+.-]*://[a-z0-9.-]+(:\d{1,5})?|[a-z][a-z0-9+.-]*://\[[0-9a-f:]+\](:\d{1,5})?"
)
_HOST = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?|\[?[0-9a-f:]+\]?")
_MODEL_ID = re.compile(r"[\x21-\x7e]{1,200}")
_UNIX = "unix:"
_SOCKET = ".sock"


def socket_path(host: str) -> Path | None:
    """The path in ``unix:PATH``; None for the host of a network."""
    return Path(host[len(_UNIX) :]).expanduser() if host.startswith(_UNIX) else None


def is_loopback(host: str) -> bool:
    """True for an address or name that only this machine can reach."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


def read_list(name: str, value: Any) -> tuple[str, ...]:
    """Texts in a list, or in one text with commas."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, (list, tuple)):
        raise ParameterTypeError(f"{name} must be a list of texts, not {described(value)}")
    return tuple(read_text(name, each) for each in value)


#: Proxies that connect over a socket of this kind, which has no addresses.
UNIX = "unix"
#: Pages of this machine, at any port.
LOCAL_PAGES = "localhost"


def read_origins(name: str, value: Any) -> tuple[str, ...]:
    """Origins as browsers send them, ``localhost`` for pages of this machine, or ``*``."""
    origins = tuple(each.lower() for each in read_list(name, value))
    for origin in origins:
        if origin not in ("*", LOCAL_PAGES) and not _ORIGIN.fullmatch(origin):
            raise ParameterError(
                f"{name}: {shown(origin)} is not an origin; give scheme, host and port only, as in "
                "https://app.example.org:8443"
            )
    return origins


def read_proxies(name: str, value: Any) -> tuple[str, ...]:
    """Addresses and networks, and ``unix``."""
    for each in read_list(name, value):
        try:
            if each != UNIX:
                ipaddress.ip_network(each, strict=False)
        except ValueError:
            raise ParameterError(
                f"{name}: {shown(each)} is not an address; give addresses or networks, as in "
                "127.0.0.1 or 10.0.0.0/8, or unix"
            ) from None
    return read_list(name, value)


def read_addresses(name: str, value: Any) -> str:
    """Addresses with commas between them: without brackets, names, or ``unix:`` and a path.

    Each is there once. What ends with ``.sock`` is a path as well, as in llama-server.
    """
    addresses = read_list(name, value)
    if not addresses:
        raise ParameterError(f"{name} names no address to listen at; give one, such as 127.0.0.1")
    read = []
    for text in addresses:
        if text == _UNIX:
            raise ParameterError(f"{name}={text} names no socket; give its path behind the colon")
        if "," in text:  # in a list, where nothing would be split
            raise ParameterError(f"{name}: {shown(text)} has a comma, which ends an address here")
        if text.startswith(_UNIX):
            read.append(text)
        elif text.endswith(_SOCKET):
            read.append(f"{_UNIX}{text}")
        else:
            read.append(text.strip("[]") or text)
    return ",".join(dict.fromkeys(read))


def read_hosts(name: str, value: Any) -> tuple[str, ...]:
    """Names of hosts without a port, or ``*``."""
    hosts = tuple(each.lower().strip("[]") for each in read_list(name, value))
    for host in hosts:
        if host != "*" and not _HOST.fullmatch(host):
            raise ParameterError(
                f"{name}: {shown(host)} is not a valid host name; omit the scheme, port and path"
            )
    return hosts


def read_root_path(name: str, value: Any) -> str:
    """An absolute path without a slash at its end; empty for none."""
    path = read_text(name, value, empty=True).rstrip("/")
    if path and not path.startswith("/"):
        raise ParameterError(f"{name}={shown(path)} must begin with a slash")
    return path


def read_file(name: str, value: Any) -> Path:
    """The path of a file."""
    return _path(name, value)


def read_directory(name: str, value: Any) -> Path:
    """The path of a directory, which may be made later."""
    path = _path(name, value)
    if path.exists() and not path.is_dir():
        raise ParameterError(f"{name}: {path} is not a directory")
    return path


def _path(name: str, value: Any) -> Path:
    path = value if isinstance(value, Path) else Path(read_text(name, value))
    return path.expanduser()


def read_status(*allowed: int) -> Callable[[str, Any], int]:
    """A reader of one of a few numbers."""

    def read(name: str, value: Any) -> int:
        number = int(value) if isinstance(value, str) and value.isdecimal() else value
        check_number(name, number, integer=True)
        if number not in allowed:
            expected = " or ".join(map(str, allowed))
            raise ParameterError(f"{name}={number}: expected {expected}")
        return int(number)

    return read


def read_model_id(name: str, value: Any) -> str:
    """A name that fits into a path and a header."""
    text = read_text(name, value)
    if not _MODEL_ID.fullmatch(text):
        raise ParameterError(
            f"{name}={shown(text)} must be at most 200 visible ASCII characters without spaces"
        )
    return text
