"""``Choosing``: from rows of logits to tokens and their events, and when a reply ends.

Choosing takes microseconds, as a rule, and is done in turn. Samplers that need the whole vocabulary
take milliseconds; when several of them are due, threads do it side by side.

The rows that a step produced are kept in ``pending`` until each was dealt with, so that an
interrupt in the middle of them loses nothing: the next step begins with those that are left.
"""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
from numpy.typing import NDArray

from llama_py.core.vocab import Vocab
from llama_py.engine.board import Board
from llama_py.engine.logprobs import top_logprobs
from llama_py.engine.request import FinishEvent, Request, RequestState, TokenEvent, TokenLogprobs
from llama_py.engine.runner import Runner
from llama_py.engine.text import ReplyText
from llama_py.errors import DecodeError

__all__ = ["Choosing"]

Choice = tuple[int, "TokenLogprobs | None"]
Row = NDArray[np.float32]

#: Threads that choose side by side.
_WORKERS = min(8, os.cpu_count() or 1)
#: Rows shorter than this are sorted faster than a thread wakes up.
_WORTH_A_THREAD = 16384


class Choosing:
    """See the module.

    Attributes:
        pending: requests whose next token is to be chosen, and the rows of their logits.
    """

    def __init__(self, board: Board, runner: Runner, vocab: Vocab) -> None:
        self.pending: deque[tuple[Request, int]] = deque()
        self._board = board
        self._runner = runner
        self._vocab = vocab
        self._limit = board.cache.limit
        self._side_by_side = vocab.n_tokens >= _WORTH_A_THREAD and _WORKERS > 1
        self._workers: ThreadPoolExecutor | None = None
        self._begun: dict[Request, Future[Choice]] = {}
        #: Tokens that the request had whose token is being chosen; -1 between two choices.
        self._known = -1

    def choose_pending(self) -> None:
        """Choose the next token of every pending request, and hand it out."""
        pending = self.pending
        if self._side_by_side and len(pending) > 1:
            self._begin_slow_ones()
        while pending:
            request, row = pending[0]
            self._known = len(request.generated)
            if request.state is RequestState.DECODING:  # and neither ended nor preempted
                self._choose(request, row)
            pending.popleft()
            self._known = -1
        if self._begun:
            self._drop_begun()

    def _begin_slow_ones(self) -> None:
        slow = [
            entry for entry in self.pending if _is_slow(entry[0]) and entry[0] not in self._begun
        ]
        if len(slow) < 2:
            return
        if self._workers is None:
            self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="llama_py-choose")
        for request, row in slow:
            logits = self._runner.logits(row)
            self._begun[request] = self._workers.submit(_sample, request, logits)

    def _drop_begun(self) -> None:
        """Choices that nobody took: their request has ended, or its sampler is one token ahead."""
        wait(self._begun.values())
        for request in self._begun:
            self._board.fail(request, DecodeError("the choice of a token was interrupted"))
        self._begun.clear()

    def close(self) -> None:
        """Stop the threads."""
        if self._workers is not None:
            self._workers.shutdown()

    def recover(self) -> None:
        """After an interrupt: a token that was being chosen may be half accepted by a grammar."""
        wait(self._begun.values())
        known, self._known = self._known, -1
        if known < 0 or not self.pending:
            return
        request, _ = self.pending[0]
        simple = request.sampler is not None and request.sampler.trivial
        chosen = request not in self._begun and (not simple or len(request.generated) != known)
        if chosen:
            self._board.fail(request, DecodeError("the choice of a token was interrupted"))

    # -- one token ------------------------------------------------------------------------------

    def _choose(self, request: Request, row: int) -> None:
        if request.generation.max_tokens == 0:
            self._board.end(request, FinishEvent("length"), None if request.targets else row)
            return
        start = time.perf_counter()
        try:
            if request in self._begun:
                token, logprobs = self._begun[request].result()
                del self._begun[request]
            else:
                token, logprobs = _sample(request, self._runner.logits(row))
        except Exception as error:  # the request's own processor or grammar
            self._begun.pop(request, None)
            self._board.fail(request, error)
            return
        now = time.perf_counter()
        self._board.metrics.sample_seconds += now - start
        self._count_token(request, now)
        request.generated.append(token)
        self._emit(request, token, logprobs, row)

    def _count_token(self, request: Request, now: float) -> None:
        metrics = self._board.metrics
        metrics.generated += 1
        if request.generated:
            metrics.token_seconds.add(now - request.last_token)
        else:
            request.first_token = now
            metrics.first_token_seconds.add(now - request.submitted)
        request.last_token = now

    def _emit(self, request: Request, token: int, logprobs: TokenLogprobs | None, row: int) -> None:
        generation, board = request.generation, self._board
        ends = not generation.ignore_eos and self._vocab.is_eog(token)
        if ends or token in generation.stop_tokens:
            board.end(request, _last_event("stop", request.text), row)
            return
        shown = request.echo_special or token in request.visible
        piece = self._vocab.piece(token) if shown else self._vocab.plain_piece(token)
        text = request.text
        board.put(request, TokenEvent(token, text.feed(piece), logprobs))
        if text.stopped_by is not None:
            board.end(request, FinishEvent("stop", "", text.stopped_by), row)
        elif generation.stopping_criteria and self._criteria_met(request, row):
            board.end(request, _last_event("stop", text), row)
        elif self._at_limit(request):
            board.end(request, _last_event("length", text), row)

    def _at_limit(self, request: Request) -> bool:
        most = request.generation.max_tokens
        if most is not None and len(request.generated) >= most:
            return True
        return request.lease is not None and request.lease.position >= self._limit

    def _criteria_met(self, request: Request, row: int) -> bool:
        tokens = np.array(request.tokens + request.generated, np.intc)
        logits = self._runner.logits(row)
        try:
            return any(stop(tokens, logits) for stop in request.generation.stopping_criteria)
        except Exception as error:
            self._board.fail(request, error)
            return False

    # -- the prompt -----------------------------------------------------------------------------

    def read_prompt(self, request: Request, count: int, row: int) -> None:
        """Log-probabilities of prompt tokens: rows ``row - count + 1 .. row`` predict the next."""
        lease = request.lease
        if lease is None:
            return
        if request.targets:
            self._read_targets(request, lease.position, count, row)
            return
        wanted = request.generation.logprobs or 0
        for back in range(count - 1, -1, -1):
            follower = lease.position - back
            # A request that was preempted sees its prompt a second time.
            if follower < request.n_prompt and follower == len(request.prompt_logprobs) + 1:
                logits = self._runner.logits(row - back)
                entry = top_logprobs(logits, request.tokens[follower], wanted)
                request.prompt_logprobs.append(entry)

    def _read_targets(self, request: Request, end: int, count: int, row: int) -> None:
        """Log-probabilities of the targets behind the positions ``end - count .. end - 1``."""
        targets, scored, first = request.targets, request.scored, request.first_output
        for position in range(max(first, end - count), end):
            if position - first == len(scored):
                logits = self._runner.logits(row - (end - 1 - position))
                scored.append(top_logprobs(logits, targets[len(scored)], 0).logprob)


def _sample(request: Request, logits: Row) -> Choice:
    token = request.sampler.sample(logits)  # type: ignore[union-attr]
    wanted = request.generation.logprobs
    return token, None if wanted is None else top_logprobs(logits, token, wanted)


def _is_slow(request: Request) -> bool:
    """True if choosing takes long, and calls nothing of the user's."""
    sampler = request.sampler
    return sampler is not None and sampler.slow and not request.sampling.logits_processors


def _last_event(reason: str, text: ReplyText) -> FinishEvent:
    """The end of a reply; a stop string that was held back until now has the last word."""
    tail = text.finish()
    return FinishEvent("stop" if text.stopped_by else reason, tail, text.stopped_by)
