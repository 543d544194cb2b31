"""``Handle``: the life of one C object.

A C object is freed once: when its handle is closed or collected, and when nothing that needs it is
left. Two kinds of things need it: its *children*, which are made from it (a context of its model),
and *holders*, which use it for a while (a context its LoRA adapters, a thread that is inside of a
call). ``close()`` closes the children first, and so frees at once. A handle that is just forgotten
waits for its last child instead, so the order is right whatever order references are dropped in;
also when the garbage collector finds parents and children together, and finalizes them in any
order.

What is freed, and who needs it, is kept apart from the handles: a handle refers to its ``_Native``,
which knows those of its parents and children, but no handle. So handles are in no reference cycle,
and ``del`` frees at once, without the garbage collector. There is no lock, which a finalizer or a
fork could find taken: each change is a single operation on a dictionary or a list.

In a forked child nothing is freed: what is freed in C may wait for threads that are not there. Nor
is it when the interpreter ends: C would log through a callback into Python, which is being taken
apart, and the system takes everything back a moment later.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast

from typing_extensions import Self

from llama_py import forks
from llama_py.errors import ClosedError

__all__ = ["Handle"]

P = TypeVar("P", bound=ctypes.c_void_p)


class _Native(Generic[P]):
    """One C object, and what needs it.

    Attributes:
        pointer: None once it is closed; it may still be needed, and not yet freed.
        process: the one that it was made in.
    """

    __slots__ = ("_free", "_held", "_once", "_parents", "_users", "pointer", "process")

    def __init__(
        self, pointer: P, free: Callable[[P], None], parents: tuple[_Native[Any], ...]
    ) -> None:
        self.pointer: P | None = pointer
        self._free = free
        self._once = [pointer]  # who takes it out frees it
        self.process = forks.current()
        #: What needs this object, oldest first, and those of them that are its children.
        self._users: dict[object, _Native[Any] | None] = {"its handle": None}
        self._held: list[tuple[_Native[Any], object]] = []
        self._parents = parents
        for parent in parents:
            parent._users[self] = self

    def close(self) -> None:
        """Close the children, newest first, and let go of the object."""
        for child in reversed(list(self._users.values())):
            if child is not None:
                child.close()
        self.pointer = None
        self.release("its handle")

    def hold(self, holder: object) -> None:
        """Let it not be freed before ``release(holder)``."""
        self._users[holder] = None

    def release(self, user: object) -> None:
        """``user`` does not need it any more; it is freed if nobody does."""
        self._users.pop(user, None)
        if self._users:
            return
        try:
            pointer = self._once.pop()
        except IndexError:  # another thread was first
            return
        self.pointer = None
        if not (self.process.inherited or self.process.ending):
            self._free(pointer)
        self.keep(())
        for parent in self._parents:
            parent.release(self)

    def keep(self, needed: Iterable[_Native[Any]]) -> None:
        """Hold these and no others, until this object is freed."""
        new = [(other, object()) for other in needed]
        for other, holder in new:
            other.hold(holder)
        old, self._held = self._held, new
        for other, holder in old:
            other.release(holder)


class Handle(Generic[P]):
    """Owns one C object of pointer type ``P``.

    Args:
        pointer: the C object.
        free: the C function that frees it. It must not refer to the handle.
        parents: what it was made from: freed after it, and closed only together with it.

    Raises:
        ClosedError: a parent was closed meanwhile; the object was freed.
    """

    #: None until there is something to free: making it may fail.
    _native: _Native[P] | None = None

    def __init__(self, pointer: P, free: Callable[[P], None], *parents: Handle[Any]) -> None:
        natives = tuple(parent._native for parent in parents if parent._native is not None)
        self._native = _Native(pointer, free, natives)
        for parent in parents:
            if parent.closed:
                self.close()
                raise _closed(parent)

    @property
    def pointer(self) -> P:
        """The C pointer.

        Raises:
            ClosedError: after ``close()``.
            ForkedProcessError: in a child of the process that made it.
        """
        native = self._native
        pointer = native.pointer if native is not None else None
        if native is None or pointer is None:
            raise _closed(self)
        if native.process.inherited:
            raise forks.refuse(type(self).__name__)
        return pointer

    def check_open(self) -> None:
        """Raise as ``pointer`` does."""
        _ = self.pointer

    @contextmanager
    def in_use(self) -> Iterator[P]:
        """The C pointer, which another thread's ``close()`` does not free within the block.

        Raises:
            ClosedError, ForkedProcessError: as ``pointer`` does.
        """
        native, user = self._native, object()
        if native is None:
            raise _closed(self)
        native._users[user] = None  # ``hold``, without a call: this is on the way of each token
        try:
            pointer = native.pointer
            if pointer is None or native.process.inherited:
                self.check_open()
            yield cast("P", pointer)
        finally:
            native.release(user)

    @property
    def inherited(self) -> bool:
        """True in a child of the process that made it."""
        return self._native is not None and self._native.process.inherited

    @property
    def closed(self) -> bool:
        """True after ``close()``, and if it was never made."""
        return self._native is None or self._native.pointer is None

    def _keep(self, needed: Iterable[Handle[Any]]) -> None:
        """Let these not be freed before this object is, or before the next call of ``_keep``."""
        if self._native is not None:
            self._native.keep([each._native for each in needed if each._native is not None])

    def close(self) -> None:
        """Free the C object and everything made from it. Closing twice does nothing.

        What another thread is using (``in_use``) is freed as soon as it is not.
        """
        if self._native is not None:
            self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Not close(): children whose own handles are still there go on, and free this in the end.
        if self._native is not None:
            self._native.release("its handle")


def _closed(handle: Handle[Any]) -> ClosedError:
    return ClosedError(f"this {type(handle).__name__} is closed; make a new one")
