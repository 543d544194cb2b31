"""One ``Llama`` and many threads that do everything at once.

Every greedy reply that came to its end is compared with the same call made alone, on a model that
did nothing before. By default a few threads make a few calls; ``-m long`` is 32 threads with 50
calls each, on every kind of memory, with the process's memory measured.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from llama_py import Llama, ReuseInfo
from llama_py.errors import ContextOverflowError, GenerationTimeout
from tests.engine.rig import EXACT
from tests.models import KINDS, tiny_model
from tests.rest import in_flight

OPTIONS: dict[str, Any] = {**EXACT, "n_ctx": 1024, "n_seq_max": 8}
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
TEXTS = [
    "the fox",
    "You are a helpful assistant. ",
    "漢字 é",
    "0 1 2 3 4 5 6 7 8 9",
    "def main(self):",
]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
Key = tuple[Any, ...]


def prompt_of(number: int) -> str:
    return TEXTS[number % 5] * (1 + number % 4) + f" {number}"


def messages_of(number: int) -> list[dict[str, str]]:
    """A short conversation; several numbers begin with the same system message."""
    return [
        {"role": "system", "content": TEXTS[number % 2] * 10},
        {"role": "user", "content": prompt_of(number)},
    ]


class Round:
    """What threads do to one model, and what they got."""

    def __init__(self, llm: Llama) -> None:
        self.llm = llm
        self.replies: list[tuple[Key, str, ReuseInfo]] = []
        self.errors: list[BaseException] = []
        self.kinds = [
            self.complete, self.chat, self.stream, self.abandon, self.never_start, self.overflow,
            self.structured, self.sample, self.choices, self.time_out, self.interleave,
        ]  # fmt: skip

    def run(self, threads: int, calls: int, seed: int) -> None:
        """Start the threads, and wait for them."""
        workers = [
            threading.Thread(target=self.work, args=(calls, seed * 1000 + number))
            for number in range(threads)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def work(self, calls: int, seed: int) -> None:
        choose = random.Random(seed)
        try:
            for _ in range(calls):
                choose.choice(self.kinds)(choose.randrange(40), choose)
        except BaseException as error:
            self.errors.append(error)

    def keep(self, key: Key, text: str) -> None:
        self.replies.append((key, text, self.llm.cache_info))

    # -- what a call can be -----------------------------------------------------------------------

    def complete(self, number: int, choose: random.Random) -> None:
        count = choose.choice((1, 5, 17))
        self.keep(("complete", number, count), expected(self.llm, "complete", number, count))

    def chat(self, number: int, choose: random.Random) -> None:
        self.keep(("chat", number, 9), expected(self.llm, "chat", number, 9))

    def stream(self, number: int, choose: random.Random) -> None:
        stream: Any = self.llm.create_completion(
            prompt_of(number), stream=True, max_tokens=17, **GREEDY
        )
        text = "".join(chunk["choices"][0]["text"] for chunk in stream)
        self.keep(("complete", number, 17), text)

    def abandon(self, number: int, choose: random.Random) -> None:
        stream: Any = self.llm.create_completion(
            prompt_of(number), stream=True, max_tokens=300, **GREEDY
        )
        for _ in range(choose.randrange(5)):
            next(stream)
        if choose.random() < 0.5:
            stream.close()

    def never_start(self, number: int, choose: random.Random) -> None:
        self.llm.create_chat_completion(messages_of(number), stream=True, max_tokens=300, **GREEDY)

    def overflow(self, number: int, choose: random.Random) -> None:
        with pytest.raises(ContextOverflowError):
            self.llm.create_completion("0 1 2 3 " * 1000, stream=number % 2 == 0)

    def structured(self, number: int, choose: random.Random) -> None:
        response: Any = self.llm.create_chat_completion(
            messages_of(number),
            response_format={"type": "json_object", "schema": SCHEMA},
            temperature=choose.choice((0.0, 1.0)),
            max_tokens=60,
            seed=number,
        )
        choice = response["choices"][0]
        if choice["finish_reason"] == "stop":
            assert set(json.loads(choice["message"]["content"])) == {"a", "b"}

    def sample(self, number: int, choose: random.Random) -> None:
        response: Any = self.llm.create_completion(
            prompt_of(number), max_tokens=8, temperature=1.0, top_k=choose.choice((0, 5, 40)),
            top_p=0.9, repeat_penalty=1.1, seed=number, logprobs=2, ignore_eos=True,
        )  # fmt: skip
        assert response["usage"]["completion_tokens"] == 8

    def choices(self, number: int, choose: random.Random) -> None:
        response: Any = self.llm.create_completion(prompt_of(number), n=3, max_tokens=5, **GREEDY)
        for choice in response["choices"]:
            self.keep(("complete", number, 5), choice["text"])

    def time_out(self, number: int, choose: random.Random) -> None:
        with pytest.raises(GenerationTimeout):
            self.llm.create_completion(
                prompt_of(number), max_tokens=900, timeout=choose.choice((0.0, 0.003)), **GREEDY
            )

    def interleave(self, number: int, choose: random.Random) -> None:
        """Two streams in one thread, read in turn."""
        streams: list[Any] = [
            self.llm.create_completion(prompt_of(n), stream=True, max_tokens=5, **GREEDY)
            for n in (number, number + 1)
        ]
        texts = ["", ""]
        for pair in itertools.zip_longest(*streams):
            for index, chunk in enumerate(pair):
                texts[index] += chunk["choices"][0]["text"] if chunk is not None else ""
        for index, text in enumerate(texts):
            self.keep(("complete", number + index, 5), text)


def expected(llm: Llama, kind: str, number: int, count: int) -> str:
    """The reply of one greedy call."""
    if kind == "chat":
        chat: Any = llm.create_chat_completion(messages_of(number), max_tokens=count, **GREEDY)
        return str(chat["choices"][0]["message"]["content"])
    response: Any = llm.create_completion(prompt_of(number), max_tokens=count, **GREEDY)
    return str(response["choices"][0]["text"])


class Alone:
    """Replies of a second model that answers one call at a time and remembers nothing."""

    def __init__(self, kind: str) -> None:
        self.llm = Llama(str(tiny_model(kind)), **{**OPTIONS, "parking_bytes": 0})
        self.known: dict[Key, str] = {}

    def __call__(self, key: Key) -> str:
        if key not in self.known:
            self.llm.reset()
            self.known[key] = expected(self.llm, *key)
        return self.known[key]


def check(made: Round, alone: Alone) -> None:
    """No error, every reply right, nothing left in flight."""
    assert made.errors == []
    wrong = [(key, text, info) for key, text, info in made.replies if text != alone(key)]
    assert wrong == []
    engine = made.llm.runtime.loaded.engine
    gc.collect()
    assert in_flight(made.llm) == 0
    assert not any(sequence.busy for sequence in made.llm.runtime.loaded.cache.live)
    metrics = engine.metrics
    assert metrics.requests == metrics.finished + metrics.cancelled + metrics.failed


@pytest.fixture
def no_thread_left() -> Iterator[None]:
    before = {*threading.enumerate()}
    yield
    left = {*threading.enumerate()} - before
    # One pool for masks of grammars serves the whole process.
    assert not [thread for thread in left if not thread.name.startswith("llama_py-mask")]


@pytest.mark.usefixtures("no_thread_left")
@pytest.mark.parametrize("kind", KINDS)
def test_threads_get_what_they_would_get_alone(kind: str) -> None:
    alone = Alone(kind)
    with Llama(str(tiny_model(kind)), **OPTIONS) as llm:
        made = Round(llm)
        made.run(8, 6, seed=1)
        check(made, alone)
        assert llm.metrics["batch_streams"]["max"] > 1
    alone.llm.close()


@pytest.mark.usefixtures("no_thread_left")
def test_few_cells_and_few_sequences_for_many_threads() -> None:
    alone = Alone("hybrid")
    options = {**OPTIONS, "n_ctx": 512, "n_seq_max": 3, "parking_bytes": 1 << 20}
    with Llama(str(tiny_model("hybrid")), **options) as llm:
        made = Round(llm)
        made.kinds = [made.complete, made.stream, made.choices, made.interleave, made.abandon]
        made.run(12, 3, seed=2)
        check(made, alone)
    alone.llm.close()


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("no_thread_left")
def test_no_wake_up_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that are not woken would sleep here for ten minutes."""
    for module in ("driver", "events"):
        monkeypatch.setattr(f"llama_py.engine.{module}.LOOK", 600.0)
    with Llama(str(tiny_model("full")), **{**OPTIONS, "n_seq_max": 3}) as llm:
        made = Round(llm)
        made.kinds = [made.complete, made.stream, made.choices, made.abandon, made.interleave]
        made.run(16, 8, seed=3)
        assert made.errors == []
        assert in_flight(llm) == 0


def malloc_does(name: str, *arguments: int) -> None:
    """Call a function of GNU's malloc, where there is one."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if function is not None:
        function(*arguments)


@pytest.fixture
def one_malloc_arena() -> None:
    """GNU's malloc gives threads arenas of their own, whose sizes say nothing about leaks."""
    malloc_does("mallopt", -8, 1)  # M_ARENA_MAX


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("no_thread_left", "one_malloc_arena")
@pytest.mark.parametrize("kind", KINDS)
def test_thirty_two_threads_with_fifty_calls_each(kind: str) -> None:
    alone = Alone(kind)
    process = psutil.Process()
    sizes: list[int] = []
    with Llama(
        str(tiny_model(kind)), **{**OPTIONS, "parking_bytes": 16 << 20, "checkpoint_bytes": 8 << 20}
    ) as llm:
        for number in range(6):
            made = Round(llm)
            made.run(32, 50, seed=10 + number)
            check(made, alone)
            replies = len(made.replies)
            del made
            gc.collect()
            malloc_does("malloc_trim", 0)
            sizes.append(process.memory_info().rss)
            print(kind, replies, f"{sizes[-1] / 1e6:.1f} MB", llm.metrics["preempted"])
    alone.llm.close()
    assert sizes[-1] <= 1.02 * sizes[0], sizes
