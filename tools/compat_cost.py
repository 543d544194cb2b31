"""What ``llama_py.compat`` costs: time per token beside llama_py itself, and time of imports.

    python -m tools.compat_cost [MODEL] [--tokens 200] [--rounds 20]

Both generate the same tokens on one model, in turns; the median of the differences of the rounds is
what the layer adds: to the time that passes, and to the processor time of the calling thread, in
which all of the layer runs, and which other programs of a busy machine change less.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from llama_py.demo import demo_model_path


def main() -> None:
    """Measure, and print a line for each way to get tokens."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default=demo_model_path())
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    from llama_py.compat.llama_cpp import Llama

    llm = Llama(given.model, n_ctx=4096, verbose=False)
    for name, native, ours in ways(llm, given.tokens):
        passed, used = (each / given.tokens * 1e6 for each in added(native, ours, given.rounds))
        print(f"{name:22} {passed:8.2f} us per token, {used:.2f} us of processor time")
    for name in ("llama_py", "llama_py.compat"):
        print(f"{'import ' + name:22} {import_time(name) * 1e3:8.2f} ms")


def ways(llm: Any, count: int) -> Iterable[tuple[str, Callable[[], Any], Callable[[], Any]]]:
    """Name, and the same call of llama_py and of llama_cpp."""
    prompt = llm.tokenize(b"The sky is")
    options = {"max_tokens": count, "temperature": 0, "logit_bias": {llm.token_eos(): -100.0}}
    yield (
        "stream",
        lambda: list(llm.native.create_completion(prompt, stream=True, **options)),
        lambda: list(llm.create_completion(prompt, stream=True, **options)),
    )
    yield (
        "generate",
        lambda: list(itertools.islice(llm.native.generate(prompt, temp=0.0), count)),
        lambda: list(itertools.islice(llm.generate(prompt, temp=0.0), count)),
    )


def added(native: Callable[[], Any], ours: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Seconds that pass and seconds of processor time that the second one takes longer.

    In the median of the rounds; which one is first changes from round to round.
    """
    native()
    ours()
    found = []
    for number in range(rounds):
        if number % 2:
            one, other = timed(native), timed(ours)
        else:
            other, one = timed(ours), timed(native)
        found.append((other[0] - one[0], other[1] - one[1]))
    passed, used = zip(*found, strict=True)
    return statistics.median(passed), statistics.median(used)


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds that a call takes, and seconds of processor time of this thread."""
    start, used = time.perf_counter(), time.thread_time()
    call()
    return time.perf_counter() - start, time.thread_time() - used


def import_time(name: str) -> float:
    """Seconds that an import takes in a new interpreter, beside the interpreter's own start."""
    code = f"import time; t = time.perf_counter(); import {name}; print(time.perf_counter() - t)"
    command = [sys.executable, "-c", code]
    times = [float(subprocess.check_output(command, text=True)) for _ in range(5)]
    return min(times)


if __name__ == "__main__":
    main()
