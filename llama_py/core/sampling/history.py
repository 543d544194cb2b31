"""``TokenHistory``: the tokens of a prompt and its reply, for callers who look at all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["TokenHistory"]


class TokenHistory:
    """A growing array of token ids. Adding one and looking at all of them takes constant time.

    Args:
        tokens: the ids to begin with.
    """

    __slots__ = ("_buffer", "_count")

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._count = len(tokens)
        self._buffer = np.empty(max(64, 2 * self._count), np.intc)
        self._buffer[: self._count] = tokens

    def __len__(self) -> int:
        return self._count

    def append(self, token: int) -> None:
        """Add one token."""
        if self._count == len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.empty_like(self._buffer)])
        self._buffer[self._count] = token
        self._count += 1

    @property
    def array(self) -> NDArray[np.intc]:
        """All tokens so far: a view, ``(len(self),)``, that cannot be written to.

        It stays as it is when further tokens are added.
        """
        view = self._buffer[: self._count]
        view.flags.writeable = False
        return view
