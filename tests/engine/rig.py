"""An engine on a tiny model, and what its requests should have generated."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from llama_py import Llama
from llama_py.api import loading
from llama_py.core.context import Context
from llama_py.engine.clock import Clock
from llama_py.engine.driver import Driver
from llama_py.engine.engine import Engine
from llama_py.engine.events import Events
from llama_py.engine.request import (
    FinishEvent,
    GenerationRequest,
    Prompt,
    Record,
    TokenEvent,
)
from llama_py.memory.cache import SequenceCache
from llama_py.params import GenerationParams, SamplingParams
from tests.memory.oracle import Oracle
from tests.models import tiny_model
from tests.patience import PATIENCE

#: With flash attention off and cells in F32 the result does not depend on what is in a batch.
EXACT: dict[str, Any] = {
    "n_threads": 1,
    "flash_attn": False,
    "type_k": 0,
    "type_v": 0,
    "n_ctx": 2048,
    "n_batch": 128,
    "n_ubatch": 64,
}


def words(seed: int, count: int) -> list[int]:
    """Tokens without meaning, the same for the same seed."""
    return [(seed * 7919 + 31 * i + i * i * (seed % 5 + 1)) % 250 + 1 for i in range(count)]


@dataclass(eq=False)
class Asked:
    """A request, and what became of it."""

    request: GenerationRequest
    events: Events | None = None
    index: int = 0
    given: list[int] = field(default_factory=list)
    end: FinishEvent | None = None

    @property
    def record(self) -> Record:
        assert self.events is not None, "it was not submitted"
        return self.events.records[self.index]

    @property
    def tokens(self) -> list[int]:
        return [*(self.request.prompt.tokens or ())]

    @property
    def generated(self) -> list[int]:
        return self.record.generated

    @property
    def started(self) -> bool:
        return bool(self.record.started)

    @property
    def ended(self) -> bool:
        return bool(self.record.ended)


def ask(tokens: Sequence[int], count: int = 8, **options: Any) -> Asked:
    """A greedy request that generates exactly ``count`` tokens."""
    generation = {"ignore_eos": True, **options.pop("generation", {})}
    sampling = SamplingParams(**{"temperature": 0.0, **options.pop("sampling", {})})
    return Asked(
        GenerationRequest(
            Prompt(tokens=[*tokens]),
            sampling,
            GenerationParams(max_tokens=count, **generation),
            **options,
        )
    )


class StepClock(Clock):
    """Time that only steps spend, as much as they are told to: whatever the machine is busy with.

    Attributes:
        step, row: seconds of a step, and of each row of it.
        now: what time it is.
    """

    def __init__(self, step: float = 0.004, row: float = 0.001) -> None:
        self.step, self.row = step, row
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def took(self, rows: int, seconds: float) -> float:
        spent = self.step + self.row * rows if rows else 0.0
        self.now += spent
        return spent

    def within(self, rows: int, most: int, seconds: float) -> tuple[int, float]:
        steps = math.ceil(seconds / (self.step + self.row * rows))
        return max(1, min(most, steps)), 3600.0


class Rig:
    """A loaded model of one kind, and an oracle for it.

    Its engine is stepped in place, by the tests; ``in_place=False`` gives it its thread. With a
    ``clock`` of the test, steps take as long as that says.
    """

    def __init__(
        self, kind: str, *, in_place: bool = True, clock: Clock | None = None, **options: Any
    ) -> None:
        path = tiny_model(kind)
        self.kind = kind
        with patch.object(loading, "Clock", lambda: clock or Clock()):
            self.llm = Llama(str(path), in_place=in_place, **{**EXACT, **options})
        self.oracle = Oracle(path, n_ctx=2048)
        self._expected: dict[tuple[tuple[int, ...], int], list[int]] = {}

    @property
    def driver(self) -> Driver:
        return self.llm.runtime.loaded.driver

    @property
    def engine(self) -> Engine:
        return self.driver.engine

    @property
    def context(self) -> Context:
        return self.engine.context

    @property
    def cache(self) -> SequenceCache:
        return self.engine.cache

    def expected(self, asked: Asked, count: int | None = None) -> list[int]:
        """What a request generates when it is alone in an empty context."""
        wanted = asked.request.generation.max_tokens if count is None else count
        assert wanted is not None
        key = (tuple(asked.tokens), wanted)
        if key not in self._expected:
            self._expected[key] = self.oracle.greedy(asked.tokens, wanted)[0][:wanted]
        return self._expected[key]

    def submit(self, *asked: Asked, whole: bool = False) -> None:
        """Submit requests as one call; ``whole``: its owner wants everything at the end."""
        if not asked:
            return
        events = Events(self.driver, [each.request for each in asked], whole=whole)
        for index, each in enumerate(asked):
            each.events, each.index = events, index

    def step(self) -> bool:
        """What the engine does next, in place; False if there is nothing to do."""
        return self.driver.step()

    def step_until(self, done: Callable[[], bool]) -> None:
        for _ in range(3000):
            if done():
                return
            self.step()
        raise AssertionError("it is not done")

    def wait_until_idle(self) -> None:
        """Nothing is in flight, and the engine's thread has done what it was told."""
        deadline = time.monotonic() + PATIENCE
        self.driver.run(lambda: None)
        while self.driver.in_flight and time.monotonic() < deadline:
            time.sleep(0.001)
            self.driver.run(lambda: None)
        assert not self.driver.in_flight

    def cancel(self, asked: Asked) -> None:
        """Cancel the call of a request, which another thread may not have submitted to the end."""
        end = time.monotonic() + PATIENCE
        while asked.events is None and time.monotonic() < end:
            time.sleep(0.001)
        assert asked.events is not None
        asked.events.close()

    def run(self, *asked: Asked) -> list[FinishEvent]:
        """Submit, and read to the end; returns how each request ended."""
        self.submit(*asked)
        return self.read(*asked)

    def read(self, *asked: Asked) -> list[FinishEvent]:
        """Read the calls of submitted requests to the end."""
        for each in asked:
            assert each.events is not None
            calls = {other.index: other for other in asked if other.events is each.events}
            for index, event in each.events:
                if index not in calls:
                    continue
                if isinstance(event, TokenEvent):
                    calls[index].given.append(event.token)
                else:
                    calls[index].end = event
        ends = [each.end for each in asked]
        assert None not in ends
        return ends  # type: ignore[return-value]

    def check(self, *asked: Asked) -> None:
        """Each request generated what it would have generated alone."""
        for each in asked:
            found = each.generated
            assert found == self.expected(each, len(found)), each.record.cache

    def check_at_rest(self) -> None:
        """Nothing is in flight, and the bookkeeping is what the memory says."""
        self.wait_until_idle()
        assert [*self.engine.requests] == []
        assert self.engine.requests.deadlines == 0
        assert not self.engine.stepping
        assert not self.driver.in_flight
        for number in range(self.context.n_seq_max):
            sequence = self.cache.live.by_number.get(number)
            held = len(sequence.tokens) if sequence is not None else 0
            assert self.context.pos_max(number) + 1 == held, (number, held)
            assert sequence is None or not sequence.busy

    def close(self) -> None:
        self.llm.close()
        self.oracle.close()
