"""The side of llama-cpp-python: reads requests and writes answers, one JSON object per line.

Runs in an interpreter of its own (``peers.Peer`` starts it), imports nothing of llama_py, and takes
the time of each call itself, so that the pipe is not part of it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any


class Scripted:
    """A logits processor that lets only the given tokens through, one after the other."""

    def __init__(self, tokens: list[int]) -> None:
        self._left = iter(tokens)

    def __call__(self, _ids: Any, row: Any) -> Any:
        token = next(self._left)
        row[:] = float("-inf")
        row[token] = 0.0
        return row


class Worker:
    """Holds one ``llama_cpp.Llama``."""

    def __init__(self) -> None:
        self._library: Any = importlib.import_module("llama_cpp")
        self._llm: Any = None
        self._clock = time.perf_counter

    def load(self, clock: str, **options: Any) -> dict[str, Any]:
        self._clock = time.process_time if clock == "cpu" else time.perf_counter
        self._llm = self._library.Llama(verbose=False, **options)
        return {"version": self._library.__version__}

    def reset(self) -> dict[str, Any]:
        """Forget everything, so that the next call is like that of a freshly loaded model."""
        self._llm.reset()
        memory = self._library.llama_get_memory(self._llm.ctx)
        self._library.llama_memory_clear(memory, True)
        return {}

    def chat(
        self, messages: list[Any], script: list[int] | None = None, **options: Any
    ) -> dict[str, Any]:
        if script is not None:
            options["logits_processor"] = self._library.LogitsProcessorList([Scripted(script)])
        start = self._clock()
        answer = self._llm.create_chat_completion(messages, **options)
        seconds = self._clock() - start
        text = answer["choices"][0]["message"]["content"] or ""
        return {"seconds": seconds, "text": text, "usage": answer["usage"]}

    def complete(self, prompt: Any, **options: Any) -> dict[str, Any]:
        start = self._clock()
        answer = self._llm.create_completion(prompt, **options)
        seconds = self._clock() - start
        text = answer["choices"][0]["text"]
        return {"seconds": seconds, "text": text, "usage": answer["usage"]}

    def embed(self, texts: list[str], vectors: bool = False) -> dict[str, Any]:
        start = self._clock()
        found = self._llm.embed(texts, normalize=True)
        seconds = self._clock() - start
        return {"seconds": seconds, "vectors": found if vectors else []}


def main() -> None:
    # What C code prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        operation = request.pop("operation")
        try:
            answer = getattr(worker, operation)(**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
