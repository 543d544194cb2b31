"""``Facts``: the part of ``llama_cpp.Llama`` that says what the model is, and tokenizes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from llama_py.compat.failures import translated
from llama_py.compat.llama_cpp.llama_tokenizer import LlamaTokenizer
from llama_py.compat.position import as_tokens

if TYPE_CHECKING:
    from llama_py.api.llama import Llama as NativeLlama

__all__ = ["Facts"]


class Facts:
    """Methods of ``Llama``; its attributes are set there."""

    native: NativeLlama
    tokenizer_: Any
    _own_tokenizer: bool
    _given: dict[str, Any]

    # -- tokens --------------------------------------------------------------------------------

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of ``text``; with ``special``, texts of special tokens are these tokens.

        Raises:
            RuntimeError: the vocabulary cannot tokenize it.
        """
        if self._own_tokenizer:
            tokens: list[int] = self.tokenizer_.tokenize(text, add_bos, special)
            return tokens
        with translated():
            return self.native.vocab.tokenize(text, add_special=add_bos, parse_special=special)

    def detokenize(
        self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False
    ) -> bytes:
        """The bytes of ``tokens``, which follow ``prev_tokens``."""
        if self._own_tokenizer:
            text: bytes = self.tokenizer_.detokenize(
                tokens, prev_tokens=prev_tokens, special=special
            )
            return text
        return self.native.detokenize(as_tokens(tokens), special=special)

    def tokenizer(self) -> LlamaTokenizer:
        """The vocabulary as an object of its own."""
        return LlamaTokenizer(self)

    def n_ctx(self) -> int:
        """Tokens that the context holds."""
        return self.native.n_ctx()

    def n_embd(self) -> int:
        """Width of the embeddings."""
        return self.native.n_embd()

    def n_vocab(self) -> int:
        """Tokens in the vocabulary."""
        return self.native.n_vocab()

    def token_eos(self) -> int:
        """The end-of-sequence token, -1 if there is none."""
        return self.native.token_eos()

    def token_bos(self) -> int:
        """The beginning-of-sequence token, -1 if there is none."""
        return self.native.token_bos()

    def token_nl(self) -> int:
        """The newline token, -1 if there is none."""
        return self.native.token_nl()

    # -- settings ------------------------------------------------------------------------------

    @property
    def model_path(self) -> str:
        """The path of the file."""
        return self.native.model_path

    @property
    def metadata(self) -> dict[str, str]:
        """The scalar metadata of the file, as text."""
        return self.native.metadata

    def set_seed(self, seed: int) -> None:
        """The seed of later calls that give none of their own."""
        self.native.set_seed(seed)

    @property
    def _seed(self) -> int:
        return self.native.seed

    @property
    def n_batch(self) -> int:
        """Most tokens in one decode."""
        n_batch: int = self._given["n_batch"]
        return min(self.n_ctx(), n_batch)

    @property
    def n_threads(self) -> int:
        """Threads for one token at a time."""
        from llama_py.compat.llama_cpp import llama_cpp as C

        count: int = C.llama_n_threads(self.native.ctx)
        return count

    @property
    def n_threads_batch(self) -> int:
        """Threads for many tokens at once."""
        from llama_py.compat.llama_cpp import llama_cpp as C

        count: int = C.llama_n_threads_batch(self.native.ctx)
        return count

    @cached_property
    def _is_recurrent(self) -> bool:
        return self._asked("llama_model_is_recurrent")

    @cached_property
    def _is_hybrid(self) -> bool:
        return self._asked("llama_model_is_hybrid")

    def _asked(self, name: str) -> bool:
        """A fact from a function of llama.cpp."""
        from llama_py.compat.llama_cpp import llama_cpp as C

        return bool(getattr(C, name)(self.native.model.value))

    @property
    def _n_ctx(self) -> int:
        return self.n_ctx()

    @property
    def _n_vocab(self) -> int:
        return self.n_vocab()

    @property
    def _token_eos(self) -> int:
        return self.token_eos()

    @property
    def _token_nl(self) -> int:
        return self.token_nl()
