"""``Stepper``: one step, from admission to events, and what is done when it fails.

Bookkeeping is committed only after a decode succeeded, and what a failed or interrupted one left
behind is repaired before anything else happens. Runs under the engine's lock.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llama_py.engine.admission import Admission
from llama_py.engine.board import Board
from llama_py.engine.choosing import Choosing
from llama_py.engine.request import FinishEvent, Request, RequestState
from llama_py.engine.runner import Runner
from llama_py.engine.scheduler import Chunk, plan_step
from llama_py.errors import CacheFullError, ContextOverflowError, DecodeError, LlamaError
from llama_py.memory.kinds import MemoryKind
from llama_py.memory.sequences import LiveSequence

__all__ = ["Stepper"]

#: What ``llama_decode`` returns when it was aborted.
_ABORTED = 2


class Stepper:
    """See the module.

    Attributes:
        stepping: True during a step; whoever holds the lock then is in a callback.
    """

    def __init__(
        self, board: Board, admission: Admission, choosing: Choosing, runner: Runner
    ) -> None:
        self.stepping = False
        self._board = board
        self._admission = admission
        self._choosing = choosing
        self._runner = runner
        self._cache = board.cache
        self._chunk = min(runner.context.n_ubatch, runner.n_batch)
        # llama.cpp computes wrong logits when a batch holds chunks of several prompts (NMSE 1e-3),
        # with this kind of memory only. Streams beside one prompt are right.
        hybrid_iswa = board.cache.traits.kind is MemoryKind.HYBRID_ISWA
        self._most_prompts = 1 if hybrid_iswa else None

    def forbid_callbacks(self) -> None:
        """Raise if this is called from a callback of a step."""
        if self.stepping:
            raise LlamaError(
                "a callback of a request (logits processor, stopping criterion, progress) cannot "
                "call, reset or close the model it belongs to; do it when the reply has ended"
            )

    def abort(self, request: Request | None = None) -> None:
        """End the decode in progress, if it evaluates this request's prompt and no other.

        Without a request: whatever it evaluates. May be called by any thread. Streams that ride
        along lose a step and no result.
        """
        prompts = [r for r in [*self._board.running] if r.state is RequestState.PREFILL]
        if self._runner.abortable and self.stepping and (request is None or prompts == [request]):
            self._runner.context.abort.ask()

    def step(self) -> bool:
        """One step; False if there was nothing to do."""
        self.forbid_callbacks()
        try:
            self.stepping = True
            worked = self._step()
            self._save()
            return worked
        except BaseException:
            # An interrupt may have come between a decode and its bookkeeping.
            self.recover()
            raise
        finally:
            self.stepping = False

    def _save(self) -> None:
        """Copy a piece of what ended before; all of it if nobody waits for the next step."""
        more = self._cache.saving.step()
        while more and not self._board.everything:
            more = self._cache.saving.step()

    def _step(self) -> bool:
        board = self._board
        if self._choosing.pending:
            self._choosing.choose_pending()
        if board.deadlines:
            board.expire()
        if board.waiting:
            self._admission.admit()
        running = board.running
        if not running:
            return False
        if len(running) == 1 and running[0].state is RequestState.DECODING:
            return self._step_one(running[0])
        chunks = plan_step(running, self._runner.n_batch, self._chunk, self._most_prompts)
        if chunks:
            self._step_many([*running], chunks)
        return bool(chunks)

    def _step_one(self, request: Request) -> bool:
        if request.blocked:
            return False
        code = self._runner.decode_one(request)
        if code:
            self._handle_failure(code, [request])
            return True
        request.lease.sequence.tokens.append(request.generated[-1])  # type: ignore[union-attr]
        self._choosing.pending.append((request, 0))
        self._choosing.choose_pending()
        return True

    def _step_many(self, running: list[Request], chunks: Sequence[Chunk]) -> None:
        code, rows = self._decode(running, chunks)
        if code:
            self._handle_failure(code, [running[chunk.index] for chunk in chunks])
            return
        self._board.metrics.batch_streams.add(len(chunks))
        pending = self._choosing.pending
        for chunk, row in zip(chunks, rows, strict=True):
            # All bookkeeping comes before all callbacks: a checkpoint must not be late.
            request = running[chunk.index]
            self._advance(request, chunk.count)
            if not request.prompt_left:
                pending.append((request, row))
        for chunk, row in zip(chunks, rows, strict=True):
            if chunk.count:
                self._report(running[chunk.index], chunk.count, row)
        self._choosing.choose_pending()

    def _decode(self, running: list[Request], chunks: Sequence[Chunk]) -> tuple[int, list[int]]:
        """One decode, which ends early if it evaluates a prompt and somebody's time is over."""
        left = self._board.time_left() if any(chunk.count for chunk in chunks) else None
        if left is None or not self._runner.abortable:
            return self._runner.decode(running, chunks)
        abort = self._runner.context.abort
        abort.after(left)
        try:
            return self._runner.decode(running, chunks)
        finally:
            abort.after(None)

    def _advance(self, request: Request, count: int) -> None:
        lease = request.lease
        if lease is None:
            return
        if count == 0:
            lease.sequence.tokens.append(request.generated[-1])
            return
        self._cache.advance(lease, count)
        self._board.metrics.evaluated += count
        if not lease.remaining:
            request.state = RequestState.DECODING
            self._cache.commit(lease.sequence, lease.prompt)

    def _report(self, request: Request, count: int, row: int) -> None:
        """Tell the owner of a request how far its prompt has come."""
        if request.generation.prompt_logprobs or request.targets:
            self._choosing.read_prompt(request, count, row)
        if request.on_progress is not None and request.lease is not None:
            done = min(request.lease.position, request.n_prompt)
            self._board.guard(request, request.on_progress, done, request.n_prompt)

    # -- failures -------------------------------------------------------------------------------

    def _handle_failure(self, code: int, requests: list[Request]) -> None:
        if code == _ABORTED:
            # Who is cancelled or late is found out before the next step; others repeat this one.
            self._repair()
            return
        if code == 1:
            self._out_of_cells(requests)
            return
        for request in requests:
            if request.lease is not None:
                self._cache.repair(request.lease)
            self._board.fail(request, DecodeError(_describe(code), code))

    def _out_of_cells(self, requests: list[Request]) -> None:
        """Park an idle conversation; else let one request start again later."""
        if self._cache.make_room():
            return
        if len(self._board.running) > 1:
            self._admission.preempt_one()
            return
        request = requests[0]
        if request.state is RequestState.DECODING:
            self._board.end(request, FinishEvent("length", request.text.finish()))
        else:
            limit = request.lease.position if request.lease else 0
            message = (
                f"no free cells after {limit} of {request.n_prompt} prompt tokens, with nothing "
                "else in memory; load the model with a larger n_ctx"
            )
            self._board.fail(request, CacheFullError(message, 1))

    def recover(self) -> None:
        """Make memory and bookkeeping agree again, whatever was interrupted."""
        if self._cache.suspect:
            self._cache.start_over()
        self._board.recover()
        self._choosing.recover()
        self._admission.recover()
        self._repair()

    def _repair(self) -> None:
        """Let running requests begin again if their sequence is not where they left it."""
        pending = {request for request, _ in self._choosing.pending}
        for request in [*self._board.running]:
            lease = request.lease
            if lease is None:
                continue
            before = lease.position
            self._cache.repair(lease)
            # In memory are the prompt and what was generated, without the last token.
            expected = request.n_prompt + len(request.generated) - 1
            if lease.position != before or (before > expected and request not in pending):
                self._admission.preempt(request)

    # -- without a request ----------------------------------------------------------------------

    def evaluate(
        self, sequence: LiveSequence, tokens: Sequence[int], every: bool
    ) -> list[NDArray[np.float32]]:
        """See ``Engine.evaluate``."""
        self.forbid_callbacks()
        self._choosing.choose_pending()
        limit = self._cache.limit
        wanted = len(sequence.tokens) + len(tokens)
        if wanted > limit:
            raise ContextOverflowError(wanted, limit, limit)
        rows: list[NDArray[np.float32]] = []
        size = min(64, self._chunk) if every else self._chunk
        try:
            for start in range(0, len(tokens), size):
                rows += self._evaluate_chunk(sequence, tokens[start : start + size], every)
        except BaseException:  # an interrupt may have come between a decode and its bookkeeping
            self._cache.trim(sequence)
            raise
        return rows

    def _evaluate_chunk(
        self, sequence: LiveSequence, tokens: Sequence[int], every: bool
    ) -> list[NDArray[np.float32]]:
        position = len(sequence.tokens)
        code = self._runner.decode_tokens(tokens, position, sequence.number, every)
        while code == _ABORTED or (code == 1 and self._cache.make_room()):
            if code == _ABORTED:  # it was meant for a request that has ended
                self._cache.trim(sequence)
            code = self._runner.decode_tokens(tokens, position, sequence.number, every)
        if code:
            raise DecodeError(_describe(code), code)
        sequence.tokens.extend(tokens)
        first = 0 if every else len(tokens) - 1
        return [self._runner.logits(row).copy() for row in range(first, len(tokens))]


def _describe(code: int) -> str:
    meanings = {
        1: "there are no free cells for the batch; load the model with a larger n_ctx",
        2: "the computation was aborted",
        -1: "llama.cpp found the batch invalid",
    }
    return f"llama_decode returned {code}: {meanings.get(code, 'the computation failed')}"
