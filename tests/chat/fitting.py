"""Which texts a grammar takes, byte by byte."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llama_py.core.sampling.sampler import Sampler
from llama_py.core.vocab import Vocab
from llama_py.params import GrammarSpec, SamplingParams, TokenConstraint

__all__ = ["fits", "follows"]


def fits(
    grammar: GrammarSpec | None,
    text: str,
    vocab: Vocab,
    constraint: Callable[[], TokenConstraint] | None = None,
) -> bool:
    """Whether a reply may be this text, and end there.

    Args:
        vocab: one that has each byte as a token.
        constraint: in place of a grammar.
    """
    single = {vocab.piece(token): token for token in range(vocab.n_tokens)}
    params = SamplingParams(temperature=0, grammar=grammar, constraint=constraint)
    return follows([single[bytes([byte])] for byte in text.encode()], vocab, params)


def follows(tokens: list[int], vocab: Vocab, params: SamplingParams) -> bool:
    """Whether a reply may be these tokens, and end there."""
    sampler = Sampler(vocab, params)
    try:
        for token in [*tokens, vocab.eog_tokens()[0]]:
            row = np.zeros(vocab.n_tokens, np.float32)
            row[token] = 1
            if sampler.sample(row) != token:
                return False
    finally:
        sampler.close()
    return True
