"""Runs cases of the corpus in one process beside a stream, and says of each what came of it.

``python -m tests.hostile.child FIRST STEP``: every STEP-th case from FIRST on, one JSON line each.
The name of a case is written before it begins, so that one that ends the process is known.
"""

from __future__ import annotations

import faulthandler
import json
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from llama_py import Llama, demo_model_path
from llama_py.errors import LlamaError
from tests.hostile.corpus import GRAMMARS, PATTERNS, SCHEMAS, TOOLS
from tests.patience import PATIENCE

#: Bytes of address space.
MEMORY = 2 << 30
#: Of the processor, for the calling thread in one case; what hangs is ended after PATIENCE.
SECONDS = 10
MESSAGES = [{"role": "user", "content": "Give me a JSON object with name Alice and age 30."}]
MOST_TOKENS = 24

Case = Callable[[Llama], str]


class Neighbour(threading.Thread):
    """Streams one reply after the other, and knows when each token came."""

    def __init__(self, llm: Llama) -> None:
        super().__init__(daemon=True)
        self._llm = llm
        self.times: list[float] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while True:
                chunks = self._llm.create_completion(
                    "One day", max_tokens=400, temperature=1.0, seed=1, stream=True
                )
                self.times += (time.perf_counter() for _ in chunks)
        except LlamaError as error:
            self.failure = error

    def gaps(self, since: float) -> list[float]:
        """Seconds between its tokens from a point in time on, the time until now included."""
        times = [t for t in [*self.times] if t >= since]
        ends = [*times, time.perf_counter()]
        return [b - a for a, b in zip([since, *times], ends, strict=True)]


def reply_to_schema(schema: Any, backend: str) -> Case:
    def run(llm: Llama) -> str:
        patch = pytest.MonkeyPatch()
        if backend == "gbnf":
            patch.setattr("llama_py.chat.constraints.available", lambda: False)
        try:
            response: Any = llm.create_chat_completion(
                MESSAGES,
                response_format={"type": "json_object", "schema": schema},
                max_tokens=MOST_TOKENS,
                temperature=0,
            )
        finally:
            patch.undo()
        choice = response["choices"][0]
        text = choice["message"]["content"]
        if choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(text), schema)
        return f"{choice['finish_reason']}: {text}"

    return run


def call_of_tool(parameters: Any) -> Case:
    tool = {"type": "function", "function": {"name": "act", "parameters": parameters}}

    def run(llm: Llama) -> str:
        response: Any = llm.create_chat_completion(
            MESSAGES, tools=[tool], tool_choice="required", max_tokens=MOST_TOKENS, temperature=0
        )
        return str(response["choices"][0]["finish_reason"])

    return run


def reply_in_grammar(text: str) -> Case:
    def run(llm: Llama) -> str:
        response: Any = llm.create_completion(
            "Hello", grammar=text, max_tokens=MOST_TOKENS, temperature=1.0, seed=1
        )
        choice = response["choices"][0]
        return f"{choice['finish_reason']}: {choice['text']}"

    return run


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """All of them: names, and what makes them."""
    for backend in ("llguidance", "gbnf"):
        for name, make in SCHEMAS.items():
            yield f"schema, {backend}: {name}", partial(_made, reply_to_schema, make, backend)
        for name, pattern in PATTERNS.items():
            schema = {"type": "string", "pattern": pattern}
            yield f"pattern, {backend}: {name}", partial(reply_to_schema, schema, backend)
    for name in TOOLS:
        yield f"tool: {name}", partial(_made, call_of_tool, SCHEMAS[name])
    for name, text in GRAMMARS.items():
        yield f"grammar: {name}", partial(_made, reply_in_grammar, text)


def _made(make: Callable[..., Case], given: Callable[[], Any], *more: Any) -> Case:
    return make(given(), *more)


def waiting() -> dict[str, float]:
    """Seconds that each thread was ready to run and had no core."""
    found = {}
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            found[thread.name] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return found


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def main(first: int, step: int) -> None:
    llm = Llama(demo_model_path(), n_threads=1, n_seq_max=4, n_ctx=4096)
    reply_to_schema({"type": "object"}, "llguidance")(llm)  # the vocabulary is read once
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    neighbour = Neighbour(llm)
    neighbour.start()
    for number, (name, make) in [*enumerate(cases())][first::step]:
        say(begins=name, number=number)
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        case = make()
        time.sleep(0.02)  # a few tokens before it
        before, start, used = waiting(), time.perf_counter(), time.thread_time()
        error = typed = None
        reply = ""
        try:
            reply = case(llm)
        except Exception as raised:
            error, typed = f"{type(raised).__name__}: {raised}", isinstance(raised, LlamaError)
        used = time.thread_time() - used
        faulthandler.cancel_dump_traceback_later()
        time.sleep(0.005)
        gaps = neighbour.gaps(start)
        alive = neighbour.is_alive() and neighbour.failure is None
        # What other programs took of the cores is not the library's fault.
        waited = sum(end - before[thread] for thread, end in waiting().items() if thread in before)
        found = {"error": error, "typed": typed, "reply": reply[:200], "alive": alive}
        usual = sum(gaps) / len(gaps)  # tokens may be read in bursts
        times = {"used": used, "worst": max(gaps), "usual": usual, "waited": waited}
        say(ends=name, number=number, **times, **found)
        neighbour.times.clear()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
