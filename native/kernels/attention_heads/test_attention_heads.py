"""Flash attention for all that share cells at once (``attention_heads.h``)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from llama_py._native import ggml_h as G
from tests.native.graphs import Graph

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Case:
    """An attention: its shape, and what models do besides."""

    heads: int = 6
    heads_kv: int = 2
    key: int = 64
    value: int = 64
    cells: int = 440
    tokens: int = 1
    batch: int = 1
    memory: type[np.floating[Any]] = np.float16
    keys: str = ""  # other types, one of STORED
    values: str = ""
    masked: bool = True
    softcap: float = 0.0
    max_bias: float = 0.0
    sinks: bool = False
    hidden: bool = False  # one token attends to nothing
    others: bool = False  # cells of other conversations lie between its own, and in blocks
    window: int = 0
    replies: bool = False  # each token attends to cells of its own, which lie among each other

    @property
    def scale(self) -> float:
        return float(self.key**-0.5)


@dataclass(frozen=True, slots=True)
class Given:
    q: Array  # (batch, heads, tokens, key)
    k: Array  # (batch, heads_kv, cells, key)
    v: Array  # (batch, heads_kv, cells, value)
    mask: Array | None  # (batch, 1, tokens, cells)
    sinks: Array | None  # (heads,)


def given(case: Case) -> Given:
    random = np.random.default_rng(case.cells + case.tokens + case.key)

    def draw(*shape: int, of: type[np.floating[Any]] = np.float32) -> Array:
        return random.normal(size=shape).astype(of).astype(np.float64)

    mask = None
    if case.masked:
        cell, last = np.arange(case.cells), case.cells - case.tokens + np.arange(case.tokens)
        seen = (cell[None] >= 3) & (cell[None] <= last[:, None])
        if case.others:
            some, block = random.random(case.cells) < 0.5, cell // 64 % 3
            seen &= (block == 2) | (some & (block == 0))
        if case.window:
            seen &= cell[None] > last[:, None] - case.window
        if case.replies:
            whose = np.where(cell < 256, cell // 32, cell) % case.tokens
            seen = whose == np.arange(case.tokens)[:, None]
        if case.hidden:
            seen[case.tokens // 2] = False
        distance = -np.abs(last[:, None] - cell[None]) if case.max_bias else 0.0
        one = np.where(seen, distance, -np.inf).astype(np.float16).astype(np.float64)
        mask = np.broadcast_to(one, (case.batch, 1, *one.shape))
    return Given(
        draw(case.batch, case.heads, case.tokens, case.key),
        draw(case.batch, case.heads_kv, case.cells, case.key, of=case.memory),
        draw(case.batch, case.heads_kv, case.cells, case.value, of=case.memory),
        mask,
        3.0 * draw(case.heads) if case.sinks else None,
    )


def slopes(case: Case) -> Array:
    """Press et al., *Train Short, Test Long* (2022), section 3, and as ggml does between powers."""
    if not case.max_bias:
        return np.ones(case.heads)
    whole = 1 << int(np.log2(case.heads))
    even = 2.0 ** (-case.max_bias / whole * np.arange(1, whole + 1))
    odd = 2.0 ** (-case.max_bias / 2 / whole * np.arange(1, 2 * (case.heads - whole), 2))
    return np.concatenate([even, odd])


#: What cells may be besides F16 and F32, by ggml's names.
STORED = ("BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL")


def stored(values: Array, kind: str) -> tuple[npt.NDArray[np.uint8], Array]:
    """Numbers as cells of such a type have them, and what they are."""
    number, flat = getattr(G, f"GGML_TYPE_{kind}"), values.astype(np.float32)
    length = values.shape[-1]
    rows = flat.size // length
    data = np.zeros((rows, G.ggml_row_size(number, length)), np.uint8)
    G.ggml_quantize_chunk(number, flat.ctypes.data, data.ctypes.data, 0, rows, length, None)
    back = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
    return data, back.reshape(values.shape).astype(np.float64)


def expected(case: Case, given: Given) -> Array:
    """In float64: (batch, tokens, heads, value)."""
    shared = case.heads // case.heads_kv
    k, v = (np.repeat(each, shared, axis=1) for each in (given.k, given.v))
    scores = given.q @ k.transpose(0, 1, 3, 2) * case.scale
    if case.softcap:
        scores = case.softcap * np.tanh(scores / case.softcap)
    if given.mask is not None:
        scores = scores + slopes(case)[None, :, None, None] * given.mask
    greatest = scores.max(axis=-1, keepdims=True)
    if given.sinks is not None:
        greatest = np.maximum(greatest, given.sinks[None, :, None, None])
    greatest = np.where(np.isfinite(greatest), greatest, 0.0)
    weights = np.exp(scores - greatest)
    total = weights.sum(axis=-1, keepdims=True)
    if given.sinks is not None:
        total = total + np.exp(given.sinks[None, :, None, None] - greatest)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return np.asarray((weights @ v).transpose(0, 2, 1, 3))


def computed(
    case: Case, given: Given, threads: int, *, plainly: bool = False
) -> npt.NDArray[np.float32]:
    """By ggml: (batch, tokens, heads, value)."""
    with Graph() as graph:
        queries = graph.tensor(given.q.astype(np.float32))
        keys, values = (
            graph.tensor(stored(each, kind)[0], getattr(G, f"GGML_TYPE_{kind}"), each.shape)
            if kind
            else graph.tensor(each.astype(case.memory))
            for each, kind in ((given.k, case.keys), (given.v, case.values))
        )
        mask = None if given.mask is None else graph.tensor(given.mask.astype(np.float16))
        made = G.ggml_flash_attn_ext(
            graph.context, queries, keys, values, mask, case.scale, case.max_bias, case.softcap
        )
        if given.sinks is not None:
            G.ggml_flash_attn_ext_add_sinks(made, graph.tensor(given.sinks.astype(np.float32)))
        shape = case.batch, case.tokens, case.heads, case.value
        return graph.compute(made, threads, shape, plainly=plainly)


CASES = {
    "a head for each": Case(heads=4, heads_kv=4),
    "all heads share": Case(heads=7, heads_kv=1),
    "eight share": Case(heads=16, heads_kv=2),
    "heads of 32": Case(key=32, value=32),
    "heads of 36, no multiple of a vector": Case(key=36, value=36),
    "heads of 48": Case(key=48, value=48),
    "heads of 80": Case(key=80, value=80),
    "heads of 96": Case(key=96, value=96),
    "heads of 128": Case(key=128, value=128),
    "heads of 256": Case(key=256, value=256),
    "keys longer than values": Case(key=192, value=128),
    "many that share long heads": Case(heads=128, heads_kv=1, key=576, value=512, cells=96),
    "single precision": Case(memory=np.float32),
    "no mask": Case(masked=False),
    "few cells": Case(cells=5),
    "a block": Case(cells=64),
    "a block and one": Case(cells=65),
    "soft cap": Case(softcap=20.0),
    "slopes": Case(max_bias=8.0),
    "sinks": Case(sinks=True),
    "streams": Case(batch=3),
    "sinks and streams": Case(sinks=True, batch=2),
    "all of it": Case(softcap=30.0, max_bias=8.0, sinks=True, batch=2),
    "a token that sees nothing": Case(hidden=True),
    "among other conversations": Case(others=True, cells=700),
    "among others, with slopes": Case(others=True, max_bias=8.0, heads=4, heads_kv=4),
    "replies": Case(replies=True, cells=700),
    "replies, with slopes and sinks": Case(replies=True, max_bias=8.0, sinks=True, heads=4),
    "replies whose heads are their own": Case(replies=True, heads=5, heads_kv=5),
    "replies, a block and one cell": Case(replies=True, cells=321),
    "more heads than pass at once": Case(heads=40, heads_kv=40, cells=130),
    "more rows than a tile, and more masks than pass at once": Case(
        heads=1, heads_kv=1, key=256, value=64, others=True
    ),
    "a window": Case(window=100),
    "a window, and nothing seen in a whole block": Case(window=20, hidden=True, cells=690),
}


@pytest.mark.parametrize(
    ("tokens", "threads"),
    # Long ones take seconds: with fewer threads, each computes more in the same way.
    [*product([1, 2, 3, 16], [1, 2, 3]), (70, 2), (70, 3), (200, 3)],
)
@pytest.mark.parametrize("name", CASES)
def test_attention_is_that_of_float64(name: str, tokens: int, threads: int) -> None:
    case = replace(CASES[name], tokens=tokens)
    case = replace(case, cells=max(case.cells, tokens + 4))
    of = given(case)
    # ggml's own code, which takes what has no multiple of a vector, sums values in half precision.
    tolerance = 2e-2 if case.key % 8 else 2e-5
    np.testing.assert_allclose(
        computed(case, of, threads), expected(case, of), rtol=0, atol=tolerance
    )


def moved(of: Given, offset: int, cells: int) -> Given:
    """The same, behind so many cells of others, and with others behind it."""
    random = np.random.default_rng(offset)
    memory = []
    for each in (of.k, of.v):
        place = random.normal(size=(*each.shape[:2], cells, each.shape[3]))
        place[:, :, offset : offset + each.shape[2]] = each
        memory.append(place)
    assert of.mask is not None
    mask = np.full((*of.mask.shape[:3], cells), -np.inf)
    mask[..., offset : offset + of.mask.shape[3]] = of.mask
    return replace(of, k=memory[0], v=memory[1], mask=mask)


#: Among them those by which blocks of 64 and vectors are cut elsewhere, and a cell lies alone.
OFFSETS = (1, 12, 15, 63, 64, 200, 511)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    "case",
    [
        *(Case(tokens=tokens, cells=tokens + 3) for tokens in (1, 2, 3, 28, 70)),
        Case(cells=400, heads=9, heads_kv=3),
        Case(cells=400, heads=16, heads_kv=1),
        Case(cells=515, sinks=True),
        Case(cells=700, heads=9, heads_kv=3),
        Case(cells=700, tokens=20),
        Case(cells=700, keys="Q8_0", values="Q4_0", memory=np.float32),
        Case(cells=700, tokens=20, keys="Q8_0", values="Q8_0", memory=np.float32),
    ],
    ids=lambda case: f"{case.tokens}-{case.cells}-{case.heads}{case.keys}",
)
def test_sums_do_not_depend_on_where_the_cells_lie(case: Case, threads: int) -> None:
    """An equal call is computed elsewhere, beside what others have left, to the same bits."""
    of = given(case)
    as_first = computed(case, of, threads)
    for offset in OFFSETS:
        np.testing.assert_array_equal(computed(case, moved(of, offset, 1280), threads), as_first)


def alone(of: Given, token: int) -> Given:
    """One of its tokens, which attends to the same cells."""
    assert of.mask is not None
    return replace(of, q=of.q[:, :, token : token + 1], mask=of.mask[:, :, token : token + 1])


#: What cells and models may be; blocks of 64 cells and parts of 512 end behind and among them.
ALIKE = {
    "few cells": Case(cells=130),
    "a part": Case(cells=512),
    "a part and one": Case(cells=513, heads=9, heads_kv=3),
    "several parts": Case(cells=1500, heads=12, heads_kv=2, key=128, value=128),
    "all heads share": Case(cells=700, heads=16, heads_kv=1),
    "heads of their own": Case(cells=700, heads=5, heads_kv=5, key=48, value=80),
    "long heads": Case(cells=600, heads=4, heads_kv=1, key=256, value=256),
    "heads that fit no tile": Case(cells=600, heads=20, heads_kv=1, key=576, value=512),
    "single precision": Case(cells=700, memory=np.float32),
    "soft cap, slopes, sinks": Case(cells=1100, softcap=30.0, max_bias=8.0, sinks=True),
    "streams": Case(cells=600, batch=2),
    "gaps": Case(cells=1500, others=True),
    "q8_0": Case(cells=700, keys="Q8_0", values="Q8_0", memory=np.float32),
    "q8_0 and q4_0": Case(cells=1100, keys="Q8_0", values="Q4_0", memory=np.float32),
    "bf16": Case(cells=700, keys="BF16", values="BF16", memory=np.float32),
}


@pytest.mark.parametrize("name", ALIKE)
def test_a_token_becomes_the_same_whatever_is_computed_with_it(name: str) -> None:
    """As one of a prompt, of a draft, alone, with any number of threads: to the bit."""
    case = ALIKE[name]
    for tokens, threads in ((2, 1), (3, 2), (5, 1), (8, 3), (16, 2), (70, 2), (100, 1)):
        step = replace(case, tokens=tokens)
        of = given(step)
        together = computed(step, of, threads)
        for token in {0, tokens // 2, tokens - 1}:
            for count in (1, 2, 3, 5):
                np.testing.assert_array_equal(
                    computed(replace(case, tokens=1), alone(of, token), count)[:, 0],
                    together[:, token],
                    err_msg=f"token {token} of {tokens}, {threads} threads; alone {count} threads",
                )


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("order", ["reply first", "reply last", "prompts and replies"])
def test_a_token_becomes_the_same_beside_other_conversations(order: str, threads: int) -> None:
    """Several share a buffer of cells and a step: some with one token, some with more."""
    lengths = {"reply first": (1, 20), "reply last": (20, 1), "prompts and replies": (1, 9, 1, 30)}
    counts, own = lengths[order], 640
    tokens, cells = sum(counts), own * len(counts)
    case = Case(tokens=tokens, cells=cells)
    of = given(replace(case, masked=False))
    mask, row = np.full((1, 1, tokens, cells), -np.inf), 0
    for number, count in enumerate(counts):
        for behind in range(count):
            seen = number * own + own - 30 - count + behind
            mask[..., row, number * own : seen] = 0.0
            row += 1
    of = replace(of, mask=mask)
    together = computed(case, of, threads)
    for token in range(tokens):
        one = computed(replace(case, tokens=1), alone(of, token), 2)
        np.testing.assert_array_equal(one[:, 0], together[:, token], err_msg=f"token {token}")


@pytest.mark.parametrize("threads", [23, 28, 36, 48, 79])
@pytest.mark.parametrize("cells", [512, 700])
def test_no_head_is_lost_with_many_threads(cells: int, threads: int) -> None:
    """ggml has no cells for the last of many threads, and does not call them."""
    case = Case(heads=64, heads_kv=8, cells=300)
    of = moved(given(case), 100, cells)
    np.testing.assert_allclose(computed(case, of, threads), expected(case, of), rtol=0, atol=2e-5)


@pytest.mark.parametrize(("tokens", "threads"), [(1, 1), (1, 3), (3, 2), (16, 2), (70, 3)])
@pytest.mark.parametrize("keys", ["", *STORED])
@pytest.mark.parametrize("values", ["", "same"])
def test_cells_of_any_type(keys: str, values: str, tokens: int, threads: int) -> None:
    """Prompts, replies, and replies to others; keys and values may be of two types."""
    values = keys if values else "Q8_0"
    for case in (
        Case(cells=700, others=True),
        Case(cells=440, heads=9, heads_kv=3, key=128, value=64, sinks=True),
        Case(cells=321, heads=40, heads_kv=2, replies=True, max_bias=8.0),
        Case(cells=130, heads=4, heads_kv=4, key=256, value=256, batch=2),
    ):
        case = replace(case, tokens=tokens, keys=keys, values=values, memory=np.float32)
        of = given(case)
        read = replace(
            of,
            k=stored(of.k, keys)[1] if keys else of.k,
            v=stored(of.v, values)[1] if values else of.v,
        )
        got = computed(case, of, threads)
        np.testing.assert_allclose(got, expected(case, read), rtol=0, atol=2e-5)


@pytest.mark.parametrize("tokens", [1, 16])
def test_without_the_rule_sums_are_in_half_precision(tokens: int) -> None:
    """When this fails, ggml sums otherwise, and the rule may have done its work."""
    case = Case(cells=700, tokens=tokens)
    of = given(case)
    error = np.abs(computed(case, of, 1, plainly=True) - expected(case, of)).max()
    assert 1e-4 < error < 1e-2


def test_what_the_rule_replaces_is_still_called_as_it_was(llama_cpp: Path) -> None:
    """When this fails, ggml has changed how rows are counted, or what partial sums look like."""
    text = (llama_cpp / "ggml" / "src" / "ggml-cpu" / "ops.cpp").read_text(encoding="utf-8")
    calls = re.findall(
        r"ggml_compute_forward_flash_attn_ext_f16_one_chunk\(\s*(params,[^;]*?)\);", text
    )
    calls = [" ".join(each.split()) for each in calls]
    assert calls == [
        "params, dst, q_head, q_head + 1, ic_start, ic_end, chunk_partials, partial_stride",
        "params, dst, ir0, ir1, 0, nek1, nullptr, 0",
    ]
    assert "ggml_flash_attn_ext_reduce_partials(params, dst, nth, chunk_size);" in text
    assert "const int nth = params->nth;" in text
    assert (
        "partials_base = (float *) params->wdata + nth * (DK + 2*DV + CACHE_LINE_SIZE_F32);"
        in re.sub(" +", " ", text)
    )
