"""Samplers and their settings, of llama-cpp-python's ``_internals``."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_py.compat.contexts import LlamaContext, gone
from llama_py.compat.handles import Freed, LlamaModel
from llama_py.compat.llama_cpp import llama_cpp as C
from llama_py.compat.llama_cpp.llama_grammar import LlamaGrammar

__all__ = [
    "CustomSampler",
    "LlamaSampler",
    "LlamaSamplingContext",
    "LlamaSamplingParams",
    "LlamaTokenDataArray",
    "normalize_embedding",
]


class LlamaTokenDataArray:
    """Tokens with their logits, as samplers take them."""

    def __init__(self, *, n_vocab: int) -> None:
        self.n_vocab = n_vocab
        kind = np.dtype([("id", np.intc), ("logit", np.single), ("p", np.single)], align=True)
        self.candidates_data: Any = np.recarray((n_vocab,), dtype=kind)
        self.candidates = C.llama_token_data_array(
            data=self.candidates_data.ctypes.data_as(C.llama_token_data_p),
            size=n_vocab,
            sorted=False,
        )
        self.default_candidates_data_id = np.arange(n_vocab, dtype=np.intc)
        self.default_candidates_data_p = np.zeros(n_vocab, dtype=np.single)
        self.sampler = None

    def copy_logits(self, logits: NDArray[np.single]) -> None:
        """Take logits, float32 ``(n_vocab,)``."""
        self.candidates_data.id[:] = self.default_candidates_data_id
        self.candidates_data.logit[:] = logits
        self.candidates_data.p[:] = self.default_candidates_data_p
        self.candidates.sorted = False
        self.candidates.size = self.n_vocab


def normalize_embedding(embedding: Sequence[float]) -> Sequence[float]:
    """The vector of length 1 in the same direction; zeros stay zeros."""
    norm = float(np.linalg.norm(embedding))
    return embedding if norm == 0.0 else [value / norm for value in embedding]


@dataclass
class LlamaSamplingParams:
    """Settings of a sampler."""

    n_prev: int = 64
    n_probs: int = 0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    tfs_z: float = 1.0
    typical_p: float = 1.0
    temp: float = 0.8
    penalty_last_n: int = 64
    penalty_repeat: float = 1.0
    penalty_freq: float = 0.0
    penalty_present: float = 0.0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    penalize_nl: bool = True
    grammar: str = ""
    cfg_negative_prompt: str = ""
    cfg_scale: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)


@dataclass
class LlamaSamplingContext:
    """What a sampler has seen."""

    params: LlamaSamplingParams = field(default_factory=LlamaSamplingParams)
    mirostat_mu: ctypes.c_float = field(default_factory=ctypes.c_float)
    grammar: LlamaGrammar | None = None
    prev: list[int] = field(default_factory=list)
    cur: list[Any] = field(default_factory=list)

    def reset(self) -> None:
        """Forget it."""
        self.prev = []
        self.cur = []
        if self.grammar is not None:
            self.grammar.reset()

    def cp(self) -> LlamaSamplingContext:
        """A copy."""
        return LlamaSamplingContext(
            self.params, self.mirostat_mu, self.grammar, self.prev.copy(), self.cur.copy()
        )

    def last(self) -> int | None:
        """The last token, if there is one."""
        return self.prev[-1] if self.prev else None

    def prev_str(self, ctx_main: LlamaContext, n: int) -> str:
        """The text of the last ``n`` tokens."""
        return ctx_main.model.detokenize(self.prev[-n:]).decode("utf-8")

    def sample(self, ctx_main: LlamaContext, idx: int = 0, logits_array: Any | None = None) -> int:
        """Gone; see ``LlamaSampler``."""
        raise gone("LlamaSamplingContext.sample")

    def accept(self, ctx_main: LlamaContext, id: int, apply_grammar: bool) -> None:
        """Add a token."""
        self.prev.append(id)


class CustomSampler:
    """A step of a sampler that is a Python function of ``llama_token_data_array *``."""

    def __init__(self, apply_func: Callable[[Any], None]) -> None:
        self.apply_func = apply_func
        self._interface = C.llama_sampler_i()
        self._apply = C.llama_sampler_i_apply(lambda sampler, tokens: self.apply_func(tokens))
        self._interface.apply = self._apply
        self.sampler = C.llama_sampler()
        self.sampler.iface = ctypes.pointer(self._interface)
        self.sampler.ctx = None

    def get_sampler(self) -> Any:
        """The C object; it must not be freed by llama.cpp."""
        return ctypes.pointer(self.sampler)


class LlamaSampler(Freed):
    """A chain of samplers."""

    def __init__(self) -> None:
        super().__init__()
        chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
        self._begin(chain)

    def _begin(self, chain: Any) -> None:
        self.sampler: Any = chain
        self.custom_samplers: list[tuple[int, CustomSampler]] = []
        self._exit_stack.callback(self._free)

    def _free(self) -> None:
        if self.sampler is not None:
            for index, _ in reversed(self.custom_samplers):  # these are not llama.cpp's to free
                C.llama_sampler_chain_remove(self.sampler, index)
            C.llama_sampler_free(self.sampler)
            self.sampler = None

    def _add(self, step: Any) -> None:
        C.llama_sampler_chain_add(self.sampler, step)

    def add_greedy(self) -> None:
        """Take the most likely token."""
        self._add(C.llama_sampler_init_greedy())

    def add_dist(self, seed: int) -> None:
        """Draw a token."""
        self._add(C.llama_sampler_init_dist(seed & 0xFFFFFFFF))

    def add_softmax(self) -> None:
        """Nothing: ``add_dist`` takes logits."""
        warnings.warn(
            "add_softmax is deprecated; llama_sampler_init_dist samples from logits directly",
            DeprecationWarning,
            stacklevel=2,
        )

    def add_top_k(self, k: int) -> None:
        """Keep the ``k`` most likely tokens."""
        self._add(C.llama_sampler_init_top_k(k))

    def add_top_p(self, p: float, min_keep: int = 1) -> None:
        """Keep the most likely tokens that make up ``p``."""
        self._add(C.llama_sampler_init_top_p(p, min_keep))

    def add_min_p(self, p: float, min_keep: int = 1) -> None:
        """Keep tokens at least ``p`` times as likely as the most likely one."""
        self._add(C.llama_sampler_init_min_p(p, min_keep))

    def add_typical(self, p: float, min_keep: int = 1) -> None:
        """Locally typical sampling."""
        self._add(C.llama_sampler_init_typical(p, min_keep))

    def add_temp(self, temp: float) -> None:
        """Temperature."""
        self._add(C.llama_sampler_init_temp(temp))

    def add_temp_ext(self, t: float, delta: float, exponent: float) -> None:
        """Temperature that follows the entropy."""
        self._add(C.llama_sampler_init_temp_ext(t, delta, exponent))

    def add_xtc(self, p: float, t: float, min_keep: int, seed: int) -> None:
        """XTC."""
        self._add(C.llama_sampler_init_xtc(p, t, min_keep, seed))

    def add_top_n_sigma(self, n: float) -> None:
        """Keep logits within ``n`` standard deviations of the largest."""
        self._add(C.llama_sampler_init_top_n_sigma(n))

    def add_mirostat(self, n_vocab: int, seed: int, tau: float, eta: float, m: int) -> None:
        """Mirostat 1."""
        self._add(C.llama_sampler_init_mirostat(n_vocab, seed, tau, eta, m))

    def add_mirostat_v2(self, seed: int, tau: float, eta: float) -> None:
        """Mirostat 2."""
        self._add(C.llama_sampler_init_mirostat_v2(seed, tau, eta))

    def add_grammar(self, model: LlamaModel, grammar: LlamaGrammar) -> None:
        """A grammar."""
        text, root = grammar._grammar.encode(), grammar._root.encode()
        self._add(C.llama_sampler_init_grammar(model.vocab, text, root))

    def add_grammar_lazy_patterns(
        self,
        model: LlamaModel,
        grammar: LlamaGrammar,
        trigger_patterns: list[str],
        trigger_tokens: list[int],
    ) -> None:
        """A grammar that begins when the text matches a pattern, or with a token."""
        patterns = _texts(trigger_patterns)
        tokens = (ctypes.c_int32 * len(trigger_tokens))(*trigger_tokens)
        step = C.llama_sampler_init_grammar_lazy_patterns(
            model.vocab,
            grammar._grammar.encode(),
            grammar._root.encode(),
            patterns,
            len(patterns),
            tokens,
            len(tokens),
        )
        self._add(step)

    def add_penalties(
        self,
        n_vocab: int,
        penalty_last_n: int,
        penalty_repeat: float,
        penalty_freq: float,
        penalty_present: float,
    ) -> None:
        """Penalties for tokens that occurred."""
        settings = (n_vocab, penalty_last_n, penalty_repeat, penalty_freq, penalty_present)
        self._add(C.llama_sampler_init_penalties(*settings))

    def add_dry(
        self,
        model: LlamaModel,
        dry_multiplier: float,
        dry_base: float,
        dry_allowed_length: int,
        dry_penalty_last_n: int,
        seq_breakers: list[str],
    ) -> None:
        """DRY, which penalises repeated sequences."""
        breakers = _texts(seq_breakers)
        settings = (dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n)
        step = C.llama_sampler_init_dry(model.vocab, *settings, breakers, len(breakers))
        self._add(step)

    def add_logit_bias(self, n_vocab: int, logit_bias: Mapping[int, float]) -> None:
        """What is added to the logits of tokens."""
        biases = (C.llama_logit_bias * len(logit_bias))()
        for entry, (token, bias) in zip(biases, logit_bias.items(), strict=True):
            entry.token, entry.bias = token, bias
        self._add(C.llama_sampler_init_logit_bias(n_vocab, len(biases), biases))

    def add_infill(self, model: LlamaModel) -> None:
        """For filling in the middle."""
        self._add(C.llama_sampler_init_infill(model.vocab))

    def add_custom(self, apply_func: Callable[[Any], None]) -> None:
        """A Python function of ``llama_token_data_array *``."""
        custom = CustomSampler(apply_func)
        self._add(custom.get_sampler())
        self.custom_samplers.append((C.llama_sampler_chain_n(self.sampler) - 1, custom))

    def get_seed(self) -> int:
        """The seed of its random numbers."""
        return C.llama_sampler_get_seed(self.sampler)  # type: ignore[no-any-return]

    def sample(self, ctx: LlamaContext, idx: int = -1) -> int:
        """A token from the logits at ``idx`` of the last batch."""
        return C.llama_sampler_sample(self.sampler, ctx.ctx, idx)  # type: ignore[no-any-return]

    def accept(self, token: int) -> None:
        """Note that a token was taken."""
        C.llama_sampler_accept(self.sampler, token)

    def reset(self) -> None:
        """Forget what was taken."""
        C.llama_sampler_reset(self.sampler)

    def clone(self) -> LlamaSampler:
        """A copy, with what was taken.

        Raises:
            NotImplementedError: it has Python functions.
        """
        if self.custom_samplers:
            raise NotImplementedError("Cannot clone LlamaSampler that contains custom samplers")
        made = LlamaSampler.__new__(LlamaSampler)
        Freed.__init__(made)
        made._begin(C.llama_sampler_clone(self.sampler))
        return made


def _texts(values: Sequence[str]) -> Any:
    return (ctypes.c_char_p * len(values))(*(value.encode("utf-8") for value in values))
