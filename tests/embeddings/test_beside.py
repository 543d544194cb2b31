"""Embedding and generating at the same time: everybody gets what they get alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from llama_py import Embedder, Llama
from tests.embeddings.test_reference import texts
from tests.models import tiny_model

#: With F32 cells, what is computed beside a text changes its logits by no more than 1e-6.
EXACT: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "flash_attn": False}
PROMPTS = ["the cat", "a dog runs", "the old king", "Once upon a time"]


def written(llm: Llama, prompt: str) -> str:
    completion: Any = llm.create_completion(
        prompt, max_tokens=40, temperature=0, ignore_eos=True, seed=1
    )
    return str(completion["choices"][0]["text"])


def test_texts_and_vectors_are_those_of_each_alone() -> None:
    with Llama(tiny_model("full"), n_ctx=2048, n_seq_max=4, **EXACT) as llm:
        embedder = Embedder(llama=llm)
        groups = [texts(30, seed) for seed in range(4)]
        alone = [embedder.embed(group) for group in groups]
        wanted = [written(llm, prompt) for prompt in PROMPTS]
        llm.reset()
        start = threading.Barrier(8)

        def write(prompt: str) -> str:
            start.wait()
            return written(llm, prompt)

        def embed(group: list[str]) -> np.ndarray:
            start.wait()
            for _ in range(2):
                embedder.embed(group)
            return embedder.embed(group)

        with ThreadPoolExecutor(8) as pool:
            replies = [pool.submit(write, prompt) for prompt in PROMPTS]
            vectors = [pool.submit(embed, group) for group in groups]
            assert [reply.result(60) for reply in replies] == wanted
            for found, each in zip(vectors, alone, strict=True):
                np.testing.assert_allclose(found.result(60), each, rtol=0, atol=1e-5)
