"""``Llama.score``: many continuations of one prefix, which is evaluated once."""

from __future__ import annotations

import asyncio
import math
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from llama_py import AsyncLlama, Llama, LlamaRAMCache, Score
from llama_py.errors import (
    ClosedError,
    ContextOverflowError,
    GenerationTimeout,
    LlamaError,
    ParameterError,
)
from tests.allocated import allocated_bytes, needs_allocated_bytes
from tests.engine.rig import EXACT, words
from tests.models import KINDS, tiny_model
from tests.patience import PATIENCE
from tests.rest import in_flight

#: Cells in F32 and no flash attention: what is left is the order of sums.
TOLERANCE = 1e-5
PREFIX = "The quick brown fox jumps over the lazy dog. " * 2 + "The answer is"
LABELS = [" yes", " no", " the city", " the weather in the city", " France.", "n't", " 42", ""]


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Llama, Llama]]:
    """A model, and one of the same that scores one by one."""
    path = str(tiny_model(request.param))
    with Llama(path, **EXACT) as llm, Llama(path, **EXACT) as other:
        yield llm, other


@pytest.fixture
def llm(pair: tuple[Llama, Llama]) -> Llama:
    pair[0].reset()
    return pair[0]


@pytest.fixture
def other(pair: tuple[Llama, Llama]) -> Llama:
    return pair[1]


@pytest.fixture(scope="module")
def full() -> Iterator[Llama]:
    with Llama(str(tiny_model("full")), **EXACT) as llm:
        yield llm


def one_by_one(llm: Llama, prefix: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """With ``echo`` and ``logprobs``, which evaluate everything anew."""
    reply: Any = llm.create_completion(
        [*prefix, *tokens], echo=True, max_tokens=0, logprobs=0, temperature=0.0
    )
    logprobs: list[float] = reply["choices"][0]["logprobs"]["token_logprobs"]
    return logprobs[len(prefix) :]


def check(found: Score, expected: Sequence[float]) -> None:
    assert found.token_logprobs.dtype == np.float32
    assert found.tokens.dtype == np.int32
    assert found.token_logprobs.shape == found.tokens.shape == (len(expected),)
    np.testing.assert_allclose(found.token_logprobs, expected, atol=TOLERANCE, rtol=2e-6)
    assert found.logprob == pytest.approx(sum(expected), abs=TOLERANCE * (len(expected) + 1))


def cost(llm: Llama, prefix: Sequence[int], scores: Sequence[Score]) -> int:
    """Tokens that have to be evaluated: the prefix, and of each continuation all but the last."""
    different = {tuple(score.tokens.tolist()) for score in scores}
    return len(prefix) + sum(max(0, len(tokens) - 1) for tokens in different)


# ---- the numbers -----------------------------------------------------------------------------


def test_continuations_have_the_probabilities_that_they_have_one_by_one(
    llm: Llama, other: Llama
) -> None:
    scores = llm.score(PREFIX, LABELS)
    prefix = llm.tokenize(PREFIX)
    assert [score.text for score in scores] == LABELS
    for label, score in zip(LABELS, scores, strict=True):
        assert [*prefix, *score.tokens] == llm.tokenize(PREFIX + label)
        check(score, one_by_one(other, prefix, score.tokens.tolist()))
    assert llm.metrics["evaluated"] == cost(llm, prefix, scores)


@pytest.mark.parametrize("n_seq_max", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_with_few_sequences_nothing_is_evaluated_twice_either(kind: str, n_seq_max: int) -> None:
    prefix, draw = words(3, 60), random.Random(5)
    given = [[draw.randrange(250) for _ in range(draw.randrange(6))] for _ in range(40)]
    given += [[7, 8, 9, *more] for more in given[:10]]  # some begin alike
    with Llama(str(tiny_model(kind)), **{**EXACT, "n_seq_max": n_seq_max}) as llm:
        scores = llm.score(prefix, given)
        assert llm.metrics["evaluated"] == cost(llm, prefix, scores)
        for tokens, score in zip(given[::9], scores[::9], strict=True):
            check(score, one_by_one(llm, prefix, tokens))
        again = llm.score(prefix, given[:5])  # beside what that left behind
        for before, after in zip(scores, again, strict=False):
            check(after, before.token_logprobs.tolist())


def test_two_hundred_candidates_evaluate_a_long_prefix_once(llm: Llama, other: Llama) -> None:
    prefix, draw = words(11, 227), random.Random(2)
    given = [[draw.randrange(250) for _ in range(1 + i % 3)] for i in range(200)]
    scores = llm.score(prefix, given)
    assert llm.metrics["evaluated"] == cost(llm, prefix, scores) < 227 + 200 * 2
    assert llm.cache_info["evaluated"] == 227
    best = max(range(200), key=lambda i: scores[i].logprob)
    ahead = sorted(range(200), key=lambda i: -scores[i].logprob)[:6]
    alone = {i: one_by_one(other, prefix, given[i]) for i in {*ahead, *range(0, 200, 40)}}
    assert max(alone, key=lambda i: sum(alone[i])) == best
    for index, expected in alone.items():
        check(scores[index], expected)


@pytest.mark.long
def test_the_best_of_two_hundred_is_the_best_one_by_one(llm: Llama, other: Llama) -> None:
    prefix, draw = words(12, 227), random.Random(6)
    given = [[draw.randrange(250) for _ in range(1 + i % 4)] for i in range(200)]
    scores = llm.score(prefix, given)
    alone = [one_by_one(other, prefix, tokens) for tokens in given]
    for score, expected in zip(scores, alone, strict=True):
        check(score, expected)
    assert np.argmax([sum(each) for each in alone]) == np.argmax([s.logprob for s in scores])


def test_a_prefix_that_is_in_memory_costs_nothing(llm: Llama) -> None:
    first = llm.score(PREFIX, LABELS)
    before = llm.metrics["evaluated"]
    second = llm.score(PREFIX, LABELS)
    # The last token of the prefix comes again, for its logits.
    again = cost(llm, [0], second)
    assert llm.metrics["evaluated"] - before == again
    for one, two in zip(first, second, strict=True):
        check(two, one.token_logprobs.tolist())


def test_what_others_have_in_memory_beyond_the_prefix_does_not_change_a_score(llm: Llama) -> None:
    """Its logits are gone, so it is not reused."""
    prefix = llm.tokenize(PREFIX)
    expected = llm.score(PREFIX, LABELS)
    for label in LABELS:
        llm.create_completion(PREFIX + label, max_tokens=4, temperature=0.0)
    for found, score in zip(llm.score(prefix, [s.tokens for s in expected]), expected, strict=True):
        check(found, score.token_logprobs.tolist())


def test_long_continuations_are_read_in_pieces(llm: Llama, other: Llama) -> None:
    prefix = words(1, 20)
    given = [words(2, 300), words(3, 150), words(4, 65)]
    for tokens, score in zip(given, llm.score(prefix, given), strict=True):
        check(score, one_by_one(other, prefix, tokens))


def test_the_reply_to_a_conversation_is_scored(full: Llama) -> None:
    full.reset()
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    reply: Any = full.create_chat_completion(messages, temperature=0.0, max_tokens=6, logprobs=True)
    content = reply["choices"][0]["logprobs"]["content"]
    generated = full.runtime.last.record.generated
    score, other = full.score(messages, [generated, [1, 2, 3, 4, 5, 6]])
    check(score, [entry["logprob"] for entry in content])
    assert score.text == reply["choices"][0]["message"]["content"]
    assert score.logprob > other.logprob
    with pytest.raises(ParameterError, match=r"messages\[0\]"):
        full.score([{"role": "nobody", "content": ""}], ["a"])
    with pytest.raises(ParameterError, match="tools has no meaning without messages"):
        full.score("The", ["a"], tools=[])


def test_the_empty_continuation_is_certain_and_no_continuation_no_work(llm: Llama) -> None:
    assert llm.score(PREFIX, []) == []
    (score,) = llm.score(PREFIX, [""])
    assert (score.logprob, score.mean, len(score), score.text) == (0.0, 0.0, 0, "")
    assert score.token_logprobs.shape == (0,)
    assert llm.metrics["evaluated"] == 0
    assert llm.score([5], [[]])[0].logprob == 0.0


def test_probabilities_of_all_tokens_sum_to_one(llm: Llama) -> None:
    scores = llm.score(PREFIX, [[token] for token in range(llm.n_vocab())])
    assert math.fsum(math.exp(score.logprob) for score in scores) == pytest.approx(1, abs=1e-4)
    assert llm.metrics["evaluated"] == len(llm.tokenize(PREFIX))
    assert scores[3].mean == scores[3].logprob


# ---- limits ----------------------------------------------------------------------------------


def test_a_continuation_that_does_not_fit_is_named_and_nothing_evaluated(llm: Llama) -> None:
    limit = llm.runtime.loaded.cache.limit
    prefix = words(1, 40)
    with pytest.raises(ContextOverflowError, match=r"prefix with continuations\[2\]") as caught:
        llm.score(prefix, [[1], [2, 3], [4] * limit, [5] * limit])
    assert (caught.value.prompt_tokens, caught.value.limit) == (40 + limit, limit)
    assert "TrimMessages" not in str(caught.value)
    with pytest.raises(ContextOverflowError, match="the prefix has"):
        llm.score([1] * (limit + 1), ["a"])
    assert llm.metrics["steps"] == 0
    assert llm.metrics["requests"] == 0
    longest = [words(2, limit - 40 + 1)]  # whose last token is not evaluated
    assert len(llm.score(prefix, longest)[0]) == limit - 39


@needs_allocated_bytes
def test_thousands_of_continuations_take_no_memory(full: Llama) -> None:
    full.reset()
    draw = random.Random(3)
    given = [[draw.randrange(250), draw.randrange(250)] for _ in range(2000)]
    full.score(PREFIX, given[:300])
    before = allocated_bytes()
    scores = full.score(PREFIX, given)
    assert allocated_bytes() - before < 2 << 20
    assert len(scores) == 2000
    report = full.memory_report()
    assert len(report["sequences"]) == 1
    assert report["bytes"]["parked"] == report["bytes"]["checkpoints"] == 0


def test_cells_that_run_out_are_shared_in_turn(pair: tuple[Llama, Llama], other: Llama) -> None:
    """The continuations of one wave do not fit side by side."""
    prefix = words(1, 100)
    given = [words(10 + i, 90) for i in range(6)]
    with Llama(pair[0].model_path, **{**EXACT, "n_ctx": 256, "n_seq_max": 8}) as llm:
        scores = llm.score(prefix, given)
        for tokens, score in zip(given, scores, strict=True):
            check(score, one_by_one(other, prefix, tokens))
        assert llm.memory_report()["cells_used"] <= 256


@pytest.mark.parametrize("timeout", [0.0, 0.05])
def test_a_timeout_ends_it_and_the_next_call_works(full: Llama, timeout: float) -> None:
    full.reset()
    draw = random.Random(1)
    given = [[draw.randrange(250) for _ in range(20)] for _ in range(3000)]
    started = time.process_time()
    with pytest.raises(GenerationTimeout, match=f"timeout={timeout}"):
        full.score(PREFIX, given, timeout=timeout)
    assert time.process_time() - started < 2
    at_rest(full)
    assert full.score(PREFIX, LABELS, timeout=PATIENCE)[0].logprob < 0
    with pytest.raises(ParameterError, match="timeout"):
        full.score(PREFIX, LABELS, timeout=-1)


def test_a_callback_of_a_request_cannot_score(full: Llama) -> None:
    def inside(tokens: Any, logits: Any) -> bool:
        full.score("The", ["a"])
        return False

    with pytest.raises(LlamaError, match="a callback of a request"):
        list(full.generate([1, 2], stopping_criteria=[inside], temperature=0.0))
    at_rest(full)


# ---- beside others ---------------------------------------------------------------------------


def at_rest(llm: Llama) -> None:
    """Nothing is in flight, reserved or leased, and the books are what the memory says."""
    assert in_flight(llm) == 0
    for number in range(llm.runtime.loaded.context.n_seq_max):
        sequence = llm.runtime.loaded.cache.live.by_number.get(number)
        held = len(sequence.tokens) if sequence is not None else 0
        assert llm.runtime.loaded.context.pos_max(number) + 1 == held
        assert sequence is None or not (sequence.busy or sequence.reserved)


@pytest.mark.parametrize("n_seq_max", [1, 2, 4])
def test_streams_and_other_scores_go_on_meanwhile(
    pair: tuple[Llama, Llama], n_seq_max: int
) -> None:
    """More threads than sequences: all of them finish, with the right numbers."""
    _, other = pair
    ask: dict[str, Any] = {"temperature": 0.0, "max_tokens": 30, "ignore_eos": True}
    prompts = [words(number, 30 + number) for number in range(2)]
    prefixes = [words(20, 50), words(21, 70)]
    given = [words(30 + i, 1 + i % 4) for i in range(25)]
    replies: dict[int, list[str]] = {0: [], 1: []}
    scores: dict[int, list[Score]] = {}
    with Llama(other.model_path, **{**EXACT, "n_seq_max": n_seq_max}) as llm:

        def stream(number: int) -> None:
            for _ in range(3):
                chunks = llm.create_completion(prompts[number], stream=True, **ask)
                replies[number].append("".join(chunk["choices"][0]["text"] for chunk in chunks))

        def score(number: int) -> None:
            scores[number] = llm.score(prefixes[number], given)

        threads = [
            threading.Thread(target=work, args=(i,)) for work in (stream, score) for i in (0, 1)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        at_rest(llm)
    for number, prompt in enumerate(prompts):
        alone = other.create_completion(prompt, **ask)
        assert replies[number] == [alone["choices"][0]["text"]] * 3
        for tokens, found in zip(given[::8], scores[number][::8], strict=True):
            check(found, one_by_one(other, prefixes[number], tokens))


def test_conversations_are_there_afterwards(llm: Llama) -> None:
    """Also those that had to make room: none is evaluated again, and no checkpoint is lost."""
    chats = [
        llm.chat_session(f"You are number {i}. " * 8, temperature=0, max_tokens=4) for i in range(8)
    ]
    for chat in chats:
        chat.send("Hello there!")
    checkpoints = llm.memory_report()["checkpoints"]
    draw = random.Random(4)
    llm.score(PREFIX, [[draw.randrange(250) for _ in range(3)] for _ in range(300)])
    assert llm.memory_report()["checkpoints"] <= checkpoints + 1
    for chat in chats:
        chat.send("Good.")
        assert llm.cache_info["reused"] > 30, llm.cache_info


def test_only_the_prefix_is_kept_in_a_store(full: Llama) -> None:
    full.reset()
    store = LlamaRAMCache(64 << 20)
    full.set_cache(store)
    try:
        full.score(words(1, 100), [words(2 + i, 60) for i in range(20)])
    finally:
        full.set_cache(None)
    assert len(store) == 1


def test_the_sequence_of_eval_ends_and_what_was_pinned_stays(full: Llama) -> None:
    full.reset()
    full.prewarm([{"role": "system", "content": "Be brief. " * 5}])
    full.eval([1, 2, 3])
    full.score(PREFIX, LABELS)
    assert full.n_tokens == 0
    assert [s["pinned"] for s in full.memory_report()["sequences"]].count(True) == 1


def test_asyncio_scores_beside_a_stream_and_can_be_cancelled(full: Llama) -> None:
    full.reset()
    expected = full.score(PREFIX, LABELS)
    many = [[i % 250, i // 250 % 250, 3, 4, 5, 6, 7, 8] for i in range(20_000)]

    async def main() -> None:
        async with AsyncLlama(llama=full) as model:
            stream = model.create_completion([1, 2, 3], max_tokens=20, temperature=0.0)
            found, _ = await asyncio.gather(model.score(PREFIX, LABELS), stream)
            for one, two in zip(found, expected, strict=True):
                check(one, two.token_logprobs.tolist())
            task = asyncio.create_task(model.score(PREFIX, many))
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        with pytest.raises(ClosedError):
            await model.score(PREFIX, LABELS)

    started = time.process_time()
    asyncio.run(main())
    assert time.process_time() - started < 10
    at_rest(full)


def test_closing_the_model_ends_it_with_an_error() -> None:
    errors: list[BaseException] = []
    llm = Llama(str(tiny_model("full")), **EXACT)

    def score() -> None:
        try:
            llm.score(PREFIX, [[i % 250, i // 250, 3, 4, 5, 6] for i in range(20_000)])
        except LlamaError as error:
            errors.append(error)

    thread = threading.Thread(target=score)
    thread.start()
    time.sleep(0.3)
    llm.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [ClosedError]


# One that comes within a destructor is reported, and not raised.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no setitimer")
def test_an_interrupt_leaves_everything_in_order(llm: Llama) -> None:
    draw = random.Random(1)
    many = [[draw.randrange(250) for _ in range(4)] for _ in range(20_000)]
    expected = llm.score(PREFIX, LABELS)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for number in range(6):
            # Once is not enough: Python drops what comes in a destructor.
            signal.setitimer(signal.ITIMER_REAL, 0.02 + 0.021 * number, 0.3)
            with pytest.raises(KeyboardInterrupt):
                llm.score(PREFIX, many)
            signal.setitimer(signal.ITIMER_REAL, 0)
            at_rest(llm)
            for found, score in zip(llm.score(PREFIX, LABELS), expected, strict=True):
                check(found, score.token_logprobs.tolist())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
