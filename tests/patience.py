"""How long tests wait for what happens at once on an idle machine."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["PATIENCE", "in_the_end"]

#: Seconds. A machine that is busy with other things may need that long; nothing waits longer than
#: it has to, and no test measures with it.
PATIENCE = 240.0


def in_the_end(
    attempt: Callable[[], None],
    *spoiled: type[Exception],
    tries: int = 20,
) -> None:
    """Try what a busy machine may spoil, until it passes.

    For what must come within a short limit. It is as strict as one attempt where the fault that is
    looked for spoils each of them, as one does that takes the wrong time for the limit.

    Args:
        spoiled: what an attempt may raise beside errors of assertions and of the system.
    """
    caught: tuple[type[Exception], ...] = (AssertionError, OSError, *spoiled)
    for _ in range(tries - 1):
        try:
            return attempt()
        except caught:
            continue
    return attempt()
