"""``NativeLoad``: one run of ``llama_model_load_from_file`` that can be stopped.

Ctrl-C reaches Python in its main thread, and in the middle of a load that thread would be in C, or
in a callback of C, out of which no exception gets. So another thread loads. The main thread waits
and calls the caller's ``progress``; what is raised there, by a signal or by ``progress``, stops the
load at the next tensor. Before the first one, the system may be reading the whole file from disk
(``mmap``), which takes minutes and cannot be stopped. That is not waited for: the load then ends
by itself, and frees what it has.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from llama_py._native import llama_h as C
from llama_py.core.host.interrupts import in_main_thread, run_interruptibly

__all__ = ["NativeLoad", "ProgressCallback"]

#: Seconds that a load which was stopped is waited for.
_PATIENCE = 1.0

#: Called with the fraction loaded, 0.0 to 1.0; returning False stops the loading.
ProgressCallback = Callable[[float], bool | None]


class NativeLoad:
    """Loads a model in another thread, so that Ctrl-C and ``progress`` can stop it.

    Args:
        progress: called by the thread that calls ``run``.
        note: called with the same, before it, by the thread that loads.

    Attributes:
        stopped: ``progress`` returned False.
    """

    def __init__(
        self, progress: ProgressCallback | None, note: Callable[[float], None] | None = None
    ) -> None:
        self.stopped = False
        self._note = note
        self._progress = progress
        self._error: BaseException | None = None
        self._asker = threading.get_ident()
        self._questions: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[None] = queue.SimpleQueue()

    def callback(self) -> Any:
        """For ``llama_model_params.progress_callback``; keep it while C may call it."""
        return C.llama_progress_callback(self._on_progress)

    def run(self, load: Callable[[], None]) -> None:
        """Call ``load``, which puts what it loaded where the caller finds it, whatever happens.

        It may go on for a while after an interrupt: what nobody holds by then must free itself.

        Raises:
            KeyboardInterrupt: (or what a signal handler raises) the load was stopped.
            Exception: what ``progress`` raised.
        """
        if in_main_thread():
            work = partial(self._load, load)
            run_interruptibly(work, self._stop, self._attend, _PATIENCE)
        else:
            load()
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # whose traceback leads here: in a circle, it would keep all it sees alive

    def _load(self, load: Callable[[], None]) -> None:
        try:
            load()
        finally:
            self._questions.put(None)

    def _stop(self) -> None:
        self.stopped = True
        self._answers.put(None)

    def _attend(self, seconds: float) -> None:
        """In the thread that asked for the load: answer a question, if there is one."""
        try:
            done = self._questions.get(timeout=seconds)
        except queue.Empty:
            return
        if done is not None:
            self._ask(done)
            self._answers.put(None)

    def _ask(self, done: float) -> None:
        if self._progress is not None and self._progress(done) is False:
            self.stopped = True

    def _on_progress(self, done: float, _data: Any) -> bool:
        """The C callback, in the thread that loads. Nothing may be raised here."""
        try:
            if self._note is not None:
                self._note(done)
            if self._progress is not None and not self.stopped:
                if threading.get_ident() == self._asker:
                    self._ask(done)
                else:
                    self._questions.put(done)
                    self._answers.get()
        except BaseException as error:
            self._error, self.stopped = error, True
        return not self.stopped
