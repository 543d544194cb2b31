"""``ModelPool``: which models are in memory, and who may use them.

Requests *lease* a model. One that is not in memory is loaded for them, and others make room for it:
the idle one that was used longest ago, or, if all are busy, the one that was loaded longest ago, as
soon as its requests have ended. No model leaves while it is leased or being loaded.

Who cannot have a model at once waits in one queue, in the order of arrival. As soon as somebody
waits for a model that is not there, the one that is to make room takes a bounded number of further
requests, for a bounded time (its *turn*); those that come later wait behind. So a busy model cannot
starve another one, and two that alternate are not loaded for each single request.

Everything here happens in the thread of one event loop; only ``ModelLoader`` has threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from llama_py.api.llama import Llama
from llama_py.demo import demo_model_path
from llama_py.dialects.failures import RequestError
from llama_py.errors import ClosedError, LlamaError
from llama_py.server.config.settings import ModelSettings, Settings
from llama_py.server.pool import model_errors
from llama_py.server.pool.loader import ModelLoader
from llama_py.server.pool.places import Place, PoolCounters, Waiter
from llama_py.server.pool.served_model import ModelStatus, ServedModel
from llama_py.server.transport.extras import client_left

__all__ = ["ModelPool", "PoolCounters", "ServedModel"]

_log = logging.getLogger("llama_py.server")

_ANY = asyncio.FIRST_COMPLETED
#: Most requests that wait for models.
_MOST_WAITING = 512
#: How often somebody who would have waited too long looks whether a model still comes or goes.
_WHILE_MOVING = 0.1
#: The tag that a name has for Ollama's clients if it has none.
_LATEST = ":latest"


class ModelPool:
    """The models of the server. Without models in the settings, there is the bundled one."""

    def __init__(self, settings: Settings) -> None:
        self.counters = PoolCounters()
        offered = settings.models
        if not offered:
            path = demo_model_path()
            offered = (ModelSettings(id=Path(path).stem, path=path),)
        self._idle_seconds = settings.model_idle_seconds
        self._places = [Place(ServedModel(each, settings), self._idle_seconds) for each in offered]
        self._names = {
            name: place for place in self._places for name in (place.model.id, *place.model.aliases)
        }
        self._max_loaded = settings.max_loaded
        self._queue_timeout = settings.queue_timeout
        self._loader = ModelLoader()
        self._waiting: list[Waiter] = []
        #: Models that come or go, since when some do, and for how many seconds some did before.
        self._tasks: set[asyncio.Task[None]] = set()
        self._moving_since = self._moved = 0.0
        self._closed = False

    # -- looking -----------------------------------------------------------------------------------

    @property
    def models(self) -> list[ServedModel]:
        """All models, in the order of the configuration."""
        return [place.model for place in self._places]

    @property
    def loaded(self) -> list[ServedModel]:
        """The models in memory. They may be gone after the next ``await``."""
        return [place.model for place in self._having(ModelStatus.LOADED)]

    @property
    def loading(self) -> bool:
        """Whether one is being loaded."""
        return bool(self._having(ModelStatus.LOADING))

    @property
    def waiting(self) -> int:
        """Requests that wait for a model."""
        return len(self._waiting)

    def find(self, name: str | None) -> ServedModel:
        """The model of a name: an id, an alias, or a pattern among the aliases (``claude-*``).

        ``NAME:latest`` is ``NAME``. Of several patterns that fit, the longest one counts. No name
        is the first model; if there is only one, every name is that one.

        Raises:
            RequestError: there is no such model.
        """
        return self._place(name).model

    def is_ready(self, name: str | None) -> bool:
        """Whether a lease of the model would begin at once.

        Raises:
            RequestError: there is no such model.
        """
        place = self._place(name)
        return self._is_ready(place) and not place.model.is_restarting

    def _is_ready(self, place: Place) -> bool:
        return place.status is ModelStatus.LOADED and not self._waiting

    @property
    def restarting(self) -> list[ServedModel]:
        """Models in memory whose own processes died, and are being started again."""
        return [model for model in self.loaded if model.is_restarting]

    def _place(self, name: str | None) -> Place:
        if not name or len(self._places) == 1:
            return self._places[0]
        for each in (name, name.removesuffix(_LATEST), f"{name}{_LATEST}"):
            if each in self._names:
                return self._names[each]
        patterns = [each for each in self._names if "*" in each and fnmatchcase(name, each)]
        if patterns:
            return self._names[max(patterns, key=len)]
        raise model_errors.not_found(name, self.models)

    def _having(self, status: ModelStatus) -> list[Place]:
        return [place for place in self._places if place.status is status]

    # -- using -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the model, if there is only one; several are loaded when they are asked for.

        Raises:
            LlamaError: it cannot be loaded.
        """
        if len(self._places) > 1:
            return
        patience, self._queue_timeout = self._queue_timeout, None  # no client waits for this
        try:
            await self.load(None)
        except RequestError:
            raise self._places[0].error or ClosedError("the server was stopped") from None
        finally:
            self._queue_timeout = patience

    @asynccontextmanager
    async def lease(
        self, name: str | None, receive: Receive | None = None
    ) -> AsyncIterator[ServedModel]:
        """Use a model, which is loaded before and stays in memory meanwhile.

        Args:
            receive: of a request whose body was read: its client may leave while it waits.

        Raises:
            RequestError: there is no such model, it cannot be loaded, or there was no room for it
                within ``queue_timeout``.
            ClientDisconnect: the client left.
        """
        place = self._place(name)
        place.used = time.monotonic()
        if self._closed:
            raise model_errors.stopping()
        if self._is_ready(place):
            self._admit(place)
        else:
            pause = place.backoff.left()
            if place.error is not None and pause:
                raise model_errors.failed(place.model, place.error, pause)
            await self._wait(place, ModelStatus.LOADED, receive)
        try:
            # Wait while its own process is loaded again, and while that is left alone refuse.
            while (status := place.model.own_process) is not None and not status.ready:
                if status.pause and status.last_death is not None:
                    raise model_errors.keeps_dying(place.model, status.pause)
                await asyncio.sleep(_WHILE_MOVING)
            yield place.model
        finally:
            place.used = time.monotonic()
            self._release(place)

    @asynccontextmanager
    async def probe(self, name: str | None) -> AsyncIterator[ServedModel | None]:
        """Look at a model if it is in memory, without counting as use; None if it is not.

        Raises:
            RequestError: there is no such model.
        """
        place = self._place(name)
        if place.status is not ModelStatus.LOADED:
            yield None
            return
        place.leases += 1
        try:
            yield place.model
        finally:
            self._release(place)

    async def load(self, name: str | None, receive: Receive | None = None) -> ServedModel:
        """Load a model now; see ``lease``."""
        async with self.lease(name, receive) as model:
            return model

    async def unload(self, name: str | None, receive: Receive | None = None) -> ServedModel:
        """Unload a model, when the requests that use it have ended.

        Raises:
            RequestError: there is no such model, or it was in use for longer than
                ``queue_timeout``.
            ClientDisconnect: the client left.
        """
        place = self._place(name)
        if place.status is not ModelStatus.UNLOADED:
            await self._wait(place, ModelStatus.UNLOADED, receive)
        return place.model

    def keep(self, name: str | None, seconds: float | None) -> None:
        """Let a model stay in memory for so long after its next use; None: for ever.

        That holds until it is unloaded, or until somebody says something else.

        Raises:
            RequestError: there is no such model.
        """
        self._place(name).idle_seconds = seconds

    def left(self, name: str | None) -> float | None:
        """Seconds after which a model is unloaded if nobody uses it; None: it stays."""
        place = self._place(name)
        if place.idle_seconds is None:
            return None
        return max(0.0, place.used + place.idle_seconds - time.monotonic())

    def refuse_waiting(self) -> None:
        """Tell those who wait for a model that the server stops."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.refuse(model_errors.stopping())

    async def close(self) -> None:
        """Unload everything. Who waits gets an error, and so do calls in the models."""
        self._closed = True
        self.refuse_waiting()
        self._loader.stop()
        while self._tasks:
            await asyncio.wait(self._tasks)
        for place in self._having(ModelStatus.LOADED):
            self._expel(place)
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._loader.close()

    def _admit(self, place: Place) -> None:
        place.leases += 1
        place.stop_timer()

    def _release(self, place: Place) -> None:
        """Somebody does not use it any more."""
        place.leases -= 1
        if not place.leases:
            if place.status is ModelStatus.LOADED and place.model.lost:
                self._expel(place)  # the next request loads it, on what is there then
            self._serve()
            self._rest(place)

    # -- waiting -----------------------------------------------------------------------------------

    async def _wait(self, place: Place, wants: ModelStatus, receive: Receive | None = None) -> None:
        """Wait in the queue until a model is what it has to be."""
        if len(self._waiting) >= _MOST_WAITING:
            raise model_errors.too_many(_MOST_WAITING)
        loop = asyncio.get_running_loop()
        waiter = Waiter(place, wants, loop.create_future())
        self._waiting.append(waiter)
        self._serve()
        gone = loop.create_task(client_left(receive))
        try:
            await self._served_or_gone(waiter, gone)
            if waiter.served.done():
                waiter.served.result()
            elif gone.done():
                raise ClientDisconnect
            else:
                self.counters.timeouts += 1
                raise model_errors.too_long(place.model, self._queue_timeout)
        except BaseException:  # also if the task was cancelled
            # Nothing is left of somebody who waits no more, or not for what was given.
            if not waiter.served.done():
                self._waiting.remove(waiter)
                self._serve()  # those whom it was ahead of
            elif waiter.served.exception() is None and wants is ModelStatus.LOADED:
                self._release(place)
            raise
        finally:
            gone.cancel()

    async def _served_or_gone(self, waiter: Waiter, gone: asyncio.Task[None]) -> None:
        """Wait. The time in which models come and go does not count: nobody is in the way then."""
        limit = left = self._queue_timeout
        begun, moved = time.monotonic(), self._seconds_moving()
        while True:
            await asyncio.wait([waiter.served, gone], timeout=left, return_when=_ANY)
            if limit is None or waiter.served.done() or gone.done():
                return
            waited = time.monotonic() - begun - (self._seconds_moving() - moved)
            if waited >= limit and not self._tasks:
                return
            left = max(limit - waited, _WHILE_MOVING)

    def _seconds_moving(self) -> float:
        """For how long some model has been coming or going so far."""
        return self._moved + (time.monotonic() - self._moving_since if self._tasks else 0.0)

    def _serve(self) -> None:
        """Go through the queue, in the order of arrival, and give everybody what there is."""
        leaving: set[Place] = set()
        busy = bool(self._having(ModelStatus.LOADING))  # one is brought at a time
        for waiter in tuple(self._waiting):
            place = waiter.place
            if waiter.wants is ModelStatus.UNLOADED:
                if place.status is ModelStatus.UNLOADED:
                    self._satisfy(waiter)
                elif place.status is ModelStatus.LOADED:
                    self._send_away(place, leaving)
            elif place.status is ModelStatus.LOADED:
                if place not in leaving or place.takes_one_more():
                    self._admit(place)
                    self._satisfy(waiter)
            elif place.status is ModelStatus.UNLOADED and not busy:
                busy = True
                if self._make_room(place, leaving):
                    place.model.status = ModelStatus.LOADING
                    self._spawn(self._bring(place))
        for place in self._places:
            if place not in leaving:
                place.end_turn()

    def _make_room(self, place: Place, leaving: set[Place]) -> bool:
        """Whether a model can be loaded now; if not, another one is on its way out."""
        others = self._having(ModelStatus.LOADED)
        if self._having(ModelStatus.UNLOADING):
            return False  # what it takes will be free in a moment
        if not others or (len(others) < self._max_loaded and not place.cramped):
            return True
        idle = [other for other in others if not other.leases]
        if idle:
            goes = min(idle, key=lambda other: other.used)
            self.counters.evictions += 1
        else:
            goes = min(others, key=lambda other: other.loaded)
        self._send_away(goes, leaving)
        return False

    def _send_away(self, place: Place, leaving: set[Place]) -> None:
        """Unload a model now, or as soon as nobody uses it."""
        if not place.leases:
            self._expel(place)
        else:
            leaving.add(place)
            place.begin_turn()

    def _satisfy(self, waiter: Waiter) -> None:
        self._waiting.remove(waiter)
        waiter.served.set_result(None)

    # -- coming and going --------------------------------------------------------------------------

    async def _bring(self, place: Place) -> None:
        """Load a model, if there is memory for it."""
        begun = time.monotonic()
        try:
            if self.loaded and await self._loader.lacks_memory(place.model):
                place.cramped = True
                place.model.status = ModelStatus.UNLOADED
            else:
                place.model.enter(await self._loader.load(place.model))
                place.loaded = place.used = now = time.monotonic()
                place.error = None
                place.backoff.worked()
                self.counters.loads += 1
                self.counters.load_seconds += now - begun
                _log.info("loaded %s in %.1f s", place.model.id, now - begun)
        except Exception as error:  # whatever it is, somebody waits for the news
            known = isinstance(error, LlamaError)
            if self._closed and known:
                _log.info("%s is not loaded: the server stops", place.model.id)
            else:
                _log.error("%s cannot be loaded: %s", place.model.id, error, exc_info=not known)
            place.model.status, place.error = ModelStatus.UNLOADED, error
            place.model.problem = model_errors.reason_of(error, place.model)
            place.backoff.failed()
            self.counters.failures += 1
            for waiter in tuple(self._waiting):
                if waiter.place is place and waiter.wants is ModelStatus.LOADED:
                    self._waiting.remove(waiter)
                    waiter.refuse(model_errors.failed(place.model, error, place.backoff.left()))
        self._serve()
        self._rest(place)

    def _rest(self, place: Place) -> None:
        """Unload it when it has been idle for long enough."""
        place.stop_timer()
        idle = place.idle_seconds
        if idle is None or place.leases or place.status is not ModelStatus.LOADED:
            return
        left = place.used + idle - time.monotonic()
        if left <= 0:
            self._expel(place)
        else:
            place.timer = asyncio.get_running_loop().call_later(left, self._rest, place)

    def _expel(self, place: Place) -> None:
        place.stop_timer()
        place.idle_seconds = self._idle_seconds  # whatever was asked for held until now
        self.counters.unloads += 1
        self._spawn(self._close(place, place.model.leave()))

    async def _close(self, place: Place, llama: Llama) -> None:
        try:
            await self._loader.unload(llama)
        finally:
            place.model.status = ModelStatus.UNLOADED
            for each in self._places:
                each.cramped = False
            self._serve()
        _log.info("unloaded %s", place.model.id)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if not self._tasks:
            self._moving_since = time.monotonic()
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._came_or_went)

    def _came_or_went(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._moved += time.monotonic() - self._moving_since
