"""``listen``: the sockets that the server accepts connections on."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from llama_py.errors import ParameterError
from llama_py.server.config.setting_readers import socket_path
from llama_py.server.config.settings import Settings

__all__ = ["addresses_of", "listen"]

_BACKLOG = 2048


@contextmanager
def listen(settings: Settings) -> Iterator[list[socket.socket]]:
    """Listen until the end of the block, at one socket for each of ``settings.addresses``.

    With an ``ollama_port``, there is one more for each address of a network. Port 0 is a free one,
    and the same for all addresses. ``::`` takes IPv4 as well, where it is the only address of a
    network.

    Raises:
        OSError: somebody listens there already, or it is not allowed; the message says where.
        ParameterError: there are no Unix sockets on this system.
    """
    both = settings.network_hosts == ("::",)
    rounds = [(settings.addresses, settings.port)]
    if settings.ollama_port is not None:
        rounds.append((settings.network_hosts, settings.ollama_port))
    with contextlib.ExitStack() as stack:
        made: list[socket.socket] = []
        for addresses, port in rounds:
            for address in addresses:
                path = socket_path(address)
                if path is not None:
                    made.append(stack.enter_context(_at_path(path)))
                    continue
                made.append(stack.enter_context(_at_port(address, port, both=both)))
                port = made[-1].getsockname()[1]
        yield made


def addresses_of(settings: Settings, listening: Sequence[socket.socket]) -> tuple[str, ...]:
    """Where clients find the server: URLs without a path, and ``unix:PATH``."""
    scheme = "https" if settings.tls_cert else "http"
    found = []
    named = (*settings.addresses, *settings.network_hosts)  # the second time at Ollama's port
    for each, made in zip(named, listening, strict=False):
        if path := socket_path(each):
            found.append(f"unix:{path}")
            continue
        host, port = made.getsockname()[:2]
        if host in ("0.0.0.0", "::"):
            host = socket.gethostname()
        found.append(f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}")
    return tuple(found)


def _at_port(host: str, port: int, *, both: bool) -> socket.socket:
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = infos[0]
        both = both and socket.has_dualstack_ipv6()
        return socket.create_server(
            address[:2], family=family, backlog=_BACKLOG, dualstack_ipv6=both
        )
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        why = "another program listens there" if taken else error.strerror or str(error)
        raise OSError(
            f"cannot listen at {host}, port {port}: {why}; choose another with --host and --port"
        ) from None


@contextmanager
def _at_path(path: Path) -> Iterator[socket.socket]:
    if not hasattr(socket, "AF_UNIX"):
        raise ParameterError("this system has no Unix sockets; give a host and a port")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        before = os.umask(0o177)  # nobody else may connect, from the first moment on
        try:
            made.bind(str(path))
        finally:
            os.umask(before)
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise OSError(f"cannot listen at unix:{path}: {error.strerror or error}") from None
    inode = path.stat().st_ino
    try:
        yield made
    finally:
        made.close()
        with contextlib.suppress(OSError):  # another server may have put its own there
            if path.stat().st_ino == inode:
                path.unlink()


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that is gone. Anything else is left alone."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise FileExistsError(errno.EEXIST, "there is a file, which is not a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, "another server listens there")
