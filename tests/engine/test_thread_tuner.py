"""The number of threads on machines that others use as well: simulated step times, no clocks."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from llama_py.core.host.free_cpus import FreeCpus
from llama_py.engine.thread_tuner import ThreadTuner

#: Seconds between two hints.
LOOK = 0.2
Busy = Callable[[float], int]


@dataclass
class Machine:
    """Cores, of which others use some.

    Threads beyond the free cores share one with another program, and all threads wait for those:
    27 tokens per second with two threads of which one shares its core, 55 with one thread.

    Attributes:
        step: seconds of a step with one thread.
        noise: how much steps differ; one in fifty takes three times as long.
        hints: the system tells what is free.
        log: seconds at the end of each step, and its number of threads.
    """

    cores: int = 2
    step: float = 0.018
    noise: float = 0.1
    hints: bool = True
    busy: Busy = lambda now: 0
    now: float = 0.0
    log: list[tuple[float, int]] = field(default_factory=list)

    def seconds(self, threads: int) -> float:
        """How long a step takes now, without noise."""
        free = self.cores - self.busy(self.now)
        each = self.step * (0.05 + 0.95 / threads)
        return each if threads <= max(1, free) else 4 * each

    def best(self) -> float:
        return min(map(self.seconds, range(1, self.cores + 1)))

    def run(self, tuner: ThreadTuner, seconds: float, kind: int = 1) -> float:
        """Steps for so many seconds; returns how much faster the best fixed count would have been.

        One that is known beforehand, and may be another one whenever the machine changes.
        """
        dice, end, best, start = random.Random(1), self.now + seconds, 0.0, self.now
        look = self.now
        while self.now < end:
            if self.hints and self.now >= look:
                tuner.hint(self.cores - self.busy(self.now) + dice.uniform(-0.1, 0.1))
                look = self.now + LOOK
            noise = 1 + dice.uniform(0, self.noise) + 2 * (self.noise > 0 and dice.random() < 0.02)
            took = self.seconds(tuner.threads) * noise
            best += self.best() * noise
            self.log.append((self.now + took, tuner.threads))
            self.now += took
            tuner.note(kind, took)
        return best / (self.now - start)

    def settled_after(self, change: float, threads: Callable[[int], bool]) -> float:
        """Seconds after which at least 19 of 20 steps have the right number of threads."""
        later = [(end, threads(count)) for end, count in self.log if end > change]
        for index, (end, right) in enumerate(later):
            rest = [fits for _, fits in later[index:]]
            if right and sum(rest) >= 0.95 * len(rest):
                return end - change
        raise AssertionError("it never settles")


@pytest.mark.parametrize("hints", [True, False], ids=["hints", "no-hints"])
@pytest.mark.parametrize("cores", [2, 4, 16])
@pytest.mark.parametrize("step", [0.002, 0.018, 0.5])
def test_a_quiet_machine_pays_less_than_a_hundredth(hints: bool, cores: int, step: float) -> None:
    machine = Machine(cores=cores, step=step, hints=hints)
    tuner = ThreadTuner(cores)
    assert machine.run(tuner, max(20.0, 2000 * step)) >= 0.99
    if hints:
        others = sum(count != cores for _, count in machine.log)
        assert others < 0.005 * len(machine.log)


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
def test_within_a_second_it_leaves_a_core_to_another_program(noise: float) -> None:
    machine = Machine(busy=lambda now: int(now >= 10), noise=noise)
    tuner = ThreadTuner(2)
    machine.run(tuner, 10)
    share = machine.run(tuner, 10)
    assert machine.settled_after(10, lambda count: count == 1) < 1
    assert share > 0.9


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
def test_within_a_second_it_takes_the_core_again(noise: float) -> None:
    machine = Machine(busy=lambda now: int(now < 10), noise=noise)
    tuner = ThreadTuner(2)
    machine.run(tuner, 10)
    assert tuner.threads == 1
    share = machine.run(tuner, 10)
    assert machine.settled_after(10, lambda count: count == 2) < 1
    assert share > 0.9


def test_a_machine_that_is_busy_from_the_beginning() -> None:
    machine = Machine(busy=lambda now: 1)
    assert machine.run(ThreadTuner(2), 3) > 0.9
    assert machine.settled_after(0, lambda count: count == 1) < 0.5


def test_without_hints_step_times_alone_decide() -> None:
    machine = Machine(busy=lambda now: int(10 <= now < 30), hints=False)
    tuner = ThreadTuner(2)
    machine.run(tuner, 10)
    assert machine.run(tuner, 20) > 0.85
    assert machine.settled_after(10, lambda count: count == 1) < 6
    machine.run(tuner, 40)
    assert tuner.threads == 2


@pytest.mark.parametrize("busy", [1, 3, 8, 15])
def test_many_cores(busy: int) -> None:
    machine = Machine(cores=16, busy=lambda now: busy if 5 <= now < 25 else 0)
    tuner = ThreadTuner(16)
    machine.run(tuner, 5)
    assert machine.run(tuner, 20) > 0.9
    machine.run(tuner, 10)
    assert machine.settled_after(25, lambda count: count == 16) < 1


def test_hints_that_are_wrong_cost_less_than_a_hundredth() -> None:
    """Programs that count as busy and give way, and CPUs that count as free and are not."""
    machine, tuner = Machine(hints=False), ThreadTuner(2)
    for second in range(60):
        tuner.hint(1.0 + second % 2)
        share = machine.run(tuner, 1)
        assert second < 30 or share > 0.9
    assert machine.run(tuner, 20) > 0.985


def test_a_conversation_that_becomes_longer_starts_no_trial() -> None:
    tuner = ThreadTuner(2)
    tuner.hint(2)
    counts = {tuner.note(1, 0.008 * (1 + step / 300)) for step in range(3000)}
    assert counts == {2}


def test_a_trial_ends_when_the_work_becomes_another() -> None:
    tuner = ThreadTuner(2)
    for _ in range(10):
        tuner.note(1, 0.02)
    tuner.hint(1)
    while tuner.threads == 2:
        tuner.note(1, 0.02)
    tuner.note(1, 0.021)
    assert tuner.note(7, 0.1) == 2
    assert tuner.debt == pytest.approx(0.001)


def test_what_is_known_before_the_first_step_needs_no_trial() -> None:
    tuner = ThreadTuner(4)
    tuner.hint(2.9)
    assert tuner.threads == 3
    tuner.hint(4)
    assert tuner.threads == 4


def test_prompts_are_compared_by_what_they_do() -> None:
    tuner = ThreadTuner(2)
    tuner.hint(1)
    for tokens in (512, 100, 300, 512, 64, 512) * 5:
        tuner.note(64, 0.001 * tokens / (1 if tuner.threads == 2 else 2), tokens)
    assert tuner.threads == 1


def test_one_core_leaves_no_choice() -> None:
    tuner = ThreadTuner(1)
    tuner.hint(0)
    assert {tuner.note(1, 0.01 * (1 + step % 7)) for step in range(1000)} == {1}


# -- what is free ----------------------------------------------------------------------------------


class System:
    """A machine with two CPUs, as ``/proc/stat`` tells of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc").mkdir()
        self.ticks = {0: [0] * 8, 1: [0] * 8}
        self.now = self.own = 0.0
        self.write()
        self.free = FreeCpus(root, {0, 1}, lambda: self.now, lambda: self.own, polite=False)

    def write(self) -> None:
        lines = [f"cpu{cpu} {' '.join(map(str, ticks))} 0 0" for cpu, ticks in self.ticks.items()]
        text = "\n".join(["cpu 1 2 3", *lines, "intr 5 6", "ctxt 7"])
        (self.root / "proc/stat").write_text(text, encoding="ascii")

    def passes(self, seconds: float, user: float = 0, nice: float = 0, own: float = 0) -> None:
        """Time passes; CPU 1 computes for others, CPU 0 for this process."""
        self.now += seconds
        self.own += own
        self.ticks[0][0] += int(100 * own)
        self.ticks[1][0] += int(100 * user)
        self.ticks[1][1] += int(100 * nice)
        for cpu in self.ticks:
            self.ticks[cpu][3] += 50
        self.write()


def test_what_others_use_is_not_free(tmp_path: Path) -> None:
    system = System(tmp_path)
    assert system.free() is None, "no time has passed"
    system.passes(1, user=0.5, own=1)
    assert system.free() == pytest.approx(1.5)
    system.passes(2, own=1)
    assert system.free() == pytest.approx(2)
    system.passes(1, nice=1, own=0.5)
    assert system.free() == pytest.approx(2), "it gives way"
    system.passes(0.01, user=0.01)
    assert system.free() is None, "too short"


def test_cpus_of_others_are_not_counted(tmp_path: Path) -> None:
    system = System(tmp_path)
    free = FreeCpus(tmp_path, {0}, lambda: system.now, lambda: system.own, polite=False)
    system.passes(1, user=1)
    assert free() == pytest.approx(1)


@pytest.mark.parametrize("text", ["", "cpu0 x y\n", "cpu0 1\n", "nonsense"])
def test_a_system_that_does_not_tell(tmp_path: Path, text: str) -> None:
    assert FreeCpus(tmp_path, {0})() is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(text, encoding="ascii")
    free = FreeCpus(tmp_path, {0}, iter(range(9)).__next__)
    assert free() in (None, 1.0)


def test_it_gives_way_as_others_do(tmp_path: Path) -> None:
    system = System(tmp_path)
    free = FreeCpus(tmp_path, {0, 1}, lambda: system.now, lambda: system.own, polite=True)
    system.passes(1, nice=1)
    assert free() == pytest.approx(1)


def stat(busy: list[int], wanting: int) -> str:
    """``/proc/stat`` after so many seconds of computing on each CPU."""
    lines = [f"cpu{cpu} {100 * ticks} 0 0 0 0 0 0 0" for cpu, ticks in enumerate(busy)]
    return "\n".join([*lines, "ctxt 1", f"procs_running {wanting}", "procs_blocked 0", ""])


def test_what_is_free_before_a_first_step(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    path = tmp_path / "proc/stat"
    now, waits = [0.0], list[float]()
    path.write_text(stat([0, 0, 0, 0], 1))
    free = FreeCpus(
        tmp_path,
        {0, 1},
        clock=lambda: now[0],
        own=lambda: 0.0,
        polite=False,
        sleep=waits.append,
    )
    assert free.before() == 2.0, "this thread alone wants to compute"
    path.write_text(stat([0, 0, 0, 0], 3))
    assert free.before() == 1.0, "two others do, on four CPUs"
    path.write_text(stat([0, 0, 0, 0], 40))
    assert free.before() == 0.0
    now[0] = 2.0
    path.write_text(stat([1, 0, 0, 0], 40))
    assert free.before() == 1.5, "the average of two seconds says more"
    now[0] = 3600.0
    path.write_text(stat([1, 0, 0, 0], 5))
    assert free.before() == 0.0, "and that of an hour nothing"
    assert waits
    assert max(waits) < 0.01
    path.write_text("cpu0 1 0 0 0 0 0 0 0\n")
    assert free.before() is None


def test_who_wants_to_compute_for_a_moment_takes_no_cpu(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    path = tmp_path / "proc/stat"
    path.write_text(stat([0, 0], 2))

    def rests() -> None:
        path.write_text(stat([0, 0], 1))

    free = FreeCpus(
        tmp_path,
        {0, 1},
        clock=lambda: 0.0,
        own=lambda: 0.0,
        polite=False,
        sleep=lambda _: rests(),
    )
    assert free.before() == 2.0


def test_where_the_system_does_not_tell_nothing_is_known_before_a_first_step(
    tmp_path: Path,
) -> None:
    assert FreeCpus(tmp_path, {0, 1}).before() is None
