"""``llm.cache``: states of the last call, pins, ``reset``, and sampling by hand."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_py import (
    BytesReport,
    CacheReport,
    ChatSession,
    HistogramReport,
    Llama,
    MetricsReport,
    ReuseInfo,
    SequenceReport,
)
from llama_py.errors import (
    ContextCreationError,
    ParameterError,
    ParameterTypeError,
    RequestCancelled,
    StateError,
)
from tests.models import tiny_model
from tests.patience import PATIENCE
from tests.slowness import slow_steps

OPTIONS: dict[str, Any] = {"n_ctx": 1024, "n_seq_max": 4, "n_threads": 1, "flash_attn": False}
ASK: dict[str, Any] = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
SYSTEM = [{"role": "system", "content": "You are kind. " * 12}]


@pytest.fixture(scope="module")
def shared() -> Iterator[Llama]:
    with Llama(str(tiny_model("full")), **OPTIONS) as llm:
        yield llm


@pytest.fixture
def llm(shared: Llama) -> Llama:
    shared.reset()
    return shared


def words(seed: int, count: int = 40) -> list[int]:
    return [(seed * 7919 + 31 * place) % 250 + 1 for place in range(count)]


# -- reports ---------------------------------------------------------------------------------------


def test_reports_have_the_keys_of_their_types(llm: Llama) -> None:
    reply = llm.create_completion(words(1), **ASK, session_id="mine")
    for info in (reply.cache, llm.cache.info):
        assert info.keys() == ReuseInfo.__annotations__.keys()
    report, metrics = llm.cache.report(), llm.metrics
    assert report.keys() == CacheReport.__annotations__.keys()
    assert report["bytes"].keys() == BytesReport.__annotations__.keys()
    assert report["sequences"][0].keys() == SequenceReport.__annotations__.keys()
    assert metrics.keys() == MetricsReport.__annotations__.keys()
    assert metrics["queue_seconds"].keys() == HistogramReport.__annotations__.keys()


def test_reports_are_copies(llm: Llama) -> None:
    reply = llm.create_completion(words(1), **ASK)
    llm.cache.info["reused"] = 99
    assert llm.cache.info == reply.cache
    assert reply.cache["reused"] == 0


# -- states of the last call -----------------------------------------------------------------------


def test_a_snapshot_is_of_the_call_that_ended_last(llm: Llama) -> None:
    """A stream that another thread is reading is newer, and not what was asked for."""
    with llm.create_completion(words(2), **{**ASK, "max_tokens": 200}, stream=True) as stream:
        next(stream)
        llm.create_completion(words(1), **ASK)
        next(stream)
        state = llm.save_state()
        assert llm.cache.snapshot("mine").n_tokens == state.n_tokens
        assert state.stored.tokens.tolist()[:40] == words(1)
        next(stream)


def test_a_state_of_a_conversation_that_goes_on_elsewhere(llm: Llama) -> None:
    """A sequence that a stream continues holds more: only what belongs to the call is copied."""
    llm.create_completion(words(1), **ASK)
    tokens = llm.save_state().stored.tokens.tolist()
    more: dict[str, Any] = {**ASK, "max_tokens": 100, "stream": True}
    with llm.create_completion([*tokens, *words(3, 5)], **more) as stream:
        next(stream)
        assert stream.cache["action"] == "continue"
        assert llm.save_state().stored.tokens.tolist() == tokens


def test_what_left_the_memory_cannot_be_saved(shared: Llama) -> None:
    with Llama(shared.model_path, **{**OPTIONS, "n_seq_max": 1}, parking_bytes=0) as llm:
        with pytest.raises(StateError, match="nothing was evaluated"):
            llm.save_state()
        llm.create_completion(words(1), **ASK)
        stream = llm.create_completion(words(2), **{**ASK, "max_tokens": 50}, stream=True)
        next(stream)
        with pytest.raises(StateError, match="not in memory any more"):
            llm.cache.snapshot("gone")
        stream.close()
        assert llm.save_state().stored.tokens.tolist()[:40] == words(2)


def test_snapshots_of_many_threads(llm: Llama) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(6):
                llm.create_completion(words(number * 10 + turn), **ASK)
                llm.cache.snapshot(f"{number}-{turn}")
                assert llm.cache.report()["bytes"]["snapshots"] > 0
                llm.cache.snapshots()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert errors == []
    assert len(llm.cache.snapshots()) == 4
    for info in llm.cache.snapshots():
        llm.cache.drop(info.name)


def test_what_is_kept_has_one_face(llm: Llama) -> None:
    llm.create_completion(words(1), **ASK)
    state = llm.states.save("a")
    part = llm.states.save("part", length=10)
    assert part.stored.tokens.tolist() == words(1)[:10]
    assert [(each.name, each.n_tokens) for each in llm.states.list()] == [
        ("a", state.n_tokens),
        ("part", 10),
    ]
    assert llm.states.list() == llm.cache.snapshots() == llm.snapshots()
    for what, name in (("a", "a"), (state, "")):
        llm.reset()
        info = llm.states.restore(what)
        assert (info.name, info.n_tokens, info.nbytes) == (name, state.n_tokens, state.nbytes)
        assert llm.eval_tokens == state.stored.tokens.tolist()
        assert state.logits is not None
        assert np.array_equal(llm.last_logits, state.logits)
    assert [each.name for each in llm.states.list()] == ["part", "a"]  # by their last use
    llm.states.drop("a")
    with pytest.raises(ParameterError, match=r"no snapshot 'a'; there are: 'part'"):
        llm.states.restore("a")
    llm.states.drop("part")
    with pytest.raises(ParameterTypeError, match="state must be"):
        llm.states.restore(b"bytes")  # type: ignore[arg-type]
    with pytest.raises(ParameterTypeError, match="name must be"):
        llm.states.save(5)  # type: ignore[arg-type]


# -- pins ------------------------------------------------------------------------------------------


def pinned(llm: Llama) -> list[int]:
    return [entry["tokens"] for entry in llm.cache.report()["sequences"] if entry["pinned"]]


def test_what_is_prewarmed_is_pinned_until_it_is_unpinned(llm: Llama) -> None:
    warm = llm.cache.prewarm(SYSTEM)
    assert pinned(llm) == [len(warm.tokens)]
    for number in range(12):
        llm.create_completion(words(number, 200), **ASK)
    asked = [*SYSTEM, {"role": "user", "content": "Hello"}]
    assert llm.create_chat_completion(asked, **ASK).cache["reused"] >= len(warm.tokens)
    llm.cache.unpin(warm)
    assert pinned(llm) == []
    llm.cache.pin(warm)
    assert len(pinned(llm)) == 1
    llm.cache.unpin()
    assert pinned(llm) == []
    llm.reset()
    with pytest.raises(StateError, match="prewarm it again"):
        llm.cache.pin(warm)


def test_prewarming_without_a_pin(llm: Llama) -> None:
    llm.cache.prewarm(SYSTEM, pin=False)
    assert pinned(llm) == []


def test_a_snapshot_is_pinned_by_its_name(llm: Llama) -> None:
    llm.create_completion(words(1), **ASK)
    info = llm.cache.snapshot("a")
    llm.reset()
    llm.cache.pin("a")  # and brought back for it
    assert pinned(llm) == [info.n_tokens]
    llm.cache.unpin("a")
    assert pinned(llm) == []
    with pytest.raises(ParameterError, match="there is no snapshot 'b'"):
        llm.cache.pin("b")
    with pytest.raises(ParameterTypeError, match="prewarm"):
        llm.cache.unpin({"sequence": 0})  # type: ignore[arg-type]
    llm.cache.drop("a")


# -- reset -----------------------------------------------------------------------------------------


def slow_reader(llm: Llama, replies: list[Any], begun: threading.Event) -> threading.Thread:
    def read() -> None:
        text = ""
        try:
            stream = llm.create_completion(words(5), **{**ASK, "max_tokens": 60}, stream=True)
            for chunk in stream:
                text += chunk["choices"][0]["text"]
                begun.set()
                time.sleep(0.002)
            replies.append(text)
        except RequestCancelled as error:
            replies.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(PATIENCE)
    return thread


def test_reset_waits_for_what_others_have_in_flight(llm: Llama) -> None:
    alone = llm.create_completion(words(5), **{**ASK, "max_tokens": 60})["choices"][0]["text"]
    replies: list[Any] = []
    thread = slow_reader(llm, replies, threading.Event())
    llm.reset()
    assert llm.cache.report()["cells_used"] == 0
    thread.join(PATIENCE)
    assert replies == [alone]
    llm.reset()
    assert llm.cache.info == {}


def test_reset_that_cancels(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_steps(monkeypatch, 0.01)
    replies: list[Any] = []
    thread = slow_reader(llm, replies, threading.Event())
    llm.reset(cancel=True)
    assert llm.cache.report()["cells_used"] == 0
    thread.join(PATIENCE)
    assert isinstance(replies[0], RequestCancelled)


def test_reset_ends_ones_own_streams(llm: Llama) -> None:
    """Nobody else would ever read them."""
    stream = llm.create_completion(words(5), **{**ASK, "max_tokens": 900}, stream=True)
    next(stream)
    llm.reset()
    with pytest.raises(RequestCancelled):
        list(stream)


def test_calls_that_come_during_a_reset_wait_and_are_right(llm: Llama) -> None:
    alone = llm.create_completion(words(9), **ASK)["choices"][0]["text"]
    replies: list[Any] = []
    reader = slow_reader(llm, replies, threading.Event())
    texts: list[str] = []
    resets = threading.Thread(target=llm.reset)
    resets.start()
    others = [
        threading.Thread(
            target=lambda: texts.append(
                llm.create_completion(words(9), **ASK)["choices"][0]["text"]
            )
        )
        for _ in range(3)
    ]
    for thread in others:
        thread.start()
    for thread in (reader, resets, *others):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert texts == [alone] * 3
    assert isinstance(replies[0], str)


# -- by hand ---------------------------------------------------------------------------------------


def test_sample_penalises_what_was_evaluated_since(llm: Llama) -> None:
    """Two tokens are wanted so much that one is chosen, unless both are penalised."""
    options: dict[str, Any] = {
        "temperature": 0,
        "repeat_penalty": 1000.0,
        "logit_bias": {77: 60.0, 88: 55.0},
    }
    llm.eval([5, 6, 7])
    assert llm.sample(**options) == 77
    llm.eval([77, 88])
    assert llm.sample(**options) not in (77, 88)


def test_sample_counts_each_token_once(llm: Llama) -> None:
    """What was sampled and then evaluated is one token, as in a reply."""
    options: dict[str, Any] = {"temperature": 0, "frequency_penalty": 1.0}
    reply = llm.create_completion(
        words(1, 5), **options, max_tokens=20, ignore_eos=True, logprobs=0
    )
    llm.eval(words(1, 5))
    tokens = []
    for _ in range(20):
        tokens.append(llm.sample(**options))
        llm.eval(tokens[-1:])
    assert llm.detokenize(tokens).decode("utf-8", "replace") == reply["choices"][0]["text"]


def test_scores_are_not_made_anew() -> None:
    with Llama(str(tiny_model("full")), **OPTIONS, logits_all=True) as llm:
        llm.eval(words(1))
        table = llm.scores
        assert llm.scores is table
        before = table.copy()
        llm.eval(words(2, 200))
        assert llm.scores.shape == (240, llm.n_vocab())
        assert np.array_equal(table, before)
        assert np.array_equal(llm.scores[:40], before)
        assert np.shares_memory(llm.scores[:1], llm.scores)
        with pytest.raises(ValueError, match="read-only"):
            table[0] = 0


# -- sessions --------------------------------------------------------------------------------------


def test_the_state_of_a_session_whose_template_uses_its_options(tmp_path: Path) -> None:
    template = (
        "{{ mood }}{% for message in messages %}<|{{ message.role }}|>{{ message.content }}\n"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    mood: dict[str, Any] = {"chat_template_kwargs": {"mood": "merry " * 20}}
    with Llama(str(tiny_model("full")), **OPTIONS, chat_template=template) as llm:
        session = ChatSession(llm, **mood, **ASK)
        session.send("the quick brown fox " * 5)
        session.save(tmp_path / "talk.json")
        assert (tmp_path / "talk.json.state").exists()
        llm.reset()
        again = ChatSession.load(llm, tmp_path / "talk.json", **mood, **ASK)
        reply = again.send("and then?", stream=True)
        reply.read()
        assert reply.cache["reused"] > 20


# -- lives -----------------------------------------------------------------------------------------


def test_the_parts_of_a_model_go_with_it() -> None:
    """Without the collector: none of them knows the model, and nothing is in a circle."""
    gc.collect()
    gc.disable()
    try:
        llm = Llama(str(tiny_model("full")), **OPTIONS)
        llm.create_chat_completion([*SYSTEM, {"role": "user", "content": "x"}], **ASK)
        llm.eval(words(1, 5))
        llm.sample()
        llm.cache.snapshot("a")
        inside = llm.runtime
        each = (inside.rendering, inside.calls, inside.by_hand, inside, llm.cache)
        parts = [weakref.ref(part) for part in each]
        del inside, each
        session = llm.chat_session()
        session.send("x", max_tokens=2)
        context = llm.runtime.loaded.context
        gone = weakref.ref(llm)
        del session
        del llm
        assert gone() is None
        assert [part() for part in parts] == [None] * len(parts)
    finally:
        gc.enable()
    context.close()


def test_a_model_that_fails_to_load_leaves_nothing() -> None:
    with pytest.raises((ContextCreationError, ParameterError)):
        Llama(str(tiny_model("full")), n_ctx=1 << 30, n_seq_max=1, n_threads=1)
    with Llama(str(tiny_model("full")), **OPTIONS) as llm:
        assert llm.create_completion("x", **ASK)["choices"]


def test_arguments_are_looked_at_before_the_file() -> None:
    for wrong in (
        {"chat_format": "no-such-format"},
        {"chat_template": "{{"},
        {"n_ctx": -1},
        {"prefix_cache_slots": -1},
    ):
        with pytest.raises((ParameterError, ValueError)) as caught:
            Llama("/no/such/file.gguf", **wrong)
        assert "no/such" not in str(caught.value), wrong
