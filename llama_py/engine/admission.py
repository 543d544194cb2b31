"""``Admission``: which waiting requests get a sequence, and what happens when there is none.

Requests are admitted by priority, then in the order they came. Two kinds stay behind: one whose
prompt begins like one that is being evaluated just now waits until it can share that work, and one
that had to give its sequence back waits until there is room for it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from llama_py.core.sampler import Sampler
from llama_py.core.vocab import Vocab
from llama_py.engine.board import Board
from llama_py.engine.request import Request, RequestState
from llama_py.errors import QueueFullError, StateError
from llama_py.memory.cache import SequenceCache
from llama_py.memory.sequences import ResolvedPrompt

__all__ = ["Admission"]

#: Waiting for another request's prefill must save at least this many tokens.
_WORTH_WAITING = 32
#: Cells that each running request is left to grow into before a preempted one comes back.
_GROWTH = 64


class Admission:
    """See the module.

    Args:
        n_seq_max: sequences that requests may have at once.
        max_waiting: requests that may wait beyond those that could start at once.
    """

    def __init__(
        self, board: Board, cache: SequenceCache, vocab: Vocab, n_seq_max: int, max_waiting: int
    ) -> None:
        self.max_waiting = max_waiting
        self._board = board
        self._cache = cache
        self._vocab = vocab
        self._n_seq_max = n_seq_max

    # -- into the queue -------------------------------------------------------------------------

    def compile(self, requests: Sequence[Request]) -> None:
        """Make the samplers, which may have a grammar to compile.

        Needs no lock: neither the context nor the queue are touched, and others go on meanwhile.
        """
        self._check_room(len(requests))
        try:
            for request in requests:
                request.sampler = Sampler(self._vocab, request.sampling, (), request.choice)
        except BaseException:
            _close_samplers(requests)
            raise

    def enqueue(self, requests: Sequence[Request]) -> None:
        """Check requests, and queue all of them or none."""
        self._check_room(len(requests))
        try:
            for number, request in enumerate(requests):
                before = requests[number - 1] if number else None
                self._prepare(request, before)
        except BaseException:
            _close_samplers(requests)
            raise
        for request in requests:
            self._board.enqueue(request)

    def _check_room(self, count: int) -> None:
        waiting = len(self._board.waiting)
        free = max(0, self._n_seq_max - len(self._board.running))
        if waiting + count - free > self.max_waiting:
            raise QueueFullError(
                f"{waiting} requests are waiting already, and the limit is {self.max_waiting}; "
                "try again later, or raise max_waiting"
            )

    def _prepare(self, request: Request, before: Request | None) -> None:
        if before is not None and before.prompt is request.prompt:
            request.resolved, request.tokens = before.resolved, before.tokens
            request.resolved_at = before.resolved_at
        elif request.targets:
            self._resolve_scored(request)
        else:
            self._resolve(request)
        _begin_sampler(request)

    def _resolve(self, request: Request) -> None:
        prompt = request.prompt
        if prompt.tokens is not None:
            self._vocab.check_tokens(prompt.tokens)
            request.resolved = self._cache.resolve_tokens(prompt.tokens)
        else:
            request.resolved = self._cache.resolve_text(
                prompt.text or b"",
                prompt.boundaries,
                plain=prompt.plain,
                add_special=prompt.add_special,
            )
        request.tokens = request.resolved.tokens.tolist()
        request.resolved_at = self._board.ended

    def _resolve_scored(self, request: Request) -> None:
        """Thousands of prompts that begin alike, which nobody will look for by their text."""
        request.tokens = [*(request.prompt.tokens or ())]
        request.resolved = self._cache.resolve_tokens(request.tokens)
        request.resolved_at = self._board.ended

    # -- out of the queue -----------------------------------------------------------------------

    def admit(self) -> None:
        """Give sequences to those who can begin."""
        for request in [*self._board.waiting]:
            if request.done or request.blocked or self._must_wait(request):
                continue
            if not self._has_room(request):
                return
            if len(self._board.running) >= self._n_seq_max and not self._free_a_paused_one():
                return
            if not self._start(request) and not (
                self._free_a_paused_one() and self._start(request)
            ):
                return

    def recover(self) -> None:
        """After an interrupt: free the sequences that no request knows of."""
        known = [request.lease.sequence for request in self._board.running if request.lease]
        for sequence in [*self._cache.live.values()]:
            if sequence.busy and not sequence.by_hand and sequence not in known:
                self._cache.trim(sequence)
                self._cache.give_back(sequence)

    def _has_room(self, request: Request) -> bool:
        """False while a request that was preempted would only be preempted again."""
        running = [other for other in self._board.running if not other.blocked]
        if not request.preempted or not running:
            return True
        used = sum(other.lease.position + _GROWTH for other in running if other.lease is not None)
        prompt = request.resolved
        return used + (len(prompt.tokens) if prompt is not None else 0) <= self._cache.memory.n_ctx

    def _must_wait(self, request: Request) -> bool:
        """True while another request is about to evaluate what this one begins with."""
        if request.waits_for is not None:
            other, position = request.waits_for
            if other.state is RequestState.PREFILL and other.lease is not None:
                if other.lease.position < position:
                    return True
                self._cache.commit(other.lease.sequence, other.lease.prompt)
            request.waits_for = None
        if request.generation.prompt_logprobs or request.targets:
            return False
        return any(self._waits_for(request, other) for other in self._board.running)

    def _waits_for(self, request: Request, other: Request) -> bool:
        if other.state is not RequestState.PREFILL or other.lease is None:
            return False
        mine = _prompt_of(request)
        shared = min(mine.shared_with(other.lease.prompt), len(mine.tokens) - 1)
        if shared <= other.lease.position:
            return False
        if shared - self._cache.best_keep(mine) < _WORTH_WAITING:
            return False
        self._cache.add_cut(other.lease, shared)
        request.waits_for = (other, shared)
        return True

    def _start(self, request: Request) -> bool:
        """Give a waiting request a sequence; False if there is none."""
        try:
            self._resolve_again(request)
            reuse = not request.generation.prompt_logprobs or request.prompt_known
            most = request.first_output if request.targets else None
            lease = self._cache.acquire(
                _prompt_of(request), request.session, reuse=reuse, most=most
            )
        except Exception as error:
            self._board.fail(request, _typed(error))
            return True
        if lease is None:
            return False
        self._board.moves_on(lease.sequence)
        if request.targets:
            lease.cuts = []  # checkpoints are for what is kept
        request.lease = lease
        request.state = RequestState.PREFILL
        self._board.set_running(request)
        if request.started:  # it comes back after it was preempted: all of this is known
            request.cache["sequence"] = lease.sequence.number
            return True
        request.started = time.perf_counter()
        request.cache = lease.info.as_dict()
        self._count(request, lease.info.reused)
        return True

    def _resolve_again(self, request: Request) -> None:
        """Replies that were cached since it was submitted may save tokenizing their text."""
        changed = request.resolved_at != self._board.ended
        if not changed or request.preempted or request.prompt.tokens is not None:
            return
        before = request.tokens
        self._resolve(request)
        if request.tokens != before:
            _begin_sampler(request)

    def _count(self, request: Request, reused: int) -> None:
        metrics = self._board.metrics
        metrics.queue_seconds.add(request.started - request.submitted)
        metrics.prompt_tokens += request.n_prompt
        metrics.reused += reused

    # -- back into the queue --------------------------------------------------------------------

    def _free_a_paused_one(self) -> bool:
        """Take the sequence of a request whose consumer does not read; it comes back later."""
        paused = [request for request in self._board.running if request.blocked]
        if paused:
            self.preempt(paused[-1])
        return bool(paused)

    def preempt_one(self) -> None:
        """Cells ran out: take those of one running request, a paused one or the youngest."""
        if not self._free_a_paused_one():
            self.preempt(self._board.running[-1])

    def preempt(self, request: Request) -> None:
        """Put a request back into the queue. What it generated becomes part of its prompt."""
        lease = request.lease
        if lease is not None:
            more = request.generated[request.n_resumed :]
            prompt = lease.prompt.extended(more, self._cache.spelling)
            count = len(request.generated)
            # All or nothing: an interrupt cannot come between these.
            request.resolved, request.n_resumed, request.lease = prompt, count, None
            request.preempted = True
            self._cache.release(lease)
            if self._cache.live.get(lease.sequence.number) is lease.sequence:
                self._cache.evict(lease.sequence)
        self._board.set_waiting(request)
        self._board.metrics.preempted += 1


def _begin_sampler(request: Request) -> None:
    sampler = request.sampler
    if sampler is not None and sampler.remembers:
        sampler.begin(request.tokens)


def _close_samplers(requests: Sequence[Request]) -> None:
    for request in requests:
        if request.sampler is not None:
            request.sampler.close()


def _typed(error: Exception) -> Exception:
    if not isinstance(error, MemoryError):
        return error
    typed = StateError(f"there is not enough memory to begin this prompt: {error}")
    typed.__cause__ = error
    return typed


def _prompt_of(request: Request) -> ResolvedPrompt:
    if request.resolved is None:
        raise RuntimeError("a request was queued before its prompt was resolved")
    return request.resolved
