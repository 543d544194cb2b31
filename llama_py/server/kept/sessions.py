"""``Sessions``: the conversations of the server's clients, by name.

The engine finds what a prompt begins with by its content, whoever asks. So a session is a name: its
requests carry it as a label, and what they leave in memory has it. Here is who owns which name, and
what may be done with it. With a directory, conversations are written to a store there when a reply
has ended, and are found again after a restart.
"""

from __future__ import annotations

import logging
import secrets
import threading
import weakref
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from llama_py.api.kept.conversations import Conversations, HeldConversation
from llama_py.api.llama import Llama
from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.session_ids import label_of, owner_of
from llama_py.engine.request import Record
from llama_py.errors import (
    ClosedError,
    ConversationBusyError,
    ConversationMissingError,
    EngineDeadError,
    StorageError,
)
from llama_py.memory.by_label import rename_entry
from llama_py.server.kept.session_registry import SessionEntry, SessionRegistry
from llama_py.states.disk import LlamaDiskCache, database_of

__all__ = ["Sessions", "busy_failure", "namespace_of"]

_log = logging.getLogger("llama_py.server")

#: Sessions that are remembered.
_MOST = 4096
#: Seconds after which a client may ask again for a conversation that is in use.
_RETRY = 1.0


def namespace_of(llama: Llama, tenant: str) -> Hashable:
    """The namespace that the requests of a tenant share prefixes in."""
    own = llama.runtime.port.facts.namespace
    return (own, tenant) if tenant else own


def busy_failure(error: ConversationBusyError) -> RequestError:
    """What the client is told when a conversation is in use."""
    return RequestError(Kind.UNAVAILABLE, str(error), code="session_busy", retry_after=_RETRY)


class Sessions:
    """See the module. Its methods may be called by any thread, but not by an event loop: they wait
    for the engine. (``note`` does not.)

    Args:
        directory: where conversations are kept, or None.
        capacity_bytes: what they may take there; those longest unused go.
        most: sessions that are remembered.
    """

    def __init__(
        self, directory: Path | None = None, *, capacity_bytes: int = 8 << 30, most: int = _MOST
    ) -> None:
        self._lock = threading.Lock()
        self._models: dict[str, weakref.ref[Llama]] = {}
        self._store: LlamaDiskCache | None = None
        path = None
        if directory is not None:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._store = LlamaDiskCache(directory / "states", capacity_bytes)
            path = database_of(directory / "states")
        self._registry = SessionRegistry(path, most)

    # -- models ---------------------------------------------------------------------------------

    def attach(self, name: str, llama: Llama) -> None:
        """A model answers requests: it writes its conversations to the store from now on."""
        with self._lock:
            known = self._models.get(name)
            if known is not None and known() is llama:
                return
            if self._store is not None:
                llama.cache.set_store(self._store)
            self._models[name] = weakref.ref(llama)

    def _loaded(self) -> list[Llama]:
        with self._lock:
            found = [reference() for reference in self._models.values()]
        return [llama for llama in found if llama is not None]

    # -- requests -------------------------------------------------------------------------------

    def note(self, model: str, record: Record) -> None:
        """A request has ended: if it was a session's, that has one turn more.

        One that was ended before its reply was complete has left something in memory, too: its
        session exists, and can be forgotten.
        """
        label = record.request.session
        if label is None:
            return
        if record.reason in ("stop", "length"):
            tokens = record.n_prompt + len(record.generated)
            self._registry.note(*owner_of(label), model, tokens)
        elif record.started:
            self._registry.touch(*owner_of(label), model)

    def brought_in(self, model: str, label: str, tokens: int) -> None:
        """A session goes on with what was saved elsewhere."""
        self._registry.touch(*owner_of(label), model, tokens)

    # -- asking ---------------------------------------------------------------------------------

    def owned_by(self, tenant: str) -> list[dict[str, Any]]:
        """The sessions of a tenant, the one that was used last first."""
        held = self._held(tenant)
        return [
            _described(entry, held.get(entry.id, [])) for entry in self._registry.owned_by(tenant)
        ]

    def get(self, tenant: str, name: str) -> dict[str, Any]:
        """One of them.

        Raises:
            RequestError: the tenant has no session of this name.
        """
        entry = self._entry(tenant, name)
        described = _described(entry, self._held(tenant).get(name, []))
        stored = self._stored_tokens(label_of(tenant, name) or "")
        return {**described, "saved": stored > 0, "tokens_saved": stored}

    def _stored_tokens(self, label: str) -> int:
        """How many tokens of a session are on the disk."""
        if self._store is None:
            return 0
        found = map(self._store.info, self._store.find_session(label, None))
        return max((entry.length for entry in found if entry is not None), default=0)

    def check(self, tenant: str, name: str) -> str:
        """The model that answered a session last.

        Raises:
            RequestError: the tenant has no session of this name.
        """
        return self._entry(tenant, name).model

    def _entry(self, tenant: str, name: str) -> SessionEntry:
        entry = self._registry.get(tenant, name)
        if entry is None:
            raise RequestError(Kind.NOT_FOUND, f"there is no session {name!r}", "id")
        return entry

    def _held(self, tenant: str) -> dict[str, list[HeldConversation]]:
        """What is in memory of a tenant's sessions, by their names."""
        found: dict[str, list[HeldConversation]] = {}
        for llama in self._loaded():
            status = llama.runtime.port.own_process
            if status is not None and not status.ready:  # nobody waits until it is
                continue
            try:
                sequences = Conversations(llama.runtime.port).held()
            except (ClosedError, EngineDeadError):  # it was unloaded just now, or hangs
                continue
            for each in sequences:
                whose, name = owner_of(each.session or "")
                if whose == tenant and name:
                    found.setdefault(name, []).append(each)
        return found

    # -- changing -------------------------------------------------------------------------------

    def delete(self, tenant: str, name: str) -> None:
        """Forget a session, with what is in memory and in stores under its name.

        What a fork that has not spoken yet begins with is handed over to it. A name that is not
        remembered any more may have something there, too.

        Raises:
            RequestError: there is none of this name, or a request is using it.
        """
        label = label_of(tenant, name) or ""
        if not (self._stored_tokens(label) or name in self._held(tenant)):
            self._entry(tenant, name)
        heirs = self._registry.silent_forks(tenant, name)
        heir = label_of(tenant, heirs[0].id) if heirs else None
        for llama in self._loaded():
            conversations, namespace = (
                Conversations(llama.runtime.port),
                namespace_of(llama, tenant),
            )
            try:
                if heir is not None:
                    conversations.rename(label, heir, namespace)
                conversations.forget(label, namespace)
            except ConversationBusyError as error:
                raise busy_failure(error) from None
            except ClosedError:  # it was unloaded just now
                pass
        if self._store is not None:
            # What models have written that are not loaded now, or were loaded otherwise.
            for key in self._store.find_session(label, None):
                if heir is not None:
                    rename_entry(self._store, key, heir)
                self._store.discard(key)
        self._registry.remove(tenant, name)

    def fork(self, tenant: str, name: str, new: str | None = None) -> dict[str, Any]:
        """A session that begins with what another one has said so far.

        It has nothing of its own in memory until it speaks: who speaks first of the two goes on in
        the sequence, and the other one is forked from it at the end of what they share.

        Args:
            new: its name; by default one is made up.

        Raises:
            RequestError: there is no session ``name``, or there is one that is called ``new``.
        """
        self._entry(tenant, name)
        new = f"sess_{secrets.token_hex(8)}" if new is None else new
        try:
            self._registry.fork(tenant, name, new)
        except FileExistsError:
            message = f"there is a session {new!r} already; choose another id, or delete it first"
            raise RequestError(Kind.INVALID_VALUE, message, "id", code="session_exists") from None
        return self.get(tenant, new)

    def save(self, tenant: str, name: str) -> dict[str, Any]:
        """Write all of a session to the directory, and wait until it is there.

        Raises:
            RequestError: there is no directory, or no session of this name, or a request is using
                it, or not all of it could be written.
        """
        if self._store is None:
            message = "conversations are not kept here; start the server with --session-dir"
            raise RequestError(Kind.NOT_IMPLEMENTED, message)
        self._entry(tenant, name)
        label = label_of(tenant, name) or ""
        for llama in self._loaded():
            try:
                Conversations(llama.runtime.port).save(label, namespace_of(llama, tenant))
            except ConversationBusyError as error:
                raise busy_failure(error) from None
            except StorageError as error:
                raise RequestError(Kind.INTERNAL, str(error), code="session_not_saved") from None
            except (
                ConversationMissingError,
                ClosedError,
            ):  # what is not in memory was written before
                pass
        return self.get(tenant, name)

    def close(self) -> None:
        """Write what is not written yet. The models have been closed, or go on without a store."""
        self._registry.close()
        if self._store is not None:
            self._store.close()


def _described(entry: SessionEntry, held: Sequence[HeldConversation]) -> dict[str, Any]:
    return {
        "id": entry.id,
        "object": "session",
        "created": int(entry.created),
        "last_used": int(entry.last_used),
        "model": entry.model,
        "turns": entry.turns,
        "tokens": entry.tokens,
        "parent": entry.parent,
        "busy": any(each.busy for each in held),
        "tokens_in_memory": max((len(each.tokens) for each in held), default=0),
    }
