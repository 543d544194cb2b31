"""A stream goes on while somebody else's large state is saved. Prints what it measured (``-s``)."""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from llama_py import Llama, LlamaDiskCache
from tests.models import tiny_model

TOKENS = 800
MIB = 1 << 20


class Stream(threading.Thread):
    """Generates until it is told to stop; when each token came, and how long after the last."""

    def __init__(self, llm: Llama) -> None:
        super().__init__()
        self.llm = llm
        self.gaps: list[tuple[float, float]] = []
        self.text = ""
        self.enough = False

    def run(self) -> None:
        before = time.perf_counter()
        for chunk in self.llm.create_completion(
            "Hello there", max_tokens=3000, ignore_eos=True, temperature=0, stream=True
        ):
            now = time.perf_counter()
            self.gaps.append((now, now - before))
            before = now
            self.text += chunk["choices"][0]["text"]
            if self.enough:
                return

    def wait_for(self, count: int) -> None:
        while len(self.gaps) < count:
            assert self.is_alive()
            time.sleep(0.01)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_stream_goes_on_while_200_mib_are_saved(tmp_path: Path) -> None:
    """The longest gap is at most three usual ones and 50 ms."""
    shape: dict[str, Any] = {
        "n_embd": 256,
        "n_head": 4,
        "n_head_kv": 4,
        "n_layer": 128,
        "n_ff": 128,
    }
    path = str(tiny_model("full", quant="q8_0", **shape))
    options: dict[str, Any] = {
        "n_ctx": 4096,
        "n_seq_max": 4,
        "n_threads": 1,
        "type_k": 0,
        "type_v": 0,
    }
    with Llama(path, **options) as llm:
        tokens = llm.tokenize(" ".join(f"w{i % 97}" for i in range(2 * TOKENS)).encode())[:TOKENS]
        llm.create_completion(tokens, max_tokens=1)
        size = llm.runtime.loaded.context.state_size(llm.cache_info["sequence"])
        stream = Stream(llm)
        stream.start()
        stream.wait_for(40)
        rounds = [measure(llm, stream, tokens, size, tmp_path / str(n)) for n in range(3)]
        stream.enough = True
        stream.join()
        text = llm.create_completion(
            "Hello there", max_tokens=len(stream.gaps), ignore_eos=True, temperature=0
        )["choices"][0]["text"]
        assert text.startswith(stream.text[:200])
    assert size > 199 * MIB
    assert any(longest <= limit for longest, limit in rounds), rounds


def measure(
    llm: Llama, stream: Stream, tokens: list[int], size: int, folder: Path
) -> tuple[float, float]:
    """Save the conversation into an empty store; the stream's longest gap, and its limit."""
    stream.wait_for(len(stream.gaps) + 20)
    usual = statistics.median(gap for _, gap in stream.gaps[-20:])
    with LlamaDiskCache(folder) as store:
        llm.set_cache(store)
        start = time.perf_counter()
        llm.create_completion(tokens, max_tokens=1, temperature=0)
        replied = time.perf_counter()
        while store.used_bytes < size:
            time.sleep(0.02)
        end = time.perf_counter()
        stream.wait_for(len(stream.gaps) + 2)
        llm.set_cache(None)
    gaps = [gap for at, gap in stream.gaps if at >= start and at - gap <= end]
    limit = 3 * usual + 0.05
    print(
        f"\n{size / MIB:.0f} MiB: reply after {1e3 * (replied - start):.0f} ms, on disk after "
        f"{1e3 * (end - start):.0f} ms; gaps of the stream: usual {1e3 * usual:.1f} ms, meanwhile "
        f"median {1e3 * statistics.median(gaps):.1f}, longest {1e3 * max(gaps):.1f} ms "
        f"(at most {1e3 * limit:.0f})"
    )
    return max(gaps), limit
