"""The gaps in a running stream while another long prompt is evaluated, and the time to cancel it.

One stream generates; after --before tokens another thread makes a call with a prompt of --prompt
tokens. The table shows the distribution of the gaps between the stream's tokens before and during
that evaluation, and the time of one chunk of the prompt (a step near the end of the same prompt,
alone). Then a prompt of that length is cancelled in the middle, with ``timeout`` and from another
thread, and the time until the caller has its answer is measured.

Then, how long prompts wait for each other. One of --short tokens comes while the long one is
evaluated: half of each step is there for it, so that it has its first token after the step that it
finds running and ceil(short / half) of its own. And --at-once streams with prompts of --each tokens
come together, or find the first one evaluated: the table shows the seconds to their first tokens,
beside those that one prompt as long as all takes, and the longest gap in their replies.

Exit code 1 if the call after a cancelled one has other logits than an empty context.
"""

from __future__ import annotations

import argparse
import itertools
import threading
import time
from contextlib import closing, suppress
from typing import Any

from llama_py.bench.report import Report, median
from llama_py.bench.subject import (
    Clock,
    Verifier,
    add_model_arguments,
    chat,
    clock_of,
    conditions,
    counter,
    load,
    whole_context,
)
from llama_py.bench.workloads import prose
from llama_py.errors import GenerationTimeout, RequestCancelled

__all__ = ["add_arguments", "run"]

_NAN = float("nan")
#: Kinds of memory that have a checkpoint taken before the last token of a prompt.
_CHECKPOINTED = ("sliding", "recurrent", "hybrid")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--prompt", type=int, default=4000, metavar="N")
    parser.add_argument("--before", type=int, default=24, metavar="N")
    parser.add_argument("--short", type=int, default=8, metavar="N")
    parser.add_argument("--at-once", type=int, default=8, metavar="N")
    parser.add_argument("--each", type=int, default=85, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")


def run(options: argparse.Namespace) -> Report:
    n_ctx = whole_context(options.prompt + 1400)
    report = Report("stream-gaps", conditions(options, n_ctx))
    report.conditions["n_ubatch"] = min(options.n_batch, 512)
    gaps = report.table(
        "gaps between tokens, ms",
        "repeat",
        "usual",
        "chunk alone",
        "during: tokens",
        "median",
        "90 %",
        "longest",
        "allowed",
    )
    cancels = report.table(
        "cancelled while the prompt was evaluated, ms",
        "repeat",
        "chunk",
        "timeout late by",
        "cancel returned after",
    )
    beside = report.table(
        "a short prompt while a long one is evaluated",
        "repeat",
        "chunk, ms",
        "first token after, ms",
        "steps meanwhile",
        "bound, steps",
        "long prompt done, of",
    )
    many = report.table(
        "first tokens of many at once, s",
        "repeat",
        "the first one",
        "all in one prompt",
        "first",
        "mean",
        "last",
        "longest gap, ms",
    )
    worst, late, clock = [], [], clock_of(options)
    waited, lasts = [], []
    with (
        load(options, n_ctx, n_seq_max=max(4, options.at_once + 1)) as llm,
        closing(Verifier(load(options, n_ctx, n_seq_max=1))) as verifier,
    ):
        for repeat in range(options.repeats):
            tokens = llm.tokenize(prose(f"long {repeat}", options.prompt, counter(llm)))
            tokens = tokens[: options.prompt]
            chunk, whole = _prompt_seconds(llm, tokens, clock)
            worst.append(_gaps(llm, tokens, options.before, chunk, gaps, repeat, clock))
            late.append(_cancel(llm, tokens, chunk, 0.3 * whole, cancels, repeat, clock))
            _check_next(llm, verifier, report, repeat)
            waited.append(_short_beside(llm, tokens, options, chunk, beside, repeat, clock))
            for begun in (False, True):
                lasts.append(_at_once(llm, options, begun, many, repeat, clock))
    report.at_most("longest gap / (3 usual gaps + a chunk)", median(worst), 1)
    report.at_most("return from cancelling / a chunk's time", median(late), 1)
    report.at_most("steps until a short prompt has begun / their bound", max(waited), 1)
    report.at_most("last first token of many / one prompt as long as all", max(lasts), 2)
    return report


def _prompt_seconds(llm: Any, tokens: list[int], clock: Clock) -> tuple[float, float]:
    """Seconds of a step in the prompt's last quarter (which attends to most), and of the prompt."""
    llm.reset()
    marks = [clock()]
    llm.create_completion(
        tokens,
        max_tokens=1,
        temperature=0.0,
        on_progress=lambda _done, _of: marks.append(clock()),
    )
    steps = [b - a for a, b in itertools.pairwise(marks)]
    return median(steps[-max(1, len(steps) // 4) :]), marks[-1] - marks[0]


def _gaps(
    llm: Any, tokens: list[int], before: int, chunk: float, table: Any, repeat: int, clock: Clock
) -> float:
    """One running stream and one long prompt; the longest gap divided by the allowed one."""
    llm.reset()
    done, marks = threading.Event(), []
    span = [0.0, 0.0]

    def long_prompt() -> None:
        span[0] = clock()
        llm.create_completion(tokens, max_tokens=1, temperature=0.0)
        span[1] = clock()
        done.set()

    other = threading.Thread(target=long_prompt)
    endless = dict.fromkeys(llm.vocab.eog_tokens(), -1e9)
    stream = llm.create_completion(
        "Once upon a time", max_tokens=1000, temperature=0.0, stream=True, logit_bias=endless
    )
    for number, _ in enumerate(stream):
        marks.append(clock())
        if number == before:
            other.start()
        if done.is_set():
            break
    stream.close()
    if not done.is_set():
        raise RuntimeError("the stream ended before the long prompt did")
    other.join()
    usual = median([b - a for a, b in itertools.pairwise(marks[:before])])
    found = [b - a for a, b in itertools.pairwise(marks[before:]) if b <= span[1]]
    if not found:
        found = [marks[-1] - span[0]]
    allowed = 3 * usual + chunk
    table.add(
        repeat + 1,
        1e3 * usual,
        1e3 * chunk,
        len(found),
        1e3 * median(found),
        1e3 * sorted(found)[int(0.9 * (len(found) - 1))],
        1e3 * max(found),
        1e3 * allowed,
    )
    return max(found) / allowed


def _cancel(
    llm: Any,
    tokens: list[int],
    chunk: float,
    seconds: float,
    table: Any,
    repeat: int,
    clock: Clock,
) -> float:
    """Cancel in two ways after some time; the slower one, divided by a chunk's time."""
    # A timeout counts seconds on the wall, whatever is measured.
    timeout_late = _by_timeout(llm, tokens, seconds) if clock is time.perf_counter else _NAN
    returned = _by_thread(llm, tokens, clock)
    table.add(repeat + 1, 1e3 * chunk, 1e3 * timeout_late, 1e3 * returned)
    return max(returned, timeout_late if timeout_late == timeout_late else 0.0) / chunk


def _check_next(llm: Any, verifier: Verifier, report: Report, repeat: int) -> None:
    """Check the next call, whose prompt begins like the cancelled one's."""
    turn = chat(llm, [{"role": "user", "content": "Hello"}], max_tokens=8)
    difference, _ = verifier.check(turn)
    if difference > verifier.tolerance:
        report.fail(f"repeat {repeat + 1}: the call after a cancelled one is wrong, {difference}")


def _by_timeout(llm: Any, tokens: list[int], seconds: float) -> float:
    """Seconds by which ``GenerationTimeout`` was late; NaN if the prompt was finished before."""
    llm.reset()
    start = time.perf_counter()
    try:
        llm.create_completion(tokens, max_tokens=1, temperature=0.0, timeout=seconds)
    except GenerationTimeout:
        return time.perf_counter() - start - seconds
    return _NAN


def _by_thread(llm: Any, tokens: list[int], clock: Clock) -> float:
    """Cancel from another thread, as a server does when its client is gone."""
    llm.reset()
    ended: list[float] = []
    half = threading.Event()

    def progress(done: int, of: int) -> None:
        if done >= of // 4:
            half.set()

    def ask() -> None:
        with suppress(RequestCancelled):
            llm.create_completion(tokens, max_tokens=1, temperature=0.0, on_progress=progress)
        ended.append(clock())

    thread = threading.Thread(target=ask)
    thread.start()
    half.wait()
    cancelled = clock()
    llm.reset(cancel=True)
    thread.join()
    return ended[0] - cancelled


def _short_beside(
    llm: Any,
    tokens: list[int],
    options: argparse.Namespace,
    chunk: float,
    table: Any,
    repeat: int,
    clock: Clock,
) -> float:
    """A short prompt comes while a long one is evaluated; its steps, divided by their bound."""
    llm.reset()
    begun = threading.Event()
    places: list[int] = []

    def progress(done: int, _of: int) -> None:
        places.append(done)
        begun.set()

    def ask() -> None:
        llm.create_completion(tokens, max_tokens=1, temperature=0.0, on_progress=progress)

    other = threading.Thread(target=ask)
    other.start()
    begun.wait()
    steps, start = llm.metrics["steps"], clock()
    short = llm.tokenize(prose(f"short {repeat}", options.short, counter(llm)))[: options.short]
    stream = llm.create_completion(short, max_tokens=2, temperature=0.0, stream=True)
    next(iter(stream))
    seconds, took, done = clock() - start, llm.metrics["steps"] - steps, places[-1]
    stream.close()
    other.join()
    # What it finds running; those of its own; one that ends before this thread has read the token;
    # and one more for a checkpoint before its last token.
    half = min(options.n_batch, 512) // 2
    bound = 2 + -(-options.short // half) + llm.cache.report()["kind"].startswith(_CHECKPOINTED)
    table.add(repeat + 1, 1e3 * chunk, 1e3 * seconds, took, bound, f"{done} of {len(tokens)}")
    return float(took / bound)


def _at_once(
    llm: Any, options: argparse.Namespace, begun: bool, table: Any, repeat: int, clock: Clock
) -> float:
    """Streams that come together; when the last one begins, by what one prompt for all takes."""
    count, each = options.at_once, options.each
    prompts = [
        llm.tokenize(prose(f"{repeat} {begun} {number}", each, counter(llm)))[:each]
        for number in range(count)
    ]
    llm.reset()
    start = clock()
    llm.create_completion([token for it in prompts for token in it], max_tokens=1, temperature=0.0)
    together = clock() - start
    llm.reset()
    marks: list[list[float]] = [[] for _ in prompts]
    ready = threading.Event()

    def ask(number: int) -> None:
        stream = llm.create_completion(
            prompts[number],
            max_tokens=24,
            temperature=0.0,
            stream=True,
            logit_bias=dict.fromkeys(llm.vocab.eog_tokens(), -1e9),
        )
        for _ in stream:
            marks[number].append(clock())
            ready.set()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    start = clock()
    threads[0].start()
    if begun:
        ready.wait()
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
    firsts = [each[0] - start for each in marks]
    gaps = [b - a for each in marks for a, b in itertools.pairwise(each)]
    found = "had begun" if begun else "came with them"
    mean = sum(firsts) / count
    table.add(
        repeat + 1, found, together, min(firsts), mean, max(firsts), 1e3 * max(gaps, default=_NAN)
    )
    return max(firsts) / together
