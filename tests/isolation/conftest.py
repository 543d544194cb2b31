"""One model in a process of its own, and the same one in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llama_py import Llama, demo_model_path
from tests.isolation.killing import OPTIONS


@pytest.fixture(scope="module")
def isolated() -> Iterator[Llama]:
    """The bundled model in a process of its own."""
    with Llama(demo_model_path(), isolate=True, **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def here() -> Iterator[Llama]:
    """The bundled model in this process."""
    with Llama(demo_model_path(), **OPTIONS) as llm:
        yield llm
