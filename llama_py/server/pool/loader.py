"""``ModelLoader``: brings models into memory and out of it again, in threads of its own.

A model is ready when it has evaluated two tokens: the first ones of a context take many times as
long as others. What else is made when it is used for the first time, its compiled template above
all, is made right afterwards, beside the first requests.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from llama_py.api.llama import Llama
from llama_py.api.loading import lacks_memory
from llama_py.errors import LlamaError
from llama_py.server.pool.served_model import ServedModel

__all__ = ["ModelLoader"]

_log = logging.getLogger("llama_py.server")
T = TypeVar("T")

#: One loads, and others may be closed meanwhile, each of which may have conversations to write.
_THREADS = 4
#: Conversations of the shapes that most requests have.
_USUAL: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
)


class ModelLoader:
    """Loads and unloads models in threads. Its methods are called in one event loop.

    Attributes:
        preparing: models that are loaded, and whose first use is being prepared.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="llama_py-models")
        self._unwanted = threading.Event()
        self.preparing: dict[Llama, asyncio.Future[None]] = {}

    async def lacks_memory(self, model: ServedModel) -> bool:
        """Whether there is too little memory left for a model; rather True than False."""
        settings = model.settings
        return await self._in_a_thread(lambda: lacks_memory(settings.path, settings.options))

    async def load(self, model: ServedModel) -> Llama:
        """The model of a file, loaded with the options of the configuration.

        Raises:
            LlamaError: it cannot be loaded; nothing is left in memory.
        """
        settings = model.settings
        options: dict[str, Any] = {**settings.options, "progress": self._wanted}
        llama = await self._in_a_thread(lambda: _loaded(settings.path, options))
        if llama.runtime.port.generates:
            # Let a thread do what the first request would have to do.
            loop = asyncio.get_running_loop()
            done = loop.run_in_executor(self._threads, self._use_once, llama)
            self.preparing[llama] = done
            done.add_done_callback(lambda _: self.preparing.pop(llama, None))
        return llama

    def _use_once(self, llama: Llama) -> None:
        for messages in _USUAL:
            if self._unwanted.is_set():
                return
            try:
                llama.runtime.calls.count(llama.runtime.calls.prompt_of(messages, {}))
            except Exception as error:  # whoever asks for it will hear of it
                _log.debug("a conversation was not rendered ahead: %s", error)

    async def unload(self, llama: Llama) -> None:
        """Close a model. It is gone afterwards, whatever happens."""
        preparing = self.preparing.get(llama)
        if preparing is not None:
            await asyncio.wait([preparing])
        try:
            await self._in_a_thread(llama.close)
        except LlamaError as error:
            _log.warning("a model was not closed in order: %s", error)

    def stop(self) -> None:
        """Give up what is being loaded."""
        self._unwanted.set()

    async def close(self) -> None:
        """End the threads, when they are done."""
        self.stop()
        await asyncio.to_thread(self._threads.shutdown)

    def _wanted(self, done: float) -> bool:
        return not self._unwanted.is_set()

    async def _in_a_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


def _loaded(path: str, options: dict[str, Any]) -> Llama:
    llama = Llama(path, **options)
    try:
        llama.runtime.port.warm_up()
    except BaseException:
        llama.close()
        raise
    return llama
