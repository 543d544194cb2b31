"""The part of ``Llama`` that is about reuse: stores, snapshots, saved states, prewarming."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llama_py.core.lora import LoraAdapter
from llama_py.engine.request import Prompt, Request
from llama_py.errors import (
    FingerprintError,
    LlamaError,
    ParameterError,
    ParameterTypeError,
    StateError,
    shown,
)
from llama_py.memory.sequences import LiveSequence
from llama_py.memory.state import StateStore, StoredState
from llama_py.params import GenerationParams, SamplingParams, check_number
from llama_py.version import LLAMA_CPP_COMMIT

if TYPE_CHECKING:
    from llama_py.core.context import Context
    from llama_py.core.model import Model
    from llama_py.engine.engine import Engine
    from llama_py.memory.cache import SequenceCache

__all__ = ["LlamaState", "ReuseInterface", "SnapshotInfo"]

_log = logging.getLogger("llama_py")

#: How a state describes its tokens and their text; states of another format are not used.
_STATE_FORMAT = 2
#: Most named snapshots that can be kept.
MAX_SLOTS = 8


@dataclass(frozen=True, slots=True, eq=False)
class LlamaState:
    """What ``save_state`` returns: one sequence, and the logits at its end. It can be pickled.

    Attributes:
        stored: tokens, text and state of the sequence.
        logits: float32 ``(n_vocab,)`` at the last position, or None if they are not known.
    """

    stored: StoredState
    logits: NDArray[np.float32] | None = None

    @property
    def n_tokens(self) -> int:
        """Tokens in it."""
        return len(self.stored.tokens)

    @property
    def nbytes(self) -> int:
        """Bytes of it."""
        return self.stored.nbytes + (self.logits.nbytes if self.logits is not None else 0)


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A named snapshot: its tokens and its bytes."""

    name: str
    n_tokens: int
    nbytes: int


class ReuseInterface:
    """Stores, snapshots, saved states, prewarming, reports. Part of ``Llama``."""

    _model: Model
    _context: Context
    _cache: SequenceCache
    _engine: Engine
    _manual: LiveSequence | None
    _lora: LoraAdapter | None = None
    _lora_scale: float = 1.0

    def _init_reuse(self, slots: int) -> None:
        check_number("prefix_cache_slots", slots, 0, integer=True)
        if slots > MAX_SLOTS:
            _log.warning("prefix_cache_slots=%d is clamped to %d", slots, MAX_SLOTS)
        self._slots = min(slots, MAX_SLOTS)
        self._snapshots: OrderedDict[str, LlamaState] = OrderedDict()
        self._last = threading.local()

    def _fingerprint(self) -> str:
        """Everything that the bytes of a saved state depend on."""
        p = self._context.params
        adapter = (self._lora.fingerprint, self._lora_scale) if self._lora is not None else None
        parts = (
            _STATE_FORMAT,
            LLAMA_CPP_COMMIT,
            self._model.fingerprint,
            self._context.n_ctx_seq,
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
            adapter,
            tuple(sorted((self._model.params.kv_overrides or {}).items())),
        )
        return repr(parts)

    # -- what happened -------------------------------------------------------------------------

    @property
    def cache_info(self) -> dict[str, Any]:
        """What the last call of this thread reused: path, action, reused, evaluated,
        restored_bytes, reason (why not more), sequence and session."""
        request: Request | None = getattr(self._last, "request", None)
        return dict(request.cache) if request is not None else {}

    @property
    def metrics(self) -> dict[str, Any]:
        """Counters and histograms of the engine since loading or ``reset()``."""
        return self._engine.metrics.as_dict()

    def memory_report(self) -> dict[str, Any]:
        """Cells, sequences, and bytes in each tier."""
        with self._engine.lock:
            cache = self._cache
            sequences = [self._describe(sequence) for sequence in cache.live.values()]
            return {
                "kind": cache.traits.kind.value,
                "cells": self._context.n_ctx,
                "cells_used": cache.cells_used(),
                "sequences": sequences,
                "free_sequences": self._context.n_seq_max - len(sequences),
                "bytes": {
                    "context": sum(entry["bytes"] for entry in sequences),
                    "checkpoints": cache.checkpoints.used_bytes,
                    "parked": cache.parking.used_bytes if cache.parking is not None else 0,
                    "saved": cache.saved.used_bytes if cache.saved is not None else 0,
                    "snapshots": sum(state.nbytes for state in self._snapshots.values()),
                },
                "checkpoints": len(cache.checkpoints),
            }

    def _describe(self, sequence: LiveSequence) -> dict[str, Any]:
        return {
            "sequence": sequence.number,
            "tokens": len(sequence.tokens),
            "bytes": self._context.state_size(sequence.number) if sequence.tokens else 0,
            "busy": sequence.busy,
            "pinned": sequence.pinned,
            "session": sequence.session,
        }

    # -- stores --------------------------------------------------------------------------------

    def set_cache(self, cache: StateStore | None) -> None:
        """Write every conversation to ``cache`` when a call ends, and look there for prefixes.

        Args:
            cache: a ``LlamaRAMCache`` or ``LlamaDiskCache``; None stops using one. It is not
                closed with the model, and several models and processes may share one.

        Raises:
            ParameterTypeError: it is no store.
        """
        _check_store(cache)
        with self._engine.lock:
            self._cache.saving.flush()
            self._cache.saved = cache
            for sequence in self._cache.live.values():
                sequence.saved_key, sequence.saved_length = None, 0

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until what calls left behind is in the cache that was set; False if time is over.

        Conversations are written beside other calls, after the end of their replies.
        """
        with self._engine.lock:
            self._cache.saving.flush()
            store = self._cache.saved
        return store is None or store.wait(0, timeout)

    def _write_what_is_left(self) -> None:
        if not self.flush():
            _log.warning("the model is closed before all conversations were written")

    # -- saved states --------------------------------------------------------------------------

    def save_state(self) -> LlamaState:
        """A copy of the sequence that was used last: that of ``eval``, or of the last call.

        Raises:
            StateError: nothing was evaluated yet.
        """
        return self._copied_out()

    def load_state(self, state: LlamaState) -> None:
        """Bring a saved state back. ``eval`` goes on after it, and other calls may reuse it.

        Raises:
            FingerprintError: it was made by another model, or under other settings.
            StateError: it does not fit.
        """
        with self._engine.lock:
            self._engine.forbid_callbacks()
            self._adopt(state)

    def _current(self) -> LiveSequence:
        if self._manual is not None:
            return self._manual
        used = [sequence for sequence in self._cache.live.values() if sequence.tokens]
        if not used:
            raise StateError("nothing was evaluated yet, so there is no state to save")
        return max(used, key=lambda sequence: sequence.last_used)

    def _copied_out(self) -> LlamaState:
        """The current sequence, copied a few MiB at a time: the streams of others go on."""
        with self._engine.lock:
            sequence = self._current()
            if not sequence.tokens:
                raise StateError("nothing was evaluated yet, so there is no state to save")
            logits = self._engine.last_logits if sequence is self._engine.last_sequence else None
            copying = self._cache.saving.copy(sequence)
        while copying.result is None:
            with self._engine.lock:
                self._cache.saving.advance(copying)
        return LlamaState(copying.result, logits)

    def _capture_part(self, length: int) -> LlamaState:
        with self._engine.lock:
            self._engine.forbid_callbacks()
            source = self._current()
            check_number("length", length, 1, len(source.tokens), integer=True)
            part = self._cache.copy_prefix(source, length)
            try:
                return LlamaState(self._cache.export(part))
            finally:
                self._cache.drop(part)

    def _adopt(self, state: LlamaState) -> None:
        if not isinstance(state, LlamaState):
            raise ParameterTypeError(
                f"state must be what save_state() returned, not {shown(state)}"
            )
        if state.stored.fingerprint != self._fingerprint():
            raise FingerprintError(
                "this state was made by another model, or under other settings (context size, KV "
                "types, window, RoPE, adapters); evaluate the prompt again instead"
            )
        self._release_manual()
        sequence = self._cache.bring_in(state.stored)
        if sequence is None:
            raise StateError("every sequence is busy; wait for a request, or raise n_seq_max")
        sequence.busy = sequence.by_hand = True
        self._manual = sequence
        self._engine.last_logits, self._engine.last_sequence = state.logits, sequence

    def _release_manual(self) -> None:
        raise LlamaError("the low-level interface is missing")

    # -- named snapshots -----------------------------------------------------------------------

    def snapshot(self, name: str, length: int | None = None) -> SnapshotInfo:
        """Keep a copy of the sequence that was used last under ``name``.

        Args:
            length: only its first tokens. A recurrent state cannot be taken apart, nor a window
                that has passed: there it works at the positions of checkpoints only.

        An older snapshot of that name is replaced only when the new one is complete. When all
        ``prefix_cache_slots`` are taken, the one that was not used for longest goes.

        Raises:
            ParameterError: snapshots are off (``prefix_cache_slots=0``).
            StateError: nothing was evaluated yet, or ``length`` tokens cannot be given back.
        """
        _check_name(name)
        if not self._slots:
            raise ParameterError("snapshots are off; load the model with prefix_cache_slots > 0")
        state = self.save_state() if length is None else self._capture_part(length)
        self._snapshots[name] = state
        self._snapshots.move_to_end(name)
        while len(self._snapshots) > self._slots:
            gone, _ = self._snapshots.popitem(last=False)
            _log.info("snapshot %r was dropped: all %d slots are taken", gone, self._slots)
        return SnapshotInfo(name, state.n_tokens, state.nbytes)

    def restore(self, name: str) -> SnapshotInfo:
        """Bring a snapshot back, as ``load_state`` does.

        Raises:
            ParameterError: there is none of that name.
            FingerprintError: it was made under other settings.
        """
        _check_name(name)
        state = self._snapshots.get(name)
        if state is None:
            known = ", ".join(map(repr, self._snapshots)) or "none"
            raise ParameterError(f"there is no snapshot {name!r}; there are: {known}")
        self.load_state(state)
        self._snapshots.move_to_end(name)
        return SnapshotInfo(name, state.n_tokens, state.nbytes)

    def snapshots(self) -> list[SnapshotInfo]:
        """The snapshots, least recently used first."""
        return [SnapshotInfo(name, s.n_tokens, s.nbytes) for name, s in self._snapshots.items()]

    def drop_snapshot(self, name: str) -> None:
        """Forget a snapshot, if there is one of that name."""
        _check_name(name)
        self._snapshots.pop(name, None)

    # -- prewarming ----------------------------------------------------------------------------

    def prewarm(
        self, messages: Sequence[Mapping[str, Any]], *, pin: bool = True, **options: Any
    ) -> dict[str, Any]:
        """Evaluate the beginning of conversations ahead of time, so that they start at once.

        Args:
            messages: what they begin with: the system message, or more.
            pin: keep it in memory when there is not enough room for everything.
            options: what changes the prompt: ``tools``, ``chat_template_kwargs``, ...

        Returns:
            What was reused and evaluated, like ``cache_info``.
        """
        given: Any = messages
        if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
            raise ParameterTypeError(f"messages must be a list, not {shown(messages)}")
        request = Request(
            self._common_opening(messages, options),
            SamplingParams(temperature=0.0),
            GenerationParams(max_tokens=0),
        )
        self._run_silently(request)
        with self._engine.lock:
            sequence = self._cache.live.get(int(request.cache["sequence"]))  # type: ignore[call-overload]
            if pin and sequence is not None:
                sequence.pinned = True
        return dict(request.cache)

    def _run_silently(self, request: Request) -> None:
        self._submit(request)
        for event in self._engine.events(request):
            error = getattr(event, "error", None)
            if error is not None:
                raise error

    def _submit(self, request: Request) -> None:
        raise LlamaError("the facade is missing")

    def _common_opening(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> Prompt:
        """What every conversation that begins with ``messages`` begins with.

        Two different next messages are rendered: what the prompts have in common, up to the last
        role boundary in it, does not depend on what comes next.
        """
        first, second = (
            self._prompt_of([*messages, {"role": "user", "content": text}], options)
            for text in ("A", "Bb")
        )
        a, b = first.text or b"", second.text or b""
        shared = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
        starts = [start for start in first.boundaries if start <= shared]
        if not starts:
            raise ParameterError("these messages leave nothing to evaluate ahead of time")
        end = starts[-1]
        plain = tuple((start, min(stop, end)) for start, stop in first.plain if start < end)
        return Prompt(text=a[:end], boundaries=tuple(starts[:-1]), plain=plain)

    def _prompt_of(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> Prompt:
        from llama_py.dialects import openai

        relevant = {name: value for name, value in options.items() if name != "stream_options"}
        call = openai.parse_chat(self, messages, **relevant)  # type: ignore[arg-type]
        return call.requests[0].prompt


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise ParameterTypeError(f"name must be a string, not {shown(name)}")


def _check_store(cache: Any) -> None:
    """Raise unless it has what a ``StateStore`` has: every later call would fail without."""
    if cache is None:
        return
    wanted = sorted(name for name in vars(StateStore) if not name.startswith("_"))
    missing = [name for name in wanted if not hasattr(type(cache), name)]
    if missing or not hasattr(cache, "capacity_bytes"):
        lack = f", which has no {(*missing, 'capacity_bytes')[0]}"
        raise ParameterTypeError(
            f"cache must be a LlamaRAMCache, a LlamaDiskCache or None, not {shown(cache)}{lack}"
        )
