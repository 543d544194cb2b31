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
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any

from llama_py.bench.http_load import in_threads
from llama_py.bench.report import Report, median
from llama_py.bench.subject import (
    Verifier,
    add_model_arguments,
    chat,
    clock_of,
    conditions,
    load,
    prose_tokens,
    whole_context,
)
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
    with (
        load(options, n_ctx, n_seq_max=max(4, options.at_once + 1)) as llm,
        closing(Verifier(load(options, n_ctx, n_seq_max=1))) as verifier,
    ):
        gaps = _StreamGaps(report, llm, options)
        for repeat in range(1, options.repeats + 1):
            gaps.measure(repeat, verifier)
    report.at_most("longest gap / (3 usual gaps + a chunk)", median(gaps.worst), 1)
    report.at_most("return from cancelling / a chunk's time", median(gaps.late), 1)
    report.at_most("steps until a short prompt has begun / their bound", max(gaps.waited), 1)
    report.at_most("last first token of many / one prompt as long as all", max(gaps.lasts), 2)
    return report


class _StreamGaps:
    """Measures one repeat after the other.

    Attributes:
        worst, late, waited, lasts: what the four targets are about, of each repeat.
    """

    def __init__(self, report: Report, llm: Any, options: argparse.Namespace) -> None:
        self._report, self._llm, self._options = report, llm, options
        self._clock = clock_of(options)
        self._endless = dict.fromkeys(llm.vocab.eog_tokens(), -1e9)
        self._gap_table = report.table(
            "gaps between tokens, ms",
            *("repeat", "usual", "chunk alone", "during: tokens", "median", "90 %"),
            *("longest", "allowed"),
        )
        self._cancel_table = report.table(
            "cancelled while the prompt was evaluated, ms",
            *("repeat", "chunk", "timeout late by", "cancel returned after"),
        )
        self._short_table = report.table(
            "a short prompt while a long one is evaluated",
            *("repeat", "chunk, ms", "first token after, ms", "steps meanwhile"),
            *("bound, steps", "long prompt done, of"),
        )
        self._many_table = report.table(
            "first tokens of many at once, s",
            *("repeat", "the first one", "all in one prompt", "first", "mean", "last"),
            "longest gap, ms",
        )
        self.worst: list[float] = []
        self.late: list[float] = []
        self.waited: list[float] = []
        self.lasts: list[float] = []

    def measure(self, repeat: int, verifier: Verifier) -> None:
        """Add a row to each table."""
        tokens = prose_tokens(self._llm, f"long {repeat - 1}", self._options.prompt)
        chunk, whole = self._prompt_seconds(tokens)
        self._gaps(repeat, tokens, chunk)
        self._cancel(repeat, tokens, chunk, 0.3 * whole)
        # The next call, whose prompt begins like the cancelled one's.
        turn = chat(self._llm, [{"role": "user", "content": "Hello"}], max_tokens=8)
        difference, _ = verifier.check(turn)
        if difference > verifier.tolerance:
            self._report.fail(
                f"repeat {repeat}: the call after a cancelled one is wrong, {difference}"
            )
        self._short_beside(repeat, tokens, chunk)
        for begun in (False, True):
            self._at_once(repeat, begun)

    def _evaluate(self, tokens: Sequence[int], **options: Any) -> None:
        self._llm.create_completion(tokens, max_tokens=1, temperature=0.0, **options)

    def _stream(self, prompt: Any, most: int) -> Any:
        return self._llm.create_completion(
            prompt, max_tokens=most, temperature=0.0, stream=True, logit_bias=self._endless
        )

    def _prompt_seconds(self, tokens: list[int]) -> tuple[float, float]:
        """Of a step in the prompt's last quarter (which attends to most), and of the prompt."""
        self._llm.reset()
        marks = [self._clock()]
        self._evaluate(tokens, on_progress=lambda _done, _of: marks.append(self._clock()))
        steps = [b - a for a, b in itertools.pairwise(marks)]
        return median(steps[-max(1, len(steps) // 4) :]), marks[-1] - marks[0]

    def _gaps(self, repeat: int, tokens: list[int], chunk: float) -> None:
        """One running stream and one long prompt."""
        self._llm.reset()
        before, marks, span = self._options.before, [], [0.0, 0.0]
        done = threading.Event()

        def long_prompt() -> None:
            span[0] = self._clock()
            self._evaluate(tokens)
            span[1] = self._clock()
            done.set()

        other = threading.Thread(target=long_prompt)
        stream = self._stream("Once upon a time", 1000)
        for number, _ in enumerate(stream):
            marks.append(self._clock())
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
        found = sorted(found or [marks[-1] - span[0]])
        allowed = 3 * usual + chunk
        self._gap_table.add(
            *(repeat, 1e3 * usual, 1e3 * chunk, len(found), 1e3 * median(found)),
            *(1e3 * found[int(0.9 * (len(found) - 1))], 1e3 * found[-1], 1e3 * allowed),
        )
        self.worst.append(found[-1] / allowed)

    def _cancel(self, repeat: int, tokens: list[int], chunk: float, seconds: float) -> None:
        """Cancel in two ways after some time; what counts is the slower one."""
        # A timeout counts seconds on the wall, whatever is measured.
        on_the_wall = self._clock is time.perf_counter
        timeout_late = self._by_timeout(tokens, seconds) if on_the_wall else _NAN
        returned = self._by_thread(tokens)
        self._cancel_table.add(repeat, 1e3 * chunk, 1e3 * timeout_late, 1e3 * returned)
        slower = max(returned, timeout_late if timeout_late == timeout_late else 0.0)
        self.late.append(slower / chunk)

    def _by_timeout(self, tokens: list[int], seconds: float) -> float:
        """Seconds by which ``GenerationTimeout`` was late; NaN if the prompt was done before."""
        self._llm.reset()
        start = time.perf_counter()
        try:
            self._evaluate(tokens, timeout=seconds)
        except GenerationTimeout:
            return time.perf_counter() - start - seconds
        return _NAN

    def _by_thread(self, tokens: list[int]) -> float:
        """Cancel from another thread, as a server does when its client is gone."""
        self._llm.reset()
        ended: list[float] = []
        half = threading.Event()

        def progress(done: int, of: int) -> None:
            if done >= of // 4:
                half.set()

        def ask() -> None:
            with suppress(RequestCancelled):
                self._evaluate(tokens, on_progress=progress)
            ended.append(self._clock())

        thread = threading.Thread(target=ask)
        thread.start()
        half.wait()
        cancelled = self._clock()
        self._llm.reset(cancel=True)
        thread.join()
        return ended[0] - cancelled

    def _short_beside(self, repeat: int, tokens: list[int], chunk: float) -> None:
        """A short prompt comes while a long one is evaluated: its steps, and their bound."""
        llm, options, clock = self._llm, self._options, self._clock
        llm.reset()
        begun = threading.Event()
        places: list[int] = []

        def progress(done: int, _of: int) -> None:
            places.append(done)
            begun.set()

        other = threading.Thread(target=lambda: self._evaluate(tokens, on_progress=progress))
        other.start()
        begun.wait()
        steps, start = llm.metrics["steps"], clock()
        short = prose_tokens(llm, f"short {repeat - 1}", options.short)
        stream = llm.create_completion(short, max_tokens=2, temperature=0.0, stream=True)
        next(iter(stream))
        seconds, took, done = clock() - start, llm.metrics["steps"] - steps, places[-1]
        stream.close()
        other.join()
        # What it finds running; those of its own; one that ends before this thread has read the
        # token; and one more for a checkpoint before its last token.
        half = min(options.n_batch, 512) // 2
        kind = llm.cache.report()["kind"]
        bound = 2 + -(-options.short // half) + kind.startswith(_CHECKPOINTED)
        of = f"{done} of {len(tokens)}"
        self._short_table.add(repeat, 1e3 * chunk, 1e3 * seconds, took, bound, of)
        self.waited.append(took / bound)

    def _at_once(self, repeat: int, begun: bool) -> None:
        """Streams that come together, or find the first one begun; one prompt as long as all."""
        llm, clock, count = self._llm, self._clock, self._options.at_once
        prompts = [
            prose_tokens(llm, f"{repeat - 1} {begun} {number}", self._options.each)
            for number in range(count)
        ]
        llm.reset()
        start = clock()
        self._evaluate([token for prompt in prompts for token in prompt])
        together = clock() - start
        llm.reset()
        marks: list[list[float]] = [[] for _ in prompts]
        ready = threading.Event()

        def ask(number: int) -> None:
            if begun and number:
                ready.wait()
            for _ in self._stream(prompts[number], 24):
                marks[number].append(clock())
                ready.set()

        start = clock()
        in_threads(ask, count)
        firsts = [each[0] - start for each in marks]
        gaps = [b - a for each in marks for a, b in itertools.pairwise(each)]
        found = "had begun" if begun else "came with them"
        self._many_table.add(
            *(repeat, found, together, min(firsts), sum(firsts) / count, max(firsts)),
            1e3 * max(gaps, default=_NAN),
        )
        self.lasts.append(max(firsts) / together)
