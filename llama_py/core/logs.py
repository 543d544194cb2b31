"""llama.cpp's log, routed to ``logging`` (logger ``llama_py``).

The C logger is one global callback. It is installed before anything can speak; what it says goes
to the logger at the level that llama.cpp gives it. llama.cpp reports *why* a call failed only
there, so whoever calls something that may fail collects the error lines of that call
(``ErrorLines``), and of no other: other threads may be failing at the same time, and other models
failed before.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
from collections import deque
from typing import Any

from typing_extensions import Self

from llama_py import forks
from llama_py._native import chat_h, ggml_h

__all__ = ["LOGGER", "ErrorLines", "Printing", "install", "install_for_media"]

LOGGER = logging.getLogger("llama_py")
LOGGER.addHandler(logging.NullHandler())

_LEVELS = {
    ggml_h.GGML_LOG_LEVEL_DEBUG: logging.DEBUG,
    # llama.cpp is talkative: its "info" is what a developer of a model format wants to know.
    ggml_h.GGML_LOG_LEVEL_INFO: logging.DEBUG,
    ggml_h.GGML_LOG_LEVEL_WARN: logging.INFO,
    ggml_h.GGML_LOG_LEVEL_ERROR: logging.ERROR,
}

#: Seconds until an exception that must not pass through C is raised in Python.
_SOON = 0.01
#: Characters of a message that are kept: some quote what they complain about, whole.
_LONGEST = 2000


class ErrorLines:
    """The last error lines of what this thread asks of llama.cpp inside of a ``with`` block.

    ``str()`` of it is the lines, joined; empty if there are none. What nobody wants to see of the
    others is dropped in C meanwhile: where another thread uses the interpreter, each line would
    wait for it.
    """

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=12)
        self._outer: ErrorLines | None = None

    def append(self, line: str) -> None:
        """Add one."""
        self._lines.append(line)

    def __enter__(self) -> Self:
        # What an earlier call left unfinished is not the beginning of what this one says.
        _thread.partial = ""
        self._outer, _thread.errors = _thread.errors, self
        least = ggml_h.GGML_LOG_LEVEL_ERROR
        if _printing or LOGGER.isEnabledFor(logging.DEBUG):
            least = ggml_h.GGML_LOG_LEVEL_NONE
        elif LOGGER.isEnabledFor(logging.INFO):
            least = ggml_h.GGML_LOG_LEVEL_WARN
        chat_h.llama_py_log_least(least)
        return self

    def __exit__(self, *error: object) -> None:
        _thread.errors, self._outer = self._outer, None
        if _thread.errors is None:
            chat_h.llama_py_log_least(0)

    def __str__(self) -> str:
        return "; ".join(self._lines)


class Printing:
    """Prints the log on standard error until ``close()`` (what ``Llama(verbose=True)`` asks for).

    The program's own handlers and levels stay as they are.
    """

    def __init__(self) -> None:
        _printing[id(self)] = None

    def close(self) -> None:
        """Stop. Others may go on printing."""
        _printing.pop(id(self), None)


class _Thread(threading.local):
    """The line that one thread is writing.

    Attributes:
        errors: who collects error lines.
        partial: the beginning of a line, and its level.
    """

    def __init__(self) -> None:
        self.errors: ErrorLines | None = None
        self.partial = ""
        self.level = logging.DEBUG


_thread = _Thread()
#: Who wants the log printed.
_printing: dict[int, None] = {}
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
            receiver = chat_h.llama_py_log_receiver(_receive)
            chat_h.llama_py_log_to(receiver)
            _installed = callback, receiver  # C keeps the pointers: so must we
            _keep_interrupts()


def install_for_media() -> None:
    """Send libmtmd's log there as well. It loads the library."""
    from llama_py._native import mtmd_h

    install()
    mtmd_h.mtmd_helper_log_set(_installed[0], None)


def _receive(level: int, text: bytes | None, _data: Any) -> None:
    """The C callback. No exception passes through C: one that a signal raised here comes later."""
    try:
        _collect(level, text)
    except Exception:  # of a handler of the program's; logging tells of those itself
        LOGGER.debug("a message of llama.cpp was lost", exc_info=True)
    except BaseException as interrupt:
        _raise_later(type(interrupt))


def _keep_interrupts() -> None:
    """Do not lose a signal that strikes at the entry of ``_receive``, before its first line.

    ctypes only has such an exception printed, as it does with whatever a callback raises.
    """
    before = sys.unraisablehook

    def hook(lost: Any) -> None:
        trace, kind = lost.exc_traceback, lost.exc_type
        here = trace is not None and trace.tb_frame.f_code is _receive.__code__
        if here and not issubclass(kind, Exception):
            _raise_later(kind)
        else:
            before(lost)

    sys.unraisablehook = hook


def _collect(level: int, text: bytes | None) -> None:
    """Collect pieces of a line until it ends: llama.cpp logs progress dots one by one."""
    here = _thread
    if level != ggml_h.GGML_LOG_LEVEL_CONT:
        here.level = _LEVELS.get(level, logging.DEBUG)
    line = here.partial + (text or b"")[: 4 * _LONGEST].decode("utf-8", "replace")
    if not line.endswith("\n") and len(line) < _LONGEST:
        here.partial = line
        return
    here.partial = ""
    line = line.strip("\n").rstrip()[:_LONGEST]
    if here.level >= logging.ERROR:
        line = line.split("\n\n")[0]  # the rest quotes what was wrong (a grammar), whole
        if here.errors is not None:
            here.errors.append(line)
        # Callers turn these into exceptions, so they are not logged as errors a second time.
        _say(logging.INFO, line)
    elif line.strip(". "):
        _say(here.level, line)


def _say(level: int, line: str) -> None:
    if _printing and sys.stderr is not None:
        print(line, file=sys.stderr)
    LOGGER.log(level, "%s", line)


def _raise_later(interrupt: type[BaseException]) -> None:
    """Let this thread raise it when it is out of C again, which takes another thread."""
    target = ctypes.c_ulong(threading.get_ident())

    def deliver() -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(target, ctypes.py_object(interrupt))

    timer = threading.Timer(_SOON, deliver)
    timer.daemon = True
    timer.start()


def _forget_the_lock() -> None:
    """In a forked child: whoever held it is not there."""
    global _lock
    _lock = threading.Lock()


forks.after_in_child(_forget_the_lock)
