"""``NextTokenHeads``: the next-token heads of a model (MTP), computed in a context of their own.

A head is a layer behind the model's last one. From the hidden state of a token and the token that
came next it guesses the one after that, and leaves a hidden state from which it can go on guessing.
The weights are those of the model that is loaded; the context has cells for the heads' layers only.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from llama_py._native import chat_h
from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.core.mtp_check import check_heads
from llama_py.errors import StateError

__all__ = ["NextTokenHeads"]

Rows = NDArray[np.float32]


class NextTokenHeads:
    """The first head of a model.

    Args:
        target: a context of the model, whose parameters had ``load_mtp``. Its hidden states are
            what the head starts from.

    Raises:
        SymbolNotFoundError: the native library was built before it had what this needs.
        ContextCreationError: there is not enough memory.

    Attributes:
        context: that of the head.
        n_embd: floats of a hidden state.
        chunk: most tokens in one ``decode``.
    """

    def __init__(self, target: Context) -> None:
        check_heads(target.model.info)
        _ = chat_h.llama_py_nextn_enable  # which an older library has not
        self._target = target
        self._watching = False
        # What a small window cache forgot could not be drafted from again.
        params = replace(
            target.params,
            mtp=True,
            swa_full=True,
            kv_unified=True,
            type_k=None,
            type_v=None,
            moe_cache_size=0,
        )
        self.context = Context(target.model, params, beside=target)
        self.n_embd = target.model.n_embd_out
        self.chunk = min(self.context.n_batch, self.context.n_ubatch)
        self._batch = Batch(self.chunk)
        self._states: Rows = np.zeros((self.chunk, self.n_embd), np.float32)
        address = self._states.ctypes.data
        self._batch.struct.embd = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
        chat_h.llama_py_nextn_enable(self.context.pointer, True, False)

    def close(self) -> None:
        """Free the context."""
        self.context.close()

    # -- the model ------------------------------------------------------------------------------

    @property
    def watching(self) -> bool:
        """Whether decodes of the model give hidden states."""
        return self._watching

    @watching.setter
    def watching(self, on: bool) -> None:
        if on != self._watching:
            chat_h.llama_py_nextn_enable(self._target.pointer, on, True)
            self._watching = on

    def seen(self, count: int) -> Rows:
        """The hidden states of the ``count`` tokens of the model's last batch, ``(count, n_embd)``.

        A view: the next decode of the model overwrites it.

        Raises:
            StateError: it was not watched.
        """
        address = chat_h.llama_py_nextn_rows(self._target.pointer)
        return self._view(address, count)

    # -- the head -------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Tokens that were added."""
        return len(self._batch)

    def clear(self) -> None:
        """Begin a new batch."""
        self._batch.clear()

    def add(
        self, tokens: NDArray[np.intc], states: Rows, position: int, sequence: int, last: bool
    ) -> int:
        """Append tokens to the batch, each with the hidden state of the one before it.

        Args:
            tokens: ``(n,)``; of all sequences together at most ``chunk``.
            states: ``(n, n_embd)``.
            last: the guess behind the last one is wanted.

        Returns:
            The place of the last one in the batch.
        """
        start = self._batch.add(tokens, position, sequence, False)
        end = start + len(tokens)
        self._states[start:end] = states
        self._batch.outputs[end - 1] = last
        return end - 1

    def decode_added(self) -> int:
        """Evaluate what was added; returns what ``llama_decode`` returned."""
        return self.context.decode(self._batch)

    def decode(
        self, tokens: NDArray[np.intc], states: Rows, position: int, sequence: int, last: bool
    ) -> int:
        """Evaluate tokens of one sequence (see ``add`` and ``decode_added``)."""
        self.clear()
        self.add(tokens, states, position, sequence, last)
        return self.decode_added()

    def guess(self, index: int) -> tuple[NDArray[np.float32], Rows]:
        """The head's guess behind the ``index``-th token of its last batch, if one was wanted.

        Returns:
            Views of its logits, ``(n_vocab,)``, and of its hidden state, ``(1, n_embd)``.
        """
        address = chat_h.llama_py_nextn_row(self.context.pointer, index)
        return self.context.logits(index), self._view(address, 1)

    def _view(self, address: object, count: int) -> Rows:
        if not address:
            raise StateError("the last batch has no hidden states")
        array = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))  # type: ignore[arg-type]
        return np.ctypeslib.as_array(array, (count, self.n_embd))
