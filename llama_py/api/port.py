"""``ModelPort``: a model, wherever it computes; ``LoadedModel``: one that computes in this process.

The other one is ``api.isolation.isolated.IsolatedModel``, whose context is in a process of its own.
The rest of the program asks a port, and cannot tell the two apart: the context, the cache and the
engine are behind it.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Protocol, TypeAlias, TypeVar

from typing_extensions import ParamSpec

from llama_py import forks
from llama_py.api.facts import ContextFacts, EngineReport, ProcessStatus
from llama_py.api.media import ModelMedia
from llama_py.core.context import Context
from llama_py.core.device_memory import noted
from llama_py.core.model import Model
from llama_py.engine.driver import Driver
from llama_py.engine.engine import Engine
from llama_py.engine.generation import resolve
from llama_py.engine.metrics import Metrics
from llama_py.engine.port import EnginePort
from llama_py.engine.request import GenerationRequest
from llama_py.errors import LlamaError, ParameterError
from llama_py.memory.cache import SequenceCache
from llama_py.memory.saving import Copying
from llama_py.memory.state_loader import StateLoad
from llama_py.memory.text_keys import TextKeys
from llama_py.params import ContextParams
from llama_py.states.state import StoredState
from llama_py.states.store import StateStore

if TYPE_CHECKING:
    from llama_py.core.lora import LoraAdapter
    from llama_py.embeddings.queue import EmbeddingQueue

__all__ = ["OPERATIONS", "Elsewhere", "Generating", "LoadedModel", "ModelPort", "operation"]

_log = logging.getLogger("llama_py")

#: Seconds that ``close``, or another store, waits for conversations to be written.
_PATIENCE = 10.0
#: Names of what can be asked of another process, as its class has it: ``Conversations.held``.
OPERATIONS: set[str] = set()

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="_HasPort")


class Elsewhere(Protocol):
    """Another process, which has the context."""

    def ask(self, name: str, *arguments: Any) -> Any:
        """Have one of ``OPERATIONS`` done there; what it returns, or raises."""


class _HasPort(Protocol):
    @property
    def port(self) -> ModelPort: ...


def operation(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Do what a method does where the context is: here, or by the same class in its process.

    Its arguments and its result cross between processes: the list in ``isolation.codec`` has their
    classes.
    """
    name, signature = method.__qualname__, inspect.signature(method)
    OPERATIONS.add(name)

    @functools.wraps(method)
    def run(self: S, /, *args: P.args, **named: P.kwargs) -> R:
        there = self.port.elsewhere
        if there is None:
            return method(self, *args, **named)
        bound = signature.bind(self, *args, **named)
        bound.apply_defaults()
        found: R = there.ask(name, *bound.args[1:])
        return found

    return run


class ModelPort(ABC):
    """A model that was loaded.

    It belongs to the process that loaded it: in a forked child, what computes raises
    ``ForkedProcessError``. With ``vocab_only`` there is a model and nothing else, and an encoder
    has no engine: what needs one raises ``ParameterError``.

    Attributes:
        media: its pictures and sounds; None: it is an encoder, or has no weights.
        elsewhere: who has the context; None: this process.
    """

    def __init__(
        self, model: Model, media: ModelMedia | None, elsewhere: Elsewhere | None = None
    ) -> None:
        self._model = model
        self.media = media
        self.elsewhere = elsewhere
        self._process = forks.current()

    # -- facts ----------------------------------------------------------------------------------

    @property
    def inherited(self) -> bool:
        """True in a child of the process that loaded it."""
        return self._process.inherited

    @property
    def model(self) -> Model:
        """The metadata and the vocabulary; the weights as well, unless they are elsewhere."""
        if self._process.inherited:
            raise forks.refuse()
        return self._model

    @property
    def vocab_only(self) -> bool:
        """True if there are no weights."""
        return False

    @property
    @abstractmethod
    def generates(self) -> bool:
        """True if there is a context to generate with."""

    @property
    def own_process(self) -> ProcessStatus | None:
        """How the process is that the model has of its own; None if it is in this one."""
        return None

    @property
    def lost(self) -> bool:
        """Whether a device that it is on was lost, as far as a call has found out."""
        watch = self._model.watch
        return watch is not None and bool(watch.lost)

    @property
    @abstractmethod
    def facts(self) -> ContextFacts:
        """The context's constant facts."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Everything that the bytes of a saved state depend on."""

    @property
    @abstractmethod
    def text_keys(self) -> TextKeys:
        """How texts of prompts are compared and tokenized."""

    @property
    @abstractmethod
    def metrics(self) -> Metrics:
        """The counts of the engine; of a process that died, those that it told last."""

    @property
    def metrics_so_far(self) -> Metrics:
        """The same as far as it is known here; nothing is waited for."""
        return self.metrics

    @abstractmethod
    def report(self) -> EngineReport:
        """How the engine is doing now.

        Raises:
            EngineDeadError: it is not there.
        """

    # -- calls ----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def queue(self) -> EnginePort:
        """Where requests are submitted."""

    @property
    @abstractmethod
    def embedding_queue(self) -> EmbeddingQueue:
        """The embedder; made at the first use.

        Raises:
            ParameterError: there are no weights, or the model has no embeddings.
        """

    @abstractmethod
    def count(self, request: GenerationRequest) -> int:
        """How many tokens the engine would evaluate or reuse for a prompt now.

        Raises:
            ContextOverflowError: it does not fit.
        """

    @abstractmethod
    def warm_up(self) -> None:
        """Let the first request take no longer than others. Nothing may be in memory yet."""

    def check_generates(self) -> None:
        """Raise unless requests can be submitted."""
        if self.inherited or not self.generates:
            raise self._refusal()

    def refuse_callbacks(self) -> None:
        """Raise ``LlamaError`` in a callback of a request."""
        if self.generates:
            self.queue.refuse_callbacks()

    def _refusal(self) -> LlamaError:
        """Why nothing is generated here."""
        if self.inherited:
            return forks.refuse()
        if self.vocab_only:
            return _vocabulary_only()
        return ParameterError.about_model(
            self._model.path,
            f"is an encoder ({self._model.architecture}), which does not generate text: it "
            "embeds (embed, rerank); load a decoder model",
        )

    # -- what is in memory ----------------------------------------------------------------------

    @abstractmethod
    def set_store(self, store: StateStore | None) -> None:
        """Write every conversation there when a call ends, and look there for prefixes.

        Raises:
            IsolationError: the store is in this process's memory, and the context is not.
        """

    @abstractmethod
    def write_out(self, seconds: float) -> bool:
        """Wait until the store that was set has written what calls left behind.

        Returns:
            False if that takes longer than ``seconds``; the rest is written later.
        """

    @abstractmethod
    def reset(self, cancel: bool, also: Callable[[], None] = lambda: None) -> None:
        """Clear the memory when nothing is in flight; see ``ModelCache.reset``.

        Args:
            also: done in the same moment, in this process.
        """

    @abstractmethod
    def here(self) -> LoadedModel:
        """The model itself, for the parts of this package that compute.

        Raises:
            IsolationError: its context is in another process.
        """

    @abstractmethod
    def close(self) -> None:
        """Free everything; in a forked child, nothing.

        Raises:
            LlamaError: it is called from a callback of a request; nothing was freed.
        """


def _vocabulary_only() -> ParameterError:
    return ParameterError(
        "this model was loaded with vocab_only=True: it can tokenize, and nothing else; load it "
        "without"
    )


# ---- in this process -----------------------------------------------------------------------------

#: What ``embeddings.computing.Setup`` is made of: most models embed nothing, and import none of it.
_EmbedWith: TypeAlias = "tuple[ContextParams, tuple[tuple[LoraAdapter, float], ...]]"


@dataclass(frozen=True, slots=True)
class Generating:
    """The context, cache and engine of a model; absent if it does not generate."""

    context: Context
    cache: SequenceCache
    driver: Driver


class LoadedModel(ModelPort):
    """A model, its context, the cache of its sequences, and the engine that drives them.

    Args:
        generating: None: there is nothing to generate with.
        embed_with: how the context is made that embeds, when it is needed; None: never.
    """

    def __init__(
        self,
        model: Model,
        generating: Generating | None,
        embed_with: _EmbedWith | None = None,
        *,
        in_place: bool = False,
        media: ModelMedia | None = None,
    ) -> None:
        super().__init__(model, media)
        self._embed_with = embed_with  # before what generates: they are freed in this order
        self._generating = generating
        self._in_place = in_place
        self._embedding_queue: EmbeddingQueue | None = None
        self._making = threading.Lock()

    @property
    def vocab_only(self) -> bool:
        """True if there are no weights."""
        return self._generating is None and self._embed_with is None

    @property
    def generates(self) -> bool:
        """True if there is a context to generate with."""
        return self._generating is not None

    @property
    def embedding_queue(self) -> EmbeddingQueue:
        """See ``ModelPort.embedding_queue``."""
        model = self.model
        if self._embed_with is None:
            raise _vocabulary_only()
        with self._making:
            if self._embedding_queue is None:
                from llama_py.embeddings.computing import Setup, check_embeds
                from llama_py.embeddings.queue import EmbeddingQueue

                check_embeds(model)
                self._embedding_queue = EmbeddingQueue(
                    model, Setup(*self._embed_with), in_place=self._in_place
                )
            return self._embedding_queue

    def here(self) -> LoadedModel:
        """It is here."""
        return self

    # -- what computes: for this package ---------------------------------------------------------

    def _parts(self) -> Generating:
        if self._generating is None or self._process.inherited:
            raise self._refusal()
        return self._generating

    @property
    def context(self) -> Context:
        """The context."""
        return self._parts().context

    @property
    def cache(self) -> SequenceCache:
        """The sequences in memory, to be used in the engine's thread (``driver.run``)."""
        return self._parts().cache

    @property
    def driver(self) -> Driver:
        """The engine, which evaluates requests."""
        return self._parts().driver

    @property
    def engine(self) -> Engine:
        """What the driver drives: to be called within ``driver.run`` only."""
        return self._parts().driver.engine

    # -- facts and calls ------------------------------------------------------------------------

    @property
    def queue(self) -> EnginePort:
        """Where requests are submitted."""
        return self.driver

    @property
    def facts(self) -> ContextFacts:
        """The context's constant facts."""
        context, cache = self.context, self.cache
        return ContextFacts(
            context.n_ctx,
            context.n_ctx_seq,
            context.n_seq_max,
            cache.limit,
            context.adapters,
            cache.namespace,
        )

    @property
    def fingerprint(self) -> str:
        """Everything that the bytes of a saved state depend on."""
        return self.cache.fingerprint(self.cache.namespace)

    @property
    def text_keys(self) -> TextKeys:
        """How texts of prompts are compared and tokenized."""
        return self.cache.text_keys

    @property
    def metrics(self) -> Metrics:
        """The engine's counters."""
        return self.engine.metrics

    def report(self) -> EngineReport:
        """See ``ModelPort.report``."""
        engine, cache, context = self.engine, self.cache, self.context
        requests = engine.requests
        return EngineReport(
            engine.metrics,
            len(requests.running),
            len(requests.waiting),
            cache.live.cells_used(),
            context.n_ctx,
            tuple(noted(context)),
            0 if engine.media.encoder is None else engine.media.encoder.used_bytes,
        )

    def count(self, request: GenerationRequest) -> int:
        """See ``ModelPort.count``."""
        return len(resolve(request, self.cache, self.model.vocab).tokens)

    def warm_up(self) -> None:
        """See ``ModelPort.warm_up``."""
        if self.generates:
            self.driver.run(self.context.warm_up)

    # -- what is in memory ----------------------------------------------------------------------

    @contextmanager
    def loading(self, stored: StoredState, namespace: Hashable) -> Iterator[StateLoad | None]:
        """Load a state in pieces between two steps of the streams, to be handed over within.

        It is None where that is better done at once. What is not handed over is freed.
        """
        driver, loader = self.driver, self.cache.loader
        loading = driver.run(lambda: loader.begin_with(stored, namespace))
        if loading is None:
            yield None
            return
        try:
            while driver.run(lambda: loader.step(loading)):
                pass
            yield loading
        finally:
            driver.run(lambda: loader.release(loading))

    def copied(self, copying: Copying) -> StoredState:
        """Copy what was begun to its end, a few MiB between two steps of the streams.

        Raises:
            StateError: its cells went before they were copied.
        """
        driver, saving = self.driver, self.cache.saving
        while copying.result is None:
            driver.run(lambda: saving.advance(copying))
        return copying.result

    def _copy_out(self, seconds: float) -> bool:
        """Copy what is to be saved out of the context, a few MiB between two steps of the streams.

        Returns:
            False if that takes longer than ``seconds``; the rest is copied later.
        """
        end = time.monotonic() + seconds
        driver, saving = self.driver, self.cache.saving
        while driver.run(saving.step):
            if time.monotonic() >= end:
                return False
        return True

    def write_out(self, seconds: float) -> bool:
        """See ``ModelPort.write_out``."""
        end = time.monotonic() + seconds
        copied, store = self._copy_out(seconds), self.cache.stores.saved
        return copied and (store is None or store.wait(0, max(0.0, end - time.monotonic())))

    def set_store(self, store: StateStore | None) -> None:
        """See ``ModelPort.set_store``."""
        cache = self.cache

        def use() -> None:
            cache.saving.flush()  # what has ended meanwhile
            cache.stores.saved = store
            for sequence in cache.live:
                sequence.saved_key, sequence.saved_length = None, 0

        self._copy_out(_PATIENCE)
        self.driver.run(use)

    def reset(self, cancel: bool, also: Callable[[], None] = lambda: None) -> None:
        """See ``ModelPort.reset``."""

        def clear() -> None:
            also()
            self.cache.clear()
            self.engine.reset_counters()

        self.driver.run_when_quiet(clear, cancel=cancel)

    def close(self) -> None:
        """See ``ModelPort.close``."""
        if self._generating is not None and not self.inherited:
            self._generating.driver.refuse_callbacks()
        if self._embedding_queue is not None:
            self._embedding_queue.close()
        if self.media is not None and not self.inherited:
            self.media.close()
        if self._generating is not None:
            self._generating.driver.close()
            store = self._generating.cache.stores.saved
            if store is not None and not store.closed and not store.wait(0, _PATIENCE):
                _log.warning("the model was closed before all conversations were written")
        self._model.close()
