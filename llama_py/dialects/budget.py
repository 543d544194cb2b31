"""``ReasoningBudget``: closes a block of reasoning that becomes too long."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llama_py.chat.reasoning import Reasoning, ReasoningWatch, reasoning_of
from llama_py.chat.rendered import RenderedChat
from llama_py.chat.vocab import VocabLike
from llama_py.params import TokenConstraint

__all__ = ["BudgetMaker", "ReasoningBudget", "budget_for"]

Maker = Callable[[], TokenConstraint]
#: Tokens that a character which the budget would cut in two may still have.
_REST_OF_CHARACTER = 3


class ReasoningBudget:
    """A ``TokenConstraint`` that leaves reasoning free, up to a number of tokens.

    Args:
        piece: the bytes of a token.
        reasoning: its marks.
        closing: the tokens that close it.
        budget: tokens of reasoning, in all blocks together.
        inner: another constraint, which goes on holding, or None.
        again: reasoning may also be opened after something else was said.
    """

    def __init__(
        self,
        piece: Callable[[int], bytes],
        reasoning: Reasoning,
        closing: Sequence[int],
        budget: int,
        inner: TokenConstraint | None = None,
        again: bool = True,
    ) -> None:
        self._piece = piece
        self._watch = ReasoningWatch(piece, reasoning, again)
        self._closing = tuple(closing)
        self._left = budget
        self._inner = inner
        self._late = 0
        self._characters = getincrementaldecoder("utf-8")("replace")
        self._forced: deque[int] = deque(closing if self._watch.inside and budget == 0 else ())

    def mask(self, logits: NDArray[np.float32]) -> None:
        """Set the logits of forbidden tokens to ``-inf``, in place. Shape ``(n_vocab,)``."""
        if self._forced:
            logits[:] = -np.inf
            logits[self._forced[0]] = 0.0
        elif self._inner is not None:
            self._inner.mask(logits)

    def accept(self, token: int) -> None:
        """Advance past a sampled token."""
        if self._inner is not None:
            self._inner.accept(token)
        if self._forced:
            self._forced.popleft()
        was_inside = self._watch.inside
        self._watch.accept(token)
        self._characters.decode(self._piece(token))
        if not self._watch.inside:
            self._forced.clear()
            return
        self._left -= was_inside and not self._forced
        if self._left <= 0 and not self._forced:
            self._late += 1
            # Other bytes of a character may still be to come: the end must not cut it in two.
            if not self._characters.getstate()[0] or self._late > _REST_OF_CHARACTER:
                self._forced.extend(self._closing)

    @property
    def finished(self) -> bool:
        """True when only an end-of-generation token may follow."""
        return not self._forced and self._inner is not None and self._inner.finished


@dataclass(frozen=True, slots=True, eq=False)
class BudgetMaker:
    """Makes the ``ReasoningBudget`` of one reply; see there."""

    vocab: VocabLike
    reasoning: Reasoning
    closing: tuple[int, ...]
    budget: int
    inner: Maker | None
    again: bool

    def __call__(self) -> TokenConstraint:
        """The constraint of one sequence."""
        inner = self.inner() if self.inner is not None else None
        return ReasoningBudget(
            self.vocab.piece, self.reasoning, self.closing, self.budget, inner, self.again
        )


def budget_for(
    vocab: VocabLike, rendered: RenderedChat, budget: int | None, inner: Maker | None
) -> Maker | None:
    """The constraint of a reply: ``inner``, with its reasoning limited to ``budget`` tokens.

    Where the chat format has no marks for reasoning there is nothing to limit.
    """
    reasoning = reasoning_of(rendered)
    if budget is None or budget < 0 or not reasoning.closing:
        return inner
    closing = vocab.tokenize(reasoning.closing, add_special=False, parse_special=True)
    # An answer that fits a schema may contain the texts of marks.
    again = inner is None and rendered.schema is None

    return BudgetMaker(vocab, reasoning, tuple(closing), budget, inner, again)
