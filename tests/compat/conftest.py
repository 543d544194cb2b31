"""The bundled model, loaded once as programs for llama-cpp-python load it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from llama_py.demo import demo_model_path


@pytest.fixture(scope="package")
def llm() -> Iterator[Any]:
    from llama_py.compat.llama_cpp import Llama

    model = Llama(demo_model_path(), verbose=False, n_ctx=1024)
    yield model
    model.close()


@pytest.fixture(autouse=True)
def _as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "llm" in request.fixturenames:
        model = request.getfixturevalue("llm")
        model.chat_format, model.chat_handler, model._sampler = "chat_template.default", None, None
        model.set_cache(None)
        model.reset()
