"""A model in a process of its own answers as one in this process does."""

from __future__ import annotations

import asyncio
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_py import (
    AsyncLlama,
    ChatSession,
    Embedder,
    Image,
    Llama,
    LlamaGrammar,
    LlamaRAMCache,
    demo_model_path,
)
from llama_py.errors import (
    ContextOverflowError,
    GenerationTimeout,
    IsolationError,
    LlamaError,
    ParameterError,
)
from tests.chat import families
from tests.isolation.killing import OPTIONS, STORY, status_of, until
from tests.media.projectors import tiny_projector
from tests.media.text_models import media_model
from tests.models import tiny_model

HELLO = [{"role": "user", "content": "Hello!"}]
SUM = [{"role": "user", "content": "What is 2 + 3?"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 12}},
                "required": ["city"],
            },
        },
    }
]


def said(reply: Any) -> Any:
    """What a reply says, without what differs from call to call."""
    return [
        {**choice, "message": {**choice["message"], "tool_calls": calls_of(choice["message"])}}
        for choice in reply["choices"]
    ], {name: reply["usage"][name] for name in ("prompt_tokens", "completion_tokens")}


def calls_of(message: Any) -> Any:
    return [each["function"] for each in message.get("tool_calls") or ()]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"temperature": 0}, id="greedy"),
        pytest.param({"temperature": 1.0, "seed": 7, "top_p": 0.9}, id="sampled"),
        pytest.param({"temperature": 0, "logprobs": True, "top_logprobs": 3}, id="logprobs"),
        pytest.param({"temperature": 1.0, "seed": 3, "n": 3}, id="choices"),
        pytest.param({"temperature": 0, "stop": ["you"]}, id="stop"),
        pytest.param({"temperature": 0, "logit_bias": {20: 5.0}}, id="bias"),
        pytest.param(
            {"temperature": 0, "response_format": {"type": "json_object", "schema": PERSON}},
            id="schema",
        ),
        pytest.param(
            {"temperature": 0, "tools": TOOLS, "tool_choice": "required", "max_tokens": 60},
            id="tools",
        ),
        pytest.param(
            {"temperature": 0, "grammar": LlamaGrammar.from_string('root ::= "yes" | "no"')},
            id="grammar",
        ),
        pytest.param({"temperature": 0, "speculative": "lookup"}, id="drafts"),
    ],
)
def test_replies_are_those_of_a_model_in_this_process(
    isolated: Llama, here: Llama, options: dict[str, Any]
) -> None:
    for messages in (HELLO, SUM):
        given: Any = {"max_tokens": 40, "reuse": False, **options}
        expected = here.create_chat_completion(messages, **given)
        assert said(isolated.create_chat_completion(messages, **given)) == said(expected)


def test_streams_have_the_same_chunks(isolated: Llama, here: Llama) -> None:
    def chunks(llm: Llama) -> list[Any]:
        stream = llm.create_chat_completion(
            SUM, temperature=0, max_tokens=30, stream=True, logprobs=True, reuse=False
        )
        return [(each["choices"][0]["delta"], each["choices"][0]["logprobs"]) for each in stream]

    assert chunks(isolated) == chunks(here)
    assert len(chunks(isolated)) > 4


def test_what_was_said_before_is_reused(isolated: Llama) -> None:
    story = [{"role": "user", "content": "Tell me of the sea. " * 20}]
    first = isolated.create_chat_completion(story, temperature=0, max_tokens=10)
    again = [*story, first["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    second = isolated.create_chat_completion(again, temperature=0, max_tokens=10)
    usage = first["usage"]
    assert second.cache["reused"] >= usage["prompt_tokens"] + usage["completion_tokens"] - 2
    assert isolated.cache.info == second.cache
    assert isolated.cache.report()["cells_used"] > usage["prompt_tokens"]


def test_many_threads_at_once(isolated: Llama, here: Llama) -> None:
    prompts = [f"The number {index} is" for index in range(12)]
    given: Any = {"temperature": 0, "max_tokens": 12, "reuse": False}
    found: dict[str, str] = {}

    def ask(prompt: str) -> None:
        found[prompt] = isolated.create_completion(prompt, **given)["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=[prompt]) for prompt in prompts]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for prompt in prompts:
        assert found[prompt] == here.create_completion(prompt, **given)["choices"][0]["text"]


def test_closing_a_stream_ends_its_request(isolated: Llama) -> None:
    before = isolated.metrics["cancelled"]
    with isolated.create_chat_completion(HELLO, stream=True, **STORY) as stream:
        next(stream)
        next(stream)
    until(lambda: isolated.metrics["cancelled"] == before + 1, "the request was cancelled")


def test_a_reader_that_is_slow_makes_its_own_stream_wait(isolated: Llama) -> None:
    before = isolated.metrics["generated"]
    with isolated.create_completion("A", stream=True, **STORY) as stream:
        next(stream)
        until(lambda: isolated.metrics["generated"] - before > 200, "it generates")
        other = isolated.create_completion("B", temperature=0, max_tokens=3)
        assert other["usage"]["completion_tokens"] <= 3
        assert isolated.metrics["generated"] - before < 1000
        assert [*stream][-1]["choices"][0]["finish_reason"] == "length"
    assert isolated.metrics["generated"] - before > 1500


def test_a_timeout_says_what_there_was(isolated: Llama) -> None:
    with pytest.raises(GenerationTimeout) as caught:
        isolated.create_completion("Once", timeout=0.2, **STORY)
    assert caught.value.partial["choices"][0]["text"]


def test_progress_is_told_and_what_it_raises_reaches_the_caller(isolated: Llama) -> None:
    told: list[tuple[int, int]] = []
    prompt = "Tell me of the mountains. " * 40
    isolated.create_completion(
        prompt, max_tokens=1, on_progress=lambda done, of: told.append((done, of)), reuse=False
    )
    assert told[0][0] < told[-1][0] == told[-1][1]

    def fail(done: int, of: int) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        isolated.create_completion(prompt, max_tokens=1, on_progress=fail)

    def call(done: int, of: int) -> None:
        isolated.create_completion("within", max_tokens=1)

    with pytest.raises(LlamaError, match="callback"):
        isolated.create_completion(prompt, max_tokens=1, on_progress=call)


def test_errors_are_the_same(isolated: Llama, here: Llama) -> None:
    calls: list[Any] = [
        lambda llm: llm.create_completion([5] * 3000),
        lambda llm: llm.create_completion([10**6]),
        lambda llm: llm.create_completion("x", grammar="root ::= ("),
        lambda llm: llm.create_chat_completion([]),
        lambda llm: llm.score([5] * 3000, ["x"]),
    ]
    for call in calls:
        with pytest.raises(LlamaError) as expected:
            call(here)
        with pytest.raises(type(expected.value)) as caught:
            call(isolated)
        assert str(caught.value) == str(expected.value)
    with pytest.raises(ContextOverflowError) as overflow:
        isolated.create_completion([5] * 3000)
    assert (overflow.value.prompt_tokens, overflow.value.limit) == (3000, 2048)


def _same_vectors(found: Any, expected: Any) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert np.allclose(mine, theirs, atol=1e-4)


def test_scores_and_vectors_are_the_same(isolated: Llama, here: Llama) -> None:
    for prefix in ("Hello", HELLO):
        expected: Any = here.score(prefix, [" there", " you", ""])
        found: Any = isolated.score(prefix, [" there", " you", ""])
        for one, other in zip(found, expected, strict=True):
            assert one.text == other.text
            assert (one.tokens == other.tokens).all()
            assert np.allclose(one.token_logprobs, other.token_logprobs, atol=1e-4)
    texts = ["Hello there", "a mountain", "b"]
    _same_vectors(isolated.embed(texts), here.embed(texts))
    with Embedder(llama=isolated) as there, Embedder(llama=here) as same:
        assert np.allclose(there.embed(texts), same.embed(texts), atol=1e-4)


def test_tokens_and_prompts_are_read_here(isolated: Llama, here: Llama) -> None:
    text = "Hello <|im_end|> there"
    for special in (False, True):
        tokens = isolated.tokenize(text, special=special)
        assert tokens == here.tokenize(text, special=special)
        assert isolated.detokenize(tokens) == here.detokenize(tokens)
    assert isolated.render_chat(HELLO) == here.render_chat(HELLO)
    assert (isolated.n_ctx(), isolated.n_vocab()) == (here.n_ctx(), here.n_vocab())
    assert (isolated.n_embd(), isolated.metadata) == (here.n_embd(), here.metadata)
    assert isolated.runtime.port.fingerprint == here.runtime.port.fingerprint


def test_prewarming_and_pins(isolated: Llama) -> None:
    system = [{"role": "system", "content": "You know all about rivers. " * 20}]
    warm = isolated.cache.prewarm(system)
    assert len(warm.tokens) > 80
    asked = [*system, {"role": "user", "content": "Hello"}]
    reply = isolated.create_chat_completion(asked, temperature=0, max_tokens=3)
    assert reply.cache["reused"] >= len(warm.tokens)
    assert any(each["pinned"] for each in isolated.cache.report()["sequences"])
    isolated.cache.unpin(warm)
    assert not any(each["pinned"] for each in isolated.cache.report()["sequences"])
    isolated.cache.reset()
    assert isolated.cache.report()["cells_used"] == 0


def test_a_session_is_saved_with_its_state_and_goes_on(isolated: Llama, tmp_path: Path) -> None:
    session = isolated.chat_session("You are a model. " * 20)
    session.send("Hello!", temperature=0)
    session.save(tmp_path / "a.session")
    isolated.cache.reset()
    again = ChatSession.load(isolated, tmp_path / "a.session")
    again.send("And now?", temperature=0)
    assert isolated.cache.info["reused"] > 130


def test_pictures() -> None:
    options: dict[str, Any] = {**OPTIONS, "mmproj": tiny_projector("mlp"), "n_ctx": 1024}
    pixels = np.random.default_rng(1).integers(0, 255, (40, 40, 3), np.uint8)
    parts = [{"type": "text", "text": "What is this?"}, Image(pixels)]
    asked: Any = [{"role": "user", "content": parts}]
    given: Any = {"temperature": 0, "max_tokens": 12, "logprobs": True, "top_logprobs": 2}
    path = media_model("full")
    with Llama(path, isolate=True, **options) as there, Llama(path, **options) as here:
        expected = here.create_chat_completion(asked, **given)
        found = there.create_chat_completion(asked, **given)
        assert said(found) == said(expected)
        assert found["usage"]["prompt_tokens"] > 20
        assert there.create_chat_completion(asked, **given).cache["reused"] > 10
        vector = there.embed([{"content": parts}])  # type: ignore[list-item]
        same = here.embed([{"content": parts}])  # type: ignore[list-item]
        _same_vectors(vector, same)


def test_reasoning_with_a_budget_and_a_schema() -> None:
    """What constrains a reply is made anew of the other process's vocabulary."""
    options: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1}
    options["chat_template"] = families.source("Qwen-Qwen3-0.6B")
    path = tiny_model("full")
    given: Any = {"temperature": 0, "max_tokens": 60, "reasoning_budget": 5, "seed": 1}
    schema: Any = {"type": "json_object", "schema": PERSON}
    with Llama(path, isolate=True, **options) as there, Llama(path, **options) as same:
        for more in ({}, {"response_format": schema}):
            expected = same.create_chat_completion(HELLO, **given, **more)
            assert said(there.create_chat_completion(HELLO, **given, **more)) == said(expected)


def test_asyncio() -> None:
    async def ask() -> None:
        async with await AsyncLlama.load(demo_model_path(), isolate=True, **OPTIONS) as llm:
            replies = await asyncio.gather(
                *(llm.create_chat_completion(HELLO, temperature=0) for _ in range(5))
            )
            texts = {reply["choices"][0]["message"]["content"] for reply in replies}
            assert len(texts) == 1
            stream = await llm.create_chat_completion(HELLO, stream=True, **STORY)
            chunks = 0
            async for _ in stream:
                chunks += 1
                if chunks == 20:
                    break
            await stream.aclose()
            task = asyncio.ensure_future(llm.create_completion("Once", **STORY))
            await asyncio.sleep(0.3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            scores = await llm.score("Hello", [" there"])
            assert scores[0].logprob < 0

    asyncio.run(ask())


NOT_THERE: dict[str, Any] = {
    "eval": lambda llm: llm.eval([1]),
    "sample": lambda llm: llm.sample(),
    "generate": lambda llm: next(llm.generate([1])),
    "scores": lambda llm: llm.scores,
    "last_logits": lambda llm: llm.last_logits,
    "ctx": lambda llm: llm.ctx,
    "model": lambda llm: llm.model,
    "save_state": lambda llm: llm.cache.save_state(),
    "snapshot": lambda llm: llm.cache.snapshot("a"),
    "restore": lambda llm: llm.cache.restore("a"),
    "a store in RAM": lambda llm: llm.cache.set_store(LlamaRAMCache()),
    "logits_processor": lambda llm: llm.create_completion("x", logits_processor=[lambda a, b: b]),
    "stopping_criteria": lambda llm: llm.create_completion(
        "x", stopping_criteria=[lambda a, b: True]
    ),
    "a drafter": lambda llm: llm.create_completion("x", speculative=lambda tokens: []),
}


@pytest.mark.parametrize("name", NOT_THERE)
def test_what_needs_the_context_here_says_so(isolated: Llama, name: str) -> None:
    with pytest.raises(IsolationError, match="isolate=True"):
        NOT_THERE[name](isolated)
    assert isolated.create_completion("x", max_tokens=1)["choices"]


def test_options_that_contradict_it() -> None:
    contradicting: list[Any] = [{"in_place": True}, {"vocab_only": True}]
    for options in contradicting:
        with pytest.raises(ParameterError, match="contradict"):
            Llama(demo_model_path(), isolate=True, **options)
    with pytest.raises(IsolationError, match="drafter"):
        Llama(demo_model_path(), isolate=True, speculative=lambda tokens: [])


def test_loading_tells_its_progress_and_may_be_stopped() -> None:
    told: list[float] = []
    with Llama(demo_model_path(), isolate=True, progress=told.append, **OPTIONS) as llm:
        assert told[-1] == 1.0
        assert "n_ctx=2048" in repr(llm)
    assert "closed" in repr(llm)
    with pytest.raises(LlamaError, match="progress returned False"):
        Llama(demo_model_path(), isolate=True, progress=lambda done: False, **OPTIONS)


def test_a_pickled_one_is_loaded_again(isolated: Llama) -> None:
    with pickle.loads(pickle.dumps(isolated)) as copy:
        assert status_of(copy).pid != status_of(isolated).pid
        assert copy.create_completion("x", max_tokens=1)["choices"]
