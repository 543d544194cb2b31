"""An engine on a tiny model, and what its requests should have generated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_py import Llama
from llama_py.engine.engine import Engine
from llama_py.engine.request import FinishEvent, Prompt, Request, TokenEvent
from llama_py.memory.cache import SequenceCache
from llama_py.params import GenerationParams, SamplingParams
from tests.memory.oracle import Oracle
from tests.models import tiny_model

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


def ask(tokens: Sequence[int], count: int = 8, **options: Any) -> Request:
    """A greedy request that generates exactly ``count`` tokens."""
    generation = {"ignore_eos": True, **options.pop("generation", {})}
    sampling = SamplingParams(**{"temperature": 0.0, **options.pop("sampling", {})})
    return Request(
        Prompt(tokens=[*tokens]),
        sampling,
        GenerationParams(max_tokens=count, **generation),
        **options,
    )


class Rig:
    """A loaded model of one kind, and an oracle for it."""

    def __init__(self, kind: str, **options: Any) -> None:
        path = tiny_model(kind)
        self.kind = kind
        self.llm = Llama(str(path), **{**EXACT, **options})
        self.oracle = Oracle(path, n_ctx=2048)
        self._expected: dict[tuple[tuple[int, ...], int], list[int]] = {}

    @property
    def engine(self) -> Engine:
        return self.llm._engine

    @property
    def cache(self) -> SequenceCache:
        return self.llm._cache

    def expected(self, request: Request, count: int | None = None) -> list[int]:
        """What ``request`` generates when it is alone in an empty context."""
        wanted = request.generation.max_tokens if count is None else count
        assert wanted is not None
        key = (tuple(request.tokens), wanted)
        if key not in self._expected:
            self._expected[key] = self.oracle.greedy(request.tokens, wanted)[0][:wanted]
        return self._expected[key]

    def run(self, *requests: Request) -> list[FinishEvent]:
        """Submit, and read to the end; returns how each request ended."""
        self.engine.submit(*requests)
        return self.read(*requests)

    def read(self, *requests: Request) -> list[FinishEvent]:
        """Read the events of submitted requests to the end."""
        last: dict[Request, FinishEvent] = {}
        tokens: dict[Request, list[int]] = {request: [] for request in requests}
        for request, event in self.engine.events_of(requests):
            if isinstance(event, TokenEvent):
                tokens[request].append(event.token)
            else:
                last[request] = event
        return [last[request] for request in requests]

    def check(self, *requests: Request) -> None:
        """Each request generated what it would have generated alone."""
        for request in requests:
            found = request.generated
            assert found == self.expected(request, len(found)), request.cache

    def check_at_rest(self) -> None:
        """Nothing is in flight, and the bookkeeping is what the memory says."""
        engine = self.engine
        assert engine._board.everything == []
        assert engine._board.deadlines == 0
        assert not engine._stepper.stepping
        for number in range(self.llm._context.n_seq_max):
            sequence = self.cache.live.get(number)
            held = len(sequence.tokens) if sequence is not None else 0
            assert self.llm._context.pos_max(number) + 1 == held, (number, held)
            assert sequence is None or not sequence.busy

    def close(self) -> None:
        self.llm.close()
        self.oracle.close()
