"""Whether a step that has words and cells of pictures computes what steps of their own do.

llama.cpp has such steps since b11549, for most architectures. The engine gives a picture a step of
its own (``docs/decisions.md`` says why); this is what is known of the other way.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from llama_py._native import llama_h as C
from llama_py.core.context import Context
from llama_py.core.model import Model
from llama_py.core.projector import Cells, Projector
from llama_py.params import ContextParams
from tests.media.pictures import disc
from tests.media.projectors import tiny_projector
from tests.media.test_exact import EXACT
from tests.media.text_models import media_model
from tests.memory.oracle import nmse

#: Before the picture, and behind it.
BEFORE, BEHIND = [60, 61, 62, 63, 64], [70, 71, 72]
PAIRS = [
    ("full", "mlp"),
    ("mrope", "qwen2vl_merger"),
    ("recurrent", "mlp"),
    ("hybrid", "mlp"),
    ("iswa", "mlp"),
    ("hybrid_swa", "mlp"),
]


def context_of(model: Model) -> Context:
    params = ContextParams(
        n_ctx=256, n_seq_max=2, n_threads=1, flash_attn=False, type_k=0, type_v=0, swa_full=True
    )
    return Context(model, params)


class _Mixed:
    """One batch of words and vectors, of any sequences."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._batch = C.llama_batch_ext_init(context.pointer)
        self._kept: list[Any] = []

    def words(self, tokens: Sequence[int], start: int, sequence: int) -> None:
        for index, token in enumerate(tokens):
            place = C.llama_batch_ext_add_token(self._batch, sequence, token)
            self._place(place, [start + index], index == len(tokens) - 1)

    def vectors(self, rows: Any, places: Any, sequence: int) -> None:
        self._kept.append(rows)
        for index, row in enumerate(rows):
            address = row.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            embd = C.llama_embd(data=address, n_rows=1, n_embd=len(row))
            place = C.llama_batch_ext_add_embd(self._batch, sequence, embd)
            self._place(place, places[:, index].tolist(), False)

    def _place(self, index: int, numbers: Sequence[int], output: bool) -> None:
        assert index >= 0
        array = (ctypes.c_int32 * len(numbers))(*numbers)
        assert C.llama_batch_ext_set_pos(self._batch, index, array)
        assert C.llama_batch_ext_set_output_logits(self._batch, index, output)

    def decode(self) -> Any:
        """The logits of the last one."""
        assert C.llama_process(self._context.pointer, C.LLAMA_PROCESS_TYPE_DECODE, self._batch) == 0
        row = self._context.logits(-1).copy()
        C.llama_batch_ext_free(self._batch)
        return row


def separately(context: Context, rows: Any, cells: Cells) -> Any:
    """The logits behind words, a picture and words, each in a step of their own."""
    for tokens, start in (
        (BEFORE, 0),
        (None, len(BEFORE)),
        (BEHIND, len(BEFORE) + cells.positions),
    ):
        if tokens is None:
            code = context.decode_vectors(
                rows, cells.placed(start), 0, output=False, causal=cells.causal
            )
            assert code == 0
            continue
        batch = _Mixed(context)
        batch.words(tokens, start, 0)
        row = batch.decode()
    return row


@pytest.mark.parametrize(("kind", "projector"), PAIRS)
def test_one_step_of_words_and_a_picture_computes_the_same(kind: str, projector: str) -> None:
    with Model(media_model(kind)) as model, Projector(model, tiny_projector(projector)) as encoder:
        chunks = encoder.split_pixels(disc(), "a picture")
        cells = next(part for part in chunks.parts if isinstance(part, Cells))
        rows = encoder.encode(chunks, cells.index)
        with context_of(model) as context:
            expected = separately(context, rows, cells)
            context.clear()
            mixed = _Mixed(context)
            mixed.words(BEFORE, 0, 0)
            mixed.vectors(rows, cells.placed(len(BEFORE)), 0)
            mixed.words(BEHIND, len(BEFORE) + cells.positions, 0)
            found = mixed.decode()
            assert np.isfinite(found).all()
            assert nmse(found, expected) <= EXACT
            # Beside another sequence, whose words come with the picture.
            context.clear()
            mixed = _Mixed(context)
            mixed.words(BEFORE, 0, 0)
            mixed.decode()
            mixed = _Mixed(context)
            mixed.vectors(rows, cells.placed(len(BEFORE)), 0)
            mixed.words([80, 81], 0, 1)
            mixed.decode()
            mixed = _Mixed(context)
            mixed.words(BEHIND, len(BEFORE) + cells.positions, 0)
            assert nmse(mixed.decode(), expected) <= EXACT
