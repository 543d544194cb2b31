"""``LlamaProxy``: models of the settings, one of which is in memory."""

from __future__ import annotations

import json
from typing import Any

from llama_py.compat import vision
from llama_py.compat.llama_cpp import llama_cache, llama_chat_format
from llama_py.compat.llama_cpp.llama import Llama
from llama_py.compat.llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from llama_py.compat.llama_cpp.server.settings import ModelSettings

__all__ = ["LlamaProxy", "arguments_of"]

#: Settings that are not arguments of ``Llama``.
_NOT_OF_LLAMA = (
    "model",
    "model_alias",
    "rpc_servers",
    "mul_mat_q",
    "kv_overrides",
    "chat_template_kwargs",
    "clip_model_path",
    "cache",
    "cache_type",
    "cache_size",
    "hf_tokenizer_config_path",
    "hf_pretrained_model_name_or_path",
    "hf_model_repo_id",
    "draft_model",
    "draft_model_num_pred_tokens",
)


class LlamaProxy:
    """Gives the model that a request names, and loads it if it is not the one in memory."""

    def __init__(self, models: list[ModelSettings]) -> None:
        assert len(models) > 0, "No models provided!"
        self._models = {model.model_alias or model.model: model for model in models}
        self._default = next(iter(self._models))
        self._current: Llama | None = None
        self._name: str | None = None
        self._load(self._default)

    def __call__(self, model: str | None = None) -> Llama:
        """The model of this name; the first one if there is none of it."""
        name = model if model in self._models else self._default
        if self._current is None or name != self._name:
            return self._load(str(name))
        return self._current

    def __getitem__(self, model: str) -> dict[str, Any]:
        return self._models[model].model_dump()

    def __iter__(self) -> Any:
        return iter(self._models)

    def _load(self, name: str) -> Llama:
        self.free()
        self._current = self.load_llama_from_model_settings(self._models[name])
        self._name = name
        return self._current

    def free(self) -> None:
        """Let go of the model in memory."""
        if self._current is not None:
            self._current.close()
        self._current = None

    @staticmethod
    def load_llama_from_model_settings(settings: ModelSettings) -> Llama:
        """Load the model that the settings describe."""
        more = arguments_of(settings)
        if settings.draft_model is not None:
            count = settings.draft_model_num_pred_tokens
            more["draft_model"] = LlamaPromptLookupDecoding(num_pred_tokens=count)
        if settings.chat_format == "hf-autotokenizer":
            name = settings.hf_pretrained_model_name_or_path
            more["chat_handler"] = llama_chat_format.hf_autotokenizer_to_chat_completion_handler(
                name
            )
        elif (handler := _pictures(settings)) is not None:
            more["chat_handler"], more["chat_format"] = handler, None
        elif settings.chat_format == "hf-tokenizer-config":
            with open(settings.hf_tokenizer_config_path, encoding="utf-8") as file:  # noqa: PTH123
                handler = llama_chat_format.hf_tokenizer_config_to_chat_completion_handler
                more["chat_handler"] = handler(json.load(file))
        if settings.hf_model_repo_id is not None:
            llm = Llama.from_pretrained(settings.hf_model_repo_id, settings.model, **more)
        else:
            llm = Llama(settings.model, **more)
        if settings.cache:
            kind = {"disk": llama_cache.LlamaDiskCache}.get(
                settings.cache_type, llama_cache.LlamaRAMCache
            )
            llm.set_cache(kind(capacity_bytes=settings.cache_size))
        return llm


def _pictures(settings: ModelSettings) -> Any:
    """A handler for pictures, where the settings have a projector."""
    return vision.handler_for(
        settings.chat_format, settings.clip_model_path, settings.hf_model_repo_id
    )


def arguments_of(settings: ModelSettings) -> dict[str, Any]:
    """Arguments of ``Llama`` for a model of the settings."""
    given = settings.model_dump()
    found = {name: given[name] for name in ModelSettings.model_fields if name not in _NOT_OF_LLAMA}
    if str(found["chat_format"]).startswith("hf-") or found["chat_format"] in vision.SERVED:
        found["chat_format"] = None
    if settings.kv_overrides is not None:
        found["kv_overrides"] = dict(map(_override, settings.kv_overrides))
    return found


def _override(text: str) -> tuple[str, bool | int | float | str]:
    """``key=type:value``, where the type is int, float, bool or str.

    Raises:
        ValueError: there is no such type.
    """
    key, _, value = text.partition("=")
    kind, _, value = value.partition(":")
    if kind == "bool":
        return key, value.lower() in ("true", "1")
    readers: dict[str, Any] = {"int": int, "float": float, "str": str}
    if kind not in readers:
        raise ValueError(f"Unknown value type {kind}")
    return key, readers[kind](value)
