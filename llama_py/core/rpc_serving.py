"""``RpcService``: offers devices of this machine to others (``llama-py rpc-server``).

Python accepts connections and looks who it is; C serves each client in a thread of its own. The
protocol has no keys and no encryption, and trusts what it is sent: it is for networks of one's own.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llama_py._native import ggml_h
from llama_py.core import backend
from llama_py.core.host.machine import memory_bytes, usable_cores
from llama_py.core.rpc import DEFAULT_PORT, rpc_library
from llama_py.errors import DeviceUnavailableError, ParameterError

__all__ = ["RpcService", "ServiceSettings"]

_log = logging.getLogger("llama_py")

#: Of the memory of this machine, what the clients of a CPU may have together.
_MEMORY_SHARE = 0.75
#: Clients that are served at once.
_MOST_CLIENTS = 64
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """What is offered, and to whom.

    Attributes:
        host: the IPv4 address to listen at.
        port: 0 is one that is free.
        allow: addresses and networks (``192.168.1.0/24``) whose clients are served; empty: this
            machine, or everybody if ``host`` is not a loopback address and nothing was said.
        devices: their names; empty: the GPUs, or the CPU if there is none.
        memory: the most bytes that all clients together may have, by the name of a device, or under
            "" for each. Of the CPU, three quarters of the memory if nothing was said.
        n_threads: of the CPU, for each client; 0 is the number of cores.
        cache: a folder for large tensors, so that they are sent once only; None: none.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    allow: Sequence[str] = ()
    devices: Sequence[str] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    n_threads: int = 0
    cache: str | None = None


class RpcService:
    """Listens when it is made, serves while ``run`` runs.

    Attributes:
        address: where it listens.
        devices: what it offers: rows of ``core.backend.devices``, with ``limit_bytes``.

    Raises:
        ParameterError: of the settings.
        DeviceUnavailableError: there is no such device, nothing can listen there, or this
            installation has no RPC.
        OSError: the folder for tensors cannot be made.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self._networks = _networks(settings.allow)
        self._library = rpc_library()
        self.devices = _chosen(settings)
        self._pointers = (ggml_h.ggml_backend_dev_t * len(self.devices))(
            *[ggml_h.ggml_backend_dev_by_name(each["name"].encode()) for each in self.devices]
        )
        for pointer, each in zip(self._pointers, self.devices, strict=True):
            if each["limit_bytes"] is not None:
                self._library.llama_py_rpc_limit(pointer, each["limit_bytes"])
        self._n_threads = settings.n_threads or usable_cores()
        if settings.cache is not None:  # C would write nothing into a folder that is not there
            Path(settings.cache).mkdir(parents=True, exist_ok=True)
        self._cache = None if settings.cache is None else os.fsencode(settings.cache)
        self._room = threading.BoundedSemaphore(_MOST_CLIENTS)
        self._listening = _listening(settings.host, settings.port)
        self.address: tuple[str, int] = self._listening.getsockname()

    def allows(self, address: str) -> bool:
        """Whether a client at this address is served."""
        return not self._networks or any(
            ipaddress.ip_address(address) in network for network in self._networks
        )

    def run(self) -> None:
        """Serve until ``close`` is called."""
        while True:
            try:
                connection, (address, *_) = self._listening.accept()
            except OSError:  # it was closed
                return
            if not self.allows(address):
                _log.warning("refused a client at %s, which is not allowed", address)
                connection.close()
            elif not self._room.acquire(blocking=False):
                _log.warning("refused a client at %s: %d are served", address, _MOST_CLIENTS)
                connection.close()
            else:
                threading.Thread(
                    target=self._serve, args=(connection, address), daemon=True
                ).start()

    def _serve(self, connection: socket.socket, address: str) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _log.debug("a client at %s", address)
        try:
            self._library.llama_py_rpc_serve(
                connection.detach(),
                self._cache,
                self._n_threads,
                len(self.devices),
                self._pointers,
            )
        finally:
            self._room.release()
            _log.debug("the client at %s left", address)

    def close(self) -> None:
        """Accept no more clients."""
        self._listening.close()


def _networks(allow: Sequence[str]) -> list[Network]:
    networks = []
    for each in allow:
        try:
            networks.append(ipaddress.ip_network(each, strict=False))
        except ValueError as error:
            raise ParameterError(
                f"allow: {each!r} is neither an address nor a network such as 192.168.1.0/24"
            ) from error
    return networks


def _listening(host: str, port: int) -> socket.socket:
    try:
        address = str(ipaddress.IPv4Address("127.0.0.1" if host == "localhost" else host))
    except ValueError as error:
        raise ParameterError(
            f"host: {host!r} is no IPv4 address of this machine; 0.0.0.0 is all of them"
        ) from error
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen(16)
    except OSError as error:
        listening.close()
        raise DeviceUnavailableError(
            f"nothing can listen at {address}:{port}: {error.strerror or error}; take another port"
        ) from error
    return listening


def _chosen(settings: ServiceSettings) -> list[dict[str, Any]]:
    """The devices, each with the most that clients may have of it."""
    there = {each["name"]: each for each in backend.local_devices()}
    names = [*settings.devices]
    names = names or [name for name, each in there.items() if "gpu" in each["kind"]]
    names = names or [name for name, each in there.items() if each["kind"] == "cpu"]
    for name in [*names, *filter(None, settings.memory)]:
        if name not in there:
            raise DeviceUnavailableError(
                f"there is no device {name!r} here; there are {', '.join(there)}"
            )
    chosen = []
    for name in names:
        limit = settings.memory.get(name, settings.memory.get(""))
        if limit is None and there[name]["kind"] == "cpu":
            limit = int(_MEMORY_SHARE * memory_bytes())
        chosen.append({**there[name], "limit_bytes": limit})
    return chosen
