"""How models and stores behave when the process forks.

A forked child has a single thread. Locks that the parent's other threads held are held for ever,
what they were changing stays half changed, and the threads that models compute with are not there.
So a model belongs to the process that loaded it: in a child, using it is a ``ForkedProcessError``,
and closing or collecting it frees nothing. A store goes over to the child whole, because a fork
waits until no thread is inside of it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

from llama_py.errors import ForkedProcessError

__all__ = ["HeldOverForks", "after_in_child", "current", "hold", "refuse"]

#: Forks between the process that imported this and this one: which process objects belong to.
_forks = 0
_held: WeakSet[Any] = WeakSet()
#: One fork at a time, and what it waited for.
_forking = threading.RLock()
_acquired: list[Any] = []


class HeldOverForks(Protocol):
    """A fork waits for ``_lock``; ``_forked()`` is called in the child, before it is released."""

    _lock: Any

    def _forked(self) -> None: ...


def current() -> int:
    """This process, as a number to remember beside what belongs to it."""
    return _forks


def refuse(what: str = "model") -> ForkedProcessError:
    """The error for something whose number is not ``current()``; to be raised."""
    return ForkedProcessError(
        f"this {what} was loaded in another process, from which this one (pid {os.getpid()}) was "
        "forked. It cannot be used here, because its threads stayed behind: load the model in this "
        'process, or start processes with the method "spawn" (multiprocessing.get_context("spawn"))'
    )


def hold(thing: HeldOverForks) -> None:
    """Let forks wait for a thing's lock, as long as it lives."""
    _held.add(thing)


def after_in_child(function: Callable[[], None]) -> None:
    """Call a function in every forked child, where there are forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def _before() -> None:
    _forking.acquire()
    for thing in list(_held):
        thing._lock.acquire()
        _acquired.append(thing)


def _release() -> None:
    while _acquired:
        _acquired.pop()._lock.release()
    _forking.release()


def _in_child() -> None:
    global _forks
    _forks += 1
    for thing in _acquired:
        thing._forked()
    _release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)
