"""``Loader``: brings models into memory and out of it again, in threads of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from llama_py.api.llama import Llama
from llama_py.api.loaded import lacks_memory
from llama_py.errors import LlamaError
from llama_py.server.served import ServedModel

__all__ = ["Loader"]

_log = logging.getLogger("llama_py.server")
T = TypeVar("T")

#: One loads, and others may be closed meanwhile, each of which may have conversations to write.
_THREADS = 4


class Loader:
    """See the module. Its methods are called in one event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="llama_py-models")
        self._unwanted = threading.Event()

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
        return await self._in_a_thread(lambda: Llama(settings.path, **options))

    async def unload(self, llama: Llama) -> None:
        """Close a model. It is gone afterwards, whatever happens."""
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
