"""Memory of the KV cache: the small window cache (the default) compared with a full-size one.

The same model is loaded twice with --n-ctx tokens, with ``swa_full`` off (our default) and on
(llama.cpp's and llama-cpp-python's default). The bytes are those that llama.cpp reports for its
buffers. --prompt tokens are evaluated and --max-tokens generated in both.

Exit code 1 if the two differ in their logits or their tokens.
"""

from __future__ import annotations

import argparse
import logging
import re
from typing import Any

from llama_py.bench.report import Report
from llama_py.bench.subject import (
    Turn,
    add_model_arguments,
    chat,
    conditions,
    counter,
    load,
    nmse,
    tolerance,
)
from llama_py.bench.workloads import prose

__all__ = ["add_arguments", "run"]

_BUFFER = re.compile(r"(?:KV|RS) buffer size\s*=\s*([0-9.]+) MiB")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser, "gemma3-270m")
    parser.add_argument("--n-ctx", type=int, default=32768, metavar="N")
    parser.add_argument("--prompt", type=int, default=1500, metavar="N")
    parser.add_argument("--max-tokens", type=int, default=16, metavar="N")


def run(options: argparse.Namespace) -> Report:
    report = Report("kv-memory", conditions(options, options.n_ctx))
    table = report.table("", "swa_full", "memory", "KV MiB", "prompt ms", "nmse")
    small, turn, kind, noise = _measure(options, False)
    large, other, _, _ = _measure(options, True)
    difference = nmse(turn.logits, other.logits)
    table.add(False, kind, small, 1e3 * turn.prompt_seconds, difference)
    table.add(True, kind, large, 1e3 * other.prompt_seconds, 0.0)
    if turn.generated != other.generated or difference > noise:
        report.fail(f"the small cache gives other results: NMSE {difference}")
    if not large:
        report.notes.append("llama.cpp did not report the size of its buffers")
    else:
        report.at_most("KV memory by that of swa_full", small / large, 0.35)
    return report


def _measure(options: argparse.Namespace, swa_full: bool) -> tuple[float, Turn, str, float]:
    """MiB, the turn, the kind of memory, and the largest NMSE that is noise."""
    with _Listener() as heard, load(options, options.n_ctx, n_seq_max=1, swa_full=swa_full) as llm:
        heard.stop()
        text = prose("kv", options.prompt, counter(llm))
        turn = chat(llm, [{"role": "user", "content": text}], max_tokens=options.max_tokens)
        kind = str(llm.memory_report()["kind"])
        return heard.mebibytes, turn, kind, tolerance(llm)


class _Listener(logging.Handler):
    """Adds up the buffers that llama.cpp reports in its log."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.mebibytes = 0.0
        self._logger = logging.getLogger("llama_py")
        self._level = self._logger.level

    def emit(self, record: logging.LogRecord) -> None:
        found = _BUFFER.search(record.getMessage())
        if found:
            self.mebibytes += float(found[1])

    def stop(self) -> None:
        """Stop listening."""
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)

    def __enter__(self) -> _Listener:
        self._logger.addHandler(self)
        self._logger.setLevel(logging.DEBUG)
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()
