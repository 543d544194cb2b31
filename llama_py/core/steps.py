"""``Steps``: steps of streams whose tokens need nothing but the logits, in one call into C.

On a small model, what Python does between two steps takes a good part of the time of a step. So a
step is one call; where nobody waits for its tokens, several steps are.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from llama_py._native import chat_h
from llama_py._native import llama_h as C
from llama_py.core import logs
from llama_py.core.batch import Batch
from llama_py.errors import SymbolNotFoundError

__all__ = ["MOST_CANDIDATES", "NO_TOKEN", "Steps"]

#: What a stream gets when every logit is -inf, or one is not a number.
NO_TOKEN: int = chat_h.LLAMA_PY_STEPS_NO_TOKEN
#: A stream that draws does so from its most likely tokens: these, at most.
MOST_CANDIDATES: int = chat_h.LLAMA_PY_STEPS_MOST_CANDIDATES
#: Most steps in one call.
_MOST = 64


class Steps:
    """Room for what steps of up to ``streams`` streams give.

    Arrays of ctypes and not of numpy: behind a step, whose weights took everything else out of the
    caches, a call of numpy takes ten times as long as one of these.

    Attributes:
        endless: int8 ``(streams,)``, non-zero where a reply goes on behind tokens that end one.
        hurry: int32 ``(1,)``. Any thread may set it: no further step begins then.
        done: steps of the last call that succeeded.
        code: what ``llama_decode`` returned last; unless it is 0, another step has failed.
    """

    def __init__(self, streams: int) -> None:
        self.endless = (ctypes.c_int8 * streams)()
        self.hurry = (ctypes.c_int32 * 1)()
        self._samplers = (ctypes.c_void_p * streams)()
        self._top_k = (ctypes.c_int32 * streams)()
        self._drawn: list[tuple[int, int]] = []
        self._code = ctypes.c_int32()
        self._chosen = (ctypes.c_int32 * (_MOST * streams))()
        self._times = (ctypes.c_double * (2 * _MOST))()
        samplers = ctypes.cast(self._samplers, ctypes.POINTER(C.llama_sampler_p))
        arrays: tuple[ctypes.Array[Any] | ctypes.c_int32, ...]
        arrays = (self._top_k, self.endless, self.hurry, self._chosen, self._times, self._code)
        self._arrays = (samplers, *[ctypes.addressof(array) for array in arrays])
        self._streams = 0
        self.done = self.code = 0

    @staticmethod
    def of(streams: int) -> Steps | None:
        """None if the native library is of an older build, which cannot do this."""
        return Steps(streams) if _function() is not None else None

    def choose(self, by: list[tuple[int, int]]) -> None:
        """How each stream gets its token: address of a sampler, and its number of candidates.

        An address of 0 takes the likeliest token. The samplers must live until the steps end.
        """
        if by != self._drawn:
            self._drawn = by
            for row, (address, count) in enumerate(by):
                self._samplers[row], self._top_k[row] = address, count

    def run(self, context: C.llama_context_p, batch: Batch, most: int, seconds: float) -> None:
        """See ``Context.decode_steps``."""
        self._streams = batch.struct.n_tokens
        most = min(most, _MOST)
        self.done = _function()(context, batch.struct, most, seconds, *self._arrays)
        self.code = self._code.value

    @property
    def chosen(self) -> list[list[int]]:
        """For each stream its tokens, one of each step; ``NO_TOKEN`` where there is none."""
        count = self._streams
        tokens: list[int] = self._chosen[: self.done * count]
        return [tokens] if count == 1 else [tokens[row::count] for row in range(count)]

    @property
    def times(self) -> list[tuple[float, float]]:
        """Of each step, also the one that failed: seconds of decoding, and of choosing."""
        flat: list[float] = self._times[: 2 * (self.done + (self.code != 0))]
        return [*zip(flat[::2], flat[1::2], strict=True)]


@cache
def _function() -> Any:
    """The function, or None in a library that was built before there was one."""
    try:
        return chat_h.llama_py_decode_steps
    except SymbolNotFoundError as error:
        logs.LOGGER.warning("replies are generated more slowly than they could be: %s", error)
        return None
