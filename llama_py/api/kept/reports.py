"""``CacheReport``: what a model has in memory, and in its stores."""

from __future__ import annotations

from typing_extensions import TypedDict

from llama_py.api.port import LoadedModel
from llama_py.states.store import StateStore

__all__ = ["BytesReport", "CacheReport", "SequenceReport", "cache_report"]


class SequenceReport(TypedDict):
    """A sequence that a model has in memory.

    Attributes:
        sequence: its number in the context.
        tokens: what it holds; other sequences may share the beginning.
        bytes: of its state, as if nothing were shared.
        busy: a request is using it.
        pinned: it has something that was pinned.
        session: the ``session_id`` of the call that used it last.
    """

    sequence: int
    tokens: int
    bytes: int
    busy: bool
    pinned: bool
    session: str | None


class BytesReport(TypedDict):
    """Bytes in each tier.

    Attributes:
        context: of all sequences; what they share is counted for each.
        checkpoints: of states to go back to.
        parked: of idle conversations that were moved out of the context.
        saved: in the store that was set.
        snapshots: of named ones.
    """

    context: int
    checkpoints: int
    parked: int
    saved: int
    snapshots: int


class CacheReport(TypedDict):
    """A model's conversations in memory.

    Attributes:
        kind: of the memory; it decides what can be reused.
        cells: of the context; ``cells_used`` of them hold tokens.
        free_sequences: that no conversation has.
        checkpoints: how many there are.
    """

    kind: str
    cells: int
    cells_used: int
    sequences: list[SequenceReport]
    free_sequences: int
    bytes: BytesReport
    checkpoints: int


def cache_report(loaded: LoadedModel) -> CacheReport:
    """In the engine's thread. Its snapshots are not counted."""
    cache, context = loaded.cache, loaded.context
    stores, checkpoints = cache.stores, cache.index.checkpoints
    sequences: list[SequenceReport] = [
        {
            "sequence": sequence.number,
            "tokens": len(sequence.tokens),
            "bytes": context.state_size(sequence.number) if sequence.tokens else 0,
            "busy": sequence.busy,
            "pinned": sequence in stores.pins.keepers(),
            "session": sequence.session,
        }
        for sequence in cache.live
    ]
    return {
        "kind": cache.traits.kind.value,
        "cells": context.n_ctx,
        "cells_used": cache.live.cells_used(),
        "sequences": sequences,
        "free_sequences": context.n_seq_max - len(sequences),
        "bytes": {
            "context": sum(entry["bytes"] for entry in sequences),
            "checkpoints": checkpoints.used_bytes,
            "parked": _used(stores.offload_store),
            "saved": _used(stores.saved),
            "snapshots": 0,
        },
        "checkpoints": len(checkpoints),
    }


def _used(store: StateStore | None) -> int:
    return store.used_bytes if store is not None else 0
