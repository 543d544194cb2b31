"""``llm.cache``, a server's conversations and scoring, where the model is in another process.

Each is the class that works within a process, but for what it does in the engine's thread: the
other process has the same class, and is asked to do it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NoReturn

from llama_py.api.isolation.isolated import IsolatedModel
from llama_py.api.isolation.port import IsolatedPort
from llama_py.api.kept.conversations import Conversations, HeldConversation, Which
from llama_py.api.kept.model_cache import CacheReport, ModelCache, Prewarmed, check_store
from llama_py.api.kept.states import LlamaState, SnapshotInfo, States
from llama_py.api.loading import LoadedModel
from llama_py.api.runtime import Runtime
from llama_py.api.scoring.scoring import Score, ScoringJob
from llama_py.engine.request import Prompt
from llama_py.errors import IsolationError, ParameterTypeError, shown
from llama_py.states.disk import LlamaDiskCache
from llama_py.states.state import StoredState
from llama_py.states.store import StateStore

__all__ = ["IsolatedCache", "IsolatedConversations", "IsolatedScoring"]


class _IsolatedStates(States):
    """States of conversations, which the other process takes out and brings back."""

    def of_prompt(self, prompt: Prompt, session: str) -> StoredState | None:
        """See ``States.of_prompt``."""
        found: StoredState | None = _port(self._loaded).ask("of_prompt", prompt, session)
        return found

    def mostly_cached(self, prompt: Prompt) -> bool:
        """See ``States.mostly_cached``."""
        return bool(_port(self._loaded).ask("mostly_cached", prompt))

    def restore_conversation(self, stored: StoredState, session: str) -> None:
        """See ``States.restore_conversation``."""
        _port(self._loaded).ask("bring_in", stored, session)


class IsolatedCache(ModelCache):
    """``llm.cache`` of a model in a process of its own."""

    def __init__(self, runtime: Runtime, slots: int) -> None:
        super().__init__(runtime, slots)
        self._states = _IsolatedStates(runtime.loaded, runtime.by_hand, runtime.last)

    @property
    def _there(self) -> IsolatedPort:
        return _port(self._runtime.loaded)

    def report(self) -> CacheReport:
        """Cells, sequences, and bytes in each tier."""
        found: CacheReport = self._there.ask("cache.report")
        return found

    def set_store(self, store: StateStore | None) -> None:
        """Have the other process open the same directory, and use it.

        Raises:
            IsolationError: it is a store in this process's memory.
            ParameterTypeError: it is not a store.
        """
        check_store(store)
        if store is not None and not isinstance(store, LlamaDiskCache):
            raise IsolationError(
                f"{type(store).__name__} keeps conversations in this process, and the model's own "
                "would lose them with itself; use a LlamaDiskCache, or load it without isolate=True"
            )
        port = self._there
        port.check_process()
        port.refuse_callbacks()
        port.process.remember("set_store", store)

    def flush(self, timeout: float = 10.0) -> bool:
        """See ``ModelCache.flush``."""
        return bool(self._there.ask("cache.flush", timeout))

    def pin(self, what: Prewarmed | str) -> None:
        """See ``ModelCache.pin``; snapshots have no names here."""
        self._there.ask("cache.pin", _tokens_of(what))

    def unpin(self, what: Prewarmed | str | None = None) -> None:
        """See ``ModelCache.unpin``."""
        self._there.ask("cache.unpin", None if what is None else _tokens_of(what))

    def reset(self, *, cancel: bool = False) -> None:
        """See ``ModelCache.reset``."""
        self._there.ask("cache.reset", cancel)
        self._runtime.last.forget()

    def save_state(self) -> LlamaState:
        """Not here."""
        _refuse("save_state()")

    def load_state(self, state: LlamaState) -> None:
        """Not here."""
        _refuse("load_state()")

    def snapshot(self, name: str, length: int | None = None) -> SnapshotInfo:
        """Not here."""
        _refuse("snapshot()")

    def restore(self, name: str) -> SnapshotInfo:
        """Not here."""
        _refuse("restore()")


class IsolatedConversations(Conversations):
    """What a model in a process of its own holds of conversations."""

    def __init__(self, loaded: LoadedModel) -> None:
        super().__init__(loaded)
        self._port = _port(loaded)

    @property
    def drafts(self) -> bool:
        """Whether requests that say nothing about drafts have some."""
        return bool(self._port.ask("conversations", "drafts"))

    def held(self) -> list[HeldConversation]:
        """The sequences in memory, by number."""
        found: list[HeldConversation] = self._port.ask("conversations", "held")
        return found

    def in_memory(self, prompts: Sequence[tuple[Sequence[int], Hashable | None]]) -> list[int]:
        """See ``Conversations.in_memory``."""
        found: list[int] = self._port.ask("conversations", "in_memory", prompts)
        return found

    def export(
        self, which: Which, namespace: Hashable | None = None, length: int | None = None
    ) -> StoredState:
        """See ``Conversations.export``."""
        found: StoredState = self._port.ask("conversations", "export", which, namespace, length)
        return found

    def bring_in(
        self, state: StoredState, session: str | None, namespace: Hashable | None = None
    ) -> None:
        """See ``Conversations.bring_in``."""
        self._port.ask("conversations", "bring_in", state, session, namespace)

    def forget(self, which: Which, namespace: Hashable | None = None) -> int:
        """See ``Conversations.forget``."""
        return int(self._port.ask("conversations", "forget", which, namespace))

    def rename(self, old: str, new: str, namespace: Hashable | None = None) -> None:
        """See ``Conversations.rename``."""
        self._port.ask("conversations", "rename", old, new, namespace)

    def save(self, session: str, namespace: Hashable | None = None) -> int:
        """See ``Conversations.save``."""
        return int(self._port.ask("conversations", "save", session, namespace))


class IsolatedScoring(ScoringJob):
    """One call of ``score``: read here, computed in the other process."""

    def run(self) -> list[Score]:
        """See ``Llama.score``."""
        prefix, given = self._read()
        found = _port(self._runtime.loaded).ask(
            "score", [*prefix.tokens], [[*each] for each in given.tokens], self._time_left()
        )
        return [
            Score.of(tokens, logprobs, text)
            for tokens, logprobs, text in zip(given.tokens, found, given.texts, strict=True)
        ]


def _port(loaded: LoadedModel) -> IsolatedPort:
    if not isinstance(loaded, IsolatedModel):
        raise IsolationError("this model is in this process")
    return loaded.port


def _tokens_of(what: Any) -> tuple[int, ...]:
    if isinstance(what, Prewarmed):
        return what.tokens
    if isinstance(what, str):
        _refuse("pinning a snapshot")
    raise ParameterTypeError(f"what must be what prewarm() returned, not {shown(what)}")


def _refuse(what: str) -> NoReturn:
    raise IsolationError(
        f"{what} is not available for a model in a process of its own: set a LlamaDiskCache "
        "(cache.set_store), which keeps every conversation, or load it without isolate=True"
    )
