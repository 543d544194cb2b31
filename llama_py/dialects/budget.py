"""``ReasoningBudget``: closes a block of reasoning that becomes too long."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from llama_py.chat.template import RenderedChat
from llama_py.dialects.context import VocabLike
from llama_py.params import TokenConstraint

__all__ = ["ReasoningBudget", "budget_for"]

Maker = Callable[[], TokenConstraint]


class ReasoningBudget:
    """A ``TokenConstraint`` that leaves reasoning free, up to a number of tokens.

    Args:
        piece: the bytes of a token.
        start, ends: the texts that open and close a block of reasoning.
        closing: the tokens that close it.
        budget: tokens of reasoning, in all blocks together.
        inside: the reply begins in such a block.
        inner: another constraint, which goes on holding, or None.
    """

    def __init__(
        self,
        piece: Callable[[int], bytes],
        start: str,
        ends: Sequence[str],
        closing: Sequence[int],
        budget: int,
        inside: bool,
        inner: TokenConstraint | None = None,
    ) -> None:
        self._piece = piece
        self._start = start.encode()
        self._ends = tuple(end.encode() for end in ends)
        self._closing = tuple(closing)
        self._left = budget
        self._inside = inside
        self._inner = inner
        self._keep = max(map(len, (self._start, *self._ends)))
        self._tail = b""
        self._forced: deque[int] = deque(closing if inside and budget == 0 else ())

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
        self._look(self._piece(token))

    @property
    def finished(self) -> bool:
        """True when only an end-of-generation token may follow."""
        return not self._forced and self._inner is not None and self._inner.finished

    def _look(self, piece: bytes) -> None:
        self._tail = (self._tail + piece)[-self._keep - len(piece) :]
        if self._inside:
            if any(end in self._tail for end in self._ends):
                self._inside, self._tail = False, b""
                self._forced.clear()
                return
            self._left -= not self._forced
        elif self._start and self._start in self._tail:
            self._inside, self._tail = True, b""
        if self._inside and self._left <= 0 and not self._forced:
            self._forced.extend(self._closing)


def budget_for(
    vocab: VocabLike, rendered: RenderedChat, budget: int | None, inner: Maker | None
) -> Maker | None:
    """The constraint of a reply: ``inner``, with its reasoning limited to ``budget`` tokens.

    Where the chat format has no marks for reasoning there is nothing to limit.
    """
    if budget is None or budget < 0 or not rendered.thinking_ends:
        return inner
    start, ends = rendered.thinking_start, rendered.thinking_ends
    opening = rendered.generation_prompt
    inside = bool(start) and opening.rfind(start) > max(opening.rfind(end) for end in ends)
    closing = vocab.tokenize(ends[0], add_special=False, parse_special=True)

    def make() -> TokenConstraint:
        constraint = inner() if inner is not None else None
        return ReasoningBudget(vocab.piece, start, ends, closing, budget, inside, constraint)

    return make
