"""``Admission``: which waiting requests get a sequence, and what happens when there is none.

Requests are admitted by priority, then in the order they came. Three kinds stay behind: one whose
prompt begins like one that is being evaluated just now waits until it can share that work; one that
had to give its sequence back waits until there is room for it; and one that goes on from a stored
conversation waits until those that run leave room for that. Smaller ones overtake it, but only a
few while there would be room without them.

While others generate, one that takes the place of large idle conversations waits until these were
copied, piece by piece, and one that goes on from a large stored conversation until that was loaded
(``memory.transfers``).
"""

from __future__ import annotations

import math

from llama_py.core.vocab import Vocab
from llama_py.engine.generation import Generation, RequestState, begin_sampler, resolve
from llama_py.engine.in_flight import InFlight
from llama_py.errors import StateError
from llama_py.memory.cache import SequenceCache

__all__ = ["Admission"]

#: Waiting for another request's prefill must save at least this many tokens.
_WORTH_WAITING = 32
#: Cells that each running request is left to grow into before a preempted one comes back.
_GROWTH = 64
#: How many begin before one that would have cells without them.
_MOST_OVERTAKING = 8
#: Cells for a reply that are freed before it begins, at most.
_REPLY = 1024
#: Steps after which is looked whether cells run out soon.
_LOOK = 32


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
        self._looked = 0

    def admit(self) -> None:
        """Give sequences to those who can begin; now and then, see to it that room is made soon."""
        requests = self._requests
        if requests.waiting:
            self._admit_waiting()
        steps, running = requests.metrics.steps, requests.running
        if running and not requests.drafting and not 0 <= steps - self._looked < _LOOK:
            self._looked = steps
            streams = sum(each.state is RequestState.DECODING for each in running)
            if streams:
                last = self.next_preempted().lease if len(running) > 1 else None
                self._cache.transfers.offload_soon(streams, 2 * _LOOK, last)

    def _admit_waiting(self) -> None:
        others = self._requests.running
        overtaken: list[Generation] = []
        for running in [*self._requests.waiting]:
            if running.ended or running.paused:
                continue
            full = len(others) >= self._n_seq_max
            if full and not any(other.paused for other in others):
                return
            if self._must_wait(running):
                continue
            if not self._has_room(running):
                return
            if self._waits_for_cells(running):
                older = self._taken(before=running.number)
                held_up = older + len(running.prompt.tokens) <= self._cache.memory.n_ctx
                if held_up and running.overtaken >= _MOST_OVERTAKING:
                    return  # without those that have overtaken it, there would be room
                overtaken.append(running)
                continue
            reuse, most = self._reusable(running)
            beside = any(it.state is RequestState.DECODING and not it.paused for it in others)
            if not self._cache.transfers.ready(
                running, running.prompt, reuse=reuse, most=most, beside=beside
            ):
                continue
            if full:
                self._free_a_paused_one()
            if not self._start(running) and not (
                self._free_a_paused_one() and self._start(running)
            ):
                return
            for each in overtaken:
                each.overtaken += 1

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

    def _waits_for_cells(self, waiting: Generation) -> bool:
        """True while those that run leave no room for the stored conversation it goes on from.

        That could not be loaded, and all of it would be evaluated again.
        """
        n_ctx = self._cache.memory.n_ctx
        if self._taken() + len(waiting.prompt.tokens) <= n_ctx:
            return False
        reuse, most = self._reusable(waiting)
        cells = self._cache.transfers.stored_cells(waiting.prompt, reuse=reuse, most=most)
        while cells and self._taken() + cells > n_ctx:
            if not self._free_a_paused_one():
                return self._taken() > 0
        return False

    def _taken(self, before: float = math.inf) -> int:
        """Cells of those that run, when their prompts are evaluated.

        Args:
            before: of those only that were submitted before this one.
        """
        running = [it for it in self._requests.running if it.number < before]
        leases = [it.lease for it in running if it.lease is not None]
        return sum(max(lease.held, len(lease.prompt.tokens)) for lease in leases)

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
                self._cache.index.commit(other.lease.sequence, other.lease.prompt)
            waiting.waits_for = None
        request = waiting.request
        if request.generation.prompt_logprobs or request.targets or not request.reuse:
            return False
        mine = waiting.prompt
        for other in self._requests.running:
            if other.state is not RequestState.PREFILL or other.lease is None or other.paused:
                continue
            shared = min(mine.shared_with(other.lease.prompt), len(mine.tokens) - 1)
            shared = mine.border(shared)
            if shared <= other.lease.held:
                continue
            if shared - self._cache.best_keep(mine) >= _WORTH_WAITING:
                self._cache.add_cut(other.lease, shared)
                waiting.waits_for = (other, shared)
                return True
        return False

    def _start(self, running: Generation) -> bool:
        """Give a waiting request a sequence; False if there is none."""
        request, record = running.request, running.record
        try:
            self._resolve_again(running)
            reuse, most = self._reusable(running)
            if not request.reuse:
                self._make_whole_room(running)
            lease = self._cache.acquire(
                running.prompt, request.session, reuse=reuse, most=most, owner=running
            )
        except MemoryError as error:
            typed = StateError(f"there is not enough memory to begin this prompt: {error}")
            typed.__cause__ = error
            self._requests.fail(running, typed)
            return True
        except Exception as error:
            self._requests.fail(running, error)
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
        metrics = self._requests.metrics
        metrics.queue_seconds.add(record.started - record.submitted)
        metrics.prompt_tokens += record.n_prompt
        metrics.reused += lease.info.reused
        self._requests.report(running, lease.held)
        return True

    def _make_whole_room(self, running: Generation) -> None:
        """Free the cells that it will need, so that they lie in the order of its tokens.

        Those that others leave while it generates may lie before its prompt, and what is added up
        in another order is rounded otherwise: equal calls would not be equal.
        """
        most = running.request.generation.max_tokens
        left = _REPLY if most is None else most - len(running.record.generated)
        cells = len(running.prompt.tokens) + min(left, _REPLY)
        self._cache.live.make_room_for(min(cells, self._cache.limit))

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

    # -- back into the queue --------------------------------------------------------------------

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
            if lease.sequence in self._cache.live:
                self._cache.live.evict(lease.sequence)
        self._requests.send_back(running)
        self._requests.metrics.preempted += 1
