"""``NamedStates``: snapshots, copies of conversations under names, to which one can return.

They are whole states in memory, of a model's caller or of the clients of a server. Those of one
owner never make room for those of another. One is replaced at once, or in two steps: the new one is
*prepared* beside the old one, and takes its place when it is *confirmed*. Until then, and after an
abort, the old one and its slot are untouched.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import StateError
from llama_py.states.state import StoredState

__all__ = ["NamedState", "NamedStates"]

_log = logging.getLogger("llama_py")

#: Most slots of an owner.
_MOST = 8


@dataclass(frozen=True, slots=True, eq=False)
class NamedState:
    """A copy of a conversation.

    Attributes:
        name, group: of the copy, and of what it is one of: a session, or "".
        state: the tokens and their state.
        logits: float32 ``(n_vocab,)`` at the last position, or None if they are not known.
        model: the name of the model that evaluated it, or "".
        created, last_used: in seconds since 1970.
        prepared: it waits to be confirmed.
    """

    name: str
    state: StoredState
    logits: NDArray[np.float32] | None = None
    group: str = ""
    model: str = ""
    created: float = field(default_factory=time.time)
    last_used: float = field(default_factory=time.time)
    prepared: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of it."""
        return self.state.nbytes + (self.logits.nbytes if self.logits is not None else 0)

    @property
    def key(self) -> str:
        """A digest of what the state depends on: its tokens, and every effective setting."""
        digest = hashlib.blake2b(self.state.fingerprint.encode(), digest_size=16)
        digest.update(b"\0" + self.state.tokens.astype("<i4").tobytes())
        return digest.hexdigest()


class _Owned:
    """The snapshots of one owner, by group and name.

    Attributes:
        confirmed: least recently used first.
        prepared: those that wait to be confirmed, the oldest first.
    """

    def __init__(self) -> None:
        self.confirmed: OrderedDict[tuple[str, str], NamedState] = OrderedDict()
        self.prepared: OrderedDict[tuple[str, str], NamedState] = OrderedDict()


class NamedStates:
    """See the module. May be used by any thread.

    Args:
        slots: snapshots of each owner; more than 8 are clamped with a warning, 0 is none.
        capacity_bytes: what those of each owner may take; None: as much as they are.

    Attributes:
        slots: as many as there are.
    """

    def __init__(self, slots: int, capacity_bytes: int | None = None) -> None:
        if slots > _MOST:
            _log.warning("prefix_cache_slots=%d is clamped to %d", slots, _MOST)
        self.slots = min(slots, _MOST)
        self._capacity = float("inf") if capacity_bytes is None else capacity_bytes
        self._lock = threading.Lock()
        self._owned: dict[str, _Owned] = defaultdict(_Owned)

    # -- making ---------------------------------------------------------------------------------

    def keep(self, owner: str, made: NamedState) -> NamedState:
        """Keep a snapshot at once, in place of the one of this name, or in a slot.

        Of too many, or too many bytes, those go that were not used for longest; what is prepared
        stays.

        Raises:
            StateError: it does not fit.
        """
        with self._lock:
            self._check_room(made, 0)
            return self._enter(owner, made)

    def prepare(self, owner: str, made: NamedState) -> NamedState:
        """Hold a new snapshot, which replaces nothing until it is confirmed.

        It takes the place of one of this name that was prepared before. Of more than there are
        slots, the one that was prepared first goes.

        Raises:
            StateError: it does not fit.
        """
        made, place = replace(made, prepared=True), (made.group, made.name)
        with self._lock:
            waiting = self._owned[owner].prepared
            self._check_room(made, sum(waiting[each].nbytes for each in waiting if each != place))
            waiting.pop(place, None)
            while len(waiting) >= self.slots:
                waiting.popitem(last=False)
            waiting[place] = made
            return made

    def confirm(self, owner: str, group: str, name: str) -> NamedState | None:
        """Let the prepared snapshot take its place, or a slot, as ``keep`` would.

        Returns:
            None if none is prepared.
        """
        with self._lock:
            made = self._owned[owner].prepared.pop((group, name), None)
            return None if made is None else self._enter(owner, replace(made, prepared=False))

    def abort(self, owner: str, group: str, name: str) -> bool:
        """Give the prepared snapshot up; False if there is none."""
        with self._lock:
            return self._owned[owner].prepared.pop((group, name), None) is not None

    def _enter(self, owner: str, made: NamedState) -> NamedState:
        kept, place = self._owned[owner].confirmed, (made.group, made.name)
        kept.pop(place, None)
        room = self._capacity - made.nbytes
        while kept and (
            len(kept) >= self.slots or sum(each.nbytes for each in kept.values()) > room
        ):
            (_, gone), _ = kept.popitem(last=False)
            _log.info("snapshot %r made room for another one", gone)
        kept[place] = made
        return made

    def _check_room(self, made: NamedState, others: int) -> None:
        """Raise ``StateError`` if one does not fit beside this many bytes that stay."""
        left = self._capacity - others
        if made.nbytes > left:
            raise StateError(
                f"a snapshot of {len(made.state.tokens)} tokens takes {made.nbytes} bytes, and "
                f"{left} of {self._capacity} are left; make it of fewer tokens, or abort what is "
                "prepared"
            )

    # -- what there is --------------------------------------------------------------------------

    def get(self, owner: str, group: str, name: str) -> NamedState | None:
        """The confirmed snapshot of this name, which counts as used now; None if there is none."""
        with self._lock:
            kept = self._owned[owner].confirmed
            found = kept.pop((group, name), None)
            if found is not None:
                kept[group, name] = found = replace(found, last_used=time.time())
            return found

    def of(self, owner: str, group: str | None = None) -> list[NamedState]:
        """Those of an owner, or of one of its groups, least recently used first; then what is
        prepared."""
        with self._lock:
            owned = self._owned[owner]
            every = [*owned.confirmed.values(), *owned.prepared.values()]
        return [each for each in every if group is None or each.group == group]

    # -- forgetting -----------------------------------------------------------------------------

    def drop(self, owner: str, group: str, name: str | None = None) -> bool:
        """Forget a snapshot, and what is prepared under its name; or all of a group.

        Returns:
            False if there was nothing.
        """
        gone = []
        with self._lock:
            owned = self._owned[owner]
            for table in (owned.confirmed, owned.prepared):
                for place in [each for each in table if each[0] == group]:
                    if name is None or place[1] == name:
                        gone.append(table.pop(place))
        return bool(gone)
