"""``NativeLoad``: one run of ``llama_model_load_from_file`` that can be stopped.

Ctrl-C reaches Python in its main thread, and in the middle of a load that thread would be in C, or
in a callback of C, out of which no exception gets. So another thread loads. The main thread waits
and calls the caller's ``progress``; what is raised there, by a signal or by ``progress``, stops the
load at the next tensor. Before the first one, the system may be reading the whole file from disk
(``mmap``), which takes minutes and cannot be stopped. That is not waited for: the load then ends
by itself, and frees what it has.

While the main thread waits, it can do something else (``meanwhile``). So the callback for each
tensor is in C: one in Python would wait for the interpreter's lock each time. What can wait begins
only while the load, at its pace, has longer to go than that takes: it would end later otherwise.
"""

from __future__ import annotations

import ctypes
import queue
import threading
import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

from llama_py._native import chat_h
from llama_py._native import llama_h as C
from llama_py.core.host.interrupts import in_main_thread, run_interruptibly

__all__ = ["NativeLoad", "ProgressCallback"]

#: Seconds that a load which was stopped is waited for.
_PATIENCE = 1.0
#: Seconds that a piece of what can wait takes: importing Jinja, say.
_PIECE = 0.05

#: Called with the fraction loaded, 0.0 to 1.0; returning False stops the loading.
ProgressCallback = Callable[[float], bool | None]


class NativeLoad:
    """Loads a model in another thread, so that Ctrl-C and ``progress`` can stop it.

    Args:
        progress: called by the thread that calls ``run``.
        meanwhile: called by the thread that calls ``run``, one after the other, where another one
            loads: the first in any case, the others as long as it has enough to do.
    """

    def __init__(
        self,
        progress: ProgressCallback | None,
        meanwhile: Iterable[Callable[[], object]] = (),
    ) -> None:
        self._progress = progress
        self._meanwhile = iter(meanwhile)
        self._first = True
        self._begun = 0.0  # when ``run`` was called
        self._error: BaseException | None = None
        self._asker = threading.get_ident()
        self._questions: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._state = chat_h.llama_py_loading(
            step=0.0 if progress is not None else 1.0,  # ``progress`` is called for each tensor
            ask=chat_h.llama_py_loading_ask(self._on_progress),
        )

    @property
    def stopped(self) -> bool:
        """``progress`` returned False, or something was raised."""
        return bool(self._state.stopped)

    def attach(self, struct: C.llama_model_params) -> Any:
        """Let C ask whether it is to go on. What is returned is to be kept while it may."""
        struct.progress_callback = C.llama_progress_callback(_progress_address())
        struct.progress_callback_user_data = ctypes.addressof(self._state)
        return self._state

    def run(self, load: Callable[[], None]) -> None:
        """Call ``load``, which puts what it loaded where the caller finds it, whatever happens.

        It may go on for a while after an interrupt: what nobody holds by then must free itself.

        Raises:
            KeyboardInterrupt: (or what a signal handler raises) the load was stopped.
            Exception: what ``progress`` raised.
        """
        self._begun = time.perf_counter()
        if in_main_thread():
            work = partial(self._load, load)
            run_interruptibly(work, self._stop, self._attend, _PATIENCE)
        else:
            self._load(load)
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
            # It leads here: in a circle, it would keep all that this one sees alive.
            self._state.ask = chat_h.llama_py_loading_ask()
            self._questions.put(None)

    def _stop(self) -> None:
        self._state.stopped = True
        self._answers.put(None)

    def _attend(self, seconds: float) -> None:
        """In the thread that asked for the load: do what is next, and answer a question."""
        work = next(self._meanwhile, None) if self._has_time() else None
        if work is not None:
            work()
            seconds = 0.0
        try:
            done = self._questions.get(timeout=seconds)
        except queue.Empty:
            return
        if done is not None:
            self._ask(done)
            self._answers.put(None)

    def _has_time(self) -> bool:
        """Whether something else can be done meanwhile, as far as the pace until now tells."""
        first, self._first = self._first, False
        done, passed = self._state.done, time.perf_counter() - self._begun
        return first or passed * (1.0 - done) > _PIECE * done

    def _ask(self, done: float) -> None:
        if self._progress is not None and self._progress(done) is False:
            self._state.stopped = True

    def _on_progress(self, done: float, _data: Any) -> bool:
        """The C callback, in the thread that loads. Nothing may be raised here."""
        try:
            if self._progress is not None and not self.stopped:
                if threading.get_ident() == self._asker:
                    self._ask(done)
                else:
                    self._questions.put(done)
                    self._answers.get()
        except BaseException as error:
            self._error, self._state.stopped = error, True
        return not self.stopped


@cache
def _progress_address() -> int:
    """Where the callback in C is. A cast leaves something to the collector, so it is done once."""
    function: Any = chat_h.llama_py_loading_progress
    return ctypes.cast(function, ctypes.c_void_p).value or 0
