"""Who answers the calls of a transcript: a server in some dialect, or a model in this process."""

from __future__ import annotations

import argparse
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from llama_py.bench.agents import DIALECTS, ask
from llama_py.bench.http_load import Endpoint, Reply
from llama_py.errors import LlamaError, ParameterError

__all__ = ["Target", "add_target_arguments", "open_target"]

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]


class Target(Protocol):
    """Answers calls."""

    name: str

    def forget(self) -> str:
        """A text; calls that begin with it reuse nothing that was evaluated before."""

    def ask(self, messages: Messages, tools: Tools, max_tokens: int) -> Reply:
        """A greedy reply."""


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what names the target."""
    parser.add_argument("--base-url", metavar="URL", help="a server")
    parser.add_argument("--api-key", default="", metavar="KEY")
    parser.add_argument("--served-model", default="default", metavar="NAME")
    parser.add_argument("--dialect", choices=[*DIALECTS], default="openai")
    parser.add_argument("--model", metavar="FILE", help="a model in this process instead")
    parser.add_argument("--n-ctx", type=int, default=16384, metavar="N")
    parser.add_argument("--threads", type=int, default=0, metavar="N")
    parser.add_argument("--swa-full", action="store_true")


@contextmanager
def open_target(options: argparse.Namespace) -> Iterator[Target]:
    """The target that the options name.

    Raises:
        ParameterError: they name none, or two.
    """
    if bool(options.base_url) == bool(options.model):
        raise ParameterError("give either --base-url URL or --model FILE")
    if options.base_url:
        endpoint = Endpoint(options.base_url, options.api_key, options.served_model)
        yield _Server(endpoint, options.dialect)
        return
    from llama_py.api.llama import Llama
    from llama_py.bench.subject import resolve_model

    names = ("n_threads", "n_threads_batch") if options.threads else ()
    threads = dict.fromkeys(names, options.threads)
    with Llama(
        resolve_model(options.model),
        n_ctx=options.n_ctx,
        swa_full=options.swa_full,
        **threads,
    ) as llm:
        yield _Model(llm)


class _Server:
    def __init__(self, endpoint: Endpoint, dialect: str) -> None:
        self.name = dialect
        self._endpoint = endpoint
        self._dialect = dialect

    def forget(self) -> str:
        return f"[{uuid.uuid4().hex}] "  # a beginning that it has never seen

    def ask(self, messages: Messages, tools: Tools, max_tokens: int) -> Reply:
        return ask(self._endpoint, self._dialect, messages, tools, max_tokens)


class _Model:
    def __init__(self, llm: Any) -> None:
        self.name = "in process"
        self._llm = llm

    def forget(self) -> str:
        self._llm.reset()
        return ""

    def ask(self, messages: Messages, tools: Tools, max_tokens: int) -> Reply:
        reply = Reply(time.perf_counter())
        parts: list[str] = []
        options: dict[str, Any] = {"tools": list(tools)} if tools else {}
        options["stream_options"] = {"include_usage": True}
        try:
            stream = self._llm.create_chat_completion(
                messages, stream=True, temperature=0.0, max_tokens=max_tokens, **options
            )
            for chunk in stream:
                _note(reply, parts, chunk)
        except LlamaError as error:
            reply.error = str(error)
        reply.ended = time.perf_counter()
        reply.text = "".join(parts)
        reply.first = reply.times[0] if reply.times else reply.ended
        return reply


def _note(reply: Reply, parts: list[str], chunk: Mapping[str, Any]) -> None:
    for choice in chunk["choices"]:
        delta = choice["delta"]
        calls = [call["function"] for call in delta.get("tool_calls", ())]
        text = "".join(f"{call.get('name') or ''}{call['arguments']}" for call in calls)
        text = f"{delta.get('reasoning_content') or ''}{delta.get('content') or ''}{text}"
        if text:
            parts.append(text)
            reply.times.append(time.perf_counter())
        reply.finish_reason = choice["finish_reason"] or reply.finish_reason
    usage = chunk.get("usage")
    if usage:
        reply.tokens, reply.prompt_tokens = usage["completion_tokens"], usage["prompt_tokens"]
        reply.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
