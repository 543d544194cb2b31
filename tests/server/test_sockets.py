"""What listening at a path says of what is there already, on every system."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from llama_py.server.transport.sockets import _remove_stale

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix sockets")


def test_the_numbers_of_errors_are_those_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errno, "EADDRINUSE", 48)  # macOS's
    monkeypatch.setattr(errno, "EEXIST", 1017)
    monkeypatch.chdir(tmp_path)  # paths of sockets are short
    Path("file").touch()
    with pytest.raises(OSError, match="not a socket") as caught:
        _remove_stale(Path("file"))
    assert caught.value.errno == 1017
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind("socket")
        other.listen()
        with pytest.raises(OSError, match="another server listens there") as caught:
            _remove_stale(Path("socket"))
    assert caught.value.errno == 48
    _remove_stale(Path("socket"))  # of a server that is gone
    assert not Path("socket").exists()
