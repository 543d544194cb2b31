"""Lists of callables that can be called themselves, as llama-cpp-python has them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llama_py.params import LogitsProcessor, StoppingCriteria

__all__ = ["LogitsProcessorList", "StoppingCriteriaList"]

Tokens = NDArray[np.intc]
Row = NDArray[np.single]


class LogitsProcessorList(list[LogitsProcessor]):
    """Processors that are applied one after the other. A plain list does as well."""

    def __call__(self, tokens: Tokens, row: Row) -> Row:
        """The row after all of them."""
        for process in self:
            row = process(tokens, row)
        return row


class StoppingCriteriaList(list[StoppingCriteria]):
    """Criteria of which one is enough. A plain list does as well."""

    def __call__(self, tokens: Tokens, row: Row) -> bool:
        """Whether one of them says stop."""
        return any(stop(tokens, row) for stop in self)
