"""``Stores``: where sequences are copied to, below the context's memory.

There are two: the *offload* store, for sequences that have to make room, and the *saving* store,
which every conversation is written to when a request ends, and which may outlive the process. A
state goes to a store with the fingerprint of its namespace, and is looked for with that one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import ClosedError, LlamaError
from llama_py.memory.costs import LEAST_OFFLOADED, Costs
from llama_py.memory.index import CacheIndex
from llama_py.memory.kinds import MemoryTraits, SequenceMemory
from llama_py.memory.pins import Pin, Pins
from llama_py.memory.sequences import LiveSequence, Namespace, as_tokens
from llama_py.states.prefix import TextPath
from llama_py.states.state import (
    Checkpoint,
    Key,
    Refusal,
    StoredMatch,
    StoredState,
    refusal,
    why_refused,
)
from llama_py.states.store import StateStore

__all__ = ["Fingerprint", "Refused", "StoredSource", "Stores"]

_log = logging.getLogger("llama_py")

#: Checkpoints that travel with a stored state.
_STORED_CHECKPOINTS = 8

#: Everything that the saved states of a namespace depend on, as a text to compare.
Fingerprint = Callable[[Namespace], str]


class Refused(NamedTuple):
    """Why stored states are not used: the kind of reason, and a sentence without its subject."""

    kind: Refusal
    why: str


class StoredSource(NamedTuple):
    """An entry of a store, as the source of a ``ReusePlan``."""

    store: StateStore
    key: Key


class Stores:
    """See the module.

    Args:
        offload_store: the store for sequences that have to make room, or None.
        costs: of copies, where they are dear.

    Attributes:
        saved: the store for every conversation, or None.
        offloaded, dropped: how often a sequence had to go, with and without a copy.
    """

    def __init__(
        self,
        memory: SequenceMemory,
        traits: MemoryTraits,
        index: CacheIndex,
        fingerprint: Fingerprint,
        offload_store: StateStore | None,
        costs: Costs | None = None,
    ) -> None:
        self.memory = memory
        self.traits = traits
        self._index = index
        self.fingerprint = fingerprint
        self.offload_store = offload_store
        self.costs = costs
        self.saved: StateStore | None = None
        self.pins = Pins(index, offload_store)
        self.offloaded = 0
        self.dropped = 0

    @property
    def open(self) -> list[StateStore]:
        """The stores, fastest first. One that its owner has closed is given up."""
        saved = self.saved
        if saved is not None and saved.closed:
            _log.warning("the cache that was set is closed, and not used any more")
            self.saved = saved = None
        return [store for store in (self.offload_store, saved) if store is not None]

    # -- looking for something ------------------------------------------------------------------

    def find(
        self, tokens: NDArray[np.int32], namespace: Namespace
    ) -> Iterator[tuple[StoredSource, StoredMatch]]:
        """Entries that begin like ``tokens``."""
        fingerprint = self.fingerprint(namespace)
        for store in self.open:
            for found in store.find(tokens, fingerprint):
                yield StoredSource(store, found.key), found

    def find_text(self, key: bytes, namespace: Namespace) -> list[TextPath]:
        """The longest path of tokens that ``key`` begins with, of each store. From any thread."""
        paths = []
        fingerprint = self.fingerprint(namespace)
        for store in self.open:
            try:
                path = store.find_text(key, fingerprint)
            except ClosedError:  # just now, by another thread
                continue
            if path is not None:
                paths.append(path)
        return paths

    def refused(
        self, tokens: NDArray[np.int32], namespace: Namespace, matched: int
    ) -> Refused | None:
        """Why what is stored under other settings is not used, if it has more than the first
        ``matched`` tokens; None if there is nothing.

        Of several reasons, another version comes first: it explains most.
        """
        own = self.fingerprint(namespace)
        found = [
            Refused(refusal(own, other), why_refused(own, other))
            for store in self.open
            for other, shared in store.match_foreign(tokens, own).items()
            if shared > matched
        ]
        return max(found, key=lambda each: (each.kind == "version", each.why), default=None)

    # -- writing --------------------------------------------------------------------------------

    def offload(self, sequence: LiveSequence) -> None:
        """Copy a sequence that has to make room to the offload store, if that is worth it.

        Nothing is copied of one that is there as it is.
        """
        pin = self.pins.keepers().get(sequence)
        if self.offload_store is None or not self._is_worth_offloading(sequence, pin):
            self.dropped += 1
            return
        if not self._is_offloaded(sequence, self.offload_store):
            self._keep_pinned_entries(self.offload_store)
            sequence.offloaded_key = self._put(self.offload_store, sequence, sequence.offloaded_key)
            sequence.offloaded_length = len(sequence.tokens)
        elif sequence.offloaded_key is not None:
            self.offload_store.touch(sequence.offloaded_key)
        key = sequence.offloaded_key
        if pin is not None and key is not None:
            pin.offloaded_key = key
            sequence.forget_stored()  # so that no longer state replaces the copy
        self.offloaded += key is not None
        self.dropped += key is None

    def must_be_offloaded(self, sequence: LiveSequence) -> bool:
        """Whether ``offload`` would copy something of it."""
        if self.offload_store is None or self._is_offloaded(sequence, self.offload_store):
            return False
        return self._is_worth_offloading(sequence, self.pins.keepers().get(sequence))

    def is_worth_keeping(self, sequence: LiveSequence, keep: int) -> bool:
        """Whether a copy of a sequence is made before it is cut to ``keep`` tokens."""
        loses = len(sequence.tokens) - keep
        return self._is_worth_copying(loses) or sequence.reserved or sequence in self.pins.keepers()

    def put_offloaded(self, sequence: LiveSequence, state: StoredState) -> bool:
        """``state`` is a copy of the sequence that was made before it has to make room.

        Returns:
            False if the offload store did not take it.
        """
        if self.offload_store is None:
            return False
        self._keep_pinned_entries(self.offload_store)
        sequence.offloaded_key = self.offload_store.put(state, replaces=sequence.offloaded_key)
        sequence.offloaded_length = len(state.tokens)
        return sequence.offloaded_key is not None

    def _is_worth_offloading(self, sequence: LiveSequence, pin: Pin | None) -> bool:
        if pin is not None:
            return True
        return not sequence.transient and self._is_worth_copying(self._index.own_tail(sequence))

    def _is_worth_copying(self, tokens: int) -> bool:
        if self.costs is not None:
            return self.costs.worth_storing(tokens)
        return tokens >= LEAST_OFFLOADED

    def _is_offloaded(self, sequence: LiveSequence, store: StateStore) -> bool:
        key = sequence.offloaded_key
        if key is None or sequence.offloaded_length != len(sequence.tokens):
            return False
        return store.info(key) is not None

    def _keep_pinned_entries(self, store: StateStore) -> None:
        """What is pinned is used: a store evicts what was not used for longest."""
        for pin in self.pins:
            if pin.offloaded_key is not None:
                store.touch(pin.offloaded_key)

    def _put(self, store: StateStore, sequence: LiveSequence, replaces: Key | None) -> Key | None:
        """Write a sequence to a store. What cannot be written is lost, and fails no request."""
        count = len(sequence.tokens)
        try:
            size = self.memory.state_size(sequence.number)
            if not store.accepts(size):  # asked before gigabytes are copied for nothing
                _log.info(
                    "a conversation of %d tokens is not stored: its state has %d bytes", count, size
                )
                return None
            return store.put(self.export(sequence), replaces=replaces)
        except (LlamaError, MemoryError, OSError) as error:
            _log.warning("a conversation of %d tokens could not be stored: %r", count, error)
            return None

    def export(self, sequence: LiveSequence) -> StoredState:
        """Everything that is needed to bring ``sequence`` back, elsewhere or later."""
        return replace(self.describe(sequence), state=self.memory.state_get(sequence.number))

    def describe(self, sequence: LiveSequence) -> StoredState:
        """The same without the cells: what they are, and the checkpoints."""
        self._index.commit(sequence)
        tokens = as_tokens(sequence.tokens)
        known = sequence.spelled == len(tokens)
        along = self._index.checkpoints_along(tokens, sequence.namespace)
        chosen = {*sorted(along)[-_STORED_CHECKPOINTS:]}
        chosen |= self.pins.lengths_along(tokens, sequence.namespace) & along.keys()
        return StoredState(
            tokens=tokens,
            offsets=sequence.offsets if known else None,
            text=sequence.text if known else None,
            sources=sequence.sources if known else None,
            state=np.zeros(0, np.uint8),
            checkpoints=tuple(Checkpoint(place, along[place].state) for place in sorted(chosen)),
            pos_min=max(0, self.memory.pos_min(sequence.number), self._window_start(sequence)),
            fingerprint=self.fingerprint(sequence.namespace),
            session=sequence.session,
        )

    def first_position(self, sequence: LiveSequence, *, forked: bool) -> int:
        """The first position that a sequence has of all layers; ``forked``: that a fork of it has.

        A fork that shares no cells is a copy of the saved state, if the sequence is in use. (Else
        the copy is for the sequence, and the fork gets its cells.)
        """
        copied = forked and sequence.busy and not self.traits.shares_cells
        start = self._window_start(sequence) if copied else 0
        return max(0, self.memory.pos_min(sequence.number), start)

    def _window_start(self, sequence: LiveSequence) -> int:
        """A saved state leaves out cells that the window has passed, also those still in memory."""
        return sequence.end - self.traits.window if self.traits.window else 0

    def clear(self) -> None:
        """Forget what is offloaded and pinned. What was saved stays: it is the caller's."""
        if self.offload_store is not None:
            self.offload_store.clear()
        self.pins.clear()
        self.offloaded = self.dropped = 0

    def remember_origin(
        self, sequence: LiveSequence, source: StoredSource, stored: StoredState
    ) -> None:
        """A longer state of the same sequence will replace this entry, until it is cut."""
        if source.store is self.saved:
            sequence.saved_key, sequence.saved_length = source.key, len(sequence.tokens)
        elif all(pin.offloaded_key != source.key for pin in self.pins):
            sequence.offloaded_key, sequence.offloaded_length = source.key, len(stored.tokens)
