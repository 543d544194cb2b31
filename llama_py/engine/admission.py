"""``Admission``: which waiting requests get a sequence, and what happens when there is none.

Requests are admitted by priority, then in the order they came. Two kinds stay behind: one whose
prompt begins like one that is being evaluated just now waits until it can share that work, and one
that had to give its sequence back waits until there is room for it. And while others generate, one
that takes the place of large idle conversations waits until these were copied, piece by piece, and
one that goes on from a large stored conversation until that was loaded.
"""

from __future__ import annotations

import logging

from llama_py.core.vocab import Vocab
from llama_py.engine.generation import Generation, RequestState
from llama_py.engine.in_flight import InFlight
from llama_py.engine.preparing import begin_sampler, resolve
from llama_py.engine.request import Record
from llama_py.errors import StateError
from llama_py.memory.cache import SequenceCache
from llama_py.memory.saving import Copying, hurried
from llama_py.memory.state_loader import StateLoad

__all__ = ["Admission"]

#: Waiting for another request's prefill must save at least this many tokens.
_WORTH_WAITING = 32
#: Cells that each running request is left to grow into before a preempted one comes back.
_GROWTH = 64
#: How often a request waits while what has to make room for it is copied.
_MOST_WAITS = 3

_log = logging.getLogger("llama_py")


class Admission:
    """Moves requests between the waiting and the running ones.

    Args:
        n_seq_max: sequences that requests may have at once.
    """

    def __init__(
        self, requests: InFlight, cache: SequenceCache, vocab: Vocab, n_seq_max: int
    ) -> None:
        self._requests = requests
        self._cache = cache
        self._vocab = vocab
        self._n_seq_max = n_seq_max
        #: Requests that wait for what they go on from.
        self.loading: list[Generation] = []

    def admit(self) -> None:
        """Give sequences to those who can begin."""
        self._forget_loadings()
        for running in [*self._requests.waiting]:
            if running.ended or running.paused:
                continue
            full = len(self._requests.running) >= self._n_seq_max
            if full and not self._has_a_paused_one():
                return
            if self._must_wait(running):
                continue
            if not self._has_room(running):
                return
            if running.loading is None and self._makes_room(running):
                continue
            if self._loads(running):
                continue
            if full:
                self._free_a_paused_one()
            if not self._start(running) and not (
                self._free_a_paused_one() and self._start(running)
            ):
                return

    def _has_room(self, waiting: Generation) -> bool:
        """False while a request that was preempted would only be preempted again.

        It would be, for ever, if others could not even evaluate their prompts beside it.
        """
        running = [other for other in self._requests.running if not other.paused]
        if not waiting.preempted or not running:
            return True
        leases = [other.lease for other in running if other.lease is not None]
        used = sum(lease.held + lease.remaining + _GROWTH for lease in leases)
        return used + len(waiting.prompt.tokens) <= self._cache.memory.n_ctx

    def _makes_room(self, waiting: Generation) -> bool:
        """True while conversations that have to go are copied, between the steps of streams.

        What somebody goes on with meanwhile makes no room, and others have to go in its place.
        After a few times whatever has to go is copied at once.
        """
        if not self._somebody_generates():
            return False
        saving = self._cache.saving
        if saving.hurry(waiting.copies):
            return True
        again = waiting.waited == 0 or any(map(_makes_none, waiting.copies))
        waiting.copies = self._copies(waiting) if again and waiting.waited < _MOST_WAITS else []
        waiting.waited += bool(waiting.copies)
        return saving.hurry(waiting.copies)

    def _somebody_generates(self) -> bool:
        running = self._requests.running
        return any(it.state is RequestState.DECODING and not it.paused for it in running)

    def _loads(self, waiting: Generation) -> bool:
        """True while what a request goes on from is loaded, between the steps of streams.

        Of two that go on from the same, the second one forks from what the first one has loaded.
        """
        if waiting.loading is None and self._somebody_generates() and self._begins_to_load(waiting):
            return True
        loading = waiting.loading
        if loading is None:
            return False
        if not self._somebody_generates():
            self._load(loading, None)
        return not loading.ended

    def _begins_to_load(self, waiting: Generation) -> bool:
        """Whether what it goes on from is being loaded from now on, for it or for another one."""
        reuse, most = self._reusable(waiting)
        begun = [each.loading for each in self.loading if each.loading is not None]
        try:
            loading = self._cache.load_ahead(waiting.prompt, begun, reuse=reuse, most=most)
        except Exception as error:  # if it happens again when it begins, that fails this one only
            _log.warning("what a request goes on from is not loaded ahead: %r", error)
            return False
        if loading is not None and loading not in begun:
            waiting.loading = loading
            self.loading.append(waiting)
        return loading is not None

    def load(self, took: float, usual: float) -> bool:
        """Load pieces for those who wait; True if there is more to do.

        Args:
            took, usual: see ``hurried``.
        """
        self._forget_loadings()
        loadings = [each.loading for each in self.loading if each.loading is not None]
        left = [loading for loading in loadings if not loading.ended]
        for loading in left[:1]:
            self._load(loading, hurried(took, usual))
        return bool(left)

    def _load(self, loading: StateLoad, seconds: float | None) -> None:
        """Load for so long; None: to the end."""
        loader = self._cache.loader
        try:
            if seconds is None:
                loader.finish(loading)
            else:
                loader.step(loading, seconds)
        except Exception as error:  # if it happens again when the request begins, that fails it
            _log.warning("what a request goes on from is not loaded ahead: %r", error)
            loader.release(loading)

    def _forget_loadings(self) -> None:
        """Of those who have gone, or have begun."""
        for running in [*self.loading]:
            if running.state is not RequestState.WAITING:
                self.loading.remove(running)
                loading, running.loading = running.loading, None
                if loading is not None:
                    self._cache.loader.release(loading)

    def free_loaded(self) -> bool:
        """Cells ran out: free those of what is being loaded; False if nothing is."""
        for running in self.loading:
            if running.loading is not None and running.loading.sequence is not None:
                self._cache.loader.release(running.loading)
                return True
        return False

    def _copies(self, waiting: Generation) -> list[Copying]:
        reuse, most = self._reusable(waiting)
        try:
            return self._cache.park_ahead(waiting.prompt, reuse=reuse, most=most)
        except Exception as error:  # if it happens again when it begins, that fails this one only
            _log.warning("what has to make room for a request is not copied ahead: %r", error)
            return []

    def _reusable(self, running: Generation) -> tuple[bool, int | None]:
        """Whether a cached beginning may be used, and how many tokens of it at most."""
        request = running.request
        scored = request.generation.prompt_logprobs and not running.prompt_known
        return request.reuse and not scored, running.first_output if request.targets else None

    def _must_wait(self, waiting: Generation) -> bool:
        """True while another request is about to evaluate what this one begins with."""
        if waiting.waits_for is not None:
            other, position = waiting.waits_for
            if other.state is RequestState.PREFILL and other.lease is not None and not other.paused:
                if other.lease.held < position:
                    return True
                self._cache.commit(other.lease.sequence, other.lease.prompt)
            waiting.waits_for = None
        request = waiting.request
        if request.generation.prompt_logprobs or request.targets or not request.reuse:
            return False
        return any(self._waits_for(waiting, other) for other in self._requests.running)

    def _waits_for(self, waiting: Generation, other: Generation) -> bool:
        if other.state is not RequestState.PREFILL or other.lease is None or other.paused:
            return False
        mine = waiting.prompt
        shared = min(mine.shared_with(other.lease.prompt), len(mine.tokens) - 1)
        if shared <= other.lease.held:
            return False
        if shared - self._cache.best_keep(mine) < _WORTH_WAITING:
            return False
        self._cache.add_cut(other.lease, shared)
        waiting.waits_for = (other, shared)
        return True

    def _start(self, running: Generation) -> bool:
        """Give a waiting request a sequence; False if there is none."""
        request, record = running.request, running.record
        try:
            self._resolve_again(running)
            reuse, most = self._reusable(running)
            lease = self._cache.acquire(
                running.prompt, request.session, reuse=reuse, most=most, loading=running.loading
            )
        except Exception as error:
            self._requests.fail(running, _typed(error))
            return True
        if lease is None:
            return False
        self._requests.moves_on(lease.sequence)
        if request.targets:
            lease.cuts = []  # checkpoints are for what is kept
        running.lease = lease
        running.state = RequestState.PREFILL
        self._requests.start(running)
        if record.started:  # it comes back after it was preempted: all of this is known
            record.cache["sequence"] = lease.sequence.number
            return True
        record.started = self._requests.clock()
        record.cache = lease.info.as_dict()
        self._count(record, lease.info.reused)
        self._requests.report(running, lease.held)
        return True

    def _resolve_again(self, running: Generation) -> None:
        """Replies that were cached since it was submitted may save evaluating their text."""
        changed = running.resolved_at != self._requests.ended
        prompt = running.request.prompt
        if not changed or running.preempted or prompt.tokens is not None:
            return
        running.prompt = resolve(running.request, self._cache, self._vocab)
        tokens = running.prompt.tokens.tolist()
        if tokens != running.record.tokens:
            running.record.tokens = tokens
            begin_sampler(running)

    def _count(self, record: Record, reused: int) -> None:
        metrics = self._requests.metrics
        metrics.queue_seconds.add(record.started - record.submitted)
        metrics.prompt_tokens += record.n_prompt
        metrics.reused += reused

    # -- back into the queue --------------------------------------------------------------------

    def _has_a_paused_one(self) -> bool:
        return any(running.paused for running in self._requests.running)

    def _free_a_paused_one(self) -> bool:
        """Take the sequence of a request whose consumer does not read; it comes back later."""
        paused = [running for running in self._requests.running if running.paused]
        if paused:
            self.preempt(paused[-1])
        return bool(paused)

    def next_preempted(self) -> Generation:
        """Of those that run, the one that gives up its cells: a paused one, or the youngest."""
        running = self._requests.running
        return next((each for each in reversed(running) if each.paused), running[-1])

    def preempt_one(self) -> None:
        """Cells ran out: take those of one running request."""
        self.preempt(self.next_preempted())

    def preempt(self, running: Generation) -> None:
        """Put a request back into the queue. What it generated becomes part of its prompt."""
        lease, generated = running.lease, running.record.generated
        if lease is not None:
            running.prompt = lease.prompt.extended(
                generated[running.n_resumed :], self._cache.text_keys
            )
            running.n_resumed, running.lease, running.preempted = len(generated), None, True
            self._cache.release(lease)
            if self._cache.live.get(lease.sequence.number) is lease.sequence:
                self._cache.evict(lease.sequence)
        self._requests.send_back(running)
        self._requests.metrics.preempted += 1


def _makes_none(copying: Copying) -> bool:
    """True for a copy that makes no room: its sequence is gone, or somebody goes on with it."""
    return copying.error is not None or copying.sequence.busy or not copying.sequence.tokens


def _typed(error: Exception) -> Exception:
    if not isinstance(error, MemoryError):
        return error
    typed = StateError(f"there is not enough memory to begin this prompt: {error}")
    typed.__cause__ = error
    return typed
