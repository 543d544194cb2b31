"""A stream goes on beside whatever other threads ask of the same model.

While one request streams, others do what is large or forbidden. The stream's text is that of an
undisturbed run. Its longest gap between two chunks is printed; ``-m long`` asserts that it stays
within three usual gaps and 50 ms, with a state of 200 MiB, a prompt of 50 MB and a grammar of 1 MB.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from llama_py import ContextOverflowError, Llama, LlamaDiskCache, LlamaError, LlamaGrammar
from llama_py.errors import GrammarError
from tests.models import tiny_model

#: Cells in F32 and no flash attention: results do not depend on what else is in a batch.
OPTIONS: dict[str, Any] = {
    "n_seq_max": 8,
    "n_threads": 1,
    "n_threads_batch": 1,
    "flash_attn": False,
    "type_k": 0,
    "type_v": 0,
}
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
PROMPT = "the quick brown fox"
MB = 10**6
MIB = 1 << 20


@dataclass
class Bench:
    """A model, and how large what happens beside the stream is.

    Attributes:
        long_prompt: a conversation whose state has at least ``state_bytes``.
        evaluated: tokens of a prompt that is evaluated.
        tokens: length of one streamed reply.
    """

    llm: Llama
    folder: Path
    prompt_bytes: int
    grammar_bytes: int
    state_bytes: int
    long_prompt: list[int] = field(repr=False)
    evaluated: int
    tokens: int
    expected: str = ""
    usual: float = 0.0
    gaps: list[float] = field(default_factory=list, repr=False)

    def stream(self) -> Iterator[tuple[str, float]]:
        """The texts of one streamed reply, and how long each was waited for."""
        before = time.perf_counter()
        chunks: Any = self.llm.create_completion(
            PROMPT, max_tokens=self.tokens, stream=True, **GREEDY
        )
        for chunk in chunks:
            now = time.perf_counter()
            yield chunk["choices"][0]["text"], now - before
            before = now

    def undisturbed(self) -> None:
        """Note the text and the usual gap of a stream that is alone."""
        first = [*self.stream()]
        again = [*self.stream()]
        self.expected = "".join(text for text, _ in first)
        assert self.expected
        assert "".join(text for text, _ in again) == self.expected
        self.usual = statistics.median(gap for _, gap in again[1:])

    def beside(self, work: Callable[[Bench], None]) -> None:
        """Stream, again and again, until ``work`` has ended in another thread."""
        waits = work is evaluate_a_long_prompt  # who begins meanwhile is next
        errors: list[BaseException] = []

        def run() -> None:
            try:
                work(self)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        while thread.ident is None or thread.is_alive():
            text = ""
            for count, (piece, gap) in enumerate(self.stream()):
                text += piece
                if thread.ident is None and count == self.tokens // 8:
                    thread.start()
                elif thread.ident is not None and (count or not waits):
                    self.gaps.append(gap)
            assert text == self.expected
        thread.join()
        assert errors == []


# -- what happens beside the stream ----------------------------------------------------------------


def refuse_a_long_prompt(bench: Bench) -> None:
    with pytest.raises(ContextOverflowError):
        bench.llm.create_completion("a word " * (bench.prompt_bytes // 7), max_tokens=4)
    with pytest.raises(ContextOverflowError):
        bench.llm.create_chat_completion(
            [{"role": "user", "content": "a word " * (bench.prompt_bytes // 7)}], max_tokens=4
        )


def save_a_state_to_disk(bench: Bench) -> None:
    """The conversation is in memory already; it is written after the end of this call."""
    with LlamaDiskCache(str(bench.folder / "store"), 4 * bench.state_bytes) as store:
        bench.llm.set_cache(store)
        bench.llm.create_completion(bench.long_prompt, max_tokens=1, **GREEDY)
        assert bench.llm.cache.flush(60)
        bench.llm.set_cache(None)
        written = sum(path.stat().st_size for path in bench.folder.rglob("*") if path.is_file())
        assert written >= bench.state_bytes


def evaluate_a_long_prompt(bench: Bench) -> None:
    """Streams that begin meanwhile wait until it is evaluated; those that run do not."""
    prompt = [40 + i * 11 % 190 for i in range(bench.evaluated)]
    bench.llm.create_completion(prompt, max_tokens=1, **GREEDY)


def go_on_from_an_offloaded_conversation(bench: Bench) -> None:
    cache, driver = bench.llm.runtime.loaded.cache, bench.llm.runtime.loaded.driver
    bench.llm.create_completion(bench.long_prompt, max_tokens=1, **GREEDY)
    sequence = cache.live.by_number[bench.llm.cache_info["sequence"]]
    driver.run(lambda: cache.saving.offload(sequence))
    while driver.run(lambda: cache.saving.pending):
        time.sleep(0.01)
    driver.run(lambda: cache.live.evict(sequence))
    bench.llm.create_completion([*bench.long_prompt, 41], max_tokens=1, **GREEDY)
    assert bench.llm.cache_info["action"] == "load"
    assert bench.llm.cache_info["restored_bytes"] >= bench.state_bytes


def take_and_restore_a_large_snapshot(bench: Bench) -> None:
    bench.llm.create_completion(bench.long_prompt, max_tokens=1, **GREEDY)
    assert bench.llm.snapshot("large").nbytes >= bench.state_bytes
    assert bench.llm.restore("large").n_tokens == len(bench.long_prompt)
    bench.llm.drop_snapshot("large")


def compile_a_large_grammar(bench: Bench) -> None:
    """One of many rules, and one of a single long text; each is used, or refused as a grammar."""
    size = bench.grammar_bytes
    rules = "\n".join(f'r{i} ::= "w{i}" | "v{i}"' for i in range(size // 30))
    for text in (
        f"root ::= {' | '.join(f'r{i}' for i in range(size // 30))}\n{rules}",
        f'root ::= "{"word " * (size // 5)}"',
    ):
        with suppress(GrammarError):
            grammar = LlamaGrammar.from_string(text)
            bench.llm.create_completion("go on", grammar=grammar, max_tokens=4, temperature=0)


def call_reset_and_close(bench: Bench) -> None:
    refused: list[LlamaError] = []

    def forbidden(*_: Any) -> bool:
        for call in (bench.llm.reset, bench.llm.close):
            try:
                call()
            except LlamaError as error:
                refused.append(error)
        return False

    reply: Any = bench.llm.create_completion(
        "go on", max_tokens=8, stopping_criteria=forbidden, **GREEDY
    )
    assert reply["usage"]["completion_tokens"] == 8
    assert len(refused) == 2 * 8


def take_snapshots(bench: Bench) -> None:
    def work(number: int) -> None:
        for turn in range(3):
            bench.llm.create_completion([number + 40, turn + 50, 60], max_tokens=4, **GREEDY)
            bench.llm.snapshot(f"{number}")
            assert bench.llm.save_state().n_tokens > 0

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


WORK: dict[str, Callable[[Bench], None]] = {
    "a long prompt": refuse_a_long_prompt,
    "a state to disk": save_a_state_to_disk,
    "a large grammar": compile_a_large_grammar,
    "reset and close in callbacks": call_reset_and_close,
    "snapshots": take_snapshots,
    "an offloaded conversation": go_on_from_an_offloaded_conversation,
    "a large snapshot and back": take_and_restore_a_large_snapshot,
    "a long prompt that fits": evaluate_a_long_prompt,
}


def opened(path: Path, folder: Path, n_ctx: int, **sizes: Any) -> Bench:
    """A model that knows a long conversation, and what a stream is like when it is alone."""
    llm = Llama(path, n_ctx=n_ctx, **OPTIONS)
    bench = Bench(llm, folder, **sizes)
    llm.create_completion(bench.long_prompt, max_tokens=1, **GREEDY)
    bench.undisturbed()
    return bench


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = opened(
        tiny_model("full"),
        tmp_path_factory.mktemp("small"),
        n_ctx=8192,
        prompt_bytes=2 * MB,
        grammar_bytes=MB // 10,
        state_bytes=3 * MIB,
        evaluated=1000,
        long_prompt=[40 + i * 7 % 200 for i in range(1700)],
        tokens=120,
    )
    yield bench
    bench.llm.close()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    path = tiny_model("full", n_layer=64, n_embd=256, n_head_kv=4)  # 128 KiB a token
    bench = opened(
        path,
        tmp_path_factory.mktemp("large"),
        n_ctx=8192,
        prompt_bytes=50 * MB,
        grammar_bytes=MB,
        state_bytes=200 * MIB,
        evaluated=1000,
        long_prompt=[40 + i * 7 % 200 for i in range(1700)],
        tokens=100,
    )
    yield bench
    bench.llm.close()


def report(bench: Bench, name: str, record: Callable[[str, object], None]) -> float:
    """Run the work, print and record the gaps; returns the longest in seconds."""
    bench.gaps.clear()
    bench.beside(WORK[name])
    longest = max(bench.gaps)
    record("usual_gap_ms", round(1000 * bench.usual, 2))
    record("longest_gap_ms", round(1000 * longest, 2))
    print(f"{name}: usual gap {1000 * bench.usual:.2f} ms, longest {1000 * longest:.1f} ms")
    return longest


@pytest.mark.parametrize("name", WORK)
def test_a_stream_keeps_its_text(
    small: Bench, name: str, record_property: Callable[[str, object], None]
) -> None:
    report(small, name, record_property)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", WORK)
def test_a_stream_keeps_its_text_and_its_pace(
    large: Bench, name: str, record_property: Callable[[str, object], None]
) -> None:
    longest = report(large, name, record_property)
    assert longest <= 3 * large.usual + 0.05
