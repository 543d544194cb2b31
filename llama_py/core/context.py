"""``Context``: one ``llama_context``, its memory, its logits and its saved states.

It satisfies the protocol through which ``llama_py.memory`` sees a context. A context must be used
by one thread at a time: that of the engine, which has no lock.
"""

from __future__ import annotations

import ctypes
import dataclasses
import time
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llama_py._native import llama_h as C
from llama_py.core import logs
from llama_py.core.abort import Abort
from llama_py.core.batch import Batch, VectorBatch
from llama_py.core.handle import Handle
from llama_py.core.host.core_turns import TURNS, Share
from llama_py.core.host.footprint import MEMORY_SHARE, bytes_per_cell, chosen_n_ctx
from llama_py.core.host.interrupts import in_main_thread, run_interruptibly
from llama_py.core.host.machine import memory_bytes, usable_cores
from llama_py.core.placement import named_gpus
from llama_py.core.steps import Steps
from llama_py.core.threads import ThreadPools
from llama_py.errors import ContextCreationError, ParameterError, StateError
from llama_py.params import ContextParams

if TYPE_CHECKING:
    from llama_py.core.lora import LoraAdapter
    from llama_py.core.model import Model

__all__ = ["PARTIAL", "Context"]

#: Flag of ``state_get`` / ``state_set``: only the window or recurrent part of a sequence.
PARTIAL: int = C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY

#: Architectures whose graph does not select the wanted outputs: asked for the last token's logits
#: alone, llama.cpp gives those of the batch's first token.
_NEEDS_EVERY_OUTPUT = frozenset({"cogvlm"})
#: Architectures whose memory copies whole sequences only (``memory.kinds`` plans with them).
_WHOLE_COPIES_ONLY = frozenset({"deepseek4", "glm5-next", "qwen4exp"})
#: Architectures whose graph is for one buffer of cells: with several, it ends the process.
_ONE_BUFFER = frozenset({"kimi-linear"})
#: What ``n_ctx=0`` lets the KV cache take of what is free on the GPUs: the rest is for computing.
_DEVICE_SHARE = 0.75
#: Bytes of weights that one thread reads in a few milliseconds.
_WORTH_THREADS = 32 << 20
#: Bytes from which on numpy asks for huge pages; with small ones, two thirds of the time that a
#: copy takes is the system's, for each new page. Those that are nearly as large get as many.
_HUGE, _NEARLY_HUGE = 4 << 20, 3 << 20


class Context(Handle[C.llama_context_p]):
    """A context of ``model``.

    Attributes:
        model: the model, kept alive.
        params: how it was made, with ``n_ctx`` and the threads filled in.
        n_ctx: cells in the memory: shared by the sequences if it is unified, else of all together.
        n_ctx_seq: cells that one sequence can take.
        n_batch: most tokens in one ``decode``.
        n_seq_max: number of sequences.
        threads_may_change: nobody said how many threads there are, and the CPU computes.
        spare: one more, to copy ranges of cells through; None where that cannot be done.
        abort: ends a ``decode`` early.
        adapters: the LoRA adapters that are applied, each as (fingerprint, scale).
        share: its share of the cores (see ``turns``).
        on_copy: told of each state that was copied: whether into the context, of how many
            positions, and in how many seconds.

    Args:
        beside: computes with the threads of this one, which never decodes at the same time. Those
            of another pool go on spinning for a few milliseconds behind each decode, on cores
            that this one needs then.
        watcher: is called with the struct that it is made of (``ImportanceSums.watch``).

    Raises:
        ContextCreationError: with llama.cpp's reason (usually: not enough memory).
    """

    def __init__(
        self,
        model: Model,
        params: ContextParams | None = None,
        *,
        beside: Context | None = None,
        watcher: Callable[[C.llama_context_params], None] | None = None,
    ) -> None:
        self.model = model
        self._watcher = watcher
        given = params or ContextParams()
        self.params = _complete(given, model)
        self._threads_fixed = given.n_threads is not None or given.n_threads_batch is not None
        _check_sizes(self.params, model)
        self._threads: ThreadPools = ThreadPools() if beside is None else beside._threads
        self._free_threads: Callable[[], None] = self._threads.free if beside is None else _nothing
        self._beside: tuple[Context, ...] = () if beside is None else (beside,)
        self.abort = Abort()
        self.adapters: tuple[tuple[str, float], ...] = ()
        self.on_copy: Callable[[bool, int, float], None] | None = None
        try:
            self._make()
            self._prepare()
        except BaseException:  # also Ctrl-C: a context may take gigabytes
            self.close()
            self._free_threads()
            self.abort.close()
            raise

    def _make(self) -> None:
        params, model = self.params, self.model
        struct, lines = _context_struct(params), logs.ErrorLines()
        free = partial(_free, C.llama_free, self._free_threads, self.abort.close)
        # Another sequence costs nothing where all share one buffer, and have no other state.
        shared = params.kv_unified and not (model.is_recurrent or model.is_hybrid or model.n_swa)
        spare = shared and params.n_seq_max < min(256, params.n_ctx, params.n_batch)
        struct.n_seq_max += spare
        if self._watcher is not None:
            self._watcher(struct)
        self.spare = params.n_seq_max if spare else None

        def make() -> None:
            with lines, model.in_use() as pointer:
                made = C.llama_init_from_model(pointer, struct)
                if made:
                    Handle.__init__(self, made, free, model, self.abort, *self._beside)

        # It logs much, and takes seconds on a GPU: a Ctrl-C would be lost in the main thread.
        if in_main_thread():
            run_interruptibly(make, _nothing)
        else:
            make()
        self.check_devices()
        if self.closed:
            raise ContextCreationError(
                f"llama.cpp cannot make a context of n_ctx={params.n_ctx}, "
                f"n_seq_max={params.n_seq_max}: {str(lines) or 'no reason was logged'}; "
                "try a smaller n_ctx"
            )

    def _prepare(self) -> None:
        pointer, model = self.pointer, self.model
        self.abort.attach(pointer)
        self._attach_threads()
        self.memory = C.llama_get_memory(pointer)
        self.n_ctx = int(C.llama_n_ctx(pointer))
        self.n_ctx_seq = int(C.llama_n_ctx_seq(pointer))
        self.n_batch = int(C.llama_n_batch(pointer))
        self.n_ubatch = int(C.llama_n_ubatch(pointer))
        self.n_seq_max = int(C.llama_n_seq_max(pointer)) - (self.spare is not None)
        self.n_vocab = model.vocab.n_tokens
        self._every_output = model.architecture in _NEEDS_EVERY_OUTPUT
        self._rows: dict[int | None, NDArray[np.float32]] = {}
        self.share = Share()
        #: Whether ``decode`` may return before the logits are there.
        self.asynchronous = bool(model.devices)
        self.threads_may_change = not (self._threads_fixed or self.asynchronous)
        # A plain address: making a ctypes pointer costs more than the call.
        function: Any = C.llama_get_logits_ith
        self._logits_at: Callable[[C.llama_context_p, int], int | None]
        self._logits_at = _address_prototype(self.asynchronous)(
            ctypes.cast(function, ctypes.c_void_p).value or 0
        )

    # -- decoding ---------------------------------------------------------------------------

    def decode(self, batch: Batch) -> int:
        """``llama_decode``: 0 is success, 1 no room, 2 aborted, negative an error.

        After an error or an abort, ubatches that were done stay in the memory: ask ``pos_max``.
        """
        if self._every_output:
            batch.outputs[: len(batch)] = 1
        if TURNS.sharing and not self.asynchronous:
            with TURNS.turn(self.share):
                return int(C.llama_decode(self.pointer, batch.struct))
        return int(C.llama_decode(self.pointer, batch.struct))

    def decode_vectors(
        self,
        vectors: NDArray[np.float32],
        positions: NDArray[np.int32],
        seq: int,
        *,
        output: bool,
        causal: bool,
    ) -> int:
        """Evaluate vectors in place of tokens, in as many steps as ``n_batch`` takes.

        Args:
            vectors: float32 ``(n, n_embd_inp)``.
            positions: int32 ``(p, n)``; p is 1, or 4 with M-RoPE.
            output: the logits of the last one are wanted, at the index that it has in its batch.
            causal: False lets each see all others; all of them are one micro-batch then.

        Returns:
            What ``decode`` does. After a failure, earlier steps stay in the memory.
        """
        if not causal:
            C.llama_set_causal_attn(self.pointer, False)
        try:
            for start in range(0, len(vectors), self.n_batch):
                stop = min(start + self.n_batch, len(vectors))
                last = output and stop == len(vectors)
                part = VectorBatch(vectors[start:stop], positions[:, start:stop], seq, last)
                with TURNS.turn(self.share):
                    code = int(C.llama_decode(self.pointer, part.struct))
                if code:
                    return code
            return 0
        finally:
            if not causal:
                C.llama_set_causal_attn(self.pointer, True)

    def warm_up(self) -> None:
        """Evaluate two tokens, and clear the memory again.

        The first decode of a context maps weights and buffers that nobody has used yet, which takes
        many times as long as those that follow.
        """
        count = min(2, self.n_batch)
        batch = Batch(count)
        batch.set([0] * count, 0, 0, True)
        self.decode(batch)  # if it fails, whoever decodes next gets the error
        self.clear(data=False)

    def decode_steps(self, batch: Batch, steps: Steps, most: int, seconds: float) -> None:
        """Decode a batch with one token for each stream, choose the next token of each, and go on
        with those. What came of it is in ``steps``.

        It ends after ``most`` steps or ``seconds``, when a reply ends or cannot go on, when a step
        fails, or when somebody is in a hurry.
        """
        if TURNS.sharing and not self.asynchronous:
            with TURNS.turn(self.share):
                steps.run(self.pointer, batch, 1, seconds)
        else:
            steps.run(self.pointer, batch, most, seconds)
        self.check_devices()

    def logits(self, index: int) -> NDArray[np.float32]:
        """The logits of the ``index``-th token of the last batch: a view, float32 ``(n_vocab,)``.

        It is overwritten by the next ``decode``: copy what has to last.

        Raises:
            ParameterError: that token was not marked as an output.
        """
        address = self._logits_at(self.pointer, index)
        row = self._rows.get(address)
        if row is None:
            if address is None:
                raise ParameterError(f"no logits were asked for at index {index} of the last batch")
            if len(self._rows) > 4096:  # C has only a few of them
                self._rows.clear()
            memory = (ctypes.c_float * self.n_vocab).from_address(address)
            row = self._rows[address] = np.ctypeslib.as_array(memory)
        return row

    def logits_rows(self, index: int, count: int) -> NDArray[np.float32]:
        """The logits of ``count`` tokens of one sequence, all of them outputs, from ``index`` on.

        Returns:
            A view, float32 ``(count, n_vocab)``; see ``logits``.
        """
        address = self.logits(index).ctypes.data
        memory = (ctypes.c_float * (count * self.n_vocab)).from_address(address)
        return np.ctypeslib.as_array(memory).reshape(count, self.n_vocab)

    def encode(self, batch: Batch) -> int:
        """``llama_encode``, which needs no memory of sequences; returns what ``decode`` does."""
        with TURNS.turn(self.share):
            return int(C.llama_encode(self.pointer, batch.struct))

    @property
    def pooling(self) -> int:
        """How the vectors of a sequence become one (``LLAMA_POOLING_TYPE_*``)."""
        return int(C.llama_pooling_type(self.pointer))

    def embeddings(self, count: int) -> NDArray[np.float32]:
        """The vectors of the last batch, one for each of its ``count`` tokens, without pooling.

        Returns:
            A copy, float32 ``(count, n_embd_out)``: a view needs a ctypes type for each count.
        """
        rows = np.empty((count, self.model.n_embd_out), np.float32)
        self._copy(C.llama_get_embeddings(self.pointer), rows)
        self.check_devices()
        return rows

    def pooled(self, seq: int, width: int) -> NDArray[np.float32]:
        """The pooled vector of a sequence of the last batch: a copy, float32 ``(width,)``."""
        row = np.empty(width, np.float32)
        self._copy(C.llama_get_embeddings_seq(self.pointer, seq), row)
        self.check_devices()
        return row

    def _copy(self, address: Any, into: NDArray[np.float32]) -> None:
        if not address:
            raise StateError("the last batch has no embeddings: its context was made without them")
        ctypes.memmove(into.ctypes.data, address, into.nbytes)

    def synchronize(self) -> None:
        """Wait until all computations are finished.

        Raises:
            DeviceLostError: of a server that computes, what came is worth nothing.
        """
        C.llama_synchronize(self.pointer)
        self.check_devices()

    def check_devices(self) -> None:
        """Look whether the devices of the model are there, as far as that is not certain.

        Raises:
            DeviceLostError: one is not.
        """
        if self.model.watch is not None:
            self.model.watch.check()

    def _attach_threads(self) -> None:
        pointer = self.pointer
        self._threads.attach(pointer, C.llama_n_threads(pointer), C.llama_n_threads_batch(pointer))

    def try_threads(self, n_threads: int, n_threads_batch: int) -> bool:
        """``set_threads``, unless the system cannot start so many; then False."""
        possible = self._threads.can_attach(n_threads, n_threads_batch)
        if possible:
            self.set_threads(n_threads, n_threads_batch)
        return possible

    @property
    def n_threads_batch(self) -> int:
        """Threads for many tokens."""
        return int(C.llama_n_threads_batch(self.pointer))

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        """Threads for one token, and for many."""
        C.llama_set_n_threads(self.pointer, n_threads, n_threads_batch)
        self._attach_threads()

    def set_adapters(self, adapters: list[tuple[LoraAdapter, float]]) -> None:
        """Apply these LoRA adapters, each with its scale, and no others.

        Raises:
            ParameterError: an adapter is of another model.
            ClosedError: an adapter is closed. Those that were applied before stay.
        """
        for adapter, _ in adapters:
            if adapter.model is not self.model:
                raise ParameterError(f"the adapter {adapter.path} was loaded for another model")
        pointers = (C.llama_adapter_lora_p * max(1, len(adapters)))(
            *[adapter.pointer for adapter, _ in adapters]
        )
        scales = (ctypes.c_float * max(1, len(adapters)))(*[scale for _, scale in adapters])
        with logs.ErrorLines() as lines:
            if C.llama_set_adapters_lora(self.pointer, pointers, len(adapters), scales) != 0:
                raise StateError(f"llama.cpp refused the adapters: {lines}")
        self._keep(adapter for adapter, _ in adapters)
        self.adapters = tuple((adapter.fingerprint, scale) for adapter, scale in adapters)

    # -- memory (see llama_py.memory.kinds.SequenceMemory) -------------------------------------

    def clear(self, *, data: bool = True) -> None:
        """Forget every sequence (``llama_memory_clear``); ``data``: fill the cells with zeros."""
        C.llama_memory_clear(self.memory_pointer, data)

    def seq_rm(self, seq: int, p0: int, p1: int = -1) -> bool:
        """Remove positions [p0, p1) of a sequence; False if this memory cannot."""
        return bool(C.llama_memory_seq_rm(self.memory_pointer, seq, p0, p1))

    def seq_cp(self, source: int, target: int, p0: int = -1, p1: int = -1) -> None:
        """Let ``target`` share the cells [p0, p1) of ``source``.

        Where each sequence has a buffer of its own, it gets a copy, of a whole sequence only:
        llama.cpp would end the process for a part of one, and copies the cells no sooner than in
        the next ``decode``, over whatever was loaded into them meanwhile. It ends the process for
        a part of a sequence of some other memories as well; there, the beginning of one is copied
        as a whole, and cut.

        Raises:
            ParameterError: a part of a sequence, where whole ones can be copied.
            StateError: it cannot be cut where it should end; ``target`` is empty then.
        """
        whole = p0 <= 0 and p1 < 0
        parts = self.model.architecture not in _WHOLE_COPIES_ONLY
        if self.params.kv_unified and (whole or parts):
            C.llama_memory_seq_cp(self.memory_pointer, source, target, p0, p1)
        elif p0 > 0 or (p1 >= 0 and parts):
            why = "with kv_unified=False" if parts else f"of {self.model.architecture}"
            raise ParameterError(
                f"the cells [{p0}, {p1}) of sequence {source} cannot be copied: {why} whole "
                "sequences can"
            )
        elif source != target:
            self.state_set(target, self.state_get(source))
            if p1 >= 0 and not self.seq_rm(target, p1):
                self.seq_rm(target, -1, -1)
                raise StateError(f"a copy of sequence {source} cannot be cut to {p1} positions")

    def pos_min(self, seq: int) -> int:
        """The smallest position of a sequence that is in memory, -1 if it is empty."""
        return int(C.llama_memory_seq_pos_min(self.memory_pointer, seq))

    def pos_max(self, seq: int) -> int:
        """The largest position of a sequence that is in memory, -1 if it is empty."""
        return int(C.llama_memory_seq_pos_max(self.memory_pointer, seq))

    @property
    def memory_pointer(self) -> C.llama_memory_t:
        """The C pointer of the memory. Raises ``ClosedError`` after ``close()``."""
        _ = self.pointer  # which may raise
        return self.memory

    # -- states -----------------------------------------------------------------------------

    def state_size(self, seq: int, *, partial: bool = False) -> int:
        """Bytes that ``state_get`` needs."""
        return int(C.llama_state_seq_get_size_ext(self.pointer, seq, PARTIAL * partial))

    def state_get(self, seq: int, *, partial: bool = False) -> NDArray[np.uint8]:
        """A copy of one sequence's state; ``partial``: only its window or recurrent part."""
        flags = PARTIAL * partial
        size = int(C.llama_state_seq_get_size_ext(self.pointer, seq, flags))
        state = np.empty(max(size, _HUGE) if size > _NEARLY_HUGE else size, np.uint8)[:size]
        into, begun = state.ctypes.data, time.perf_counter()
        with logs.ErrorLines() as lines:
            written = C.llama_state_seq_get_data_ext(self.pointer, into, size, seq, flags)
        self.check_devices()
        self._note_copy(False, seq, begun, partial)
        if written != size:
            raise StateError(
                f"llama.cpp wrote {written} of {size} bytes of the state of sequence {seq}: {lines}"
            )
        return state

    def state_set(
        self,
        seq: int,
        state: NDArray[np.uint8] | bytes | memoryview,
        *,
        partial: bool = False,
        keeps: bool = False,
    ) -> None:
        """Load a state from ``state_get`` into a sequence.

        Args:
            keeps: if a partial one cannot be loaded, leave what is not a part of it where it is, so
                that the caller can try again when there is room for its cells. Until then the
                sequence must not be used: its parts do not fit together.

        Raises:
            StateError: it does not fit, or is damaged. The sequence is then empty: llama.cpp may
                have loaded a part of it.
        """
        data, begun = np.frombuffer(state, np.uint8), time.perf_counter()
        with logs.ErrorLines() as lines:
            read = C.llama_state_seq_set_data_ext(
                self.pointer, data.ctypes.data, data.size, seq, PARTIAL * partial
            )
        self.check_devices()
        self._note_copy(True, seq, begun, partial)
        if read != data.size or not read:
            reason = str(lines) or f"it used {read} of them"
            if not (partial and keeps):
                self.seq_rm(seq, -1, -1)
            raise StateError(
                f"llama.cpp could not load a state of {data.size} bytes into sequence {seq}: "
                f"{reason}"
            )

    def _note_copy(self, into: bool, seq: int, begun: float, partial: bool) -> None:
        if self.on_copy is not None and not partial:
            count = self.pos_max(seq) - self.pos_min(seq) + 1
            self.on_copy(into, count, time.perf_counter() - begun)


def _free(
    free: Callable[[C.llama_context_p], None],
    free_threads: Callable[[], None],
    close_abort: Callable[[], None],
    pointer: C.llama_context_p,
) -> None:
    """Free a context, and then what it computes with."""
    free(pointer)
    free_threads()
    close_abort()


def _nothing() -> None:
    """Do nothing: making a context cannot be stopped, so it is waited for and then freed; threads
    of another one are not freed with this one."""


@cache
def _address_prototype(waits: bool) -> Any:
    """The type of a function that returns a plain address.

    One that never waits does not give the interpreter's lock away. There is one type for all
    contexts: a type refers to itself, and stays until it is collected.
    """
    make = ctypes.CFUNCTYPE if waits else ctypes.PYFUNCTYPE
    return make(ctypes.c_void_p, C.llama_context_p, ctypes.c_int32)


def _complete(params: ContextParams, model: Model) -> ContextParams:
    """``params`` with the numbers that depend on the model and the machine filled in."""
    cores = default_threads(model.size_bytes)
    params = dataclasses.replace(
        params, kv_unified=params.kv_unified or params.n_seq_max == 1 or model.is_recurrent
    )
    n_ctx = params.n_ctx or default_n_ctx(model, params)
    if not params.kv_unified:  # each sequence has its own buffer: llama.cpp rounds up
        n_ctx = -(-n_ctx // params.n_seq_max // 256) * 256 * params.n_seq_max
    return dataclasses.replace(
        params,
        n_ctx=n_ctx,
        n_threads=params.n_threads or cores,
        n_threads_batch=params.n_threads_batch or params.n_threads or cores,
    )


def default_n_ctx(model: Model, params: ContextParams) -> int:
    """The model's own context length for each buffer of cells, or as much as there is memory for.

    That is a quarter of the memory that this process may use, for what the CPU keeps of the cache,
    and three quarters of what is free on the GPUs, where the weights are by now, for the rest.
    """
    room = memory_bytes() * MEMORY_SHARE
    gpus: list[int] = [
        device["free_bytes"] for device in named_gpus(model.devices) if device["kind"] == "gpu"
    ]
    layers = model.params.n_gpu_layers
    if gpus and params.offload_kqv and layers != 0:  # each layer's part is where the layer is
        if model.params.split_mode == 0:  # one of them has all
            gpus = gpus[model.params.main_gpu : model.params.main_gpu + 1] or gpus[:1]
        there = 1.0 if layers < 0 else min(1.0, layers / max(1, model.n_layer))
        device_room = sum(gpus) * _DEVICE_SHARE / there
        room = min(device_room, room / (1 - there)) if there < 1 else device_room
    buffers = 1 if params.kv_unified else params.n_seq_max
    return chosen_n_ctx(model.n_ctx_train, _bytes_per_cell(model), room, buffers)


def default_threads(size: int, cores: int | None = None) -> int:
    """The threads that compute a model of ``size`` bytes: as many as there are cores.

    One for a tiny model, whose layers take less time than threads need to wait for each other, and
    less by far when another program has one of the cores.
    """
    if size < _WORTH_THREADS:
        return 1
    return usable_cores() if cores is None else cores


def _check_sizes(params: ContextParams, model: Model) -> None:
    """Raise for sizes with which llama.cpp would end the process instead of returning an error."""
    at_once = min(params.n_ctx, params.n_batch)
    if at_once < params.n_seq_max:
        name = "n_ctx" if params.n_ctx <= params.n_batch else "n_batch"
        raise ParameterError(
            f"{name}={at_once} is too small for n_seq_max={params.n_seq_max}: one step must have "
            f"room for a token of each sequence; make {name} larger, or n_seq_max smaller"
        )
    if not params.kv_unified and model.architecture in _ONE_BUFFER:
        raise ParameterError(
            f"kv_unified=False: llama.cpp cannot compute {model.architecture} with a buffer of "
            "cells for each sequence; leave it out"
        )
    if params.moe_cache_size and not named_gpus(model.devices):
        raise ParameterError(
            "moe_cache_size: experts are cached on a GPU, and this build has none; leave it out"
        )
    if params.moe_cache_size and not model.has_experts:
        raise ParameterError(
            f"moe_cache_size: {model.path} has no experts that could be cached; leave it out"
        )
    # The least that the cells take: few layers of some architectures have any.
    layers = 1.0 if not (model.is_hybrid or model.n_swa) else 1 / 16
    four_bits = 0.28 if params.type_k is not None or params.type_v is not None else 1.0
    kept = 0 if model.is_recurrent else params.n_ctx
    needed = kept * _bytes_per_cell(model) * layers * four_bits
    there = memory_bytes() + sum(each["total_bytes"] for each in named_gpus(model.devices))
    if needed > there:
        raise ContextCreationError(
            f"a context of n_ctx={params.n_ctx} needs at least {needed / 2**30:.0f} GiB, and this "
            f"machine has {there / 2**30:.0f}; try a smaller n_ctx (0 chooses one that fits)"
        )


def _bytes_per_cell(model: Model) -> int:
    return bytes_per_cell(model.architecture, model.metadata, model.n_layer, model.n_embd)


def _context_struct(params: ContextParams) -> C.llama_context_params:
    struct = C.llama_context_default_params()
    same_name = (
        "n_ctx n_batch n_ubatch n_seq_max n_threads n_threads_batch rope_scaling_type pooling_type "
        "attention_type rope_freq_base rope_freq_scale yarn_ext_factor yarn_attn_factor "
        "yarn_beta_fast yarn_beta_slow yarn_orig_ctx embeddings offload_kqv op_offload swa_full "
        "kv_unified no_perf moe_cache_size"
    )
    for name in same_name.split():
        setattr(struct, name, getattr(params, name))
    if params.flash_attn is None:
        struct.flash_attn_type = C.LLAMA_FLASH_ATTN_TYPE_AUTO
    elif params.flash_attn:
        struct.flash_attn_type = C.LLAMA_FLASH_ATTN_TYPE_ENABLED
    else:
        struct.flash_attn_type = C.LLAMA_FLASH_ATTN_TYPE_DISABLED
    if params.mtp:
        struct.ctx_type = C.LLAMA_CONTEXT_TYPE_MTP
    if params.type_k is not None:
        struct.type_k = params.type_k
    if params.type_v is not None:
        struct.type_v = params.type_v
    return struct
