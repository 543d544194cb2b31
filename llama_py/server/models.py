"""``ModelPool``: the models that are served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from llama_py.api.llama import Llama
from llama_py.dialects.context import CallContext
from llama_py.server.settings import ModelSettings, Settings

__all__ = ["ModelPool", "ServedModel"]


class ServedModel:
    """A model that is loaded.

    Attributes:
        id: its name in responses.
        created: when it was loaded, in seconds since 1970.
        llama: the model.
    """

    def __init__(self, settings: ModelSettings, llama: Llama) -> None:
        self.settings = settings
        self.id = settings.id
        self.aliases = settings.aliases
        self.created = int(time.time())
        self.llama = llama

    @property
    def context(self) -> CallContext:
        """What parsing a request asks about it."""
        return self.llama._calls.defaults


class ModelPool:
    """Serves one model, under every name."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.models[0]
        self._model: ServedModel | None = None

    async def start(self) -> None:
        """Load the model."""
        await self._loaded()

    async def _loaded(self) -> ServedModel:
        if self._model is None:
            settings = self._settings
            llama = await asyncio.to_thread(Llama, settings.path, **settings.options)
            self._model = ServedModel(settings, llama)
        return self._model

    @asynccontextmanager
    async def lease(self, name: str | None) -> AsyncIterator[ServedModel]:
        """The model of this name; it stays loaded until the end of the block."""
        yield await self._loaded()

    def list(self) -> list[dict[str, Any]]:
        """What there is."""
        created = self._model.created if self._model else int(time.time())
        return [{"id": self._settings.id, "created": created, "aliases": self._settings.aliases}]

    async def close(self) -> None:
        """Free everything."""
        if self._model is not None:
            model, self._model = self._model, None
            await asyncio.to_thread(model.llama.close)
