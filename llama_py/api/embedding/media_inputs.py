"""Inputs with pictures and sounds: read, encoded, and put among the tokens of their texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from llama_py.api.media import ModelMedia
from llama_py.chat.conversation import AudioPart, ImagePart, Text
from llama_py.core.model import Model
from llama_py.dialects.openai.messages import read_parts
from llama_py.embeddings.inputs import MediaInput, Tokens, VectorPiece
from llama_py.engine.media import Medium
from llama_py.errors import MediaError, ParameterError, TokenizationError
from llama_py.media.reading import MediaReading
from llama_py.memory.positions import media_length

__all__ = ["read_media_input"]


def read_media_input(
    model: Model, media: ModelMedia | None, given: Any, where: str
) -> Tokens | MediaInput:
    """An input as what is computed. Its pictures are encoded here, by the calling thread.

    Args:
        media: the model's pictures and sounds; None: it is an encoder, which reads texts only.
        given: ``Image``, ``Audio``, or ``{"content": [PART, ...]}`` with parts as of a message.
        where: what it is called in errors.

    Raises:
        ParameterError, MediaError, TokenizationError: it cannot be embedded.
    """
    if isinstance(given, Mapping):
        parts = read_parts(given["content"], f"{where}.content")
    else:
        parts = read_parts([given], where)
    pieces: list[Tokens | VectorPiece] = []
    n_media, reading = 0, MediaReading()
    for index, part in enumerate(parts):
        place = f"{where}.content[{index}]" if isinstance(given, Mapping) else where
        if isinstance(part, Text):
            try:
                tokens = model.vocab.tokenize(part.text, add_special=False)
            except TokenizationError as error:
                raise TokenizationError(f"{place}: {error}") from None
            pieces.append(np.array(tokens, np.int32))
            continue
        if media is None or not model.is_causal:
            raise ParameterError(
                f"{place} is a picture or a sound, and {model.path.name} ({model.architecture}) "
                "embeds texts only"
            )
        n_media += 1
        if n_media > media.limits.most_media:
            raise MediaError(
                f"{place} is one too many: at most {media.limits.most_media} pictures and sounds "
                "are allowed (max_media)"
            )
        pieces += _encoded(media, part, place, reading)
    return _with_ends(model, pieces, where)


def _encoded(
    media: ModelMedia, part: ImagePart | AudioPart, where: str, reading: MediaReading
) -> list[Tokens | VectorPiece]:
    """A picture or a sound, with the tokens that its projector puts around and into it."""
    medium: Medium = media.read(part, getattr(part, "where", "") or where, reading)
    tokens = np.array(medium.tokens, np.int32)
    pieces: list[Tokens | VectorPiece] = []
    place = 0
    while place < len(tokens):
        count = media_length(tokens, place)
        if not count:
            ends = np.flatnonzero(tokens[place:] < 0)
            count = int(ends[0]) if len(ends) else len(tokens) - place
            pieces.append(tokens[place : place + count])
        else:
            stretch = medium.stretches[tokens[place : place + count].tobytes()]
            pieces.append(VectorPiece(media.encoder.vectors(medium, stretch), stretch.cells))
        place += count
    return pieces


def _with_ends(model: Model, pieces: list[Tokens | VectorPiece], where: str) -> Tokens | MediaInput:
    """With the special tokens that the model was trained with around an input."""
    vocab = model.vocab
    first = [vocab.bos] if vocab.add_bos and vocab.bos >= 0 else []
    last = [vocab.eos] if vocab.add_eos and vocab.eos >= 0 else []
    around = [np.array(first, np.int32), *pieces, np.array(last, np.int32)]
    found = tuple(each for each in around if isinstance(each, VectorPiece) or len(each))
    if not found:
        raise ParameterError(f"{where} has no tokens, so that there is nothing to embed")
    if not any(isinstance(each, VectorPiece) for each in found):
        return np.concatenate([each for each in found if not isinstance(each, VectorPiece)])
    return MediaInput(found)
