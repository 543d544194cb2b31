"""A server that is killed in the middle of a replay, and started again: the replay goes on."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from llama_py.bench.synthetic import TOOLS, make
from tests.chat import families
from tests.models import tiny_model
from tests.patience import PATIENCE
from tests.server.leaving import until
from tests.server.test_sessions import answers, free_port

ROOT = Path(__file__).parents[2]
TEMPLATE = "Qwen-Qwen2.5-7B-Instruct"
#: What may be evaluated again after a restart, beside what is new.
AGAIN = 64
#: What a conversation has to grow by to be written again.
GROWN = 48


@contextlib.contextmanager
def running(model: Path, directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    port = free_port()
    command = [sys.executable, "-m", "llama_py", "serve", str(model), "--port", str(port)]
    command += ["--session-dir", str(directory), "--n-ctx", "4096", "--threads", "1"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as http:
                until(lambda: answers(http), "the server answers")
                yield process, http
        finally:
            process.kill()


def body(messages: Any, **more: Any) -> dict[str, Any]:
    greedy = {"temperature": 0, "ignore_eos": True, "max_tokens": 4}
    return {"messages": messages, "tools": TOOLS, "session_id": "agent", **greedy, **more}


def ask(http: httpx.Client, messages: Any) -> tuple[int, int]:
    """Tokens of the prompt, and those that were evaluated."""
    answer = http.post("/v1/chat/completions", json=body(messages))
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    prompt: int = usage["prompt_tokens"]
    return prompt, prompt - usage["prompt_tokens_details"]["cached_tokens"]


def saved(http: httpx.Client) -> int:
    count: int = http.get("/v1/sessions/agent").json()["tokens_saved"]
    return count


@pytest.mark.parametrize("kind", ["full", "iswa", "hybrid"])
def test_the_replay_goes_on(kind: str, tmp_path: Path) -> None:
    model = tiny_model(kind, chat_template=families.source(TEMPLATE))
    messages = make(3000, seed=2)
    calls = [messages[:i] for i, each in enumerate(messages) if each["role"] == "assistant"]
    assert len(calls) >= 5
    middle = 3
    with running(model, tmp_path) as (process, http):
        for call in calls[:middle]:
            before, _ = ask(http, call)
        until(lambda: saved(http) > before - GROWN, "the last call was written")
        going_on = body(calls[middle], stream=True, max_tokens=400)
        with http.stream("POST", "/v1/chat/completions", json=going_on) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(signal.SIGKILL)
            with contextlib.suppress(httpx.TransportError):
                for _ in lines:
                    pass
    with running(model, tmp_path) as (_, http):
        for call in calls[middle:]:
            prompt, evaluated = ask(http, call)
            assert evaluated <= prompt - before + AGAIN
            before = prompt
