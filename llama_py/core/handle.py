"""``Handle``: the life of one C object.

A handle frees its C object exactly once: the pointer is forgotten first and freed second, so that
neither a second ``close()`` nor a garbage collection in the middle of one can free it again. A
parent closes its children before itself, and children hold a reference to their parent, so nothing
is freed while something that needs it is alive. The C function that frees is bound when the object
is made, because at interpreter shutdown modules may already be gone. In a forked child nothing is
freed: what is freed in C may wait for threads that are not there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from typing_extensions import Self

from llama_py import forks
from llama_py.errors import ClosedError

__all__ = ["Handle"]

P = TypeVar("P", bound=ctypes.c_void_p)


class Handle(Generic[P]):
    """Owns one C object of pointer type ``P``."""

    def __init__(self, pointer: P, free: Callable[[P], None]) -> None:
        self._pointer: P | None = pointer
        self._free = free
        self._process = forks.current()
        self._children: WeakSet[Handle[Any]] = WeakSet()

    @property
    def pointer(self) -> P:
        """The C pointer.

        Raises:
            ClosedError: after ``close()``.
            ForkedProcessError: in a child of the process that made it.
        """
        if self._pointer is None:
            raise ClosedError(f"this {type(self).__name__} is closed; make a new one")
        if self._process != forks.current():
            raise forks.refuse(type(self).__name__)
        return self._pointer

    @property
    def inherited(self) -> bool:
        """True in a child of the process that made it."""
        return self._process != forks.current()

    @property
    def closed(self) -> bool:
        """True after ``close()``."""
        return self._pointer is None

    def adopt(self, child: Handle[Any]) -> None:
        """Close ``child`` before this object is closed."""
        self._children.add(child)

    def close(self) -> None:
        """Free the C object and everything made from it. Closing twice does nothing."""
        if self.inherited:
            self._pointer = None
            return
        for child in list(self._children):
            child.close()
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            self._free(pointer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        # __init__ may have failed before there was anything to free.
        if getattr(self, "_pointer", None) is not None:
            self.close()
