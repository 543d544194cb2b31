"""Caches of llama-cpp-python: mappings of tokens to states.

``Llama.set_cache`` gives the engine the store behind a ``LlamaRAMCache`` or ``LlamaDiskCache``, so
that whole conversations come back without the detour of a mapping. What a caller puts in with
``cache[tokens] = state`` is kept beside it, in memory. A cache of another class is asked before
each completion and given the state after it, as llama-cpp-python does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from llama_py.api.llama_cpp_names import longest_token_prefix

if TYPE_CHECKING:
    from llama_py.compat.state import LlamaState

__all__ = ["BaseLlamaCache", "LlamaCache", "LlamaDiskCache", "LlamaRAMCache"]


class BaseLlamaCache(ABC):
    """A cache: ``cache[tokens]`` is the state whose tokens have the longest common beginning."""

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        self.capacity_bytes = capacity_bytes

    @property
    @abstractmethod
    def cache_size(self) -> int:
        """Bytes of all entries."""
        raise NotImplementedError

    def _find_longest_prefix_key(  # noqa: B027 - a cache may have none
        self, key: tuple[int, ...]
    ) -> tuple[int, ...] | None:
        """The key of the entry that is returned for ``key``, or None."""

    @abstractmethod
    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        raise NotImplementedError

    @abstractmethod
    def __contains__(self, key: Sequence[int]) -> bool:
        raise NotImplementedError

    @abstractmethod
    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        raise NotImplementedError


def longest(keys: Iterable[tuple[int, ...]], key: tuple[int, ...]) -> tuple[int, ...] | None:
    """The key with the longest common beginning, None if none has any."""
    best = max(keys, key=lambda each: longest_token_prefix(each, key), default=None)
    return best if best is not None and longest_token_prefix(best, key) else None


class _Stored(BaseLlamaCache):
    """A mapping, and the store that the engine uses.

    Attributes:
        store: for ``llama_py.Llama.set_cache``.
        cache_state: what callers have put in, the least recently used first.
    """

    def __init__(self, store: Any, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes)
        self.store = store
        self.cache_state: OrderedDict[tuple[int, ...], LlamaState] = OrderedDict()

    @property
    def cache_size(self) -> int:
        """Bytes of all entries."""
        used: int = self.store.cache_size
        return used + sum(state.llama_state_size for state in self.cache_state.values())

    def _find_longest_prefix_key(self, key: tuple[int, ...]) -> tuple[int, ...] | None:
        return longest(self.cache_state, tuple(key))

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        found = self._find_longest_prefix_key(tuple(key))
        if found is None:
            raise KeyError("Key not found")
        self.cache_state.move_to_end(found)
        return self.cache_state[found]

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._find_longest_prefix_key(tuple(key)) is not None

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        self.cache_state[tuple(key)] = value
        self.cache_state.move_to_end(tuple(key))
        while self.cache_state and self.cache_size > self.capacity_bytes:
            self.cache_state.popitem(last=False)


class LlamaRAMCache(_Stored):
    """States in the memory of the process."""

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        from llama_py.states.ram import LlamaRAMCache as Store

        super().__init__(Store(capacity_bytes), capacity_bytes)


class LlamaDiskCache(_Stored):
    """States on the disk, in a form of llama_py: nothing is pickled.

    What was put in with ``cache[tokens] = state`` is kept in memory only.
    """

    def __init__(
        self, cache_dir: str = ".cache/llama_cache", capacity_bytes: int = 2 << 30
    ) -> None:
        from llama_py.states.disk import LlamaDiskCache as Store

        super().__init__(Store(cache_dir, capacity_bytes), capacity_bytes)


LlamaCache = LlamaRAMCache
