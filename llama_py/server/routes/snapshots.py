"""``/v1/sessions/{id}/snapshots``: copies of a session under names, made and restored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from llama_py.api.kept.conversations import Conversations
from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.fields import whole_number
from llama_py.dialects.session_ids import label_of
from llama_py.errors import (
    ConversationBusyError,
    ConversationMissingError,
    FingerprintError,
    ParameterError,
    StateError,
    shown,
)
from llama_py.options.checks import check_number
from llama_py.server.access.keys import CHAT
from llama_py.server.kept.sessions import busy_failure, namespace_of
from llama_py.server.kept.slot_files import check_filename
from llama_py.server.operations import MODEL, ONE_MODEL, Operation, Routes
from llama_py.server.routes.common import json_response
from llama_py.server.service import in_thread, service_of, tenant_of
from llama_py.server.transport.bodies import model_of, read_body
from llama_py.states.named import NamedState

__all__ = ["ROUTES"]

ROUTES = Routes("Sessions")
_ALL = "/v1/sessions/{id:path}/snapshots"
_ONE = "/v1/sessions/{id:path}/snapshots/{name}"

T = TypeVar("T")


def _session(request: Request) -> str:
    """The name of a session, which the caller has."""
    name: str = request.path_params["id"]
    service_of(request).sessions.check(tenant_of(request), name)
    return name


def _named(request: Request) -> tuple[str, str, str]:
    """Whose snapshot it is, of which session, and its name."""
    name = check_filename(request.path_params["name"], "name")
    return tenant_of(request), _session(request), name


def _described(snapshot: NamedState) -> dict[str, Any]:
    return {
        "object": "session.snapshot",
        "name": snapshot.name,
        "session": snapshot.group,
        "model": snapshot.model,
        "tokens": len(snapshot.state.tokens),
        "bytes": snapshot.nbytes,
        "key": snapshot.key,
        "created": int(snapshot.created),
        "last_used": int(snapshot.last_used),
        "status": "prepared" if snapshot.prepared else "confirmed",
    }


def _missing(message: str) -> RequestError:
    return RequestError(Kind.NOT_FOUND, message, "name")


@ROUTES.get(
    _ALL,
    operation=Operation(
        CHAT, "List the snapshots of a session", reply="SnapshotList", failures=(Kind.NOT_FOUND,)
    ),
)
async def _list(request: Request) -> Response:
    service, session = service_of(request), _session(request)
    every = service.snapshots.of(tenant_of(request))
    report = {
        "object": "list",
        "data": [_described(each) for each in every if each.group == session],
        "slots": service.snapshots.slots,
        "slots_used": sum(not each.prepared for each in every),
        "bytes": service.settings.snapshot_bytes,
        "bytes_used": sum(each.nbytes for each in every),
    }
    return json_response(report)


# ---- making ----------------------------------------------------------------------------------


@ROUTES.post(
    _ALL,
    operation=Operation(
        CHAT,
        "Make a snapshot of a session",
        text="It takes the place of one of the same name when it is complete; with `prepare`, when "
        "it is confirmed. With `length`, it has only the first tokens, where the memory of the "
        "model can give them back; elsewhere it is refused, with the reason and the possible "
        "lengths.",
        body="SnapshotMake",
        reply="Snapshot",
        failures=(Kind.NOT_FOUND, Kind.NOT_IMPLEMENTED, *ONE_MODEL),
    ),
)
async def _make(request: Request) -> Response:
    service, tenant, session = service_of(request), tenant_of(request), _session(request)
    if not service.snapshots.slots:
        message = "snapshots are off; start the server with --prefix-cache-slots N"
        raise RequestError(Kind.NOT_IMPLEMENTED, message)
    body = await read_body(request, service.settings)
    name, waits = check_filename(body.get("name"), "name"), body.get("prepare", False)
    length: int | None = whole_number(body.get("length"))
    if length is not None:
        try:
            check_number("length", length, 1, integer=True)
        except ParameterError as error:
            raise RequestError(Kind.INVALID_VALUE, str(error), "length") from None
    if not isinstance(waits, bool):
        message = f"prepare must be true or false, not {shown(waits)}"
        raise RequestError(Kind.INVALID_TYPE, message, "prepare")
    asked = model_of(body) or service.sessions.check(tenant, session)
    async with service.models.lease(asked) as model:
        service.sessions.attach(model.id, model.llama)

        def export() -> NamedState:
            label, namespace = label_of(tenant, session) or "", namespace_of(model.llama, tenant)
            state = Conversations(model.llama.runtime.port).export(label, namespace, length)
            return NamedState(name, state, group=session, model=model.id)

        made = await in_thread(service, lambda: _done(export))
        keep = service.snapshots.prepare if waits else service.snapshots.keep
        try:
            return json_response(_described(keep(tenant, made)))
        except StateError as error:
            message = f"{error}, or give the server more (--snapshot-bytes)"
            code = "snapshot_too_large"
            raise RequestError(Kind.INVALID_VALUE, message, code=code) from None


@ROUTES.post(
    f"{_ONE}/confirm",
    operation=Operation(
        CHAT, "Let a prepared snapshot take its place", reply="Snapshot", failures=(Kind.NOT_FOUND,)
    ),
)
async def _confirm(request: Request) -> Response:
    tenant, session, name = _named(request)
    made = service_of(request).snapshots.confirm(tenant, session, name)
    if made is None:
        raise _missing(f"no snapshot {name!r} of the session {session!r} is prepared")
    return json_response(_described(made))


@ROUTES.post(
    f"{_ONE}/abort",
    operation=Operation(
        CHAT,
        "Give a prepared snapshot up",
        text="What it would have replaced stays as it is.",
        reply="AbortedSnapshot",
        failures=(Kind.NOT_FOUND,),
    ),
)
async def _abort(request: Request) -> Response:
    tenant, session, name = _named(request)
    if not service_of(request).snapshots.abort(tenant, session, name):
        raise _missing(f"no snapshot {name!r} of the session {session!r} is prepared")
    return json_response({"name": name, "object": "session.snapshot.aborted", "aborted": True})


# ---- using -----------------------------------------------------------------------------------


@ROUTES.post(
    f"{_ONE}/restore",
    operation=Operation(
        CHAT,
        "Bring a snapshot back",
        text="The next request that begins with its tokens evaluates only what comes behind them.",
        reply="Snapshot",
        failures=(Kind.NOT_FOUND, *ONE_MODEL),
        parameters=(MODEL,),
    ),
)
async def _restore(request: Request) -> Response:
    service, (tenant, session, name) = service_of(request), _named(request)
    snapshot = service.snapshots.get(tenant, session, name)
    if snapshot is None:
        every = service.snapshots.of(tenant, session)
        known = ", ".join(each.name for each in every if not each.prepared) or "none"
        raise _missing(f"the session {session!r} has no snapshot {name!r}; there are: {known}")
    asked = request.query_params.get("model") or snapshot.model
    async with service.models.lease(asked) as model:
        service.sessions.attach(model.id, model.llama)

        def bring_in() -> None:
            label, namespace = label_of(tenant, session), namespace_of(model.llama, tenant)
            Conversations(model.llama.runtime.port).bring_in(snapshot.state, label, namespace)

        await in_thread(service, lambda: _done(bring_in))
    return json_response(_described(snapshot))


@ROUTES.delete(
    _ONE,
    operation=Operation(
        CHAT, "Forget a snapshot", reply="DeletedSnapshot", failures=(Kind.NOT_FOUND,)
    ),
)
async def _drop(request: Request) -> Response:
    tenant, session, name = _named(request)
    if not service_of(request).snapshots.drop(tenant, session, name):
        raise _missing(f"the session {session!r} has no snapshot {name!r}")
    return json_response({"name": name, "object": "session.snapshot.deleted", "deleted": True})


def _done(action: Callable[[], T]) -> T:
    """The result of an action, with errors in the words of a client."""
    try:
        return action()
    except ConversationMissingError:
        message = "this session has nothing in memory; ask for a reply, or restore it first"
        raise RequestError(Kind.NOT_FOUND, message, "id") from None
    except ConversationBusyError as error:
        raise busy_failure(error) from None
    except FingerprintError:
        message = (
            "this snapshot was made by another model, or under other settings; evaluate the prompt "
            "again instead"
        )
        raise _refused(message) from None
    except ParameterError as error:
        raise RequestError(Kind.INVALID_VALUE, str(error), "length") from None
    except StateError as error:
        raise _refused(str(error)) from None


def _refused(message: str) -> RequestError:
    return RequestError(Kind.INVALID_VALUE, message, code="snapshot_refused")
