"""``EngineLock``: lets one thread at a time touch the context, and keeps the drivers polite.

A thread that drives takes the lock again and again, with microseconds in between; a plain lock
would keep everybody else out for seconds. So a driver asks with ``try_enter``, which refuses while
anyone else waits. What is left to do when a thread lets go (requests that were cancelled meanwhile,
threads to be woken) is done by the outermost ``__exit__``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["EngineLock"]


class EngineLock:
    """Re-entrant; used with ``with``, or by drivers with ``try_enter``.

    Args:
        before: called by the outermost exit while the lock is still held.
        after: called by the outermost exit when the lock is free.
    """

    def __init__(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._lock = threading.RLock()
        self._waiters: set[int] = set()
        self._depth = 0
        self._before = before
        self._after = after

    def __enter__(self) -> None:
        if self.mine:
            self._depth += 1
            return
        try:
            if not self._lock.acquire(blocking=False):
                self._wait()
        except BaseException:
            self.undo()
            raise
        self._depth = 1

    @property
    def mine(self) -> bool:
        """True if the calling thread holds it."""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]

    def undo(self) -> None:
        """Let go, after a Ctrl-C that came while the lock was being taken or left."""
        if self.mine:
            self._depth = 0
            self._lock.release()

    def _wait(self) -> None:
        me = threading.get_ident()
        self._waiters.add(me)
        try:
            self._lock.acquire()
        finally:
            self._waiters.discard(me)

    def try_enter(self) -> bool:
        """Take the lock if it is free and nobody waits for it. To be left with ``__exit__``."""
        if self._waiters:
            return False
        if self.mine:
            self._depth += 1
            return True
        try:
            if not self._lock.acquire(blocking=False):
                return False
        except BaseException:
            self.undo()
            raise
        self._depth = 1
        return True

    def __exit__(self, *_: object) -> None:
        if self._depth > 1:
            self._depth -= 1
            return
        try:
            self._before()
        finally:
            self._depth = 0
            self._lock.release()
        self._after()

    @property
    def wanted(self) -> bool:
        """True if a thread waits for the lock."""
        return bool(self._waiters)

    @property
    def idle(self) -> bool:
        """True if ``try_enter`` may succeed now."""
        return not self._depth and not self._waiters
