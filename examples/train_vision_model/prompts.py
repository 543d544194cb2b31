"""Conversations as the tokens and cells that the engine evaluates, in batches.

Owns: the text around pictures and replies (the chat template of the bundled model, written out:
``verify.py`` compares it with the engine's), and which tokens are learned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from drawing import Shown
from encoder import CELLS
from questions import Turn
from torch import Tensor

#: In place of a cell, and of a token that is not learned.
CELL, NOT = -1, -100
_OPEN, _CLOSE = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
_END, _NEXT = "<|im_end|>", "\n"

Tokenize = Callable[[str], list[int]]


@dataclass(frozen=True)
class Batch:
    """Conversations of the same length, filled up at their ends.

    Attributes:
        tokens: ``(n, length)``, ``CELL`` where there are cells.
        targets: what follows each, ``NOT`` where that is not learned.
        shown: the pictures, in the order of their cells.
        turns: of all conversations, in order.
    """

    tokens: Tensor
    targets: Tensor
    shown: list[Shown]
    turns: list[Turn]


class Prompts:
    """Makes batches."""

    def __init__(self, tokenize: Tokenize) -> None:
        self.tokenize = lru_cache(4096)(tokenize)

    def batch(self, conversations: Sequence[Sequence[Turn]]) -> Batch:
        """A batch of these conversations."""
        rows = [self._row(turns) for turns in conversations]
        longest = max(len(tokens) for tokens, _ in rows)
        tokens = np.zeros((len(rows), longest), np.int64)
        targets = np.full((len(rows), longest), NOT, np.int64)
        for at, (row, learned) in enumerate(rows):
            tokens[at, : len(row)] = row
            ahead = np.where(learned, row, NOT)[1:]
            targets[at, : len(row) - 1] = ahead
        turns = [turn for conversation in conversations for turn in conversation]
        shown = [part for turn in turns for part in turn.parts if isinstance(part, Shown)]
        return Batch(torch.from_numpy(tokens), torch.from_numpy(targets), shown, turns)

    def reply(self, turn: Turn) -> list[int]:
        """The tokens of a reply, and the one that ends it."""
        return self.tokenize(turn.reply + _END)

    def _row(self, turns: Sequence[Turn]) -> tuple[list[int], list[bool]]:
        """The tokens of a conversation, and which of them are learned."""
        tokens: list[int] = []
        learned: list[bool] = []
        text = ""
        for turn in turns:
            text += _OPEN
            for part in turn.parts:
                if isinstance(part, Shown):
                    tokens += [*self.tokenize(text), *[CELL] * CELLS]
                    text = ""
                else:
                    text += part
            tokens += self.tokenize(text + _CLOSE)
            reply = self.reply(turn)
            learned += [False] * (len(tokens) - len(learned)) + [True] * len(reply)
            tokens += reply
            text = _NEXT
        return tokens, learned
