"""``Conversations``: what a model holds of conversations, for whoever manages them by name.

A server lists, saves, forgets and brings back the conversations of its clients. Each is found by
the session that its sequence was last used for, or by the number of that sequence, and only in the
namespace of its owner. All methods may be called by any thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from llama_py.api.port import LoadedModel, ModelPort, operation
from llama_py.errors import (
    ConversationBusyError,
    ConversationMissingError,
    FingerprintError,
    StateError,
    StorageError,
)
from llama_py.memory import by_label
from llama_py.memory.saving import Copying
from llama_py.memory.sequences import LiveSequence
from llama_py.memory.state_loader import StateLoad
from llama_py.params import check_number
from llama_py.states.state import StoredState, refusal, why_refused

__all__ = ["Conversations", "HeldConversation", "Which", "Work"]

#: Seconds to wait for the disk.
_PATIENCE = 30.0
#: The number of a sequence, or the label of a session.
Which = int | str


@dataclass(frozen=True, slots=True)
class Work:
    """What is being done with a sequence.

    Attributes:
        number: names the request.
        prompt: tokens of its prompt.
        reused: of these, those that did not have to be evaluated.
        generated: tokens that were sampled so far.
        most: tokens that may be generated, or None.
        drafts: whether tokens are guessed for it, and verified together.
    """

    number: int
    prompt: int
    reused: int
    generated: int
    most: int | None
    drafts: bool


@dataclass(frozen=True, slots=True)
class HeldConversation:
    """A sequence in memory.

    Attributes:
        sequence: its number.
        tokens: the tokens that it holds.
        busy: a request is using it, or ``eval`` is.
        session: the label of the conversation that it was last used for, or None.
        namespace: see ``GenerationRequest.namespace``.
        last_used: ascending in the order in which sequences were used.
        work: the request that is using it, or None.
    """

    sequence: int
    tokens: tuple[int, ...]
    busy: bool
    session: str | None
    namespace: Hashable
    last_used: int
    work: Work | None


class Conversations:
    """See the module.

    ``namespace`` is that of the requests (see ``GenerationRequest.namespace``); None is that of the
    adapters that are loaded.
    """

    def __init__(self, port: ModelPort) -> None:
        self.port = port

    @property
    def _loaded(self) -> LoadedModel:
        return self.port.here()

    @property
    @operation
    def drafts(self) -> bool:
        """Whether requests that say nothing about drafts have some."""
        return self._loaded.engine.drafts

    @operation
    def held(self) -> list[HeldConversation]:
        """The sequences in memory, by number."""
        return self._loaded.driver.run(self._held)

    def _held(self) -> list[HeldConversation]:
        at_work: dict[LiveSequence, Work] = {}
        for running in self._loaded.engine.requests.running:
            if running.lease is not None:
                record = running.record
                at_work[running.lease.sequence] = Work(
                    running.number,
                    record.n_prompt,
                    record.reused,
                    len(record.generated),
                    running.request.generation.max_tokens,
                    running.drafting is not None,
                )
        live = sorted(self._loaded.cache.live, key=lambda each: each.number)
        return [
            HeldConversation(
                each.number,
                tuple(each.tokens),
                each.busy,
                each.session,
                each.namespace,
                each.last_used,
                at_work.get(each),
            )
            for each in live
        ]

    @operation
    def in_memory(self, prompts: Sequence[tuple[Sequence[int], Hashable | None]]) -> list[int]:
        """How many tokens of each prompt need not be evaluated: a sequence or RAM has them.

        Args:
            prompts: tokens, and the namespace of the requests that have them.
        """
        live = [(each.namespace, np.array(each.tokens, np.int32)) for each in self.held()]
        most = []
        for prompt, namespace in prompts:
            tokens = np.array(prompt, np.int32)
            cache, own = self._loaded.cache, self._or_own(namespace)
            counts = [0]
            for held in (each for whose, each in live if whose == own):
                both = min(len(tokens), len(held))
                parted = np.flatnonzero(tokens[:both] != held[:both])
                counts.append(int(parted[0]) if parted.size else both)
            store = cache.stores.offload_store
            if store is not None and not store.closed:
                counts += [each.matched for each in store.find(tokens, cache.fingerprint(own))]
            most.append(max(counts))
        return most

    # -- out and in -----------------------------------------------------------------------------

    @operation
    def export(
        self, which: Which, namespace: Hashable | None = None, length: int | None = None
    ) -> StoredState:
        """A copy of a conversation, as ``bring_in`` takes it. Other requests go on meanwhile.

        If another session goes on with it, that is a copy of what both share.

        Args:
            length: only its first tokens.

        Raises:
            ConversationMissingError, ConversationBusyError: there is none, or it is in use.
            ParameterError: it has fewer than ``length`` tokens.
            StateError: it cannot be copied; or this memory cannot give back the first ``length``
                tokens.
        """
        driver, saving = self._loaded.driver, self._loaded.cache.saving
        if length is None and (shared := driver.run(lambda: self._passed_on(which, namespace))):
            length = shared[1]
        if length is not None:
            return self._export_part(which, namespace, length)
        try:
            copying = driver.run(lambda: saving.copy(self._idle(which, namespace)))
        except ConversationMissingError:
            stored = self._stored(which, namespace)
            if stored is None:
                raise
            return stored
        return self._loaded.copied(copying)

    def _export_part(self, which: Which, namespace: Hashable | None, length: int) -> StoredState:
        driver, cache = self._loaded.driver, self._loaded.cache
        begin = partial(self._begin_part, which, namespace, length)
        try:
            part, copying = driver.run(begin)
        except ConversationMissingError:
            stored = self._stored(which, namespace)
            if stored is None:
                raise
            self.bring_in(stored, stored.session, namespace)
            part, copying = driver.run(begin)
        try:
            return self._loaded.copied(copying)
        finally:
            driver.run(lambda: cache.live.drop(part))

    def _begin_part(
        self, which: Which, namespace: Hashable | None, length: int
    ) -> tuple[LiveSequence, Copying]:
        """In the engine's thread: a sequence with the beginning, and its copy, which has begun."""
        cache = self._loaded.cache
        shared = self._passed_on(which, namespace)
        if shared is None:
            source = self._idle(which, namespace)
            shared = source, len(source.tokens)
        source, most = shared
        _check_idle(source)
        check_number("length", length, 1, most, integer=True)
        session = source.session if isinstance(which, int) else which
        return by_label.begin_part(cache, source, length, session)

    def _stored(self, which: Which, namespace: Hashable | None) -> StoredState | None:
        """What is left of a session whose sequence had to make room."""
        if isinstance(which, int):
            return None
        cache = self._loaded.cache
        found = by_label.stored_of(cache, which, self._or_own(namespace))
        states = (store.get(key) for store, key in found)
        return next((state for state in states if state is not None), None)

    @operation
    def bring_in(
        self, state: StoredState, session: str | None, namespace: Hashable | None = None
    ) -> None:
        """Bring a conversation back, for its next turn.

        Raises:
            FingerprintError: it was made by another model, under other settings, or by another
                owner; nothing was touched.
            ConversationBusyError: every sequence is busy.
            StateError: it does not fit.
        """
        own = self._or_own(namespace)
        expected = self._loaded.cache.fingerprint(own)
        if state.fingerprint != expected:
            refused = refusal(expected, state.fingerprint)
            why = "was saved by another model, under other settings, or by another owner"
            if refused == "version":
                why = why_refused(expected, state.fingerprint)
            raise FingerprintError(f"this conversation {why}; evaluate it again instead", refused)
        tokens, n_vocab = state.tokens, self._loaded.model.vocab.n_tokens
        # Cells of pictures and sounds are below -1.
        if tokens.size and (int(tokens.max()) >= n_vocab or bool((tokens == -1).any())):
            raise StateError("the saved state has tokens that the vocabulary has not")
        labelled = dataclasses.replace(state, session=session)
        driver = self._loaded.driver
        if driver.run(lambda: self._is_there(labelled, own)):
            return  # a second copy would only take room
        with self._loaded.loading(labelled, own) as loading:
            driver.run(lambda: self._bring_in(labelled, own, loading))

    def _is_there(self, state: StoredState, namespace: Hashable) -> bool:
        known = by_label.sequences_of(self._loaded.cache, state.session or "", namespace)
        return any(np.array_equal(each.tokens, state.tokens) for each in known)

    def _bring_in(self, state: StoredState, namespace: Hashable, loading: StateLoad | None) -> None:
        cache = self._loaded.cache
        if cache.bring_in(state, namespace=namespace, loading=loading) is None:
            raise ConversationBusyError(
                "every sequence is busy; try again when a request has ended"
            )

    # -- by name --------------------------------------------------------------------------------

    @operation
    def forget(self, which: Which, namespace: Hashable | None = None) -> int:
        """Forget a conversation, in memory and in the stores; how many tokens were in memory.

        Raises:
            ConversationMissingError: there is no sequence of this number. (A session may have
                none.)
            ConversationBusyError: it is in use; nothing was forgotten.
        """
        own = self._or_own(namespace)
        count = self._loaded.driver.run(lambda: self._forget(which, own))
        if not isinstance(which, str):
            return count
        # What the stores have, and the checkpoints along it; the engine waits for no disk.
        cache = self._loaded.cache
        for store, key in by_label.stored_of(cache, which, own):
            state = store.get(key)
            store.discard(key)
            if state is not None:
                forget = partial(by_label.forget_checkpoints, cache, state.tokens, own)
                self._loaded.driver.run(forget)
        return count

    def _forget(self, which: Which, namespace: Hashable) -> int:
        cache = self._loaded.cache
        if isinstance(which, int):
            return by_label.forget_sequence(cache, self._idle(which, namespace))
        _check_idle(*by_label.sequences_of(cache, which, namespace))
        return by_label.forget_session(cache, which, namespace)

    @operation
    def rename(self, old: str, new: str, namespace: Hashable | None = None) -> None:
        """Hand over what there is of one session to another one, in memory and in the stores.

        Raises:
            ConversationBusyError: it is in use; nothing was changed.
        """
        own = self._or_own(namespace)
        self._loaded.driver.run(lambda: self._rename(old, new, own))
        self.port.write_out(_PATIENCE)
        for store, key in by_label.stored_of(self._loaded.cache, old, own):
            by_label.rename_entry(store, key, new)

    def _rename(self, old: str, new: str, namespace: Hashable) -> None:
        _check_idle(*by_label.sequences_of(self._loaded.cache, old, namespace))
        by_label.rename_session(self._loaded.cache, old, new, namespace)

    @operation
    def save(self, session: str, namespace: Hashable | None = None) -> int:
        """Have all of a session written to the store that was set; how many tokens it has.

        Raises:
            ConversationMissingError, ConversationBusyError: it is not in memory, or in use.
            StorageError: not all of it could be written.
        """
        count = self._loaded.driver.run(lambda: self._save(session, namespace))
        self.port.write_out(_PATIENCE)
        cache = self._loaded.cache
        found = by_label.stored_of(cache, session, self._or_own(namespace))
        known = (store.info(key) for store, key in found if store is cache.stores.saved)
        written = max((entry.length for entry in known if entry is not None), default=0)
        if written < count:
            raise StorageError(
                f"of the {count} tokens of this session {written} are stored: the disk failed, as "
                "the log says, or what is stored may not become as large"
            )
        return count

    def _save(self, session: str, namespace: Hashable | None) -> int:
        sequence = self._idle(session, namespace)
        self._loaded.cache.saving.begin(sequence, least=1)
        return len(sequence.tokens)

    # -- one of them ----------------------------------------------------------------------------

    def _or_own(self, namespace: Hashable | None) -> Hashable:
        return self.port.facts.namespace if namespace is None else namespace

    def _passed_on(
        self, which: Which, namespace: Hashable | None
    ) -> tuple[LiveSequence, int] | None:
        if isinstance(which, int):
            return None
        return by_label.passed_on(self._loaded.cache, which, self._or_own(namespace))

    def _idle(self, which: Which, namespace: Hashable | None) -> LiveSequence:
        """The sequence of this number, or the one that a session used last."""
        cache, own = self._loaded.cache, self._or_own(namespace)
        found: LiveSequence | None
        if isinstance(which, int):
            found = cache.live.by_number.get(which)
        else:
            found = next(iter(by_label.sequences_of(cache, which, own)), None)
        if found is None or found.namespace != own or not found.tokens:
            raise ConversationMissingError(f"{which!r} has nothing in memory")
        _check_idle(found)
        return found


def _check_idle(*sequences: LiveSequence) -> None:
    if any(sequence.busy for sequence in sequences):
        raise ConversationBusyError(
            "a request is using this conversation; try again when it has ended"
        )
