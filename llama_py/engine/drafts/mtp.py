"""``OpenHeads``: a model that drafts for itself, with its next-token heads (``core.mtp``).

The head needs the hidden states that the model computes anyway, so it is shown each step
(``observe``), and evaluates tokens only when it drafts, together with what was accepted since. It
has a sequence for each stream. What it knows of a stream only makes drafts better or worse: tokens
whose hidden states nobody saw, because they were reused, are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from llama_py.core.context import Context
from llama_py.core.mtp import NextTokenHeads
from llama_py.engine.clock import Clock
from llama_py.engine.drafts.payoff import Durations
from llama_py.engine.drafts.slots import NoRoomError, Slot, SlotSet, sure_token
from llama_py.engine.generation import Generation
from llama_py.errors import DecodeError
from llama_py.options.drafters import MAX_DRAFT, MTP
from llama_py.states.prefix import common_tokens

__all__ = ["OpenHeads"]

#: Hidden states that are kept of tokens that the head has evaluated: a draft may be taken back.
_KEPT = 2 * MAX_DRAFT
#: Tokens that wait until the next draft; more are evaluated at once.
_MOST_WAITING = 64
#: More of them are evaluated before the drafts of all streams.
_LONG = 32

Tokens = NDArray[np.intc]
Rows = NDArray[np.float32]


@dataclass(slots=True, eq=False)
class _HeadSlot(Slot):
    """A sequence of the head's context.

    Attributes:
        states: room for hidden states, of the tokens ``first`` to ``first + rows - 1``.
        done: as many of the tokens were evaluated, as far as their hidden states are known.
        owner: the number of the request whose tokens they are, or were.
    """

    states: Rows = field(kw_only=True)
    first: int = 0
    rows: int = 0
    done: int = 0
    owner: int = 0

    def keep(self, count: int) -> None:
        """Forget all tokens but the first ``count``."""
        self.count, self.done = min(self.count, count), min(self.done, count)
        self.rows = max(0, min(self.rows, count - self.first))

    def append(self, position: int, tokens: Tokens, states: Rows) -> None:
        """Note tokens, from ``position`` on, and their hidden states."""
        behind = position + len(tokens)
        self.tokens[position:behind] = tokens
        self.count = behind
        self.rows = max(0, min(self.rows, position - self.first))
        if self.first + self.rows != position:  # nobody saw those between
            self.first, self.rows = position, 0
        if self.rows + len(states) > len(self.states):  # some are not needed any more
            gone = max(0, min(self.rows, self.done - _KEPT - self.first))
            self.states[: self.rows - gone] = self.states[gone : self.rows].copy()
            self.first, self.rows = self.first + gone, self.rows - gone
        self.states[self.rows : self.rows + len(states)] = states
        self.rows += len(states)

    def before(self, start: int, end: int) -> Rows:
        """The hidden states of the tokens before ``start`` to ``end - 1``."""
        return self.states[start - 1 - self.first : end - 1 - self.first]


@dataclass(slots=True, eq=False)
class _Guess:
    """A draft that is being made: of at most ``most`` tokens, of which some were found.

    Attributes:
        state: the hidden state behind the last one found, ``(1, n_embd)``.
    """

    slot: _HeadSlot
    most: int
    found: list[int]
    state: Rows | None = None

    def next(self) -> tuple[Tokens, Rows, int]:
        """What to evaluate: tokens, the hidden states before them, and their first position."""
        slot = self.slot
        if self.state is not None:
            last = np.array(self.found[-1:], np.intc)
            return last, self.state, slot.count + len(self.found) - 1
        start = max(slot.done, slot.first + 1)
        return slot.tokens[start : slot.count], slot.before(start, slot.count), start


class OpenHeads:
    """The next-token heads of a model. One thread at a time may use it.

    Args:
        spec: how long drafts are.
        target: the context of the model.
        clock: says how long drafting takes.

    Raises:
        ParameterError: the model has no heads.
        SymbolNotFoundError, ContextCreationError: see ``NextTokenHeads``.

    Attributes:
        spec: see above.
        durations: what drafting a token takes, for all streams at once.
    """

    def __init__(self, spec: MTP, target: Context, clock: Clock) -> None:
        self.spec = spec
        self._time = clock
        self.heads = heads = NextTokenHeads(target)
        self._limit = target.n_ctx_seq
        self._long = min(_LONG, heads.chunk)
        room = _KEPT + _MOST_WAITING + target.n_batch
        self._slots = SlotSet(
            [
                _HeadSlot(
                    number,
                    np.zeros(self._limit, np.intc),
                    states=np.empty((room, heads.n_embd), np.float32),
                )
                for number in range(heads.context.n_seq_max)
            ],
            _KEPT,
        )
        self._active: frozenset[int] = frozenset()
        self.durations = Durations()

    def close(self) -> None:
        """Free the context of the head."""
        self.heads.close()

    def __call__(self, tokens: Tokens, /) -> Sequence[int]:
        """Nothing: it drafts for requests whose steps it was shown."""
        return ()

    # -- what the model computes ----------------------------------------------------------------

    def serve(self, running: Iterable[Generation]) -> None:
        """These requests have a sequence; those of others may be used for other tokens."""
        self._active = frozenset(each.number for each in running)

    def observe(self, running: Generation, tokens: Sequence[int], states: Rows) -> None:
        """The model has decoded tokens of a request, behind what its sequence holds.

        Args:
            states: float32 ``(len(tokens), n_embd)``, which are copied.

        Raises:
            DecodeError: the head could not evaluate what was waiting.
        """
        lease = running.lease
        if lease is None:
            return
        held, new = lease.held, np.asarray(tokens, np.intc)
        slot = self._slot_of(running, held)
        if slot.count < held:  # reused, or evaluated while nobody looked
            slot.tokens[slot.count : held] = running.seen()[slot.count : held]
        # Tokens of a draft that was taken back may come again, and were evaluated already.
        slot.keep(held + common_tokens(slot.tokens[held : slot.count], new))
        slot.append(held, new, states)
        if slot.count - slot.done >= _MOST_WAITING:
            self._retrying(slot, slot.count)

    def _slot_of(self, running: Generation, held: int) -> _HeadSlot:
        """The sequence of a request; when it begins, one with a beginning of its tokens."""
        for slot in self._slots:
            if slot.owner == running.number:
                return slot
        taken = [slot.number for slot in self._slots if slot.owner in self._active]
        slot, best, keep = self._slots.begin(running.prompt.namespace, running.seen()[:held], taken)
        if slot is not best:
            slot.keep(0)
            context = self.heads.context
            context.seq_rm(slot.number, -1, -1)
            done = min(keep, best.done)
            if done:
                context.seq_cp(best.number, slot.number, 0, done)
            rows = max(0, min(best.rows, keep - best.first))
            slot.tokens[:keep] = best.tokens[:keep]
            slot.states[:rows] = best.states[:rows]
            slot.count, slot.done = keep, done
            slot.first, slot.rows = best.first, rows
        slot.keep(keep)
        if keep and not slot.rows:
            # Without a hidden state before the next token, all cells would have to go.
            slot.first, slot.rows, slot.states[0] = keep - 1, 1, 0.0
        slot.owner = running.number
        return slot

    # -- drafts ---------------------------------------------------------------------------------

    def drafts(self, asks: Sequence[tuple[Generation, Tokens, int]]) -> list[list[int]]:
        """What the head guesses behind the tokens of each of several requests.

        One decode serves all of them, for each place in a draft.

        Args:
            asks: for each request its tokens, and how many are wanted at most.

        Raises:
            DecodeError: it could not compute them.
        """
        found: list[list[int]] = [[] for _ in asks]
        due: list[_Guess] = []
        for (running, tokens, most), draft in zip(asks, found, strict=True):
            length = min(most, self.spec.n_draft, self._limit - len(tokens))
            slot = self._begun(running, tokens) if length > 0 else None
            if slot is not None:
                due.append(_Guess(slot, length, draft))
        due = [each for each in due if self._catch_up(each.slot)]
        due = [each for each in due if each.slot.count]  # nobody had to forget everything
        first = True
        while due:
            start = self._time()
            try:
                due = self._guess(due)
            except NoRoomError:
                if not first:
                    return found
                self._forget_idle()
                # With fewer streams, if it has to be.
                due = [each for each in due[:-1] if len(each.found) < each.most]
                continue
            first = False
            self.durations.add(self._time() - start)
        return found

    def _begun(self, running: Generation, tokens: Tokens) -> _HeadSlot | None:
        """The sequence of a request with its last token; None if too little was seen of it."""
        slot = next((each for each in self._slots if each.owner == running.number), None)
        last = len(tokens) - 1
        if slot is None or slot.count < last:
            return None
        start = max(0, last - _KEPT)
        if not np.array_equal(slot.tokens[start:last], tokens[start:last]):
            return None
        if not slot.first < last <= slot.first + slot.rows:  # no hidden state before the last one
            return None
        slot.keep(last)
        slot.tokens[last] = tokens[last]
        slot.count = last + 1
        slot.done = min(slot.done, last)  # its guess is wanted
        return slot

    def _catch_up(self, slot: _HeadSlot) -> bool:
        """Leave only a few tokens to evaluate, and cut what was drafted the last time."""
        if slot.count - slot.done > self._long:
            return self._retrying(slot, slot.count - 1) >= 0
        self._cut(slot)
        return True

    def _guess(self, due: Sequence[_Guess]) -> list[_Guess]:
        """One more token for each draft; returns those that go on."""
        going_on: list[_Guess] = []
        place = 0
        while place < len(due):
            self.heads.clear()
            begun: list[tuple[_Guess, int]] = []
            for each in due[place:]:
                tokens, states, start = each.next()
                if len(self.heads) + len(tokens) > self.heads.chunk:
                    break
                row = self.heads.add(tokens, states, start, each.slot.number, True)
                begun.append((each, row))
            self._check(self.heads.decode_added())
            place += len(begun)
            for each, row in begun:
                each.slot.done = each.slot.count
                if self._take(each, row):
                    going_on.append(each)
        return going_on

    def _take(self, guess: _Guess, index: int) -> bool:
        """Append the most likely token of a row, if it is sure enough; False at the end."""
        row, state = self.heads.guess(index)
        token = sure_token(row, self.spec.p_min)
        if token is None:
            return False
        guess.found.append(token)
        guess.state = state.copy()
        vocab = self.heads.context.model.vocab
        return len(guess.found) < guess.most and not vocab.is_eog(token)

    # -- memory ---------------------------------------------------------------------------------

    def _retrying(self, slot: _HeadSlot, end: int) -> int:
        """``_evaluate``; if there are no cells, again without what no request needs; else -1."""
        for forget in (self._forget_idle, self._forget):
            try:
                return self._evaluate(slot, end)
            except NoRoomError:
                forget()
        return -1

    def _cut(self, slot: _HeadSlot) -> int:
        """Remove what was drafted the last time; returns from where on to evaluate.

        Everything is removed if there is a gap, which cells cannot have.
        """
        start = max(slot.done, slot.first + 1)
        self.heads.context.seq_rm(slot.number, -1 if start > slot.done else start, -1)
        return start

    def _evaluate(self, slot: _HeadSlot, end: int) -> int:
        """Evaluate tokens up to ``end``; returns how many they were."""
        start = first = self._cut(slot)
        while start < end:
            stop = min(start + self.heads.chunk, end)
            self.heads.clear()
            states = slot.before(start, stop)
            self.heads.add(slot.tokens[start:stop], states, start, slot.number, False)
            self._check(self.heads.decode_added())
            start = slot.done = stop
        return max(0, end - first)

    def _check(self, code: int) -> None:
        if code == 1:
            raise NoRoomError
        if code:
            self._forget()
            raise DecodeError(f"the next-token heads failed: code {code}", code)

    def _forget_idle(self) -> None:
        for slot in self._slots:
            if slot.owner not in self._active:
                self.heads.context.seq_rm(slot.number, -1, -1)
                slot.keep(0)

    def _forget(self) -> None:
        """Forget what was evaluated; streams go on from the next tokens."""
        self.heads.context.clear()
        for slot in self._slots:
            slot.keep(0)
