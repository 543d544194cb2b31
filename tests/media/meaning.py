"""Pictures that mean something, and a projector that was trained to name them.

``examples/train_vision_model`` trains it in front of the bundled model, on digits and on shapes in
four colours. The pictures here are none of those that it was trained on: the digits were held back
(``data/digits.npz``), and the shapes are drawn at random, from a seed that training never had.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from llama_py import Image, Llama, demo_model_path

__all__ = [
    "ENOUGH",
    "PROJECTOR",
    "Asked",
    "digits",
    "name_of",
    "name_second_of",
    "reading",
    "shapes",
]

DATA = Path(__file__).parent / "data"
PROJECTOR = DATA / "mmproj-demo-f16.gguf"
#: The part of the replies that has to be right.
ENOUGH = 0.9
#: That of the pictures here.
SEED = 60309

_RECIPE = Path(__file__).resolve().parents[2] / "examples" / "train_vision_model"
#: Decoding a prompt in other steps must not change what is said.
_OPTIONS: dict[str, Any] = {"n_ctx": 2048, "n_seq_max": 6, "n_threads": 1, "flash_attn": False}


@cache
def _drawing() -> Any:
    sys.path.insert(0, str(_RECIPE))
    try:
        return importlib.import_module("drawing")
    finally:
        sys.path.remove(str(_RECIPE))


@cache
def digits() -> list[Any]:
    """All held-back digits: ``picture``, and its right ``name``."""
    with np.load(DATA / "digits.npz") as data:
        grey, value = data["grey"], data["value"]
    draw = _drawing().draw_digit
    return [draw(each, int(name)) for each, name in zip(grey, value, strict=True)]


@cache
def shapes(count: int) -> list[Any]:
    """Shapes: ``picture``, and its right ``name``, ``colour`` and ``shape``."""
    rng = np.random.default_rng(SEED)
    return [_drawing().draw_shape(rng) for _ in range(count)]


class Asked:
    """A model that reads pictures.

    Attributes:
        llm: the model.
    """

    def __init__(self, llm: Llama) -> None:
        self.llm = llm

    @property
    def encoded(self) -> int:
        """How many pictures were encoded so far."""
        media = self.llm.runtime.loaded.media
        encoder = None if media is None else media.loaded
        return 0 if encoder is None else encoder.encoded

    @property
    def reused(self) -> int:
        """Tokens of the last prompt that were not evaluated."""
        return self.llm.cache_info["reused"]

    def ask(self, messages: Sequence[dict[str, Any]], **options: Any) -> str:
        """The reply to a conversation."""
        given = {"temperature": 0.0, "max_tokens": 8, **options}
        reply: Any = self.llm.create_chat_completion(messages, **given)
        return str(reply["choices"][0]["message"]["content"])


def name_of(shown: Any) -> dict[str, Any]:
    """A user's message: a picture, and what it is."""
    return {"role": "user", "content": [Image(shown.picture), "What is this?"]}


def name_second_of(first: Any, second: Any) -> dict[str, Any]:
    """A user's message: two pictures, and what the second one is."""
    pictures = ["Picture 1:", Image(first.picture), "Picture 2:", Image(second.picture)]
    return {"role": "user", "content": [*pictures, "What is picture 2?"]}


@contextmanager
def reading(**options: Any) -> Iterator[Asked]:
    """The bundled model, with the projector."""
    with Llama(demo_model_path(), mmproj=PROJECTOR, **{**_OPTIONS, **options}) as llm:
        yield Asked(llm)
