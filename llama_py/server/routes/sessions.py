"""``/v1/sessions``: the caller's conversations, by name."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llama_py.dialects.failures import Kind
from llama_py.dialects.session_ids import check_session_id
from llama_py.server.access.keys import CHAT
from llama_py.server.operations import Operation, Routes
from llama_py.server.routes.common import json_response
from llama_py.server.service import in_thread, service_of, tenant_of
from llama_py.server.transport.bodies import read_body

__all__ = ["ROUTES"]

ROUTES = Routes("Sessions")


@ROUTES.get(
    "/v1/sessions",
    operation=Operation(
        CHAT, "List the sessions", text="Those of the caller's key.", reply="SessionList"
    ),
)
async def _list(request: Request) -> Response:
    service, tenant = service_of(request), tenant_of(request)
    data = await in_thread(service, lambda: service.sessions.owned_by(tenant))
    return json_response({"object": "list", "data": data})


# Before those of one session, whose name may have slashes.
@ROUTES.post(
    "/v1/sessions/{id:path}/fork",
    operation=Operation(
        CHAT,
        "Begin another session with the same past",
        body="SessionFork",
        reply="Session",
        failures=(Kind.NOT_FOUND,),
    ),
)
async def _fork(request: Request) -> Response:
    service, tenant, name = service_of(request), tenant_of(request), _name(request)
    body: dict[str, Any] = await read_body(request, service.settings)
    new = body.get("id")
    new = None if new is None else check_session_id("id", new)
    return json_response(await in_thread(service, lambda: service.sessions.fork(tenant, name, new)))


@ROUTES.post(
    "/v1/sessions/{id:path}/save",
    operation=Operation(
        CHAT,
        "Write a session to the disk now",
        reply="Session",
        failures=(Kind.NOT_FOUND, Kind.NOT_IMPLEMENTED),
    ),
)
async def _save(request: Request) -> Response:
    service, tenant, name = service_of(request), tenant_of(request), _name(request)
    return json_response(await in_thread(service, lambda: service.sessions.save(tenant, name)))


@ROUTES.get(
    "/v1/sessions/{id:path}",
    operation=Operation(CHAT, "One session", reply="Session", failures=(Kind.NOT_FOUND,)),
)
async def _get(request: Request) -> Response:
    service, tenant, name = service_of(request), tenant_of(request), _name(request)
    return json_response(await in_thread(service, lambda: service.sessions.get(tenant, name)))


@ROUTES.delete(
    "/v1/sessions/{id:path}",
    operation=Operation(
        CHAT, "Forget a session", reply="DeletedSession", failures=(Kind.NOT_FOUND,)
    ),
)
async def _delete(request: Request) -> Response:
    service, tenant, name = service_of(request), tenant_of(request), _name(request)
    await in_thread(service, lambda: service.sessions.delete(tenant, name))
    service.snapshots.drop(tenant, name)
    return json_response({"id": name, "object": "session.deleted", "deleted": True})


def _name(request: Request) -> str:
    name: str = request.path_params["id"]
    return name
