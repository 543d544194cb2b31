"""The speed of a step of N rows, in tokens per second: what streams, drafts and prompts live on.

A row is a token of a step. Each step evaluates N tokens of one empty sequence, as ``llama-bench -p
N`` does, and has the logits of the last one. Beside the figures, as bounds: what the memory allows,
which is read once for a step (--bandwidth GB/s; without it, it is measured with all threads); and
llama-bench of llama.cpp's default build, where it was built (``python -m benchmarks build-tools
--plain``, in a checkout), right after each figure of ours, alternately.

Always exit code 0.
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from llama_py.bench.native_tools import NativeTools
from llama_py.bench.report import Report, median, ratios
from llama_py.bench.subject import (
    add_model_arguments,
    clock_of,
    conditions,
    resolve_model,
    whole_context,
)
from llama_py.errors import ParameterError

if TYPE_CHECKING:
    from llama_py.core.context import Context

__all__ = ["Steps", "add_arguments", "run"]

_ROWS = (1, 2, 4, 8, 16, 32, 128, 512)
#: Seconds for which steps are repeated, at least.
_LEAST_SECONDS = 0.3
#: Bytes that are read for the bandwidth: more than any cache has.
_MANY = 256 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.set_defaults(flash_attn="on")
    parser.add_argument("--rows", type=int, nargs="+", default=list(_ROWS), metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--bandwidth", type=float, metavar="GB/S", help="of the memory")
    parser.add_argument("--no-tools", action="store_true", help="leave llama-bench out")


def run(options: argparse.Namespace) -> Report:
    n_ctx = whole_context(max(options.rows))
    report = Report("rows", conditions(options, n_ctx))
    tools = _tools(options, n_ctx, report)
    ours: dict[int, list[float]] = {rows: [] for rows in options.rows}
    theirs: dict[int, list[float]] = {rows: [] for rows in options.rows}
    with Steps(options, n_ctx) as steps:
        for _ in range(options.repeats):
            for rows in options.rows:
                ours[rows].append(steps.speed(rows))
                if tools is not None:
                    theirs[rows].append(float(tools.bench(rows, 0, 3)[0]["avg_ts"]))
    gigabytes = _bytes_of_a_step(resolve_model(options.model)) / 1e9
    bandwidth = options.bandwidth or _bandwidth(options.threads)
    read = f"a step reads {gigabytes:.2f} GB of weights, the memory gives {bandwidth:.1f} GB/s"
    report.notes.append(read)
    columns = ("rows", "llama_py", "by one row", "memory allows", "llama-bench", "ratio")
    table = report.table("tokens a second", *columns)
    for rows in options.rows:
        speed = median(ours[rows])
        table.add(
            rows,
            speed,
            speed / median(ours[options.rows[0]]),
            rows * bandwidth / gigabytes,
            median(theirs[rows]) if tools else None,
            median(ratios(ours[rows], theirs[rows])) if tools else None,
        )
    return report


def _bytes_of_a_step(path: str) -> int:
    """Bytes of the weights that are read whole: all but embeddings with an output of their own."""
    from llama_py.gguf.reader import read_header

    tensors = {each.name: each.n_bytes for each in read_header(Path(path)).tensors}
    embeddings = tensors.get("token_embd.weight", 0) if "output.weight" in tensors else 0
    return sum(tensors.values()) - embeddings


def _tools(options: argparse.Namespace, n_ctx: int, report: Report) -> NativeTools | None:
    try:
        return None if options.no_tools else NativeTools(options, n_ctx, plain=True)
    except ParameterError as error:
        report.notes.append(str(error))
        return None


class Steps:
    """Steps of a context of its own, without an engine."""

    def __init__(self, options: argparse.Namespace, n_ctx: int) -> None:
        from llama_py.core.batch import Batch
        from llama_py.core.context import Context
        from llama_py.core.model import Model
        from llama_py.params import ContextParams

        self._model = Model(resolve_model(options.model))
        size = max(options.rows)
        params = ContextParams(
            n_ctx=n_ctx,
            n_seq_max=1,
            n_batch=size,
            n_ubatch=min(size, options.n_batch),
            n_threads=options.threads,
            n_threads_batch=options.threads,
            flash_attn=None if options.flash_attn == "default" else options.flash_attn == "on",
        )
        self._context: Context = Context(self._model, params)
        self._batch = Batch(size)
        self._clock = clock_of(options)

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *error: object) -> None:
        self._context.close()
        self._model.close()

    def speed(self, rows: int) -> float:
        """Tokens per second: the median of steps, the first of which is not counted."""
        times: list[float] = []
        until = time.perf_counter() + _LEAST_SECONDS
        while len(times) < 4 or time.perf_counter() < until:
            times.append(self._step(rows))
        return rows / median(times[1:])

    def _step(self, rows: int) -> float:
        self._context.clear()
        outputs = np.zeros(rows, np.int8)
        outputs[-1] = 1
        self._batch.set(list(range(100, 100 + rows)), 0, 0, outputs)
        start = self._clock()
        self._context.decode(self._batch)
        self._context.synchronize()
        return self._clock() - start


def _bandwidth(threads: int) -> float:
    """Gigabytes per second that this many threads read together: the best of five times."""
    parts = np.ones((threads, _MANY // 8 // threads), np.int64)

    def read() -> float:
        readers = [threading.Thread(target=part.sum) for part in parts]
        start = time.perf_counter()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        return parts.nbytes / (time.perf_counter() - start) / 1e9

    return max(read() for _ in range(5))
