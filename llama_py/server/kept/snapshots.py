"""``SessionSnapshots``: copies of sessions under names, to which a conversation can return.

A snapshot is a whole state (``states.state.StoredState``) in the server's memory: what a session
had evaluated when it was made, or the first tokens of that. Those of one key never make room for
those of another. It is replaced in two steps: the new one is *prepared* beside the old one, and
takes its place when it is *confirmed*. Until then, and after an abort, the old one and its slot
are untouched.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

from llama_py.api.kept.snapshots import check_slots
from llama_py.dialects.failures import Kind, RequestError
from llama_py.errors import shown
from llama_py.states.state import StoredState

__all__ = ["SessionSnapshots", "Snapshot", "check_name"]

_log = logging.getLogger("llama_py.server")

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


def check_name(value: Any) -> str:
    """The name of a snapshot.

    Raises:
        RequestError: it is missing, or no plain name.
    """
    if value is None:
        raise RequestError(Kind.MISSING, "the field 'name' is missing", "name")
    if not isinstance(value, str) or not _NAME.fullmatch(value) or not value.strip("."):
        message = (
            f"name={shown(value, 40)} must be 1 to 128 of the characters A-Z a-z 0-9 . _ - and not "
            "only dots"
        )
        raise RequestError(Kind.INVALID_VALUE, message, "name")
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A copy of a session.

    Attributes:
        session, name: of the session, and of the copy.
        model: who evaluated it.
        state: the tokens and their state.
        created, last_used: in seconds since 1970.
        prepared: it waits to be confirmed.
    """

    session: str
    name: str
    model: str
    state: StoredState
    created: float
    last_used: float
    prepared: bool = False

    @property
    def key(self) -> str:
        """A digest of what the state depends on: its tokens, and every effective setting."""
        digest = hashlib.blake2b(self.state.fingerprint.encode(), digest_size=16)
        digest.update(b"\0" + self.state.tokens.astype("<i4").tobytes())
        return digest.hexdigest()

    def described(self) -> dict[str, Any]:
        """What its owner is told."""
        return {
            "object": "session.snapshot",
            "name": self.name,
            "session": self.session,
            "model": self.model,
            "tokens": len(self.state.tokens),
            "bytes": self.state.nbytes,
            "key": self.key,
            "created": int(self.created),
            "last_used": int(self.last_used),
            "status": "prepared" if self.prepared else "confirmed",
        }


_Place = tuple[str, str]


class _Owned:
    """The snapshots of one key.

    Attributes:
        confirmed: by session and name, least recently used first.
        prepared: those that wait to be confirmed, the oldest first.
    """

    def __init__(self) -> None:
        self.confirmed: OrderedDict[_Place, Snapshot] = OrderedDict()
        self.prepared: OrderedDict[_Place, Snapshot] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        every = [*self.confirmed.values(), *self.prepared.values()]
        return sum(snapshot.state.nbytes for snapshot in every)


class SessionSnapshots:
    """See the module. May be used by any thread.

    Args:
        slots: snapshots of each key; more than can be kept are clamped with a warning, 0 is none.
        capacity_bytes: what those of each key may take.

    Attributes:
        slots: as many as there are.
    """

    def __init__(self, slots: int, capacity_bytes: int) -> None:
        self.slots = check_slots(slots)
        self._capacity = capacity_bytes
        self._lock = threading.Lock()
        self._owned: dict[str, _Owned] = {}

    def check_on(self) -> None:
        """Raise ``RequestError`` if none are kept."""
        if not self.slots:
            message = "snapshots are off; start the server with --prefix-cache-slots N"
            raise RequestError(Kind.NOT_IMPLEMENTED, message)

    # -- making ---------------------------------------------------------------------------------

    def make(
        self, tenant: str, session: str, name: str, model: str, state: StoredState
    ) -> dict[str, Any]:
        """Take a snapshot at once, in place of the one of this name, or in a slot.

        Of too many, or too many bytes, those go that were not used for longest; what is prepared
        stays.

        Raises:
            RequestError: it does not fit.
        """
        self.check_on()
        now = time.time()
        with self._lock:
            self._check_room(state, 0)
            owned = self._owned.setdefault(tenant, _Owned())
            return self._enter(owned, Snapshot(session, name, model, state, now, now))

    # -- replacing ------------------------------------------------------------------------------

    def prepare(
        self, tenant: str, session: str, name: str, model: str, state: StoredState
    ) -> dict[str, Any]:
        """Hold a new snapshot, which replaces nothing until it is confirmed.

        It takes the place of one of this name that was prepared before. Of more than there are
        slots, the one that was prepared first goes.

        Raises:
            RequestError: it does not fit.
        """
        self.check_on()
        now = time.time()
        made = Snapshot(session, name, model, state, now, now, prepared=True)
        with self._lock:
            owned = self._owned.setdefault(tenant, _Owned())
            waiting = {key: each for key, each in owned.prepared.items() if key != (session, name)}
            self._check_room(state, sum(each.state.nbytes for each in waiting.values()))
            owned.prepared = OrderedDict(waiting)
            while len(owned.prepared) >= self.slots:
                owned.prepared.popitem(last=False)
            owned.prepared[session, name] = made
            return made.described()

    def confirm(self, tenant: str, session: str, name: str) -> dict[str, Any]:
        """Let the prepared snapshot take the place of the one of this name, or a slot.

        Of too many, or too many bytes, those go that were not used for longest.

        Raises:
            RequestError: none is prepared.
        """
        with self._lock:
            owned = self._of(tenant)
            made = self._prepared(owned, session, name)
            del owned.prepared[session, name]
            return self._enter(owned, replace(made, prepared=False))

    def _enter(self, owned: _Owned, confirmed: Snapshot) -> dict[str, Any]:
        place = confirmed.session, confirmed.name
        owned.confirmed.pop(place, None)
        room = self._capacity - confirmed.state.nbytes
        while owned.confirmed and (
            len(owned.confirmed) >= self.slots
            or sum(each.state.nbytes for each in owned.confirmed.values()) > room
        ):
            _, gone = owned.confirmed.popitem(last=False)
            _log.info("snapshot %r of %r made room for another one", gone.name, gone.session)
        owned.confirmed[place] = confirmed
        return confirmed.described()

    def _check_room(self, state: StoredState, others: int) -> None:
        """Raise ``RequestError`` if a state does not fit beside so many bytes that stay."""
        left = self._capacity - others
        if state.nbytes > left:
            raise RequestError(
                Kind.INVALID_VALUE,
                f"a snapshot of {len(state.tokens)} tokens takes {state.nbytes} bytes, and "
                f"{left} of {self._capacity} are left; make it of fewer tokens, abort what is "
                "prepared, or give the server more (--snapshot-bytes)",
                code="snapshot_too_large",
            )

    def abort(self, tenant: str, session: str, name: str) -> None:
        """Give the prepared snapshot up. What it would have replaced stays as it is.

        Raises:
            RequestError: none is prepared.
        """
        with self._lock:
            owned = self._of(tenant)
            self._prepared(owned, session, name)
            del owned.prepared[session, name]

    def _prepared(self, owned: _Owned, session: str, name: str) -> Snapshot:
        made = owned.prepared.get((session, name))
        if made is None:
            message = f"no snapshot {name!r} of the session {session!r} is prepared"
            raise RequestError(Kind.NOT_FOUND, message, "name")
        return made

    # -- what there is --------------------------------------------------------------------------

    def _of(self, tenant: str) -> _Owned:
        return self._owned.get(tenant) or _Owned()

    def get(self, tenant: str, session: str, name: str) -> Snapshot:
        """The confirmed snapshot of this name, which counts as used now.

        Raises:
            RequestError: there is none.
        """
        with self._lock:
            confirmed = self._of(tenant).confirmed
            found = confirmed.get((session, name))
            if found is None:
                known = ", ".join(each for whose, each in confirmed if whose == session) or "none"
                message = f"the session {session!r} has no snapshot {name!r}; there are: {known}"
                raise RequestError(Kind.NOT_FOUND, message, "name")
            confirmed[session, name] = found = replace(found, last_used=time.time())
            confirmed.move_to_end((session, name))
            return found

    def report(self, tenant: str, session: str) -> dict[str, Any]:
        """The snapshots of a session, least recently used first, and what is left for more."""
        with self._lock:
            owned = self._of(tenant)
            every = [*owned.confirmed.values(), *owned.prepared.values()]
            return {
                "object": "list",
                "data": [each.described() for each in every if each.session == session],
                "slots": self.slots,
                "slots_used": len(owned.confirmed),
                "bytes": self._capacity,
                "bytes_used": owned.nbytes,
            }

    # -- forgetting -----------------------------------------------------------------------------

    def drop(self, tenant: str, session: str, name: str) -> None:
        """Forget a snapshot, and what is prepared under its name.

        Raises:
            RequestError: there is neither.
        """
        with self._lock:
            owned = self._of(tenant)
            found = [
                table.pop((session, name), None) for table in (owned.confirmed, owned.prepared)
            ]
        if found == [None, None]:
            message = f"the session {session!r} has no snapshot {name!r}"
            raise RequestError(Kind.NOT_FOUND, message, "name")

    def drop_session(self, tenant: str, session: str) -> None:
        """Forget all snapshots of a session."""
        with self._lock:
            owned = self._of(tenant)
            for table in (owned.confirmed, owned.prepared):
                for place in [place for place in table if place[0] == session]:
                    del table[place]
