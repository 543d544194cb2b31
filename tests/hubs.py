"""A hub on this machine, as huggingface_hub sees it, and what may go wrong with what it sends."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Hub", "hub"]

_COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """One repository, ``a/b``.

    Attributes:
        files: what is in it, by name.
        fault: what goes wrong with each body: "", "wrong", "short", "long", "empty", "whole" (to
            a request for a part), "html".
        etag: the digest that is named: "sha256", "git", "other".
        bodies: how many were sent.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.fault, self.etag, self.bodies = "", "sha256", 0
        self.address = f"http://127.0.0.1:{self.server_port}"

    def digest(self, name: str) -> str:
        data = self.files[name]
        if self.etag == "git":
            return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        return hashlib.sha256(data).hexdigest() if self.etag == "sha256" else "abc-1"

    def body(self, name: str) -> bytes:
        data = self.files[name]
        half = len(data) // 2
        return {
            "wrong": data[:half] + bytes(len(data) - half),
            "short": data[:half],
            "long": data + b"more",
            "empty": b"",
            "html": b"<html>log in to this network</html>",
        }.get(self.fault, data)


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        hub, path = self.server, self.path.partition("?")[0]
        if re.match(r"/api/models/a/b/tree/", path):
            listed = [
                {"type": "file", "path": name, "size": len(data), "oid": "0" * 40}
                for name, data in hub.files.items()
            ]
            self._send(200, json.dumps(listed).encode(), {"Content-Type": "application/json"}, True)
            return
        if path.startswith("/api/models/a/b"):
            info = {"id": "a/b", "sha": _COMMIT, "siblings": [{"rfilename": n} for n in hub.files]}
            self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"}, True)
            return
        name = path.rpartition("/")[2]
        if name not in hub.files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, with_body)
            return
        head = {"ETag": f'"{hub.digest(name)}"', "X-Repo-Commit": _COMMIT}
        if not with_body:
            self._send(200, hub.files[name], head, False)
            return
        hub.bodies += 1
        self._send(200, hub.body(name), head, True)

    def _send(self, status: int, body: bytes, head: dict[str, str], with_body: bool) -> None:
        self.send_response(status)
        for name, value in head.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)


@contextmanager
def hub(files: dict[str, bytes]) -> Iterator[Hub]:
    """A hub until the end of the block."""
    server = Hub(files)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
