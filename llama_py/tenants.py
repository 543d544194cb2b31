"""The tenant whose work is being done, so that memories of it serve nobody else.

What was compiled for a schema, a list of tools or a grammar is kept, because the next request often
has the same. From how long a reply takes one could tell that somebody has asked with it before; so
in a server with several API keys each of them has memories of its own. ``Remembered`` is such a
memory: it is bounded for each tenant, so that nobody drives out what is another one's.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

__all__ = ["Remembered", "remembering", "tenant", "working_for"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])

_tenant: ContextVar[str] = ContextVar("llama_py_tenant", default="")
#: Tenants whose memories are kept; that of who was away longest goes.
MOST_TENANTS = 64


def tenant() -> str:
    """The tenant that this thread or task works for; "" is everybody."""
    return _tenant.get()


@contextmanager
def working_for(name: str) -> Iterator[None]:
    """Do the work of one tenant within the block."""
    token = _tenant.set(name)
    try:
        yield
    finally:
        _tenant.reset(token)


class Remembered(Generic[K, V]):
    """Values by key, for each tenant at most so many; the latest ones stay. Any thread may use it.

    Args:
        most: values of one tenant.
        most_bytes: of all tenants together. When there are more, the tenant that has most loses its
            oldest: nobody drives out another one's who has less.

    Attributes:
        found, missed: how often a value was there, and how often it was not.
        nbytes: of all values, as ``put`` was told.
    """

    def __init__(self, most: int, most_bytes: int | None = None) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._of: OrderedDict[str, _Own[K, V]] = OrderedDict()
        self.found = self.missed = self.nbytes = 0

    def get(self, key: K) -> V | None:
        """The value of a key for the tenant whose work is done, or None."""
        with self._lock:
            own = self._own().values
            known = own.get(key)
            if known is None:
                self.missed += 1
                return None
            own.move_to_end(key)
            self.found += 1
            return known[0]

    def put(self, key: K, value: V, nbytes: int = 0) -> None:
        """Remember a value."""
        with self._lock:
            own = self._own()
            if key in own.values:
                self._drop(own, key)
            own.values[key] = value, nbytes
            own.nbytes += nbytes
            self.nbytes += nbytes
            while len(own.values) > self._most:
                self._drop(own)
            while self._most_bytes is not None and self.nbytes > self._most_bytes:
                self._drop(max(self._of.values(), key=lambda each: each.nbytes))

    def __contains__(self, key: K) -> bool:
        with self._lock:
            return key in self._own().values

    def __len__(self) -> int:
        """How many there are of all tenants."""
        with self._lock:
            return sum(len(own.values) for own in self._of.values())

    def clear(self) -> None:
        """Forget everything of everybody."""
        with self._lock:
            self._of.clear()
            self.found = self.missed = self.nbytes = 0

    def _own(self) -> _Own[K, V]:
        name = tenant()
        own = self._of.get(name)
        if own is None:
            own = self._of[name] = _Own()
        self._of.move_to_end(name)
        while len(self._of) > MOST_TENANTS:
            self.nbytes -= self._of.popitem(last=False)[1].nbytes
        return own

    def _drop(self, own: _Own[K, V], key: K | None = None) -> None:
        """Forget one value, the oldest if none is named."""
        _, nbytes = own.values.popitem(last=False)[1] if key is None else own.values.pop(key)
        own.nbytes -= nbytes
        self.nbytes -= nbytes


class _Own(Generic[K, V]):
    """One tenant's remembered values, with their bytes."""

    def __init__(self) -> None:
        self.values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.nbytes = 0


def remembering(most: int) -> Callable[[F], F]:
    """As ``functools.lru_cache``, for each tenant. The function has ``memory``, which is asked.

    What it returns is never None, and is not remembered if it raises.
    """

    def decorate(function: F) -> F:
        memory: Remembered[Hashable, Any] = Remembered(most)

        @functools.wraps(function)
        def remembered(*args: Hashable, **kwargs: Hashable) -> Any:
            key = (args, tuple(sorted(kwargs.items())))
            value = memory.get(key)
            if value is None:
                value = function(*args, **kwargs)
                memory.put(key, value)
            return value

        remembered.memory = memory  # type: ignore[attr-defined]
        return remembered  # type: ignore[return-value]

    return decorate
