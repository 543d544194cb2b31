"""What a model takes is known before it is loaded."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from llama_py import demo_model_path
from llama_py._native import chat_h
from llama_py.core.context import Context
from llama_py.core.device_memory import Measured, measured, memory_by_device
from llama_py.core.model import Model
from llama_py.errors import InvalidModelError
from llama_py.params import ContextParams, ModelParams
from tests.models import tiny_model

F16, Q8_0 = 1, 8
MODELS = ("demo", "full", "iswa", "recurrent", "hybrid")
SIZES = ((512, 1, F16), (4096, 4, F16), (4096, 1, Q8_0), (16384, 8, F16))


def path_of(name: str) -> Path:
    return Path(demo_model_path()) if name == "demo" else tiny_model(name)


@pytest.mark.parametrize(("name", "size"), [*itertools.product(MODELS, SIZES)])
def test_it_is_predicted_within_three_percent(name: str, size: tuple[int, int, int]) -> None:
    n_ctx, n_seq_max, kind = size
    params = ContextParams(n_ctx=n_ctx, n_seq_max=n_seq_max, type_k=kind)
    predicted = measured(path_of(name), ModelParams(), params)
    with Model(path_of(name)) as model, Context(model, params) as context:
        found = memory_by_device(context)
        assert predicted.n_ctx == context.n_ctx
    assert [each.device for each in found] == [each.device for each in predicted.devices]
    for one, other in zip(predicted.devices, found, strict=True):
        for what in ("weights", "cells", "buffers"):
            assert getattr(one, what) == pytest.approx(getattr(other, what), rel=0.03), what


def test_what_is_counted() -> None:
    """Twice the cells take twice the bytes; the weights are those of the file."""
    small, large = (measure(n_ctx=n) for n in (1024, 2048))
    (one,), (two,) = small.devices, large.devices
    assert one.device == "CPU"
    assert two.cells == 2 * one.cells > 0
    assert one.weights == pytest.approx(path_of("full").stat().st_size, rel=0.1)
    assert one.total == one.weights + one.cells + one.buffers


def measure(**options: Any) -> Measured:
    return measured(path_of("full"), ModelParams(), ContextParams(**options))


def test_nothing_is_allocated_for_a_context_that_does_not_fit() -> None:
    """A hundred times what this machine has is measured as well."""
    huge = measured(path_of("full"), ModelParams(), ContextParams(n_ctx=1 << 22, type_k=F16))
    assert huge.devices[0].cells > 1 << 31


def test_weights_of_a_mapped_file_count_once() -> None:
    """Those that are copied into another order are not counted in the file as well."""
    for use_mmap in (False, True):
        params = ModelParams(use_mmap=use_mmap)
        with Model(demo_model_path(), params) as model, Context(model) as context:
            (found,) = memory_by_device(context)
            assert found.weights == pytest.approx(model.size_bytes, rel=0.15)


def test_a_library_without_it_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(chat_h, "llama_py_memory_rows", raising=False)
    monkeypatch.setattr(
        "llama_py.core.device_memory.chat_h", type("Old", (), {"llama_py_memory_row": Row})
    )
    with Model(path_of("full")) as model, Context(model) as context:
        assert memory_by_device(context) == ()


Row = chat_h.llama_py_memory_row


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(InvalidModelError):
        measured(tmp_path / "no.gguf", ModelParams(), ContextParams())
