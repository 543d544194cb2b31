"""A constraint leaves a reply alone that fits it: the same tokens, not only the same meaning."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from llama_py import Llama, LlamaGrammar, demo_model_path
from llama_py.chat.schema import gbnf_of_schema
from tests.chat.spoken import Case, make_case
from tests.steering import Steer, split_tokens, vocabulary_model

BACKENDS = ("llguidance", "gbnf")
ASK = [{"role": "user", "content": "Go on."}]


@pytest.fixture(scope="module", params=["qwen2", "llama-spm", "phi-3"])
def llm(request: pytest.FixtureRequest) -> Iterator[Llama]:
    with Llama(str(vocabulary_model(request.param)), n_ctx=4096, n_threads=1) as llm:
        yield llm


def replied(llm: Llama, tokens: list[int], stream: bool, **options: Any) -> tuple[str, list[int]]:
    """The text and the tokens of a greedy reply of a model that wants these tokens."""
    answer: Any = llm.create_chat_completion(
        ASK,
        temperature=0,
        max_tokens=len(tokens) + 40,
        logits_processor=[Steer(tokens)],
        stream=stream,
        **options,
    )
    if stream:
        deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in answer]
        text = "".join(deltas)
    else:
        text = answer["choices"][0]["message"]["content"]
    return text, list(llm._last.request.generated)


def wanted(llm: Llama, case: Case, seed: int) -> list[int]:
    return [*split_tokens(llm.vocab, case.text, random.Random(seed)), llm.token_eos()]


def check(llm: Llama, case: Case, seed: int, backend: str, stream: bool, patch: Any) -> None:
    if backend == "gbnf" and not case.gbnf:
        return
    patch.setattr("llama_py.chat.grammar.available", lambda: backend == "llguidance")
    tokens = wanted(llm, case, seed)
    form = {"type": "json_object", "schema": case.schema}
    free = replied(llm, tokens, stream)
    constrained = replied(llm, tokens, stream, response_format=form)
    assert constrained == free, (case, backend, llm.model_path)
    assert free[0] == case.text


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_that_fits_its_schema_is_left_alone(
    llm: Llama, backend: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(6):
        check(llm, make_case(seed), seed, backend, stream, monkeypatch)
