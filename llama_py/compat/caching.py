"""``CacheUse``: what ``Llama.set_cache`` was given, and how it is used."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from llama_py.errors import LlamaError

if TYPE_CHECKING:
    from llama_py.compat.llama_cpp.llama import Llama

__all__ = ["CacheUse"]


class CacheUse:
    """The cache of one model.

    Attributes:
        cache: what was set, or None.
    """

    def __init__(self, llm: Llama) -> None:
        self._llm = weakref.ref(llm)
        self.cache: Any = None

    def use(self, cache: Any) -> None:
        """Let the engine use the store of a cache of ours; others are asked as mappings."""
        llm = self._llm()
        if llm is not None:
            llm.native.set_cache(getattr(cache, "store", None))
        self.cache = cache

    @property
    def _mapping(self) -> Any:
        return None if hasattr(self.cache, "store") else self.cache

    def before(self, prompt: str | list[int]) -> None:
        """Bring back what a mapping has for a prompt."""
        llm = self._llm()
        if self._mapping is None or llm is None:
            return
        tokens = prompt if isinstance(prompt, list) else llm.tokenize(prompt.encode(), special=True)
        try:
            state = self._mapping[tokens]
        except KeyError:
            return
        llm.load_state(state)
        llm._before_call()

    def after(self) -> None:
        """Give a mapping the state of the completion that has ended."""
        llm, mapping = self._llm(), self._mapping
        if mapping is None or llm is None:
            return
        ended = llm.native._last.ended
        try:
            state = llm.save_state()
        except LlamaError:  # other calls have taken its place meanwhile
            return
        if ended is not None:
            mapping[[*ended.tokens, *ended.generated]] = state

    def after_stream(self, chunks: Iterator[Any]) -> Iterator[Any]:
        """The same chunks, and ``after`` at their end."""
        if self._mapping is None:
            return chunks
        return self._saving(chunks)

    def _saving(self, chunks: Iterator[Any]) -> Iterator[Any]:
        yield from chunks
        self.after()
