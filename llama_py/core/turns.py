"""``Turns``: contexts that compute on the same cores, one after the other, each for as long.

Threads of two contexts that compute at once take the cores from each other in the middle of a
matrix product, where each waits for the slowest of its threads; together they are slower than in
turn. So while texts are embedded, whoever computes on the CPU takes a turn for each batch. Who has
had less time goes first. A context that generates needs many short turns, with a moment between two
of them, and would get one for each long batch of another: so one that has had more than its share
waits for a moment, for those who were here just now to come back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from llama_py import forks

__all__ = ["TURNS", "Share", "Turns"]

#: Seconds after a turn within which a context that generates comes back.
_LINGER = 0.004


class Share:
    """What one context has had.

    Attributes:
        used: seconds of computing; those who come back after a pause begin where the others are.
        waiting: it wants a turn.
        left: when its last turn ended.
    """

    __slots__ = ("__weakref__", "left", "used", "waiting")

    def __init__(self) -> None:
        self.used = 0.0
        self.waiting = False
        self.left = -1.0


class Turns:
    """See the module.

    Attributes:
        sharing: how many embed just now; if none does, nobody needs to take turns.
    """

    def __init__(self) -> None:
        self.sharing = 0
        self._renew()

    def _renew(self) -> None:
        self.sharing = 0
        self._changed = threading.Condition()
        self._holder: Share | None = None
        self._present: list[Share] = []

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Let everybody take turns within the block."""
        with self._changed:
            self.sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self.sharing -= 1
                self._changed.notify_all()

    @contextmanager
    def turn(self, share: Share) -> Iterator[None]:
        """Compute within the block, and nobody else does."""
        self._take(share)
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._leave(share, time.perf_counter() - begun)

    def _take(self, share: Share) -> None:
        with self._changed:
            share.waiting = True
            try:
                self._enter(share)
                while (pause := self._pause(share)) > 0:
                    self._changed.wait(pause)
                self._holder = share
            finally:
                share.waiting = False

    def _enter(self, share: Share) -> None:
        """Be among those who are here; not with time that was saved up while others computed."""
        now = time.perf_counter()
        others = [
            each
            for each in self._present
            if each is not share and (each.waiting or now - each.left < 1.0)
        ]
        if others and now - share.left > _LINGER:
            share.used = max(share.used, min(each.used for each in others))
        self._present = [*others, share]

    def _pause(self, share: Share) -> float:
        """Seconds to wait before looking again, 0 if it is this one's turn."""
        if self._holder is not None:
            return 1.0
        now, pause = time.perf_counter(), 0.0
        for other in self._present:
            if other is share or other.used >= share.used:
                continue
            if other.waiting:
                return 1.0
            pause = max(pause, other.left + _LINGER - now)
        return pause

    def _leave(self, share: Share, seconds: float) -> None:
        with self._changed:
            share.used += seconds
            share.left = time.perf_counter()
            self._holder = None
            self._changed.notify_all()


#: Those of this process.
TURNS = Turns()
forks.after_in_child(TURNS._renew)
