"""Handlers of llama-cpp-python for pictures: their names, so that programs can be imported.

llama_py shows no pictures to models yet, so making one of them is an error.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = [
    "Gemma4ChatHandler",
    "Llama3VisionAlpha",
    "Llama3VisionAlphaChatHandler",
    "Llava15ChatHandler",
    "Llava16ChatHandler",
    "MTMDChatHandler",
    "MiniCPMv26ChatHandler",
    "MoondreamChatHandler",
    "NanoLlavaChatHandler",
    "ObsidianChatHandler",
    "Qwen25VLChatHandler",
]


class _Pictures:
    """What the handlers have in common."""

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
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | list[str] | None = [],  # noqa: B006 - the signature of llama-cpp-python
        seed: int | None = None,
        response_format: Any = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.1,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: Any = None,
        grammar: Any = None,
        logit_bias: dict[str, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Not possible."""
        raise _unavailable(type(self).__name__)

    def load_image(self, image_url: str) -> bytes:
        """Not possible."""
        raise _unavailable(type(self).__name__)

    @staticmethod
    def get_image_urls(messages: list[Any]) -> list[str]:
        """The addresses of the pictures in a conversation."""
        parts = [
            part
            for message in messages
            if message["role"] == "user" and isinstance(message.get("content"), list)
            for part in message["content"]
            if part.get("type") == "image_url"
        ]
        urls = [part["image_url"] for part in parts]
        return [url if isinstance(url, str) else url["url"] for url in urls]

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None,
        local_dir: str | os.PathLike[str] | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Not possible."""
        raise _unavailable(cls.__name__)


def _unavailable(name: str) -> NotImplementedError:
    return NotImplementedError(
        f"{name}: llama_py does not show pictures to models; send text only, or run this model "
        "with llama-cpp-python"
    )


class Llava15ChatHandler(_Pictures):
    """For LLaVA 1.5."""

    def __init__(self, clip_model_path: str, verbose: bool = True) -> None:
        raise _unavailable(type(self).__name__)

    @staticmethod
    def split_text_on_image_urls(text: str, image_urls: list[str]) -> list[tuple[str, str]]:
        """The parts of a text between addresses: ``("text", ...)`` and ``("image_url", ...)``."""
        parts, rest = [], text
        while rest:
            at, url = min(
                ((rest.find(each), each) for each in image_urls if each in rest),
                default=(len(rest), ""),
            )
            if at:
                parts.append(("text", rest[:at]))
            if url:
                parts.append(("image_url", url))
            rest = rest[at + len(url) :]
        return parts


class MTMDChatHandler(_Pictures):
    """For models that libmtmd knows."""

    def __init__(self, clip_model_path: str, verbose: bool = True, use_gpu: bool = True) -> None:
        raise _unavailable(type(self).__name__)


class Gemma4ChatHandler(MTMDChatHandler):
    """For Gemma 4."""


class ObsidianChatHandler(Llava15ChatHandler):
    """For Obsidian."""


class MoondreamChatHandler(Llava15ChatHandler):
    """For Moondream 2."""


class Llava16ChatHandler(Llava15ChatHandler):
    """For LLaVA 1.6."""


class NanoLlavaChatHandler(Llava15ChatHandler):
    """For nanoLLaVA."""


class Llama3VisionAlphaChatHandler(Llava15ChatHandler):
    """For Llama 3 Vision Alpha."""


Llama3VisionAlpha = Llama3VisionAlphaChatHandler


class MiniCPMv26ChatHandler(Llava15ChatHandler):
    """For MiniCPM-V 2.6."""


class Qwen25VLChatHandler(Llava15ChatHandler):
    """For Qwen 2.5 VL."""

    def __call__(self, **kwargs: Any) -> Any:
        """Not possible."""
        raise _unavailable(type(self).__name__)
