"""The cost of options, relative to plain greedy decoding in the same process (part of ``hotpath``).

Every variant is measured right before or right after a plain greedy call on the same prompt. Its
figure is the ratio of the two speeds; the table shows the medians over the repeats. Speeds count
the tokens after the first one, so they do not include evaluating the prompt and compiling a schema.
The time until the first token has its own column.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from typing import Any

from llama_py.bench.report import Report, median, ratios
from llama_py.bench.subject import counter
from llama_py.bench.workloads import prose

__all__ = ["run_variants"]

_SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "count": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 50},
    },
    "required": ["title", "count", "tags"],
    "additionalProperties": False,
}


@dataclass(slots=True)
class _Variant:
    """A set of options, and its measurements.

    Attributes:
        least: the target for the ratio, or None.
        per_token: seconds per token, each with those of the plain call beside it.
    """

    name: str
    least: float | None
    options: dict[str, Any]
    per_token: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    plain_first: list[float] = field(default_factory=list)


def _variants(llm: Any) -> list[_Variant]:
    bias = dict.fromkeys(range(100, 132), -1.0)
    schema = {"type": "json_object", "schema": _SCHEMA}
    return [
        _Variant("logprobs=5", 0.93, {"logprobs": True, "top_logprobs": 5}),
        _Variant("JSON schema", 0.90, {"response_format": schema}),
        _Variant("logit_bias, 32 tokens", 0.97, {"logit_bias": bias}),
        _Variant(
            "temperature, top_k, top_p, repeat_penalty",
            0.95,
            {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "repeat_penalty": 1.1, "seed": 1},
        ),
        _Variant("stream", 0.98, {"stream": True}),
        _Variant("plain again", None, {}),
    ]


def run_variants(report: Report, llm: Any, options: argparse.Namespace) -> None:
    """Add a table of ratios and their targets."""
    variants = _variants(llm)
    messages = [{"role": "user", "content": prose("variants", 24, counter(llm))}]
    timer = _Timer(llm, messages, options.tokens, options.clock == "cpu")
    timer.call({})
    for repeat in range(options.repeats):
        for variant in variants:
            _measure(timer, variant, plain_first=repeat % 2 == 0)
    table = report.table(
        "beside plain greedy",
        *("variant", "tokens/s", "plain tokens/s", "ratio", "lowest", "highest"),
        *("first token ms", "plain first token ms"),
    )
    for variant in variants:
        shares = ratios(variant.plain, variant.per_token)
        speeds = 1 / median(variant.per_token), 1 / median(variant.plain)
        firsts = 1e3 * median(variant.first), 1e3 * median(variant.plain_first)
        table.add(variant.name, *speeds, median(shares), min(shares), max(shares), *firsts)
        if variant.least is not None:
            report.at_least(f"{variant.name}, speed by plain greedy", median(shares), variant.least)


def _measure(timer: _Timer, variant: _Variant, plain_first: bool) -> None:
    sides: list[tuple[dict[str, Any], list[float], list[float]]] = [
        ({}, variant.plain, variant.plain_first),
        (variant.options, variant.per_token, variant.first),
    ]
    for options, per_token, first in sides if plain_first else reversed(sides):
        seconds = timer.call(options)
        per_token.append(seconds[0])
        first.append(seconds[1])


class _Timer:
    """Calls with one prompt, whose evaluation is reused from the first call on."""

    def __init__(self, llm: Any, messages: list[dict[str, Any]], tokens: int, cpu: bool) -> None:
        self._llm, self._messages, self._tokens, self._cpu = llm, messages, tokens, cpu

    def call(self, options: dict[str, Any]) -> tuple[float, float]:
        """Seconds per token after the first, and until the first."""
        if self._cpu:
            return self._cpu_seconds(options)
        start = time.perf_counter()
        count = self._answer(options, self._tokens)
        end = time.perf_counter()
        request = self._llm.runtime.last.record
        # The end of the call, not of the request: what the answer costs belongs to it.
        return (end - request.first_token) / (count - 1), request.first_token - start

    def _cpu_seconds(self, options: dict[str, Any]) -> tuple[float, float]:
        """The same in processor time: a long call's and a short call's, subtracted."""
        seconds, counts = [], []
        for tokens in (2, self._tokens):
            start = time.process_time()
            counts.append(self._answer(options, tokens))
            seconds.append(time.process_time() - start)
        each = (seconds[1] - seconds[0]) / max(1, counts[1] - counts[0])
        return each, seconds[0] - each * (counts[0] - 1)

    def _answer(self, options: dict[str, Any], tokens: int) -> int:
        """Tokens of the reply."""
        answer = self._llm.create_chat_completion(
            self._messages, max_tokens=tokens, **{"temperature": 0.0, **options}
        )
        if options.get("stream"):
            for _ in answer:
                pass
        count = len(self._llm.runtime.last.record.generated)
        if count < 2:
            raise RuntimeError("the model ended its reply at once; use another model")
        return count
