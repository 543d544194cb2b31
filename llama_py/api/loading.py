"""``load``: the second half of loading a model: its context, its cache, its engine.

``api.weights`` has read the weights; ``load`` leaves nothing behind when it fails.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_py.api.media import ModelMedia, find_projector
from llama_py.api.port import Generating, LoadedModel
from llama_py.api.weights import Weights, context_params_of
from llama_py.core.context import Context
from llama_py.core.device_memory import DeviceMemory, note_loaded
from llama_py.core.host.footprint import expected_bytes, room_for_model
from llama_py.core.model import Model
from llama_py.engine.clock import Clock
from llama_py.engine.driver import Driver
from llama_py.engine.engine import Engine
from llama_py.errors import ParameterError
from llama_py.media.limits import MediaLimits
from llama_py.memory.cache import CacheLimits, SequenceCache
from llama_py.memory.costs import Costs
from llama_py.memory.kinds import traits_of
from llama_py.options import LOAD
from llama_py.options.drafters import Speculative
from llama_py.params import ContextParams, ModelParams
from llama_py.states.ram import LlamaRAMCache
from llama_py.version import LLAMA_CPP_COMMIT

if TYPE_CHECKING:
    from llama_py.core.lora import LoraAdapter
    from llama_py.engine.media import MediaEncoder

__all__ = ["lacks_memory", "load", "media_limits", "model_media"]

_log = logging.getLogger("llama_py")

#: How a state describes its tokens and their text; states of another format are not used.
_STATE_FORMAT = 2
#: ``attention_type`` of a context in which each token sees all others.
_NON_CAUSAL = 1


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
) -> tuple[Generating, list[tuple[LoraAdapter, float]]]:
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
    return Generating(context, cache, driver), adapters


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
