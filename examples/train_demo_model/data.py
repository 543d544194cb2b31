"""Training batches: generated dialogues as token tensors with the replies marked.

Owns: which tokens carry loss (assistant replies up to and including the end-of-turn token,
held-out replies excepted) and the grouping of dialogues of like length.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import dialogues
import torch
from tokenizers import Tokenizer
from torch import Tensor

POOL = 768
IGNORED = -100

Row = tuple[list[int], list[int]]


@dataclass
class Batch:
    """Token ids and, where a reply's token comes next, that token (else `IGNORED`)."""

    tokens: Tensor
    targets: Tensor


class Encoder:
    """Turns a dialogue into ids and targets."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.opening = tokenizer.encode("<|im_start|>assistant\n").ids
        self.end: int = tokenizer.encode("<|im_end|>").ids[0]

    def encode(self, text: str) -> list[int]:
        """The ids of a rendered text."""
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    def with_targets(self, text: str, wanted: list[bool]) -> Row:
        """Ids, and targets for those replies that are wanted (in order)."""
        ids = self.encode(text)
        targets = [IGNORED] * len(ids)
        at, which, opening = 0, 0, self.opening
        while at < len(ids):
            if ids[at : at + len(opening)] != opening:
                at += 1
                continue
            at += len(opening)
            end = ids.index(self.end, at)
            if wanted[which]:
                targets[at - 1 : end] = ids[at : end + 1]
            which, at = which + 1, end
        assert which == len(wanted)
        return ids, targets


def padded_length(length: int) -> int:
    """The next of the few lengths in use: libraries compile kernels for every shape."""
    step = 32 if length <= 256 else 64
    return -(-length // step) * step


def pad(rows: list[Row]) -> Batch:
    """Rows filled up at the right to one length."""
    length = padded_length(max(len(ids) for ids, _ in rows))
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    targets = torch.full((len(rows), length), IGNORED)
    for at, (ids, marks) in enumerate(rows):
        tokens[at, : len(ids)] = torch.tensor(ids)
        targets[at, : len(marks)] = torch.tensor(marks)
    return Batch(tokens, targets)


def batches(encoder: Encoder, seed: int, weights: dict[str, float], size: int) -> Iterator[Batch]:
    """Endless batches of `size` tokens or a little less, each of rows of like length.

    Changes to `weights` take effect as it goes.
    """
    rng = random.Random(seed)
    waiting: dict[int, list[Row]] = defaultdict(list)
    while True:
        full: list[list[Row]] = []
        for _ in range(POOL):
            dialogue = dialogues.write(rng, weights)
            wanted = [not dialogues.is_held_out(dialogue, at) for _, at in dialogue.replies()]
            text = dialogues.render(dialogue.messages, dialogue.tools)
            row = encoder.with_targets(text, wanted)
            length = padded_length(len(row[0]))
            waiting[length].append(row)
            if len(waiting[length]) == max(1, size // length):
                full.append(waiting.pop(length))
        rng.shuffle(full)
        yield from map(pad, full)
