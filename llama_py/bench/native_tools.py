"""llama-bench and llama-batched-bench: runs them, and reads what they print."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from llama_py._native.loader import library
from llama_py.bench.subject import resolve_model
from llama_py.core.host.cache_folders import cache_directory
from llama_py.errors import ParameterError
from llama_py.version import LLAMA_CPP_COMMIT

__all__ = ["NativeTools", "find_tool", "libraries", "tools_folder"]


def find_tool(name: str, *, plain: bool = False) -> Path:
    """A tool that was built for these libraries, or as llama.cpp builds it by default.

    Raises:
        ParameterError: the tool was not built.
    """
    path = tools_folder(plain=plain) / "bin" / (f"{name}.exe" if sys.platform == "win32" else name)
    if not path.is_file():
        build = f"python -m benchmarks build-tools{' --plain' if plain else ''}"
        raise ParameterError(f"{name} was not built; run in a checkout: {build}")
    return path


def tools_folder(*, plain: bool = False) -> Path:
    """The folder of the tools, one for each folder of libraries, because tools contain its path."""
    where = "plain" if plain else hashlib.sha256(str(libraries()).encode()).hexdigest()[:8]
    return cache_directory() / f"bench-tools-{LLAMA_CPP_COMMIT}-{where}"


def libraries() -> Path:
    """The folder of the libraries that this process uses."""
    return Path(library("llama")._name).resolve().parent


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
        self._threads = options.threads
        flash = "auto" if options.flash_attn == "default" else options.flash_attn
        sizes = f"-b {options.n_batch} -ub {min(options.n_batch, 512)} -t {options.threads}"
        self._settings = ["-m", resolve_model(options.model), *sizes.split(), "-fa", flash]
        self._settings += ["-ngl", "99"]
        self.cpu_seconds = 0.0

    def bench(
        self, prompt: int, generate: int, repetitions: int = 1, depth: int = 0
    ) -> list[dict[str, Any]]:
        """One record for each of the two figures that is not 0, after ``depth`` tokens."""
        arguments = f"-p {prompt} -n {generate} -r {repetitions} -o json -d {depth}"
        records: list[dict[str, Any]] = json.loads(self._output(self._bench, arguments))
        return records

    def batched(self, prompt: int, generate: int, streams: int) -> dict[str, Any]:
        """The record of ``streams`` sequences at once."""
        sizes = f"-c {self._n_ctx} -tb {self._threads} -npp {prompt} -ntg {generate} -npl {streams}"
        output = self._output(self._batched, f"{sizes} --kv-unified --output-format jsonl")
        record: dict[str, Any] = json.loads(
            next(line for line in output.splitlines() if line.startswith("{"))
        )
        return record

    def _output(self, tool: Path, arguments: str) -> str:
        before = os.times()
        command = [str(tool), *self._settings, *arguments.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        after = os.times()
        self.cpu_seconds = (after.children_user + after.children_system) - (
            before.children_user + before.children_system
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no output"]
            raise RuntimeError(f"{tool.name} failed: {last[0]}")
        return done.stdout
