"""The low-level calls of ``Llama``: tokens in, logits and tokens out.

``eval`` works on a sequence of its own, beside the conversations. What it evaluated is known to the
cache like everything else: a later call whose prompt begins the same way reuses it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llama_py import forks
from llama_py.core.sampler import Sampler
from llama_py.dialects.requests import read_grammar
from llama_py.dialects.sampling import read_sampling
from llama_py.engine.request import Prompt, Request, TokenEvent
from llama_py.errors import LlamaError, ParameterError, shown
from llama_py.options import GENERATE, SAMPLE
from llama_py.params import GenerationParams, check_number

if TYPE_CHECKING:
    from llama_py.core.context import Context
    from llama_py.core.model import Model
    from llama_py.engine.engine import Engine
    from llama_py.llama_cpp import llama_context_p, llama_model_p
    from llama_py.memory.cache import SequenceCache
    from llama_py.memory.sequences import LiveSequence
    from llama_py.params import LogitsProcessor, StoppingCriteria

__all__ = ["LowLevelInterface"]


class _Absent:
    """Stands where something would be that this model does not have here; using it is an error."""

    def __init__(self, why: Callable[[], LlamaError]) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Any:
        raise self._why()

    def close(self) -> None:
        """There is nothing to close."""


def _only_vocabulary() -> ParameterError:
    return ParameterError(
        "this model was loaded with vocab_only=True: it can tokenize, and nothing else; load "
        "it without"
    )


class LowLevelInterface:
    """Tokenizing, evaluating and sampling by hand. Part of ``Llama``."""

    _model: Model
    _context: Context
    _cache: SequenceCache
    _engine: Engine
    _tokenizer: Any
    _logits_all: bool
    seed: int

    def _init_lowlevel(self) -> None:
        self._manual: LiveSequence | None = None
        self._manual_sampler: Sampler | None = None
        self._rows: dict[int, NDArray[np.float32]] = {}  # by position

    def _lack_context(self) -> None:
        """Whatever needs a context or an engine says that there is none."""
        absent: Any = _Absent(_only_vocabulary)
        self._context = self._cache = self._engine = absent

    def _stay_behind(self) -> None:
        """In a forked child: whatever is native says that it belongs to the parent.

        Nothing is let go of: what is freed may wait for threads that are not here.
        """
        absent: Any = _Absent(forks.refuse)
        mine = self.__dict__
        parts = ("_model", "_context", "_cache", "_engine", "_template")
        mine["_left"] = [mine.get(name) for name in parts]
        mine.update({name: absent for name in parts if mine.get(name) is not None})

    # -- text ---------------------------------------------------------------------------------

    def tokenize(self, text: bytes | str, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of ``text``.

        Args:
            add_bos: add BOS / EOS as the model was trained with.
            special: read texts such as ``<|im_end|>`` as the special tokens they name.
        """
        if self._tokenizer is not None:
            tokens: list[int] = self._tokenizer.tokenize(_bytes(text), add_bos, special)
            return tokens
        return self._model.vocab.tokenize(text, add_special=add_bos, parse_special=special)

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """The bytes of ``tokens``; special tokens have none unless ``special``.

        Where the first one is BOS, the space that SentencePiece put before the text goes again, so
        that ``detokenize(tokenize(text))`` is ``text``; elsewhere every space stays. A BOS is all
        that tells the two apart, so a text that begins with a space of its own loses that one on a
        vocabulary that adds BOS and no space (as in llama-cpp-python).

        Args:
            prev_tokens: the tokens before these; only a ``tokenizer`` of the caller's needs them.
        """
        if self._tokenizer is not None:
            text: bytes = self._tokenizer.detokenize(tokens, prev_tokens, special)
            return text
        _ = self._model.pointer  # which raises after close(); known pieces would not
        return self._model.vocab.detokenize_prompt(tokens, special=special)

    # -- the C objects --------------------------------------------------------------------------

    @property
    def model(self) -> llama_model_p:
        """The C pointer of the model, for functions of ``llama_py.llama_cpp``.

        It is valid until ``close()``, and so is ``ctx``. Raises ``ClosedError`` afterwards.
        """
        return self._model.pointer

    @property
    def ctx(self) -> llama_context_p:
        """The C pointer of the context, for functions of ``llama_py.llama_cpp``.

        What they do to its memory is not known to the cache: call ``reset()`` afterwards.
        """
        return self._context.pointer

    # -- evaluating -----------------------------------------------------------------------------

    @property
    def n_tokens(self) -> int:
        """Tokens that ``eval`` has in memory."""
        return len(self._manual.tokens) if self._manual is not None else 0

    @property
    def eval_tokens(self) -> list[int]:
        """The tokens that ``eval`` has in memory."""
        return [*self._manual.tokens] if self._manual is not None else []

    @property
    def last_logits(self) -> NDArray[np.float32]:
        """Logits at the last evaluated position, of ``eval`` or of the call that ended last.

        float32 ``(n_vocab,)``; a copy, before any bias or penalty.

        Raises:
            LlamaError: nothing was evaluated yet.
        """
        _ = self._model.pointer  # raises after close(): nothing is sampled from a freed model
        logits = self._engine.last_logits
        if logits is None:
            raise LlamaError("nothing was evaluated yet; call eval() or create a completion first")
        return logits

    @property
    def scores(self) -> NDArray[np.float32]:
        """Logits of all tokens that ``eval`` has evaluated, float32 ``(n_tokens, n_vocab)``.

        With ``logits_all=False`` only the last of them has a row that is not zero. Tokens that came
        with ``load_state`` have none either.
        """
        table = np.zeros((self.n_tokens, self._model.vocab.n_tokens), np.float32)
        if len(table) and self._engine.last_sequence is self._manual:
            table[-1] = self.last_logits
        for position, row in self._rows.items():
            if position < len(table):
                table[position] = row
        return table

    def eval(self, tokens: Sequence[int]) -> None:
        """Evaluate tokens after those that ``eval`` evaluated before.

        They are appended to the sequence that ``eval`` owns, whose text is updated with them; the
        conversations of other calls are not touched. ``reset()`` begins a new one.

        Raises:
            ContextOverflowError: they do not fit; nothing was evaluated.
            TokenizationError: an id is not in the vocabulary.
        """
        tokens = self._model.vocab.token_list(tokens)
        if not tokens:
            return
        with self._engine.lock:
            sequence = self._manual or self._begin_manual()
            start = len(sequence.tokens)
            self._rows = self._rows if start else {}  # a failed eval may have emptied it
            rows = self._engine.evaluate(sequence, tokens, every=self._logits_all)
            if self._logits_all:
                self._rows.update(enumerate(rows, start))

    def _begin_manual(self) -> LiveSequence:
        sequence = self._cache.take()
        if sequence is None:
            raise LlamaError("every sequence is busy; wait for a request, or raise n_seq_max")
        self._manual = sequence
        return sequence

    def _release_manual(self) -> None:
        """Let the cache have what ``eval`` evaluated, so that other calls may reuse it."""
        with self._engine.lock:
            self._rows = {}
            self._manual_sampler = None
            sequence = self._manual
            if sequence is not None:
                # Together: an interrupt must not leave a sequence that nobody knows of.
                self._manual, sequence.busy, sequence.by_hand = None, False, False
                self._cache.give_back(sequence)

    def reset(self) -> None:
        """Clear the memory (``llama_memory_clear``) and everything that is known about it.

        Requests in flight are cancelled; parked conversations, checkpoints and counters are gone.
        A store that was given with ``set_cache``, and named snapshots, are the caller's: they keep
        what they hold.

        Raises:
            LlamaError: it is called from a callback of a request; nothing was cleared.
        """
        with self._engine.lock:
            self._engine.cancel_all()
            self._manual = None
            self._manual_sampler = None
            self._rows = {}
            self._cache.clear()
            self._engine.reset_counters()
            self._after_reset()

    def _after_reset(self) -> None:
        """Further state that a reset clears."""

    # -- sampling -------------------------------------------------------------------------------

    def set_seed(self, seed: int) -> None:
        """The seed of later calls that give none of their own."""
        check_number("seed", seed, integer=True)
        self.seed = seed

    def sample(self, *, idx: int | None = None, **options: Any) -> int:
        """Choose a token from the logits at ``idx`` (default: the last), and do not evaluate it.

        Args:
            idx: a position that ``eval`` evaluated with ``logits_all=True``.
            options: as for ``create_completion``: ``temperature`` (or ``temp``), ``top_k``, ...

        Raises:
            LlamaError: nothing was evaluated yet.
        """
        if idx is not None:
            check_number("idx", idx, integer=True)
        if idx is None or idx == self.n_tokens - 1:
            row = self.last_logits.copy()
        elif idx in self._rows and idx < self.n_tokens:
            row = self._rows[idx].copy()
        else:
            raise ParameterError(f"idx={shown(idx)}: there are logits only for evaluated positions")
        given: Any = options
        params = read_sampling(SAMPLE, SAMPLE.read(given), self)  # type: ignore[arg-type]
        sampler = self._manual_sampler
        if sampler is None or sampler.params != params:
            sampler = Sampler(self._model.vocab, params, self.eval_tokens)
            self._manual_sampler = sampler
        return sampler.sample(row)

    def generate(
        self,
        tokens: Sequence[int],
        *,
        reset: bool = True,
        logits_processor: LogitsProcessor | Sequence[LogitsProcessor] | None = None,
        stopping_criteria: StoppingCriteria | Sequence[StoppingCriteria] | None = None,
        **options: Any,
    ) -> Generator[int, Sequence[int] | None, None]:
        """Continue ``tokens`` without end; the caller stops by leaving the loop.

        What the prompt shares with anything cached is reused. Closing the generator ends the
        request, and what it evaluated stays in the cache. ``send(tokens)`` puts tokens of the
        caller's behind the one that came last, and gives the token after them.

        Args:
            reset: False continues the tokens of ``eval`` with these.
            logits_processor, stopping_criteria: a function of (tokens, logits), or several.
            options: as for ``create_completion``: ``temperature`` (or ``temp``), ``top_k``,
                ``grammar``, ...

        Raises:
            RequestCancelled: another thread called ``reset()``.
        """
        tokens = self._model.vocab.token_list(tokens)
        prompt = tokens if reset else [*self.eval_tokens, *tokens]
        own = {"logits_processor": logits_processor, "stopping_criteria": stopping_criteria}
        given = GENERATE.read({**options, **own})
        context: Any = self
        sampling = read_sampling(GENERATE, given, context, read_grammar(given, context))
        criteria: Any = given.get("stopping_criteria") or ()
        generation = GenerationParams(ignore_eos=True, stopping_criteria=criteria)
        for turn in itertools.count():
            request = Request(Prompt(tokens=prompt), sampling, generation, choice=turn)
            new: list[int] = []
            more = yield from self._tokens_of(request, new)
            if more is None:
                return
            if sampling.grammar is not None or sampling.constraint is not None:
                raise ParameterError("send(): a grammar cannot tell what tokens of yours mean")
            prompt = [*prompt, *new, *self._model.vocab.token_list(more)]

    def _tokens_of(
        self, request: Request, given: list[int]
    ) -> Generator[int, Sequence[int] | None, Sequence[int] | None]:
        """The tokens of a request, also put into ``given``; returns what was sent, if anything."""
        self._engine.submit(request)
        try:
            self._release_manual()
        except BaseException:  # Ctrl-C: nobody would ever read these tokens
            self._engine.discard([request])
            raise
        with closing(self._engine.events(request)) as events:  # type: ignore[type-var]
            for event in events:
                if isinstance(event, TokenEvent):
                    given.append(event.token)
                    more = yield event.token
                    if more is not None:
                        return more
                elif event.error is not None:
                    raise event.error
        return None


def _bytes(text: bytes | str) -> bytes:
    return text.encode("utf-8") if isinstance(text, str) else text
