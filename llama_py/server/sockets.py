"""``listen``: the socket that the server accepts connections on."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llama_py.errors import ParameterError
from llama_py.server.settings import Settings

__all__ = ["address_of", "listen"]

_BACKLOG = 2048


@contextmanager
def listen(settings: Settings) -> Iterator[socket.socket]:
    """Listen until the end of the block.

    Raises:
        OSError: somebody listens there already, or it is not allowed; the message says where.
        ParameterError: there are no Unix sockets on this system.
    """
    path = settings.socket_path
    made = _at_path(path) if path is not None else _at_port(settings.host, settings.port)
    inode = path.stat().st_ino if path is not None else None
    try:
        yield made
    finally:
        made.close()
        if path is not None:
            with contextlib.suppress(OSError):  # another server may have put its own there
                if path.stat().st_ino == inode:
                    path.unlink()


def address_of(settings: Settings, listening: socket.socket) -> str:
    """Where clients find the server: a URL without a path, or ``unix:PATH``."""
    if settings.socket_path is not None:
        return f"unix:{settings.socket_path}"
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if settings.tls_cert else 'http'}://{shown}:{port}"


def _at_port(host: str, port: int) -> socket.socket:
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = infos[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        why = error.strerror or str(error)
        raise OSError(
            f"cannot listen at {host}, port {port}: {why}; choose another with --host and --port"
        ) from None


def _at_path(path: Path) -> socket.socket:
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
    return made


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that is gone. Anything else is left alone."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise FileExistsError(errno.EEXIST, "there is a file, which is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, "another server listens there")
