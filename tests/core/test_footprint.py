"""What a model will take of the memory, judged from its file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from llama_py.core import backend
from llama_py.core.host import footprint as footprint_module
from llama_py.core.host.footprint import expected_bytes, room_for_model
from llama_py.errors import ModelNotFoundError
from llama_py.params import ContextParams, ModelParams
from tests.models import tiny_model

#: Bytes of a cell of the tiny models: keys and values of two heads of 32 in each of four layers.
CELL = 4 * 2 * 32 * 2 * 2


@pytest.mark.parametrize(
    ("context", "cells"),
    [
        ({"n_ctx": 1000}, 1000.0),
        ({}, 4096.0),  # the model's own length
        ({"n_ctx": 1000, "type_k": 0, "type_v": 0}, 2000.0),
        ({"n_ctx": 1000, "type_k": 8, "type_v": 8}, 531.25),
        ({"n_ctx": 1000, "type_k": 8}, 765.625),
    ],
)
def test_the_file_and_its_cache(context: Mapping[str, Any], cells: float) -> None:
    path = tiny_model("full")
    expected = path.stat().st_size + int(cells * CELL)
    assert expected_bytes(path, ModelParams(), ContextParams(**context)) == expected


def test_a_recurrent_model_and_a_vocabulary_have_no_cells() -> None:
    recurrent, full = tiny_model("recurrent"), tiny_model("full")
    assert expected_bytes(recurrent, ModelParams(), ContextParams()) == recurrent.stat().st_size
    tokenizer = expected_bytes(full, ModelParams(vocab_only=True), ContextParams())
    assert tokenizer == full.stat().st_size


def test_a_hybrid_model_counts_its_layers() -> None:
    path = tiny_model("hybrid")
    least = path.stat().st_size + 1000 * CELL // 2  # half of them attend
    assert least <= expected_bytes(path, ModelParams(), ContextParams(n_ctx=1000)) < 4 * least


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no\.gguf"):
        expected_bytes(tmp_path / "no.gguf", ModelParams(), ContextParams())


@pytest.mark.parametrize(("layers", "expected"), [(-1, 11 << 30), (0, 5 << 30), (7, 5 << 30)])
def test_the_room_is_where_the_layers_go(
    monkeypatch: pytest.MonkeyPatch, layers: int, expected: int
) -> None:
    sizes = {"CPU": 5 << 30, "GPU0": 8 << 30, "GPU1": 3 << 30}
    devices = [
        {"name": name, "kind": "cpu" if name == "CPU" else "gpu", "free_bytes": size}
        for name, size in sizes.items()
    ]
    monkeypatch.setattr(backend, "local_devices", lambda: devices)
    monkeypatch.setattr(footprint_module, "available_bytes", lambda: 5 << 30)
    assert room_for_model(ModelParams(n_gpu_layers=layers)) == expected
