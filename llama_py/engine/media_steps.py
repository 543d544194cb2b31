"""``MediaSteps``: when a picture or a sound of a prompt is evaluated, and with what.

Its cells are one step by themselves. It is made when their vectors are there; until then its
request waits, and the others go on. Beside streams, every second step is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llama_py.engine.clock import Clock
from llama_py.engine.generation import Generation
from llama_py.engine.in_flight import InFlight
from llama_py.engine.scheduler import Prefill, StepPlan
from llama_py.errors import LlamaError, MediaError

if TYPE_CHECKING:
    from llama_py.core.projector import Cells
    from llama_py.engine.media import MediaEncoder
    from llama_py.engine.request import GenerationRequest

__all__ = ["MediaSteps", "MediaVectors"]


@dataclass(frozen=True, slots=True, eq=False)
class MediaVectors:
    """What a step with a picture or a sound evaluates.

    Attributes:
        rows: float32 ``(n, n_embd_inp)``.
        cells: where they go.
    """

    rows: NDArray[np.float32]
    cells: Cells


class MediaSteps:
    """See the module.

    Attributes:
        encoder: computes the vectors; None as long as there is no projector.
        wake: called from the encoder's thread when vectors are there; None: nobody waits, so that
            the engine encodes by itself.
    """

    def __init__(self, requests: InFlight, clock: Clock) -> None:
        self._requests = requests
        self._clock = clock
        self.encoder: MediaEncoder | None = None
        self.wake: Callable[[], None] | None = None
        #: The last step was one of a picture.
        self._just = False

    def keep(self, requests: Sequence[GenerationRequest]) -> None:
        """Requests were submitted: what was read of their pictures is kept."""
        if self.encoder is not None:
            for medium in {each.medium for one in requests for each in one.prompt.media}:
                self.encoder.keep(medium)

    def others_go(self) -> None:
        """A step of others follows."""
        self._just = False

    def plan(self, running: Sequence[Generation]) -> StepPlan[Generation] | None:
        """A step for the first one whose vectors are there; None: it is the turn of others, or
        nothing is there yet. A request whose picture cannot be encoded fails."""
        others = any(not each.at_media and not each.paused for each in running)
        chosen: StepPlan[Generation] | None = None
        for each in running:
            if not each.at_media or each.paused:
                continue
            try:
                step = self._step(each, wanted=chosen is None and not (self._just and others))
            except LlamaError as error:
                self._requests.fail(each, error)
            else:
                chosen = chosen or step
        self._just = chosen is not None
        return chosen

    def _step(self, running: Generation, *, wanted: bool) -> StepPlan[Generation] | None:
        found, encoder = running.next_stretch(), self.encoder
        if found is None or encoder is None:
            raise MediaError(
                "a picture or sound of the prompt is not there any more: its cells made room, and "
                "nothing says what it was; send the messages again"
            )
        medium, stretch = found
        if not (encoder.is_ready(medium, stretch) or self.wake is None) and encoder.prepare(
            medium, stretch, self.wake
        ):
            return None
        if not wanted:
            return None
        rows = encoder.vectors(medium, stretch)
        entry = Prefill(running, stretch.cells.count)
        vectors = MediaVectors(rows, stretch.cells)
        seconds = self._requests.time_left(running_only=True)
        return StepPlan(prefills=(entry,), seconds=seconds, vectors=vectors)
