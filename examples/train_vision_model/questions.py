"""What is asked about pictures, and what is right to reply: conversations of several turns.

Owns: the phrasings, and the conversations that the encoder is trained on. A picture stands before
or behind the question; a turn may bring a new one, or ask about one that was shown before; and a
message may bring two, with their numbers, and ask for the second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from drawing import Shown

NAME = (
    "What is this?",
    "What is in the picture?",
    "What do you see?",
    "What is in this picture?",
    "Describe the picture.",
)
COLOUR = ("What colour is it?", "What is the colour?", "Which colour is it?")
#: Where there are two pictures: what stands before each, and what is asked.
LABEL = "Picture {}:"
SECOND = ("What is picture 2?", "What is in picture 2?", "Name picture 2.")

Part = str | Shown


@dataclass(frozen=True)
class Turn:
    """What the user sends, in order, and the right reply.

    Attributes:
        kind: of the question: "digit" and "shape" ask for the name of the only picture, "second"
            for that of the second of two, and "its colour" is what it says.
    """

    parts: tuple[Part, ...]
    reply: str
    kind: str


def conversation(rng: np.random.Generator, draw: Callable[[], Shown], count: int) -> list[Turn]:
    """A conversation of ``count`` turns at random; ``draw`` makes its pictures."""
    turns: list[Turn] = []
    last: list[Shown] = []
    for _ in range(count):
        if not last or rng.random() < 0.4:
            last = [draw() for _ in range(rng.choice((1, 2), p=(0.55, 0.45)))]
            question, reply, kind = _about(rng, last)
            turns.append(Turn(_with(rng, last, question), reply, kind))
        else:
            question, reply, kind = _about(rng, last)
            turns.append(Turn((question,), reply, kind))
    return turns


def _about(rng: np.random.Generator, shown: list[Shown]) -> tuple[str, str, str]:
    """A question, the right reply, and the question's kind."""
    if len(shown) == 2:
        return _one_of(rng, SECOND), shown[1].name, "second"
    only, roll = shown[0], rng.random()
    if only.colour and roll < 0.4:
        return _one_of(rng, COLOUR), only.colour, "its colour"
    return _one_of(rng, NAME), only.name, "shape" if only.shape else "digit"


def _with(rng: np.random.Generator, shown: list[Shown], question: str) -> tuple[Part, ...]:
    """A question with pictures before it, or behind it if there is only one."""
    if len(shown) == 1:
        return (*shown, question) if rng.random() < 0.7 else (question, *shown)
    labelled = ((LABEL.format(number), each) for number, each in enumerate(shown, 1))
    return (*(part for pair in labelled for part in pair), question)


def _one_of(rng: np.random.Generator, questions: tuple[str, ...]) -> str:
    return str(rng.choice(questions))
