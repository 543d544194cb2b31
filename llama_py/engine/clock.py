"""``Clock``: what time it is, and how long steps took, for whatever the engine decides by time."""

from __future__ import annotations

import time

__all__ = ["Clock"]


class Clock:
    """The machine's clock. An engine may be given another one, with steps that take what it says.

    Calling it gives seconds since some moment, like ``time.perf_counter()``.
    """

    def __call__(self) -> float:
        return time.perf_counter()

    def took(self, rows: int, seconds: float) -> float:
        """How long a step took.

        Args:
            rows: of that step; 0: it was not computing, but choosing tokens.
            seconds: that were measured.
        """
        return seconds

    def within(self, rows: int, most: int, seconds: float) -> tuple[int, float]:
        """How long C may go on making steps of this many rows, without anybody asking this clock.

        Args:
            most, seconds: the steps, and the seconds of this clock, that it may take.

        Returns:
            The same, in seconds of the machine's clock.
        """
        return most, seconds
