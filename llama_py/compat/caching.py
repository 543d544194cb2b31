"""``CacheUse``: what ``Llama.set_cache`` was given, and how it is used."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from llama_py.api.kept.states import LlamaState as NativeState
from llama_py.errors import LlamaError
from llama_py.memory.saving import WORTH_SAVING

__all__ = ["CacheUse"]


class _Llama(Protocol):
    """The part of ``llama_cpp.Llama`` that this module uses."""

    native: Any

    def tokenize(self, text: bytes, add_bos: bool = ..., special: bool = ...) -> list[int]: ...

    def save_state(self) -> Any: ...

    def load_state(self, state: Any) -> None: ...

    def _state_of(self, native: NativeState) -> Any: ...

    def _before_call(self) -> None: ...


def _watched(llm: _Llama) -> bool:
    """Whether a program has a ``load_state`` of its own, which it expects to be called.

    Otherwise the engine takes from the store what it can use, without this detour.
    """
    from llama_py.compat.byhand import ByHand

    own: object = type(llm).load_state
    return "load_state" in vars(llm) or own is not ByHand.load_state


class CacheUse:
    """The cache of one model.

    Attributes:
        cache: what was set, or None.
    """

    def __init__(self, llm: _Llama) -> None:
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
        if llm is None or self.cache is None or (self._mapping is None and not _watched(llm)):
            return
        tokens = prompt if isinstance(prompt, list) else llm.tokenize(prompt.encode(), special=True)
        state = self._state_for(llm, tokens)
        if state is not None:
            llm.load_state(state)
            llm._before_call()

    def _state_for(self, llm: _Llama, tokens: list[int]) -> Any:
        """What the cache has for a prompt, or None."""
        try:
            return self.cache[tokens]
        except KeyError:
            pass
        if self._mapping is not None:
            return None
        native, store = llm.native, self.cache.store
        found = store.find(np.array(tokens, np.int32), native.runtime.port.fingerprint)
        best = max(found, key=lambda each: each.matched, default=None)
        stored = None if best is None or not best.matched else store.get(best.key)
        return None if stored is None else llm._state_of(NativeState(stored))

    def after(self) -> None:
        """Give a mapping the state of the completion that has ended.

        One of ours gets what is too short for the engine to save it.
        """
        llm, mapping = self._llm(), self.cache
        if mapping is None or llm is None:
            return
        ended = llm.native.runtime.last.ended
        count = 0 if ended is None else len(ended.tokens) + len(ended.generated)
        if self._mapping is None and count > WORTH_SAVING:
            return
        try:
            state = llm.save_state()
        except LlamaError:  # other calls have taken its place meanwhile
            return
        if ended is not None:
            mapping[[*ended.tokens, *ended.generated]] = state

    def after_stream(self, chunks: Iterator[Any]) -> Iterator[Any]:
        """The same chunks, and ``after`` at their end."""
        if self.cache is None:
            return chunks
        return self._saving(chunks)

    def _saving(self, chunks: Iterator[Any]) -> Iterator[Any]:
        yield from chunks
        self.after()
