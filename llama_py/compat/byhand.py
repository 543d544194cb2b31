"""``ByHand``: the part of ``llama_cpp.Llama`` that goes token by token, and its state."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llama_py.compat.failures import translated
from llama_py.compat.lenient import changed, lenient
from llama_py.compat.llama_cpp.llama_grammar import LlamaGrammar
from llama_py.compat.position import Position, as_tokens
from llama_py.compat.state import LlamaState
from llama_py.dialects.processors import LogitsProcessorList, StoppingCriteriaList
from llama_py.errors import StateError

if TYPE_CHECKING:
    from llama_py.api.kept.states import LlamaState as NativeState
    from llama_py.api.llama import Llama as NativeLlama
    from llama_py.compat.contexts import LlamaContext
    from llama_py.compat.handles import LlamaModel

__all__ = ["ByHand"]


class ByHand:
    """Methods of ``Llama``; its attributes are set there."""

    _position: Position
    _logits_all: bool
    _sampler: Any
    last_n_tokens_size: int
    native: NativeLlama

    if TYPE_CHECKING:

        @property
        def _ctx(self) -> LlamaContext: ...
        @property
        def _model(self) -> LlamaModel: ...
        @property
        def _seed(self) -> int: ...

        def n_ctx(self) -> int:
            """Tokens that the context holds."""

        def n_vocab(self) -> int:
            """Tokens in the vocabulary."""

        def _take_back(self) -> None: ...

    # -- where it is ---------------------------------------------------------------------------

    @property
    def n_tokens(self) -> int:
        """Tokens that were evaluated; may be set, to go on from an earlier one."""
        return self._position.n_tokens

    @n_tokens.setter
    def n_tokens(self, value: int) -> None:
        self._position.n_tokens = value

    @property
    def input_ids(self) -> NDArray[np.intc]:
        """Their ids, int32 ``(n_ctx,)``; what follows the first ``n_tokens`` means nothing."""
        return self._position.input_ids

    @input_ids.setter
    def input_ids(self, value: NDArray[np.intc]) -> None:
        self._position.input_ids = value

    @property
    def scores(self) -> NDArray[np.single]:
        """Logits, float32 ``(rows, n_vocab)``: without ``logits_all`` only the last row has any."""
        return self._position.scores

    @scores.setter
    def scores(self, value: NDArray[np.single]) -> None:
        self._position.scores = value

    @property
    def _input_ids(self) -> NDArray[np.intc]:
        return np.array(self._position.tokens(), np.intc)

    @property
    def _scores(self) -> NDArray[np.single]:
        return self.scores[: self.n_tokens, :]

    @property
    def eval_tokens(self) -> deque[int]:
        """The tokens that were evaluated."""
        return deque(self._position.tokens(), maxlen=self.n_ctx())

    @property
    def eval_logits(self) -> deque[list[float]]:
        """Rows of ``scores`` as lists; without ``logits_all`` only the last one."""
        every = self._logits_all
        rows = self._scores if every else self._scores[-1:]
        return deque(rows.tolist(), maxlen=self.n_ctx() if every else 1)

    def reset(self) -> None:
        """Begin a new sequence. What was evaluated can still be reused."""
        self._position.forget_by_hand()
        self._position.set([])

    # -- evaluating ----------------------------------------------------------------------------

    def eval(self, tokens: Sequence[int]) -> None:
        """Evaluate tokens after those that were evaluated before."""
        self._take_back()
        new = as_tokens(tokens)
        with translated():
            held = self._position.begin_by_hand()
            self.native.eval(new)
        self._position.set([*held, *new], by_hand=True)

    def sample(
        self,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_eta: float = 0.1,
        mirostat_tau: float = 5.0,
        penalize_nl: bool = True,
        logits_processor: LogitsProcessorList | None = None,
        grammar: LlamaGrammar | None = None,
        idx: int | None = None,
    ) -> int:
        """Choose a token from the logits at ``idx`` (default: the last), and do not evaluate it."""
        options = _sampling(locals())
        assert self.n_tokens > 0, "nothing was evaluated yet"
        if self._sampler is not None:
            row = -1 if idx is None else idx - self.n_tokens
            chosen: int = self._sampler.sample(self._ctx, row)
            return chosen
        self._take_back()
        self._position.begin_by_hand()
        return self.native.sample(idx=idx, **options)

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        grammar: LlamaGrammar | None = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        """Generate tokens after ``tokens`` until the caller leaves the loop.

        While it is suspended, ``n_tokens``, ``input_ids`` and ``scores`` speak of the tokens before
        the one that was yielded. With ``logits_all`` the scores of all of them are there, which
        takes a forward pass for each prompt that is not a continuation of the last one.

        Args:
            reset: False puts ``tokens`` after what was evaluated before.
        """
        options = _sampling(locals())
        self._take_back()
        prompt = [*([] if reset else self._position.tokens()), *as_tokens(tokens)]
        make = self._generate_by_hand if self._logits_all else self._generate
        yield from make(prompt, stopping_criteria, options)

    def _generate(
        self, prompt: list[int], criteria: Any, options: dict[str, Any]
    ) -> Generator[int, Sequence[int] | None, None]:
        """By the engine, which reuses what it can."""
        position = self._position
        if position.by_hand:
            position.forget_by_hand()
        position.set(prompt)
        if criteria is not None:
            options["stopping_criteria"] = criteria
        with translated():
            source = self.native.generate(prompt, **options)
            try:
                for token in source:
                    more = yield token
                    position.append(prompt, token)
                    while more is not None:
                        sent = as_tokens(more)
                        for each in sent:
                            position.append(prompt, each)
                        following = source.send(sent)
                        more = yield following
                        position.append(prompt, following)
            except StopIteration:
                return
            finally:
                source.close()

    def _generate_by_hand(
        self, prompt: list[int], criteria: Any, options: dict[str, Any]
    ) -> Generator[int, Sequence[int] | None, None]:
        """Token by token, so that there are logits of each."""
        held = self._position.tokens() if self._position.by_hand else []
        if not held or prompt[: len(held)] != held:
            self.reset()
            held = []
        new = prompt[len(held) :]
        while True:
            if new:
                self.eval(new)
            ids, row = self._input_ids, self.native.last_logits
            if criteria is not None and _stops(criteria, ids, row):
                return
            token = self.native.sample(**options)
            more = yield token
            new = [token, *as_tokens(more or ())]
            if self.n_tokens + len(new) > self.n_ctx():
                return

    def _init_sampler(
        self,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_eta: float = 0.1,
        mirostat_tau: float = 5.0,
        penalize_nl: bool = True,
        logits_processor: LogitsProcessorList | None = None,
        grammar: LlamaGrammar | None = None,
    ) -> Any:
        """A chain of llama.cpp's samplers with these settings, for ``_sampler``."""
        from llama_py.compat.samplers import LlamaSampler

        chain = LlamaSampler()
        if logits_processor is not None:
            chain.add_custom(self._processing(logits_processor))
        chain.add_penalties(
            self.n_vocab(),
            self.last_n_tokens_size,
            repeat_penalty,
            frequency_penalty,
            presence_penalty,
        )
        if grammar is not None:
            chain.add_grammar(self._model, grammar)
        if temp == 0.0:
            chain.add_greedy()
            return chain
        if temp > 0.0 and mirostat_mode == 1:
            chain.add_mirostat(self.n_vocab(), self._seed, mirostat_tau, mirostat_eta, 100)
            return chain
        if temp > 0.0 and mirostat_mode == 2:
            chain.add_mirostat_v2(self._seed, mirostat_tau, mirostat_eta)
            return chain
        if temp > 0.0:
            chain.add_top_k(top_k)
            chain.add_typical(typical_p)
            chain.add_top_p(top_p)
            chain.add_min_p(min_p)
            chain.add_temp(temp)
        chain.add_dist(self._seed)
        return chain

    def _processing(self, processors: Any) -> Any:
        """A step of a chain that calls logits processors."""
        functions = processors if isinstance(processors, list) else [processors]

        def apply(tokens: Any) -> None:
            array = tokens.contents
            kind = np.dtype([("id", np.intc), ("logit", np.single), ("p", np.single)], align=True)
            address = ctypes.addressof(array.data.contents)
            rows = np.ctypeslib.as_array(
                (ctypes.c_uint8 * (array.size * kind.itemsize)).from_address(address)
            ).view(kind)
            for function in functions:
                rows["logit"][:] = function(self._input_ids, rows["logit"])

        return apply

    # -- states --------------------------------------------------------------------------------

    def save_state(self) -> LlamaState:
        """The sequence of the last call, with its tokens and logits.

        Before any call it is a state of no tokens, and to load that resets.
        """
        self._take_back()
        if not self._position.tokens():
            ids, rows = np.zeros(self.n_ctx(), np.intc), np.zeros((0, self.n_vocab()), np.single)
            return LlamaState(ids, rows, 0, b"", 0, self._seed)
        return self._state_of(self.native.save_state())

    def _state_of(self, native: NativeState) -> LlamaState:
        """A state of llama_py as one of llama-cpp-python."""
        tokens = [int(token) for token in native.stored.tokens]
        ids = np.zeros(max(self.n_ctx(), len(tokens)), np.intc)
        ids[: len(tokens)] = tokens
        rows = np.zeros((len(tokens), self.n_vocab()), np.single)
        if native.logits is not None and tokens:
            rows[-1] = native.logits
        data = native.stored.state.tobytes()
        state = LlamaState(ids, rows, len(tokens), data, native.nbytes, self._seed)
        state.native = native
        return state

    def load_state(self, state: LlamaState) -> None:
        """Go on after a state, with nothing else in memory.

        What had been evaluated since would be reused otherwise, and rows that were evaluated in
        other batches differ a little: the same call would not draw the same reply again.

        Raises:
            RuntimeError: it is of another model or other settings, or was put together by hand.
        """
        self._take_back()
        if state.n_tokens == 0:
            self.reset()
            self.native.reset()
            self.native.set_seed(state.seed)
            return
        native = getattr(state, "native", None)
        if native is None:
            raise StateError(
                "Failed to set llama state data: this LlamaState was not made by save_state() of "
                "this library; states of llama-cpp-python cannot be read"
            )
        if native.stored.fingerprint == self.native.runtime.port.fingerprint:
            self._position.forget_by_hand()
            self.native.reset()
        self.native.load_state(native)
        self.native.set_seed(state.seed)
        self._position.set([int(each) for each in state.input_ids[: state.n_tokens]], by_hand=True)


def _sampling(given: dict[str, Any]) -> dict[str, Any]:
    """Options of ``sample`` and ``generate`` of llama_py, from the arguments of those here."""
    skipped = ("self", "tokens", "reset", "idx", "penalize_nl", "stopping_criteria")
    options = changed({name: each for name, each in given.items() if name not in skipped})
    return lenient({name: each for name, each in options.items() if each is not None})


def _stops(criteria: Any, tokens: NDArray[np.intc], row: NDArray[np.single]) -> bool:
    functions = criteria if isinstance(criteria, list) else [criteria]
    return any(function(tokens, row) for function in functions)
