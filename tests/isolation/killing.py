"""What tests do to the processes of models, and what they see of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llama_py import Llama
from llama_py.api.facts import ProcessStatus
from tests.patience import PATIENCE

__all__ = ["OPTIONS", "STORY", "gone", "kill", "states_of", "status_of", "until"]

OPTIONS: dict[str, Any] = {"n_ctx": 2048, "n_threads": 1, "verbose": False}
#: Goes on until somebody ends it.
STORY: dict[str, Any] = {"temperature": 0, "max_tokens": 1500, "ignore_eos": True}


def status_of(llm: Llama) -> ProcessStatus:
    """How the process of a model is."""
    status = llm.runtime.port.own_process
    assert status is not None
    return status


def kill(llm: Llama, number: int = signal.SIGKILL) -> int:
    """Send a signal to the process of a model; returns which process that was.

    What is to stop has stopped: on a busy machine it answers for some milliseconds more.
    """
    pid = status_of(llm).pid
    os.kill(pid, number)
    if number == signal.SIGSTOP:
        until(lambda: all(each == "T" for each in states_of(pid)), "it stopped")
    return pid


def states_of(pid: int) -> list[str]:
    """The state of each thread of a process, as the kernel has it."""
    found = Path(f"/proc/{pid}/task").glob("*/stat")
    return [each.read_text(encoding="ascii").rpartition(")")[2].split()[0] for each in found]


def gone(pid: int) -> bool:
    """Whether there is no such process, or only its remains, which its parent has not collected."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until a condition holds; returns its value."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"it never came to that: {what}"
        time.sleep(0.01)
    return value
