"""What a cache holds of a conversation: found by the session that it was last used for.

Sequences belong to whoever asks for what they begin with; a session is a name on them. These
functions are for whoever lists, forgets or hands over what has that name. They run in the engine's
thread, if nothing else is said.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from llama_py.memory.cache import SequenceCache
from llama_py.memory.saving import Copying
from llama_py.memory.sequences import LiveSequence, Namespace, as_tokens
from llama_py.states.state import Key
from llama_py.states.store import StateStore

__all__ = [
    "begin_part",
    "forget_checkpoints",
    "forget_sequence",
    "forget_session",
    "passed_on",
    "rename_entry",
    "rename_session",
    "sequences_of",
    "stored_of",
]


def sequences_of(cache: SequenceCache, session: str, namespace: Namespace) -> list[LiveSequence]:
    """The sequences of a session that are in memory, the one that was used last first."""
    found = [
        sequence
        for sequence in cache.live
        if sequence.session == session and sequence.namespace == namespace
    ]
    return sorted(found, key=lambda sequence: -sequence.last_used)


def stored_of(
    cache: SequenceCache, session: str, namespace: Namespace
) -> list[tuple[StateStore, Key]]:
    """The entries that the stores have of a session, of each store the longest first.

    May be called by any thread.
    """
    fingerprint = cache.fingerprint(namespace)
    return [
        (store, key)
        for store in cache.stores.open
        for key in store.find_session(session, fingerprint)
    ]


def passed_on(
    cache: SequenceCache, session: str, namespace: Namespace
) -> tuple[LiveSequence, int] | None:
    """The sequence in which another session went on with this one, and how many of its first tokens
    are this one's; None if this one has a sequence of its own, or nothing in memory."""
    if sequences_of(cache, session, namespace):
        return None
    found = (
        (sequence, length)
        for sequence in cache.live
        if sequence.namespace == namespace
        for name, length in sequence.passed_on
        if name == session
    )
    return max(found, key=lambda each: each[1], default=None)


def begin_part(
    cache: SequenceCache, source: LiveSequence, length: int, session: str | None = None
) -> tuple[LiveSequence, Copying]:
    """A sequence with the first tokens of another, and its copy, which has begun."""
    busy, source.busy = source.busy, True  # so that it does not make room for its own beginning
    try:
        part = cache.applier.copy_prefix(source, length)
    finally:
        source.busy = busy
    part.busy, part.session = True, session
    try:
        return part, cache.saving.copy(part)
    except BaseException:
        cache.live.drop(part)
        raise


def forget_session(cache: SequenceCache, session: str, namespace: Namespace) -> int:
    """Forget the sequences of a session; the caller has seen to it that none of them is busy.

    What other conversations begin with as well stays. If the session went on with another one,
    which has no sequence of its own, that gets what is its own back.

    Returns:
        How many tokens were forgotten.
    """
    for sequence in cache.live:
        if sequence.namespace == namespace:
            others = (each for each in sequence.passed_on if each[0] != session)
            sequence.passed_on = tuple(others)
    found = sequences_of(cache, session, namespace)
    return sum(_give_back(cache, sequence) for sequence in found if not sequence.busy)


def _give_back(cache: SequenceCache, sequence: LiveSequence) -> int:
    """Forget a sequence but for what is another session's; how many tokens that were."""
    while sequence.passed_on:
        *others, (session, length) = sequence.passed_on
        if length and not sequences_of(cache, session, sequence.namespace):
            return forget_sequence(cache, sequence, length, session)
        sequence.passed_on = tuple(others)
    return forget_sequence(cache, sequence)


def forget_sequence(
    cache: SequenceCache, sequence: LiveSequence, keep: int = 0, session: str | None = None
) -> int:
    """Forget an idle sequence, with its checkpoints and its entries in the stores.

    Args:
        keep: only the tokens behind these, which are those of ``session``.

    Returns:
        How many tokens were forgotten.
    """
    tokens, namespace = as_tokens(sequence.tokens), sequence.namespace
    offloaded, saved = sequence.offloaded_key, sequence.saved_key
    cache.saving.give_up(sequence)  # or what is left of it would be saved now
    if keep and cache.applier.cut_back(sequence, keep):
        sequence.session, sequence.passed_on = session, sequence.passed_on[:-1]
    else:
        keep = 0
        cache.live.drop(sequence)
    forget_checkpoints(cache, tokens, namespace)
    _discard(cache.stores.offload_store, offloaded)
    _discard(cache.stores.saved, saved)
    return len(tokens) - keep


def _discard(store: StateStore | None, key: Key | None) -> None:
    if store is not None and key is not None and not store.closed:
        store.discard(key)


def forget_checkpoints(
    cache: SequenceCache, tokens: NDArray[np.int32], namespace: Namespace
) -> None:
    """Forget the checkpoints along a path as far as no sequence in memory passes them any more."""
    holders = cache.index.holders(tokens, namespace)
    shared = max((matched for _, matched in holders), default=0)
    for place, record in cache.index.checkpoints_along(tokens, namespace).items():
        if place > shared and not record.pinned:
            cache.index.checkpoints.discard(record)


def rename_entry(store: StateStore, key: Key, session: str) -> None:
    """Hand over an entry of a store to another session. May be called by any thread."""
    state = store.get(key)
    if state is not None:
        store.put(dataclasses.replace(state, session=session), replaces=key)


def rename_session(cache: SequenceCache, old: str, new: str, namespace: Namespace) -> None:
    """Hand over what is in memory of one session, which is idle, to another one.

    It is going to be saved again, in place of what the saving store has of it.
    """
    for sequence in cache.live:
        if sequence.namespace == namespace:
            names = ((new if name == old else name, n) for name, n in sequence.passed_on)
            sequence.passed_on = tuple(names)
    for sequence in sequences_of(cache, old, namespace):
        sequence.session = new
        sequence.saved_length = 0
        cache.saving.begin(sequence, least=1)
