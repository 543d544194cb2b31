"""The chat page: ``GET /``, and under ``/page/`` the files that it consists of.

The files are public: they contain nothing of anybody. What they show comes from the API, which asks
for the key. They refer to each other and to the API by relative addresses, so that the page works
under any ``root_path``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from llama_py.server.routes.common import Routes

__all__ = ["HEADERS", "ROUTES"]

ROUTES = Routes()
#: In their place, where the page is turned off.
NO_ROUTES = Routes()

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/manifest+json",
    ".svg": "image/svg+xml",
}

# Scripts and requests only from and to this server; whatever a model writes loads and runs nothing.
_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

#: Headers of every file of the page, beside those that the guard gives to everything.
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": _POLICY,
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(self)",
    # Asked for each time, and sent only when it changed: an updated server never meets old scripts.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    content_type: str
    etag: str


@cache
def _files() -> Mapping[str, _File]:
    """Every file of the page by its path; only these are served."""
    folder = Path(str(files("llama_py.server") / "page"))
    found: dict[str, _File] = {}
    for path in folder.rglob("*"):
        if path.suffix in _TYPES:
            body = path.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            name = path.relative_to(folder).as_posix()
            found[name] = _File(body, _TYPES[path.suffix], etag)
    return found


@ROUTES.get("/")
async def _index(request: Request) -> Response:
    return _send(request, _files()["index.html"])


@ROUTES.get("/page/{path:path}")
async def _asset(request: Request) -> Response:
    file = _files().get(request.path_params["path"])
    if file is None:
        raise HTTPException(404)
    return _send(request, file)


@NO_ROUTES.get("/")
async def _absent(request: Request) -> Response:
    raise HTTPException(404)


def _send(request: Request, file: _File) -> Response:
    headers = {**HEADERS, "ETag": file.etag}
    known = request.headers.get("if-none-match", "")
    # A proxy that compresses makes the tag a weak one.
    if file.etag in (each.strip().removeprefix("W/") for each in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers=headers, media_type=file.content_type)
