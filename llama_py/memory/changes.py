"""``changing``: tells afterwards whether a change of the bookkeeping was interrupted.

Ctrl-C may come between any two instructions, also where memory and bookkeeping disagree for a
moment. Undoing half of a change in every such place is hopeless; what can be done is to know of it,
and to begin anew (``SequencePool.start_over``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

__all__ = ["changing"]

P = ParamSpec("P")
R = TypeVar("R")


class _Changeable(Protocol):
    suspect: bool


S = TypeVar("S", bound=_Changeable)


def changing(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let ``suspect`` stay True if the method was interrupted. Its own errors are no interrupts."""

    @wraps(method)
    def change(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        before, self.suspect = self.suspect, True
        try:
            result = method(self, *args, **kwargs)
        except Exception:
            self.suspect = before
            raise
        self.suspect = before
        return result

    return change  # type: ignore[return-value]
