"""Flash attention of few tokens, in tiles (``attention_tiles.h``)."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from llama_py._native import ggml_h as G
from llama_py._native.loader import build_info

#: Heads that are not multiple of a vector: others are computed by attention_heads.h, where it can.
CELLS, HEAD, HEADS, HEADS_KV = 440, 36, 6, 2
#: Tokens from which on ggml's own choice is tiles, and their height.
TILE = 64

Array = npt.NDArray[np.float64]


def tensor(
    context: G.ggml_context_p, kind: int, values: npt.NDArray[np.floating[Any]]
) -> ctypes._Pointer[G.ggml_tensor]:
    last, rows, heads = values.shape[::-1]
    made = G.ggml_new_tensor_4d(context, kind, last, rows, heads, 1)
    values, data = np.ascontiguousarray(values), G.ggml_get_data(made)
    assert data
    ctypes.memmove(data, values.ctypes.data, values.nbytes)
    return made


def attention(q: Array, k: Array, v: Array, mask: Array, threads: int) -> npt.NDArray[np.float32]:
    """ggml's: queries (heads, tokens, head), keys and values of cells, mask (tokens, cells)."""
    context = G.ggml_init(G.ggml_init_params(mem_size=64 << 20, mem_buffer=None, no_alloc=False))
    try:
        queries, keys, values = (
            tensor(context, G.GGML_TYPE_F32, each.astype(np.float32)) for each in (q, k, v)
        )
        masks = tensor(context, G.GGML_TYPE_F16, mask[None].astype(np.float16))
        made = G.ggml_flash_attn_ext(context, queries, keys, values, masks, HEAD**-0.5, 0.0, 0.0)
        graph = G.ggml_new_graph(context)
        G.ggml_build_forward_expand(graph, made)
        assert G.ggml_graph_compute_with_ctx(context, graph, threads) == 0
        shape = (q.shape[1], HEADS, HEAD)
        return np.array(np.ctypeslib.as_array(G.ggml_get_data_f32(made), shape), np.float32)
    finally:
        G.ggml_free(context)


def reference(q: Array, k: Array, v: Array, mask: Array) -> Array:
    k, v = (np.repeat(each, HEADS // HEADS_KV, axis=0) for each in (k, v))
    scores = q @ k.transpose(0, 2, 1) * HEAD**-0.5 + mask
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.asarray((weights @ v).transpose(1, 0, 2))


def inputs(tokens: int, streams: int = 1) -> tuple[Array, Array, Array, Array]:
    """Of a conversation whose last tokens these are, beside cells of another one.

    With several streams, of as many conversations: token by token and cell by cell in turn.
    """
    random = np.random.default_rng(tokens)
    q = random.normal(size=(HEADS, TILE + 1, HEAD))[:, :tokens]
    k, v = random.normal(size=(2, HEADS_KV, CELLS, HEAD))
    cell, last = np.arange(CELLS), CELLS - tokens + np.arange(tokens)[:, None]
    own = cell % streams == np.arange(tokens)[:, None] % streams
    return q, k, v, np.where((cell >= 20) & (cell <= last) & own, 0.0, -np.inf)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("streams", [1, 2, 16])
@pytest.mark.parametrize("tokens", [1, 2, 12, 13, 14, 16, 17, 31, 33, 47, 48, 63, 64, 65])
def test_attention_is_right_for_any_number_of_tokens(
    tokens: int, streams: int, threads: int
) -> None:
    """Also where some threads compute tiles, and others single rows."""
    given = inputs(tokens, streams)
    expected = reference(*given)
    for _ in range(5):
        np.testing.assert_allclose(attention(*given, threads), expected, rtol=0, atol=1e-5)


@pytest.fixture
def applied() -> None:
    if build_info()["rules"]["LLAMA_PY_ATTENTION_TILES"] != "applied":
        pytest.skip("this build leaves the choice to ggml")


def some(given: tuple[Array, Array, Array, Array], tokens: int) -> npt.NDArray[np.float32]:
    """What the first tokens come to alone."""
    q, k, v, mask = given
    return attention(q[:, :tokens], k, v, mask[:tokens], 1)


@pytest.mark.usefixtures("applied")
def test_few_tokens_of_a_conversation_are_computed_in_tiles() -> None:
    """A tile gives the same bits for a token however many others are in it."""
    given = inputs(TILE)
    whole = attention(*given, 1)
    for tokens in (20, 33, 47):
        np.testing.assert_array_equal(some(given, tokens), whole[:tokens])
    assert (some(given, 4) != whole[:4]).any(), "single rows give the same bits: nothing is proven"


@pytest.mark.usefixtures("applied")
def test_conversations_do_not_compute_the_cells_of_each_other() -> None:
    """Their tokens are rows, which give the same bits alone, where ggml would take a tile."""
    given = inputs(TILE, streams=16)
    np.testing.assert_array_equal(some(given, 4), attention(*given, 1)[:4])


def test_what_the_rule_changes_is_still_there(llama_cpp: Path) -> None:
    """When this fails, ggml has changed, and the rule may have done its work."""
    text = (llama_cpp / "ggml" / "src" / "ggml-cpu" / "ops.cpp").read_text(encoding="utf-8")
    functions = re.split(
        r"^(?=(?:static )?(?:inline )?void ggml_compute_forward_)", text, flags=re.M
    )
    used = {
        function.split("(")[0].split()[-1]: function
        for function in functions
        if "ggml_fa_tile_config" in function or "simd_gemm(" in function
    }
    prefix = "ggml_compute_forward_flash_attn_ext_"
    assert set(used) == {f"{prefix}tiled", f"{prefix}f16"}
    chooses, tiles = used[f"{prefix}f16"], used[f"{prefix}tiled"]
    assert re.search(r"Q_TILE_SZ +\= ggml_fa_tile_config::Q;", chooses)
    assert chooses.count("Q_TILE_SZ") == 2, "it is declared"
    assert "neq1 >= Q_TILE_SZ" in chooses
    assert "const int64_t ir0 = " in chooses
    assert f"{prefix}tiled(params, dst, ir0, ir1);" in chooses
    assert re.search(r"\bint ir0, int ir1\) {", tiles)
    assert "ith*(Q_TILE_SZ*DK + 2*Q_TILE_SZ*KV_TILE_SZ + Q_TILE_SZ*DV + KV_TILE_SZ*DV + " in tiles
    calls = re.findall(r"simd_gemm\((.*)\);", tiles)
    assert [call.split(", ")[-3] for call in calls] == ["Q_TILE_SZ"] * 2
    assert "const int tile_rows = " in tiles
    common = (llama_cpp / "ggml" / "src" / "ggml-cpu" / "common.h").read_text(encoding="utf-8")
    assert re.findall(r"^#define GGML_FA_TILE_Q +(\d+)$", common, re.MULTILINE) == [str(TILE)]
