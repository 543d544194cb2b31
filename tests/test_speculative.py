"""``speculative=``: replies with drafts are those without, whatever the call asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from llama_py import ChatSession, Llama, PromptLookup, Speculative
from llama_py.errors import ParameterError
from tests.models import tiny_model

#: How many rows a step has makes hardly a difference.
EXACT: dict[str, Any] = {"type_k": 0, "type_v": 0, "flash_attn": False, "n_threads": 1}
MESSAGES = [
    {"role": "system", "content": "You repeat what you are told, again and again and again."},
    {"role": "user", "content": "alpha beta gamma alpha beta gamma alpha beta gamma alpha beta"},
]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "numbers": {"type": "array", "items": {"type": "integer"}, "maxItems": 4},
    },
    "required": ["name", "numbers"],
}
GRAMMAR = 'root ::= ("yes" | "no" | "alpha") (", " ("yes" | "no" | "alpha"))*'


@pytest.fixture(
    scope="module",
    params=[("full", {}), ("iswa", {}), ("iswa", {"swa_full": True}), ("hybrid", {})],
    ids=["full", "iswa", "iswa_full", "hybrid"],
)
def llm(request: pytest.FixtureRequest) -> Iterator[Llama]:
    kind, options = request.param
    loaded = Llama(str(tiny_model(kind)), n_ctx=1024, **EXACT, **options)
    yield loaded
    loaded.close()


def knowing(reply: Sequence[int], n_prompt: int, *, wrong_at: int) -> Callable[..., Sequence[int]]:
    """A drafter that knows a reply, with a mistake in every so many tokens."""

    def draft(tokens: Any) -> Sequence[int]:
        done = len(tokens) - n_prompt
        known = [*reply[done : done + 6]]
        return [
            (token + 1) % 250 if (done + index) % wrong_at == wrong_at - 1 else token
            for index, token in enumerate(known)
        ]

    return draft


CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "ignore_eos": True},
    "seeded": {"temperature": 1.2, "seed": 5, "top_k": 0, "ignore_eos": True},
    "top-k": {"temperature": 0.9, "seed": 6, "top_k": 20, "top_p": 0.9, "ignore_eos": True},
    "penalties": {
        "temperature": 0.0,
        "repeat_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.2,
        "ignore_eos": True,
    },
    "dry": {"temperature": 0.7, "seed": 7, "dry_multiplier": 0.8, "ignore_eos": True},
    "mirostat": {"mirostat_mode": 2, "seed": 8, "ignore_eos": True},
    "bias": {"temperature": 0.0, "logit_bias": {"30": 8.0, "31": -50.0}, "ignore_eos": True},
    "min_tokens": {"temperature": 0.0, "min_tokens": 20},
    "logprobs": {"temperature": 0.0, "logprobs": True, "top_logprobs": 3, "ignore_eos": True},
    "grammar": {"temperature": 0.8, "seed": 9, "grammar": GRAMMAR},
    "schema": {
        "temperature": 0.0,
        "response_format": {"type": "json_object", "schema": SCHEMA},
    },
}


def reply(llm: Llama, **options: Any) -> Any:
    llm.reset()
    return llm.create_chat_completion(MESSAGES, **{"max_tokens": 48, **options})


@pytest.mark.parametrize("case", CASES)
def test_a_reply_with_drafts_is_the_reply(llm: Llama, case: str) -> None:
    options = CASES[case]
    plain = reply(llm, **options)
    record = llm.runtime.last.record
    known = [*record.generated]
    for wrong_at in (2, 3, 7, 1000):
        drafter = knowing(known, record.n_prompt, wrong_at=wrong_at)
        found = reply(llm, speculative=Speculative((drafter,), adaptive=False), **options)
        assert llm.runtime.last.record.generated == known
        _assert_same(found, plain)


def _assert_same(found: Any, plain: Any) -> None:
    one, other = found["choices"][0], plain["choices"][0]
    assert one["message"] == other["message"]
    assert one["finish_reason"] == other["finish_reason"]
    assert found["usage"] == plain["usage"]
    for a, b in zip(_logprobs(one), _logprobs(other), strict=True):
        assert a["token"] == b["token"]
        assert a["logprob"] == pytest.approx(b["logprob"], abs=1e-4)
        found_top = {each["token"]: each["logprob"] for each in a["top_logprobs"]}
        assert found_top == pytest.approx(
            {each["token"]: each["logprob"] for each in b["top_logprobs"]}, abs=1e-4
        )


def _logprobs(choice: Any) -> list[Any]:
    logprobs = choice.get("logprobs")
    return logprobs["content"] if logprobs else []


def test_stop_strings_anywhere_in_a_draft(llm: Llama) -> None:
    plain = reply(llm, temperature=0.0, ignore_eos=True)
    record, text = llm.runtime.last.record, plain["choices"][0]["message"]["content"]
    known = [*record.generated]
    for start in range(0, min(len(text) - 2, 30), 3):
        stop = text[start : start + 2]
        expected = reply(llm, temperature=0.0, ignore_eos=True, stop=[stop])
        drafter = knowing(known, record.n_prompt, wrong_at=9)
        found = reply(
            llm,
            temperature=0.0,
            ignore_eos=True,
            stop=[stop],
            speculative=Speculative((drafter,), adaptive=False),
        )
        _assert_same(found, expected)


def test_a_stream_has_the_same_chunks(llm: Llama) -> None:
    plain = reply(llm, temperature=0.0, ignore_eos=True)
    record = llm.runtime.last.record
    drafter = knowing([*record.generated], record.n_prompt, wrong_at=5)
    options: Any = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 48, "stream": True}
    llm.reset()
    speculative = Speculative((drafter,), adaptive=False)
    chunks = [*llm.create_chat_completion(MESSAGES, speculative=speculative, **options)]
    text = "".join(each["choices"][0]["delta"].get("content") or "" for each in chunks)
    assert text == plain["choices"][0]["message"]["content"]


def test_turns_after_drafts_reuse_what_those_without_do(llm: Llama) -> None:
    def talk(**options: Any) -> tuple[list[str], list[int]]:
        llm.reset()
        session = ChatSession(llm)
        texts, reused = [], []
        for question in ("alpha beta", "gamma", "alpha beta gamma", "gamma"):
            texts.append(
                session.send(question, max_tokens=20, temperature=0.0, ignore_eos=True, **options)
            )
            reused.append(llm.runtime.last.record.reused)
        return texts, reused

    lookup = Speculative((PromptLookup(1, 6),), adaptive=False)
    texts, reused = talk(speculative=lookup)
    plain_texts, plain_reused = talk()
    assert texts == plain_texts
    if not llm.runtime.loaded.cache.traits.recurrent:
        assert reused == plain_reused
    # A recurrent state goes back to before the last draft, and the reply stays whole all the same.
    assert all(a >= b - 7 for a, b in zip(reused, plain_reused, strict=True)), reused


# -- how it is said -------------------------------------------------------------------------------


def test_for_every_call_of_a_model() -> None:
    def same_again(tokens: Any) -> Sequence[int]:
        return [int(tokens[-1])] * 2

    with Llama(str(tiny_model("full")), n_ctx=512, speculative=same_again, **EXACT) as llm:
        options: Any = {"max_tokens": 60, "temperature": 0.0, "ignore_eos": True}
        first = llm.create_completion("alpha alpha alpha", **options)
        assert llm.metrics["drafted"] > 0
        drafted = llm.metrics["drafted"]
        llm.reset()
        second = llm.create_completion("alpha alpha alpha", speculative=False, **options)
        assert llm.metrics["drafted"] in (0, drafted)
        assert first["choices"] == second["choices"]


def test_drafters_of_llama_cpp_python() -> None:
    class Repeats:
        """As ``llama_cpp.llama_speculative.LlamaDraftModel`` declares it."""

        def __call__(self, input_ids: Any, /, **_kwargs: Any) -> Any:
            return np.asarray([input_ids[-1]] * 3, np.intc)

    with Llama(str(tiny_model("full")), n_ctx=512, draft_model=Repeats()) as llm:
        llm.create_completion("alpha", max_tokens=10, temperature=0.0, ignore_eos=True)
        assert llm.metrics["drafted"] > 0
        assert llm.metrics["draft_errors"] == 0


@pytest.mark.parametrize("wrong", [5, "medusa", [3], {}])
def test_what_is_no_drafter(llm: Llama, wrong: Any) -> None:
    with pytest.raises(ParameterError, match="speculative"):
        llm.create_completion("alpha", speculative=wrong)
    assert llm.create_completion("alpha", max_tokens=1)["choices"]


def test_timings_count_drafts(llm: Llama) -> None:
    plain = reply(llm, temperature=0.0, ignore_eos=True)
    assert "draft_n" not in plain["timings"]
    record = llm.runtime.last.record
    drafter = knowing([*record.generated], record.n_prompt, wrong_at=1000)
    found = reply(
        llm,
        temperature=0.0,
        ignore_eos=True,
        speculative=Speculative((drafter,), adaptive=False),
    )
    counted = llm.runtime.last.record
    if not counted.drafted:
        assert llm.metrics["drafts_refused"]
        return
    assert found["timings"]["draft_n"] == counted.drafted
    assert found["timings"]["draft_n_accepted"] == counted.accepted > 0


def test_one_of_two_names() -> None:
    with pytest.raises(ParameterError, match="draft_model is another name of speculative"):
        Llama(str(tiny_model("full")), speculative="lookup", draft_model=PromptLookup())
