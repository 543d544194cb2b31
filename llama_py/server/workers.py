"""``FairWorkers``: a few threads that everybody's requests share, in turn.

Requests are checked, rendered and tokenized in them. A pool that takes one after the other lets a
single API key keep all of its threads for as long as it likes. Here each tenant has a queue, the
queues take turns, and one tenant has all threads but one at most. What is given up before it has
begun is never begun.
"""

from __future__ import annotations

import contextvars
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from llama_py.tenants import tenant

__all__ = ["FairWorkers"]

T = TypeVar("T")
_Work = tuple["Future[Any]", Callable[[], Any]]


class FairWorkers(Executor):
    """Threads that the jobs of all tenants share, in turn.

    Args:
        count: threads.
        name: what their names begin with.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, deque[_Work]] = OrderedDict()
        self._busy: dict[str, int] = {}
        self._closed = False
        self._threads: list[threading.Thread] = []

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Have a function run, as the work of the tenant that this task works for."""
        future: Future[T] = Future()
        context = contextvars.copy_context()
        with self._changed:
            if self._closed:
                raise RuntimeError("these workers are closed")
            queue = self._waiting.setdefault(tenant(), deque())
            queue.append((future, lambda: context.run(function, *args, **kwargs)))
            if len(self._threads) < self._count:
                name = f"{self._name}_{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take nothing more, and wait until all is done."""
        with self._changed:
            self._closed = True
            if cancel_futures:
                for queue in self._waiting.values():
                    for future, _ in queue:
                        future.cancel()
            self._changed.notify_all()
        for thread in self._threads if wait else ():
            thread.join()

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            whose, (future, function) = taken
            try:
                _run(future, function)
            finally:
                del future, function, taken
                self._done(whose)

    def _take(self) -> tuple[str, _Work] | None:
        """The next work, as soon as there is some; None at the end."""
        most = max(1, self._count - 1)  # of one tenant; where there are no tenants, one has all
        with self._changed:
            while True:
                whose = next(
                    (each for each in self._waiting if not each or self._busy.get(each, 0) < most),
                    None,
                )
                if whose is not None:
                    queue = self._waiting.pop(whose)
                    work = queue.popleft()
                    if queue:
                        self._waiting[whose] = queue  # the others are next
                    self._busy[whose] = self._busy.get(whose, 0) + 1
                    return whose, work
                if self._closed and not self._waiting:
                    return None
                self._changed.wait()

    def _done(self, whose: str) -> None:
        with self._changed:
            self._busy[whose] -= 1
            if not self._busy[whose]:
                del self._busy[whose]
            self._changed.notify_all()


def _run(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
