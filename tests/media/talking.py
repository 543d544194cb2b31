"""Chats with pictures, and what libmtmd's own helper computes of the same prompt."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from llama_py import Audio, Image, Llama
from llama_py.engine.media import MediaEncoder
from tests.media.oracle import MediaOracle, Part
from tests.media.pictures import RATE, Picture
from tests.media.projectors import tiny_projector
from tests.media.text_models import media_model
from tests.memory.oracle import Row, nmse

__all__ = ["Talk", "talk"]

_MARKER = re.compile(r"<__media_[0-9a-f]+_\d+__>")


class Talk:
    """A model with a projector, and an oracle for it.

    Attributes:
        llm: the model.
        oracle: evaluates each prompt from the beginning, by libmtmd's helper.
    """

    def __init__(
        self, kind: str, projector: str, model: Path | None = None, **options: Any
    ) -> None:
        model, path = model or media_model(kind), tiny_projector(projector)
        given = {"n_ctx": 1024, "n_seq_max": 4, "n_threads": 1, "flash_attn": False, "mmproj": path}
        self.options: dict[str, Any] = {**given, "type_k": 0, "type_v": 0, **options}
        self.model = model
        self.llm = Llama(model, **self.options)
        self.oracle = MediaOracle(model, path)

    def close(self) -> None:
        self.llm.close()
        self.oracle.close()

    @property
    def encoder(self) -> MediaEncoder:
        media = self.llm.runtime.loaded.media
        assert media is not None
        encoder = media.encoder
        assert isinstance(encoder, MediaEncoder)
        return encoder

    @property
    def encoded(self) -> int:
        """How often something was encoded."""
        return self.encoder.encoded

    def message(self, parts: Sequence[Part]) -> dict[str, Any]:
        """A message of the user with texts, pictures and sounds."""
        return {"role": "user", "content": [_content(part) for part in parts]}

    def ask(self, parts: Sequence[Part], **options: Any) -> Any:
        """One reply to one message."""
        return self.ask_all([self.message(parts)], **options)

    def ask_all(self, messages: Sequence[dict[str, Any]], **options: Any) -> Any:
        given = {"max_tokens": 1, "temperature": 0.0, "ignore_eos": True, **options}
        return self.llm.create_chat_completion(messages, **given)

    def parts(self, messages: Sequence[dict[str, Any]], media: Sequence[Part]) -> list[Part]:
        """The prompt of a conversation as the oracle takes it.

        Args:
            media: its pictures and sounds, in order.
        """
        texts = _MARKER.split(self.llm.render_chat(messages).prompt)
        assert len(texts) == len(media) + 1
        parts: list[Part] = [texts[0]]
        for each, text in zip(media, texts[1:], strict=True):
            parts += [each, text]
        return [part for part in parts if not (isinstance(part, str) and not part)]

    def expected(self, parts: Sequence[Part]) -> Row:
        """The logits behind a message."""
        media = [part for part in parts if not isinstance(part, str)]
        return self.oracle.logits(self.parts([self.message(parts)], media))

    def error(self, parts: Sequence[Part], **options: Any) -> float:
        """NMSE of the logits behind a message, beside the oracle's."""
        self.ask(parts, **options)
        return nmse(self.llm.last_logits, self.expected(parts))

    @property
    def reused(self) -> int:
        """Tokens of the last prompt that were not evaluated."""
        return self.llm.cache.info["reused"]


def _content(part: Part) -> Any:
    if isinstance(part, str):
        return part
    return Image(part) if part.ndim == 3 else Audio(part, RATE)


@contextmanager
def talk(kind: str = "full", projector: str = "mlp", **options: Any) -> Iterator[Talk]:
    """A model to talk to."""
    talking = Talk(kind, projector, **options)
    try:
        yield talking
    finally:
        talking.close()


def cells(talking: Talk, part: Picture | np.ndarray[Any, Any]) -> int:
    """Tokens that a picture or sound takes."""
    content = _content(part)
    return len(talking.encoder.read(content.data, "it").tokens)
