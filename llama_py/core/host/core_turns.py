"""``CoreTurns``: contexts that compute on the same cores, one after the other, each for as long.

Threads of two contexts that compute at once take the cores from each other in the middle of a
matrix product, where each waits for the slowest of its threads; together they are slower than in
turn. So while texts are embedded, whoever computes on the CPU takes a turn for each batch. Who has
had less time goes first. A context that generates needs many short turns, with a moment between two
of them, and would get one for each long batch of another: so one that has had more than its share
waits for a moment, for those who were here just now to come back.

Contexts that leave each other room, each with a part of the cores, have one share together, and
compute at once in its turns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from llama_py import forks

__all__ = ["TURNS", "CoreTurns", "Share"]

#: Seconds after a turn within which a context that generates comes back.
_LINGER = 0.004


class Share:
    """The time that one context has had, or several that compute at once.

    Attributes:
        used: seconds of computing; those who come back after a pause begin where the others are.
        waiting: threads of it that want a turn.
        inside: threads of it that compute.
        fresh: none of those who began its turn has ended yet.
        left: when one of its threads ended last, or began its turn.
    """

    __slots__ = ("__weakref__", "fresh", "inside", "left", "used", "waiting")

    def __init__(self) -> None:
        self.used = 0.0
        self.waiting = 0
        self.inside = 0
        self.fresh = False
        self.left = -1.0


class CoreTurns:
    """Lets the contexts of a process that share cores compute in turn.

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
        """Compute within the block, and nobody else does who has another share."""
        with self._changed:
            share.waiting += 1
            try:
                self._enter(share)
                while (pause := self._pause(share)) > 0:
                    self._changed.wait(pause)
                begins = self._holder is None
                share.inside += 1
                if begins:
                    self._holder, share.fresh, share.left = share, True, time.perf_counter()
                if begins and share.waiting > 1:
                    self._changed.notify_all()  # the others of this share may begin as well
            finally:
                share.waiting -= 1
        try:
            yield
        finally:
            with self._changed:
                now = time.perf_counter()
                share.used += now - share.left
                share.left = now
                share.fresh = False
                share.inside -= 1
                if not share.inside:
                    self._holder = None
                self._changed.notify_all()

    def _enter(self, share: Share) -> None:
        """Be among those who are here; not with time that was saved up while others computed."""
        if self._holder is share:
            return
        now = time.perf_counter()
        others = [
            each
            for each in self._present
            if each is not share and (each.waiting or each.inside or now - each.left < 1.0)
        ]
        if others and now - share.left > _LINGER:
            share.used = max(share.used, min(each.used for each in others))
        self._present = [*others, share]

    def _pause(self, share: Share) -> float:
        """Seconds to wait before looking again, 0 if it is this one's turn."""
        if self._holder is share:  # one more thread may begin in this turn, if nobody else waits
            others = any(other.waiting for other in self._present if other is not share)
            return 0.0 if share.fresh or not others else 1.0
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


#: Those of this process.
TURNS = CoreTurns()
forks.after_in_child(TURNS._renew)
