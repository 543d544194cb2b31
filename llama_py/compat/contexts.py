"""``LlamaContext`` and ``LlamaBatch``, of llama-cpp-python's ``_internals``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llama_py.compat.handles import Freed, LlamaModel
from llama_py.compat.llama_cpp import llama_cpp as C
from llama_py.compat.llama_cpp.llama_grammar import LlamaGrammar

__all__ = ["LlamaBatch", "LlamaContext", "gone"]


class LlamaContext(Freed):
    """A context.

    Attributes:
        ctx, memory: the pointers, as integers.
    """

    def __init__(self, *, model: LlamaModel, params: Any, verbose: bool = True) -> None:
        super().__init__()
        ctx = C.llama_init_from_model(model.model, params)
        if ctx is None:
            raise ValueError("Failed to create llama_context")
        self.model = model
        self.params = params
        self.verbose = verbose
        self.sampler = None
        self._ctx: int | None = ctx
        self._exit_stack.callback(self._free)
        model._exit_stack.callback(self.close)

    @classmethod
    def lent(
        cls, model: LlamaModel, params: Any, verbose: bool, pointer: Callable[[], int]
    ) -> LlamaContext:
        """A context of somebody else, who is asked for the pointer each time."""
        made = _Lent.__new__(_Lent)
        Freed.__init__(made)
        made.model, made.params, made.verbose, made.sampler = model, params, verbose, None
        made.pointer = pointer
        return made

    @property
    def ctx(self) -> int | None:
        """The pointer; None after ``close``."""
        return self._ctx

    @property
    def memory(self) -> int | None:
        """The pointer of its memory; None if it has none."""
        return C.llama_get_memory(self.ctx)  # type: ignore[no-any-return]

    def _free(self) -> None:
        if self._ctx is not None:
            C.llama_free(self._ctx)
            self._ctx = None

    def n_ctx(self) -> int:
        """Tokens that it holds."""
        return C.llama_n_ctx(self.ctx)  # type: ignore[no-any-return]

    def pooling_type(self) -> int:
        """``LLAMA_POOLING_TYPE_...``."""
        return C.llama_pooling_type(self.ctx)  # type: ignore[no-any-return]

    # -- memory --------------------------------------------------------------------------------

    def _memory(self) -> int:
        memory = self.memory
        assert memory is not None, "Memory is not initialized"
        return memory

    def kv_cache_clear(self) -> None:
        """Forget everything."""
        memory = self.memory
        if memory is not None:
            C.llama_memory_clear(memory, True)

    def kv_cache_seq_rm(self, seq_id: int, p0: int, p1: int) -> bool:
        """Forget positions from ``p0`` to before ``p1`` (-1: the end); False if that cannot be."""
        return C.llama_memory_seq_rm(self._memory(), max(seq_id, 0), p0, p1)  # type: ignore[no-any-return]

    def kv_cache_seq_cp(self, seq_id_src: int, seq_id_dst: int, p0: int, p1: int) -> None:
        """Copy positions to another sequence."""
        C.llama_memory_seq_cp(self._memory(), seq_id_src, seq_id_dst, p0, p1)

    def kv_cache_seq_keep(self, seq_id: int) -> None:
        """Forget all other sequences."""
        C.llama_memory_seq_keep(self._memory(), seq_id)

    def kv_cache_seq_shift(self, seq_id: int, p0: int, p1: int, shift: int) -> None:
        """Move positions."""
        C.llama_memory_seq_add(self._memory(), seq_id, p0, p1, shift)

    def get_state_size(self) -> int:
        """Bytes of its state."""
        return C.llama_state_get_size(self.ctx)  # type: ignore[no-any-return]

    # -- computing -----------------------------------------------------------------------------

    def decode(self, batch: LlamaBatch) -> None:
        """Evaluate a batch.

        Raises:
            RuntimeError: it failed.
        """
        code = C.llama_decode(self.ctx, batch.batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")

    def encode(self, batch: LlamaBatch) -> None:
        """Encode a batch.

        Raises:
            RuntimeError: it failed.
        """
        code = C.llama_encode(self.ctx, batch.batch)
        if code != 0:
            raise RuntimeError(f"llama_encode returned {code}")

    def set_n_threads(self, n_threads: int, n_threads_batch: int) -> None:
        """Threads for one token at a time, and for many at once."""
        C.llama_set_n_threads(self.ctx, n_threads, n_threads_batch)

    def get_logits(self) -> Any:
        """Logits of the last batch, a pointer to floats."""
        return C.llama_get_logits(self.ctx)

    def get_logits_ith(self, i: int) -> Any:
        """Logits at one position of the last batch."""
        return C.llama_get_logits_ith(self.ctx, i)

    def get_embeddings(self) -> Any:
        """Embeddings of the last batch."""
        return C.llama_get_embeddings(self.ctx)

    def get_embeddings_ith(self, i: int) -> Any:
        """The embedding at one position of the last batch."""
        return C.llama_get_embeddings_ith(self.ctx, i)

    def get_embeddings_seq(self, seq_id: int) -> Any:
        """The pooled embedding of a sequence."""
        return C.llama_get_embeddings_seq(self.ctx, seq_id)

    def reset_timings(self) -> None:
        """Begin to measure anew."""
        C.llama_perf_context_reset(self.ctx)

    def print_timings(self) -> None:
        """Print what was measured to llama.cpp's log."""
        C.llama_perf_context_print(self.ctx)

    @staticmethod
    def default_params() -> Any:
        """``llama_context_params`` as llama.cpp has them."""
        return C.llama_context_default_params()

    # -- sampling: gone from llama.cpp's contexts ----------------------------------------------

    def set_rng_seed(self, seed: int) -> None:
        """Gone; see ``LlamaSampler``."""
        raise gone("set_rng_seed")

    def sample_repetition_penalties(
        self,
        candidates: Any,
        last_tokens_data: Any,
        penalty_last_n: int,
        penalty_repeat: float,
        penalty_freq: float,
        penalty_present: float,
    ) -> None:
        """Gone; see ``LlamaSampler``."""
        raise gone("sample_repetition_penalties")

    def sample_softmax(self, candidates: Any) -> None:
        """Gone; see ``LlamaSampler``."""
        raise gone("sample_softmax")

    def sample_top_k(self, candidates: Any, k: int, min_keep: int) -> None:
        """Gone; see ``LlamaSampler``."""
        raise gone("sample_top_k")

    def sample_top_p(self, candidates: Any, p: float, min_keep: int) -> None:
        """Gone; see ``LlamaSampler``."""
        raise gone("sample_top_p")

    def sample_min_p(self, candidates: Any, p: float, min_keep: int) -> None:
        """Gone; see ``LlamaSampler``."""
        raise gone("sample_min_p")

    def sample_typical(self, candidates: Any, p: float, min_keep: int) -> None:
        """Gone; see ``LlamaSampler``."""
        raise gone("sample_typical")

    def sample_temp(self, candidates: Any, temp: float) -> None:
        """Gone; see ``LlamaSampler``."""
        raise gone("sample_temp")

    def sample_grammar(self, candidates: Any, grammar: LlamaGrammar) -> None:
        """Gone; see ``LlamaSampler``."""
        raise gone("sample_grammar")

    def sample_token_mirostat(
        self, candidates: Any, tau: float, eta: float, m: int, mu: Any
    ) -> int:
        """Gone; see ``LlamaSampler``."""
        raise gone("sample_token_mirostat")

    def sample_token_mirostat_v2(self, candidates: Any, tau: float, eta: float, mu: Any) -> int:
        """Gone; see ``LlamaSampler``."""
        raise gone("sample_token_mirostat_v2")

    def sample_token_greedy(self, candidates: Any) -> int:
        """Gone; see ``LlamaSampler``."""
        raise gone("sample_token_greedy")

    def sample_token(self, candidates: Any) -> int:
        """Gone; see ``LlamaSampler``."""
        raise gone("sample_token")

    def grammar_accept_token(self, grammar: LlamaGrammar, token: int) -> None:
        """Gone; see ``LlamaSampler``."""
        raise gone("grammar_accept_token")


class _Lent(LlamaContext):
    """A context that somebody else frees."""

    pointer: Callable[[], int]

    @property
    def ctx(self) -> int | None:
        """The pointer."""
        return self.pointer()


def gone(name: str) -> NotImplementedError:
    return NotImplementedError(f"{name} is deprecated, use LlamaSampler instead")


class LlamaBatch(Freed):
    """A batch of tokens."""

    def __init__(self, *, n_tokens: int, embd: int, n_seq_max: int, verbose: bool = True) -> None:
        super().__init__()
        self._n_tokens = n_tokens
        self.embd = embd
        self.n_seq_max = n_seq_max
        self.verbose = verbose
        self.sampler = None
        self.batch: Any = C.llama_batch_init(n_tokens, embd, n_seq_max)
        self._exit_stack.callback(self._free)

    def _free(self) -> None:
        if self.batch is not None:
            C.llama_batch_free(self.batch)
            self.batch = None

    def n_tokens(self) -> int:
        """Tokens in it."""
        return self.batch.n_tokens  # type: ignore[no-any-return]

    def reset(self) -> None:
        """Empty it."""
        self.batch.n_tokens = 0

    def set_batch(self, batch: Sequence[int], n_past: int, logits_all: bool) -> None:
        """Put tokens of sequence 0 in, from position ``n_past`` on."""
        self.batch.n_tokens = 0
        self._add(batch, n_past, 0, logits_all)

    def add_sequence(self, batch: Sequence[int], seq_id: int, logits_all: bool) -> None:
        """Add the tokens of a sequence, from position 0 on."""
        self._add(batch, 0, seq_id, logits_all)

    def _add(self, tokens: Sequence[int], start: int, seq_id: int, logits_all: bool) -> None:
        found, first = self.batch, self.batch.n_tokens
        if first + len(tokens) > self._n_tokens:
            raise ValueError(
                f"{first + len(tokens)} tokens, but there is room for {self._n_tokens}"
            )
        for offset, token in enumerate(tokens):
            row = first + offset
            found.token[row] = token
            found.pos[row] = start + offset
            found.seq_id[row][0] = seq_id
            found.n_seq_id[row] = 1
            found.logits[row] = logits_all
        found.n_tokens = first + len(tokens)
        if tokens:
            found.logits[found.n_tokens - 1] = True
