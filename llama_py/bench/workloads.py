"""Texts and replies of the benchmarks: deterministic, and of a given length."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Message", "Scripted", "letters", "prose", "system_message", "user_message"]

Message = dict[str, Any]
#: Text to its number of tokens.
Counter = Callable[[str], int]

_WORDS = """
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night point
home water room mother area money story fact month lot right study book eye job word business issue
side kind head house service friend father power hour game line end member law car city community
name president team minute idea body information back parent face others level office door health
person art war history party result change morning reason research girl guy moment air teacher force
education begin leave write show move help turn start might play run hold bring happen provide sit
stand lose pay meet include continue set learn lead understand watch follow stop create speak read
allow add spend grow open walk win offer remember love consider appear buy wait serve die send build
stay fall cut reach kill remain suggest raise pass sell require report decide pull large small early
young important few public bad same able sure free clear full special easy strong recent certain
""".split()  # noqa: SIM905


def prose(seed: str, tokens: int, count: Counter) -> str:
    """English words in sentences, the shortest text of at least ``tokens`` tokens."""
    source = random.Random(seed)
    sentences: list[str] = []
    while not sentences or count(" ".join(sentences)) < tokens:
        words = source.choices(_WORDS, k=source.randint(5, 9))
        sentences.append(" ".join(words).capitalize() + ".")
    return _trimmed(" ".join(sentences), tokens, count)


def _trimmed(text: str, tokens: int, count: Counter) -> str:
    words = text.split(" ")
    low, high = 1, len(words)
    while low < high:
        middle = (low + high) // 2
        if count(" ".join(words[:middle])) < tokens:
            low = middle + 1
        else:
            high = middle
    return " ".join(words[:low])


def system_message(seed: str, tokens: int, count: Counter) -> Message:
    """A system message of about ``tokens`` tokens."""
    return {"role": "system", "content": prose(f"system {seed}", tokens, count)}


def user_message(seed: str, tokens: int, count: Counter) -> Message:
    """A question of about ``tokens`` tokens."""
    return {"role": "user", "content": prose(f"user {seed}", tokens, count)}


def letters(seed: str, length: int, tokenize: Callable[[str], Sequence[int]]) -> list[int]:
    """A reply of ``length`` tokens whose text is tokenized differently.

    It spells words letter by letter, while the tokenizer uses longer tokens.
    """
    source = random.Random(f"letters {seed}")
    text = ""
    while len(text) < length:
        text += source.choice(_WORDS).capitalize()
    tokens: list[int] = []
    for letter in text[:length]:
        tokens += tokenize(letter)
    return tokens[:length]


class Scripted:
    """A logits processor that lets only the given tokens through, one after the other."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._left = iter(tokens)

    def __call__(self, _ids: Any, row: Any) -> Any:
        token = next(self._left)
        row[:] = float("-inf")
        row[token] = 0.0
        return row
