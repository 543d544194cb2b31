"""A stop button: another thread closes a stream that is being read, at any moment.

The reader's loop ends, as if the reply had, nobody gets an error, and the model is free again.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from llama_py import Llama
from llama_py.api.sessions.session import TurnStream
from tests.models import tiny_model
from tests.patience import PATIENCE

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
LONG = [40 + i * 7 % 200 for i in range(1500)]
CHAT: Any = [{"role": "user", "content": "the quick brown fox"}]


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(tiny_model("full"), n_ctx=2048, n_threads=1, flash_attn=False) as opened:
        yield opened


#: Streams that would last far longer than the test.
STREAMS: dict[str, Callable[[Llama], Any]] = {
    "completion": lambda llm: llm.create_completion(
        [5, 6, 7], max_tokens=1900, stream=True, **GREEDY
    ),
    "chat": lambda llm: llm.create_chat_completion(CHAT, max_tokens=1900, stream=True, **GREEDY),
    "choices": lambda llm: llm.create_completion(
        [5, 6, 7], max_tokens=400, n=3, stream=True, **GREEDY
    ),
    "a long prompt": lambda llm: llm.create_completion(LONG, max_tokens=500, stream=True, **GREEDY),
    "session": lambda llm: llm.chat_session().send(
        "Hello!", stream=True, max_tokens=1900, **GREEDY
    ),
}


class Reader(threading.Thread):
    """Reads a stream to its end in a thread of its own."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self.stream = stream
        self.read = 0
        self.begun = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in self.stream:
                self.read += 1
                self.begun.set()
        except BaseException as error:
            self.error = error
        finally:
            self.begun.set()


@pytest.mark.parametrize("name", STREAMS)
def test_another_thread_closes_it(llm: Llama, name: str) -> None:
    llm.reset()
    expected = llm.create_completion([9, 8, 7], max_tokens=5, **GREEDY)["choices"][0]["text"]
    draw = random.Random(name)
    for turn in range(12):
        llm.reset()
        reader = Reader(STREAMS[name](llm))
        reader.start()
        if turn % 2:  # while it waits for a token; else perhaps before the first one
            assert reader.begun.wait(PATIENCE)
        threading.Event().wait(draw.uniform(0, 0.01))
        reader.stream.close()
        reader.join(PATIENCE)
        assert not reader.is_alive()
        assert reader.error is None
        assert reader.read < 1200
        assert next(reader.stream, None) is None
        again = llm.create_completion([9, 8, 7], max_tokens=5, **GREEDY)
        assert again["choices"][0]["text"] == expected
    assert not any(sequence["busy"] for sequence in llm.memory_report()["sequences"])


class ClosedMeanwhile:
    """Chunks of a reply that another thread closes while one is waited for."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close

    def __next__(self) -> Any:
        self._close()
        raise StopIteration


@pytest.mark.parametrize("how", ["close", "stop"])
def test_a_sessions_reply_that_was_closed_meanwhile_is_not_committed(how: str) -> None:
    committed: list[Any] = []
    chunks: Any = ClosedMeanwhile(lambda: getattr(stream, how)())
    stream = TurnStream(lambda *turn: committed.append(turn), [], chunks)
    assert [*stream] == []
    assert stream.read() == ""
    assert committed == []


def test_several_threads_close_it_at_once(llm: Llama) -> None:
    for _ in range(10):
        reader = Reader(STREAMS["completion"](llm))
        reader.start()
        assert reader.begun.wait(PATIENCE)
        errors: list[BaseException] = []

        def close(stream: Any = reader.stream, errors: list[BaseException] = errors) -> None:
            try:
                stream.close()
            except BaseException as error:
                errors.append(error)

        closers = [threading.Thread(target=close) for _ in range(4)]
        for closer in closers:
            closer.start()
        for thread in (*closers, reader):
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert errors == []
        assert reader.error is None
