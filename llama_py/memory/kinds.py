"""The abilities of a context's memory, found by asking the context, not by the model's name.

llama.cpp has five kinds of sequence memory. For reuse, two questions matter: from which positions
can a sequence be *resumed* after its tail is cut, and what does a *checkpoint* (a partial state)
contain. Three traps decide the answers:

* A small sliding-window cache forgets cells behind its window, and ``seq_rm`` does not say so: a
  sequence may be resumed at ``p`` only while ``pos_min <= max(0, p - n_swa)``.
* A recurrent state cannot be cut at all; it can be continued, or replaced by a checkpoint.
* A checkpoint is loaded *before* the tail is cut. In the other order recurrent memory refuses the
  cut, and stale attention cells would stay beside the new ones.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llama_py.memory.positions import TEXT, Positions

__all__ = ["MemoryKind", "MemoryTraits", "ModelFacts", "SequenceMemory", "traits_of"]


class SequenceMemory(Protocol):
    """The part of a context that decisions about reuse need (``core.context.Context`` has it)."""

    n_ctx: int
    n_ctx_seq: int
    n_seq_max: int
    #: A sequence that no conversation gets, to copy ranges of cells through; None if there is none.
    spare: int | None

    def clear(self) -> None:
        """Forget every sequence."""

    def seq_rm(self, seq: int, p0: int, p1: int = -1) -> bool:
        """Remove positions [p0, p1); False if this memory cannot."""

    def seq_cp(self, source: int, target: int, p0: int = -1, p1: int = -1) -> None:
        """Let ``target`` share the cells [p0, p1) of ``source``, or copy those of all of it."""

    def pos_min(self, seq: int) -> int:
        """Smallest position in memory, -1 if the sequence is empty."""

    def pos_max(self, seq: int) -> int:
        """Largest position in memory, -1 if the sequence is empty."""

    def state_size(self, seq: int, *, partial: bool = False) -> int:
        """Bytes of the state."""

    def state_get(self, seq: int, *, partial: bool = False) -> NDArray[np.uint8]:
        """Copy the state of a sequence out."""

    def state_set(
        self,
        seq: int,
        state: NDArray[np.uint8] | bytes | memoryview,
        *,
        partial: bool = False,
        keeps: bool = False,
    ) -> None:
        """Load a state into a sequence, which is empty if that fails.

        Args:
            keeps: if a partial one fails, what is not a part of it stays, to try again.
        """


class ModelFacts(Protocol):
    """The part of ``core.model.Model`` that decides which kind of memory it has."""

    @property
    def n_swa(self) -> int:
        """Width of the sliding window, 0 if there is none."""

    @property
    def is_recurrent(self) -> bool:
        """No attention at all."""

    @property
    def is_hybrid(self) -> bool:
        """Attention beside a recurrent state."""

    @property
    def architecture(self) -> str:
        """``general.architecture``."""

    @property
    def n_ctx_train(self) -> int:
        """Trained context length."""


class MemoryKind(enum.Enum):
    """The five kinds of sequence memory in llama.cpp."""

    FULL = "full attention"
    ISWA = "sliding window"
    RECURRENT = "recurrent"
    HYBRID = "hybrid"
    HYBRID_ISWA = "hybrid with sliding window"


#: Architectures whose memory copies whole sequences only; copying a part aborts the process.
#: (``core.context`` has them as well: it may not look up here.)
WHOLE_COPIES_ONLY = frozenset({"deepseek4", "glm5-next", "qwen4exp"})
#: Of these, a copy that shares all cells may be cut: they keep what they pool of several cells in
#: the last of them, so that where two sequences part, each has its own.
_CUTS_COPIES = frozenset({"glm5-next", "qwen4exp"})
#: Architectures with learned position embeddings; a position past the last one aborts the process.
_LEARNED_POSITIONS = frozenset({"gpt2", "mpt", "starcoder"})


@dataclass(frozen=True, slots=True)
class MemoryTraits:
    """What can be done with the sequences of one context.

    Attributes:
        kind: which memory it is.
        window: width of the sliding window, 0 if there is none. It matters with a full-size cache
            as well: saved states leave out what the window has passed.
        forgets: the cache of the sliding window is small, so that a sequence loses cells; or a copy
            of one does.
        recurrent: there is a recurrent state, which cannot be cut.
        shares_cells: all sequences are in one buffer, and may have cells in common. Where each has
            its own, a copy of one is made of its saved state.
        copies_parts: ``seq_cp`` of a range is allowed.
        cuts_copies: it is not, but a copy of all cells can be cut afterwards.
        max_position: positions must stay below this, or None.
    """

    kind: MemoryKind
    window: int
    recurrent: bool
    forgets: bool = False
    shares_cells: bool = True
    copies_parts: bool = True
    cuts_copies: bool = False
    max_position: int | None = None

    @property
    def needs_checkpoints(self) -> bool:
        """True if going back is not always possible without one."""
        return self.recurrent or self.forgets

    @property
    def checkpoint_is_whole(self) -> bool:
        """True if a checkpoint alone brings back the sequence (no attention cells exist)."""
        return self.kind is MemoryKind.RECURRENT

    def can_resume(self, pos_min: int, length: int, keep: int, positions: Positions = TEXT) -> bool:
        """Whether a sequence of ``length`` tokens may go on behind its first ``keep`` ones after a
        mere cut.

        Args:
            pos_min: smallest position that the memory still has for it.
        """
        if keep == length:
            return True
        if keep <= 0:
            return False
        if self.recurrent:
            return False
        return pos_min <= (max(0, positions.after(keep) - self.window) if self.window else 0)

    def why_not(self) -> str:
        """Names what stood in the way, for ``cache_info``."""
        return "recurrent state cannot be cut" if self.recurrent else "window cells are gone"


def traits_of(model: ModelFacts, swa_full: bool, unified: bool = True) -> MemoryTraits:
    """The traits of a context of ``model``.

    Args:
        swa_full: the cache of the sliding window has its full size.
        unified: all sequences share one buffer of cells.
    """
    window = 0 if model.is_recurrent else model.n_swa
    recurrent = model.is_recurrent or model.is_hybrid
    learned = model.architecture in _LEARNED_POSITIONS
    if model.is_hybrid:
        kind = MemoryKind.HYBRID_ISWA if model.n_swa > 0 else MemoryKind.HYBRID
    elif model.is_recurrent:
        kind = MemoryKind.RECURRENT
    else:
        kind = MemoryKind.ISWA if model.n_swa > 0 else MemoryKind.FULL
    return MemoryTraits(
        kind=kind,
        window=window,
        recurrent=recurrent,
        # A copy has no more of the window than a saved state, whatever the size of the cache.
        forgets=window > 0 and not (swa_full and unified),
        shares_cells=unified,
        copies_parts=unified and model.architecture not in WHOLE_COPIES_ONLY,
        cuts_copies=unified and model.architecture in _CUTS_COPIES,
        max_position=model.n_ctx_train if learned else None,
    )
