"""``LoadedModel``: a model with the engine that drives it; ``load`` makes it.

``api.weights`` has read the weights; ``load`` leaves nothing behind when it fails.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from llama_py import forks
from llama_py.api.facts import ContextFacts, EngineReport, ProcessStatus
from llama_py.api.media import ModelMedia, find_projector
from llama_py.api.weights import Weights, context_params_of
from llama_py.core.context import Context
from llama_py.core.device_memory import DeviceMemory, note_loaded, noted
from llama_py.core.host.footprint import expected_bytes, room_for_model
from llama_py.core.model import Model
from llama_py.engine.clock import Clock
from llama_py.engine.driver import Driver
from llama_py.engine.engine import Engine
from llama_py.engine.generation import resolve
from llama_py.engine.metrics import Metrics
from llama_py.engine.port import EnginePort
from llama_py.engine.request import GenerationRequest
from llama_py.errors import ParameterError
from llama_py.media.limits import MediaLimits
from llama_py.memory.cache import CacheLimits, SequenceCache
from llama_py.memory.costs import Costs
from llama_py.memory.kinds import traits_of
from llama_py.memory.saving import Copying
from llama_py.memory.state_loader import StateLoad
from llama_py.memory.text_keys import TextKeys
from llama_py.options import LOAD
from llama_py.options.drafters import Speculative
from llama_py.params import ContextParams, ModelParams
from llama_py.states.ram import LlamaRAMCache
from llama_py.states.state import StoredState
from llama_py.version import LLAMA_CPP_COMMIT

if TYPE_CHECKING:
    from llama_py.core.lora import LoraAdapter
    from llama_py.embeddings.queue import EmbeddingQueue
    from llama_py.engine.media import MediaEncoder

__all__ = ["LoadedModel", "lacks_memory", "load", "media_limits", "model_media"]

_log = logging.getLogger("llama_py")

#: How a state describes its tokens and their text; states of another format are not used.
_STATE_FORMAT = 2
#: Seconds that ``close`` waits for conversations to be written.
_PATIENCE = 10.0
#: ``attention_type`` of a context in which each token sees all others.
_NON_CAUSAL = 1


#: What ``embeddings.computing.Setup`` is made of: most models embed nothing, and import none of it.
_EmbedWith: TypeAlias = "tuple[ContextParams, tuple[tuple[LoraAdapter, float], ...]]"


@dataclass(frozen=True, slots=True)
class _Generating:
    """The context, cache and engine of a model; absent if it does not generate."""

    context: Context
    cache: SequenceCache
    driver: Driver


class LoadedModel:
    """A model, its context, the cache of its sequences, and the engine that drives them.

    Its parts belong to the process that loaded it: in a forked child, asking for one raises
    ``ForkedProcessError``. With ``vocab_only`` there is a model and nothing else, and an encoder
    has no engine: asking for what is not there raises ``ParameterError``.

    Args:
        setup: how the context is made that embeds, when it is needed; None: never.
    """

    __slots__ = (
        "_embed_with",
        "_embedding_queue",
        "_generating",
        "_in_place",
        "_making",
        "_model",
        "_process",
        "media",
    )

    def __init__(
        self,
        model: Model,
        generating: _Generating | None,
        embed_with: _EmbedWith | None = None,
        *,
        in_place: bool = False,
        media: ModelMedia | None = None,
    ) -> None:
        self._model = model
        #: Its pictures and sounds; None: it is an encoder, or has no weights.
        self.media = media
        self._generating = generating
        self._embed_with = embed_with
        self._in_place = in_place
        self._process = forks.current()
        self._embedding_queue: EmbeddingQueue | None = None
        self._making = threading.Lock()

    @property
    def inherited(self) -> bool:
        """True in a child of the process that loaded it."""
        return self._process.inherited

    @property
    def vocab_only(self) -> bool:
        """True if there are no weights."""
        return self._generating is None and self._embed_with is None

    @property
    def generates(self) -> bool:
        """True if there is a context to generate with."""
        return self._generating is not None

    @property
    def isolated(self) -> bool:
        """True if what computes is in another process."""
        return False

    @property
    def own_process(self) -> ProcessStatus | None:
        """How the process is that the model has of its own; None if it is in this one."""
        return None

    @property
    def embedding_queue(self) -> EmbeddingQueue:
        """The embedder; made at the first use.

        Raises:
            ParameterError: there are no weights, or the model has no embeddings.
        """
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

    @property
    def model(self) -> Model:
        """The weights and the vocabulary."""
        if self._process.inherited:
            raise forks.refuse()
        return self._model

    @property
    def context(self) -> Context:
        """The context."""
        return self._parts().context

    @property
    def cache(self) -> SequenceCache:
        """What is in memory, to be used in the engine's thread (``driver.run``)."""
        return self._parts().cache

    @property
    def driver(self) -> Driver:
        """The engine, which evaluates requests."""
        return self._parts().driver

    @property
    def port(self) -> EnginePort:
        """Where requests are submitted, wherever the engine is."""
        return self.driver

    @property
    def facts(self) -> ContextFacts:
        """The context's constant facts, wherever it is."""
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
    def text_keys(self) -> TextKeys:
        """How texts of prompts are compared and tokenized."""
        return self.cache.text_keys

    def count(self, request: GenerationRequest) -> int:
        """How many tokens the engine would evaluate or reuse for a prompt now.

        Raises:
            ContextOverflowError: it does not fit.
        """
        return len(resolve(request, self.cache, self.model.vocab).tokens)

    @property
    def metrics(self) -> Metrics:
        """The engine's counters."""
        return self.engine.metrics

    @property
    def metrics_so_far(self) -> Metrics:
        """The same as far as it is known here; nothing is waited for."""
        return self.engine.metrics

    def report(self) -> EngineReport:
        """How the engine is doing now."""
        engine, cache, context = self.engine, self.cache, self.context
        requests = engine.requests
        return EngineReport(
            engine.metrics,
            len(requests.running),
            len(requests.waiting),
            cache.cells_used(),
            context.n_ctx,
            tuple(noted(context)),
            0 if engine.media.encoder is None else engine.media.encoder.used_bytes,
        )

    @property
    def pointer(self) -> Any:
        """The C pointer of the model; see ``Llama.model``."""
        return self.model.pointer

    @property
    def engine(self) -> Engine:
        """What the driver drives: to be called within ``driver.run`` only."""
        return self._parts().driver.engine

    @property
    def lost(self) -> bool:
        """Whether a device that it is on was lost, as far as a call has found out."""
        watch = self._model.watch
        return watch is not None and bool(watch.lost)

    @property
    def fingerprint(self) -> str:
        """Everything that the bytes of a saved state depend on."""
        cache = self._parts().cache
        return cache.fingerprint(cache.namespace)

    def _parts(self) -> _Generating:
        if self._process.inherited:
            raise forks.refuse()
        if self._generating is None and self._embed_with is None:
            raise _vocabulary_only()
        if self._generating is None:
            raise ParameterError.about_model(
                self._model.path,
                f"is an encoder ({self._model.architecture}), which does not generate text: it "
                "embeds (embed, rerank); load a decoder model",
            )
        return self._generating

    def refuse_callbacks(self) -> None:
        """Raise ``LlamaError`` in a callback of a request."""
        if self.generates:
            self.port.refuse_callbacks()

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

    def warm_up(self) -> None:
        """Let the first request take no longer than others. Nothing may be in memory yet."""
        if self.generates:
            self.driver.run(self.context.warm_up)

    def copy_out(self, seconds: float) -> bool:
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
        """The same, and wait until the store that was set has written it."""
        end = time.monotonic() + seconds
        copied, store = self.copy_out(seconds), self.cache.saved
        return copied and (store is None or store.wait(0, max(0.0, end - time.monotonic())))

    def close(self) -> None:
        """Free everything; in a forked child, nothing.

        Raises:
            LlamaError: it is called from a callback of a request; nothing was freed.
        """
        if self._generating is not None and not self.inherited:
            self._generating.driver.refuse_callbacks()
        if self._embedding_queue is not None:
            self._embedding_queue.close()
        if self.media is not None and not self.inherited:
            self.media.close()
        if self._generating is not None:
            self._generating.driver.close()
            store = self._generating.cache.saved
            if store is not None and not store.closed and not store.wait(0, _PATIENCE):
                _log.warning("the model was closed before all conversations were written")
        self._model.close()


def _vocabulary_only() -> ParameterError:
    return ParameterError(
        "this model was loaded with vocab_only=True: it can tokenize, and nothing else; load it "
        "without"
    )


def load(weights: Weights, arguments: Mapping[str, Any]) -> LoadedModel:
    """Make what drives a model whose weights were read.

    Args:
        weights: they belong to what is returned; if this fails, they are freed.
        arguments: those of ``Llama``, as ``options.LOAD`` completed them, and ``model_path``.

    Raises:
        ParameterError: an argument does not go with the model.
        ContextCreationError: see ``Llama``; nothing is left in memory.
    """
    model, context_params = weights.model, weights.context_params
    speculative = weights.speculative
    try:
        if arguments["vocab_only"]:
            return LoadedModel(model, None)
        if model.is_encoder:
            _refuse_drafts(model, speculative)
            running, adapters, media = None, _adapters(model, arguments), None
        else:
            context = _context(model, context_params)
            _log_devices(model, note_loaded(context))
            running, adapters = _start(model, context, arguments, speculative)
            media = model_media(
                model,
                arguments,
                n_ubatch=min(context.n_ubatch, context.n_batch),
                n_threads=lambda: context.n_threads_batch,
                attach=running.driver.attach_media,
            )
        packed = replace(context_params, embeddings=True, kv_unified=True, moe_cache_size=0)
        embed_with = packed, tuple(adapters)
        return LoadedModel(model, running, embed_with, in_place=arguments["in_place"], media=media)
    except BaseException:  # also Ctrl-C: who tries again must have the memory for it
        model.close()  # with what was made from it
        raise


def _log_devices(model: Model, found: Sequence[DeviceMemory]) -> None:
    """One line: how much of a model is where."""
    if _log.isEnabledFor(logging.INFO) and found:
        parts = [
            f"{each.device}: {each.weights >> 20:,} MiB of weights, {each.cells >> 20:,} of cells, "
            f"{each.buffers >> 20:,} of buffers"
            for each in found
        ]
        layers = model.params.n_gpu_layers
        count = model.n_layer + 1
        there = count if layers < 0 else min(layers, count)
        on_gpu = f", {there} of {count} layers on GPUs" if len(found) > 1 else ""
        _log.info("%s was loaded%s; %s", model.path.name, on_gpu, "; ".join(parts))


def lacks_memory(model_path: str, options: Mapping[str, Any]) -> bool:
    """Whether a model would take more memory than is left; rather True than False.

    Args:
        options: arguments of ``Llama``.

    Raises:
        ParameterError, ModelLoadError: it could not be loaded anyway.
    """
    arguments: Mapping[str, Any] = LOAD.complete(options)
    params = ModelParams.of(arguments)
    needed = expected_bytes(model_path, params, context_params_of(arguments))
    return needed > room_for_model(params)


def _adapters(model: Model, arguments: Mapping[str, Any]) -> list[tuple[LoraAdapter, float]]:
    if arguments["lora_path"] is None:
        return []
    from llama_py.core.lora import LoraAdapter

    return [(LoraAdapter(model, arguments["lora_path"]), arguments["lora_scale"])]


def _context(model: Model, params: ContextParams) -> Context:
    kind = "an encoder" if not model.has_decoder or model.has_encoder else ""
    kind = "a diffusion model" if model.is_diffusion else kind
    if kind:
        raise ParameterError.about_model(
            model.path,
            f"is {kind} ({model.architecture}), which does not generate token by token; load a "
            "decoder model",
        )
    return Context(model, params)


def _start(
    model: Model,
    context: Context,
    arguments: Mapping[str, Any],
    speculative: Speculative | None,
) -> tuple[_Generating, list[tuple[LoraAdapter, float]]]:
    adapters = _adapters(model, arguments)
    if adapters:
        context.set_adapters(adapters)
    # Without a causal mask, a token's cells depend on those that come after it.
    reuse = context.params.attention_type != _NON_CAUSAL
    offload_bytes = arguments["parking_bytes"]
    clock = Clock()
    cache = SequenceCache(
        context,
        traits_of(model, context.params.swa_full, context.params.kv_unified),
        model.vocab,
        functools.partial(_fingerprint, model, context),
        CacheLimits(checkpoint_bytes=arguments["checkpoint_bytes"], reuse=reuse),
        LlamaRAMCache(offload_bytes) if offload_bytes > 0 else None,
        clock,
        costs := Costs() if model.devices and model.params.n_gpu_layers else None,
    )
    if costs is not None:
        context.on_copy = functools.partial(_note_copy, costs)
    cache.namespace = context.adapters  # prompts share nothing with those of other adapters
    driver = Driver(
        Engine(context, cache, speculative, clock),
        max_waiting=arguments["max_waiting"],
        in_place=arguments["in_place"],
    )
    return _Generating(context, cache, driver), adapters


def _note_copy(costs: Costs, into: bool, tokens: int, seconds: float) -> None:
    (costs.fetched if into else costs.stored)(tokens, seconds)


def model_media(
    model: Model,
    arguments: Mapping[str, Any],
    *,
    n_ubatch: int,
    n_threads: Callable[[], int],
    attach: Callable[[MediaEncoder], None] = lambda _: None,
) -> ModelMedia:
    """Pictures and sounds. A projector that was named is loaded now, one that lies there later.

    Args:
        arguments: with those of ``options.MediaOptions``.
        n_ubatch, n_threads, attach: as of ``ModelMedia``.
    """
    given = arguments["mmproj"]
    path = find_projector(model.path, model.n_embd) if given == "auto" else given
    media = ModelMedia(
        model,
        None if path is None else Path(path),
        media_limits(arguments),
        n_ubatch=n_ubatch,
        n_threads=n_threads,
        use_gpu=model.params.n_gpu_layers != 0,
        tokens=(arguments["image_min_tokens"], arguments["image_max_tokens"]),
        capacity_bytes=arguments["media_cache_bytes"],
        attach=attach,
    )
    if given not in (None, "auto"):
        _ = media.encoder
    return media


def media_limits(arguments: Mapping[str, Any]) -> MediaLimits:
    """What may be read of pictures and sounds, as ``options.MediaOptions`` say it."""
    return MediaLimits(
        paths=tuple(map(Path, arguments["media_paths"] or ())),
        urls=arguments["allow_urls"],
        most_bytes=arguments["max_media_bytes"],
        most_pixels=arguments["max_image_pixels"],
        most_sound_seconds=arguments["max_sound_seconds"],
        most_media=arguments["max_media"],
        most_decoded=arguments["max_media_decoded"],
    )


def _refuse_drafts(model: Model, speculative: Speculative | None) -> None:
    if speculative is not None and speculative.drafters:
        raise ParameterError(
            f"speculative: {model.path} is an encoder ({model.architecture}), which generates "
            "nothing that could be drafted; leave the option out"
        )


def _fingerprint(model: Model, context: Context, namespace: Hashable) -> str:
    """Everything that the bytes of a saved state of a namespace depend on."""
    p = context.params
    parts: tuple[object, ...] = (
        _STATE_FORMAT,
        LLAMA_CPP_COMMIT,
        model.fingerprint,
        context.n_ctx_seq,
        p.type_k,
        p.type_v,
        p.flash_attn,
        p.swa_full,
        p.attention_type,
        p.rope_scaling_type,
        p.rope_freq_base,
        p.rope_freq_scale,
        p.yarn_ext_factor,
        p.yarn_attn_factor,
        p.yarn_beta_fast,
        p.yarn_beta_slow,
        p.yarn_orig_ctx,
        namespace,
        tuple(sorted((model.params.kv_overrides or {}).items())),
    )
    if not p.kv_unified:  # a state of one of several buffers says how many there are
        parts += (("buffers", p.n_seq_max),)
    return repr(parts)
