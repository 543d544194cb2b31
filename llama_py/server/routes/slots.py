"""llama-server's ``/slots``: the sequences in memory, saved and restored by name."""

from __future__ import annotations

import time
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from llama_py.api.kept.conversations import Conversations, HeldConversation, Which
from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.session_ids import label_of, owner_of
from llama_py.dialects.token_texts import prompt_bytes
from llama_py.errors import (
    ConversationBusyError,
    ConversationMissingError,
    FingerprintError,
    StateError,
    shown,
)
from llama_py.server.access.keys import ADMIN, CHAT
from llama_py.server.kept.sessions import busy_failure, namespace_of
from llama_py.server.kept.slot_files import SlotFiles, check_filename
from llama_py.server.operations import MODEL, ONE_MODEL, Operation, Parameter, Routes
from llama_py.server.pool.pool import ServedModel
from llama_py.server.routes.common import json_response
from llama_py.server.service import in_thread, service_of, tenant_of
from llama_py.server.transport.bodies import read_body

__all__ = ["ROUTES"]

ROUTES = Routes("llama-server")

T = TypeVar("T")


# ---- listing ---------------------------------------------------------------------------------


@ROUTES.get(
    "/slots",
    operation=Operation(
        ADMIN,
        "The sequences in memory",
        reply="Slots",
        failures=(Kind.FORBIDDEN, *ONE_MODEL),
        parameters=(MODEL, Parameter("fail_on_no_slot", "1: 503 if none is free.")),
    ),
)
async def _list(request: Request) -> Response:
    service, tenant = service_of(request), tenant_of(request)
    expose = service.settings.expose_prompts
    async with service.models.probe(request.query_params.get("model")) as model:
        if model is None:  # it is loaded when somebody wants a reply
            return json_response([])
        slots = await in_thread(service, lambda: _slots(model, tenant, expose=expose))
    if request.query_params.get("fail_on_no_slot") and all(s["is_processing"] for s in slots):
        raise RequestError(Kind.UNAVAILABLE, "no slot available", retry_after=1.0)
    return json_response(slots)


def _slots(model: ServedModel, tenant: str, *, expose: bool) -> list[dict[str, Any]]:
    conversations = Conversations(model.llama.runtime.port)
    namespace = namespace_of(model.llama, tenant)
    held = {each.sequence: each for each in conversations.held()}
    slots = []
    for number in range(model.llama.runtime.port.facts.n_seq_max):
        each = held.get(number)
        slot = _slot(number, conversations, each)
        if each is not None and each.namespace == namespace:
            slot["session"] = owner_of(each.session)[1] if each.session else None
            if expose:
                text = prompt_bytes(model.llama.vocab, each.tokens)
                slot["prompt"] = text.decode("utf-8", "replace")
        slots.append(slot)
    return slots


def _slot(
    number: int, conversations: Conversations, held: HeldConversation | None
) -> dict[str, Any]:
    """The part of a slot that every caller may know who may ask at all."""
    busy = held is not None and held.busy
    work = held.work if held is not None else None
    slot: dict[str, Any] = {
        "id": number,
        "n_ctx": conversations.port.facts.limit,
        "speculative": conversations.drafts if work is None else work.drafts,
        "is_processing": busy,
        "state": "processing" if busy else "free" if held is None else "idle",
        "n_past": 0 if held is None else len(held.tokens),
    }
    if work is not None:
        slot |= {
            "id_task": work.number,
            "n_prompt_tokens": work.prompt,
            "n_prompt_tokens_processed": max(0, min(slot["n_past"], work.prompt) - work.reused),
            "n_prompt_tokens_cache": work.reused,
            "next_token": [
                {
                    "has_next_token": True,
                    "n_remain": -1 if work.most is None else work.most - work.generated,
                    "n_decoded": work.generated,
                }
            ],
        }
    return slot


# ---- saving and restoring --------------------------------------------------------------------


@ROUTES.post(
    "/slots/{id:path}",
    operation=Operation(
        CHAT,
        "Save, restore or erase a sequence",
        body="SlotFile",
        reply="Done",
        failures=(Kind.FORBIDDEN, Kind.NOT_FOUND, Kind.NOT_IMPLEMENTED),
        parameters=(MODEL, Parameter("action", "`save`, `restore` or `erase`.")),
    ),
)
async def _act(request: Request) -> Response:
    service = service_of(request)
    if service.slots is None:
        message = "slots are not saved here; start the server with --slot-dir"
        raise RequestError(Kind.NOT_IMPLEMENTED, message)
    action = request.query_params.get("action")
    if action not in ("save", "restore", "erase"):
        message = f"action is {shown(action)}; expected save, restore or erase"
        raise RequestError(Kind.INVALID_VALUE, message, "action")
    files, name, slot = service.slots, "", request.path_params["id"]
    if action != "erase":
        body = await read_body(request, service.settings)
        name = check_filename(body.get("filename"))
    tenant = tenant_of(request)
    async with service.models.lease(request.query_params.get("model")) as model:
        service.sessions.attach(model.id, model.llama)
        asked = _SlotReport(model, tenant, slot)
        answer = await in_thread(service, lambda: asked.act(action, files, name))
        if action == "restore":
            service.sessions.brought_in(model.id, asked.label, answer["n_restored"])
    return json_response({"id_slot": asked.shown, **answer})


class _SlotReport:
    """A slot that a client asks for: by the number of a sequence, or by the name of a session."""

    def __init__(self, model: ServedModel, tenant: str, name: str) -> None:
        self.conversations = Conversations(model.llama.runtime.port)
        self.tenant = tenant
        self.namespace = namespace_of(model.llama, tenant)
        self.number = int(name) if name.isdecimal() and len(name) < 10 else None
        self.shown: int | str = name if self.number is None else self.number
        # What ``id_slot`` of a completion calls its conversation.
        session = name if self.number is None else f"slot-{self.number}"
        self.label = label_of(tenant, session) or ""

    def which(self) -> Which:
        """The session of that name, or else the sequence of that number."""
        held = self.conversations.held()
        named = any(
            each.session == self.label and each.namespace == self.namespace for each in held
        )
        return self.label if named or self.number is None else self.number

    def act(self, action: str, files: SlotFiles, name: str) -> dict[str, Any]:
        """Save, restore or erase it; errors are in the words of a client."""
        start = time.perf_counter()
        try:
            if action == "erase":
                return {"n_erased": self.conversations.forget(self.which(), self.namespace)}
            if action == "save":
                state = self.conversations.export(self.which(), self.namespace)
                written = files.save(self.tenant, name, state)
                counts = {"n_saved": len(state.tokens), "n_written": written}
            else:
                state, read = files.read(self.tenant, name)
                self.conversations.bring_in(state, self.label, self.namespace)
                counts = {"n_restored": len(state.tokens), "n_read": read}
        except ConversationMissingError:
            message = f"the slot {self.shown!r} has nothing in memory"
            raise RequestError(Kind.NOT_FOUND, message, "id_slot") from None
        except ConversationBusyError as error:
            raise busy_failure(error) from None
        except FingerprintError as error:
            message = (
                "this slot was saved by another model, under other settings, or with another key; "
                "evaluate the prompt again instead"
            )
            if error.refused == "version":
                message = f"the slot cannot be used: {error}"
            raise RequestError(Kind.INVALID_VALUE, message, "filename") from None
        except StateError as error:
            raise RequestError(Kind.INVALID_VALUE, f"the slot cannot be used: {error}") from None
        took = round((time.perf_counter() - start) * 1e3, 3)
        return {"filename": name, **counts, "timings": {f"{action}_ms": took}}
