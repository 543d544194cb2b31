"""A hub on this machine that answers as the real one, and faults of what it sends.

The hub itself lists, and redirects to a second host, which sends the bytes: as the real one does.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["COMMIT", "Hub", "hub"]

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """One repository, ``a/b``, with the branch ``main`` and the tag ``v1``.

    Attributes:
        files: what is in it, by name.
        fault: what goes wrong with each body, see ``_Store``.
        faults: what goes wrong with the next bodies, one after another, before ``fault``.
        refusal: the status and headers with which the hub itself answers, or None.
        digests: what a list names: "sha256", "git", "none".
        bodies: how many bodies were asked for.
        sent: bytes of bodies that were sent.
        tokens: the hosts ("hub", "store") that were sent a token.
        token: the one that is asked for, or "".
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.fault, self.digests, self.token = "", "sha256", ""
        self.faults: list[str] = []
        self.refusal: tuple[int, dict[str, str]] | None = None
        self.bodies = self.sent = self.asked = 0
        self.tokens: set[str] = set()
        self.page = 1000
        self.pause = 0.0
        self.lock = threading.Lock()
        self.front = _Server(_Front, self)
        self.store = _Server(_Store, self)
        self.address = f"http://127.0.0.1:{self.front.server_port}"

    def digest(self, name: str) -> str:
        data = self.files[name]
        if self.digests == "git":
            return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        return hashlib.sha256(data).hexdigest() if self.digests == "sha256" else ""

    def entry(self, name: str) -> dict[str, Any]:
        """A file as the list has it."""
        size, digest = len(self.files[name]), self.digest(name)
        head = {"type": "file", "path": name, "size": size, "oid": "0" * 40}
        if self.digests == "sha256":
            return {**head, "lfs": {"oid": digest, "size": size, "pointerSize": 134}}
        return {**head, "oid": digest or "0" * 40}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler], hub: Hub) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.hub = hub

    def handle_error(self, *_: Any) -> None:
        """Say nothing: clients go away in these tests."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def answer(self, status: int, body: bytes, head: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **head}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class _Front(_Handler):
    """The hub's own host: lists and redirects."""

    def do_GET(self) -> None:
        hub, (path, _, query) = self.server.hub, self.path.partition("?")
        hub.asked += 1
        if self.headers.get("Authorization"):
            hub.tokens.add("hub")
        if hub.refusal is not None:
            status, head = hub.refusal
            self.answer(status, b"", head)
        elif hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self.answer(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif path == "/api/models/a/b/refs":
            refs = {
                "branches": [{"name": "main", "ref": "refs/heads/main", "targetCommit": COMMIT}],
                "tags": [{"name": "v1", "ref": "refs/tags/v1", "targetCommit": COMMIT}],
            }
            self.answer(200, json.dumps(refs).encode(), {"Content-Type": "application/json"})
        elif path == f"/api/models/a/b/tree/{COMMIT}":
            self._tree(query)
        elif found := re.fullmatch(rf"/a/b/resolve/{COMMIT}/(.+)", path):
            self._resolve(found[1])
        else:
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _tree(self, query: str) -> None:
        hub = self.server.hub
        start = int(re.search(r"cursor=(\d+)|$", query)[1] or 0)  # type: ignore[index]
        names = sorted(hub.files)[start : start + hub.page]
        head = {"Content-Type": "application/json"}
        if start + hub.page < len(hub.files):
            following = f"{hub.address}{self.path.partition('?')[0]}?cursor={start + hub.page}"
            head["Link"] = f'<{following}>; rel="next"'
        listed = [{"type": "directory", "path": "folder"}, *map(hub.entry, names)]
        self.answer(200, json.dumps(listed).encode(), head)

    def _resolve(self, name: str) -> None:
        hub = self.server.hub
        if name not in hub.files:
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        head = {
            "Location": f"http://127.0.0.1:{hub.store.server_port}/{name}",
            "X-Linked-Etag": f'"{hub.digest(name)}"',
            "X-Linked-Size": str(len(hub.files[name])),
            "X-Repo-Commit": COMMIT,
        }
        self.answer(302, b"", head)


class _Store(_Handler):
    """The host that sends bytes. Its faults, by name:

    wrong: other bytes; short, long, empty: other lengths; html: a page to log in; whole: 200 where
    a part is asked for; range: a ``Content-Range`` of another part; unranged: none at all; total:
    one of a longer file; etag: another one than before; cut: the connection ends midway; reset: at
    once; stall: it stays open, and nothing comes; redirect: again and again; and a status, with
    ``:SECONDS`` for ``Retry-After``.
    """

    def do_GET(self) -> None:
        hub, name = self.server.hub, self.path[1:]
        if self.headers.get("Authorization"):
            hub.tokens.add("store")
        with hub.lock:
            hub.bodies += 1
            fault = hub.faults.pop(0) if hub.faults else hub.fault
        data = _body(hub.files[name], fault)
        start = int(re.search(r"bytes=(\d+)-|$", self.headers.get("Range", ""))[1] or 0)  # type: ignore[index]
        self._send(fault, data, 0 if fault == "whole" else start)

    def _send(self, fault: str, data: bytes, start: int) -> None:
        status, _, pause = fault.partition(":")
        if status.isdigit():
            self.answer(int(status), b"", {"Retry-After": pause} if pause else {})
        elif fault == "redirect":
            self.answer(302, b"", {"Location": self.path})
        elif fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.close_connection = True
            self.connection.close()
        elif start > len(data):
            self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        else:
            self._part(fault, data, start)

    def _part(self, fault: str, data: bytes, start: int) -> None:
        body = data[start:]
        total = len(data) + (7 if fault == "total" else 0)
        first = start + (5 if fault == "range" else 0)
        self.send_response(206 if start or fault in ("range", "total") else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"other"' if fault == "etag" else '"one"')
        if (start or fault in ("range", "total")) and fault != "unranged":
            self.send_header("Content-Range", f"bytes {first}-{first + len(body) - 1}/{total}")
        self.end_headers()
        end = len(body) // 2 if fault in ("cut", "stall") else len(body)
        for at in range(0, end, 1 << 16):
            piece = body[at : min(at + (1 << 16), end)]
            self.server.hub.sent += len(piece)
            self.wfile.write(piece)
            if self.server.hub.pause:
                time.sleep(self.server.hub.pause)
        if fault == "stall":
            time.sleep(30)
        self.close_connection = end < len(body)


def _body(data: bytes, fault: str) -> bytes:
    half = len(data) // 2
    return {
        "wrong": data[:half] + bytes(len(data) - half),
        "short": data[:half],
        "long": data + b"more",
        "empty": b"",
        "html": b"<html>log in to this network</html>",
    }.get(fault, data)


@contextmanager
def hub(files: dict[str, bytes]) -> Iterator[Hub]:
    """A hub until the end of the block."""
    made = Hub(files)
    servers = (made.front, made.store)
    threads = [threading.Thread(target=each.serve_forever, daemon=True) for each in servers]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()
