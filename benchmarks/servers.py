"""Servers as subprocesses: ours and llama-server, under the same settings, on free ports."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from llama_py.bench.http_load import Endpoint
from llama_py.bench.native_tools import find_tool
from llama_py.bench.subject import resolve_model

__all__ = [
    "ServerProcess",
    "add_llama_server_arguments",
    "llama_server",
    "our_server",
    "settle",
]

#: Seconds that a server may take to load, and to end.
_START, _END = 120.0, 20.0
#: Seconds after which no thread of a server looks for work any more: three times what was measured.
_SETTLED = 0.5


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running server.

    Attributes:
        name: for tables.
        process: its process id.
    """

    name: str
    endpoint: Endpoint
    process: int

    def main_thread_seconds(self) -> float:
        """Processor time of its main thread until now; NaN where the system does not say."""
        try:
            words = Path(f"/proc/{self.process}/task/{self.process}/schedstat").read_text().split()
        except OSError:
            return float("nan")
        return int(words[0]) / 1e9


def settle() -> None:
    """Wait until no server is busy any more with the request that it has answered.

    llama-server's threads look for more work for a fifth of a second, in busy loops (ggml's default
    for thread pools), and whoever is asked next shares a core with one of them.
    """
    time.sleep(_SETTLED)


@contextmanager
def our_server(
    options: argparse.Namespace,
    n_ctx: int,
    parallel: int,
    speculative: str = "",
    more: Sequence[str] = (),
) -> Iterator[ServerProcess]:
    """``llama-py serve`` with the model of ``options`` and ``n_ctx`` tokens for all streams."""
    flash = {"default": [], "on": ["flash_attn = true"], "off": ["flash_attn = false"]}
    lines = [
        "[[model]]",
        f'id = "benchmark"\npath = {_quoted(resolve_model(options.model))}',
        f"n_ctx = {n_ctx}\nn_seq_max = {parallel}",
        f"n_threads = {options.threads}\nn_threads_batch = {options.threads}",
        f"n_batch = {options.n_batch}\nn_ubatch = {min(options.n_batch, 512)}",
        f"kv_unified = {'true' if options.kv_unified == 'on' else 'false'}",
        *flash[options.flash_attn],
        *([f"speculative = {_quoted(speculative)}"] if speculative else []),
        *more,
    ]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "serve.toml")
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        port = _free_port()
        command = [sys.executable, "-m", "llama_py", "serve", "--config", str(config)]
        with _running("llama_py", [*command, "--port", str(port)], port) as server:
            yield server


def add_llama_server_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-llama-server", action="store_true", help="measure ours only")
    parser.add_argument(
        "--llama-server-build",
        choices=["same", "default"],
        default="same",
        help="llama-server with the libraries of this package, or with those that llama.cpp's "
        "default build makes (python -m benchmarks build-tools --plain; Linux)",
    )


@contextmanager
def llama_server(
    options: argparse.Namespace, n_ctx: int, parallel: int, more: Sequence[str] = ()
) -> Iterator[ServerProcess]:
    """llama-server under the same settings: ``n_ctx`` tokens for all streams, in equal parts.

    Raises:
        ParameterError: it was not built.
    """
    port = _free_port()
    environment = None
    if getattr(options, "llama_server_build", "same") == "default":
        libraries = find_tool(
            "llama-bench", plain=True
        ).parent  # before those that it was linked to
        environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
    command = [str(find_tool("llama-server")), "-m", resolve_model(options.model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "-c", str(n_ctx), "-np", str(parallel)]
    command += ["-t", str(options.threads), "-tb", str(options.threads)]
    command += ["-b", str(options.n_batch), "-ub", str(min(options.n_batch, 512))]
    command += ["-fa", "auto" if options.flash_attn == "default" else options.flash_attn]
    command += ["--jinja", *more]
    with _running("llama-server", command, port, environment) as server:
        yield server


@contextmanager
def _running(
    name: str, command: Sequence[str], port: int, environment: Mapping[str, str] | None = None
) -> Iterator[ServerProcess]:
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        endpoint = Endpoint(f"http://127.0.0.1:{port}", model="benchmark")
        try:
            _await(name, process, endpoint, log)
            yield ServerProcess(name, endpoint, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await(name: str, process: subprocess.Popen[bytes], endpoint: Endpoint, log: object) -> None:
    """Return when the server answers that it is ready."""
    end = time.monotonic() + _START
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with {process.returncode}: {_last_words(log)}")
        try:
            if endpoint.ask("GET", "/health")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"{name} was not ready after {_START:.0f} s: {_last_words(log)}")


def _last_words(log: object) -> str:
    log.seek(0)  # type: ignore[attr-defined]
    lines: list[str] = log.read().decode("utf-8", "replace").strip().splitlines()  # type: ignore[attr-defined]
    return " / ".join(lines[-3:]) or "it printed nothing"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _quoted(text: str) -> str:
    """A TOML string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
