"""``CallContext``: the facts about a loaded model that parsing a request needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from llama_py.chat.messages import ChatRequest
    from llama_py.chat.rendered import RenderedChat

__all__ = ["CallContext", "PieceVocab", "VocabLike"]


class PieceVocab(Protocol):
    """Tokens to bytes: what the encoders need of ``core.vocab.Vocab``."""

    def piece(self, token: int) -> bytes:
        """The bytes of a token, special tokens as their text."""

    def plain_piece(self, token: int) -> bytes:
        """The bytes of a token, nothing for special tokens."""


class VocabLike(PieceVocab, Protocol):
    """The part of ``core.vocab.Vocab`` that parsing requests needs."""

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

    def is_control(self, token: int) -> bool:
        """True if plain text never produces this token."""


class CallContext(Protocol):
    """The interface of a model for ``parse_completion`` and ``parse_chat``."""

    #: Used when a call gives no seed; ``RANDOM_SEED`` chooses one for every call.
    @property
    def seed(self) -> int: ...

    @property
    def vocab(self) -> VocabLike: ...

    #: The scalar metadata of the GGUF, as text.
    @property
    def metadata(self) -> Mapping[str, str]: ...

    #: Named as ``model`` in responses when the call gives no name.
    @property
    def model_path(self) -> str: ...

    #: Default of ``penalty_last_n``.
    @property
    def last_n_tokens_size(self) -> int: ...

    #: Infill prompts begin with the suffix.
    @property
    def spm_infill(self) -> bool: ...

    #: Sampling parameters for calls that do not say, from whoever serves the model; they take
    #: precedence over what its file asks for.
    @property
    def sampling(self) -> Mapping[str, Any]: ...

    #: Most tokens of replies to calls that do not say; None: what the call's own default is.
    @property
    def max_tokens(self) -> int | None: ...

    def render_chat(self, request: ChatRequest) -> RenderedChat:
        """Render a conversation with the model's template, or the chosen chat format."""
