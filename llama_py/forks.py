"""How models and stores behave when the process forks.

A forked child has a single thread. Locks that the parent's other threads held are held for ever,
what they were changing stays half changed, and the threads that models compute with are not there.
So a model belongs to the process that loaded it: in a child, using it is a ``ForkedProcessError``,
and closing or collecting it frees nothing. A store goes over to the child whole, because a fork
waits until no thread is inside of it.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

from llama_py.errors import ForkedProcessError

__all__ = ["HeldOverForks", "Process", "after_in_child", "current", "hold", "refuse"]


class Process:
    """A process, for what belongs to it.

    An object, and not a number to compare with the current one: at the end of the interpreter,
    modules are emptied before the last things that remember it go.

    Attributes:
        inherited: this is a child of it.
        ending: its interpreter ends.
    """

    __slots__ = ("ending", "inherited")

    def __init__(self) -> None:
        self.inherited = self.ending = False


_this = Process()
_held: WeakSet[Any] = WeakSet()
#: One fork at a time, and what it waited for.
_forking = threading.RLock()
_acquired: list[Any] = []


class HeldOverForks(Protocol):
    """A fork waits for ``_lock``; ``_forked()`` is called in the child, before it is released."""

    _lock: Any

    def _forked(self) -> None: ...


def current() -> Process:
    """This process, to be remembered beside what belongs to it."""
    return _this


def refuse(what: str = "model") -> ForkedProcessError:
    """The error for something whose process is ``inherited``; to be raised."""
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
    global _this
    _this.inherited = True
    _this = Process()
    for thing in _acquired:
        thing._forked()
    _release()


@atexit.register
def _at_exit() -> None:
    _this.ending = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)
