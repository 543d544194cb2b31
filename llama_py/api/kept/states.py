"""``SequenceStates``: what is in memory, taken out and brought back.

A saved state is that of the conversation of the call that ended last: it is found by its tokens,
and never taken from a sequence that a request is using.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_py.api.call import LastCalls
from llama_py.api.kept.reports import CacheReport, cache_report
from llama_py.api.lowlevel import ByHand
from llama_py.api.port import LoadedModel, ModelPort, operation
from llama_py.engine.request import Prompt, Record
from llama_py.errors import FingerprintError, ParameterTypeError, StateError, shown
from llama_py.memory import by_label
from llama_py.memory.saving import Copying
from llama_py.memory.sequences import LiveSequence
from llama_py.params import check_number
from llama_py.states.state import StoredState, refusal, why_refused

__all__ = ["LlamaState", "SequenceStates", "SnapshotInfo"]


@dataclass(frozen=True, slots=True, eq=False)
class LlamaState:
    """The return value of ``states.save``: one sequence, and the logits at its end; picklable.

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
    """A named snapshot, or a state without a name (""): its tokens and its bytes."""

    name: str
    n_tokens: int
    nbytes: int


class SequenceStates:
    """Saves and restores the sequences of one model."""

    def __init__(self, port: ModelPort, by_hand: ByHand, last: LastCalls) -> None:
        self.port = port
        self._by_hand = by_hand
        self._last = last

    @property
    def _loaded(self) -> LoadedModel:
        return self.port.here()

    # -- of the last call -----------------------------------------------------------------------

    def save(self, length: int | None = None) -> LlamaState:
        """A copy of what ``eval`` evaluated, or else of the conversation that ended last.

        Args:
            length: only its first tokens.

        Raises:
            StateError: nothing was evaluated yet; it is not in memory any more; or this memory
                cannot give back its first ``length`` tokens.
        """
        driver, cache = self._loaded.driver, self._loaded.cache
        copying, logits, part = driver.run(lambda: self._begin(length))
        try:
            return LlamaState(self._loaded.copied(copying), logits)
        finally:
            if part is not None:
                driver.run(lambda: cache.live.drop(part))

    def _begin(
        self, length: int | None
    ) -> tuple[Copying, NDArray[np.float32] | None, LiveSequence | None]:
        """In the engine's thread: a copy that has begun, the logits at its end, and the sequence
        that was made for it, if only a part of one is wanted."""
        cache = self._loaded.cache
        sequence, ended = self._by_hand.sequence, self._last.ended
        if sequence is not None and sequence.tokens:
            count = len(sequence.tokens)
        elif sequence is not None or ended is None:
            raise StateError("nothing was evaluated yet, so there is no state to save")
        else:
            sequence, count = self._find(ended)
        if length is None and len(sequence.tokens) == count:
            books = self._loaded.engine.requests
            logits = books.last_logits if sequence is books.last_sequence else None
            return cache.saving.copy(sequence), logits, None
        if length is not None:
            check_number("length", length, 1, count, integer=True)
        part, copying = by_label.begin_part(cache, sequence, length or count)
        return copying, None, part

    def _find(self, ended: Record) -> tuple[LiveSequence, int]:
        """The sequence that holds the most of a request: it alone, or as its beginning."""
        tokens = [*ended.tokens, *ended.generated]
        live = [sequence for sequence in self._loaded.cache.live if sequence.tokens]
        whole = [
            sequence
            for sequence in live
            if not sequence.busy and sequence.tokens == tokens[: len(sequence.tokens)]
        ]
        best = max(whole, key=lambda sequence: len(sequence.tokens), default=None)
        held = len(best.tokens) if best is not None else 0
        evaluated = len(tokens) - (1 if ended.generated else 0)
        if held < evaluated:  # somebody goes on with it
            start = tokens[:evaluated]
            longer = (each for each in live if each.tokens[:evaluated] == start)
            found = next(longer, None)
            if found is not None:
                return found, evaluated
        # A call that failed or was cancelled may have evaluated less than its prompt.
        finished = ended.reason in ("stop", "length")
        if best is None or (held < evaluated and finished):
            raise StateError(
                "the conversation of the last call is not in memory any more; ask for the state "
                "before other calls need its place, or raise n_seq_max"
            )
        return best, held

    # -- back -----------------------------------------------------------------------------------

    def load(self, state: Any) -> None:
        """Bring a state back, as what ``eval`` evaluated; see ``ModelStates.restore``."""
        stored, logits = self._checked(state).stored, state.logits
        with self._loaded.loading(stored, self._loaded.cache.namespace) as loading:
            self._loaded.driver.run(lambda: self._by_hand.adopt(stored, logits, loading))

    def _checked(self, state: Any) -> LlamaState:
        if not isinstance(state, LlamaState):
            raise ParameterTypeError(
                f"state must be what states.save() returned, not {shown(state)}"
            )
        own, theirs = self._loaded.fingerprint, state.stored.fingerprint
        if theirs != own:
            refused, why = refusal(own, theirs), why_refused(own, theirs)
            if refused == "settings":
                why += " (context size, KV types, window, RoPE, adapters)"
            raise FingerprintError(f"this state {why}; evaluate the prompt again instead", refused)
        return state

    @operation
    def report(self) -> CacheReport:
        """See ``ModelCache.report``."""
        loaded = self._loaded
        return loaded.driver.run(lambda: cache_report(loaded))

    # -- pins -----------------------------------------------------------------------------------

    @operation
    def hold(self, tokens: Sequence[int], may_be_missing: bool) -> bool:
        """Pin a beginning; whether all of it is in memory.

        Raises:
            StateError: it is not, and may not be missing.
        """
        cache = self._loaded.cache
        prompt = cache.resolve_tokens(tokens)

        def pin() -> bool:
            there = cache.live.pin(prompt) == len(prompt.tokens)
            if not there and not may_be_missing:
                cache.live.unpin(prompt)
                raise StateError("this is not in memory any more; prewarm it again")
            return there

        return self._loaded.driver.run(pin)

    @operation
    def let_go(self, tokens: Sequence[int] | None) -> None:
        """Unpin a beginning, or with None everything."""
        cache = self._loaded.cache
        if tokens is None:
            self._loaded.driver.run(cache.live.unpin_all)
        else:
            prompt = cache.resolve_tokens(tokens)
            self._loaded.driver.run(lambda: cache.live.unpin(prompt))

    # -- of a conversation ----------------------------------------------------------------------

    @operation
    def of_prompt(self, prompt: Prompt, session: str) -> StoredState | None:
        """The longest state that holds a prompt's beginning and nothing else, or None."""
        cache = self._loaded.cache
        text = cache.text_keys.mark(prompt.text or b"", prompt.plain, prompt.text_media).key
        found = self._loaded.driver.run(lambda: self._longest(session, text))
        return self._loaded.copied(found) if isinstance(found, Copying) else found

    def _longest(self, session: str, text: bytes) -> StoredState | Copying | None:
        """In the engine's thread: what is offloaded, or a copy of what is in memory."""
        cache = self._loaded.cache
        fitting = [
            sequence
            for sequence in cache.live
            if sequence.tokens
            and not sequence.busy
            and sequence.spelled == len(sequence.tokens)
            and _begins(text, sequence.text)
        ]
        best = max(fitting, key=lambda sequence: len(sequence.tokens), default=None)
        store, offloaded = cache.stores.offload_store, None
        if store is not None:
            states = map(store.get, store.find_session(session, self._loaded.fingerprint))
            own = (each for each in states if each is not None and _begins(text, each.text))
            offloaded = next(own, None)
        if best is not None and (offloaded is None or len(best.tokens) >= len(offloaded.tokens)):
            return cache.saving.copy(best)
        return offloaded

    @operation
    def mostly_cached(self, prompt: Prompt) -> bool:
        """Whether more than half of a prompt need not be evaluated."""
        cache = self._loaded.cache
        resolved = cache.resolve_text(
            prompt.text or b"", plain=prompt.plain, media=prompt.text_media
        )
        best: int = self._loaded.driver.run(lambda: cache.best_keep(resolved))
        return 2 * best >= len(resolved.tokens)


def _begins(text: bytes, cached: bytes | None) -> bool:
    return bool(cached) and text.startswith(cached or b"\0")
