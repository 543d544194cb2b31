"""Tokenizers of llama-cpp-python."""

from __future__ import annotations

import abc
from importlib import import_module
from types import SimpleNamespace
from typing import Any

__all__ = ["BaseLlamaTokenizer", "LlamaHFTokenizer", "LlamaTokenizer"]


class BaseLlamaTokenizer(abc.ABC):
    """Turns text into tokens and back; ``Llama(tokenizer=...)`` uses one in place of its own."""

    @abc.abstractmethod
    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of ``text``."""

    @abc.abstractmethod
    def detokenize(
        self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False
    ) -> bytes:
        """The bytes of ``tokens``, which follow ``prev_tokens``."""


class LlamaTokenizer(BaseLlamaTokenizer):
    """The vocabulary of a model."""

    def __init__(self, llama: Any) -> None:
        self._model = llama._model

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of ``text``.

        Raises:
            RuntimeError: the vocabulary cannot tokenize it.
        """
        tokens: list[int] = self._model.tokenize(text, add_bos=add_bos, special=special)
        return tokens

    def detokenize(
        self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False
    ) -> bytes:
        """The bytes of ``tokens``; special tokens have none unless ``special``."""
        data: bytes = self._model.detokenize(tokens, special=special)
        return data

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """``tokenize`` of a string."""
        return self.tokenize(text.encode("utf-8", "ignore"), add_bos, special)

    def decode(self, tokens: list[int]) -> str:
        """``detokenize`` to a string; bytes that are not UTF-8 are left out."""
        return self.detokenize(tokens).decode("utf-8", "ignore")

    @classmethod
    def from_ggml_file(cls, path: str) -> LlamaTokenizer:
        """The vocabulary of a GGUF file, without its weights."""
        from llama_py.compat.handles import LlamaModel
        from llama_py.compat.loading import open_model

        native = open_model(path, {"vocab_only": True})
        return cls(SimpleNamespace(_model=LlamaModel.lent(path, None, False, native)))


class LlamaHFTokenizer(BaseLlamaTokenizer):
    """A tokenizer of the package ``transformers``."""

    def __init__(self, hf_tokenizer: Any) -> None:
        self.hf_tokenizer = hf_tokenizer

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of ``text``; with ``special``, those that the tokenizer adds as well."""
        tokens: list[int] = self.hf_tokenizer.encode(
            text.decode("utf-8", "ignore"), add_special_tokens=special
        )
        return tokens

    def detokenize(
        self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False
    ) -> bytes:
        """The bytes that ``tokens`` add to those of ``prev_tokens``."""
        before = list(prev_tokens or [])
        whole = self._text([*before, *tokens], special)
        return whole[len(self._text(before, special)) :] if before else whole

    def _text(self, tokens: list[int], special: bool) -> bytes:
        text: str = self.hf_tokenizer.decode(tokens, skip_special_tokens=not special)
        return text.encode("utf-8", "ignore")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str) -> LlamaHFTokenizer:
        """The tokenizer of a repository.

        Raises:
            ImportError: ``transformers`` is not installed.
        """
        try:
            transformers: Any = import_module("transformers")
        except ImportError as error:
            raise ImportError(
                "LlamaHFTokenizer needs the package transformers: pip install transformers"
            ) from error
        return cls(transformers.AutoTokenizer.from_pretrained(pretrained_model_name_or_path))
