"""Tiny text models that read pictures and sounds.

They are those of ``tests.models``, with the special tokens that libmtmd writes around media in
their vocabulary, and one more kind, ``mrope`` (qwen2vl): full attention, with positions in three
dimensions (time, height, width).
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import gguf

from tests import models
from tests.models import TinySpec, TinyVocab, tiny_model, tiny_vocab

__all__ = ["MEDIA_TOKENS", "media_model", "media_vocab"]

#: Control tokens, in the order of their ids, which follow those of ``tests.models``.
MEDIA_TOKENS: Final = (
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<start_of_image>",
    "<end_of_image>",
    "<|audio>",
    "<audio|>",
)
#: How the half of a head's dimensions is divided between time, height and width.
_SECTIONS: Final = (4, 6, 6, 0)


def media_vocab() -> TinyVocab:
    """Return the vocabulary of ``tests.models`` with ``MEDIA_TOKENS`` behind it."""
    vocab = tiny_vocab()
    return dataclasses.replace(vocab, tokens=[*vocab.tokens, *MEDIA_TOKENS])


def media_model(kind: str, **changes: object) -> Path:
    """Return the path of a tiny model that knows ``MEDIA_TOKENS``; make it if it is not there.

    Args:
        kind: one of ``tests.models``, or ``mrope``.
        changes: replace fields of ``TinySpec``.
    """
    spec = dataclasses.replace(TinySpec(kind), **changes)  # type: ignore[arg-type]
    path = tiny_model("full").parent / f"media-{kind}-{_fingerprint(spec)}.gguf"
    if not path.exists():
        handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
        os.close(handle)
        _MediaWriter(spec, Path(part)).write()
        Path(part).replace(path)
    return path


def _fingerprint(spec: TinySpec) -> str:
    source = Path(__file__).read_bytes() + Path(models.__file__).read_bytes()
    return hashlib.sha256(source + repr(spec).encode()).hexdigest()[:12]


class _MediaWriter(models._ModelWriter):
    """Writes a model of ``tests.models`` with another vocabulary, or a qwen2vl."""

    def __init__(self, spec: TinySpec, path: Path) -> None:
        super().__init__(spec, path)
        self.vocab = media_vocab()

    def _architectures(self) -> dict[str, tuple[str, Callable[[], None]]]:
        return {**super()._architectures(), "mrope": ("qwen2vl", self._qwen2vl)}

    def _vocabulary(self) -> None:
        super()._vocabulary()
        types = self.gguf.kv_data[0][gguf.Keys.Tokenizer.TOKEN_TYPE].value
        types[-len(MEDIA_TOKENS) :] = [gguf.TokenType.CONTROL] * len(MEDIA_TOKENS)

    def _qwen2vl(self) -> None:
        self.gguf.add_rope_dimension_sections(_SECTIONS)
        self._llama()
