"""``FairWorkers``: a few threads that everybody's requests share, in turn.

Requests are checked, rendered and tokenized in them. A pool that takes one after the other lets a
single API key keep all of its threads for as long as it likes. Here each tenant has a queue, the
queues take turns, and one tenant has all threads but one at most. The same holds for one model,
whose process may hang. What is given up before it has begun is never begun.
"""

from __future__ import annotations

import contextvars
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from llama_py.tenants import tenant

__all__ = ["FairWorkers"]

T = TypeVar("T")
_Work = tuple["Future[Any]", Callable[[], Any]]
#: A tenant, and a model; "" is nobody in particular.
_Whose = tuple[str, str]


class FairWorkers(Executor):
    """Threads that the jobs of all tenants share, in turn.

    Args:
        count: threads.
        name: what their names begin with.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._changed = threading.Condition()
        self._waiting: OrderedDict[_Whose, deque[_Work]] = OrderedDict()
        #: Threads that work for a tenant (0, name), and for a model (1, name).
        self._busy: Counter[tuple[int, str]] = Counter()
        self._closed = False
        self._threads: list[threading.Thread] = []

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Have a function run, as the work of the tenant that this task works for."""
        return self.submit_for("", lambda: function(*args, **kwargs))

    def submit_for(self, model: str, function: Callable[[], T]) -> Future[T]:
        """The same for a function that may wait for a model; "" for none, or the only one."""
        future: Future[T] = Future()
        context = contextvars.copy_context()
        with self._changed:
            if self._closed:
                raise RuntimeError("these workers are closed")
            queue = self._waiting.setdefault((tenant(), model), deque())
            queue.append((future, lambda: context.run(function)))
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

    def _may(self, whose: _Whose) -> bool:
        """Whether one more thread may work for them; where there are no tenants, one has all."""
        most = max(1, self._count - 1)
        return all(not name or self._busy[kind, name] < most for kind, name in enumerate(whose))

    def _take(self) -> tuple[_Whose, _Work] | None:
        """The next work, as soon as there is some; None at the end."""
        with self._changed:
            while True:
                whose = next(filter(self._may, self._waiting), None)
                if whose is not None:
                    queue = self._waiting.pop(whose)
                    work = queue.popleft()
                    if queue:
                        self._waiting[whose] = queue  # the others are next
                    self._busy.update(enumerate(whose))
                    return whose, work
                if self._closed and not self._waiting:
                    return None
                self._changed.wait()

    def _done(self, whose: _Whose) -> None:
        with self._changed:
            self._busy -= Counter(enumerate(whose))  # and forget those that are at 0
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
