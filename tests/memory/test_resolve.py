"""Prompts are resolved by any thread, while the engine's thread changes what is cached."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from llama_py import Llama, LlamaRAMCache, demo_model_path
from llama_py.errors import ContextOverflowError, ParameterError
from llama_py.memory.kinds import MemoryTraits
from llama_py.memory.text_keys import TextKeys
from tests.memory.fake_memory import FULL, RECURRENT, FakeRig, pair
from tests.patience import PATIENCE

WORDS = (b"ab", b"abc ", b"the sea ", b"and ", b"or else ", b"\n")
SPACES = ((), "a")


def text_of(choose: random.Random) -> bytes:
    return b"start: " + b"".join(choose.choices(WORDS, k=choose.randrange(1, 30)))


class Resolving(threading.Thread):
    """Resolves prompts until it is told to stop; ``failure`` is what went wrong."""

    def __init__(self, rig: FakeRig, seed: int, said: deque[bytes], stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.rig, self.choose, self.said, self.stop = rig, random.Random(seed), said, stop
        self.failure: BaseException | None = None
        self.count = self.by_text = 0

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                before = self.choose.choice([*self.said] or [b"start: "])
                self.resolve(before + self.choose.choice(WORDS))
        except BaseException as error:
            self.failure = error

    def resolve(self, text: bytes) -> None:
        prompt = self.rig.cache.resolve_text(text, namespace=self.choose.choice(SPACES))
        piece = self.rig.cache.tokenizer.piece
        assert b"".join(map(piece, prompt.tokens.tolist())) == text
        assert prompt.offsets is not None
        assert prompt.sources is not None
        assert len(prompt.offsets) == len(prompt.sources) + 1 == len(prompt.tokens) + 1
        self.count += 1
        self.by_text += prompt.by_text > 0


@pytest.fixture
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_switches")
@pytest.mark.parametrize("traits", [FULL, RECURRENT], ids=["full", "recurrent"])
def test_four_threads_resolve_while_one_commits_and_evicts(traits: MemoryTraits) -> None:
    rig = FakeRig(traits, offload_store=LlamaRAMCache(30_000), n_seq_max=4)
    stop, choose = threading.Event(), random.Random(9)
    said: deque[bytes] = deque(maxlen=6)
    threads = [Resolving(rig, seed, said, stop) for seed in range(4)]
    for thread in threads:
        thread.start()
    begun = time.monotonic()

    def enough() -> bool:
        passed = time.monotonic() - begun
        busy = all(t.count > 20 for t in threads) and sum(t.by_text for t in threads) > 20
        return (busy and passed > 2.0) or passed > PATIENCE

    while not enough() and not any(thread.failure for thread in threads):
        text = choose.choice([text_of(choose), *said])[:300] + choose.choice(WORDS)
        reply = [pair(b"ab"), pair(b"c "), *choose.choice(WORDS)]
        rig.ask(text, reply, choose.choice(SPACES))
        said.append(text + b"abc " + bytes(reply[2:]))
        if choose.random() < 0.3:
            rig.cache.live.make_room()
        if choose.random() < 0.02:
            rig.cache.clear()
        rig.check()
    stop.set()
    for thread in threads:
        thread.join(PATIENCE)
        assert thread.failure is None
    assert all(thread.count > 20 for thread in threads)
    assert sum(thread.by_text for thread in threads) > 20


@pytest.mark.parametrize("text", [b"word " * 10_000_000, b"<|im_end|>" * 5_000_000])
def test_a_prompt_of_50_mb_is_refused_before_it_is_tokenized(text: bytes) -> None:
    with Llama(str(demo_model_path()), n_ctx=512, n_threads=1) as llm:
        llm.runtime.loaded.cache.tokenizer = None  # type: ignore[assignment]
        best = 1.0
        for _ in range(3):
            start = time.thread_time()
            with pytest.raises(ContextOverflowError, match=r"has at least \d+ tokens") as caught:
                llm.runtime.loaded.cache.resolve_text(text)
            best = min(best, time.thread_time() - start)
        assert caught.value.at_least
        assert 512 < caught.value.prompt_tokens < len(text)
        assert best < 0.5  # to tokenize it takes many seconds


@pytest.mark.parametrize("unit", [b" ", b"a", b"the end. ", b"<|im_end|>", "é漢".encode(), b"\n\n"])
def test_the_bound_is_a_bound(unit: bytes) -> None:
    """No text is refused that fits."""
    with Llama(str(demo_model_path()), vocab_only=True) as llm:
        text_keys = TextKeys(llm.vocab)
        for count in (1, 30, 700, 5000):
            text = unit * count
            tokens = llm.vocab.tokenize(text, add_special=False, parse_special=True)
            assert text_keys.fewest_tokens(text, 0) <= len(tokens)


class Normalising:
    """A tokenizer whose tokens do not spell the text: nothing can be said about its length."""

    def __init__(self, vocab: object) -> None:
        self._vocab = vocab

    def __getattr__(self, name: str) -> object:
        return getattr(self._vocab, name)

    def tokenize(self, text: str | bytes, **options: bool) -> list[int]:
        raw = text.encode() if isinstance(text, str) else text
        found: list[int] = self._vocab.tokenize(raw.lower(), **options)  # type: ignore[attr-defined]
        return found


def test_nothing_is_said_where_a_tokenizer_drops_text() -> None:
    with Llama(str(demo_model_path()), vocab_only=True) as llm:
        text_keys = TextKeys(Normalising(llm.vocab))  # type: ignore[arg-type]
        assert text_keys.fewest_tokens(b"word " * 100_000, 512) == 0


def longest_gap(call: Callable[[], object]) -> float:
    """The longest time in seconds in which another thread could not run during a call."""
    done, gaps = threading.Event(), [0.0]

    def watch() -> None:
        before = time.perf_counter()
        while not done.is_set():
            time.sleep(0)
            now = time.perf_counter()
            gaps.append(now - before)
            before = now

    watcher = threading.Thread(target=watch)
    watcher.start()
    call()
    done.set()
    watcher.join()
    return max(gaps)


def test_marking_a_long_text_lets_other_threads_run() -> None:
    """24 MB with one special token at the end; searched in one go, they take about 0.4 s.

    Something else may take the processor for a while, but not each time.
    """
    with Llama(str(demo_model_path()), vocab_only=True) as llm:
        text_keys = TextKeys(llm.vocab)
        text = b"lorem ipsum < dolor " * 1_200_000 + b"<|im_end|>"
        assert text_keys.mark(text).starts.tolist() == [len(text) - 10]
        assert any(longest_gap(lambda: text_keys.mark(text)) < 0.1 for _ in range(30))


def test_an_empty_prompt_is_refused() -> None:
    rig = FakeRig()
    with pytest.raises(ParameterError, match="empty"):
        rig.cache.resolve_tokens([])
    with pytest.raises(ParameterError, match="empty"):
        rig.cache.resolve_text(b"")


def test_tokens_are_refused_by_their_number() -> None:
    rig = FakeRig(n_ctx=8)
    with pytest.raises(ContextOverflowError, match="has 9 tokens"):
        rig.cache.resolve_tokens([1] * 9)
