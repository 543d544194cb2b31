"""Sentences per second of `embed`, beside llama-cpp-python's and llama-server's.

Texts of 8 to 512 tokens, and a model in the shape of MiniLM (22M parameters, random weights, F16).
Parts:

process   the texts in one call, ours and llama-cpp-python's turn by turn (`--peer-python`)
http      one text in each request of several clients, ours and llama-server's
memory    is memory flat over many inputs?
beside    four threads that generate beside four that embed: how much slower is either?
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.embed_model import minilm, mixed_texts
from benchmarks.peers import Peer, add_peer_arguments
from benchmarks.servers import (
    ServerProcess,
    add_llama_server_arguments,
    llama_server,
    our_server,
)
from llama_py.api.embedding.embedder import Embedder
from llama_py.api.llama import Llama
from llama_py.bench.report import Report, median, ratios
from llama_py.bench.subject import flash_attention, resolve_model
from llama_py.core.host.machine import usable_cores

__all__ = ["add_arguments", "run"]

_PARTS = ("process", "http", "memory", "beside")
_LIMIT = 512
#: Bytes that memory may grow by while a hundred thousand inputs are embedded, without the results.
_FLAT = 32 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="PATH", help="an embedding model (default: see above)")
    parser.add_argument(
        "--chat-model", default="smollm2-135m", metavar="MODEL", help="for `beside`"
    )
    parser.add_argument("--texts", type=int, default=512, metavar="N")
    parser.add_argument("--runs", type=int, default=3, metavar="N")
    parser.add_argument("--clients", type=int, default=8, metavar="N")
    parser.add_argument("--inputs", type=int, default=100_000, metavar="N", help="of `memory`")
    parser.add_argument("--threads", type=int, default=usable_cores(), metavar="N")
    parser.add_argument("--n-ubatch", type=int, default=512, metavar="N", help="of ours")
    parser.add_argument(
        "--flash-attn",
        choices=["off", "on", "default"],
        default="default",
        help="for both sides; default: each as it is without an argument",
    )
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    add_llama_server_arguments(parser)
    add_peer_arguments(parser)


def run(options: argparse.Namespace) -> Report:
    options.model = options.model or str(minilm())
    # Both servers and llama-cpp-python take batches of the size that the longest text needs.
    options.n_batch, options.kv_unified = _LIMIT, "on"
    report = Report(
        "embed",
        {
            "model": Path(options.model).name,
            "threads": options.threads,
            "texts": options.texts,
            "flash_attn": options.flash_attn,
            "llama_server_build": options.llama_server_build,
        },
    )
    parts: dict[str, Callable[[Report, argparse.Namespace], None]] = {
        "process": _process,
        "http": _http,
        "memory": _memory,
        "beside": _beside,
    }
    for name in options.parts:
        parts[name](report, options)
    return report


def _embedder(options: argparse.Namespace) -> Embedder:
    sizes = {"n_threads": options.threads, "n_ubatch": options.n_ubatch}
    settings: Any = {**sizes, **flash_attention(options)}
    return Embedder(options.model, **settings)


# ---- in one process --------------------------------------------------------------------------


def _process(report: Report, options: argparse.Namespace) -> None:
    texts = mixed_texts(options.texts)
    ours: list[float] = []
    theirs: list[float] = []
    peer = Peer(options.peer_python) if options.peer_python else None
    try:
        with _embedder(options) as embedder:
            if peer is not None:
                _load_peer(peer, options)
                _compare(report, embedder, peer, texts[:20])
            embedder.embed(texts[:20])
            for _ in range(options.runs):
                begun = time.perf_counter()
                embedder.embed(texts)
                ours.append(len(texts) / (time.perf_counter() - begun))
                if peer is not None:
                    theirs.append(len(texts) / peer.ask("embed", texts=texts)["seconds"])
    finally:
        if peer is not None:
            peer.close()
    table = report.table("one call, sentences per second", "library", "median", "best")
    table.add("llama_py", median(ours), max(ours))
    if theirs:
        table.add("llama-cpp-python", median(theirs), max(theirs))
        report.at_least("times llama-cpp-python", median(ratios(ours, theirs)), 1.5)


def _load_peer(peer: Peer, options: argparse.Namespace) -> None:
    sizes = dict.fromkeys(("n_ctx", "n_batch", "n_ubatch"), _LIMIT)
    threads = dict.fromkeys(("n_threads", "n_threads_batch"), options.threads)
    settings = {"embedding": True, **sizes, **threads, **flash_attention(options)}
    peer.ask("load", clock="wall", model_path=options.model, **settings)


def _compare(report: Report, embedder: Embedder, peer: Peer, texts: Sequence[str]) -> None:
    theirs = np.array(peer.ask("embed", texts=[*texts], vectors=True)["vectors"])
    cosines = np.sum(embedder.embed([*texts]) * theirs, axis=1)
    if cosines.min() < 0.999:
        report.fail(f"a vector differs from llama-cpp-python's: cosine {cosines.min():.4f}")


# ---- over HTTP -------------------------------------------------------------------------------


def _http(report: Report, options: argparse.Namespace) -> None:
    texts = mixed_texts(options.texts)
    rates: dict[str, list[float]] = {}
    for _ in range(options.runs):
        with our_server(options, _LIMIT, options.clients) as server:
            rates.setdefault(server.name, []).append(_load(server, texts, options.clients))
        if not options.no_llama_server:
            size = _LIMIT * options.clients
            with llama_server(options, size, options.clients, ["--embeddings"]) as server:
                rates.setdefault(server.name, []).append(_load(server, texts, options.clients))
    title = f"HTTP, {options.clients} clients, one text a request, sentences per second"
    table = report.table(title, "server", "median", "best")
    for name, each in rates.items():
        table.add(name, median(each), max(each))
    if len(rates) == 2:
        ours, theirs = rates.values()
        report.at_least("times llama-server", median(ratios(ours, theirs)), 1.2)


def _load(server: ServerProcess, texts: Sequence[str], clients: int) -> float:
    """Sentences per second of some clients, each with a connection of its own."""
    address = server.endpoint.address
    parts = [texts[number::clients] for number in range(clients)]
    with ThreadPoolExecutor(clients) as pool:
        [*pool.map(_ask_all, [address] * clients, [part[:2] for part in parts])]
        begun = time.perf_counter()
        [*pool.map(_ask_all, [address] * clients, parts)]
        return len(texts) / (time.perf_counter() - begun)


def _ask_all(address: str, texts: Sequence[str]) -> None:
    connection = http.client.HTTPConnection(address, timeout=600)
    for text in texts:
        body = json.dumps({"model": "benchmark", "input": text})
        connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the server answered with {answer.status}: {data[:200]!r}")
    connection.close()


# ---- memory ----------------------------------------------------------------------------------


def _memory(report: Report, options: argparse.Namespace) -> None:
    texts = [text[:100] for text in mixed_texts(1000)]
    table = report.table("memory while many short inputs are embedded", "inputs", "MiB in use")
    with _embedder(options) as embedder:
        begun = 0
        for number in range(max(1, options.inputs // len(texts))):
            embedder.embed(texts)
            used = _resident_bytes()
            if number == min(9, options.inputs // len(texts) // 2):
                begun = used
                table.add((number + 1) * len(texts), used / 2**20)
        table.add((number + 1) * len(texts), used / 2**20)
    report.at_most("MiB that it grew by", (used - begun) / 2**20, _FLAT / 2**20)


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


# ---- beside generation -----------------------------------------------------------------------


def _beside(report: Report, options: argparse.Namespace) -> None:
    texts = mixed_texts(max(4, options.texts // 4))
    with (
        _embedder(options) as embedder,
        Llama(
            resolve_model(options.chat_model), n_ctx=2048, n_seq_max=4, n_threads=options.threads
        ) as llm,
    ):

        def write(number: int) -> Any:
            return llm.create_completion(
                f"Once upon a time {number}", max_tokens=256, temperature=0, ignore_eos=True
            )

        def embed(number: int) -> Any:
            return embedder.embed(texts[number::4])

        alone = {"generate": _seconds(write), "embed": _seconds(embed)}
        slower = {"generate": _while(embed, write), "embed": _while(write, embed)}
    table = report.table("four threads of each, seconds of the slowest", "what", "alone", "beside")
    for name in alone:
        table.add(name, alone[name], slower[name])
        report.at_most(f"{name}: times as long as alone", slower[name] / alone[name], 3.0)


def _seconds(work: Callable[[int], Any]) -> float:
    """Seconds until the last of four threads has done its work, once."""
    with ThreadPoolExecutor(4) as pool:
        begun = time.perf_counter()
        [*pool.map(work, range(4))]
        return time.perf_counter() - begun


def _while(other: Callable[[int], Any], work: Callable[[int], Any]) -> float:
    """``_seconds(work)`` while four threads do the other thing again and again."""
    ended = threading.Event()

    def repeat(number: int) -> None:
        while not ended.is_set():
            other(number)

    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(repeat, number) for number in range(4)]
        time.sleep(0.2)
        try:
            seconds = _seconds(work)
        finally:
            ended.set()
        for each in others:
            each.result()
    return seconds
