"""llama-bench and llama-batched-bench: runs them, and reads what they print."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from llama_py.bench.build_tools import find_tool
from llama_py.bench.files import resolve_model

__all__ = ["NativeTools"]


class NativeTools:
    """The tools under the settings of ``options``.

    Args:
        plain: those of llama.cpp's default build.

    Attributes:
        cpu_seconds: processor time of the last run.

    Raises:
        ParameterError: they were not built.
    """

    def __init__(self, options: argparse.Namespace, n_ctx: int, *, plain: bool = False) -> None:
        self._bench = find_tool("llama-bench", plain=plain)
        self._batched = find_tool("llama-batched-bench", plain=plain)
        self._n_ctx = n_ctx
        self._threads = str(options.threads)
        self._settings = [
            "-m",
            resolve_model(options.model),
            "-t",
            self._threads,
            "-b",
            str(options.n_batch),
            "-ub",
            str(min(options.n_batch, 512)),
            "-fa",
            "auto" if options.flash_attn == "default" else options.flash_attn,
            "-ngl",
            "99",
        ]
        self.cpu_seconds = 0.0

    def bench(
        self, prompt: int, generate: int, repetitions: int = 1, depth: int = 0
    ) -> list[dict[str, Any]]:
        """One record for each of the two figures that is not 0, after ``depth`` tokens."""
        arguments = ["-p", str(prompt), "-n", str(generate), "-r", str(repetitions), "-o", "json"]
        arguments += ["-d", str(depth)]
        records: list[dict[str, Any]] = json.loads(self._output(self._bench, arguments))
        return records

    def batched(self, prompt: int, generate: int, streams: int) -> dict[str, Any]:
        """The record of ``streams`` sequences at once."""
        output = self._output(
            self._batched,
            [
                "-c",
                str(self._n_ctx),
                "-tb",
                self._threads,
                "-npp",
                str(prompt),
                "-ntg",
                str(generate),
                "-npl",
                str(streams),
                "--kv-unified",
                "--output-format",
                "jsonl",
            ],
        )
        record: dict[str, Any] = json.loads(
            next(line for line in output.splitlines() if line.startswith("{"))
        )
        return record

    def _output(self, tool: Path, arguments: list[str]) -> str:
        before = os.times()
        done = subprocess.run(
            [str(tool), *self._settings, *arguments], capture_output=True, text=True, check=False
        )
        after = os.times()
        self.cpu_seconds = (after.children_user + after.children_system) - (
            before.children_user + before.children_system
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no output"]
            raise RuntimeError(f"{tool.name} failed: {last[0]}")
        return done.stdout
