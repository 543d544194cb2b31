"""``ProgressLine``: one line on standard error during long operations, erased at their end."""

from __future__ import annotations

import shutil
import sys
import threading
import time

from typing_extensions import Self

from llama_py.cli.sizes import shown_bytes

__all__ = ["ProgressLine"]

#: Nothing is shown for what is quicker than this, in seconds.
_PATIENCE = 0.4
_INTERVAL = 0.1
_BAR = 24


class ProgressLine:
    """Shows ``what`` after a moment, and a bar once the amount of work is known.

    Args:
        enabled: False shows nothing at all.
    """

    def __init__(self, what: str, *, enabled: bool) -> None:
        self._what = what
        self._enabled = enabled
        self._lock = threading.Lock()
        self._drawn_at = 0.0
        self._visible = False
        self._done = False
        self._start = time.monotonic()
        self._timer: threading.Timer | None = None
        #: When the first bytes came, and how many those were.
        self._pace = 0.0, 0

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        if self._enabled:
            self._timer = threading.Timer(_PATIENCE, self._draw, ("…",))
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()

    def fraction(self, done: float) -> None:
        """Show the fraction done, 0.0 to 1.0 (for ``Llama(progress=...)``)."""
        self._show(done, f"{done:4.0%}")

    def tokens(self, done: int, total: int) -> None:
        """Show how many of the tokens are done (for ``on_progress=...``)."""
        self._show(done / max(total, 1), f"{done}/{total} tokens")

    def inputs(self, done: int, total: int) -> None:
        """Show how many of the texts are done (for ``embed(progress=...)``)."""
        self._show(done / max(total, 1), f"{done}/{total}")

    def bytes(self, done: int, total: int) -> None:
        """Show how many bytes have come, how fast, and the time that is left."""
        now = time.monotonic()
        since, before = self._pace
        if not since or done < before:
            self._pace = now, done
        speed = (done - before) / (now - since) if since and now - since > 1 else 0.0
        left = f", {_duration((total - done) / speed)} left" if speed else ""
        pace = f", {shown_bytes(int(speed))}/s{left}" if speed else ""
        self._show(done / max(total, 1), f"{shown_bytes(done)} of {shown_bytes(total)}{pace}")

    def clear(self) -> None:
        """Erase the line, and show nothing from now on."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._done = True
            if self._visible:
                self._write("\r\x1b[K")
                self._visible = False

    def _show(self, fraction: float, text: str) -> None:
        now = time.monotonic()
        if self._enabled and now - max(self._start + _PATIENCE, self._drawn_at) > _INTERVAL:
            filled = round(_BAR * min(max(fraction, 0.0), 1.0))
            self._draw(f" [{'#' * filled}{'.' * (_BAR - filled)}] {text}")

    def _draw(self, rest: str) -> None:
        with self._lock:
            if self._done:
                return
            width = shutil.get_terminal_size().columns - 1
            self._write("\r\x1b[K" + (self._what + rest)[:width])
            self._visible = True
            self._drawn_at = time.monotonic()

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
