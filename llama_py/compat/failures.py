"""Errors of llama_py in the classes and words that programs for llama-cpp-python look for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llama_py.errors import ContextOverflowError, TokenizationError

__all__ = ["RequestedTokensError", "UntokenizableError", "translated"]


class RequestedTokensError(ContextOverflowError):
    """A prompt that does not fit; the words are those that programs search for the numbers."""

    def __str__(self) -> str:
        return f"Requested tokens ({self.prompt_tokens}) exceed context window of {self.limit}"

    @classmethod
    def of(cls, error: ContextOverflowError) -> RequestedTokensError:
        """The same error."""
        return cls(error.prompt_tokens, error.limit, error.fits, error.what, error.at_least)


class UntokenizableError(TokenizationError, RuntimeError):
    """A text that the vocabulary cannot tokenize."""


@contextmanager
def translated() -> Iterator[None]:
    """Within the block, these errors are of the classes that programs expect."""
    try:
        yield
    except ContextOverflowError as error:
        if isinstance(error, RequestedTokensError):
            raise
        raise RequestedTokensError.of(error) from error
    except TokenizationError as error:
        if isinstance(error, UntokenizableError):
            raise
        raise _same(UntokenizableError, error) from error


def _same(kind: type[Exception], error: Exception) -> Any:
    return kind(*error.args)
