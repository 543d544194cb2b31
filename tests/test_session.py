"""``ChatSession``: turns, branches, edits, tools, and files that another process resumes."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_py import ChatSession, ContextOverflowError, Llama, TrimMessages, demo_model_path
from llama_py.api.sessions.session import TurnStream
from llama_py.errors import ClosedError, LlamaError, ParameterError, StateError, StorageError
from llama_py.memory import saving
from tests.counting import copied_from
from tests.models import tiny_model
from tests.slowness import slow_steps

#: Replies are compared as text, although logits depend a little on how tokens were batched (cells
#: in F16; and with AMX, one row and several of a quantized matrix product have different kernels):
#: the bundled model prefers its tokens by two nats and more here, and the tiny ones are in F32.
OPTIONS: dict[str, Any] = {
    "n_ctx": 1024, "flash_attn": False, "n_threads": 1, "n_threads_batch": 1,
}  # fmt: skip

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


@pytest.fixture(scope="module")
def model() -> Iterator[Llama]:
    with Llama(demo_model_path(), **OPTIONS) as llm:
        yield llm


@pytest.fixture
def llm(model: Llama) -> Llama:
    model.reset()
    return model


def session(llm: Llama, **options: Any) -> ChatSession:
    return ChatSession(llm, **{"temperature": 0.0, "max_tokens": 24, **options})


def said_by_a_fresh_model(llm: Llama, path: str | None = None) -> str:
    """What a model that has seen nothing says after the same tokens as the last turn's prompt.

    After the same *text* it may say something else: the tokens of a reply need not be those that
    its text is tokenized to.
    """
    tokens = llm.runtime.loaded.cache.live.by_number[llm.cache_info["sequence"]].tokens
    prompt = tokens[: llm.cache_info["reused"] + llm.cache_info["evaluated"]]
    with Llama(path or demo_model_path(), **OPTIONS) as fresh:
        response: Any = fresh.create_completion(prompt, temperature=0.0, max_tokens=24)
        return str(response["choices"][0]["text"])


# ---- turns -----------------------------------------------------------------------------------


def test_a_turn_is_remembered_and_reused(llm: Llama) -> None:
    chat = session(llm, system="Be brief.")
    first = chat.send("Hello!")
    assert chat.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": first},
    ]
    chat.send("My name is Anna.")
    assert llm.cache_info["session"] == chat.session_id
    assert llm.cache_info["reused"] > llm.cache_info["evaluated"]


def test_the_tenth_turn_is_what_a_fresh_model_says(llm: Llama) -> None:
    chat = session(llm)
    for number in range(9):
        chat.send(f"My number is {number}.")
    assert chat.send("What is my number?") == said_by_a_fresh_model(llm)


def test_streaming_gives_the_same_text(llm: Llama) -> None:
    whole, pieces = session(llm), session(llm)
    stream = pieces.send("Hello!", stream=True)
    assert pieces.messages == []
    texts = list(stream)
    assert len(texts) > 1
    assert "".join(texts) == whole.send("Hello!")
    assert pieces.messages == whole.messages
    assert stream.done


def test_the_completion_of_the_last_turn_is_there(llm: Llama) -> None:
    assert session(llm).last_response is None
    chat = session(llm)
    text = chat.send("Hello!", logprobs=True)
    response = chat.last_response
    assert response is not None
    assert response["choices"][0]["message"]["content"] == text
    assert response["usage"]["completion_tokens"] > 0
    logprobs = response["choices"][0]["logprobs"]
    assert logprobs is not None
    assert logprobs["content"]
    assert response.cache["evaluated"] > 0
    chat.send("And you?")
    assert chat.last_response is not None
    assert chat.last_response.cache["reused"] > response.cache["evaluated"]


def test_options_of_one_turn_go_before_those_of_the_session(llm: Llama) -> None:
    chat = session(llm, max_tokens=1)
    chat.send("Hello!")
    assert chat.last_response is not None
    assert chat.last_response["usage"]["completion_tokens"] == 1
    chat.send("Hello!", max_tokens=2)
    assert chat.last_response["usage"]["completion_tokens"] == 2


def test_messages_are_a_copy(llm: Llama) -> None:
    chat = session(llm)
    chat.send("Hello!")
    chat.messages[0]["content"] = "changed"
    assert chat.messages[0]["content"] == "Hello!"


@pytest.mark.parametrize("name", ["messages", "n", "session_id", "stream", "user"])
def test_what_the_session_sets_cannot_be_set(llm: Llama, name: str) -> None:
    options: dict[str, Any] = {name: 1}
    if name != "session_id":
        with pytest.raises(ParameterError, match=name):
            ChatSession(llm, **options)
    if name != "stream":
        with pytest.raises(ParameterError, match=name):
            session(llm).send("Hello!", **options)


def test_two_sessions_do_not_see_each_other(llm: Llama) -> None:
    alice, bob = session(llm), session(llm)
    for turn in range(4):
        for chat, name in ((alice, "Alice"), (bob, "Bob")):
            chat.send(f"My name is {name}, turn {turn}.")
    assert alice.session_id != bob.session_id
    assert "Bob" not in json.dumps(alice.messages[::2])
    for chat in (alice, bob):
        assert chat.send("What is my name?") == said_by_a_fresh_model(llm)


# ---- what fails changes nothing ----------------------------------------------------------------


def test_a_failed_turn_leaves_the_messages(llm: Llama) -> None:
    chat = session(llm)
    chat.send("Hello!")
    before = chat.messages
    with pytest.raises(ContextOverflowError):
        chat.send("word " * 3000)
    with pytest.raises(ParameterError):
        chat.send("Hello!", temperatur=1)  # type: ignore[call-overload]
    with pytest.raises(ZeroDivisionError):
        chat.send("Hello!", logits_processor=lambda _tokens, _logits: 1 / 0)  # type: ignore[arg-type, return-value]
    assert chat.messages == before
    assert chat.send("Hello!")


def test_a_raising_consumer_commits_nothing(llm: Llama) -> None:
    """Regression 11, for sessions."""
    chat = session(llm)
    seen = []

    def consume() -> None:
        for text in chat.send("Hello!", stream=True):
            seen.append(text)
            if len(seen) == 2:
                raise RuntimeError("consumer")

    with pytest.raises(RuntimeError, match="consumer"):
        consume()
    assert len(seen) == 2
    assert chat.messages == []
    assert chat.send("Hello!") == said_by_a_fresh_model(llm)
    assert not any(entry["busy"] for entry in llm.memory_report()["sequences"])


@pytest.mark.parametrize("started", [False, True])
def test_a_reply_that_is_given_up_leaves_nothing_busy(llm: Llama, started: bool) -> None:
    chat = session(llm)
    reply = chat.send("Hello!", stream=True)
    if started:
        next(reply)
    reply.close()
    del reply
    gc.collect()
    assert chat.messages == []
    assert not any(entry["busy"] for entry in llm.memory_report()["sequences"])


def test_a_new_turn_gives_up_the_reply_before_it(llm: Llama) -> None:
    chat = session(llm)
    old = chat.send("Hello!", stream=True)
    next(old)
    chat.send("How are you?")
    assert old.done
    assert list(old) == []
    assert [m["content"] for m in chat.messages if m["role"] == "user"] == ["How are you?"]


def test_a_stopped_reply_is_kept(llm: Llama) -> None:
    chat = session(llm)
    reply = chat.send("Hello!", stream=True)
    text = next(reply)
    reply.stop()
    reply.stop()
    assert [m["content"] for m in chat.messages] == ["Hello!", text]
    assert chat.send("How are you?")


def test_a_reply_that_others_cancel_is_an_error(
    llm: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_steps(monkeypatch, 0.05)
    chat = session(llm)
    reply = chat.send("Hello!", stream=True)
    next(reply)
    llm.reset()
    with pytest.raises(LlamaError):
        list(reply)
    assert chat.messages == []


def test_a_closed_session_refuses(llm: Llama) -> None:
    with session(llm) as chat:
        chat.send("Hello!")
    with pytest.raises(ClosedError):
        chat.send("Hello!")


# ---- overflow --------------------------------------------------------------------------------


def test_a_policy_leaves_out_the_oldest_turns(llm: Llama) -> None:
    chat = session(llm, system="Be brief.", overflow=TrimMessages(reserve=64), max_tokens=8)
    dropped = 0
    for number in range(20):
        chat.send(f"My number is {number}. " + "I like my dog. " * 20)
        dropped += len(chat.dropped)
    assert dropped > 0
    assert len(chat.messages) == 1 + 40 - dropped
    assert chat.messages[0]["role"] == "system"
    assert chat.messages[1]["role"] == "user"


def test_the_policy_of_the_model_is_reported_as_ones_own(llm: Llama) -> None:
    chat = session(llm, system="Be brief.", max_tokens=8)
    llm.overflow = TrimMessages(reserve=64)
    try:
        dropped = 0
        for number in range(20):
            chat.send(f"My number is {number}. " + "I like my dog. " * 20)
            dropped += len(chat.dropped)
    finally:
        llm.overflow = None
    assert dropped > 0
    assert len(chat.messages) == 1 + 40 - dropped


# ---- branches and edits ------------------------------------------------------------------------


def test_a_fork_is_independent_and_shares_the_cache(llm: Llama) -> None:
    chat = session(llm, system="Be brief. " * 10)
    chat.send("My name is Anna.")
    branch = chat.fork()
    assert branch.session_id != chat.session_id
    branch.send("What is my name?")
    assert llm.cache_info["reused"] > llm.cache_info["evaluated"]
    assert len(chat.messages) == 3
    assert len(branch.messages) == 5
    chat.send("What is 2 + 3?")
    assert llm.cache_info["reused"] > llm.cache_info["evaluated"]
    assert "2 + 3" not in json.dumps(branch.messages)


def test_regenerate_replaces_the_reply(llm: Llama) -> None:
    chat = session(llm)
    first = chat.send("Hello!")
    assert chat.regenerate() == first
    assert len(chat.messages) == 2
    stream = chat.regenerate(stream=True, temperature=2.0, seed=1, max_tokens=3)
    assert isinstance(stream, TurnStream)
    assert chat.messages[1]["content"] == first
    text = stream.read()
    assert chat.messages[1]["content"] == text
    with pytest.raises(ParameterError, match="nothing to answer"):
        session(llm).regenerate()


def test_edit_changes_a_message_and_forgets_the_rest(llm: Llama) -> None:
    chat = session(llm)
    chat.send("My name is Anna.")
    chat.send("What is 2 + 3?")
    chat.edit(0, "My name is Tom.")
    assert [m["content"] for m in chat.messages] == ["My name is Tom."]
    assert chat.regenerate() == said_by_a_fresh_model(llm)
    chat.edit(-1, "Very well.")
    assert [m["content"] for m in chat.messages] == ["My name is Tom.", "Very well."]
    with pytest.raises(ParameterError, match="2 messages"):
        chat.edit(2, "x")


def test_a_change_is_not_undone_by_a_reply_that_was_still_coming(llm: Llama) -> None:
    chat = session(llm, system="Be brief.")
    chat.send("My name is Anna.")
    for change in ("edit", "system"):
        stream = chat.send("What is my name?", stream=True)
        assert isinstance(stream, TurnStream)
        next(stream)
        if change == "edit":
            chat.edit(1, "My name is Tom.")
        else:
            chat.system = "Be kind."
        assert list(stream) == []
    assert [m["content"] for m in chat.messages] == ["Be kind.", "My name is Tom."]


def test_reset_keeps_the_system_message(llm: Llama) -> None:
    chat = session(llm, system="Be brief.")
    chat.send("Hello!")
    chat.reset()
    assert chat.messages == [{"role": "system", "content": "Be brief."}]
    chat.system = "Be kind."
    assert chat.system == "Be kind."
    chat.send("Hello!")
    chat.system = None
    assert [m["role"] for m in chat.messages] == ["user", "assistant"]


# ---- tools -------------------------------------------------------------------------------------


def two_calls() -> list[dict[str, Any]]:
    function = {"name": "get_weather", "arguments": "{}"}
    calls = [{"id": name, "type": "function", "function": function} for name in ("1", "2")]
    return [
        {"role": "user", "content": "Paris and Rome?"},
        {"role": "assistant", "content": "", "tool_calls": calls},
    ]


def test_a_tool_call_is_answered(llm: Llama) -> None:
    chat = session(llm, tools=TOOLS, max_tokens=64)
    chat.send("What is the weather in Paris?", tool_choice="required")
    calls = chat.tool_calls
    assert [call["function"]["name"] for call in calls] == ["get_weather"] * len(calls)
    assert calls
    before = chat.messages
    with pytest.raises(ParameterError, match="send_tool_result"):
        chat.send("Hello?")
    with pytest.raises(ParameterError, match="no open tool call 'wrong'"):
        chat.send_tool_result("wrong", "20 degrees")
    assert chat.messages == before
    for call in calls[:-1]:
        assert chat.send_tool_result(call["id"], "20 degrees") is None
    reply = chat.send_tool_result(calls[-1]["id"], "20 degrees", tool_choice="none")
    assert isinstance(reply, str)
    assert chat.tool_calls == []
    assert [m["role"] for m in chat.messages] == [
        "user", "assistant", *["tool"] * len(calls), "assistant",
    ]  # fmt: skip


def test_several_results_are_sent_together(llm: Llama) -> None:
    chat = session(llm, tools=TOOLS)
    chat._messages = two_calls()
    assert chat.send_tool_result("2", "cold") is None
    assert [open_call["id"] for open_call in chat.tool_calls] == ["1"]
    stream = chat.send_tool_result("1", "warm", stream=True, tool_choice="none")
    assert isinstance(stream, TurnStream)
    stream.close()
    assert len(chat.messages) == 2
    assert [open_call["id"] for open_call in chat.tool_calls] == ["1"]
    chat.send_tool_result("1", "warm", tool_choice="none")
    assert [m.get("tool_call_id") for m in chat.messages] == [None, None, "2", "1", None]


# ---- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["demo", "full", "iswa", "recurrent", "hybrid", "hybrid_swa"])
def test_another_process_resumes_without_evaluating_again(tmp_path: Path, kind: str) -> None:
    path = demo_model_path() if kind == "demo" else str(tiny_model(kind))
    file = tmp_path / "chat.json"
    with Llama(path, **OPTIONS) as llm:
        chat = session(llm)
        chat.send("My name is Anna. " * 5)
        chat.send("My number is 7.")
        chat.save(file)
        messages = chat.messages
    with Llama(path, **OPTIONS) as llm:
        resumed = ChatSession.load(llm, file, temperature=0.0, max_tokens=24)
        assert resumed.messages == messages
        assert resumed.session_id == chat.session_id
        reply = resumed.send("What is my name?")
        assert llm.cache_info["reused"] > llm.cache_info["evaluated"]
        assert reply == said_by_a_fresh_model(llm, path)


@pytest.mark.parametrize("offloaded", [False, True])
def test_a_state_that_was_copied_in_pieces_is_saved_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offloaded: bool
) -> None:
    monkeypatch.setattr(saving, "_PIECE", 40_000)  # some 20 cells
    path, file = str(tiny_model("full")), tmp_path / "chat.json"
    with Llama(path, **OPTIONS) as llm:
        chat = session(llm)
        chat.send("My name is Anna. " * 20)
        copies = copied_from(llm.runtime.loaded.context, monkeypatch)
        if offloaded:
            (sequence,) = llm.runtime.loaded.cache.live
            llm.runtime.loaded.cache.saving.offload(sequence)
            llm.runtime.loaded.cache.live.evict(sequence)
        chat.save(file)
        assert len(copies) > 6
        assert max(copies) < 60_000
    with Llama(path, **OPTIONS) as llm:
        resumed = ChatSession.load(llm, file, temperature=0.0, max_tokens=24)
        reply = resumed.send("What is my name?")
        assert llm.cache_info["evaluated"] < 60 < 200 < llm.cache_info["reused"]
        assert reply == said_by_a_fresh_model(llm, path)


def test_a_branch_that_was_overtaken_is_saved_with_its_own_state(
    llm: Llama, tmp_path: Path
) -> None:
    chat = session(llm)
    chat.send("My name is Anna. " * 5)
    chat.fork().send("The secret is 42.")
    chat.save(tmp_path / "chat.json")
    state = (tmp_path / "chat.json.state").read_bytes()
    assert b"Anna" in state
    assert b"secret" not in state
    llm.reset()
    resumed = ChatSession.load(llm, tmp_path / "chat.json", temperature=0.0)
    resumed.send("Hello!")
    assert llm.cache_info["reused"] > llm.cache_info["evaluated"]


def test_saving_without_a_state(llm: Llama, tmp_path: Path) -> None:
    chat = session(llm)
    chat.send("Hello!")
    file = tmp_path / "chat.json"
    chat.save(file)
    assert file.with_name("chat.json.state").is_file()
    chat.save(file, state=False)
    assert [path.name for path in tmp_path.iterdir()] == ["chat.json"]
    assert ChatSession.load(llm, file).messages == chat.messages


def test_a_conversation_that_is_not_in_memory_has_no_state(llm: Llama, tmp_path: Path) -> None:
    chat = session(llm)
    chat.send("Hello! " * 20)
    llm.reset()
    chat.save(tmp_path / "chat.json")
    assert json.loads((tmp_path / "chat.json").read_text())["state"] is None


def test_a_conversation_that_fills_the_context_is_saved(llm: Llama, tmp_path: Path) -> None:
    """The next turn would not fit, and nothing is in memory: there is no state, but the messages
    are what a person would miss."""
    chat = session(llm)
    for _ in range(3):
        chat.send("I like my dog. " * 10)
    chat.edit(-1, "I like my dog, too. " * 60)
    llm.reset()
    chat.save(tmp_path / "chat.json")
    assert ChatSession.load(llm, tmp_path / "chat.json").messages == chat.messages


def test_a_state_of_other_settings_is_left_alone(
    llm: Llama, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chat = session(llm)
    chat.send("Hello!")
    chat.save(tmp_path / "chat.json")
    with (
        caplog.at_level(logging.WARNING, "llama_py"),
        Llama(demo_model_path(), **{**OPTIONS, "n_ctx": 512}) as other,
    ):
        resumed = ChatSession.load(other, tmp_path / "chat.json", temperature=0.0)
        assert "other settings" in caplog.text
        assert resumed.send("Hello!")


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "description"])
def test_a_damaged_state_is_not_used(
    llm: Llama, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    file, state = tmp_path / "chat.json", tmp_path / "chat.json.state"
    chat = session(llm)
    chat.send("Hello!")
    chat.save(file)
    data = bytearray(state.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        state.write_bytes(data)
    elif damage == "cut":
        state.write_bytes(data[:-100])
    elif damage == "gone":
        state.unlink()
    else:
        saved = json.loads(file.read_text())
        saved["state"] = {"key": 3}
        file.write_text(json.dumps(saved))
    llm.reset()
    with caplog.at_level(logging.WARNING, "llama_py"):
        resumed = ChatSession.load(llm, file, temperature=0.0, max_tokens=24)
    assert "state is not used" in caplog.text
    assert resumed.messages == chat.messages
    assert resumed.send("How are you?") == said_by_a_fresh_model(llm)


@pytest.mark.parametrize(
    "content",
    [
        "not json",
        "[]",
        '{"format": "other"}',
        '{"format": "llama_py.chat_session", "version": 99}',
        '{"format": "llama_py.chat_session", "version": 1}',
        '{"format": "llama_py.chat_session", "version": 1, "session_id": "x", "messages": [3]}',
        '{"format": "llama_py.chat_session", "version": 1, "session_id": 3, "messages": []}',
        '{"format": "llama_py.chat_session", "version": 1, "session_id": "x", "messages": 5}',
    ],
)
def test_other_files_are_refused(llm: Llama, tmp_path: Path, content: str) -> None:
    file = tmp_path / "chat.json"
    file.write_text(content)
    with pytest.raises(StateError, match=r"chat\.json"):
        ChatSession.load(llm, file)


def test_a_failed_save_keeps_the_older_file(
    llm: Llama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "chat.json"
    chat = session(llm)
    chat.send("Hello!")
    chat.save(file)
    before = file.read_bytes()

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device", "somewhere")

    chat.send("How are you?")
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(
        StorageError, match=r"chat\.json cannot be written: No space left"
    ) as caught:
        chat.save(file)
    assert isinstance(caught.value, OSError)
    assert (caught.value.errno, caught.value.filename) == (28, str(file))
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chat.json", "chat.json.state"]


def test_tools_that_are_given_take_the_place_of_those_that_were_saved(
    llm: Llama, tmp_path: Path
) -> None:
    session(llm).save(tmp_path / "chat.json")
    assert ChatSession.load(llm, tmp_path / "chat.json", tools=TOOLS)._tools == TOOLS
    session(llm, tools=TOOLS).save(tmp_path / "tools.json")
    assert ChatSession.load(llm, tmp_path / "tools.json")._tools == TOOLS
    assert session(llm).reopen(tmp_path / "tools.json")._tools == TOOLS


def test_tools_and_open_results_are_saved(llm: Llama, tmp_path: Path) -> None:
    chat = session(llm, tools=TOOLS)
    chat._messages = two_calls()
    chat.send_tool_result("2", "cold")
    chat.save(tmp_path / "chat.json")
    resumed = ChatSession.load(llm, tmp_path / "chat.json", temperature=0.0, max_tokens=8)
    assert [open_call["id"] for open_call in resumed.tool_calls] == ["1"]
    assert resumed.send_tool_result("1", "warm", tool_choice="none") is not None


def test_options_of_a_session_are_not_written_to_its_file(llm: Llama, tmp_path: Path) -> None:
    """They may be functions; whoever loads the session gives them again."""
    chat = session(llm, logits_processor=[lambda tokens, logits: logits])
    chat.send("Hello!")
    chat.save(tmp_path / "chat.json")
    saved = json.loads((tmp_path / "chat.json").read_text())
    assert {*saved} == {
        "format", "version", "session_id", "messages", "tool_results", "tools", "state",
    }  # fmt: skip
    assert saved["state"] is not None
