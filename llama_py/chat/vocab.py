"""``VocabLike``: a vocabulary, as the layers above ``core`` see it; tests have others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

__all__ = ["VocabLike"]


class VocabLike(Protocol):
    """The part of ``core.vocab.Vocab`` that chats and dialects need.

    The parts below see it as ``memory.text_keys.Tokenizer``: they import nothing of this one.
    """

    n_tokens: int
    kind: int
    bos: int
    eos: int
    add_bos: bool
    fim_pre: int
    fim_suf: int
    fim_mid: int
    fim_rep: int
    fim_sep: int

    def piece(self, token: int) -> bytes:
        """The bytes of a token, special tokens as their text."""

    def plain_piece(self, token: int) -> bytes:
        """The bytes of a token, nothing for special tokens."""

    def tokenize(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids of a text."""

    def detokenize(self, tokens: Iterable[int], *, special: bool = False) -> bytes:
        """The bytes of several tokens."""

    def token_to_piece(self, token: int, special: bool = True) -> bytes:
        """``piece`` or ``plain_piece``."""

    def eog_tokens(self) -> list[int]:
        """Every token that ends a reply."""

    def is_special(self, token: int) -> bool:
        """True if the tokenizer always splits before and after this token."""

    def special_token(self, text: str) -> int | None:
        """The token that ``text`` is where special tokens are parsed; None: it is several."""

    def is_control(self, token: int) -> bool:
        """True if plain text never produces this token."""
