"""``tune``: measures a model on this machine and keeps what is fastest as a profile.

Each question (flash attention, threads, ``n_ubatch``) is a *contest*: its settings are measured in
turn, several rounds long, so that whatever else the machine does disturbs all of them. What is used
without a profile stays unless another setting was clearly faster in every round. A contest whose
rounds differ too much is repeated, and if that does not help nothing is concluded at all.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import field
from functools import partial
from typing import Any

import numpy as np

from llama_py.core import backend
from llama_py.core.batch import Batch
from llama_py.core.context import Context, default_threads
from llama_py.core.host import profiles
from llama_py.core.host.cache_folders import cache_directory
from llama_py.core.host.free_cpus import FreeCpus
from llama_py.core.host.machine import usable_cores
from llama_py.core.model import Model
from llama_py.errors import DecodeError, ParameterError, TuningError
from llama_py.params import ContextParams
from llama_py.quick_dataclass import dataclass

__all__ = ["Contest", "Tuning", "tune"]

Measure = Callable[[], float]

#: Rounds of a contest, and how often it is repeated when its rounds differ too much.
_ROUNDS, _REPEATS = 3, 2
#: Most by which the rounds of one setting may differ: the longest by the shortest.
_QUIET = 1.25
#: CPUs that others may use while something is measured.
_OTHERS = 0.4
#: A setting takes the place of the default if every round took less than this share of its time.
_WINS = 0.96
#: Seconds that one measurement of a prompt and of generating should take, and filling a context.
_PROMPT_SECONDS, _REPLY_SECONDS, _FILL_SECONDS = 0.8, 0.4, 5.0
#: Tokens of a prompt and of a reply in the turn that settings are compared by.
_PROMPT, _REPLY = 512, 128
_DEEP = 2048
_UBATCHES = (128, 256, 512, 1024)


@dataclass
class Contest:
    """The settings of one parameter, and the seconds that each took in each round.

    Attributes:
        name: the parameter.
        default: the label of what is used without a profile.
        rounds: label -> seconds of a typical turn, one for each round.
        busy: CPUs that other programs used meanwhile, if that is known.
    """

    name: str
    default: str
    rounds: dict[str, list[float]] = field(default_factory=dict)
    busy: float = 0.0

    @property
    def spread(self) -> float:
        """How much the rounds of a setting differ: the longest by the shortest, at the worst."""
        return max(max(times) / min(times) for times in self.rounds.values())

    @property
    def noisy(self) -> bool:
        """Nothing can be concluded."""
        return self.busy > _OTHERS or self.spread > _QUIET

    @property
    def winner(self) -> str:
        """The fastest of the settings that beat the default in every round, or the default."""
        usual = self.rounds[self.default]
        faster = {
            label: statistics.median(times)
            for label, times in self.rounds.items()
            if all(time < _WINS * other for time, other in zip(times, usual, strict=True))
        }
        return min(faster, key=faster.__getitem__, default=self.default)


@dataclass(frozen=True, slots=True)
class Tuning:
    """What came out.

    Attributes:
        contests: what was measured.
        values: the parameters that are best set, by name; the others are best as they are.
        profile: where that is kept; None if it was not to be kept.
        seconds: how long it took.
    """

    contests: Sequence[Contest]
    values: dict[str, bool | int]
    profile: profiles.Profile | None
    seconds: float


def tune(
    model_path: str,
    *,
    seconds: float = 120.0,
    keep: bool = True,
    progress: Callable[[float], object] = lambda done: None,
) -> Tuning:
    """Measure a model on this machine, and keep what is fastest for those who load it later.

    Args:
        seconds: the time limit.
        keep: write the profile.
        progress: called with the fraction done.

    Raises:
        TuningError: the machine is too busy or too slow, or another process is tuning. Nothing was
            written.
        ModelNotFoundError, InvalidModelError, ContextCreationError: the model cannot be loaded.
    """
    if seconds <= 0:
        raise ParameterError(f"seconds={seconds}: must be greater than 0")
    if any("gpu" in device["kind"] for device in backend.local_devices()):
        raise TuningError("a GPU computes here, and this measures CPUs")
    with _alone(), closing(Model(model_path)) as model:
        key = profiles.key_of(model.info)
        tuner = _Tuner(model, seconds, progress)
        contests, values = tuner.run()
        if profiles.key_of(model.info) != key:
            raise TuningError("the CPUs that this process may use changed while they were measured")
        figures = {contest.name: contest.rounds for contest in contests}
        profile = profiles.write(key, values, figures) if keep else None
        return Tuning(contests, values, profile, tuner.elapsed)


@contextmanager
def _alone() -> Iterator[None]:
    """One process at a time: two would measure each other."""
    try:
        import fcntl
    except ImportError:  # Windows: they notice each other as noise
        yield
        return
    folder = cache_directory()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "tune.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TuningError("another process is tuning; try again when it has ended") from None
        yield


class _Tuner:
    """Runs the contests for one model."""

    def __init__(self, model: Model, seconds: float, progress: Callable[[float], object]) -> None:
        self._model = model
        self._limit = seconds
        self._progress = progress
        self._start = time.perf_counter()
        self._free = FreeCpus()
        self._cores = usable_cores()
        self._threads = default_threads(model.size_bytes, self._cores)
        self._prompt_tokens, self._reply_tokens, self._depth = 64, 4, 0

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._start

    def run(self) -> tuple[list[Contest], dict[str, bool | int]]:
        """All contests, and the parameters that are better set."""
        values: dict[str, bool | int] = {}
        contests: list[Contest] = []
        self._choose_sizes()
        holds: Sequence[Callable[[Mapping[str, bool | int]], Contest | None]] = (
            self._flash_contest,
            partial(self._thread_contest, "n_threads", lambda rig: rig.reply(self._reply_tokens)),
            partial(
                self._thread_contest, "n_threads_batch", lambda rig: rig.prompt(self._prompt_tokens)
            ),
            self._ubatch_contest,
        )
        for number, hold in enumerate(holds):
            self._progress(0.05 + 0.95 * number / 4)
            contest = hold(values)
            if contest is not None:
                contests.append(contest)
                winner = contest.winner
                if winner != contest.default:
                    on = _FROM_LABEL.get(winner)
                    values[contest.name] = int(winner) if on is None else on
        self._progress(1.0)
        return contests, values

    def _choose_sizes(self) -> None:
        """Lengths of prompts and replies, and a depth, that this machine has the time for."""
        with closing(self._rig({}, 0)) as rig:
            rig.prompt(16)
            prompt, reply = rig.prompt(64) / 64, rig.reply(4) / 4
        room = self._model.n_ctx_train - _PROMPT - _REPLY
        self._prompt_tokens = _between(32, int(_PROMPT_SECONDS / prompt), _PROMPT)
        self._reply_tokens = _between(2, int(_REPLY_SECONDS / reply), 32)
        depth = min(_DEEP, room, int(_FILL_SECONDS / prompt)) // 256 * 256
        self._depth = 0 if self._model.is_recurrent else max(0, depth)

    def _rig(self, values: Mapping[str, bool | int], depth: int, **more: bool | int) -> _Rig:
        settings: dict[str, Any] = {**values, **more}
        settings.setdefault("n_threads", self._threads)
        settings.setdefault("n_threads_batch", self._threads)
        return _Rig(self._model, settings, depth)

    # -- contests -------------------------------------------------------------------------------

    def _flash_contest(self, values: Mapping[str, bool | int]) -> Contest:
        """Whole turns, at the beginning of a context and deep in it."""
        with ExitStack() as stack:

            def turns(label: str) -> Measure:
                on = _FROM_LABEL[label]
                rigs = [
                    stack.enter_context(closing(self._rig(values, depth, flash_attn=on)))
                    for depth in sorted({0, self._depth})
                ]
                return lambda: sum(self._turn(rig) for rig in rigs)

            return self._hold("flash_attn", "on", {label: turns(label) for label in _FROM_LABEL})

    def _thread_contest(
        self, name: str, part: Callable[[_Rig], float], values: Mapping[str, bool | int]
    ) -> Contest | None:
        """Other numbers of threads, if there are any."""
        counts = {1, self._cores // 2, self._cores - 1, self._cores, self._threads} - {0}
        if len(counts) < 2:
            return None
        with closing(self._rig(values, 0)) as rig:

            def measure(count: int) -> Measure:
                def run() -> float:
                    rig.set_threads(count)
                    return part(rig)

                return run

            measures = {str(count): measure(count) for count in sorted(counts)}
            return self._hold(name, str(self._threads), measures)

    def _ubatch_contest(self, values: Mapping[str, bool | int]) -> Contest | None:
        """A prompt that is evaluated in chunks of other sizes."""
        default = ContextParams().n_ubatch
        if self._prompt_tokens < default or self._model.n_ctx_train < 2 * max(_UBATCHES):
            return None
        with ExitStack() as stack:

            def measure(size: int) -> Measure:
                rig = stack.enter_context(closing(self._rig(values, 0, n_ubatch=size)))
                return lambda: rig.prompt(max(_UBATCHES))

            measures = {str(size): measure(size) for size in _UBATCHES}
            return self._hold("n_ubatch", str(default), measures)

    def _turn(self, rig: _Rig) -> float:
        """Seconds of a typical turn."""
        prompt = rig.prompt(self._prompt_tokens) / self._prompt_tokens
        return prompt * _PROMPT + rig.reply(self._reply_tokens) / self._reply_tokens * _REPLY

    def _hold(self, name: str, default: str, measures: Mapping[str, Measure]) -> Contest:
        """Measure every setting in every round; again, if the rounds differ too much.

        Raises:
            TuningError: they still do, or the time is over.
        """
        for measure in measures.values():
            measure()  # what is done for the first time takes longer
        for repeat in range(1 + _REPEATS):
            if repeat:
                time.sleep(1.0)  # what disturbs it may pass
            contest = Contest(name, default, {label: [] for label in measures})
            self._free()
            for number in range(_ROUNDS):
                for label in [*measures][:: 1 if number % 2 == 0 else -1]:
                    if self.elapsed > self._limit:
                        raise TuningError(
                            f"{self._limit:.0f} seconds were not enough to measure this model; "
                            "give more"
                        )
                    contest.rounds[label].append(measures[label]())
            free = self._free()
            contest.busy = 0.0 if free is None else max(0.0, self._cores - free)
            if not contest.noisy:
                return contest
        busy = contest.busy > _OTHERS
        others = f", and others used {contest.busy:.1f} of its CPUs" if busy else ""
        raise TuningError(
            "this machine is too busy to be measured: the same work took up to "
            f"{contest.spread:.2f} times as long in another round ({contest.name}){others}; "
            "try again when it is quiet"
        )


class _Rig:
    """A context of a certain depth, in which prompts and replies are timed."""

    def __init__(self, model: Model, settings: Mapping[str, Any], depth: int) -> None:
        n_ctx = min(model.n_ctx_train, depth + max(_UBATCHES) + 256)
        self._context = Context(model, ContextParams(n_ctx=n_ctx, n_seq_max=1, **settings))
        self._batch = Batch(self._context.n_batch)
        self._random = np.random.default_rng(1)
        self._depth = self._held = 0
        try:
            self._evaluate(depth)
        except BaseException:
            self.close()
            raise
        self._depth = depth
        cannot_cut = model.is_recurrent or model.is_hybrid
        self._state = self._context.state_get(0) if depth and cannot_cut else None

    def close(self) -> None:
        """Free the context."""
        self._context.close()

    def set_threads(self, count: int) -> None:
        """Compute with so many from now on."""
        self._context.set_threads(count, count)
        self.prompt(2)  # they may have to be started
        self.reply(1)

    def prompt(self, count: int) -> float:
        """Seconds of so many tokens at once."""
        start = time.perf_counter()
        self._evaluate(count)
        seconds = time.perf_counter() - start
        self._go_back()
        return seconds

    def reply(self, count: int) -> float:
        """Seconds of so many tokens, one after the other."""
        self._evaluate(1)  # the graph of single tokens is made
        start = time.perf_counter()
        for _ in range(count):
            self._evaluate(1)
        seconds = time.perf_counter() - start
        self._go_back()
        return seconds

    def _evaluate(self, count: int) -> None:
        size = self._context.n_batch
        for start in range(0, count, size):
            few = min(size, count - start)
            outputs = np.zeros(few, np.int8)
            outputs[-1] = 1
            tokens = self._random.integers(0, min(self._context.n_vocab, 1000), few, np.int32)
            self._batch.set(tokens, self._held, 0, outputs)
            code = self._context.decode(self._batch)
            if code:
                raise DecodeError(f"llama_decode returned {code} while it was measured", code)
            self._context.synchronize()
            self._held += few

    def _go_back(self) -> None:
        """To where it was; a recurrent state cannot be cut, and is loaded."""
        if not self._context.seq_rm(0, self._depth):
            self._context.clear()
            if self._state is not None:
                self._context.state_set(0, self._state)
        self._held = self._depth


_FROM_LABEL = {"on": True, "off": False}


def _between(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))
