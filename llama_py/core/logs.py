"""llama.cpp's log, routed to ``logging`` (logger ``llama_py``).

The C logger is one global callback. It is installed when the first model is loaded; what it says
goes to the logger at the level that llama.cpp gives it, and the last error lines are kept, because
llama.cpp reports *why* a call failed only there.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any

from llama_py._native import ggml_h, llama_h

__all__ = ["LOGGER", "install", "last_errors", "show"]

LOGGER = logging.getLogger("llama_py")
LOGGER.addHandler(logging.NullHandler())

_LEVELS = {
    ggml_h.GGML_LOG_LEVEL_DEBUG: logging.DEBUG,
    # llama.cpp is talkative: its "info" is what a developer of a model format wants to know.
    ggml_h.GGML_LOG_LEVEL_INFO: logging.DEBUG,
    ggml_h.GGML_LOG_LEVEL_WARN: logging.INFO,
    ggml_h.GGML_LOG_LEVEL_ERROR: logging.ERROR,
}

_errors: deque[str] = deque(maxlen=12)
_partial: dict[int, str] = {}
_partial_level = logging.DEBUG
_installed: Any = None
_lock = threading.Lock()


def install() -> None:
    """Send llama.cpp's log to the logger from now on. Installing twice does nothing."""
    global _installed
    with _lock:
        if _installed is None:
            callback = ggml_h.ggml_log_callback(_receive)
            # First ggml's own: loading libllama may load backends, which talk already.
            ggml_h.ggml_log_set(callback, None)
            llama_h.llama_log_set(callback, None)
            _installed = callback  # C keeps the pointer: so must we


def show(level: int = logging.DEBUG) -> None:
    """Print the log on standard error (what ``Llama(verbose=True)`` asks for)."""
    if not any(type(handler) is logging.StreamHandler for handler in LOGGER.handlers):
        LOGGER.addHandler(logging.StreamHandler())
    LOGGER.setLevel(level)


def last_errors(clear: bool = True) -> str:
    """The latest error lines of llama.cpp, joined; forgets them."""
    text = "; ".join(_errors)
    if clear:
        _errors.clear()
    return text


def _receive(level: int, text: bytes | None, _data: Any) -> None:
    """Collect pieces of a line until it ends: llama.cpp logs progress dots one by one."""
    global _partial_level
    message = (text or b"").decode("utf-8", "replace")
    thread = threading.get_ident()
    if level != ggml_h.GGML_LOG_LEVEL_CONT:
        _partial_level = _LEVELS.get(level, logging.DEBUG)
    line = _partial.pop(thread, "") + message
    if not line.endswith("\n"):
        _partial[thread] = line
        return
    line = line.rstrip()
    if _partial_level >= logging.ERROR:
        _errors.append(line)
        # Callers turn these into exceptions, so they are not logged as errors a second time.
        LOGGER.info("%s", line)
    elif line.strip(". "):
        LOGGER.log(_partial_level, "%s", line)
