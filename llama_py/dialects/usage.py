"""``usage`` and ``timings`` of a response, from the requests that made it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from llama_py.dialects.openai.types import CompletionUsage, Timings
from llama_py.engine.request import Record

__all__ = ["PromptProgress", "make_timings", "make_usage"]


def make_usage(
    prompts: Sequence[Record], completion_tokens: int, reasoning_tokens: int = 0
) -> CompletionUsage:
    """Counts of tokens.

    Args:
        prompts: one record for each prompt: several choices of one prompt count it once.
        completion_tokens: generated tokens of all choices.
        reasoning_tokens: how many of them were reasoning.
    """
    prompt_tokens, reused = _of_prompts(prompts)
    usage: CompletionUsage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reused},
    }
    if reasoning_tokens:
        usage["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return usage


def _of_prompts(records: Sequence[Record]) -> tuple[int, int]:
    """Tokens of all prompts, and how many of them were reused."""
    tokens = reused = 0
    for record in records:
        tokens += len(record.tokens)
        reused += record.cache.get("reused", 0)
    return tokens, reused


def make_timings(records: Sequence[Record], completion_tokens: int) -> Timings:
    """How long a call took, from the first request's start to the last one's end.

    The first token of a reply comes of the prompt's last step, at the end of ``prompt_ms``: rates
    of the reply count the others.
    """
    prompt_tokens, reused = _of_prompts(records)
    evaluated = prompt_tokens - reused
    now = perf_counter()
    start = min([r.started or r.submitted for r in records], default=now)
    ended = max([r.ended or now for r in records], default=now)
    first = min([r.first_token or r.ended or now for r in records], default=now)
    prompt_ms, predicted_ms = (first - start) * 1e3, (ended - first) * 1e3
    steps = max(0, completion_tokens - sum(record.first_token > 0 for record in records))
    timings: Timings = {
        "cache_n": reused,
        "prompt_n": evaluated,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": _ratio(prompt_ms, evaluated),
        "prompt_per_second": _ratio(evaluated * 1e3, prompt_ms),
        "predicted_n": completion_tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": _ratio(predicted_ms, steps),
        "predicted_per_second": _ratio(steps * 1e3, predicted_ms),
    }
    drafted = sum(record.drafted for record in records)
    if drafted:
        timings["draft_n"] = drafted
        timings["draft_n_accepted"] = sum(record.accepted for record in records)
    return timings


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far a prompt has come.

    Attributes:
        done: its tokens that are in memory; ``reused`` of them were there before.
        total: its tokens.
        waited: seconds since the request came.
        seconds: since its evaluation began.
    """

    done: int
    reused: int
    total: int
    waited: float
    seconds: float

    def told(self) -> dict[str, int]:
        """As llama-server says it."""
        milliseconds = round(self.waited * 1e3)
        return {
            "total": self.total,
            "cache": self.reused,
            "processed": self.done,
            "time_ms": milliseconds,
        }

    def timings(self) -> Timings:
        """The timings of a reply until now; zeros before anything was evaluated."""
        evaluated = max(0, self.done - self.reused)
        prompt_ms = self.seconds * 1e3 if evaluated else 0.0
        return {
            "cache_n": self.reused,
            "prompt_n": evaluated,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": _ratio(prompt_ms, evaluated),
            "prompt_per_second": _ratio(evaluated * 1e3, prompt_ms),
            "predicted_n": 0,
            "predicted_ms": 0.0,
            "predicted_per_token_ms": 0.0,
            "predicted_per_second": 0.0,
        }


def _ratio(amount: float, of: float) -> float:
    return amount / of if of > 0 else 0.0
