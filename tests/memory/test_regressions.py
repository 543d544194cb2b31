"""Regression tests of reuse. Each compares with a context that begins from nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_py import Llama, LlamaDiskCache, LlamaRAMCache, demo_model_path
from llama_py.core.model import Model
from llama_py.errors import ContextOverflowError, FingerprintError, ParameterError, StateError
from llama_py.memory import kinds
from tests.memory.oracle import Oracle, nmse
from tests.models import KINDS, tiny_model

SWA_MODEL = Path(__file__).parents[1] / "data" / "demo-swa-q8_0.gguf"
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True}
EXACT: dict[str, Any] = {
    "n_ctx": 512,
    "n_threads": 1,
    "flash_attn": False,
    "type_k": 0,
    "type_v": 0,
}
#: Noise of one-token against many-token steps; a lost cell is above 1e-3.
CLOSE = 1e-9

Loader = Callable[..., Llama]


@pytest.fixture
def load() -> Iterator[Loader]:
    """Load models that are closed after the test."""
    loaded: list[Llama] = []

    def loader(kind: str = "full", **options: Any) -> Llama:
        loaded.append(Llama(str(tiny_model(kind)), **{**EXACT, **options}))
        return loaded[-1]

    yield loader
    for llm in loaded:
        llm.close()


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def reply(llm: Llama, messages: list[dict[str, str]], **options: Any) -> str:
    response = llm.create_chat_completion(messages, **{**GREEDY, **options})
    return response["choices"][0]["message"]["content"] or ""


def say(llm: Llama, prompt: str, reply: list[int]) -> str:
    """Let the model answer with these very tokens."""
    length = len(llm.tokenize(prompt, special=True))

    def want(tokens: Any, logits: Any) -> Any:
        logits[reply[len(tokens) - length]] = 1e6
        return logits

    answer = llm.create_completion(
        prompt, temperature=0.0, max_tokens=len(reply), ignore_eos=True, logits_processor=want
    )
    return str(answer["choices"][0]["text"])


def assert_like_fresh(llm: Llama, path: Path | None = None, kind: str = "full") -> None:
    """The last call's tokens and logits are those of an empty context."""
    request = llm.runtime.last.record
    oracle = Oracle(path or tiny_model(kind), n_ctx=llm.n_ctx())
    tokens, row = oracle.greedy(request.tokens, max(1, len(request.generated)))
    oracle.close()
    assert nmse(llm.last_logits, row) < CLOSE, llm.cache_info
    if request.generated:
        assert request.generated == tokens, llm.cache_info


LONG = "the quick brown fox jumps over the lazy dog. " * 3


@pytest.mark.parametrize("swa_full", [False, True])
def test_the_second_and_the_sixth_chat_on_a_sliding_window(load: Loader, swa_full: bool) -> None:
    llm = load("iswa", swa_full=swa_full)
    messages: list[dict[str, str]] = []
    for number in range(6):
        messages.append(user(f"{number} {LONG}"))
        text = reply(llm, messages)
        assert_like_fresh(llm, kind="iswa")
        if number:
            assert llm.cache_info["reused"] > 0
        messages.append(assistant(text))


def test_a_trained_sliding_window_model_reuses_across_turns() -> None:
    """The model answers with facts from its first turn, through a window of 64 tokens."""
    turns = [
        "My name is Anna.", "What is 2 + 3?", "Count to 5.", "What is 7 - 4?",
        "What is 4 + 4?", "What is my name?",
    ]  # fmt: skip
    warm, cold = _six_turns(turns, reuse=True), _six_turns(turns, reuse=False)
    assert warm == cold
    assert "Anna" in warm[-1]


def _six_turns(turns: list[str], *, reuse: bool) -> list[str]:
    replies = []
    with Llama(str(SWA_MODEL), n_ctx=1024, n_threads=1, flash_attn=False) as llm:
        messages: list[dict[str, str]] = []
        for turn in turns:
            if not reuse:
                llm.reset()
            messages.append(user(turn))
            answer = llm.create_chat_completion(messages, temperature=0.0, max_tokens=40)
            replies.append(answer["choices"][0]["message"]["content"] or "")
            messages.append(assistant(replies[-1]))
            assert (llm.cache_info["reused"] > 0) is (reuse and len(messages) > 2)
    return replies


@pytest.mark.parametrize("kind", KINDS)
def test_reset_clears_memory_and_counters(load: Loader, kind: str) -> None:
    llm = load(kind)
    reply(llm, [user("alpha beta")])
    llm.reset()
    assert llm.memory_report()["sequences"] == []
    assert llm.memory_report()["cells_used"] == 0
    assert llm.memory_report()["bytes"]["checkpoints"] == 0
    assert llm.metrics["requests"] == 0
    assert all(
        llm.runtime.loaded.context.pos_max(seq) == -1
        for seq in range(llm.runtime.loaded.context.n_seq_max)
    )
    reply(llm, [user("alpha beta")])
    assert llm.cache_info["reused"] == 0


@pytest.mark.parametrize("kind", ["iswa", "recurrent", "hybrid", "hybrid_swa"])
def test_extension_reuses_and_divergence_restores(load: Loader, kind: str) -> None:
    # Long enough that even a window's cache, which is padded to 256 cells, has lost the beginning.
    llm = load(kind, n_ctx=1024, n_ubatch=64, n_seq_max=2)
    first = [user(LONG * 14)]
    text = reply(llm, first)
    before = len(llm.runtime.last.record.tokens)
    longer = [*first, assistant(text), user("beta")]
    reply(llm, longer)
    assert llm.cache_info["reused"] >= before - 1
    assert_like_fresh(llm, kind=kind)
    # Another second turn: back to a checkpoint at the end of the first prompt, or before it.
    reply(llm, [*first, assistant("other"), user("beta")])
    assert llm.cache_info["restored_bytes"] > 0
    assert 0 < llm.cache_info["reused"] <= before
    assert_like_fresh(llm, kind=kind)


@pytest.mark.parametrize("kind", KINDS)
def test_cached_and_shorter_prompts_get_fresh_logits(load: Loader, kind: str) -> None:
    llm = load(kind)
    tokens = llm.tokenize(LONG)
    for prompt in (tokens, tokens, tokens[:30], tokens[:5]):
        llm.create_completion(prompt, **GREEDY)
        assert_like_fresh(llm, kind=kind)
    llm.create_completion(tokens, **GREEDY)
    assert llm.cache_info["evaluated"] == 1
    assert_like_fresh(llm, kind=kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reply_that_tokenizes_otherwise_takes_the_text_path(load: Loader, kind: str) -> None:
    llm = load(kind)
    prompt = "<|im_start|>user\n fox<|im_end|>\n<|im_start|>assistant\n"
    letters = [
        token for letter in "the quick brown" for token in llm.tokenize(letter, add_bos=False)
    ]
    assert letters != llm.tokenize("the quick brown", add_bos=False)
    assert say(llm, prompt, letters) == "the quick brown"
    before = [*llm.runtime.last.record.tokens, *letters]
    llm.create_completion(f"{prompt}the quick brown<|im_end|>\n<|im_start|>user\n", **GREEDY)
    assert llm.cache_info["path"] == "text"
    assert llm.cache_info["reused"] == len(before) - 1  # the last token was not decoded
    assert llm.runtime.last.record.tokens[: len(before)] == before
    assert_like_fresh(llm, kind=kind)


@pytest.mark.parametrize("kind", KINDS)
def test_one_changed_byte_in_the_history(load: Loader, kind: str) -> None:
    llm = load(kind)
    history = [user(LONG), assistant("one two three"), user("go on")]
    reply(llm, history)
    changed = [history[0], assistant("one twX three"), history[2]]
    warm = reply(llm, changed)
    assert 0 < llm.cache_info["reused"] < len(llm.runtime.last.record.tokens) - 1
    assert_like_fresh(llm, kind=kind)
    llm.reset()
    assert reply(llm, changed) == warm


def test_sessions_are_chosen_by_the_user_parameter_alone(load: Loader) -> None:
    llm = load()
    chats = {name: [user(f"I am {name}. {LONG}")] for name in ("alice", "bob")}
    for _ in range(3):
        for name, messages in chats.items():
            text = reply(llm, messages, user=name)
            assert llm.cache_info["session"] == name
            assert_like_fresh(llm)
            messages += [assistant(text), user("and then")]
    sessions = {entry["session"] for entry in llm.memory_report()["sequences"]}
    assert sessions == {"alice", "bob"}
    reply(llm, [user("alice")])
    assert llm.cache_info["session"] is None


def test_nothing_of_one_session_reaches_the_other(load: Loader) -> None:
    llm = load()
    reply(llm, [user("My secret is 12345.")], user="alice")
    warm = reply(llm, [user("What is the secret?")], user="bob")
    llm.reset()
    assert reply(llm, [user("What is the secret?")], user="bob") == warm


@pytest.mark.parametrize("kind", KINDS)
def test_overflow_touches_nothing(load: Loader, kind: str) -> None:
    llm = load(kind, n_ctx=256)
    messages = [user(LONG)]
    text = reply(llm, messages)
    before = llm.memory_report()["sequences"]
    limit = llm.n_ctx()
    with pytest.raises(ContextOverflowError) as caught:
        llm.create_chat_completion([*messages, user("0 1 2 3 4 5 " * 300)])
    assert caught.value.limit == limit
    assert caught.value.prompt_tokens > limit
    assert str(limit) in str(caught.value)
    assert llm.memory_report()["sequences"] == before
    reply(llm, [*messages, assistant(text), user("x")])
    assert llm.cache_info["reused"] > 0
    assert_like_fresh(llm, kind=kind)


def test_another_kv_type_evaluates_again(load: Loader, tmp_path: Path) -> None:
    messages = [user(LONG)]
    store = LlamaDiskCache(str(tmp_path))
    for kv_type, reused in ((0, False), (0, True), (1, False)):
        llm = load(type_k=kv_type, type_v=kv_type)
        llm.set_cache(store)
        reply(llm, messages)
        assert (llm.cache_info["reused"] > 0) is reused, llm.cache_info
        if kv_type == 1:
            assert "fingerprint" in llm.cache_info["reason"]
        llm.close()
    store.close()


def test_a_cache_that_was_closed_is_given_up(
    load: Loader, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    llm = load()
    for store in (LlamaDiskCache(str(tmp_path)), LlamaRAMCache()):
        llm.set_cache(store)
        first = reply(llm, [user(LONG)])
        store.close()
        llm.reset()
        assert reply(llm, [user(LONG)]) == first
        assert caplog.text.count("closed") == 1
        caplog.clear()
        reply(llm, [user("another")])
        assert not caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_what_eval_evaluates_is_known(load: Loader, kind: str) -> None:
    llm = load(kind)
    tokens = llm.tokenize(LONG)
    llm.eval(tokens[:10])
    llm.eval(tokens[10:])
    assert llm.n_tokens == len(tokens)
    llm.create_completion(LONG + "\nthe", **GREEDY)
    assert llm.cache_info["reused"] == len(tokens)
    assert_like_fresh(llm, kind=kind)
    # The sequence of eval went to the cache: a new one begins from nothing.
    assert llm.n_tokens == 0


@pytest.mark.parametrize("kind", KINDS)
def test_snapshot_after_four_of_eight_tokens(load: Loader, kind: str) -> None:
    llm = load(kind)
    prompt = llm.tokenize(LONG)
    first = _continue(llm, prompt, 4)
    llm.snapshot("half")
    rest = _continue(llm, [*prompt, *first], 4)
    llm.reset()
    info = llm.restore("half")
    assert info.n_tokens >= len(prompt) + 3
    assert _continue(llm, [*prompt, *first], 4) == rest
    assert llm.cache_info["evaluated"] == 1  # what its logits need, and nothing more


def _continue(llm: Llama, tokens: list[int], count: int) -> list[int]:
    llm.create_completion(tokens, temperature=0.0, max_tokens=count, ignore_eos=True)
    return list(llm.runtime.last.record.generated)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_never_carries_the_logits_of_another_place(load: Loader, kind: str) -> None:
    """The sequence goes on after the call whose logits were kept, and that is given up."""
    llm = load(kind)
    tokens = list(range(20, 40))
    llm.create_completion(tokens, **GREEDY)
    request = llm.runtime.last.record
    more = [*request.tokens, *request.generated, 50, 51, 52]
    with llm.create_completion(more, **{**GREEDY, "max_tokens": 400}, stream=True) as stream:
        next(stream)
    assert llm.cache_info["action"] == "continue"
    assert llm.save_state().logits is None
    llm.eval(tokens)
    assert llm.save_state().logits is llm.last_logits


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_of_a_part(load: Loader, kind: str) -> None:
    """Where the memory can give it back; refused with the reason where it cannot."""
    llm = load(kind)
    tokens = llm.tokenize(LONG)
    llm.create_completion(tokens, temperature=0.0, max_tokens=3, ignore_eos=True)
    if kind in ("full", "iswa"):
        assert llm.snapshot("part", length=20).n_tokens == 20
        llm.reset()
        llm.restore("part")
        llm.create_completion(tokens, **GREEDY)
        assert llm.cache_info["reused"] == 20
        assert_like_fresh(llm, kind=kind)
        return
    with pytest.raises(StateError, match="recurrent state cannot be cut"):
        llm.snapshot("part", length=20)
    assert llm.snapshots() == []
    assert llm.snapshot("end", length=len(tokens) - 1).n_tokens == len(tokens) - 1  # a checkpoint


def test_a_failed_snapshot_keeps_the_old_one(load: Loader) -> None:
    llm = load()
    reply(llm, [user("alpha")])
    old = llm.snapshot("a")
    llm.reset()
    with pytest.raises(Exception, match="nothing was evaluated"):
        llm.snapshot("a")
    assert llm.snapshots() == [old]
    reply(llm, [user("alpha beta " + LONG)])
    new = llm.snapshot("a")
    assert new.n_tokens > old.n_tokens
    assert llm.snapshots() == [new]


def test_an_aborted_put_keeps_the_old_entry(load: Loader) -> None:
    llm = load()
    reply(llm, [user(LONG)])
    state = llm.save_state().stored
    store = LlamaRAMCache()
    old = store.put(state)
    pending = store.prepare(state, replaces=old)
    assert pending is not None
    pending.abort()
    assert old is not None
    assert store.get(old) is not None
    with store.prepare(state, replaces=old) as again:  # type: ignore[union-attr]
        new = again.confirm()
    assert new is not None
    assert store.get(new) is not None
    assert len(store) == 1


def test_slots_are_clamped_with_a_warning(load: Loader, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "llama_py"):
        llm = load(prefix_cache_slots=9)
    assert "clamped to 8" in caplog.text
    reply(llm, [user("alpha")])
    for number in range(10):
        llm.snapshot(str(number))
    assert [info.name for info in llm.snapshots()] == [str(number) for number in range(2, 10)]
    off = load(prefix_cache_slots=0)
    reply(off, [user("alpha")])
    with pytest.raises(ParameterError, match="prefix_cache_slots"):
        off.snapshot("a")


def test_the_fingerprint_covers_what_states_depend_on(load: Loader) -> None:
    plain = load("iswa").runtime.loaded.fingerprint
    for changes in ({"type_k": 1}, {"type_v": 1}, {"swa_full": True}, {"n_ctx": 1024},
                    {"rope_freq_base": 5000.0}, {"flash_attn": True},
                    {"attention_type": 1}):  # fmt: skip
        assert load("iswa", **changes).runtime.loaded.fingerprint != plain, changes
    assert load("full").runtime.loaded.fingerprint != plain
    assert load("iswa").runtime.loaded.fingerprint == plain


def test_without_a_causal_mask_nothing_is_reused(load: Loader) -> None:
    """What a token left in memory depends on those behind it, so no beginning is like another."""
    warm, cold = load(attention_type=1), load(attention_type=1)
    tokens = list(range(20, 60))
    warm.create_completion(tokens, **GREEDY)
    for llm in (warm, cold):
        llm.create_completion(tokens[:30], **GREEDY)
    assert nmse(warm.last_logits, cold.last_logits) < CLOSE
    assert warm.cache_info["reused"] == 0


def test_a_snapshot_of_another_context_is_refused(load: Loader) -> None:
    llm, other = load(), load(n_ctx=1024)
    reply(llm, [user(LONG)])
    state = llm.save_state()
    with pytest.raises(FingerprintError, match="context size"):
        other.load_state(state)
    reply(other, [user("alpha")])
    assert_like_fresh(other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("separator", ["", "\n", "\n\n"])
def test_the_deepest_boundary_wins(load: Loader, kind: str, separator: str) -> None:
    """Five prompts that branch ever deeper: each resumes at the deepest role boundary it shares."""
    llm = load(kind, n_ctx=1024)
    system = {"role": "system", "content": f"You have tools. {LONG}{separator}"}
    deep = [system, user("one" + separator), assistant("two"), user("three"), assistant("four")]
    reply(llm, [*deep, user("five")])
    shared = []
    for depth in (1, 3, 5):
        reply(llm, [*deep[:depth], user(f"other {depth}")])
        shared.append(llm.cache_info["reused"])
        assert_like_fresh(llm, kind=kind)
    assert shared == sorted(shared)
    assert shared[0] > 0


def test_no_empty_reply_over_growing_prefixes() -> None:
    """Six growing prompts; the same with a cache and without."""
    lint = "src/a.py:12:5: E501 line too long (101 > 100 characters)\n"
    sizes = [130, 500, 1000, 1500, 2000, 2600]
    path = str(tiny_model("full"))
    with Llama(path, n_ctx=4096, n_threads=2, flash_attn=False) as llm:
        warm = [reply(llm, [user("check\n" + (lint * 60)[:size])]) for size in sizes]
        assert all(warm)
        cold = []
        for size in sizes:
            llm.reset()
            cold.append(reply(llm, [user("check\n" + (lint * 60)[:size])]))
    assert warm == cold


@pytest.mark.parametrize("added", [("bos",), ("eos",), ("bos", "eos")])
def test_tokens_that_the_vocabulary_adds_are_those_of_a_cold_prompt(
    load: Loader, added: tuple[str, ...]
) -> None:
    """BOS not twice where nothing of the text could be kept, and EOS behind a cached text too."""
    overrides: dict[str, Any] = {f"tokenizer.ggml.add_{which}_token": True for which in added}
    llm = load(kv_overrides=overrides)
    for text in (" qu", " quick", "the quick brown", "the quick brown", "the quick red dog"):
        llm.create_completion(text, **GREEDY)
        assert llm.runtime.last.record.tokens == llm.tokenize(text)
    assert llm.cache_info["reused"] > 1


@pytest.mark.parametrize("kind", ["iswa", "recurrent", "hybrid", "hybrid_swa"])
def test_a_short_question_behind_a_long_system_prompt_reuses_it(load: Loader, kind: str) -> None:
    """What follows the common beginning may be as short as it likes."""
    llm = load(kind)
    system = {"role": "system", "content": "the quick brown fox jumps " * 12}
    for question in ("a", "bb", "c d"):
        reply(llm, [system, user(question)])
    assert llm.cache_info["evaluated"] < 24 < llm.cache_info["reused"]
    assert_like_fresh(llm, kind=kind)


def test_tokens_that_spell_a_prompt_otherwise_change_nothing_for_the_text() -> None:
    """A user who tokenizes a chat by hand must not change what others are answered."""
    messages = [user("What is 2 + 3?")]
    with Llama(demo_model_path(), n_ctx=512, n_threads=1) as llm:
        cold = llm.create_chat_completion(messages, temperature=0)
        text = (llm.runtime.calls.prompt_of(messages, {}).text or b"").decode()
        llm.reset()
        for tokens in (
            llm.tokenize(text, add_bos=False, special=False),
            [token for letter in text for token in llm.tokenize(letter, add_bos=False)],
        ):
            llm.create_completion(tokens, max_tokens=1)
            warm = llm.create_chat_completion(messages, temperature=0)
            assert warm["choices"][0]["message"]["content"] == "2 + 3 = 5."
            assert warm["usage"]["prompt_tokens"] == cold["usage"]["prompt_tokens"]


def test_a_prompt_given_as_tokens_is_stored_without_a_text(tmp_path: Path) -> None:
    """Nor does it reach the next process, or another model beside it, as a text."""
    messages = [user("What is 2 + 3?")]
    store = LlamaDiskCache(str(tmp_path))
    with Llama(demo_model_path(), n_ctx=512, n_threads=1) as llm:
        llm.set_cache(store)
        text = (llm.runtime.calls.prompt_of(messages, {}).text or b"").decode()
        llm.create_completion([t for x in text * 3 for t in llm.tokenize(x, add_bos=False)])
        assert len(store) == 1
    with Llama(demo_model_path(), n_ctx=512, n_threads=1) as llm:
        llm.set_cache(store)
        warm = llm.create_chat_completion(messages, temperature=0)
        assert warm["choices"][0]["message"]["content"] == "2 + 3 = 5."
        assert llm.cache_info["reused"] == 0
    store.close()


def test_a_prompt_fits_or_not_whatever_a_reply_was_spelled_like(load: Loader) -> None:
    llm = load("full")
    prompt = "<|im_start|>user\n fox<|im_end|>\n<|im_start|>assistant\n"
    letters = [t for letter in "the quick brown" * 9 for t in llm.tokenize(letter, add_bos=False)]
    said = say(llm, prompt, letters)
    after = prompt + said + "<|im_end|>\n"
    fresh = len(llm.tokenize(after, special=True))
    room = llm.runtime.loaded.cache.limit - fresh
    filled = after + " fox" * room
    filled = filled[: len(filled) - 4 * (len(llm.tokenize(filled, special=True)) - room - fresh)]
    llm.create_completion(filled, max_tokens=1, temperature=0.0)
    assert llm.runtime.last.record.n_prompt == len(llm.tokenize(filled, special=True))


@pytest.mark.parametrize("cuts", [False, True])
def test_a_fork_of_a_memory_that_copies_whole_sequences_only(
    load: Loader, monkeypatch: pytest.MonkeyPatch, cuts: bool
) -> None:
    """There is no room for the source and a copy with cells of its own: the source goes, and what
    was known of it is the fork's. Where a copy shares its cells, nothing goes."""
    with Model(tiny_model("hybrid")) as model:
        names = frozenset({model.architecture})
    monkeypatch.setattr(kinds, "WHOLE_COPIES_ONLY", names)
    monkeypatch.setattr(kinds, "_CUTS_COPIES", names if cuts else frozenset())
    llm = load("hybrid", n_seq_max=3)
    prompt = [int(token) for token in np.random.default_rng(7).integers(0, 500, 330)]
    llm.create_completion(prompt, **{**GREEDY, "max_tokens": 40})
    first = [*prompt, *llm.runtime.last.record.generated]
    assert_like_fresh(llm, kind="hybrid")
    llm.create_completion([*prompt[:-1], 5, 6, 7], **GREEDY)
    assert llm.cache_info["action"] == "fork"
    assert llm.cache_info["reused"] == len(prompt) - 1
    assert_like_fresh(llm, kind="hybrid")
    assert llm.runtime.loaded.cache.stores.offloaded == (0 if cuts else 1)
    llm.create_completion([*first, 8, 9], **GREEDY)
    assert llm.cache_info["reused"] == len(first) - 1
    assert_like_fresh(llm, kind="hybrid")
