"""A context: its sizes, its logits, and its saved states, on every kind of memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llama_py.core import backend
from llama_py.core import context as context_module
from llama_py.core.batch import Batch
from llama_py.core.context import Context, default_n_ctx
from llama_py.core.model import Model
from llama_py.core.placement import placement
from llama_py.errors import ClosedError, ContextCreationError, ParameterError, StateError
from llama_py.params import ContextParams, ModelParams
from tests.models import KINDS, Kind, tiny_model
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
SMALL: dict[str, Any] = {"n_ctx": 256, "n_seq_max": 2, "n_threads": 1, "flash_attn": False}
PROMPT = [int(t) for t in np.random.default_rng(3).integers(0, 500, 40)]


def small(model: Model, **changes: Any) -> Context:
    return Context(model, ContextParams(**{**SMALL, **changes}))


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model(tiny_model("full")) as loaded:
        yield loaded


def evaluate(context: Context, tokens: list[int], position: int, seq: int = 0) -> NDArray[Any]:
    batch = Batch(len(tokens))
    batch.set(tokens, position, seq, True)
    assert context.decode(batch) == 0
    row: NDArray[Any] = context.logits(len(tokens) - 1).copy()
    return row


# -- sizes -----------------------------------------------------------------------------------------


def test_the_sizes_are_what_was_asked_for(model: Model) -> None:
    context = small(model, n_ctx=512, n_batch=100, n_ubatch=50, n_seq_max=3)
    sizes = (context.n_ctx, context.n_ctx_seq, context.n_batch, context.n_ubatch, context.n_seq_max)
    assert sizes == (512, 512, 100, 50, 3)
    assert context.params.n_threads == context.params.n_threads_batch == 1
    assert context.n_vocab == 519


def test_sequences_may_have_cells_of_their_own(model: Model) -> None:
    context = small(model, n_ctx=1024, n_seq_max=4, kv_unified=False)
    assert (context.n_ctx, context.n_ctx_seq) == (1024, 256)
    evaluate(context, [5, 6, 7], 0, seq=1)
    expected = evaluate(small(model, n_ctx=256), [5, 6, 7, 8], 0)
    context.seq_cp(1, 3)
    context.seq_rm(1, 0)  # a copy, and not another name
    np.testing.assert_allclose(evaluate(context, [8], 3, seq=3), expected, atol=1e-4)
    with pytest.raises(ParameterError, match=r"\[0, 2\) of sequence 3 .* kv_unified=False"):
        context.seq_cp(3, 0, 0, 2)


@pytest.mark.parametrize(
    ("kind", "n_seq_max", "unified"),
    [("full", 4, False), ("hybrid", 4, False), ("recurrent", 4, True), ("full", 1, True)],
)
def test_buffers_are_separate_where_there_are_several(
    kind: Kind, n_seq_max: int, unified: bool
) -> None:
    model = Model(tiny_model(kind))
    context = small(model, n_ctx=1100, n_seq_max=n_seq_max, kv_unified=False)
    assert context.params.kv_unified is unified
    assert context.n_ctx_seq == (1100 + 180 if unified else 512)
    model.close()


def test_by_default_every_buffer_has_the_models_length(model: Model) -> None:
    context = small(model, n_ctx=0, n_seq_max=2, kv_unified=False)
    assert (context.n_ctx, context.n_ctx_seq) == (8192, 4096)


@pytest.mark.parametrize(
    ("sizes", "name"),
    [
        ({"n_ctx": 1, "n_seq_max": 8}, "n_ctx=1"),
        ({"n_ctx": 7, "n_seq_max": 8}, "n_ctx=7"),
        ({"n_batch": 3, "n_seq_max": 4}, "n_batch=3"),
    ],
)
def test_sizes_that_llama_cpp_dies_of_are_refused(
    model: Model, sizes: dict[str, int], name: str
) -> None:
    with pytest.raises(ParameterError, match=f"{name} is too small for n_seq_max"):
        small(model, **sizes)


def test_separate_buffers_that_llama_cpp_dies_of_are_refused(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "kimi-linear" in context_module._ONE_BUFFER
    monkeypatch.setattr(context_module, "_ONE_BUFFER", {model.architecture})
    with pytest.raises(ParameterError, match=r"kv_unified=False: .* cannot compute llama"):
        small(model, n_ctx=1024, kv_unified=False)
    small(model, n_ctx=1024, kv_unified=False, n_seq_max=1).close()
    small(model, n_ctx=1024).close()


def test_the_beginning_of_a_sequence_where_whole_ones_are_copied(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As llama.cpp's own copy of a part would end the process: a copy of all, which is cut."""
    monkeypatch.setattr(context_module, "_WHOLE_COPIES_ONLY", {model.architecture})
    context = small(model, type_k=0, type_v=0)
    evaluate(context, PROMPT, 0)
    context.seq_cp(0, 1, 0, 20)
    assert (context.pos_min(1), context.pos_max(1), context.pos_max(0)) == (0, 19, 39)
    row = evaluate(context, [7], 20, seq=1)
    context.clear()
    np.testing.assert_allclose(row, evaluate(context, [*PROMPT[:20], 7], 0), atol=1e-4)
    with pytest.raises(ParameterError, match=r"\[3, 9\) of sequence 0 .* of llama whole"):
        context.seq_cp(0, 1, 3, 9)


def test_a_beginning_that_cannot_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    with Model(tiny_model("hybrid")) as hybrid:
        monkeypatch.setattr(context_module, "_WHOLE_COPIES_ONLY", {hybrid.architecture})
        context = small(hybrid)
        evaluate(context, PROMPT, 0)
        with pytest.raises(StateError, match="cannot be cut to 20 positions"):
            context.seq_cp(0, 1, 0, 20)
        assert (context.pos_max(0), context.pos_max(1)) == (39, -1)
        context.close()


def test_the_smallest_sizes_work(model: Model) -> None:
    context = small(model, n_ctx=1, n_seq_max=1, n_batch=1, n_ubatch=1)
    assert np.isfinite(evaluate(context, [5], 0)).all()


def test_a_context_that_no_machine_can_hold_is_refused(model: Model) -> None:
    with pytest.raises(ContextCreationError, match=r"n_ctx=2147483647 .* GiB.*smaller n_ctx"):
        small(model, n_ctx=2**31 - 1)


def test_by_default_the_context_is_the_models(model: Model) -> None:
    assert small(model, n_ctx=0).n_ctx == 4096 == model.n_ctx_train


@pytest.mark.parametrize(
    ("memory", "trained", "expected"),
    [
        (1 << 40, 131072, 131072),  # enough for all of it
        (16 << 30, 131072, 65536),  # a quarter of the memory
        (2 << 30, 131072, 8192),
        (1 << 20, 131072, 4096),  # never less than this
        (1 << 20, 2048, 2048),  # unless the model itself has less
    ],
)
def test_by_default_the_context_takes_a_quarter_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, memory: int, trained: int, expected: int
) -> None:
    monkeypatch.setattr(context_module, "memory_bytes", lambda: memory)
    assert default_n_ctx(described(trained), ContextParams()) == expected


def described(trained: int = 131072, **loaded: Any) -> Any:
    """A model whose cache takes 64 KiB for each token."""
    heads = {"head_count": "32", "head_count_kv": "8", "key_length": "64"}
    return SimpleNamespace(
        n_ctx_train=trained,
        n_layer=32,
        n_embd=2048,
        architecture="llama",
        metadata={f"llama.attention.{key}": value for key, value in heads.items()},
        params=ModelParams(**loaded),
        devices=tuple(placement(ModelParams(**loaded)).devices),
    )


@pytest.mark.parametrize(
    ("free", "loaded", "context", "expected"),
    [
        ([4], {}, {}, 49152),  # three quarters of what is free, whatever the host has
        ([4, 2], {}, {}, 73728),
        ([4, 2], {"split_mode": 0, "main_gpu": 1}, {}, 24576),
        ([400], {"n_gpu_layers": 16}, {}, 131072),  # half of the layers, and a quarter of the host
        ([1], {"n_gpu_layers": 16}, {}, 24576),
        ([4], {"n_gpu_layers": 0}, {}, 65536),  # as without
        ([4], {}, {"offload_kqv": False}, 65536),
    ],
)
def test_by_default_the_context_fits_into_what_is_free_on_the_gpus(
    monkeypatch: pytest.MonkeyPatch,
    free: list[int],
    loaded: dict[str, Any],
    context: dict[str, Any],
    expected: int,
) -> None:
    devices: list[dict[str, Any]] = [{"name": "CPU", "kind": "cpu", "free_bytes": 1 << 40}]
    for place, size in enumerate(free):
        devices.append({"name": f"GPU{place}", "kind": "gpu", "free_bytes": size << 30})
    monkeypatch.setattr(context_module, "memory_bytes", lambda: 16 << 30)
    monkeypatch.setattr(backend, "local_devices", lambda: devices)
    assert default_n_ctx(described(**loaded), ContextParams(**context)) == expected


def test_a_tiny_model_is_computed_by_one_thread(model: Model) -> None:
    assert context_module.default_threads(3 << 20, cores=64) == 1
    assert context_module.default_threads(1 << 30, cores=64) == 64
    context = small(model, n_threads=None, n_threads_batch=None)
    assert (context.params.n_threads, context.params.n_threads_batch) == (1, 1)
    assert context.threads_may_change


def test_threads(model: Model) -> None:
    context = small(model, n_threads=2, n_threads_batch=1)
    assert (context.params.n_threads, context.params.n_threads_batch) == (2, 1)
    assert not context.threads_may_change, "somebody said how many"
    row = evaluate(context, PROMPT, 0)
    context.clear()
    context.set_threads(1, 1)
    np.testing.assert_array_equal(evaluate(context, PROMPT, 0), row)


@pytest.mark.parametrize("types", [{"type_k": 8}, {"type_k": 8, "type_v": 8, "flash_attn": True}])
def test_types_of_the_cache(model: Model, types: dict[str, Any]) -> None:
    plain, quantized = small(model), small(model, **types)
    exact = evaluate(plain, PROMPT, 0)
    row = evaluate(quantized, PROMPT, 0)
    assert 0 < float(((row - exact) ** 2).sum() / (exact**2).sum()) < 0.05
    assert quantized.state_size(0) < plain.state_size(0)


def test_what_llama_cpp_refuses_is_an_error_with_its_reason(model: Model) -> None:
    with pytest.raises(ContextCreationError, match="V cache requires flash_attn"):
        small(model, type_v=8, flash_attn=False)


# -- logits ----------------------------------------------------------------------------------------


def test_logits_are_a_view_of_one_row(model: Model) -> None:
    context = small(model)
    batch = Batch(8)
    batch.set([1, 2, 3], 0, 0, [False, True, True])
    assert context.decode(batch) == 0
    row = context.logits(2)
    assert row.shape == (519,)
    assert row.dtype == np.float32
    assert not row.flags.owndata
    assert np.shares_memory(row, context.logits(2))
    assert not np.shares_memory(row, context.logits(1))


@pytest.mark.parametrize("index", [0, 3, 100, -9])
def test_logits_that_nobody_asked_for(model: Model, index: int) -> None:
    context = small(model)
    batch = Batch(8)
    batch.set([1, 2, 3], 0, 0, [False, True, True])
    assert context.decode(batch) == 0
    with pytest.raises(ParameterError, match=f"index {index}"):
        context.logits(index)


def test_a_batch_that_does_not_fit_says_so_and_leaves_the_memory(model: Model) -> None:
    context = small(model)
    evaluate(context, PROMPT, 0)
    batch = Batch(256)
    batch.set([5] * 230, 40, 0, False)
    assert context.decode(batch) == 1
    assert context.pos_max(0) == 39
    batch.set([5], 99, 0, True)  # a gap
    assert context.decode(batch) < 0
    assert np.isfinite(evaluate(context, [6], 40)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_warm_up_leaves_nothing_behind(kind: str) -> None:
    """The next logits are those of a context that has evaluated nothing before."""
    with Model(tiny_model(kind)) as model:
        fresh, warm = small(model), small(model)
        warm.warm_up()
        assert warm.pos_max(0) == -1
        np.testing.assert_array_equal(evaluate(warm, PROMPT, 0), evaluate(fresh, PROMPT, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_do_not_see_each_other(kind: str) -> None:
    with Model(tiny_model(kind)) as model:
        context = small(model)
        alone = evaluate(context, PROMPT, 0)
        context.clear()
        assert (context.pos_min(0), context.pos_max(0)) == (-1, -1)
        evaluate(context, PROMPT[::-1], 0, seq=1)
        # Where cells lie decides in which order they are summed; one that is seen changes far more.
        np.testing.assert_allclose(evaluate(context, PROMPT, 0), alone, atol=1e-3)


# -- states ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_comes_back_in_another_sequence_and_context(kind: str) -> None:
    with Model(tiny_model(kind)) as model:
        context = small(model)
        evaluate(context, PROMPT, 0)
        state = context.state_get(0)
        assert state.nbytes == context.state_size(0)
        expected = evaluate(context, [7, 8, 9], len(PROMPT))
        context.state_set(1, state)
        assert context.pos_max(1) == len(PROMPT) - 1
        np.testing.assert_array_equal(evaluate(context, [7, 8, 9], len(PROMPT), 1), expected)
        other = small(model)
        other.state_set(0, state.tobytes())
        np.testing.assert_array_equal(evaluate(other, [7, 8, 9], len(PROMPT)), expected)


@pytest.mark.parametrize("kind", ["iswa", "recurrent", "hybrid", "hybrid_swa"])
def test_a_partial_state_takes_a_sequence_back(kind: str) -> None:
    with Model(tiny_model(kind)) as model:
        context = small(model)
        evaluate(context, PROMPT, 0)
        state = context.state_get(0, partial=True)
        expected = evaluate(context, [7, 8, 9], len(PROMPT))
        context.state_set(0, state, partial=True)
        assert context.seq_rm(0, len(PROMPT))
        np.testing.assert_array_equal(evaluate(context, [7, 8, 9], len(PROMPT)), expected)


@pytest.mark.parametrize("garbage", [b"", b"\0", b"not a state at all", b"\0" * 5000])
def test_garbage_is_not_a_state(model: Model, garbage: bytes) -> None:
    context = small(model)
    evaluate(context, PROMPT, 0)
    evaluate(context, PROMPT, 0, seq=1)
    with pytest.raises(StateError, match=f"{len(garbage)} bytes into sequence 1"):
        context.state_set(1, garbage)
    assert context.pos_max(0) == len(PROMPT) - 1
    assert context.pos_max(1) == -1


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_half_a_state_leaves_an_empty_sequence(kind: str, partial: bool) -> None:
    """Never a half-loaded one: its attention and its recurrent state would not fit together."""
    with Model(tiny_model(kind)) as model:
        context = small(model)
        evaluate(context, PROMPT, 0)
        evaluate(context, PROMPT[::-1], 0, seq=1)
        state = context.state_get(0, partial=partial)
        for damaged in (state[: len(state) // 2], np.append(state, np.zeros(8, np.uint8))):
            with pytest.raises(StateError):
                context.state_set(1, damaged, partial=partial)
            assert (context.pos_min(1), context.pos_max(1)) == (-1, -1)
        assert np.isfinite(evaluate(context, [7], len(PROMPT))).all()
        assert np.isfinite(evaluate(context, [7], 0, seq=1)).all()


@pytest.mark.parametrize("kind", ["iswa", "hybrid_swa"])
def test_a_partial_state_that_found_no_room_can_be_loaded_again(kind: str) -> None:
    """The rest of the sequence stays, which is what the part belongs to."""
    with Model(tiny_model(kind)) as model:
        context = small(model)
        evaluate(context, PROMPT, 0)
        state = context.state_get(0, partial=True)
        expected = evaluate(context, [7, 8, 9], len(PROMPT))
        with pytest.raises(StateError):
            context.state_set(0, state[: len(state) // 2], partial=True, keeps=True)
        context.state_set(0, state, partial=True, keeps=True)
        assert context.seq_rm(0, len(PROMPT))
        np.testing.assert_array_equal(evaluate(context, [7, 8, 9], len(PROMPT)), expected)


def test_a_state_of_another_kind_of_context_is_refused(model: Model) -> None:
    context = small(model)
    evaluate(context, PROMPT, 0)
    state = context.state_get(0)
    with pytest.raises(StateError, match="key type"):
        small(model, type_k=8).state_set(0, state)
    with Model(tiny_model("recurrent")) as other, pytest.raises(StateError):
        small(other).state_set(0, state)


FUZZ = """
import random
import sys
from collections import Counter
import numpy as np
from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.core.model import Model
from llama_py.errors import StateError
from llama_py.params import ContextParams, ModelParams

model = Model(sys.argv[1])
context = Context(model, ContextParams(n_ctx=256, n_seq_max=2, n_threads=1))
batch = Batch(64)
rng = random.Random(5)
seen = Counter()
for partial in (False, True):
    context.clear()
    batch.set(list(range(40)), 0, 0, True)
    assert context.decode(batch) == 0
    state = context.state_get(0, partial=partial)
    for number in range(60):
        changed = state.copy()
        if number % 3 == 0:
            changed = changed[: rng.randrange(len(changed))]
        for _ in range(rng.randint(1, 5) * (number % 3)):
            changed[rng.randrange(min(len(changed), 1200))] = rng.choice([0, 1, 127, 255])
        try:
            context.state_set(1, changed, partial=partial)
            seen["loaded"] += 1
        except StateError:
            seen["refused"] += 1
        context.seq_rm(1, -1, -1)
    batch.set([3], 40, 0, True)
    assert context.decode(batch) == 0 and np.isfinite(context.logits(0)).all()
print(seen["loaded"] + seen["refused"], seen["refused"] > 40)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_states_do_not_end_the_process(kind: str) -> None:
    command = [sys.executable, "-c", FUZZ, str(tiny_model(kind))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "120 True"), done.stderr


# -- life ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.decode(Batch(1)),
        lambda c: c.logits(0),
        lambda c: c.clear(),
        lambda c: c.seq_rm(0, 0),
        lambda c: c.seq_cp(0, 1),
        lambda c: c.pos_min(0),
        lambda c: c.pos_max(0),
        lambda c: c.state_size(0),
        lambda c: c.state_get(0),
        lambda c: c.state_set(0, b"x"),
        lambda c: c.set_threads(1, 1),
        lambda c: c.synchronize(),
    ],
)
def test_a_closed_context_says_so(model: Model, call: Any) -> None:
    context = small(model)
    context.close()
    context.close()
    assert context.closed
    with pytest.raises(ClosedError, match="this Context is closed"):
        call(context)


FORKED = """
import os, sys
from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.core.model import Model
from llama_py.errors import ForkedProcessError
from llama_py.params import ContextParams, ModelParams

with Model(sys.argv[1]) as model:
    context = Context(model, ContextParams(n_ctx=64, n_threads=2))
    batch = Batch(4)
    batch.set([1, 2, 3], 0, 0, True)
    assert context.decode(batch) == 0
    expected = context.logits(2).copy()
    child = os.fork()
    calls = [context.clear, lambda: context.decode(batch), lambda: context.logits(2)]
    calls += [lambda: context.state_get(0), lambda: model.n_params, lambda: context.pos_max(0)]
    if not child:
        for call in calls:
            try:
                call()
            except ForkedProcessError:
                continue
            raise AssertionError("a forked child used what its parent made")
    else:
        context.clear()
        assert context.decode(batch) == 0
        assert (context.logits(2) == expected).all()
    context.close()
assert model.closed and context.closed
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_is_refused_and_ends() -> None:
    command = [sys.executable, "-c", FORKED, str(tiny_model("full"))]
    subprocess.run(command, cwd=ROOT, check=True, timeout=PATIENCE)
