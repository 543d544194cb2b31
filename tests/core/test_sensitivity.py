"""The tiny models notice every cached cell.

Tests of cache reuse compare logits. They prove something only if a wrong cell would change the
logits: here one cell is hidden (or, for a recurrent state, one past token altered), and the
normalized mean squared error of the next logits must be far above any rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from llama_py import llama_cpp as C
from tests.models import KINDS, TinySpec, tiny_model, tiny_vocab

Logits = npt.NDArray[np.float32]

#: Tokens in the memory; all but the first few are inside the window of 32.
N_CACHED = 30
NOTICEABLE = 1e-3
ROUNDING = 1e-9

KINDS_WITH_CELLS = [kind for kind in KINDS if kind != "recurrent"]


@dataclass(frozen=True)
class Memory:
    """A context of a tiny model, with N_CACHED tokens evaluated."""

    context: Any
    n_vocab: int

    def evaluate(self, tokens: list[int]) -> Logits:
        """Decode tokens after those that are cached; return the logits of the last one."""
        array = (C.llama_token * len(tokens))(*tokens)
        assert C.llama_decode(self.context, C.llama_batch_get_one(array, len(tokens))) == 0
        logits = C.llama_get_logits_ith(self.context, -1)
        row: Logits = np.ctypeslib.as_array(logits, (self.n_vocab,)).copy()
        return row

    def remove(self, begin: int, end: int) -> bool:
        memory = C.llama_get_memory(self.context)
        return bool(C.llama_memory_seq_rm(memory, 0, begin, end))


@contextmanager
def memory_of(path: Path) -> Iterator[Memory]:
    model = C.llama_model_load_from_file(str(path).encode(), C.llama_model_default_params())
    params = C.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 128, 64, 64
    params.n_threads = params.n_threads_batch = 1
    params.flash_attn_type = C.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.swa_full = False
    context = C.llama_init_from_model(model, params)
    try:
        yield Memory(context, C.llama_vocab_n_tokens(C.llama_model_get_vocab(model)))
    finally:
        C.llama_free(context)
        C.llama_model_free(model)


def tokens_of_a_chat() -> list[int]:
    return [int(token) for token in np.random.default_rng(7).integers(0, 500, N_CACHED + 1)]


def next_logits(kind: str, *, hidden: int | None = None, altered: int | None = None) -> Logits:
    tokens = tokens_of_a_chat()
    if altered is not None:
        tokens[altered] = (tokens[altered] + 77) % 500
    with memory_of(tiny_model(kind)) as memory:
        memory.evaluate(tokens[:-1])
        if hidden is not None:
            assert memory.remove(hidden, hidden + 1)
        return memory.evaluate(tokens[-1:])


def nmse(got: Logits, expected: Logits) -> float:
    return float(((got - expected) ** 2).sum() / (expected**2).sum())


@pytest.mark.parametrize("position", [1, 11, 15, 20, 28])
@pytest.mark.parametrize("kind", KINDS_WITH_CELLS)
def test_hiding_one_cell_changes_the_logits(kind: str, position: int) -> None:
    assert nmse(next_logits(kind, hidden=position), next_logits(kind)) > NOTICEABLE


@pytest.mark.parametrize("position", [0, 3, 11, 15, 20, 28])
@pytest.mark.parametrize("kind", KINDS)
def test_altering_one_past_token_changes_the_logits(kind: str, position: int) -> None:
    assert nmse(next_logits(kind, altered=position), next_logits(kind)) > NOTICEABLE


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_evaluation_gives_the_same_logits(kind: str) -> None:
    assert nmse(next_logits(kind), next_logits(kind)) < ROUNDING


def test_a_recurrent_state_cannot_be_cut() -> None:
    with memory_of(tiny_model("recurrent")) as memory:
        memory.evaluate(tokens_of_a_chat())
        assert not memory.remove(15, -1)


@pytest.mark.parametrize(
    ("kind", "recurrent", "hybrid", "window"),
    [
        ("full", False, False, 0),
        ("iswa", False, False, 32),
        ("recurrent", True, False, 0),
        ("hybrid", False, True, 0),
        ("hybrid_swa", False, True, 32),
    ],
)
def test_each_kind_has_its_memory(kind: str, recurrent: bool, hybrid: bool, window: int) -> None:
    path = str(tiny_model(kind)).encode()
    model = C.llama_model_load_from_file(path, C.llama_model_default_params())
    try:
        assert C.llama_model_is_recurrent(model) == recurrent
        assert C.llama_model_is_hybrid(model) == hybrid
        assert C.llama_model_n_swa(model) == window
    finally:
        C.llama_model_free(model)


@pytest.mark.parametrize("quant", ["f16", "q8_0"])
@pytest.mark.parametrize("kind", KINDS)
def test_quantized_models_are_close_to_exact_ones(kind: str, quant: str) -> None:
    with memory_of(tiny_model(kind, quant=quant)) as memory:
        got = memory.evaluate(tokens_of_a_chat())
    with memory_of(tiny_model(kind)) as memory:
        assert nmse(got, memory.evaluate(tokens_of_a_chat())) < 0.05


def test_models_are_small_and_cached() -> None:
    path = tiny_model("full")
    before = path.stat().st_mtime_ns
    assert tiny_model("full") == path
    assert path.stat().st_mtime_ns == before
    assert path.stat().st_size < 5_000_000


def test_a_seed_gives_the_same_file(tmp_path: Path) -> None:
    again = tiny_model("iswa", cache_dir=tmp_path)
    assert again.read_bytes() == tiny_model("iswa").read_bytes()
    other = tiny_model("iswa", cache_dir=tmp_path, seed=TinySpec("iswa").seed + 1)
    assert other.read_bytes() != again.read_bytes()


def test_the_vocabulary_has_awkward_pieces() -> None:
    tokens = set(tiny_vocab().tokens)
    assert "-" * 64 in tokens
    assert "ĀĀ" in tokens  # two NUL bytes
    assert "ðŁ" in tokens  # half an emoji
