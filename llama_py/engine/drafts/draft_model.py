"""``OpenDraftModel``: a small model that drafts for a large one.

It has a context of its own with a sequence for each stream. A sequence holds what was drafted last,
and is cut to what it has in common with the tokens that are asked about, so nothing has to be told
to it: whatever became of a draft, the next question says so.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.core.model import Model
from llama_py.core.vocab import Vocab
from llama_py.engine.clock import Clock
from llama_py.engine.drafts.payoff import Durations
from llama_py.engine.drafts.slots import NoRoomError, Slot, SlotSet, sure_token
from llama_py.errors import DecodeError, ParameterError
from llama_py.memory.sequences import ResolvedPrompt
from llama_py.options.drafters import DraftModel
from llama_py.params import ModelParams

__all__ = ["OpenDraftModel"]

#: Vocabularies of one family may be padded to other sizes, and differ in their first tokens.
_PADDING, _FIRST = 128, 5
#: A sequence that goes on further than this behind what is asked about is that of another stream.
_OWN = 128
#: More tokens than these are evaluated before what others draft.
_LONG = 32


class Asking(Protocol):
    """A stream that asks for drafts: its prompt says in which namespace."""

    @property
    def prompt(self) -> ResolvedPrompt: ...


@dataclass(slots=True, eq=False)
class _Draft:
    """What follows ``tokens``, as far as it was found; at most ``most`` tokens.

    Attributes:
        namespace: see ``Slot``.
    """

    tokens: NDArray[np.intc]
    most: int
    namespace: Hashable
    found: list[int] = field(default_factory=list)


class OpenDraftModel:
    """A draft model that was loaded. A drafter; one thread at a time may use it.

    Args:
        spec: which model, and how long its drafts are.
        target: the context of the model that it drafts for.
        clock: says how long drafting takes.

    Raises:
        ParameterError: it has another vocabulary, or memory that cannot be cut.
        ModelLoadError, ContextCreationError: it cannot be loaded.

    Attributes:
        spec: see above.
        durations: what drafting a token takes, for all streams at once.
    """

    def __init__(self, spec: DraftModel, target: Context, clock: Clock) -> None:
        self.spec = spec
        self._time = clock
        self._model = Model(spec.path, ModelParams(n_gpu_layers=spec.n_gpu_layers))
        try:
            self._check(target.model)
            # What a small window cache forgot could not be drafted from again, and beginnings are
            # copied in part.
            params = replace(
                target.params,
                swa_full=True,
                kv_unified=True,
                type_k=None,
                type_v=None,
                moe_cache_size=0,
            )
            self._context = Context(self._model, params, beside=target)
        except BaseException:
            self._model.close()
            raise
        context = self._context
        self._n_vocab = min(context.n_vocab, target.n_vocab)
        self._limit = min(context.n_ctx_seq, target.n_ctx_seq)
        self._chunk = min(context.n_batch, context.n_ubatch)
        self._long = min(_LONG, self._chunk - 1)
        self._batch = Batch(self._chunk)
        self._slots = SlotSet(
            [Slot(number, np.zeros(self._limit, np.intc)) for number in range(context.n_seq_max)],
            _OWN,
        )
        self.durations = Durations()

    def close(self) -> None:
        """Free the draft model."""
        self._model.close()

    def __call__(self, tokens: NDArray[np.intc], /) -> list[int]:
        """What it says behind ``tokens``: see ``Drafter``."""
        return self.draft(tokens, self.spec.n_draft, ())

    def draft(self, tokens: NDArray[np.intc], most: int, namespace: Hashable) -> list[int]:
        """The most likely tokens behind ``tokens``, at most ``most`` of them.

        Args:
            namespace: only what was evaluated in it is gone on with.

        Raises:
            DecodeError: it could not compute them.
        """
        return self._retrying([_Draft(tokens, self._most(tokens, most), namespace)])[0].found

    def drafts(self, asks: Sequence[tuple[Asking, NDArray[np.intc], int]]) -> list[list[int]]:
        """``draft`` for each of several streams: a decode for each place in a draft, not for each.

        Args:
            asks: for each stream, whose it is, its tokens, and how many are wanted.

        Raises:
            DecodeError: it could not compute them.
        """
        return [
            each.found
            for each in self._retrying(
                [
                    _Draft(tokens, self._most(tokens, most), asking.prompt.namespace)
                    for asking, tokens, most in asks
                ]
            )
        ]

    def _most(self, tokens: NDArray[np.intc], most: int) -> int:
        return min(most, self.spec.n_draft, self._limit - len(tokens))

    def _retrying(self, drafts: list[_Draft]) -> list[_Draft]:
        wanted = [each for each in drafts if each.most > 0]
        try:
            self._draft(wanted)
        except NoRoomError:
            self._forget()
            for each in wanted:  # in turn, each with all the room
                self._draft_alone(each)
        return drafts

    def _draft_alone(self, draft: _Draft) -> None:
        for _ in range(2):
            draft.found.clear()
            try:
                self._draft([draft])
                return
            except NoRoomError:
                self._forget()
        draft.found.clear()  # the prompt alone is too long

    def _draft(self, drafts: Sequence[_Draft]) -> None:
        begun: set[int] = set()
        due: list[tuple[Slot, NDArray[np.intc], _Draft]] = []
        for draft in drafts:
            # A sequence that holds a beginning of its tokens, and not all of them.
            slot, best, keep = self._slots.begin(draft.namespace, draft.tokens[:-1], begun)
            if slot is not best:
                self._cut(slot, 0)
                if keep:
                    self._context.seq_cp(best.number, slot.number, 0, keep)
                    slot.tokens[:keep] = best.tokens[:keep]
            self._cut(slot, keep)
            begun.add(slot.number)
            if len(draft.tokens) - slot.count > self._long:
                self._append(slot, draft.tokens[slot.count : -1])  # others may have it copied
            due.append((slot, draft.tokens[slot.count :], draft))
        while due:
            start = self._time()
            single = all(len(tokens) == 1 and draft.found for _, tokens, draft in due)
            going_on = self._guess(due)
            if single:
                self.durations.add(self._time() - start)
            due = [
                (slot, np.array(draft.found[-1:], np.intc), draft)
                for (slot, _, draft), on in zip(due, going_on, strict=True)
                if on
            ]

    def _guess(self, due: Sequence[tuple[Slot, NDArray[np.intc], _Draft]]) -> list[bool]:
        """Append tokens, and what comes next to each draft; which of them go on."""
        going_on: list[bool] = []
        while len(going_on) < len(due):
            first, rows = len(going_on), []
            self._batch.clear()
            for slot, tokens, _ in due[first:]:
                if len(self._batch) + len(tokens) > self._chunk:
                    break
                start = self._batch.add(tokens, slot.count, slot.number, False)
                rows.append(start + len(tokens) - 1)
                self._batch.outputs[rows[-1]] = 1
            self._decode()
            for row, (slot, tokens, draft) in zip(rows, due[first:], strict=False):
                _append(slot, tokens)
                token = sure_token(self._context.logits(row)[: self._n_vocab], self.spec.p_min)
                if token is not None:
                    draft.found.append(token)
                going_on.append(
                    token is not None
                    and len(draft.found) < draft.most
                    and not self._model.vocab.is_eog(token)
                )
        return going_on

    # -- memory ---------------------------------------------------------------------------------

    def _cut(self, slot: Slot, keep: int) -> None:
        """Remove what is behind ``keep`` tokens; everything, if the memory does not do that."""
        context = self._context
        removed = context.seq_rm(slot.number, keep, -1)
        slot.count = keep
        if not removed or context.pos_max(slot.number) + 1 != keep:
            context.seq_rm(slot.number, -1, -1)
            slot.count = 0

    def _forget(self) -> None:
        self._context.clear()
        for slot in self._slots:
            slot.count = 0

    def _append(self, slot: Slot, tokens: NDArray[np.intc]) -> None:
        """Evaluate tokens of which nothing else is wanted."""
        for start in range(0, len(tokens), self._chunk):
            chunk = tokens[start : start + self._chunk]
            self._batch.set(chunk, slot.count, slot.number, False)
            self._decode()
            _append(slot, chunk)

    def _decode(self) -> None:
        code = self._context.decode(self._batch)
        if code == 1:
            raise NoRoomError
        if code:
            self._forget()
            raise DecodeError(f"the draft model {self.spec.path} failed: code {code}", code)

    # -- the vocabulary -------------------------------------------------------------------------

    def _check(self, target: Model) -> None:
        model, path = self._model, self.spec.path
        if model.is_encoder or model.is_recurrent or model.is_hybrid:
            raise ParameterError(
                f"the draft model {path} ({model.architecture}) has memory that cannot be cut, or "
                "none; use one with attention only"
            )
        difference = _difference(model.vocab, target.vocab)
        if difference:
            raise ParameterError(
                f"the draft model {path} has another vocabulary than {target.path} ({difference}), "
                "so that its tokens mean something else; use a model of the same family"
            )


def _append(slot: Slot, tokens: NDArray[np.intc]) -> None:
    """Note that tokens were evaluated."""
    slot.tokens[slot.count : slot.count + len(tokens)] = tokens
    slot.count += len(tokens)


def _difference(vocab: Vocab, other: Vocab) -> str:
    """In what two vocabularies differ, so that tokens of one are not those of the other."""
    if vocab.kind != other.kind:
        return f"its type is {vocab.kind}, not {other.kind}"
    if abs(vocab.n_tokens - other.n_tokens) > _PADDING:
        return f"it has {vocab.n_tokens} tokens, not {other.n_tokens}"
    for name in ("bos", "eos", "add_bos"):
        mine, wanted = getattr(vocab, name), getattr(other, name)
        if mine != wanted:
            return f"its {name} is {mine}, not {wanted}"
    for token in range(_FIRST, min(vocab.n_tokens, other.n_tokens)):
        if vocab.piece(token) != other.piece(token):
            return f"token {token} is {vocab.piece(token)!r}, not {other.piece(token)!r}"
    return ""
