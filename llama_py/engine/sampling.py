"""``Sampling``: from rows of logits to tokens and their events, and when a reply ends.

Sampling takes microseconds, as a rule, and is done in turn. Samplers that need the whole vocabulary
take milliseconds; when several of them are due, threads do it side by side, within the step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
from numpy.typing import NDArray

from llama_py.core.sampling.sampler import NOTHING_ALLOWED
from llama_py.core.steps import NO_TOKEN
from llama_py.core.vocab import Vocab
from llama_py.engine.generation import Generation, ReplyText, RequestState
from llama_py.engine.in_flight import InFlight
from llama_py.engine.logprobs import top_logprobs
from llama_py.engine.request import FinishEvent, TokenEvent, TokenLogprobs
from llama_py.engine.runner import Runner
from llama_py.engine.scheduler import Verify
from llama_py.errors import DecodeError

__all__ = ["Sampling"]

Choice = tuple[int, "TokenLogprobs | None"]
Row = NDArray[np.float32]

#: Threads that sample side by side.
_WORKERS = min(8, os.cpu_count() or 1)
#: Rows shorter than this are sorted faster than a thread wakes up.
_WORTH_A_THREAD = 16384


class Sampling:
    """Samples for the requests of one engine.

    Args:
        requests: the books in which tokens and endings are entered.
        runner: has the logits.
    """

    def __init__(self, requests: InFlight, runner: Runner, vocab: Vocab) -> None:
        self._requests = requests
        self._runner = runner
        self._vocab = vocab
        self._limit = requests.cache.limit
        self._side_by_side = vocab.n_tokens >= _WORTH_A_THREAD and _WORKERS > 1
        self._workers: ThreadPoolExecutor | None = None

    def sample(
        self,
        due: Sequence[tuple[Generation, int]],
        drafted: Sequence[tuple[Verify[Generation], int]] = (),
    ) -> None:
        """Sample the next token of each request from the row of its logits, and hand it out.

        Args:
            drafted: drafts that were decoded, and the row of the token before each.
        """
        begun: dict[Generation, Future[Choice]] = {}
        if self._side_by_side and len(due) + len(drafted) > 1:
            begun = self._begin_slow_ones([*due, *((it.request, row) for it, row in drafted)])
        for running, row in due:
            if running.state is RequestState.DECODING:  # and neither ended nor preempted meanwhile
                self._sample(running, row, begun.get(running))
        for entry, row in drafted:
            if entry.request.state is RequestState.DECODING:
                self._verify(entry.request, entry.draft, row, begun.get(entry.request))
        if begun:  # a sampler is not closed while a thread is in it
            wait(begun.values())

    def _begin_slow_ones(
        self, due: Sequence[tuple[Generation, int]]
    ) -> dict[Generation, Future[Choice]]:
        # Those whose sampling takes long, and calls nothing of the user's.
        slow = [
            (running, row)
            for running, row in due
            if running.sampler.slow and not running.request.sampling.logits_processors
        ]
        if len(slow) < 2:
            return {}
        try:
            if self._workers is None:
                self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="llama_py-sample")
            submit = self._workers.submit
            return {each: submit(_draw, each, self._runner.logits(row)) for each, row in slow}
        except RuntimeError:  # no more threads can be started: in turn, then
            self._side_by_side = False
            return {}

    def close(self) -> None:
        """Stop the threads."""
        if self._workers is not None:
            self._workers.shutdown()

    # -- a draft --------------------------------------------------------------------------------

    def _verify(
        self, running: Generation, draft: Sequence[int], row: int, begun: Future[Choice] | None
    ) -> None:
        """Sample as long as what comes is what was guessed; then forget the rest of the guess.

        The sampler sees exactly what it would have seen without a draft. A token that was guessed
        counts as decoded from when it was sampled, so that at every token, and whenever the request
        ends, the books are those of plain decoding; only the memory holds more, until it is cut.
        """
        lease = running.lease
        if lease is None:
            raise RuntimeError("a request without a sequence was verified")
        for index, token in enumerate(draft):
            self._sample(running, row + index, begun if not index else None)
            if running.state is not RequestState.DECODING or running.record.generated[-1] != token:
                break
            lease.sequence.tokens.append(token)
        else:
            self._sample(running, row + len(draft), None)
        if lease.drafted:  # else it has ended, and given the sequence back
            self._requests.cache.rewind(lease)

    # -- tokens that were chosen already --------------------------------------------------------

    def enter(
        self, running: Generation, tokens: Sequence[int], ends: Sequence[float], row: int
    ) -> None:
        """Hand out what steps gave for one request. At each token, the books are those of its step.

        Args:
            tokens: one of each step; only the last one may end the reply.
            ends: when each step ended.
            row: where the logits of the last one are.
        """
        lease, record, generated = running.lease, running.record, running.record.generated
        if lease is None:
            raise RuntimeError("a request without a sequence was decoded")
        if len(tokens) > 1:  # those before the last one end nothing: there are no stop strings
            inner, metrics, vocab = tokens[:-1], self._requests.metrics, self._vocab
            lease.sequence.tokens += [generated[-1], *inner[:-1]]
            generated += inner
            metrics.generated += len(inner)
            for now in ends[: len(inner)]:
                metrics.token_seconds.add(now - record.last_token)
                record.last_token = now
            special, visible = running.request.echo_special, running.request.visible
            feed, put, number = running.text.feed, self._requests.outputs.append, running.number
            for token in inner:
                shown = special or token in visible
                piece = vocab.piece(token) if shown else vocab.plain_piece(token)
                put((number, TokenEvent(token, feed(piece))))
        for token, now in zip(tokens[-1:], ends[-1:], strict=True):
            lease.sequence.tokens.append(generated[-1])
            if token == NO_TOKEN:
                self._requests.fail(running, DecodeError(NOTHING_ALLOWED))
                return
            self._count_token(running, now)
            generated.append(token)
            self._emit(running, token, None, row)

    # -- one token ------------------------------------------------------------------------------

    def _sample(self, running: Generation, row: int, begun: Future[Choice] | None) -> None:
        if running.request.generation.max_tokens == 0:
            scored = bool(running.request.targets)
            self._requests.end(running, FinishEvent("length"), None if scored else row)
            return
        start = self._requests.clock()
        try:
            token, logprobs = begun.result() if begun else _draw(running, self._runner.logits(row))
        except BaseException as error:  # the request's own processor or grammar
            self._requests.fail(running, error)
            return
        now = self._requests.clock()
        self._requests.metrics.sample_seconds += now - start
        self._count_token(running, now)
        running.record.generated.append(token)
        self._emit(running, token, logprobs, row)

    def _count_token(self, running: Generation, now: float) -> None:
        metrics, record = self._requests.metrics, running.record
        metrics.generated += 1
        if record.generated:
            metrics.token_seconds.add(now - record.last_token)
        else:
            record.first_token = now
            metrics.prompt_seconds += now - record.started
            metrics.first_token_seconds.add(now - record.submitted)
        record.last_token = now

    def _emit(
        self, running: Generation, token: int, logprobs: TokenLogprobs | None, row: int
    ) -> None:
        request, text, requests = running.request, running.text, self._requests
        generation = request.generation
        ends = not generation.ignore_eos and self._vocab.is_eog(token)
        if ends or token in generation.stop_tokens:
            running.record.closed = True
            requests.end(running, _last_event("stop", text), row)
            return
        shown = request.echo_special or token in request.visible
        piece = self._vocab.piece(token) if shown else self._vocab.plain_piece(token)
        requests.put(running, TokenEvent(token, text.feed(piece), logprobs))
        most = generation.max_tokens
        if text.stopped_by is not None:
            requests.end(running, FinishEvent("stop", "", text.stopped_by), row)
        elif generation.stopping_criteria and self._criteria_met(running, row):
            requests.end(running, _last_event("stop", text), row)
        elif (most is not None and len(running.record.generated) >= most) or (
            running.lease is not None and running.lease.held >= self._limit
        ):
            requests.end(running, _last_event("length", text), row)

    def _criteria_met(self, running: Generation, row: int) -> bool:
        logits, tokens = self._runner.logits(row), running.seen()
        try:
            stops = running.request.generation.stopping_criteria
            return any(stop(tokens, logits) for stop in stops)
        except BaseException as error:  # it is the caller's, and reaches the caller
            self._requests.fail(running, error)
            return False

    # -- the prompt -----------------------------------------------------------------------------

    def read_prompt(self, running: Generation, count: int, row: int) -> None:
        """Log-probabilities of prompt tokens, or of the targets: rows ``row - count + 1 .. row``
        predict the next."""
        lease, record = running.lease, running.record
        if lease is None:
            return
        targets = running.request.targets
        if targets:
            scored, first, end = record.scored, running.first_output, lease.held
            for position in range(max(first, end - count), end):
                if position - first == len(scored):
                    logits = self._runner.logits(row - (end - 1 - position))
                    scored.append(top_logprobs(logits, targets[len(scored)], 0).logprob)
            return
        wanted, known = running.request.generation.logprobs or 0, record.prompt_logprobs
        for back in range(count - 1, -1, -1):
            follower = lease.held - back
            # A request that was preempted sees its prompt a second time.
            if follower < record.n_prompt and follower == len(known) + 1:
                logits = self._runner.logits(row - back)
                known.append(top_logprobs(logits, record.tokens[follower], wanted))


def _draw(running: Generation, logits: Row) -> Choice:
    token = running.sampler.sample(logits)
    wanted = running.request.generation.logprobs
    return token, None if wanted is None else top_logprobs(logits, token, wanted)


def _last_event(reason: str, text: ReplyText) -> FinishEvent:
    """The end of a reply; a stop string that was held back until now has the last word."""
    tail = text.finish()
    return FinishEvent("stop" if text.stopped_by else reason, tail, text.stopped_by)
