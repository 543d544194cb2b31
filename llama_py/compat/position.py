"""``Position``: what ``n_tokens``, ``input_ids`` and ``scores`` of a ``Llama`` speak of.

llama-cpp-python has one sequence, whose tokens are in arrays that programs read, and cut, between
two calls. Here they are a view of the call that was last: the tokens are listed when somebody asks,
and what a program sets counts from its next call on. The engine finds out by itself what of that is
still in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from llama_py.api.llama import Llama

__all__ = ["Position"]


class Position:
    """The tokens of the last call, and their logits.

    Args:
        native: the model.
        logits_all: whether there are logits of every token.
    """

    def __init__(self, native: Llama, *, logits_all: bool) -> None:
        self._native = native
        self._logits_all = logits_all
        #: None: those of the completion or chat that ended last.
        self._tokens: list[int] | None = []
        self._cut: int | None = None
        self._array: NDArray[np.intc] | None = None
        self._scores: NDArray[np.single] | None = None
        #: Whether ``eval`` of the native model holds exactly these tokens.
        self.by_hand = False

    # -- tokens --------------------------------------------------------------------------------

    def tokens(self) -> list[int]:
        """A list of them; the last sampled token is not among them until it was evaluated."""
        found = self._all()
        return found if self._cut is None else found[: self._cut]

    def _all(self) -> list[int]:
        if self._array is not None:
            count = len(self._listed()) if self._cut is None else self._cut
            return [int(token) for token in self._array[:count]]
        return self._listed()

    def _listed(self) -> list[int]:
        if self._tokens is not None:
            return self._tokens
        ended = self._native.runtime.last.ended
        if ended is None:
            return []
        return [*ended.tokens, *ended.generated[:-1]]

    @property
    def n_tokens(self) -> int:
        """How many there are."""
        return len(self._listed()) if self._cut is None else self._cut

    @n_tokens.setter
    def n_tokens(self, count: int) -> None:
        self._freeze()
        self._cut = int(count)
        self.by_hand = False

    @property
    def input_ids(self) -> NDArray[np.intc]:
        """An array, int32 ``(n_ctx,)``; what is written into it counts."""
        if self._array is None:
            tokens = self.tokens()
            array = np.zeros(max(self._native.n_ctx(), len(tokens)), np.intc)
            array[: len(tokens)] = tokens
            if self._tokens is None or self._cut is not None:
                self._freeze()
            self._array = array
        return self._array

    @input_ids.setter
    def input_ids(self, value: NDArray[np.intc]) -> None:
        self._freeze()
        self._array = np.array(value, np.intc)
        self.by_hand = False

    def _freeze(self) -> None:
        """Keep the tokens as they are now, whatever calls come."""
        tokens = self._listed()
        self._tokens, self._cut = list(tokens), self._cut

    # -- logits --------------------------------------------------------------------------------

    @property
    def scores(self) -> NDArray[np.single]:
        """Logits, float32 ``(rows, n_vocab)``: of every token, or only of the last one.

        The other rows are zeros. While ``generate`` is suspended all of them are, without
        ``logits_all``: the engine is ahead of its caller. The array has as many rows as there are
        tokens, and at least one.
        """
        if self._scores is not None:
            return self._scores
        count = self.n_tokens
        if self._logits_all and self.by_hand:
            return self._native.scores
        rows = np.zeros((max(count, 1), self._native.n_vocab()), np.single)
        last = self._native.runtime.by_hand.row
        known = self.by_hand or self._tokens is None
        if count and last is not None and known:
            rows[count - 1] = last
        return rows

    @scores.setter
    def scores(self, value: NDArray[np.single]) -> None:
        self._scores = value

    # -- who is there --------------------------------------------------------------------------

    def set(self, tokens: Sequence[int] | None, *, by_hand: bool = False) -> None:
        """These are the tokens now; None for those of the call that ends next."""
        self._tokens = tokens if tokens is None or isinstance(tokens, list) else list(tokens)
        self._cut = self._array = self._scores = None
        self.by_hand = by_hand

    def append(self, tokens: list[int], token: int) -> None:
        """Append a token to a list that was given to ``set``, and may not count any more."""
        tokens.append(token)
        array = self._array
        if array is not None and self._tokens is tokens and len(tokens) <= len(array):
            array[len(tokens) - 1] = token

    def begin_by_hand(self) -> list[int]:
        """Let ``eval`` of the native model hold these tokens; returns a list of them."""
        tokens = list(self.tokens())
        if not self.by_hand:
            self.forget_by_hand()
            if tokens:
                self._native.eval(tokens)
            self.set(list(tokens), by_hand=True)
        return tokens

    def forget_by_hand(self) -> None:
        """End the sequence of ``eval``; what it evaluated stays in the cache."""
        self._native.runtime.by_hand.let_go()
        self.by_hand = False


def as_tokens(tokens: Any) -> list[int]:
    """Token ids in any sequence or array, as a list of ints."""
    return [int(token) for token in tokens]
