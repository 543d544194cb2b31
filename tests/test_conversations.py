"""Conversations by name: taken out, forgotten, brought back and handed over, on every memory."""

from __future__ import annotations

from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from llama_py import Llama, LlamaDiskCache
from llama_py.api.kept.conversations import Conversations
from llama_py.engine.request import GenerationRequest, Prompt
from llama_py.errors import ConversationBusyError, ConversationMissingError, FingerprintError
from llama_py.memory.by_label import forget_sequence
from llama_py.params import GenerationParams, SamplingParams
from llama_py.states.whole import read_whole, write_whole
from tests.models import KINDS, tiny_model

#: Letters are text in every vocabulary: what was said is found by its text.
LETTERS = "root ::= [a-z ]+"
STORY = "The quick brown fox jumps over the lazy dog. " * 4

Messages = list[dict[str, str]]


@pytest.fixture(params=KINDS)
def llm(request: pytest.FixtureRequest) -> Iterator[Llama]:
    with Llama(tiny_model(request.param), n_ctx=1024, n_seq_max=4, n_threads=1) as llm:
        yield llm


@pytest.fixture
def held(llm: Llama) -> Conversations:
    return Conversations(llm.runtime.port)


def say(llm: Llama, messages: Messages, text: str, session: str) -> tuple[Messages, dict[str, Any]]:
    """The conversation with a reply, and what was reused for that."""
    asked = [*messages, {"role": "user", "content": text}]
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "grammar": LETTERS}
    reply = llm.create_chat_completion(asked, session_id=session, **options)
    message = reply["choices"][0]["message"]
    said = {"role": "assistant", "content": message["content"] or ""}
    return [*asked, said], reply.cache


def saved(held: Conversations, session: str, path: Path) -> Path:
    with path.open("wb") as file:
        write_whole(file, held.export(session))
    return path


def restored(held: Conversations, path: Path, session: str) -> None:
    with FileIO(str(path)) as file:
        held.bring_in(read_whole(file, path), session)


def test_out_forgotten_and_back(llm: Llama, held: Conversations, tmp_path: Path) -> None:
    messages, _ = say(llm, [], STORY, "anna")
    path = saved(held, "anna", tmp_path / "anna")
    assert held.forget("anna") > 40
    assert held.held() == []
    assert not len(llm.runtime.loaded.cache.index.checkpoints)
    _, cold = say(llm, messages, "And then?", "bob")
    assert cold["reused"] == 0
    held.forget("bob")
    restored(held, path, "anna")
    (only,) = held.held()
    assert only.session == "anna"
    _, warm = say(llm, messages, "And then?", "anna")
    assert warm["evaluated"] <= cold["evaluated"] - 50
    assert warm["evaluated"] < 40


def test_in_pieces(tmp_path: Path) -> None:
    with Llama(tiny_model("full"), n_ctx=1024, n_threads=1) as llm:
        llm.runtime.loaded.cache.saving.piece = 20_000
        held = Conversations(llm.runtime.port)
        messages, _ = say(llm, [], STORY, "anna")
        assert len(held.export("anna").segments) > 2
        path = saved(held, "anna", tmp_path / "anna")
        held.forget("anna")
        restored(held, path, "anna")
        assert say(llm, messages, "And then?", "anna")[1]["evaluated"] < 40


def test_what_another_one_begins_with_stays(llm: Llama, held: Conversations) -> None:
    messages, _ = say(llm, [], STORY, "anna")
    say(llm, messages, "One.", "anna")
    other, _ = say(llm, messages, "Two, and something else.", "bob")
    held.forget("anna")
    _, cache = say(llm, other, "Three.", "bob")
    assert cache["evaluated"] < 40
    _, cache = say(llm, messages, "Another one.", "carl")  # from where the two parted
    assert cache["evaluated"] < 40


def test_both_of_a_fork_go_on_from_the_common_beginning(llm: Llama) -> None:
    messages, _ = say(llm, [], STORY, "anna")
    longer, _ = say(llm, messages, "One.", "anna")
    say(llm, longer, "And more.", "anna")
    _, cache = say(llm, messages, "Two.", "branch")
    assert cache["evaluated"] < 40


def test_it_is_handed_over(llm: Llama, held: Conversations, tmp_path: Path) -> None:
    with LlamaDiskCache(str(tmp_path)) as store:
        llm.cache.set_store(store)
        messages, _ = say(llm, [], STORY, "anna")
        held.save("anna")
        assert store.find_session("anna", None)
        held.rename("anna", "branch")
        held.forget("anna")
        assert not store.find_session("anna", None)
        assert len(store.find_session("branch", None)) == 1
        assert [each.session for each in held.held()] == ["branch"]
        assert say(llm, messages, "Two.", "branch")[1]["evaluated"] < 40
        held.forget("branch")
        assert not store.find_session("branch", None)
        assert say(llm, messages, "Two.", "branch")[1]["reused"] == 0


def test_handed_over_when_only_the_stores_have_it(tmp_path: Path) -> None:
    with LlamaDiskCache(str(tmp_path)) as store:
        with Llama(tiny_model("full"), n_ctx=1024, n_threads=1) as llm:
            llm.cache.set_store(store)
            messages, _ = say(llm, [], STORY, "anna")
            Conversations(llm.runtime.port).save("anna")
        with Llama(tiny_model("full"), n_ctx=1024, n_threads=1) as llm:
            llm.cache.set_store(store)
            held = Conversations(llm.runtime.port)
            held.rename("anna", "branch")
            held.forget("anna")
            assert len(store.find_session("branch", None)) == 1
            assert say(llm, messages, "Two.", "branch")[1]["evaluated"] < 40


def test_what_is_just_being_saved(llm: Llama, held: Conversations, tmp_path: Path) -> None:
    with LlamaDiskCache(str(tmp_path)) as store:
        say(llm, [], STORY, "anna")
        llm.cache.set_store(store)

        def save_and_forget() -> None:
            (sequence,) = llm.runtime.loaded.cache.live
            llm.runtime.loaded.cache.saving.begin(sequence)
            assert llm.runtime.loaded.cache.saving.pending
            forget_sequence(llm.runtime.loaded.cache, sequence)

        llm.runtime.loaded.driver.run(save_and_forget)
        assert llm.cache.flush()
        assert len(store) == 0


def test_nothing_of_another_owner(llm: Llama, held: Conversations, tmp_path: Path) -> None:
    own = llm.runtime.port.facts.namespace
    mine, theirs = (own, "a"), (own, "b")
    request = GenerationRequest(
        Prompt(text=STORY.encode()),
        SamplingParams(temperature=0),
        GenerationParams(max_tokens=2),
        session="anna",
        namespace=mine,
    )
    llm.runtime.run(request)
    (only,) = held.held()
    for which in ("anna", only.sequence):
        with pytest.raises(ConversationMissingError):
            held.export(which, theirs)
        with pytest.raises(ConversationMissingError):
            held.export(which)
    assert held.forget("anna", theirs) == 0
    state = held.export(only.sequence, mine)
    for other in (theirs, None):
        with pytest.raises(FingerprintError):
            held.bring_in(state, "anna", other)
    assert held.forget(only.sequence, mine) == len(state.tokens)
    held.bring_in(state, "anna", mine)
    held.bring_in(state, "anna", mine)
    assert len(held.held()) == 1


def test_what_is_in_use(held: Conversations, llm: Llama) -> None:
    # It stands still when it is 256 tokens ahead of its reader.
    options: dict[str, Any] = {"stream": True, "max_tokens": 600, "ignore_eos": True}
    stream = llm.create_completion(STORY, session_id="anna", **options)
    next(stream)
    (only,) = held.held()
    assert only.busy
    assert only.work is not None
    assert only.work.generated >= 1
    for act in (held.export, held.forget):
        for which in ("anna", only.sequence):
            with pytest.raises(ConversationBusyError):
                act(which)
    with pytest.raises(ConversationBusyError):
        held.rename("anna", "bob")
    stream.close()
    assert held.forget(only.sequence) > 0
    with pytest.raises(ConversationMissingError):
        held.forget(only.sequence)
    assert held.forget("anna") == 0
