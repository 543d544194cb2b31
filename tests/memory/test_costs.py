"""What is fetched and what is evaluated again, where copying costs something."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from llama_py.bench.transcripts import read_transcript
from llama_py.memory.costs import Costs
from llama_py.memory.plan import Action, HeldPrefix, plan_reuse
from tests.memory.test_plan import FULL

DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True)
class Device:
    """Seconds: of evaluating a token; of a copy, and of each token in it, one way."""

    evaluate: float
    copy: float
    copy_token: float

    def known(self) -> Costs:
        """What somebody knows of it who has seen it work."""
        costs = Costs()
        for tokens in (50, 400, 1000):
            costs.evaluated(tokens, tokens * self.evaluate)
            costs.fetched(tokens, self.copy_time(tokens))
            costs.stored(tokens, self.copy_time(tokens))
        return costs

    def copy_time(self, tokens: int) -> float:
        return self.copy + self.copy_token * tokens


#: A model of 8B (128 KiB of cells for each token): prompts at 60, 4,000 and 4,000 tokens/s; copies
#: at 8 GB/s, 12 GB/s, and over a network of 1 Gbit/s.
CPU = Device(1 / 60, 1e-4, 131072 / 8e9)
GPU = Device(1 / 4000, 2e-3, 131072 / 12e9)
NETWORK = Device(1 / 4000, 1e-3, 131072 / 118e6)
#: One whose copies take long to begin.
DISTANT = Device(1 / 1000, 0.2, 1e-4)


def stored(tokens: int) -> HeldPrefix:
    return HeldPrefix("stored", tokens, tokens, stored=True)


@pytest.mark.parametrize(
    ("device", "tokens", "action"),
    [
        (CPU, 50, Action.LOAD),
        (GPU, 50, Action.LOAD),
        (GPU, 20, Action.LOAD),
        (NETWORK, 200, Action.EVALUATE),
        (NETWORK, 20_000, Action.EVALUATE),
        (DISTANT, 200, Action.EVALUATE),
        (DISTANT, 300, Action.LOAD),
    ],
)
def test_what_takes_less_time_is_done(device: Device, tokens: int, action: Action) -> None:
    plan = plan_reuse(FULL, tokens + 100, [stored(tokens)], [], device.known())
    assert plan.action is action
    if action is Action.EVALUATE:
        assert "less time" in plan.reason
    # Where nothing is known, it is fetched, as on the CPU.
    for unknown in (None, Costs()):
        assert plan_reuse(FULL, tokens + 100, [stored(tokens)], [], unknown).action is Action.LOAD


def test_what_is_in_memory_is_compared_with_what_it_saves() -> None:
    live, more = HeldPrefix(1, 500, 500), stored(650)
    assert plan_reuse(FULL, 800, [live, more], [], DISTANT.known()).source == 1
    assert plan_reuse(FULL, 800, [live, stored(750)], [], DISTANT.known()).source == 1
    assert plan_reuse(FULL, 1200, [live, stored(1100)], [], DISTANT.known()).source == "stored"


def test_only_what_will_be_fetched_is_stored() -> None:
    assert CPU.known().worth_storing(32)
    assert not CPU.known().worth_storing(31)
    assert not NETWORK.known().worth_storing(10_000)
    assert not DISTANT.known().worth_storing(400)
    assert DISTANT.known().worth_storing(600)
    assert Costs().worth_storing(32), "nothing is known"


def test_now_and_then_it_is_tried_again() -> None:
    """A network that has become a better one would not be noticed otherwise."""
    costs = NETWORK.known()
    tried = sum(costs.worth_storing(1000) for _ in range(640))
    assert tried == 10
    for _ in range(40):
        costs.stored(1000, GPU.copy_time(1000))
        costs.fetched(1000, GPU.copy_time(1000))
    assert costs.worth_storing(1000)
    assert plan_reuse(FULL, 1100, [stored(1000)], [], costs).action is Action.LOAD


def test_short_steps_say_nothing() -> None:
    costs = Costs()
    costs.evaluated(4, 1.0)
    costs.fetched(100, 50.0)
    assert costs.margin(100) == 16


# -- recorded conversations ------------------------------------------------------------------------


def lengths(name: str) -> list[int]:
    """Tokens of the prompts of each call of a recorded agent, at four characters each."""
    transcript = read_transcript(str(DATA / name))
    return [sum(len(str(each)) for each in call) // 4 for call in transcript.calls()]


def turns() -> Iterator[tuple[str, int]]:
    """Two agents in a context with room for one: each call displaces the other's conversation."""
    names = ("agent-claude.jsonl", "agent-openai.json")
    both = [lengths(name) for name in names]
    for place in range(max(map(len, both))):
        for name, calls in zip(names, both, strict=True):
            if place < len(calls):
                yield name, calls[place]


def replayed(device: Device, policy: str, repeat: int = 3) -> tuple[float, int]:
    """Seconds that all prompts take, and how many are fetched."""
    costs, seconds, fetched = Costs(), 0.0, 0
    kept: dict[str, int] = {}  # in a store
    live = ("", 0)
    for _ in range(repeat):
        for name, tokens in turns():
            leaves = live[0] not in ("", name)
            if (
                leaves
                and policy != "evaluate"
                and (policy == "fetch" or costs.worth_storing(live[1]))
            ):
                seconds += device.copy_time(live[1])
                costs.stored(live[1], device.copy_time(live[1]))
                kept[live[0]] = live[1]
            shared = min(kept.get(name, 0), tokens - 1)
            held: Sequence[HeldPrefix] = (
                [HeldPrefix("stored", kept[name], shared, stored=True)] if shared > 0 else []
            )
            known = costs if policy == "costs" else None
            plan = plan_reuse(FULL, tokens, held, [], known)
            if plan.action is Action.LOAD and policy != "evaluate":
                fetched += 1
                seconds += device.copy_time(kept[name])
                costs.fetched(kept[name], device.copy_time(kept[name]))
            left = tokens - (plan.keep if policy != "evaluate" else 0)
            seconds += left * device.evaluate
            costs.evaluated(left, left * device.evaluate)
            live = (name, tokens)
    return seconds, fetched


@pytest.mark.parametrize("device", [CPU, GPU, NETWORK], ids=["CPU", "GPU", "network"])
def test_recorded_agents_wait_as_long_as_with_the_better_of_both(device: Device) -> None:
    fetch, evaluate, learned = (
        replayed(device, policy) for policy in ("fetch", "evaluate", "costs")
    )
    print(
        f"\nalways fetched {fetch[0]:.2f} s, always evaluated {evaluate[0]:.2f} s, by what it "
        f"costs {learned[0]:.2f} s ({learned[1]} of {fetch[1]} fetched)"
    )
    assert learned[0] <= 1.1 * min(fetch[0], evaluate[0])
    if device is NETWORK:
        assert learned[0] < 0.6 * fetch[0]
    else:
        assert learned[0] < 0.6 * evaluate[0]
