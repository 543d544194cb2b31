"""Stores that several modules test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llama_py.states.disk import LlamaDiskCache
from llama_py.states.ram import LlamaRAMCache
from llama_py.states.store import StateStore


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LlamaDiskCache]:
    with LlamaDiskCache(str(tmp_path / "store"), 1 << 20) as store:
        yield store


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, StateStore]]:
    """One store of each kind for many examples."""
    folder = str(tmp_path_factory.mktemp("shared"))
    with LlamaDiskCache(folder) as disk, LlamaRAMCache() as ram:
        yield {"ram": ram, "disk": disk}
