"""The two calls on a model that really computes (tiny, random weights)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest
from scipy.special import log_softmax

from llama_py import Llama, LlamaGrammar
from llama_py.dialects.openai.fold import fold_chat, fold_completion
from tests.models import tiny_model

PROMPT = "The quick brown fox naïve 你 jumps"
HELLO = [{"role": "user", "content": "Tell me about the fox."}]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
    "required": ["ok", "kind"],
    "additionalProperties": False,
}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(tiny_model("full"), n_ctx=1024, n_threads=1, flash_attn=False) as opened:
        yield opened


def complete(llm: Llama, prompt: Any = PROMPT, **options: Any) -> Any:
    return llm.create_completion(prompt, **{"temperature": 0, "max_tokens": 12, **options})


def chat(llm: Llama, **options: Any) -> Any:
    return llm.create_chat_completion(HELLO, **{"temperature": 0, "max_tokens": 12, **options})


def comparable(response: Any) -> Any:
    usage = {**response["usage"], "prompt_tokens_details": None}
    dropped = ("id", "created", "timings")
    return {**{k: v for k, v in response.items() if k not in dropped}, "usage": usage}


# ---- streaming and not -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"echo": True, "logprobs": 2},
        {"stop": ["e", "o"]},
        {"n": 3, "temperature": 1.0, "seed": 5},
        {"max_tokens": 1},
        {"logit_bias": {"65": 5}},
    ],
)
def test_completions_stream_as_they_are(llm: Llama, options: dict[str, Any]) -> None:
    llm.reset()  # so that both evaluate the same batches, and the numbers are equal to the last bit
    plain = complete(llm, **options)
    llm.reset()
    chunks = list(complete(llm, **options, **STREAM))
    assert comparable(fold_completion(chunks)) == comparable(plain)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"logprobs": True, "top_logprobs": 3},
        {"stop": "e"},
        {"n": 2, "temperature": 1, "seed": 3},
    ],
)
def test_chats_stream_as_they_are(llm: Llama, options: dict[str, Any]) -> None:
    llm.reset()
    plain = chat(llm, **options)
    llm.reset()
    chunks = list(chat(llm, **options, **STREAM))
    assert comparable(fold_chat(chunks)) == comparable(plain)
    assert plain["usage"]["completion_tokens"] <= 12 * len(plain["choices"])


def test_seeds_repeat_and_choices_differ(llm: Llama) -> None:
    def texts(**options: Any) -> list[str]:
        response = complete(llm, temperature=1.5, n=4, **options)
        return [choice["text"] for choice in response["choices"]]

    first = texts(seed=1)
    assert first == texts(seed=1)
    assert len(set(first)) > 1


# ---- log-probabilities -----------------------------------------------------------------------


def expected_logprobs(llm: Llama, tokens: list[int]) -> np.ndarray[Any, Any]:
    """float64 log-probabilities of what follows these tokens."""
    llm.reset()
    llm.eval(tokens)
    logits = llm.last_logits
    assert logits is not None
    expected: np.ndarray[Any, Any] = log_softmax(logits.astype(np.float64))
    return expected


@pytest.mark.parametrize("n_tokens", [1, 4])
def test_logprobs_equal_a_float64_reference(llm: Llama, n_tokens: int) -> None:
    logprobs = complete(llm, logprobs=5, max_tokens=n_tokens)["choices"][0]["logprobs"]
    logits = llm.last_logits
    assert logits is not None
    expected = np.sort(log_softmax(logits.astype(np.float64)))[::-1]
    assert logprobs["token_logprobs"][-1] == pytest.approx(expected[0], abs=1e-5)
    top = sorted(logprobs["top_logprobs"][-1].values(), reverse=True)
    assert top == pytest.approx(expected[:5], abs=1e-5)


@pytest.mark.parametrize("bos", [False, True])
def test_echoed_logprobs_equal_a_float64_reference(bos: bool) -> None:
    overrides = {"tokenizer.ggml.add_bos_token": bos}
    settings: Any = {"n_ctx": 256, "n_threads": 1, "flash_attn": False}
    with Llama(tiny_model("full"), **settings, kv_overrides=overrides) as llm:
        options = {"echo": True, "logprobs": 0, "max_tokens": 0}
        logprobs = complete(llm, **options)["choices"][0]["logprobs"]
        tokens = llm.tokenize(PROMPT.encode())
        assert (tokens[0] == llm.token_bos()) == bos
        skip = int(bos)
        assert len(logprobs["tokens"]) == len(tokens) - skip
        assert logprobs["token_logprobs"][0] is None
        for position in range(1 + skip, len(tokens)):
            expected = expected_logprobs(llm, tokens[:position])[tokens[position]]
            assert logprobs["token_logprobs"][position - skip] == pytest.approx(expected, abs=1e-3)


def test_biases_and_penalties_are_not_reported(llm: Llama) -> None:
    plain = complete(llm, logprobs=3, max_tokens=1)["choices"][0]["logprobs"]
    likeliest = plain["tokens"][0]
    token = llm.tokenize(likeliest.encode(), add_bos=False)[0]
    for options in (
        {"logit_bias": {token: -5.0}},
        {"repeat_penalty": 1.3, "frequency_penalty": 1.0},
        {"grammar": 'root ::= "@@" [a-z]+'},
        {"logit_bias": {token: 50.0}, "grammar": "root ::= [ -~]+"},
    ):
        changed = complete(llm, logprobs=3, max_tokens=1, **options)["choices"][0]["logprobs"]
        top, reported = plain["top_logprobs"][0], changed["top_logprobs"][0]
        for text in top:
            if text in reported:
                assert reported[text] == pytest.approx(top[text], abs=1e-6)
        assert likeliest in reported


def test_a_forbidden_token_has_a_finite_number(llm: Llama) -> None:
    (likeliest,) = complete(llm, logprobs=0, max_tokens=1)["choices"][0]["logprobs"]["tokens"]
    token = llm.tokenize(likeliest.encode(), add_bos=False)[0]
    response = complete(llm, logprobs=2, max_tokens=2, logit_bias={token: False})
    logprobs = response["choices"][0]["logprobs"]
    assert logprobs["tokens"][0] != likeliest
    assert np.isfinite(logprobs["top_logprobs"][0][likeliest])
    json.dumps(response, allow_nan=False)


# ---- limits, biases, grammars ----------------------------------------------------------------


def test_a_bias_of_minus_100_bans_and_100_forces(llm: Llama) -> None:
    token = llm.tokenize(b"Z", add_bos=False)[0]
    assert complete(llm, logit_bias={token: 100}, max_tokens=3)["choices"][0]["text"] == "ZZZ"
    first = complete(llm, max_tokens=1, logprobs=0)["choices"][0]["logprobs"]["tokens"][0]
    banned = llm.tokenize(first.encode(), add_bos=False)[0]
    text = complete(llm, logit_bias={banned: -100}, max_tokens=1)["choices"][0]["text"]
    assert text != first


def test_max_tokens(llm: Llama) -> None:
    response = complete(llm, max_tokens=3)
    assert response["usage"]["completion_tokens"] == 3
    assert response["choices"][0]["finish_reason"] == "length"


def test_grammars_constrain(llm: Llama) -> None:
    grammar = LlamaGrammar.from_string('root ::= "yes" | "no"')
    response = complete(llm, grammar=grammar, max_tokens=20)
    assert response["choices"][0]["text"] in ("yes", "no")
    assert response["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("seed", range(5))
def test_replies_follow_a_json_schema(llm: Llama, seed: int) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    response = chat(llm, response_format=wanted, temperature=1, seed=seed, max_tokens=200)
    jsonschema.validate(json.loads(response["choices"][0]["message"]["content"]), SCHEMA)


def test_logits_processors_and_stopping_criteria_are_called(llm: Llama) -> None:
    seen: list[int] = []

    def process(tokens: Any, row: Any) -> Any:
        seen.append(len(tokens))
        row[:] = -1e9
        row[llm.tokenize(b"Q", add_bos=False)[0]] = 0
        return row

    def stop(tokens: Any, _row: Any) -> bool:
        return len(tokens) >= seen[0] + 3

    response = complete(llm, logits_processor=[process], stopping_criteria=stop)
    assert response["choices"][0]["text"] == "QQQ"
    assert response["choices"][0]["finish_reason"] == "stop"
    assert seen == [seen[0], seen[0] + 1, seen[0] + 2]


def test_wrong_arguments_evaluate_nothing(llm: Llama) -> None:
    before = llm.cache_info
    with pytest.raises(ValueError, match="top_p=2 is out of range"):
        complete(llm, top_p=2)
    assert llm.cache_info == before
