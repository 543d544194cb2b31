"""Traps of llama.cpp that this library goes around: each is still there.

``python -m tools.move_pin`` runs them. A test that fails is news, mostly good: llama.cpp does
something else now. Find out what in its diff, and what can be simplified here.
"""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from llama_py._native import ggml_h as G
from llama_py._native import llama_h as C
from llama_py.core.batch import Batch
from llama_py.core.model import Model
from llama_py.params import ModelParams
from tests.models import tiny_model
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
TOKENS = [(7919 * i + i * i) % 250 + 1 for i in range(48)]
Floats = npt.NDArray[np.float32]


class Raw:
    """A context with any fields, and no care taken."""

    def __init__(self, model: Model, fields: dict[str, Any]) -> None:
        params = C.llama_context_default_params()
        wanted = {"n_ctx": 256, "n_seq_max": 2, "n_threads": 1, "n_threads_batch": 1, **fields}
        for name, value in wanted.items():
            setattr(params, name, value)
        params.flash_attn_type = C.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.model = model
        self.n_vocab = C.llama_vocab_n_tokens(C.llama_model_get_vocab(model.pointer))
        self.pointer = C.llama_init_from_model(model.pointer, params)
        assert self.pointer
        self.memory = C.llama_get_memory(self.pointer)

    def decode(self, tokens: list[int], position: int = 0, seq: int = 0) -> int:
        batch = Batch(len(tokens))
        batch.set(tokens, position, seq, True)
        return int(C.llama_decode(self.pointer, batch.struct))

    def row(self) -> Floats:
        """The logits behind the last token of the batch."""
        found = C.llama_get_logits_ith(self.pointer, -1)
        return np.array(np.ctypeslib.as_array(found, (self.n_vocab,)), np.float32)

    def floats(self, found: Any) -> Floats:
        """A vector as wide as the model."""
        return np.array(np.ctypeslib.as_array(found, (self.model.n_embd,)), np.float32)


@contextlib.contextmanager
def raw(kind: str, **fields: Any) -> Iterator[Raw]:
    with Model(tiny_model(kind), ModelParams(n_gpu_layers=0)) as model:
        made = Raw(model, fields)
        try:
            yield made
        finally:
            C.llama_free(made.pointer)


def dies(body: str) -> str:
    """What a process says that this ends."""
    code = f"from tests.native.test_traps import *\n{body}\nprint('alive')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=PATIENCE
    )
    assert done.returncode < 0, done.stdout + done.stderr
    assert "alive" not in done.stdout
    return done.stderr


def test_a_pooled_context_has_rows_of_zeros_for_single_tokens() -> None:
    """A row that is not NULL may be no row: ``embeddings/`` asks for sequences where it pools."""
    with raw("full", embeddings=True, pooling_type=C.LLAMA_POOLING_TYPE_MEAN) as context:
        assert context.decode(TOKENS[:8]) == 0
        row = C.llama_get_embeddings_ith(context.pointer, 3)
        assert row
        assert not context.floats(row).any()
        assert context.floats(C.llama_get_embeddings_seq(context.pointer, 0)).any()


def test_the_mean_of_two_batches_is_that_of_the_second() -> None:
    """A text that is to be pooled by its mean has to be one batch."""
    with raw("full", embeddings=True, pooling_type=C.LLAMA_POOLING_TYPE_MEAN) as context:
        assert context.decode(TOKENS[:16]) == 0
        whole = context.floats(C.llama_get_embeddings_seq(context.pointer, 0))
        C.llama_memory_clear(context.memory, True)
        assert context.decode(TOKENS[:8]) == 0
        first = context.floats(C.llama_get_embeddings_seq(context.pointer, 0))
        assert context.decode(TOKENS[8:16], 8) == 0
        found = context.floats(C.llama_get_embeddings_seq(context.pointer, 0))
        assert np.abs(found - whole).max() > 0.01
        np.testing.assert_allclose(found + first, 2 * whole, rtol=0, atol=1e-3)


def test_a_context_for_embeddings_computes_logits_as_well() -> None:
    """Which is why vectors have a context of their own, and no long inputs beside replies."""
    with raw("full", embeddings=True) as context:
        assert context.decode(TOKENS[:4]) == 0
        assert context.row().any()


def test_an_aborted_batch_leaves_the_micro_batches_that_were_done() -> None:
    """After an abort, the engine asks the memory what it holds."""
    with raw("full", n_ubatch=16) as context:
        calls = []

        def abort(_: object) -> bool:
            calls.append(C.llama_memory_seq_pos_max(context.memory, 0))
            return calls[-1] >= 16  # the second micro-batch has its cells already

        callback = G.ggml_abort_callback(abort)
        C.llama_set_abort_callback(context.pointer, callback, None)
        assert context.decode(TOKENS) == 2
        assert C.llama_memory_seq_pos_max(context.memory, 0) == 15


@pytest.mark.parametrize("kind", ["iswa", "hybrid"])
def test_a_partial_state_loads_into_a_sequence_that_it_does_not_belong_to(kind: str) -> None:
    """It says that all is well, and what it leaves is half a sequence: parts go with their rest."""
    flags = C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
    with raw(kind, swa_full=False) as context:
        assert context.decode(TOKENS) == 0
        size = C.llama_state_seq_get_size_ext(context.pointer, 0, flags)
        assert size < C.llama_state_seq_get_size(context.pointer, 0)
        state = (ctypes.c_uint8 * size)()
        assert C.llama_state_seq_get_data_ext(context.pointer, state, size, 0, flags) == size
        assert C.llama_state_seq_set_data_ext(context.pointer, state, size, 1, flags) == size
        assert context.decode([7], len(TOKENS), 1) == 0
        found = context.row()
        assert context.decode([7], len(TOKENS), 0) == 0
        assert np.abs(found - context.row()).max() > 0.1


def test_a_recurrent_sequence_is_not_cut() -> None:
    """It says no, and goes back with checkpoints."""
    with raw("recurrent") as context:
        assert context.decode(TOKENS) == 0
        assert not C.llama_memory_seq_rm(context.memory, 0, 40, -1)


def test_snapshots_of_recurrent_states_are_dropped_in_silence() -> None:
    """Where an architecture has none, ``n_rs_seq`` is 0 whatever was asked for."""
    with raw("hybrid", n_rs_seq=4) as context:
        assert C.llama_n_rs_seq(context.pointer) == 0
    with raw("hybrid_conv", n_rs_seq=4, n_ubatch=4) as context:
        assert C.llama_n_rs_seq(context.pointer) == 4


@contextlib.contextmanager
def snapshots() -> Iterator[Raw]:
    """A recurrent sequence of 44 tokens that may go back by those of its last batch."""
    with raw("hybrid_conv", n_rs_seq=4, n_ubatch=64) as context:
        assert context.decode(TOKENS[:40]) == 0
        yield context


def behind(context: Raw, seq: int = 0) -> Floats:
    assert context.decode(TOKENS[42:43], 42, seq) == 0
    return context.row()


def expected() -> Floats:
    with snapshots() as context:
        assert context.decode(TOKENS[40:42], 40) == 0
        return behind(context)


def test_a_recurrent_sequence_goes_back_within_its_last_batch() -> None:
    """What the two below are compared with."""
    with snapshots() as context:
        assert context.decode(TOKENS[40:44], 40) == 0
        assert C.llama_memory_seq_rm(context.memory, 0, 42, -1)
        np.testing.assert_allclose(behind(context), expected(), rtol=0, atol=1e-3)


def test_going_back_further_than_the_last_batch_succeeds_and_is_wrong() -> None:
    """Never more than the last step's rows less one, whatever llama.cpp says."""
    with snapshots() as context:
        for position in range(40, 44):
            assert context.decode([TOKENS[position]], position) == 0
        assert C.llama_memory_seq_rm(context.memory, 0, 42, -1)
        assert np.abs(behind(context) - expected()).max() > 0.1


def test_a_fork_of_a_sequence_that_went_back_is_wrong() -> None:
    """No copy, no state kept, between going back and the next decode."""
    with snapshots() as context:
        assert context.decode(TOKENS[40:44], 40) == 0
        assert C.llama_memory_seq_rm(context.memory, 0, 42, -1)
        C.llama_memory_seq_cp(context.memory, 0, 1, -1, -1)
        assert np.abs(behind(context, 1) - expected()).max() > 0.1


def test_a_shared_recurrent_state_does_not_go_back_for_one_of_its_sequences() -> None:
    """It says no: whoever forks before going back has to load a checkpoint."""
    with snapshots() as context:
        assert context.decode(TOKENS[40:44], 40) == 0
        C.llama_memory_seq_cp(context.memory, 0, 1, -1, -1)
        assert not C.llama_memory_seq_rm(context.memory, 0, 42, -1)


def test_a_short_control_vector_leaves_what_the_last_one_had() -> None:
    """So a vector is padded with zeros to all layers before it is set."""
    with raw("full") as context:
        rows, width = [], context.model.n_embd
        layers = context.model.n_layer - 1
        for values in (np.zeros(layers * width), np.ones(layers * width), np.zeros(width)):
            data = values.astype(np.float32)
            at, count = data.ctypes.data, data.size
            assert C.llama_set_adapter_cvec(context.pointer, at, count, width, 1, layers) == 0
            C.llama_memory_clear(context.memory, True)
            assert context.decode(TOKENS[:8]) == 0
            rows.append(context.row())
        plain, steered, short = rows
        assert np.abs(steered - plain).max() > 0.1
        assert np.abs(short - plain).max() > 0.1


@pytest.mark.slow
def test_a_batch_without_causal_attention_that_is_too_long_ends_the_process() -> None:
    """Lengths are compared with ``n_ubatch`` before llama.cpp sees them."""
    said = dies(
        "with raw('full', n_ubatch=16) as context:\n"
        "    C.llama_set_causal_attn(context.pointer, False)\n"
        "    context.decode(TOKENS)"
    )
    assert "GGML_ASSERT" in said


@pytest.mark.slow
def test_bytes_of_a_number_above_unicode_end_the_process() -> None:
    """``core/vocab.py`` replaces them."""
    dies(
        "with Model(tiny_model('full')) as model:\n"
        "    text = b'a\\xf7\\xbf\\xbf\\xbf'\n"
        "    buffer = (C.llama_token * 64)()\n"
        "    vocab = C.llama_model_get_vocab(model.pointer)\n"
        "    C.llama_tokenize(vocab, text, len(text), buffer, 64, False, False)"
    )
