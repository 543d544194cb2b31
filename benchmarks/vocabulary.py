"""A byte-level BPE vocabulary of any size, for the benchmark models.

It is trained on the sources of the running Python's standard library, so nothing is downloaded,
and the same Python version gives the same vocabulary. When the library has no more pairs to
merge, pairs of frequent pieces fill the vocabulary up to the requested size. Tokenizing therefore
does as much work as for a real model: tens of thousands of merges, long pieces, code
and English. (The weights are random, so what the tokens mean does not matter.)
"""

from __future__ import annotations

import itertools
import json
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["SPECIAL_TOKENS", "Vocabulary", "make_vocabulary"]

SPECIAL_TOKENS: Final = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
)

#: Folders of the standard library that are left out: mostly data, or not always installed.
_LEFT_OUT: Final = frozenset({"site-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo"})
_MIN_SIZE: Final = 256 + len(SPECIAL_TOKENS)


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in GPT-2's byte alphabet, special ones last, and merges ("left right") by rank."""

    tokens: list[str]
    merges: list[str]

    @property
    def first_special(self) -> int:
        return len(self.tokens) - len(SPECIAL_TOKENS)

    def special(self, text: str) -> int:
        """Return the id of a special token."""
        return self.first_special + SPECIAL_TOKENS.index(text)


def make_vocabulary(size: int) -> Vocabulary:
    """Make a vocabulary of exactly ``size`` tokens.

    Raises:
        ValueError: the size has no room for the 256 bytes and the special tokens.
    """
    if size < _MIN_SIZE:
        raise ValueError(f"a vocabulary needs at least {_MIN_SIZE} tokens, not {size}")
    wanted = size - len(SPECIAL_TOKENS)
    tokens, merges = _train(wanted)
    for left, right in _more_pairs(tokens, wanted - len(tokens)):
        tokens.append(left + right)
        merges.append(f"{left} {right}")
    return Vocabulary([*tokens, *SPECIAL_TOKENS], merges)


def _train(size: int) -> tuple[list[str], list[str]]:
    """Train on the standard library; return at most ``size`` tokens by id, and their merges."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    return tokens, merges


def _corpus() -> Iterator[str]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if _LEFT_OUT.isdisjoint(path.relative_to(root).parts):
            yield path.read_text("utf-8", "replace")


def _more_pairs(tokens: list[str], count: int) -> Iterator[tuple[str, str]]:
    """Yield ``count`` pairs whose texts are not tokens yet: a word, then a piece of one."""
    known = set(tokens)
    words = [token for token in tokens if token[0] == "Ġ" and len(token) > 2]
    pieces = [token for token in tokens[256:] if token.isascii() and token.isalpha()]
    for total in itertools.count():
        if count <= 0:
            return
        for index in range(max(0, total - len(pieces) + 1), min(total + 1, len(words))):
            left, right = words[index], pieces[total - index]
            if count > 0 and left + right not in known:
                known.add(left + right)
                count -= 1
                yield left, right
