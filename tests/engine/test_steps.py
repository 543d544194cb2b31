"""Steps in one call into C: they give what single ones give, and end when somebody is waiting."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from llama_py import Llama, demo_model_path
from llama_py._native import chat_h
from llama_py.core import steps as module
from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.core.model import Model
from llama_py.core.sampling.sampler import Sampler
from llama_py.core.steps import NO_TOKEN, Steps
from llama_py.engine.events import Events
from llama_py.errors import DecodeError, SymbolNotFoundError
from llama_py.params import ContextParams, SamplingParams
from tests.engine.rig import Asked, Rig, StepClock, ask, words
from tests.models import tiny_model

GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture
def rig() -> Iterator[Rig]:
    # Steps that take no time: on a busy machine, fewer of them would fit into one call.
    rig = Rig("full", n_seq_max=4, clock=StepClock(1e-5, 1e-6))
    yield rig
    rig.close()


@pytest.fixture
def calls(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps each call into C made."""
    made: list[int] = []
    decode = rig.context.decode_steps

    def counted(batch: Batch, steps: Steps, most: int, seconds: float) -> None:
        decode(batch, steps, most, 60.0 if seconds else 0.0)  # however busy the machine is
        made.append(steps.done)

    monkeypatch.setattr(rig.context, "decode_steps", counted)
    return made


def run_whole(rig: Rig, *asked: Asked) -> None:
    """As a call whose owner wants everything at the end."""
    rig.submit(*asked, whole=True)
    rig.read(*asked)


# -- replies ---------------------------------------------------------------------------------------


def test_a_whole_reply_is_made_in_few_calls(rig: Rig, calls: list[int]) -> None:
    one = ask(words(1, 40), 100)
    run_whole(rig, one)
    assert sum(calls) == 99  # the first token comes with the prompt
    assert len(calls) == 2
    rig.check(one)
    rig.check_at_rest()
    metrics = rig.engine.metrics
    assert (metrics.generated, metrics.token_seconds.count) == (100, 99)


def test_a_stream_gets_each_token_at_once(rig: Rig, calls: list[int]) -> None:
    one = ask(words(1, 40), 20)
    rig.run(one)
    assert calls == [1] * 19
    rig.check(one)


def test_beside_a_stream_steps_are_single(rig: Rig, calls: list[int]) -> None:
    whole, stream = ask(words(1, 40), 20), ask(words(2, 40), 20)
    events = Events(rig.driver, [whole.request], whole=True)
    whole.events = events
    rig.run(stream)
    assert {*calls} == {1}
    rig.read(whole)
    rig.check(whole, stream)


def test_a_stream_of_a_thread_gets_what_is_made_during_a_picture() -> None:
    """So many seconds of steps come together, and no more."""
    rig = Rig("full", in_place=False)
    asked: list[tuple[int, float]] = []
    made: list[int] = []
    decode = rig.context.decode_steps

    def counted(batch: Batch, steps: Steps, most: int, seconds: float) -> None:
        asked.append((most, seconds))
        decode(batch, steps, most, seconds)
        made.append(steps.done)

    rig.context.decode_steps = counted  # type: ignore[method-assign]
    one = ask(words(1, 40), 300)
    rig.run(one)
    rig.check(one)
    rig.close()
    assert sum(made) == 299
    assert len(made) < 200
    assert all(seconds <= 0.033 for _, seconds in asked)


# -- tokens that are drawn -------------------------------------------------------------------------

DRAWN: list[dict[str, Any]] = [
    {"temperature": 0.9},
    {"temperature": 1.5, "top_k": 64, "min_p": 0.0, "top_p": 1.0},
    {"temperature": 0.7, "top_k": 1},
    {"temperature": 1.2, "top_k": 20, "typical_p": 0.6, "xtc_probability": 0.5},
    {"temperature": 1.2, "samplers": ("top_k", "temperature", "min_p"), "min_p": 0.2},
]


@pytest.mark.parametrize("sampling", DRAWN)
def test_steps_draw_what_single_ones_draw(
    rig: Rig, calls: list[int], sampling: dict[str, Any]
) -> None:
    """Who asks for log-probabilities gets each token by itself: it is the same for each seed."""
    options: list[dict[str, Any]] = [{"sampling": {**sampling, "seed": seed}} for seed in range(3)]
    options.append({})  # takes the likeliest
    together = [ask(words(1, 40), 30, **each) for each in options]
    run_whole(rig, *together)
    assert sum(calls) > len(calls)
    calls.clear()
    for each, option in zip(together, options, strict=True):
        alone = ask(words(1, 40), 30, generation={"logprobs": 0}, **option)
        rig.run(alone)
        assert alone.generated == each.generated
    assert not calls
    assert sampling.get("top_k") == 1 or len({tuple(each.generated) for each in together}) == 4


@pytest.mark.parametrize(
    "more",
    [
        {"logit_bias": {7: 5.0}},
        {"repeat_penalty": 1.3},
        {"min_tokens": 5},
        {"top_k": 65},
        {"top_k": 0},
        {"logits_processors": (lambda _tokens, logits: logits,)},
    ],
)
def test_what_needs_more_than_the_logits_is_drawn_one_by_one(
    rig: Rig, calls: list[int], more: dict[str, Any]
) -> None:
    sampling = {"temperature": 0.9, "seed": 1, **more}
    one, alone = (
        ask(words(1, 40), 20, sampling=sampling, generation=generation)
        for generation in ({}, {"logprobs": 0})
    )
    run_whole(rig, one)
    rig.run(alone)
    assert not calls
    assert one.generated == alone.generated


def test_nothing_is_drawn_from_what_are_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    shutil.copy(tiny_model("full"), path)
    (norm,) = (each for each in GGUFReader(path).tensors if each.name == "output_norm.weight")
    weights = np.memmap(path, np.float32, "r+", int(norm.data_offset), (int(norm.n_elements),))
    weights[:] = np.nan
    weights.flush()
    with Llama(path, n_ctx=256, n_threads=1) as llm:
        for temperature in (0.0, 1.0):
            with pytest.raises(DecodeError, match=r"not (a number|numbers).*check_tensors=True"):
                llm.create_completion("Once", max_tokens=5, temperature=temperature)
    drawing = SamplingParams(temperature=1.0)
    with Model(path) as model, closing(Sampler(model.vocab, drawing)) as own:
        context = Context(model, ContextParams(n_ctx=256, n_batch=16, n_threads=1))
        assert make_steps(context, 12, drawn=own).chosen == [[NO_TOKEN]]


# -- more replies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "iswa", "recurrent", "hybrid"])
def test_streams_of_different_lengths_end_where_they_would_alone(kind: str) -> None:
    rig = Rig(kind, n_seq_max=4)
    several = [ask(words(seed, 30), 7 + 9 * seed) for seed in range(1, 5)]
    run_whole(rig, *several)
    rig.check(*several)
    assert [len(each.generated) for each in several] == [16, 25, 34, 43]
    rig.check_at_rest()
    rig.close()


def test_separate_buffers_are_decoded_in_the_order_of_their_sequences() -> None:
    rig = Rig("full", n_seq_max=3, kv_unified=False, n_ctx=1536)
    for priorities in ([0, 0, 0], [2, 1, 0]):
        several = [
            ask(words(seed, 30), 20, priority=priority)
            for seed, priority in enumerate(priorities, 1)
        ]
        run_whole(rig, *several)
        rig.check(*several)
    rig.close()


def test_cells_that_run_out_in_the_middle_of_steps() -> None:
    rig = Rig("full", n_seq_max=2, n_ctx=256)
    several = [ask(words(1, 40), 150), ask(words(2, 40), 150)]
    run_whole(rig, *several)
    assert rig.engine.metrics.preempted
    rig.check(*several)
    rig.check_at_rest()
    rig.close()


def test_a_reply_ends_where_the_model_ends_it() -> None:
    prompt = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"
    with Llama(demo_model_path(), n_ctx=512, n_threads=1) as llm:
        whole = llm.create_completion(prompt, max_tokens=200, temperature=0.0)
        chunks = [
            chunk["choices"][0]
            for chunk in llm.create_completion(prompt, max_tokens=200, temperature=0.0, stream=True)
        ]
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["choices"][0]["text"] == "".join(chunk["text"] for chunk in chunks)
    assert whole["usage"]["completion_tokens"] > 2


# -- when steps end --------------------------------------------------------------------------------


@pytest.fixture
def context() -> Iterator[Context]:
    with Model(tiny_model("full")) as model:
        yield Context(model, ContextParams(n_ctx=256, n_batch=16, n_threads=1))


def make_steps(
    context: Context,
    most: int,
    seconds: float = 60.0,
    *,
    hurry: int = 0,
    drawn: Sampler | None = None,
) -> Steps:
    """Steps of one stream, at the beginning of an empty sequence."""
    batch, steps = Batch(16), Steps(1)
    if drawn is not None:
        steps.choose([drawn.of_steps])
    batch.set([5], 0, 0, True)
    steps.endless[0] = 1
    steps.hurry[0] = hurry
    context.decode_steps(batch, steps, most, seconds)
    return steps


def test_steps_continue_with_what_was_chosen(context: Context) -> None:
    steps = make_steps(context, 12)
    assert (steps.done, steps.code, len(steps.times)) == (12, 0, 12)
    (chosen,) = steps.chosen
    assert context.pos_max(0) == 11
    context.seq_rm(0, 0, -1)
    batch = Batch(16)
    batch.set([5, *chosen[:-1]], 0, 0, True)
    assert context.decode(batch) == 0
    assert chosen == [int(context.logits(row).argmax()) for row in range(12)]


@pytest.mark.parametrize(("seconds", "hurry"), [(0.0, 0), (60.0, 1)])
def test_no_other_step_begins_when_time_is_over_or_somebody_is_in_a_hurry(
    context: Context, seconds: float, hurry: int
) -> None:
    assert make_steps(context, 12, seconds, hurry=hurry).done == 1


def test_a_step_that_fails_leaves_those_before_it(context: Context) -> None:
    for start in range(0, 250, 16):
        part = Batch(16)
        part.set(words(1, 250)[start : start + 16], start, 0, True)
        assert context.decode(part) == 0
    batch, steps = Batch(16), Steps(1)
    batch.set([5], 250, 0, True)
    steps.endless[0] = 1
    context.decode_steps(batch, steps, 12, 60.0)
    assert (steps.done, steps.code) == (6, 1)
    assert len(steps.times) == 7
    assert [len(tokens) for tokens in steps.chosen] == [6]


def test_a_command_ends_steps_that_are_made_at_once(rig: Rig) -> None:
    steps = rig.engine.runner.steps
    assert steps is not None
    rig.driver.post(lambda: None)
    assert steps.hurry[0] == 1
    one = ask(words(1, 40), 100)
    run_whole(rig, one)
    assert steps.hurry[0] == 0
    rig.check(one)


def test_a_job_of_another_thread_does_not_wait_for_a_whole_reply() -> None:
    with Llama(tiny_model("full"), n_ctx=2048, n_threads=1) as llm:
        thread = threading.Thread(
            target=lambda: llm.create_completion(words(1, 40), max_tokens=900, **GREEDY)
        )
        thread.start()
        metrics = llm.runtime.loaded.engine.metrics
        seen: list[int] = []
        while not metrics.generated:
            pass
        while thread.is_alive() and len(seen) < 10:
            seen.append(llm.runtime.loaded.driver.run(lambda: metrics.generated))
        thread.join()
    assert len({*seen}) > 2


# -- what is odd -----------------------------------------------------------------------------------


def test_a_row_without_a_token_fails_its_request_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def odd(steps: Steps) -> list[list[int]]:
        first, second = chosen(steps)
        return [first, [*second[:-1], NO_TOKEN]]

    chosen: Any = vars(Steps)["chosen"].fget
    good, bad = ask(words(1, 40), 60), ask(words(2, 40), 60)
    events = Events(rig.driver, [good.request, bad.request], whole=False)
    for index, each in enumerate((good, bad)):
        each.events, each.index = events, index
    rig.step_until(lambda: len(bad.generated) == 5)
    with monkeypatch.context() as patch:
        patch.setattr(Steps, "chosen", property(odd))
        rig.step()
    rig.read(good, bad)
    assert bad.end is not None
    assert isinstance(bad.end.error, DecodeError)
    rig.check(good)
    rig.check_at_rest()


@pytest.mark.parametrize("n", [1, 31, 32, 33, 2047, 2049, 5000])
def test_the_highest_logit_is_the_one_that_numpy_finds(n: int) -> None:
    draw = np.random.default_rng(n)
    row = draw.normal(size=n).astype(np.float32)
    for values in (row, np.round(row), np.full(n, -np.inf, np.float32)):
        for odd in (None, np.inf, np.nan):
            found = values.copy()
            if odd is not None:
                found[draw.integers(n)] = odd
            best = int(found.argmax())
            expected = best if found[best] > -np.inf else NO_TOKEN
            assert chat_h.llama_py_logits_highest(found.ctypes.data, n) == expected


def test_an_older_library_does_the_same_in_more_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older:
        def __getattr__(self, name: str) -> Any:
            raise SymbolNotFoundError(name)

    module._function.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(module, "chat_h", Older())
        rig = Rig("full")
    module._function.cache_clear()
    assert rig.engine.runner.steps is None
    one = ask(words(1, 40), 30)
    run_whole(rig, one)
    rig.check(one)
    rig.close()
