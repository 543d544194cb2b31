"""How tokens were cut into decodes, so that the oracle can cut them the same way.

A product of matrices sums in another order when it has one column than when it has many. The noise
is 1e-14, which some models raise to 1e-11; so a token that was evaluated alone is compared with one
that was evaluated alone. How long a chunk was does not matter, as long as it was more than one.
"""

from __future__ import annotations

from collections.abc import Sequence

from llama_py import Llama
from llama_py.core.batch import Batch

ALONE, MANY, UNCERTAIN = "alone", "many", "uncertain"


class CutRecorder:
    """Notes for each prefix of tokens how its last token was evaluated."""

    def __init__(self) -> None:
        self._how: dict[int, str] = {}

    def watch(self, llm: Llama) -> None:
        """Look at everything that ``llm`` decodes from now on."""
        context, cache = llm.runtime.loaded.context, llm.runtime.loaded.cache
        decode = context.decode

        def watched(batch: Batch) -> int:
            count = len(batch)
            numbers = batch.sequences[:count].tolist()
            how = ALONE if count == 1 else MANY if len(set(numbers)) == 1 else UNCERTAIN
            heads = {number: list(cache.live.by_number[number].tokens) for number in set(numbers)}
            for token, number in zip(batch.tokens[:count].tolist(), numbers, strict=True):
                heads[number].append(token)
                key = hash(tuple(heads[number]))
                self._how[key] = how if self._how.get(key, how) == how else UNCERTAIN
            return decode(batch)

        context.decode = watched  # type: ignore[method-assign]

    def runs(self, tokens: Sequence[int]) -> tuple[list[Sequence[int]], bool]:
        """``tokens`` cut as they were evaluated, and whether that is certain."""
        marks = [self._how.get(hash(tuple(tokens[: end + 1])), MANY) for end in range(len(tokens))]
        runs: list[Sequence[int]] = []
        begin = 0
        for end in range(1, len(tokens) + 1):
            if end == len(tokens) or marks[end] is ALONE or marks[begin] is ALONE:
                runs.append(tokens[begin:end])
                begin = end
        lonely = any(len(run) == 1 and marks[i] is not ALONE for i, run in _numbered(runs))
        return runs, UNCERTAIN not in marks and not lonely


def _numbered(runs: Sequence[Sequence[int]]) -> list[tuple[int, Sequence[int]]]:
    """Each run with the position of its first token."""
    numbered, start = [], 0
    for run in runs:
        numbered.append((start, run))
        start += len(run)
    return numbered
