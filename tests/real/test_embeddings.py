"""all-MiniLM-L6-v2, converted here: its vectors are those of the original's weights in numpy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_py import Llama
from tests.real.conftest import real_path
from tests.real.minilm import Reference, convert

TEXTS = [
    "A dog runs through the park.",
    "A puppy is playing outside.",
    "The stock market fell by three percent on Tuesday.",
    "Wie spät ist es? Naïve café, 東京!",
    "def add(a, b):\n    return a + b",
    "x",
    " ".join(f"This is sentence number {number} of a longer text." for number in range(20)),
]


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(real_path("minilm"))


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    path: Path = tmp_path_factory.mktemp("minilm") / "all-minilm-l6-v2.gguf"
    convert(real_path("minilm"), path)
    with Llama(str(path), embedding=True, n_ctx=512, n_threads=1) as llm:
        yield llm


def test_tokens_are_those_of_the_original(minilm: Llama, reference: Reference) -> None:
    for text in TEXTS:
        assert minilm.tokenize(text.encode(), add_bos=True, special=False) == reference.tokens(text)


def test_vectors_are_those_of_the_original(minilm: Llama, reference: Reference) -> None:
    vectors: Any = np.array(minilm.embed(TEXTS, normalize=True))
    expected = np.array([reference.vector(text) for text in TEXTS])
    cosines = (vectors * expected).sum(axis=1)
    print("cosines:", " ".join(f"{each:.6f}" for each in cosines))
    assert cosines.min() > 0.9999
    alike, unlike = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    print(f"dog and puppy {alike:.3f}, dog and market {unlike:.3f}")
    assert alike > unlike + 0.3
