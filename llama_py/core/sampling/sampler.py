"""``Sampler``: from one row of logits to one token, for one generated sequence.

The draw itself is llama.cpp's sampler chain. What touches only a few tokens (biases, penalties) is
done on the row by numpy, and top-k is taken by a partition before the chain sees anything, so that
the chain handles ``k`` candidates and not the whole vocabulary. Greedy requests never build a
chain. Biases and penalties are written into the row and taken back after the draw, so that a row
still holds what the model said when log-probabilities are read from it.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_py._native import llama_h as C
from llama_py.core import logs
from llama_py.core.grammar.sampler import CANDIDATE, GrammarSampler
from llama_py.core.handle import Handle
from llama_py.core.sampling.history import TokenHistory
from llama_py.core.sampling.likeliest import likeliest_ids
from llama_py.core.sampling.select import largest_sorted, nucleus
from llama_py.core.steps import MOST_CANDIDATES
from llama_py.core.vocab import Vocab
from llama_py.errors import DecodeError, ParameterError, ParameterTypeError
from llama_py.params import RANDOM_SEED, ReplyWatch, SamplingParams, TokenConstraint

__all__ = ["NOTHING_ALLOWED", "Sampler"]

NOTHING_ALLOWED = (
    "no token is allowed: every logit is -inf, or one is not a number; if no grammar and no logits "
    "processor forbids all tokens, the model's file may be damaged (load it with "
    "check_tensors=True)"
)
Row = NDArray[np.float32]


#: Tokens to look back where only the vocabulary of a model was loaded.
_UNKNOWN_LENGTH = 1 << 17


class Sampler:
    """Samples one sequence.

    Args:
        vocab: the vocabulary of the logits.
        params: what to do.
        history: the tokens of the prompt; penalties count them as well.
        seed_offset: added to the seed, so that several choices of one request differ.
        longest: tokens of the longest sequence there can be; None is what the model was trained
            with. Nothing looks back further, whatever ``params`` say.

    Raises:
        GrammarError: the grammar does not parse.
        ParameterError: a biased token is not in the vocabulary, or all tokens are forbidden.
    """

    def __init__(
        self,
        vocab: Vocab,
        params: SamplingParams,
        history: Sequence[int] = (),
        seed_offset: int = 0,
        longest: int | None = None,
    ) -> None:
        self.params = params
        self._greedy, self._penalises = params.greedy, params.penalises
        self._vocab = vocab
        self._longest = longest or vocab.n_ctx_train or _UNKNOWN_LENGTH
        anew = params.seed in (RANDOM_SEED, -1)
        seed = int.from_bytes(os.urandom(4), "little") if anew else params.seed + seed_offset
        self.seed = seed % RANDOM_SEED
        self._bias = _bias_arrays(params, vocab)
        self._window: _PenaltyWindow | None = None
        self._chain: Handle[C.llama_sampler_p] | None = None
        self._top_p: Handle[C.llama_sampler_p] | None = None
        self._grammar: GrammarSampler | None = None
        watch = params.grammar.watch if params.grammar else None
        self._watch: ReplyWatch | None = watch(vocab) if watch else None
        self._history: TokenHistory | None = None
        self._constraint: TokenConstraint | None = (
            params.constraint() if params.constraint else None
        )
        dry = params.dry_multiplier > 0 and (params.samplers is None or "dry" in params.samplers)
        #: llama.cpp's chain is needed; DRY is in it, also for greedy requests.
        self._draws = dry or not self._greedy
        self._top_k = self._early_top_k()
        self._candidates: NDArray[Any] | None = None
        self._sampled = 0
        #: Address of the chain.
        self._address = 0
        self._eog: NDArray[np.int32] | None = None
        try:
            self._grammar = GrammarSampler(vocab, params.grammar) if params.grammar else None
            self._top_p = self._early_top_p()
            self.begin(history)
        except BaseException:
            self.close()
            raise
        #: True if sampling is nothing but the most likely token of the untouched row.
        self.trivial = not (self._draws or self._changes_rows)
        counts = self._penalises or params.dry_multiplier > 0 or params.samplers is not None
        #: True if it matters which tokens the prompt has.
        self.remembers = counts or bool(params.logits_processors)
        few = self._draws and 0 < self._top_k <= MOST_CANDIDATES
        #: True if it needs nothing but the logits, and the chain at most a few of them.
        self.in_steps = self.trivial or (few and not self._changes_rows)

    @property
    def _changes_rows(self) -> bool:
        """True if something else than the logits decides what is likely, or allowed."""
        return bool(
            self._bias
            or self._window
            or self._constraint
            or self._grammar
            or self.params.logits_processors
            or self.params.min_tokens
        )

    @property
    def of_steps(self) -> tuple[int, int]:
        """Where ``in_steps``: address of the chain, and its candidates; 0 takes the likeliest."""
        return self._address, self._top_k if self._address else 0

    def begin(self, history: Sequence[int]) -> None:
        """Take these as the tokens of the prompt. Nothing was sampled yet.

        Grammars do not look at the prompt: they were compiled before, by whoever had the time.
        """
        params = self.params
        self._window = _PenaltyWindow(params, history) if self._own_penalties else None
        self._history = TokenHistory(history) if params.logits_processors else None
        if self._chain is not None:
            self._chain.close()
        self._chain = self._build_chain(history) if self._draws else None
        if self._chain is not None:
            self._address = ctypes.cast(self._chain.pointer, ctypes.c_void_p).value or 0

    @property
    def slow(self) -> bool:
        """True if llama.cpp's chain gets the whole vocabulary, which takes it milliseconds."""
        return self._chain is not None and not self._top_k and self._top_p is None

    # -- one token -----------------------------------------------------------------------------

    def sample(self, row: Row) -> int:
        """Choose a token from ``row`` (float32 ``(n_vocab,)``, unchanged afterwards); accept it.

        Raises:
            DecodeError: the logits are not numbers, or nothing is allowed any more.
        """
        if self.trivial:
            return self._most_likely(row)
        early = self._sampled < self.params.min_tokens
        if self._constraint is not None or early or self._history is not None:
            row = self._restrict(row.copy())  # many entries, which cannot be taken back
        # The entries that biases and penalties are going to change.
        touched = self._bias[0] if self._bias is not None else None
        if self._window is not None:
            ids = self._window.ids()
            touched = ids if touched is None else np.concatenate([ids, touched])
        before = row[touched] if touched is not None else None
        try:
            if self._bias is not None:
                row[self._bias[0]] += self._bias[1]
            if self._window is not None:
                self._window.apply(row)
            token = self._choose_allowed(row)
        finally:
            if touched is not None:
                row[touched] = before
        self.accept(token)
        return token

    def accept(self, token: int) -> None:
        """Take a token as sampled: advance grammar, penalties and history past it."""
        self._sampled += 1
        if self._window is not None:
            self._window.push(token)
        if self._chain is not None:
            C.llama_sampler_accept(self._chain.pointer, token)
        if self._grammar is not None:
            self._accept_by_grammar(self._grammar, token)
        if self._constraint is not None:
            self._constraint.accept(token)
        if self._history is not None:
            self._history.append(token)

    def _accept_by_grammar(self, grammar: GrammarSampler, token: int) -> None:
        seen: tuple[int, ...] = (token,)
        if self._watch is not None:
            asleep = self._asleep
            self._watch.accept(token)
            if asleep:  # a lazy grammar sees no reasoning but its end
                seen = self._watch.ending
        reason = None
        for each in seen:
            reason = reason or grammar.accept(each)
        if reason is None:
            return
        if self.params.grammar is None or not self.params.grammar.lazy:
            raise DecodeError(f"token {token} does not fit the grammar: {reason}")
        # What followed the trigger is not the grammar's: the model did not mean it. The reply goes
        # on as it would have without a grammar.
        logs.LOGGER.info("the reply leaves its grammar at token %d: %s", token, reason)
        grammar.close()
        self._grammar = None

    @property
    def _asleep(self) -> bool:
        """True while the reply is in its reasoning, and the grammar is a lazy one."""
        lazy = self.params.grammar is not None and self.params.grammar.lazy
        return lazy and self._watch is not None and self._watch.inside

    def close(self) -> None:
        """Free the C samplers."""
        for owned in (self._chain, self._top_p, self._grammar):
            if owned is not None:
                owned.close()

    # -- steps ---------------------------------------------------------------------------------

    def _restrict(self, row: Row) -> Row:
        if self._history is not None:
            tokens = self._history.array
            for process in self.params.logits_processors:
                row = _processed(process(tokens, row), row)
        if self._sampled < self.params.min_tokens:
            if self._eog is None:
                self._eog = np.array(self._vocab.eog_tokens(), np.int32)
            row[self._eog] = -np.inf
        if self._constraint is not None:
            self._constraint.mask(row)
        return row

    def _choose_allowed(self, row: Row) -> int:
        if self._grammar is None or self._asleep:
            return self._choose(row)
        if self.params.grammar is not None and self.params.grammar.first:
            row = row.copy()
            self._grammar.mask(row)
        token, watch = self._choose(row), self._watch
        if not self._grammar.allows(token) or (watch is not None and watch.excess(token)):
            row = row.copy()
            self._grammar.mask(row)
            if watch is not None:
                watch.trim(row, token)
            token = self._choose(row)
        return token

    def _choose(self, row: Row) -> int:
        if self._chain is None:
            return self._most_likely(row)
        if self._top_k:
            found = likeliest_ids(row, self._top_k)
            ids = largest_sorted(row, self._top_k) if found is None else found
            return self._draw(ids, row[ids])
        if self._top_p is not None and np.isfinite(row.max()):
            kept = nucleus(row, self.params.top_p, self.params.min_keep)
            if kept is not None:
                return self._draw(kept, row[kept])
        return self._draw(None, row)

    @staticmethod
    def _most_likely(row: Row) -> int:
        token = int(row.argmax())
        if not row.item(token) > -inf:
            raise DecodeError(NOTHING_ALLOWED)
        return token

    def _draw(self, ids: NDArray[np.int32] | NDArray[np.intp] | None, logits: Row) -> int:
        """Let the chain draw from these candidates, the likeliest first; None means all tokens."""
        if not logits.max() > -np.inf:
            raise DecodeError(NOTHING_ALLOWED)
        if self._candidates is None or len(self._candidates) < len(logits):
            self._candidates = np.zeros(len(logits), CANDIDATE)
            self._data = ctypes.cast(
                self._candidates.ctypes.data, ctypes.POINTER(C.llama_token_data)
            )
        used = self._candidates[: len(logits)]
        used["id"] = np.arange(len(logits), dtype=np.int32) if ids is None else ids
        used["logit"] = logits
        array = C.llama_token_data_array(self._data, len(logits), -1, ids is not None)
        if ids is None and self._top_p is not None:
            C.llama_sampler_apply(self._top_p.pointer, array)
        C.llama_sampler_apply(self._chain.pointer, array)  # type: ignore[union-attr]
        selected = array.selected
        if not 0 <= selected < array.size:
            raise DecodeError("no token could be drawn: the logits are not numbers")
        return int(array.data[selected].id)

    # -- construction --------------------------------------------------------------------------

    @property
    def _own_penalties(self) -> bool:
        """Penalties come first by default, and only then may numpy apply them to the row.

        The order does not matter to a greedy request, which takes what is largest in the end.
        """
        p = self.params
        wanted = p.samplers is None or (self._greedy and "penalties" in p.samplers)
        return self._penalises and wanted

    def _early_top_k(self) -> int:
        """The k to take before the chain, or 0 if a step before top-k needs the whole row."""
        p = self.params
        first = p.samplers is None or p.samplers[:1] == ("top_k",)
        before = p.dry_multiplier > 0 or p.top_n_sigma > 0
        return p.top_k if self._cuts_to_k and first and not before and not p.mirostat else 0

    def _early_top_p(self) -> Handle[C.llama_sampler_p] | None:
        """Top-p apart from the chain, if it is the first step that looks at the whole row.

        Where it keeps few tokens, as a rule, they are found without it.
        """
        p = self.params
        before = p.dry_multiplier > 0 or p.top_n_sigma > 0 or p.typical_p < 1 or self._cuts_to_k
        if p.samplers is not None or self._greedy or p.mirostat or before or not p.top_p < 1:
            return None
        return Handle(C.llama_sampler_init_top_p(p.top_p, p.min_keep), C.llama_sampler_free)

    @property
    def _cuts_to_k(self) -> bool:
        return 0 < self.params.top_k < self._vocab.n_tokens

    def _build_chain(self, history: Sequence[int]) -> Handle[C.llama_sampler_p]:
        params = C.llama_sampler_chain_default_params()
        params.no_perf = True
        chain = Handle(C.llama_sampler_chain_init(params), C.llama_sampler_free)
        try:
            for step in self._steps():
                C.llama_sampler_chain_add(chain.pointer, step)
            if self.params.dry_multiplier > 0 or self.params.samplers is not None:
                for token in history:
                    C.llama_sampler_accept(chain.pointer, token)
        except BaseException:
            chain.close()
            raise
        return chain

    def _steps(self) -> Iterator[C.llama_sampler_p]:
        """The samplers of the chain, each made when the one before it is the chain's."""
        p = self.params
        if p.mirostat:
            yield C.llama_sampler_init_temp(p.temperature)
            tau, eta = p.mirostat_tau, p.mirostat_eta
            if p.mirostat == 1:
                size = self._vocab.n_tokens
                yield C.llama_sampler_init_mirostat(size, self.seed, tau, eta, 100)
            else:
                yield C.llama_sampler_init_mirostat_v2(self.seed, tau, eta)
        elif self._greedy:
            yield self._dry()
            yield C.llama_sampler_init_greedy()
        else:
            yield from self._steps_of_a_draw()
            if p.adaptive_target >= 0:
                target, decay = p.adaptive_target, p.adaptive_decay
                yield C.llama_sampler_init_adaptive_p(target, decay, self.seed)
            else:
                yield C.llama_sampler_init_dist(self.seed)

    def _steps_of_a_draw(self) -> Iterator[C.llama_sampler_p]:
        """The samplers before the draw itself."""
        p = self.params
        makers: dict[str, tuple[bool, Callable[[], C.llama_sampler_p]]] = {
            "penalties": (self._penalises and not self._own_penalties, self._penalties),
            "dry": (p.dry_multiplier > 0, self._dry),
            "top_n_sigma": (
                p.top_n_sigma > 0,
                lambda: C.llama_sampler_init_top_n_sigma(p.top_n_sigma),
            ),
            "top_k": (
                self._cuts_to_k and not self._top_k,
                lambda: C.llama_sampler_init_top_k(p.top_k),
            ),
            "typical_p": (
                p.typical_p < 1,
                lambda: C.llama_sampler_init_typical(p.typical_p, p.min_keep),
            ),
            "top_p": (
                p.top_p < 1 and self._top_p is None,
                lambda: C.llama_sampler_init_top_p(p.top_p, p.min_keep),
            ),
            "min_p": (p.min_p > 0, lambda: C.llama_sampler_init_min_p(p.min_p, p.min_keep)),
            "xtc": (
                p.xtc_probability > 0,
                lambda: C.llama_sampler_init_xtc(
                    p.xtc_probability, p.xtc_threshold, p.min_keep, self.seed
                ),
            ),
            "temperature": (True, self._temperature),
        }
        names = p.samplers if p.samplers is not None else tuple(makers)
        for name in names:
            wanted, make = makers[name]
            if wanted:
                yield make()

    def _temperature(self) -> C.llama_sampler_p:
        p = self.params
        if p.dynatemp_range > 0:
            return C.llama_sampler_init_temp_ext(
                p.temperature, p.dynatemp_range, p.dynatemp_exponent
            )
        return C.llama_sampler_init_temp(p.temperature)

    def _penalties(self) -> C.llama_sampler_p:
        p = self.params
        last_n = self._reach(p.penalty_last_n)
        return C.llama_sampler_init_penalties(
            self._vocab.n_tokens, last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty
        )

    def _reach(self, last_n: int) -> int:
        """How many tokens a step looks back. llama.cpp takes memory for all of them at once."""
        return self._longest if last_n < 0 else min(last_n, self._longest)

    def _dry(self) -> C.llama_sampler_p:
        p = self.params
        numbers = (
            p.dry_multiplier,
            p.dry_base,
            p.dry_allowed_length,
            self._reach(p.dry_penalty_last_n),
        )
        breakers = tuple(text.encode() for text in p.dry_sequence_breakers)

        def make() -> C.llama_sampler_p:
            array = (ctypes.c_char_p * max(1, len(breakers)))(*breakers)
            return C.llama_sampler_init_dry(self._vocab.pointer, *numbers, array, len(breakers))

        if p.dry_multiplier == 0 or p.dry_base < 1 or not numbers[-1]:  # it does nothing
            return make()
        # Each breaker is compared with the whole vocabulary: once for all choices and requests.
        prototype = self._vocab.prototype((*numbers, breakers), make)
        return C.llama_sampler_clone(prototype.pointer)


class _PenaltyWindow:
    """Repetition penalties over the last tokens, applied to just those tokens.

    The formula is that of llama.cpp's penalties sampler: a positive logit is divided by the repeat
    penalty and another multiplied, then ``count * frequency + presence`` is subtracted.
    """

    def __init__(self, params: SamplingParams, history: Sequence[int]) -> None:
        self._params = params
        last_n = params.penalty_last_n
        self._tokens = deque(history[-last_n:] if last_n > 0 else history)
        self._room = last_n if last_n > 0 else None
        self._counts = Counter(self._tokens)

    def push(self, token: int) -> None:
        self._tokens.append(token)
        self._counts[token] += 1
        if self._room is not None and len(self._tokens) > self._room:
            oldest = self._tokens.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]

    def ids(self) -> NDArray[np.intp]:
        """The tokens that are penalised now."""
        return np.fromiter(self._counts.keys(), np.intp, len(self._counts))

    def apply(self, row: Row) -> None:
        p = self._params
        ids = self.ids()
        counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
        logits = row[ids]
        repeat = np.float32(p.repeat_penalty)
        logits = np.where(logits <= 0, logits * repeat, logits / repeat)
        row[ids] = logits - (counts * np.float32(p.frequency_penalty) + p.presence_penalty)


def _bias_arrays(
    params: SamplingParams, vocab: Vocab
) -> tuple[NDArray[np.intp], NDArray[np.float32]] | None:
    if not params.logit_bias:
        return None
    for token in params.logit_bias:
        if not 0 <= token < vocab.n_tokens:
            raise ParameterError(
                f"logit_bias: token {token} is outside of the vocabulary "
                f"(0 to {vocab.n_tokens - 1})"
            )
    ids = np.fromiter(params.logit_bias.keys(), np.intp, len(params.logit_bias))
    values = np.fromiter(params.logit_bias.values(), np.float32, len(ids))
    if len(ids) == vocab.n_tokens and np.isneginf(values).all():
        error = ParameterError("logit_bias forbids every token, so that there can be no reply")
        error.param = "logit_bias"
        raise error
    return ids, values


def _processed(result: Any, row: NDArray[np.float32]) -> NDArray[np.float32]:
    """The row that a logits processor returned; it may have changed the one that it was given."""
    if result is None:
        raise ParameterTypeError("a logits processor returned None; it must return the logits")
    try:
        changed = np.asarray(result, np.float32)
    except (TypeError, ValueError):
        raise ParameterTypeError(
            f"a logits processor returned {type(result).__name__} ({str(result)[:40]!r}); it must "
            f"return the logits, float32 {row.shape}"
        ) from None
    if changed.shape != row.shape:
        raise ParameterError(
            f"a logits processor returned logits of shape {changed.shape} instead of {row.shape}"
        )
    return changed
