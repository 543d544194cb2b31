"""The word pools the dialogue generator draws from.

Owns: every name, colour, place and thing that can appear in a dialogue, and the
made-up words that keep the model from learning to copy only what is listed here.
"""

from __future__ import annotations

import random


def pool(words: str) -> list[str]:
    """The words of a text."""
    return words.split()


def phrasings(texts: str) -> list[str]:
    """The alternatives of a text that puts a bar between them."""
    return texts.split("|")


NAMES = pool(
    "Ann Bob Carl Dana Emma Finn Grace Hugo Iris Jack Kate Liam Mia Noah Olga Paul Quinn Rosa "
    "Sam Tina Uma Vera Will Xenia Yara Zoe Adam Bella Clara David Eva Frank Gina Henry Ida John "
    "Karl Laura Mark Nina Oscar Peter Ruth Sara Tom Victor Wendy Alice Ben Charlie Diana Eric "
    "Fiona George Helen Ivan Julia Kevin Lucy Maria Nora Omar Pia Robert Sophie Theo Anna Max "
    "Leo Ella Amy Jane Jim Joe Kim Lena"
)

COLOURS = pool("red blue green yellow orange purple pink brown black white grey violet gold silver")

CITIES = pool(
    "Paris London Berlin Rome Madrid Vienna Oslo Tokyo Cairo Lima Dublin Prague Warsaw Athens "
    "Lisbon Delhi Sydney Boston Chicago Toronto Geneva Munich Zurich Hamburg Milan Seoul Kyoto"
)

THINGS = pool(
    "apple banana cherry lemon pear plum grape melon bread milk cheese egg tea coffee sugar salt "
    "cat dog bird fish horse cow sheep mouse lion tiger bear fox "
    "tree flower river stone sun moon star rain snow wind "
    "house door table chair lamp book pen cup bag hat shoe coat ring key clock car bike boat train"
)

ANIMALS = pool("cat dog bird fish horse cow sheep mouse lion tiger bear fox")

GOODS = pool("lamp book pen cup bag hat shoe coat ring key clock bike boat table chair")

CONDITIONS = pool("sunny cloudy rainy windy snowy foggy")

# Models of this size often miscopy words that they have never seen: few are made up.
KNOWN = 0.98

_ONSETS = pool("b d f g k l m n p r s t v z br st tr")
_VOWELS = pool("a e i o u")
_CODAS = ["", "n", "r", "l", "s", "x"]


def made_up(rng: random.Random) -> str:
    """A pronounceable word of two syllables that is in no pool."""
    word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(2))
    return word + rng.choice(_CODAS)


def a_name(rng: random.Random) -> str:
    """A person's name: nearly always a known one, sometimes a made-up one."""
    return rng.choice(NAMES) if rng.random() < KNOWN else made_up(rng).capitalize()


def a_city(rng: random.Random) -> str:
    """A city's name: nearly always a known one, sometimes a made-up one."""
    return rng.choice(CITIES) if rng.random() < KNOWN else made_up(rng).capitalize()


def list_items(rng: random.Random) -> list[str]:
    """Two to six different items of one kind: words, colours, names, numbers or letters."""
    count = rng.randint(2, 6)
    kind = rng.random()
    if kind < 0.40:
        known: list[str] = THINGS
    elif kind < 0.52:
        known = COLOURS
    elif kind < 0.62:
        known = NAMES
    elif kind < 0.85:
        known = [str(number) for number in range(21 if rng.random() < 0.6 else 100)]
    else:
        letters = "abcdefghijklmnopqrstuvwxyz"
        known = list(letters if rng.random() < 0.5 else letters.upper())
    return rng.sample(known, count)
