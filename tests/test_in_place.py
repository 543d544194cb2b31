"""Without any thread: the caller steps the engine."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from llama_py import Llama, LlamaDiskCache, demo_model_path
from llama_py.chat.grammars import guidance
from llama_py.errors import LlamaError, RequestCancelled

QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


def content(reply: Any) -> str:
    return str(reply["choices"][0]["message"]["content"])


@pytest.mark.usefixtures("no_threads")
def test_slow_masks_are_computed_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guidance, "_SLOW", -1.0)  # every mask is handed over
    guidance._workers.cache_clear()
    with Llama(demo_model_path(), n_ctx=1024, in_place=True) as llm:
        schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
        reply = llm.create_chat_completion(
            QUESTION, temperature=0, response_format={"type": "json_object", "schema": schema}
        )
    assert isinstance(json.loads(content(reply))["age"], int)


@pytest.mark.usefixtures("no_threads")
@pytest.mark.parametrize("in_place", [True, False], ids=["asked for", "no thread to be had"])
def test_a_model_loads_chats_streams_and_closes_without_threads(
    in_place: bool, tmp_path: Path
) -> None:
    with (
        LlamaDiskCache(str(tmp_path)) as store,
        Llama(demo_model_path(), n_ctx=1024, in_place=in_place) as llm,
    ):
        llm.cache.set_store(store)
        assert content(llm.create_chat_completion(QUESTION, temperature=0)) == "2 + 3 = 5."
        stream = llm.create_chat_completion(QUESTION, temperature=0, stream=True)
        deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in stream]
        assert "".join(deltas) == "2 + 3 = 5."
        several = llm.create_chat_completion(QUESTION, temperature=1.0, n=3, seed=1)
        assert len(several["choices"]) == 3
        reply = llm.create_chat_completion(
            QUESTION, temperature=0, response_format={"type": "json_object"}, max_tokens=20
        )
        assert content(reply).lstrip().startswith("{")
        session = llm.chat_session(temperature=0)
        session.send("My name is Anna.")
        assert "Anna" in str(session.send("What is my name?"))
        llm.eval(llm.tokenize("Once upon"))
        assert isinstance(llm.sample(temperature=0.0), int)
        state = llm.save_state()
        llm.reset()
        llm.load_state(state)
        assert llm.score("Once upon", [" a time"])[0].logprob < 0
        llm.create_completion("Once upon a time", max_tokens=80, ignore_eos=True)
        assert llm.cache.flush()
        assert len(store) >= 1


def test_a_stream_that_is_left_leaves_nothing(tmp_path: Path) -> None:
    with Llama(demo_model_path(), n_ctx=1024, in_place=True) as llm:
        stream = llm.create_completion("Once", max_tokens=400, ignore_eos=True, stream=True)
        next(stream)
        del stream
        other = llm.create_completion("Once", max_tokens=400, ignore_eos=True, stream=True)
        next(other)
        other.close()
        assert list(other) == []
        third = llm.create_completion("Once", max_tokens=400, ignore_eos=True, stream=True)
        llm.reset()
        with pytest.raises(RequestCancelled):
            list(third)
        assert llm.metrics["requests"] == 0
        assert llm.cache.report()["cells_used"] == 0


def test_callbacks_cannot_call_the_model() -> None:
    with Llama(demo_model_path(), n_ctx=1024, in_place=True) as llm:

        def stop(*_: Any) -> bool:
            llm.reset()
            return True

        with pytest.raises(LlamaError, match="a callback of a request"):
            llm.create_completion("Once", max_tokens=5, stopping_criteria=stop)
        after = llm.create_completion("Once", max_tokens=5, temperature=0, ignore_eos=True)
        assert after["usage"]["completion_tokens"] == 5
