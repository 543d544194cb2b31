"""Handlers of llama-cpp-python for pictures: a projector, and a prompt of the model's family.

A handler shows the pictures of a conversation to the model that it is called with, by the projector
that it was made with. What the prompt looks like is a Jinja template (``CHAT_FORMAT``), which
subclasses may replace; None is the model's own.
"""

from __future__ import annotations

import hashlib
import os
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import Self

from llama_py.api.llama import Llama as NativeLlama
from llama_py.chat.formats import chat_formats
from llama_py.chat.formats import register_chat_format as register_native_format
from llama_py.chat.templates.formatter import ChatFormatterResponse, Jinja2ChatFormatter
from llama_py.compat import picture_prompts
from llama_py.compat.chats import answer
from llama_py.compat.converting import completion_to_call
from llama_py.compat.failures import translated
from llama_py.errors import ParameterError
from llama_py.media.limits import MediaLimits
from llama_py.media.objects import Image, read_own_file
from llama_py.media.sources import read_url

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

#: Formats of the server's settings that mean a handler: which one.
SERVED: Mapping[str, str] = {
    "llava-1-5": "Llava15ChatHandler",
    "llava-1-6": "Llava16ChatHandler",
    "obsidian": "ObsidianChatHandler",
    "moondream": "MoondreamChatHandler",
    "nanollava": "NanoLlavaChatHandler",
    "llama-3-vision-alpha": "Llama3VisionAlphaChatHandler",
    "minicpm-v-2.6": "MiniCPMv26ChatHandler",
    "qwen2.5-vl": "Qwen25VLChatHandler",
    "gemma4": "Gemma4ChatHandler",
    "mtmd": "MTMDChatHandler",
}
#: Which projector a model has is changed by one thread at a time.
_CHOOSING = threading.Lock()


class _Pictures:
    """The base of the handlers.

    Attributes:
        clip_model_path: the projector.
        verbose: has no effect: llama_py's log is switched on by the model's ``verbose``.
        CHAT_FORMAT: the template; None for the model's own.
        DEFAULT_SYSTEM_MESSAGE: put before conversations that have none; None for nothing.
    """

    CHAT_FORMAT: ClassVar[str | None] = None
    DEFAULT_SYSTEM_MESSAGE: ClassVar[str | None] = None

    def __init__(self, clip_model_path: str, verbose: bool = True) -> None:
        if not Path(clip_model_path).is_file():
            raise ValueError(f"Clip model path does not exist: {clip_model_path}")
        self.clip_model_path = clip_model_path
        self.verbose = verbose

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
        """A reply, or with ``stream`` a generator of its chunks."""
        own = ("self", "llama", "messages", "kwargs", "__class__")
        given = {name: each for name, each in locals().items() if name not in own}
        return self._answer(llama, messages, {**given, **kwargs})

    def _answer(self, llama: Any, messages: list[Any], options: dict[str, Any]) -> Any:
        native: NativeLlama = llama.native
        with translated():
            self._show(native)
        name = None
        if self.CHAT_FORMAT is not None:
            name = _native_format(self.CHAT_FORMAT)
            texts = _special_texts(native)
            options["chat_template_kwargs"] = {**options.get("chat_template_kwargs", {}), **texts}
            messages = self._with_system(messages)
        tool = None if name is None else _forced_tool(options)
        if tool is not None:
            schema = tool.get("parameters") or {}
            options["response_format"] = {"type": "json_object", "schema": schema}
        if name is not None:  # such a prompt says nothing of tools
            for each in ("tools", "tool_choice", "functions", "function_call"):
                options.pop(each, None)
        llama._draw_seed(options)
        loaded = self._loaded(messages, native)
        found = answer(native, name, loaded, options, llama._before_call)
        if tool is None:
            return found
        stream = bool(options.get("stream"))
        return completion_to_call(
            tool["name"], map(_as_completion, found) if stream else _as_completion(found), stream
        )

    def _show(self, native: NativeLlama) -> None:
        """Let a model see by the handler's projector, which is loaded with the first picture."""
        media, path = native.runtime.port.media, Path(self.clip_model_path)
        if media is None:
            raise ParameterError(f"{native.model_path} does not generate, so it takes no pictures")
        with _CHOOSING:
            if media.path == path:
                return
            if media.loaded is not None:
                raise ParameterError(
                    f"the model sees by {media.path} already, and cannot by {path} as well; load "
                    "it once more for another projector"
                )
            media.path = path

    def _with_system(self, messages: list[Any]) -> list[Any]:
        text = self.DEFAULT_SYSTEM_MESSAGE
        if text is None or any(message.get("role") == "system" for message in messages):
            return messages
        return [{"role": "system", "content": text}, *messages]

    def _loaded(self, messages: list[Any], native: NativeLlama) -> list[Any]:
        """Messages with the pictures themselves in place of what only the handler may read."""
        media = native.runtime.port.media
        limited = media is not None and bool(media.limits.paths)
        own = type(self).load_image is not _Pictures.load_image

        def seen(part: Any) -> Any:
            if not isinstance(part, Mapping) or part.get("type") != "image_url":
                return part
            try:
                url = _url(part)
            except (KeyError, TypeError):  # whoever reads the message says what is wrong
                return part
            if own or not (limited or _is_remote(url)):
                return Image(self.load_image(url))
            return part

        return [
            {**message, "content": [seen(part) for part in message["content"]]}
            if message.get("role") == "user" and isinstance(message.get("content"), list)
            else message
            for message in messages
        ]

    def load_image(self, image_url: str) -> bytes:
        """The bytes of a picture's file, from a ``data:`` or ``file:`` address or a path.

        Raises:
            ValueError: it cannot be read, or is at an ``http`` address: those are fetched only by
                a model that was loaded with ``allow_urls=True``.
        """
        if image_url.startswith("data:") or _is_remote(image_url):
            return read_url(image_url, "the picture", MediaLimits())
        if image_url.startswith("file:"):
            path = urllib.parse.urlsplit(image_url).path
            return read_own_file(urllib.request.url2pathname(path))
        return read_own_file(image_url)

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
        return [_url(part) for part in parts]

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None,
        local_dir: str | os.PathLike[str] | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> Self:
        """A handler with a projector of the Hugging Face hub (extra ``hub``).

        Args:
            filename: the file, a pattern, or None for one of the repository's projectors, as
                ``llama_py.Llama.from_pretrained`` chooses it.

        Raises:
            ValueError: no file matches, or several do.
        """
        from llama_py.models.downloads import download_projector

        path = download_projector(repo_id, filename, local_dir, cache_dir)
        return cls(clip_model_path=path, **kwargs)


# ---- what they are made of -------------------------------------------------------------------


def handler_for(chat_format: str | None, projector: str | None, repo_id: str | None) -> Any:
    """The handler that settings of a server mean; None for none of pictures.

    Args:
        projector: its file, or with ``repo_id`` one of that repository.
    """
    name = SERVED.get(chat_format or "", "MTMDChatHandler" if chat_format is None else "")
    if projector is None or not name:
        return None
    kind = globals()[name]
    if repo_id is not None:
        return kind.from_pretrained(repo_id, projector, verbose=False)
    return kind(clip_model_path=projector, verbose=False)


def _url(part: Mapping[str, Any]) -> str:
    given = part["image_url"]
    url: str = given if isinstance(given, str) else given["url"]
    return url


def _is_remote(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


def _special_texts(native: NativeLlama) -> dict[str, str]:
    """What templates know of the model's tokens."""
    vocab = native.vocab
    ids = {"bos_token": vocab.bos, "eos_token": vocab.eos}
    return {
        name: vocab.piece(each).decode("utf-8", "replace") if each >= 0 else ""
        for name, each in ids.items()
    }


def _native_format(template: str) -> str:
    """The name of llama_py's chat format for a template."""
    name = f"llama_cpp:{hashlib.sha256(template.encode()).hexdigest()[:16]}"
    if name not in chat_formats():
        register_native_format(name, overwrite=True)(_formatter(template))
    return name


def _formatter(template: str) -> Callable[..., ChatFormatterResponse]:
    made = Jinja2ChatFormatter(template, "", "")

    def format_pictures(
        *, messages: Sequence[Mapping[str, Any]], **values: Any
    ) -> ChatFormatterResponse:
        shown = [{**message, "content": _as_sent(message["content"])} for message in messages]
        return ChatFormatterResponse(made(messages=shown, **values).prompt, added_special=True)

    return format_pictures


def _as_sent(content: Any) -> Any:
    """Content with its markers as addresses, where a program has those of pictures."""
    if not isinstance(content, list):
        return content
    return [
        {"type": "image_url", "image_url": {"url": part["text"]}}
        if part["type"] == "media_marker"
        else part
        for part in content
    ]


def _forced_tool(options: Mapping[str, Any]) -> Any:
    """The function that has to be called, or None."""
    tools, choice = options.get("tools") or (), options.get("tool_choice")
    if options.get("functions"):
        tools = [{"function": each} for each in options["functions"]]
        call = options.get("function_call")
        choice = {"function": call} if isinstance(call, dict) else None
    if not isinstance(choice, dict):
        return None
    name = choice["function"]["name"]
    for tool in tools:
        if tool["function"]["name"] == name:
            return tool["function"]
    raise ValueError(f"Tool choice '{name}' not found in tools.")


def _as_completion(reply: Mapping[str, Any]) -> dict[str, Any]:
    """A chat completion, or a chunk of one, as a completion."""
    choices = [
        {
            "text": (choice.get("message") or choice.get("delta") or {}).get("content") or "",
            "index": choice["index"],
            "logprobs": None,
            "finish_reason": choice["finish_reason"],
        }
        for choice in reply["choices"]
    ]
    name = reply["id"].removeprefix("chat")  # who makes a chat of it puts that back
    return {**reply, "id": name, "object": "text_completion", "choices": choices}


# ---- the handlers ----------------------------------------------------------------------------


class Llava15ChatHandler(_Pictures):
    """For LLaVA 1.5, and other models with a projector; subclasses have prompts of their own."""

    DEFAULT_SYSTEM_MESSAGE: ClassVar[str | None] = picture_prompts.LLAVA_15_SYSTEM
    CHAT_FORMAT: ClassVar[str | None] = picture_prompts.LLAVA_15

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
    """For any model that libmtmd knows, with the template in the model's file.

    Args:
        use_gpu: has no effect: the projector is on the GPU if the model has layers there.
    """

    def __init__(self, clip_model_path: str, verbose: bool = True, use_gpu: bool = True) -> None:
        super().__init__(clip_model_path, verbose)
        self.use_gpu = use_gpu


class Gemma4ChatHandler(MTMDChatHandler):
    """For Gemma 4."""


class ObsidianChatHandler(Llava15ChatHandler):
    """For Obsidian."""

    DEFAULT_SYSTEM_MESSAGE = None
    CHAT_FORMAT = picture_prompts.OBSIDIAN


class MoondreamChatHandler(Llava15ChatHandler):
    """For Moondream 2."""

    DEFAULT_SYSTEM_MESSAGE = None
    CHAT_FORMAT = picture_prompts.MOONDREAM


class Llava16ChatHandler(Llava15ChatHandler):
    """For LLaVA 1.6."""

    DEFAULT_SYSTEM_MESSAGE = picture_prompts.LLAVA_16_SYSTEM
    CHAT_FORMAT = picture_prompts.LLAVA_16


class NanoLlavaChatHandler(Llava15ChatHandler):
    """For nanoLLaVA."""

    DEFAULT_SYSTEM_MESSAGE = picture_prompts.NANO_LLAVA_SYSTEM
    CHAT_FORMAT = picture_prompts.NANO_LLAVA


class Llama3VisionAlphaChatHandler(Llava15ChatHandler):
    """For Llama 3 Vision Alpha."""

    DEFAULT_SYSTEM_MESSAGE = None
    CHAT_FORMAT = picture_prompts.LLAMA3_VISION_ALPHA


Llama3VisionAlpha = Llama3VisionAlphaChatHandler


class MiniCPMv26ChatHandler(Llava15ChatHandler):
    """For MiniCPM-V 2.6."""

    DEFAULT_SYSTEM_MESSAGE = picture_prompts.QWEN_SYSTEM
    CHAT_FORMAT = picture_prompts.MINICPM_26


class Qwen25VLChatHandler(Llava15ChatHandler):
    """For Qwen 2.5 VL."""

    DEFAULT_SYSTEM_MESSAGE = picture_prompts.QWEN_SYSTEM
    CHAT_FORMAT = picture_prompts.QWEN_25_VL

    def __call__(self, **kwargs: Any) -> Any:
        """A reply, or with ``stream`` a generator of its chunks."""
        return super().__call__(**kwargs)
