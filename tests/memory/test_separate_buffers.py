"""Conversations whose cells are in buffers of their own (``kv_unified=False``).

That whatever is reused has the logits of a fresh context is tested by ``test_invariant``; here is
that no less is reused than with one buffer, and that conversations do not get into each other's
way.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_py import Llama, LlamaDiskCache
from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.errors import ContextOverflowError
from tests.models import Kind, tiny_model

SYSTEM = {"role": "system", "content": "You count things, one after the other, and never stop."}
SETTINGS: dict[str, Any] = {
    "n_ctx": 4 * 512,
    "n_seq_max": 4,
    "n_threads": 1,
    "n_ubatch": 64,
    "flash_attn": False,
    "kv_unified": False,
    # Rounded cells would make ties of other streams' noise.
    "type_k": "f32",
    "type_v": "f32",
}
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}


@pytest.fixture
def llm() -> Iterator[Llama]:
    with Llama(str(tiny_model("full")), **SETTINGS) as loaded:
        yield loaded


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def talk(llm: Llama) -> list[tuple[str, int]]:
    """Three conversations of one beginning take turns, one is edited; replies and reused tokens."""
    chats = [[SYSTEM, user(f"Count {what}.")] for what in ("sheep", "stars", "steps")]
    seen = []
    for turn in range(3):
        for messages in chats:
            reply = llm.create_chat_completion(messages, **GREEDY)
            text = reply["choices"][0]["message"]["content"] or ""
            details = reply["usage"]["prompt_tokens_details"]
            seen.append((text, details["cached_tokens"]))
            messages += [{"role": "assistant", "content": text}, user(f"Go on, {turn}.")]
    edited = [*chats[0][:3], user("Now backwards.")]
    reply = llm.create_chat_completion(edited, **GREEDY)
    details = reply["usage"]["prompt_tokens_details"]
    return [*seen, (reply["choices"][0]["message"]["content"] or "", details["cached_tokens"])]


@pytest.mark.parametrize("kind", ["full", "iswa", "hybrid", "hybrid_swa"])
def test_as_much_is_reused_as_with_one_buffer(kind: Kind) -> None:
    with Llama(str(tiny_model(kind)), **SETTINGS) as separate:
        found = talk(separate)
    with Llama(str(tiny_model(kind)), **{**SETTINGS, "kv_unified": True}) as unified:
        expected = talk(unified)
    assert [text for text, _ in found] == [text for text, _ in expected]
    less = [more - fewer for (_, fewer), (_, more) in zip(found, expected, strict=True)]
    # A copy of a window ends exactly there; the window that was copied has a few cells more.
    assert max(less) <= (1 if "swa" in kind else 0), (found, expected)
    assert found[1][1] > 10, "the second conversation begins like the first"


def test_a_conversation_has_its_part_of_the_context(llm: Llama) -> None:
    assert llm.n_ctx() == 512
    assert llm.cache.report()["cells"] == 2048
    with pytest.raises(ContextOverflowError, match="512"):
        llm.create_completion([5] * 600, max_tokens=1)


def test_a_full_conversation_takes_nobodys_place(llm: Llama) -> None:
    rng = np.random.default_rng(1)
    prompts = [rng.integers(5, 500, 500).tolist() for _ in range(4)]
    for prompt in prompts:  # each ends where its buffer does
        choice = llm.create_completion(prompt, temperature=0.0, ignore_eos=True)["choices"][0]
        assert choice["finish_reason"] == "length"
    assert llm.cache.report()["cells_used"] >= 4 * 505
    for prompt in prompts:
        usage = llm.create_completion(prompt, temperature=0.0, max_tokens=1)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= 499


def test_what_was_saved_is_found_after_a_restart(tmp_path: Path) -> None:
    messages = [SYSTEM, user("Count sheep.")]
    counts = []
    for _ in range(2):
        with Llama(str(tiny_model("full")), **SETTINGS) as llm:
            llm.set_cache(LlamaDiskCache(tmp_path))
            reply = llm.create_chat_completion(messages, **GREEDY)
            counts.append(reply["usage"]["prompt_tokens_details"]["cached_tokens"])
            llm.set_cache(None)
    assert counts[0] == 0
    assert counts[1] > 20


def test_streams_are_computed_together(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp needs them in ascending order, or computes each by itself."""
    orders: list[list[int]] = []
    decode = Context.decode

    def note(self: Context, batch: Batch) -> int:
        struct = batch.struct
        orders.append([struct.seq_id[row][0] for row in range(struct.n_tokens)])
        return decode(self, batch)

    # The sequence that was used last goes on first.
    prompts = [[7 + index] * 40 for index in range(3)]
    for prompt in prompts:
        llm.create_completion(prompt, max_tokens=1, temperature=0.0)
    monkeypatch.setattr(Context, "decode", note)
    streams = [
        llm.create_completion(prompt, stream=True, seed=1, max_tokens=12, ignore_eos=True)
        for prompt in reversed(prompts)
    ]
    for chunks in zip(*streams, strict=False):
        assert len(chunks) == 3
    together = [order for order in orders if len(order) > 1]
    assert together
    assert all(order == sorted(order) for order in together)
