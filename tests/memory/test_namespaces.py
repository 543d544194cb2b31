"""Two sets of adapters never share a prefix, whatever else happens in between."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from llama_py import Llama, LlamaRAMCache
from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.core.lora import LoraAdapter
from llama_py.core.model import Model
from llama_py.errors import FingerprintError
from llama_py.memory.cache import SequenceCache
from llama_py.memory.kinds import MemoryTraits, traits_of
from llama_py.memory.sequences import LiveSequence, Namespace
from llama_py.params import ContextParams
from llama_py.states.prefix import PrefixIndex
from tests.memory.adapters import write_adapter
from tests.memory.fake_memory import FULL, RECURRENT, FakeRig, pair, window
from tests.memory.oracle import Row, nmse
from tests.models import tiny_model

SPACES: tuple[Namespace, ...] = ((), (("a", 1.0),), (("a", 0.5),))
STEMS = (b"system: be brief.\n", b"system: be kind, and think before you answer.\n", b"abcabc")


@pytest.mark.parametrize("traits", [FULL, RECURRENT, window(16)], ids=["full", "recurrent", "iswa"])
@pytest.mark.parametrize("seed", range(4))
def test_generated_operations_in_three_namespaces(traits: MemoryTraits, seed: int) -> None:
    """Every cell was computed in the namespace of the sequence that holds it."""
    choose = random.Random(seed)
    rig = FakeRig(traits, offload_store=LlamaRAMCache(20_000), n_seq_max=3)
    rig.cache.stores.saved = LlamaRAMCache(40_000)
    talks: dict[Namespace, list[bytes]] = {space: [*STEMS] for space in SPACES}
    reused = 0
    for _ in range(250):
        space = choose.choice(SPACES)
        text = choose.choice(talks[space])[:380]
        what = choose.choice(["talk", "talk", "talk", "cut", "evict", "pin", "unpin", "together"])
        if what == "evict":
            rig.cache.live.make_room()
        elif what == "pin":
            rig.cache.live.pin(rig.prompt(text, space))
        elif what == "unpin":
            rig.cache.live.unpin(rig.prompt(text, space))
        elif what == "together":
            leases = [rig.begin(rig.prompt(text, each)) for each in SPACES]
            assert len({lease.sequence.number for lease in leases}) == 3
            for lease in leases:
                rig.check()
                rig.reply(lease, [])
        else:
            asked = text[: choose.randrange(4, len(text))] if what == "cut" else text
            asked += choose.choice([b"x", b"what?", b"and then?"])
            reply = [pair(b"ok"), choose.choice(b"!?.")]
            reused += rig.ask(asked, reply, space).info.reused
            talks[space].append(asked + b"ok" + bytes(reply[1:]) + b"\n")
        rig.check()
    assert reused > 1000  # within their namespaces they do share


def test_the_same_prompt_is_cold_in_another_namespace() -> None:
    rig = FakeRig(offload_store=LlamaRAMCache(1 << 20), n_seq_max=1)
    text = b"a text which is long enough to be worth offloading, surely"
    rig.ask(text, namespace="a")
    assert rig.ask(text, namespace="b").info.reused == 0
    rig.cache.live.make_room()
    assert rig.ask(text, namespace="c").info.reused == 0
    assert rig.ask(text, namespace="a").info.reused == len(text) - 1


def test_a_reply_stands_in_for_its_text_in_its_namespace_only() -> None:
    rig = FakeRig()
    rig.ask(b"question", [pair(b"an"), pair(b"sw")], namespace="a")
    assert len(rig.prompt(b"questionansw.", "a").tokens) == len(b"question") + 3
    assert len(rig.prompt(b"questionansw.", "b").tokens) == len(b"questionansw.")


def test_a_stored_state_is_not_brought_into_another_namespace() -> None:
    rig = FakeRig()
    state = rig.cache.stores.export(rig.ask(b"question", namespace="a").sequence)
    with pytest.raises(FingerprintError):
        rig.cache.bring_in(state, namespace="b")
    found = rig.cache.bring_in(state, namespace="a")
    assert found is not None
    assert found.namespace == "a"
    rig.check()


def test_prompts_of_two_namespaces_share_nothing() -> None:
    rig = FakeRig()
    here, there = (rig.prompt(b"question", space) for space in ("a", "b"))
    assert here.shared_with(here) == len(b"question")
    assert here.shared_with(there) == 0


def test_an_index_forgets_the_tree_of_an_empty_namespace() -> None:
    index: PrefixIndex[int] = PrefixIndex()
    for number in range(100):
        index.insert(number, [1, 2, 3], namespace=number)
        index.remove(number)
    assert not index._roots


# ---- with a real adapter -----------------------------------------------------------------------


class AdapterRig:
    """One context whose adapters change between decodes, and one that always begins anew."""

    def __init__(self, path: Path, adapter: Path) -> None:
        self.model = Model(path)
        self.adapter = LoraAdapter(self.model, adapter)
        self.context, self.fresh = (self._context(count) for count in (3, 1))
        self.cache = SequenceCache(
            self.context,
            traits_of(self.model, False),
            self.model.vocab,
            repr,
            offload_store=LlamaRAMCache(1 << 22),
        )
        self.batch = Batch(self.context.n_batch)

    def _context(self, n_seq_max: int) -> Context:
        options = {"n_ctx": 256, "n_threads": 1, "flash_attn": False, "type_k": 0, "type_v": 0}
        return Context(self.model, ContextParams(n_seq_max=n_seq_max, **options))  # type: ignore[arg-type]

    def set(self, context: Context, namespace: Namespace) -> None:
        assert isinstance(namespace, tuple)
        context.set_adapters([(self.adapter, scale) for _, scale in namespace])

    def decode(self, context: Context, tokens: Sequence[int], position: int, number: int) -> Row:
        outputs = np.zeros(len(tokens), np.int8)
        outputs[-1] = 1
        self.batch.set([*tokens], position, number, outputs)
        assert context.decode(self.batch) == 0
        row: Row = context.logits(len(tokens) - 1).copy()
        return row

    def ask(self, tokens: Sequence[int], namespace: Namespace) -> tuple[Row, int]:
        lease = self.cache.acquire(self.cache.resolve_tokens(tokens, namespace=namespace))
        assert lease is not None
        self.set(self.context, namespace)
        more = lease.prompt.tokens[lease.held :].tolist()
        row = self.decode(self.context, more, lease.position, lease.sequence.number)
        self.cache.advance(lease, len(more))
        self.cache.release(lease)
        return row, lease.info.reused

    def expected(self, tokens: Sequence[int], namespace: Namespace) -> Row:
        self.fresh.clear()
        self.set(self.fresh, namespace)
        return self.decode(self.fresh, tokens, 0, 0)

    def sequences(self) -> list[LiveSequence]:
        return [*self.cache.live]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("lora") / "tiny-lora.gguf")


@pytest.fixture(scope="module")
def rig(adapter: Path) -> Iterator[AdapterRig]:
    rig = AdapterRig(tiny_model("full"), adapter)
    yield rig
    rig.model.close()


def test_the_adapter_changes_the_logits(rig: AdapterRig) -> None:
    tokens = [*range(40, 70)]
    rows = [rig.expected(tokens, space) for space in SPACES]
    assert min(nmse(rows[0], rows[1]), nmse(rows[0], rows[2]), nmse(rows[1], rows[2])) > 1e-3


def test_reuse_equals_a_fresh_context_with_these_adapters(rig: AdapterRig) -> None:
    choose = random.Random(3)
    talks = {space: [[*range(40, 60)], [*range(90, 140)]] for space in SPACES}
    reused = 0
    for _ in range(150):
        space = choose.choice(SPACES)
        tokens = choose.choice(talks[space])[:200]
        tokens = tokens[: choose.randrange(5, len(tokens) + 1)] + choose.choices(
            range(40, 200), k=9
        )
        row, kept = rig.ask(tokens, space)
        assert nmse(row, rig.expected(tokens, space)) < 1e-9, (space, tokens, kept)
        talks[space].append(tokens)
        reused += kept
        if choose.random() < 0.2:
            rig.cache.live.make_room()
    assert reused > 1000


def test_a_store_does_not_mix_up_adapters_and_scales(adapter: Path) -> None:
    """The same conversation in four models that share one store."""
    store = LlamaRAMCache(1 << 24)
    prompt = [*range(40, 140)]
    given: list[dict[str, object]] = [{}, {"lora_path": str(adapter)}]
    given.append({"lora_path": str(adapter), "lora_scale": 0.5})
    for known in (False, True):
        for options in given:
            with Llama(str(tiny_model("full")), n_ctx=256, n_threads=1, **options) as llm:  # type: ignore[arg-type]
                llm.set_cache(store)
                llm.create_completion(prompt, max_tokens=1, temperature=0.0)
                assert (llm.cache_info["reused"] > 0) is known, options
