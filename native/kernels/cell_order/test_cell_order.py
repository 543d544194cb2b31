"""The cells of a sequence in the order of its tokens (``rule.cmake``)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from llama_py._native.loader import build_info, library
from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.core.model import Model
from llama_py.params import ContextParams
from tests.models import tiny_model
from tests.native.builds import configured
from tools.move_pin.touched import functions

PROMPT, REPLY, BESIDE = range(100, 130), range(200, 212), range(30, 230)
OWN, OTHER = 0, 1
Row = NDArray[np.float32]


@pytest.fixture(scope="module")
def context() -> Iterator[Context]:
    # In F32: what is rounded to eight bits behind each layer hides most of the difference.
    model = Model(tiny_model("full"))
    settings = ContextParams(
        n_ctx=1024, n_seq_max=2, n_threads=1, n_threads_batch=1, flash_attn=True
    )
    context = Context(model, settings)
    yield context
    context.close()
    model.close()


def evaluate(context: Context, tokens: range, at: int, seq: int) -> Row:
    batch = Batch(len(tokens))
    batch.add(list(tokens), at, seq, False)
    batch.outputs[len(tokens) - 1] = 1
    assert context.decode(batch) == 0
    row: Row = context.logits(len(tokens) - 1).copy()
    return row


def reply(context: Context, *, gone_after: int | None) -> list[Row]:
    """Logits of a reply; a conversation whose cells lie before it is forgotten meanwhile."""
    context.clear()
    if gone_after is not None:
        evaluate(context, BESIDE, 0, OTHER)
    rows = [evaluate(context, PROMPT, 0, OWN)]
    for number, token in enumerate(REPLY):
        if number == gone_after:
            context.seq_rm(OTHER, -1, -1)
        rows.append(evaluate(context, range(token, token + 1), len(PROMPT) + number, OWN))
    return rows


def equal(one: list[Row], other: list[Row]) -> bool:
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


@pytest.fixture
def applied() -> None:
    if build_info()["rules"].get("LLAMA_PY_CELL_ORDER") != "applied":
        pytest.skip("this build leaves the search for cells to llama.cpp")


@pytest.mark.usefixtures("applied")
def test_cells_that_others_leave_do_not_change_a_reply(context: Context) -> None:
    alone = reply(context, gone_after=None)
    for moment in (0, 5, len(REPLY) - 1):
        assert equal(reply(context, gone_after=moment), alone)


@pytest.mark.usefixtures("applied")
def test_a_full_memory_is_filled_from_its_beginning(context: Context) -> None:
    """Where nothing is free behind a sequence, it goes on before it."""
    context.clear()
    for start in range(0, 800, 200):
        evaluate(context, BESIDE, start, OTHER)
    for start in range(0, 210, 30):
        evaluate(context, PROMPT, start, OWN)
    context.seq_rm(OTHER, 0, 100)
    assert evaluate(context, PROMPT, 210, OWN).any()
    assert context.pos_max(OWN) == 239


@pytest.mark.usefixtures("applied")
def test_without_the_rule_they_do(context: Context) -> None:
    """When this fails, llama.cpp places cells otherwise, and the rule may have done its work."""
    anywhere = ctypes.c_ubyte.in_dll(library("llama"), "llama_py_cells_anywhere")
    alone = reply(context, gone_after=None)
    anywhere.value = 1
    try:
        assert not equal(reply(context, gone_after=5), alone)
    finally:
        anywhere.value = 0


def test_what_the_rule_changes_is_still_there(llama_cpp: Path) -> None:
    text = (llama_cpp / "src" / "llama-kv-cache.cpp").read_text(encoding="utf-8")
    found = functions(text)["llama_kv_cache::find_slot"]
    assert "uint32_t head_cur = v_heads[seq_to_stream[seq_id]];" in found
    assert "if (head_cur > cells.get_used() + 2*n_tokens)" in found


@pytest.mark.slow
def test_it_can_be_left_to_llama_cpp(gcc: str, tmp_path: Path) -> None:
    source = ("/llama-kv-cache.cpp",)
    (command,), rules = configured(tmp_path, gcc, source, "-DLLAMA_PY_CELL_ORDER=OFF")
    assert rules["LLAMA_PY_CELL_ORDER"] == "off"
    assert "/corrected/llama-kv-cache.cpp" in command, "another rule corrects it as well"
    corrected = (tmp_path / "corrected" / "llama-kv-cache.cpp").read_text(encoding="utf-8")
    assert "llama_py_behind" not in corrected
    assert "llama_py_on_trial" in corrected
