"""A pin belongs to the beginning of prompts, and never to who happens to go on behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from llama_py import Llama, LlamaRAMCache
from llama_py.memory.cache import CacheLimits
from llama_py.memory.kinds import MemoryTraits
from tests.memory.fake_memory import FULL, RECURRENT, FakeRig
from tests.models import tiny_model

SYSTEM = b"system: you are a pirate, and answer in rhymes only.\n"
BOB = SYSTEM + b"bob: tell me about your ship, its crew, and the seven seas"
ALICE = SYSTEM + b"alice: what is the way to the island with the treasure?"
OTHER = b"something else, which is long enough to be worth a place in a store"


@pytest.fixture(params=[FULL, RECURRENT], ids=["full", "recurrent"])
def traits(request: pytest.FixtureRequest) -> MemoryTraits:
    found: MemoryTraits = request.param
    return found


def pinned_rig(traits: MemoryTraits, **options: Any) -> FakeRig:
    rig = FakeRig(traits, **{"offload_store": LlamaRAMCache(1 << 20), **options})
    rig.ask(SYSTEM)
    assert rig.cache.live.pin(rig.prompt(SYSTEM)) == len(SYSTEM)
    return rig


def pinned_texts(rig: FakeRig) -> list[bytes]:
    return [
        bytes(each.tokens) for each in rig.sequences() if each in rig.cache.stores.pins.keepers()
    ]


def test_who_goes_on_behind_it_gets_another_sequence(traits: MemoryTraits) -> None:
    rig = pinned_rig(traits, n_seq_max=2)
    info = rig.ask(BOB).info
    assert (info.action, info.reused) == ("fork", len(SYSTEM))
    assert pinned_texts(rig) == [SYSTEM]
    rig.check()


def test_it_is_evicted_last(traits: MemoryTraits) -> None:
    rig = pinned_rig(traits, n_seq_max=2)
    for number in range(4):
        rig.ask(b"%d" % number + OTHER)
    assert pinned_texts(rig) == [SYSTEM]
    assert rig.ask(ALICE).info.reused == len(SYSTEM)


def test_with_one_sequence_a_copy_is_offloaded_and_the_pin_stays_with_it(
    traits: MemoryTraits,
) -> None:
    rig = pinned_rig(traits, n_seq_max=1)
    assert rig.ask(BOB, [65, 66]).info.reused == len(SYSTEM)
    assert pinned_texts(rig) == []  # Bob's conversation is not pinned
    for number in range(3):
        rig.ask(b"%d" % number + OTHER)
    info = rig.ask(ALICE).info
    assert info.reused == len(SYSTEM)
    rig.check()


def test_the_offloaded_copy_is_the_last_to_be_evicted_from_its_store() -> None:
    offload_store = LlamaRAMCache(6000)
    rig = pinned_rig(FULL, n_seq_max=1, offload_store=offload_store)
    for number in range(30):
        rig.ask(b"%02d" % number + OTHER)
    assert offload_store.stats().evicted > 10
    assert rig.ask(ALICE).info.reused == len(SYSTEM)


def test_a_short_pin_is_worth_offloading() -> None:
    rig = FakeRig(FULL, n_seq_max=1, offload_store=LlamaRAMCache(1 << 20))
    short = b"0123456789abcdefghijklmn"
    rig.ask(short)
    rig.cache.live.pin(rig.prompt(short))
    rig.ask(OTHER)
    assert rig.ask(short + b"x").info.reused == len(short)


def test_unpinned_it_goes_like_any_other(traits: MemoryTraits) -> None:
    limits = CacheLimits(checkpoint_count=2)
    rig = pinned_rig(traits, n_seq_max=2, offload_store=None, limits=limits)
    assert rig.cache.live.unpin(rig.prompt(SYSTEM))
    assert not rig.cache.live.unpin(rig.prompt(SYSTEM))
    for number in range(4):
        rig.ask(b"%d" % number + OTHER)
    assert pinned_texts(rig) == []
    assert rig.ask(ALICE).info.reused == 0


def test_the_checkpoint_of_a_pin_is_not_thinned_out() -> None:
    limits = CacheLimits(checkpoint_count=4)
    rig = pinned_rig(RECURRENT, n_seq_max=1, limits=limits, offload_store=None)
    for number in range(9):
        rig.ask(b"%d" % number + OTHER)
    info = rig.ask(BOB).info
    assert (info.action, info.reused) == ("restore", len(SYSTEM))
    assert info.reason == f"the prompt differs from what is cached in token {len(SYSTEM)}"


def test_pinning_twice_is_pinning_once() -> None:
    rig = pinned_rig(FULL)
    rig.cache.live.pin(rig.prompt(SYSTEM))
    assert [bytes(pin.tokens.tolist()) for pin in rig.cache.stores.pins] == [SYSTEM]
    assert rig.cache.live.unpin(rig.cache.resolve_tokens([*SYSTEM]))
    assert not rig.cache.stores.pins


def test_it_is_pinned_in_its_namespace_only() -> None:
    rig = pinned_rig(FULL)
    assert rig.cache.live.pin(rig.prompt(SYSTEM, "other")) == 0
    assert rig.cache.live.unpin(rig.prompt(SYSTEM, "other"))
    assert pinned_texts(rig) == [SYSTEM]


def test_clear_forgets_pins() -> None:
    rig = pinned_rig(FULL)
    rig.cache.clear()
    assert not rig.cache.stores.pins


@pytest.fixture(params=["full", "recurrent"])
def llm(request: pytest.FixtureRequest) -> Iterator[Llama]:
    path = str(tiny_model(request.param))
    with Llama(path, n_ctx=512, n_threads=1, n_seq_max=1, flash_attn=False) as llm:
        yield llm


def test_a_prewarmed_beginning_survives_strangers(llm: Llama) -> None:
    system = {"role": "system", "content": "You know the alphabet by heart. " * 3}

    def ask(text: str, *before: dict[str, str]) -> int:
        messages: Any = [*before, {"role": "user", "content": text}]
        llm.create_chat_completion(messages, max_tokens=2, temperature=0.0)
        reused: int = llm.cache_info["reused"]
        return reused

    warmed = llm.prewarm([system])
    length = warmed["reused"] + warmed["evaluated"]
    assert [each["pinned"] for each in llm.memory_report()["sequences"]] == [True]
    assert ask("I am Bob", system) >= length - 1
    assert [each["pinned"] for each in llm.memory_report()["sequences"]] == [False]
    for number in range(3):
        ask(f"{number} nobody ever asked for this before")
    assert ask("I am Alice", system) >= length - 1
