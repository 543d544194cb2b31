"""A real vocabulary and a chat template for the tests of the wire formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from llama_py.chat.templates.template import ChatTemplate
from llama_py.core.model import Model
from llama_py.core.vocab import Vocab
from llama_py.params import ModelParams
from tests.dialects.playing import TEMPLATE, Context, OpenVocab
from tests.models import tiny_model


@pytest.fixture(scope="session")
def open_vocab() -> Iterator[OpenVocab]:
    """The tiny model's vocabulary, with changed metadata."""
    models: list[Model] = []

    def opened(**overrides: Any) -> Vocab:
        changes: Mapping[str, Any] = {
            f"tokenizer.ggml.{name}": value for name, value in overrides.items()
        }
        params = ModelParams(vocab_only=True, kv_overrides=changes or None)
        models.append(Model(tiny_model("full"), params))
        return models[-1].vocab

    yield opened
    for model in models:
        model.close()


@pytest.fixture(scope="session")
def vocab(open_vocab: OpenVocab) -> Vocab:
    return open_vocab()


@pytest.fixture(scope="session")
def template() -> ChatTemplate:
    return ChatTemplate.from_text(TEMPLATE, eos="<|im_end|>")


@pytest.fixture
def context(vocab: Vocab, template: ChatTemplate) -> Context:
    return Context(vocab, template)
