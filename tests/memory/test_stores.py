"""What is copied to the stores, what of it is replaced, and what is not copied in vain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llama_py import Llama, LlamaDiskCache, LlamaRAMCache
from llama_py.memory.kinds import MemoryTraits
from llama_py.states.store import BaseLlamaCache
from tests.memory.fake_memory import FULL, RECURRENT, FakeRig, window
from tests.models import tiny_model

STEM = b"a beginning which is long enough to be worth a place in a store. "


def test_nothing_is_copied_that_the_store_would_refuse() -> None:
    rig = FakeRig(offload_store=LlamaRAMCache(100), n_seq_max=1)
    rig.cache.stores.saved = LlamaRAMCache(100)
    for number in range(3):
        rig.ask(b"%d" % number + STEM)
    assert rig.memory.copied == 0
    assert (rig.cache.stores.offloaded, rig.cache.stores.dropped) == (0, 2)


def test_what_fits_is_copied_once() -> None:
    rig = FakeRig(offload_store=LlamaRAMCache(1 << 20), n_seq_max=1)
    size = 0
    for number in range(3):
        lease = rig.ask(b"%d" % number + STEM)
        size = rig.memory.state_size(lease.sequence.number)
    assert rig.memory.copied == 2 * size
    assert (rig.cache.stores.offloaded, rig.cache.stores.dropped) == (2, 0)


@pytest.fixture(params=["ram", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseLlamaCache]:
    with LlamaRAMCache() if request.param == "ram" else LlamaDiskCache(str(tmp_path)) as store:
        yield store


@pytest.mark.parametrize("traits", [FULL, RECURRENT, window(16)], ids=["full", "recurrent", "iswa"])
def test_two_branches_in_one_sequence_are_two_entries(
    store: BaseLlamaCache, traits: MemoryTraits
) -> None:
    rig = FakeRig(traits, n_seq_max=1)
    rig.cache.stores.saved = store
    branches = [STEM + name * 60 for name in (b"x", b"y")]
    for branch in branches:
        rig.ask(branch)
    assert stored(rig, store) == set(branches)


def stored(rig: FakeRig, store: BaseLlamaCache) -> set[bytes]:
    """The texts of all entries that begin with ``STEM``."""
    matches = store.find(rig.prompt(STEM).tokens, rig.cache.fingerprint(()))
    states = [store.get(match.key) for match in matches if match.matched == len(STEM)]
    return {bytes(state.tokens.tolist()) for state in states if state is not None}


def test_a_conversation_that_grows_is_one_entry(store: BaseLlamaCache) -> None:
    rig = FakeRig(n_seq_max=1)
    rig.cache.stores.saved = store
    for count in range(1, 5):
        rig.ask(STEM + b"x" * 60 * count)
    assert store.wait()
    assert len(store) == 1


def test_both_branches_are_there_after_a_restart(store: BaseLlamaCache) -> None:
    """The older branch of a conversation was in the same sequence as the newer one."""
    stem = [*range(40, 100)]
    branches = [[*stem, *range(start, start + 80)] for start in (100, 200)]
    for known in (False, True):
        with Llama(str(tiny_model("full")), n_ctx=512, n_threads=1, n_seq_max=1) as llm:
            llm.set_cache(store)
            for branch in branches:
                llm.create_completion(branch, max_tokens=1, temperature=0.0)
                if known:
                    assert llm.cache_info["reused"] == len(branch) - 1
    assert len(store) == 2


def test_a_sequence_is_not_replaced_in_the_store_by_what_was_pinned_in_it() -> None:
    offload_store = LlamaRAMCache(1 << 20)
    rig = FakeRig(n_seq_max=1, offload_store=offload_store)
    rig.ask(STEM)
    rig.cache.live.pin(rig.prompt(STEM))
    rig.ask(STEM + b"x" * 60)
    rig.ask(b"another " + STEM)
    assert stored(rig, offload_store) == {STEM, STEM + b"x" * 60}


def test_a_store_that_its_owner_closed_is_given_up() -> None:
    rig = FakeRig()
    rig.cache.stores.saved = store = LlamaRAMCache()
    rig.ask(STEM)
    store.close()
    assert rig.ask(STEM + b"x").info.reused == len(STEM)
    assert rig.cache.stores.saved is None
