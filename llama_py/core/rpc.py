"""Devices of other processes and machines, which llama.cpp reaches over TCP (its RPC backend).

A server is checked here before C connects to it, and every wait has a limit. A connection that
fails later answers with zeros, and is counted (``native/kernels/rpc``): a ``Watch``
compares the counts, and raises. llama.cpp's own way is to end the process.

Devices are not entered into ggml's list: whatever looks there for some GPU would compute on
another machine, without a watch.
"""

from __future__ import annotations

import ctypes
import logging
import struct
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from llama_py._native import ggml_h
from llama_py._native.loader import library
from llama_py.core import logs
from llama_py.core.loss_counts import LossWatch
from llama_py.errors import (
    DeviceUnavailableError,
    LibraryNotFoundError,
    ParameterError,
    ParameterTypeError,
)

if TYPE_CHECKING:
    import socket

__all__ = [
    "DEFAULT_PORT",
    "PATIENCE",
    "RpcServer",
    "Watch",
    "add_server",
    "devices",
    "find",
    "known",
    "parse_endpoint",
    "reachable",
    "rpc_library",
    "servers",
    "set_patience",
]

_log = logging.getLogger("llama_py")

#: The port of llama.cpp's ``ggml-rpc-server``.
DEFAULT_PORT: Final = 50052
#: Seconds that a server is waited for before it is added, and that one may be silent later.
_CHECK, PATIENCE = 5.0, 30.0
#: The same for one that was there before, and how long one that is silent is not asked again.
_LOOK, _REST = 1.0, 5.0
_HELLO, _DEVICE_COUNT = 14, 15
#: Bytes of a HELLO: what each side can do beyond TCP; nothing.
_CAPS = 24
_MOST_DEVICES = 64
#: In the reply to a HELLO: the server answers others while it computes for one.
_ANSWERS_OTHERS = 1


@dataclass(frozen=True, slots=True)
class RpcServer:
    """A server whose devices can be used.

    Attributes:
        endpoint: where it was found: ``address:port``.
        version: of the protocol, as ``8.0.0``.
        devices: the names of its devices here, such as ``RPC0``.
        answers_others: it serves several clients at once. llama.cpp's own server serves one, and
            others wait until that one leaves.
    """

    endpoint: str
    version: str
    devices: tuple[str, ...]
    answers_others: bool


@cache
def rpc_library() -> Any:
    """The library, with its functions declared.

    Raises:
        DeviceUnavailableError: this installation was built without it.
    """
    logs.install()
    try:
        loaded = library("rpc")
    except LibraryNotFoundError as error:
        raise DeviceUnavailableError(
            "this installation was built without RPC (LLAMA_PY_RPC=off); install it again: pip "
            "install --force-reinstall --no-cache-dir llama_py"
        ) from error
    loaded.llama_py_rpc_version.restype = ctypes.c_uint32
    loaded.llama_py_rpc_add_server.argtypes = (ctypes.c_char_p,)
    loaded.llama_py_rpc_add_server.restype = ggml_h.ggml_backend_reg_t
    loaded.llama_py_rpc_set_patience.argtypes = (ctypes.c_double,)
    loaded.llama_py_rpc_set_patience.restype = None
    loaded.llama_py_rpc_losses.argtypes = (ctypes.c_char_p,)
    loaded.llama_py_rpc_losses.restype = ctypes.c_uint64
    loaded.llama_py_rpc_limit.argtypes = (ggml_h.ggml_backend_dev_t, ctypes.c_uint64)
    loaded.llama_py_rpc_limit.restype = None
    loaded.llama_py_rpc_serve.argtypes = (
        ctypes.c_int64,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.POINTER(ggml_h.ggml_backend_dev_t),
    )
    loaded.llama_py_rpc_serve.restype = ctypes.c_int
    return loaded


# -- what is known -------------------------------------------------------------------------------

#: By endpoint, as C knows them. C keeps them as long as the process lives.
_known: dict[str, RpcServer] = {}
_pointers: dict[str, Any] = {}  # of devices, by name
#: Endpoints of ``add_server``, which models use that do not say otherwise.
_shared: dict[str, None] = {}
#: Of other machines, which was said.
_warned: set[str] = set()
_changing = threading.Lock()


def add_server(endpoint: str, *, timeout: float = _CHECK, share: bool = True) -> RpcServer:
    """Let models be loaded on the devices of a server.

    Args:
        endpoint: ``host:port``; the port may be left out (50052). IPv4.
        timeout: seconds that it has to answer in.
        share: models that do not say what they use get its devices as well.

    Raises:
        ParameterError: this is not an endpoint.
        DeviceUnavailableError: nobody answers there, or something else than an RPC server of
            this version of the protocol does; or this installation has no RPC.
    """
    host, port = parse_endpoint(endpoint)
    loaded = rpc_library()
    end = time.monotonic() + timeout
    address = _address(endpoint, host, port)
    where = f"{address}:{port}"
    found = _known.get(where)
    in_use = any(where in watch.endpoints for watch in [*_watches] if not watch.lost)
    if found is None or found.answers_others or not in_use:
        found = _checked(endpoint, where, end)
        pointers = _devices(loaded, endpoint, where)
        with _changing:
            _known[where] = found = replace(found, devices=tuple(pointers))
            _pointers.update(pointers)
    _silent.pop(where, None)
    import ipaddress  # for servers of other machines only

    if where not in _warned and not ipaddress.ip_address(address).is_loopback:
        _warned.add(where)
        _log.warning(
            "%s is another machine: weights, prompts and replies go there as they are, and what "
            "comes back is believed; use it in a network of your own only",
            where,
        )
    if share:
        with _changing:
            _shared[where] = None
    return found


def servers() -> tuple[RpcServer, ...]:
    """Those that were added with ``add_server``."""
    return tuple(_known[where] for where in [*_shared])


def known() -> tuple[RpcServer, ...]:
    """Those too that single models use (``rpc_servers``)."""
    with _changing:
        return tuple(_known.values())


def reachable() -> list[RpcServer]:
    """Of ``servers()``, those that answer; a warning says which do not."""
    return _answering(servers())


#: Endpoint -> until when it is not asked again.
_silent: dict[str, float] = {}


def _answering(asked: Iterable[RpcServer]) -> list[RpcServer]:
    found = []
    for each in asked:
        if time.monotonic() < _silent.get(each.endpoint, 0.0):
            continue
        try:
            found.append(add_server(each.endpoint, timeout=_LOOK, share=False))
        except DeviceUnavailableError as error:
            _silent[each.endpoint] = time.monotonic() + _REST
            _log.warning("%s; models are loaded without it", error)
    return found


def find(device: str) -> Any:
    """The C pointer of a device by its name, or None."""
    return _pointers.get(device)


def devices(names: Collection[str] | None = None) -> list[Any]:
    """The C pointers of the devices of the servers that answer: of those that were added with
    ``add_server``, or of those that have one of these names."""
    if names is None:
        asked = reachable()
    else:
        asked = _answering(each for each in known() if {*names} & {*each.devices})
    return [_pointers[name] for each in asked for name in each.devices]


def set_patience(seconds: float) -> None:
    """How long a server may be silent before it counts as lost; for connections made from now on.

    One that answers others is asked meanwhile whether it is there, and may compute as long as it
    does. llama.cpp's own server cannot be asked, and may be silent for ten times as long.
    """
    if not seconds > 0:
        raise ParameterError(f"patience={seconds} must be more than 0 seconds")
    rpc_library().llama_py_rpc_set_patience(seconds)


# -- checking --------------------------------------------------------------------------------------


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port of ``host:port``.

    Raises:
        ParameterError: this is not an endpoint.
    """
    if not isinstance(endpoint, str):
        raise ParameterTypeError(f"an RPC server is host:port, not {endpoint!r}")
    host, colon, port = endpoint.strip().partition(":")
    number = int(port) if port.isdecimal() and len(port) < 6 else -1
    if not colon:
        number = DEFAULT_PORT
    if not host or not 0 < number < 65536 or "/" in host:
        raise ParameterError(
            f"{endpoint!r} is not an RPC server: expected host:port, "
            f"such as 192.168.1.2:{DEFAULT_PORT}"
        )
    return host, number


def _address(endpoint: str, host: str, port: int) -> str:
    import socket  # here and below, as no model waits for it where there are no servers

    try:
        found = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise DeviceUnavailableError(
            f"the RPC server {endpoint}: {host} has no IPv4 address ({error}); llama.cpp's RPC "
            "speaks IPv4 only"
        ) from error
    return str(found[0][4][0])


def _checked(endpoint: str, where: str, end: float) -> RpcServer:
    """Say HELLO to a server, and ask how many devices it has."""
    import socket

    host, _, port = where.partition(":")
    version = protocol_version()
    try:
        with socket.create_connection((host, int(port)), _left(end)) as connection:
            reply = _ask(connection, _HELLO, bytes(_CAPS), 4 + _CAPS, end)
            if (reply[0], reply[1]) > version[:2] or reply[0] != version[0]:
                raise DeviceUnavailableError(
                    f"the RPC server {endpoint} speaks version {reply[0]}.{reply[1]}.{reply[2]} of "
                    f"the protocol, and this installation {_dotted(version)}: take the same "
                    "version of llama.cpp, or of llama_py, on both machines"
                )
            (count,) = struct.unpack("<I", _ask(connection, _DEVICE_COUNT, b"", 4, end))
    except TimeoutError as error:
        raise DeviceUnavailableError(
            f"the RPC server {endpoint} does not answer: it is frozen, or busy with another client "
            "(ggml-rpc-server serves one at a time; llama-py rpc-server serves several)"
        ) from error
    except OSError as error:
        raise DeviceUnavailableError(
            f"there is no RPC server at {endpoint} ({error.strerror or error}); start one there: "
            "llama-py rpc-server"
        ) from error
    if not 0 < count <= _MOST_DEVICES:
        raise DeviceUnavailableError(f"the RPC server {endpoint} says that it has {count} devices")
    return RpcServer(where, _dotted(reply), (), reply[3] == _ANSWERS_OTHERS)


def _ask(connection: socket.socket, command: int, body: bytes, size: int, end: float) -> bytes:
    """Send a command; the reply of this many bytes."""
    connection.settimeout(_left(end))
    connection.sendall(struct.pack("<BQ", command, len(body)) + body)
    (announced,) = struct.unpack("<Q", _read(connection, 8, end))
    if announced != size:
        raise OSError(f"what answers there is no RPC server of a version that is known: {size}")
    return _read(connection, size, end)


def _read(connection: socket.socket, size: int, end: float) -> bytes:
    data = b""
    while len(data) < size:
        connection.settimeout(_left(end))
        piece = connection.recv(size - len(data))
        if not piece:
            raise OSError(
                "it closed the connection: it is not an RPC server, or of another version"
            )
        data += piece
    return data


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def protocol_version() -> tuple[int, int, int]:
    """The version of the protocol that this installation speaks."""
    packed = int(rpc_library().llama_py_rpc_version())
    return packed >> 16, packed >> 8 & 255, packed & 255


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version[:3]))


def _devices(loaded: Any, endpoint: str, where: str) -> dict[str, Any]:
    """The devices of a server that has just answered, by their names."""
    registered = loaded.llama_py_rpc_add_server(where.encode())
    if not registered:
        raise DeviceUnavailableError(f"the RPC server {endpoint} answered, and does not any more")
    count = int(ggml_h.ggml_backend_reg_dev_count(registered))
    found = {}
    for index in range(count):
        device = ggml_h.ggml_backend_reg_dev_get(registered, index)
        found[(ggml_h.ggml_backend_dev_name(device) or b"").decode()] = device
    return found


# -- what is lost ----------------------------------------------------------------------------------

_watches: weakref.WeakSet[Watch] = weakref.WeakSet()


class Watch(LossWatch):
    """Tells whether a server was lost since a model began to be loaded on it."""

    def __init__(self, endpoints: Iterable[str]) -> None:
        self.endpoints = frozenset(endpoints)
        by_name = {each: each.encode() for each in self.endpoints}
        super().__init__(rpc_library().llama_py_rpc_losses, by_name)
        _watches.add(self)

    def _reason(self, name: str) -> str:
        return (
            f"the RPC server {name} is lost: it ended, does not answer, or answers nonsense. The "
            "model cannot go on; load it again, and it is computed by what is left"
        )
