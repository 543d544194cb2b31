"""Chat handlers by name, as llama-cpp-python registers them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from llama_py.compat.formatting import ChatFormatter, handler_of
from llama_py.compat.llama_cpp._utils import Singleton

__all__ = [
    "LlamaChatCompletionHandler",
    "LlamaChatCompletionHandlerNotFoundException",
    "LlamaChatCompletionHandlerRegistry",
    "chat_formatter_to_chat_completion_handler",
    "get_chat_completion_handler",
    "register_chat_completion_handler",
    "register_chat_format",
]


class LlamaChatCompletionHandler(Protocol):
    """Answers a conversation."""

    def __call__(
        self,
        *,
        llama: Any,
        messages: list[Any],
        functions: list[Any] | None = None,
        function_call: Any = None,
        tools: list[Any] | None = None,
        tool_choice: Any = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        stream: bool = False,
        stop: str | list[str] | None = [],  # noqa: B006 - the signature of llama-cpp-python
        seed: int | None = None,
        response_format: Any = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.1,
        model: str | None = None,
        logit_bias: dict[str, float] | None = None,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        logits_processor: Any = None,
        grammar: Any = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """A ``CreateChatCompletionResponse``, or with ``stream`` an iterator of chunks."""


class LlamaChatCompletionHandlerNotFoundException(Exception):
    """There is no chat handler of that name."""


class LlamaChatCompletionHandlerRegistry(Singleton):
    """Chat handlers by name."""

    _chat_handlers: dict[str, Any] = {}  # noqa: RUF012 - one for all

    def register_chat_completion_handler(
        self, name: str, chat_handler: LlamaChatCompletionHandler, overwrite: bool = False
    ) -> None:
        """Make a handler known under a name.

        Raises:
            ValueError: the name is taken, and ``overwrite`` is False.
        """
        if not overwrite and name in self._chat_handlers:
            raise ValueError(
                f"Formatter with name '{name}' is already registered. Use `overwrite=True` to "
                "overwrite it."
            )
        self._chat_handlers[name] = chat_handler

    def unregister_chat_handler(self, name: str) -> None:
        """Forget a handler.

        Raises:
            ValueError: there is none of that name.
        """
        if name not in self._chat_handlers:
            raise ValueError(f"No formatter registered under the name '{name}'.")
        del self._chat_handlers[name]

    def get_chat_completion_handler_by_name(self, name: str) -> LlamaChatCompletionHandler:
        """A handler.

        Raises:
            LlamaChatCompletionHandlerNotFoundException: there is none of that name.
        """
        if name in self._chat_handlers:
            return self._chat_handlers[name]  # type: ignore[no-any-return]
        raise LlamaChatCompletionHandlerNotFoundException(
            f"Invalid chat handler: {name} (valid formats: {list(self._chat_handlers)})"
        )


def get_chat_completion_handler(name: str) -> LlamaChatCompletionHandler:
    """The chat handler of this name."""
    return LlamaChatCompletionHandlerRegistry().get_chat_completion_handler_by_name(name)


def register_chat_completion_handler(name: str) -> Callable[[Any], Any]:
    """A decorator that makes a chat handler known under a name."""

    def decorator(f: Any) -> Any:
        LlamaChatCompletionHandlerRegistry().register_chat_completion_handler(name, f)
        return f

    return decorator


def register_chat_format(name: str) -> Callable[[Any], Any]:
    """A decorator that makes a function known as a chat format: it makes the prompt."""

    def decorator(f: Any) -> Any:
        handler = handler_of(f)
        LlamaChatCompletionHandlerRegistry().register_chat_completion_handler(name, handler)
        return f

    return decorator


def chat_formatter_to_chat_completion_handler(
    chat_formatter: ChatFormatter,
) -> LlamaChatCompletionHandler:
    """A chat handler that makes the prompt with a formatter and completes it."""
    return handler_of(chat_formatter)
