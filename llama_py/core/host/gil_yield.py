"""``GilYield``: a long loop of pure Python that lets other threads run.

Whoever wants the interpreter's lock waits up to five milliseconds for it, and a stream asks for it
several times per token. A loop that lets go by itself costs the stream next to nothing.
"""

from __future__ import annotations

import time

__all__ = ["GilYield"]

#: Rounds of a loop between two breaks: about half a millisecond.
_ROUNDS = 200
_SECONDS = 5e-5


class GilYield:
    """Call it in every round; now and then it sleeps for a moment."""

    def __init__(self) -> None:
        self._left = _ROUNDS

    def __call__(self) -> None:
        self._left -= 1
        if not self._left:
            self._left = _ROUNDS
            time.sleep(_SECONDS)
