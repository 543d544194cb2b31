"""Where the states of sequences live when they are not in the context: memory, then disk.

``LlamaRAMCache`` and ``LlamaDiskCache`` are what ``llm.set_cache(...)`` takes, and the tiers behind
the prefix tree. The parts: ``state.py`` (what is stored, and the protocol), ``catalog.py`` (how it
is found), ``ram.py``, and ``disk.py`` with ``ledger.py`` (which entries exist) and ``payload.py``
(an entry's file).
"""

from __future__ import annotations

from llama_py.memory.state import (
    Checkpoint,
    EntryInfo,
    Key,
    PendingPut,
    StateStore,
    StoredMatch,
    StoredState,
    StoreStats,
)
from llama_py.storage.disk import LlamaDiskCache
from llama_py.storage.ram import BaseLlamaCache, LlamaRAMCache

#: llama-cpp-python's name for the default cache.
LlamaCache = LlamaRAMCache

__all__ = [
    "BaseLlamaCache",
    "Checkpoint",
    "EntryInfo",
    "Key",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaRAMCache",
    "PendingPut",
    "StateStore",
    "StoreStats",
    "StoredMatch",
    "StoredState",
]
