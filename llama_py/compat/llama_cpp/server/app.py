"""``create_app``: llama_py's server for the settings of llama-cpp-python.

It answers on the same routes, and on many more. A difference is that requests run side by side, so
that no request interrupts another one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from llama_py.compat import vision
from llama_py.compat.llama_cpp.server.model import LlamaProxy, arguments_of
from llama_py.compat.llama_cpp.server.settings import (
    ConfigFileSettings,
    ModelSettings,
    ServerSettings,
    Settings,
)

__all__ = [
    "create_app",
    "get_llama_proxy",
    "get_server_settings",
    "llama_inner_lock",
    "llama_outer_lock",
    "native_settings",
    "set_llama_proxy",
    "set_ping_message_factory",
    "set_server_settings",
]

llama_outer_lock = asyncio.Lock()
llama_inner_lock = asyncio.Lock()

_server_settings: ServerSettings | None = None
_llama_proxy: LlamaProxy | None = None


def create_app(
    settings: Settings | None = None,
    server_settings: ServerSettings | None = None,
    model_settings: list[ModelSettings] | None = None,
) -> Any:
    """The application: ASGI, for uvicorn and the like.

    Args:
        settings: the server and its one model;
        server_settings, model_settings: or these two. Without any of them, settings come from the
            file that ``CONFIG_FILE`` names, or else from the environment.
    """
    from llama_py.server.app import create_app as create

    server, models = _chosen(settings, server_settings, model_settings)
    set_server_settings(server)
    return create(native_settings(server, models))


def _chosen(
    settings: Settings | None,
    server: ServerSettings | None,
    models: list[ModelSettings] | None,
) -> tuple[ServerSettings, list[ModelSettings]]:
    path = os.environ.get("CONFIG_FILE")
    if path is not None:
        found = ConfigFileSettings.read(path)
        return found, found.models
    if server is None and models is None:
        settings = settings or Settings()
        return settings, [ModelSettings.model_validate(settings)]
    if server is None or models is None:
        raise ValueError("server_settings and model_settings must be provided together")
    return server, models


def native_settings(server: ServerSettings, models: list[ModelSettings]) -> Any:
    """Settings of llama_py's server.

    Raises:
        ParameterError: one of them is not allowed; without an API key, for example, an address
            that other machines can reach.
    """
    from llama_py.server.access.keys import ApiKey
    from llama_py.server.config.settings import Settings as NativeSettings

    key, cert = server.api_key, server.ssl_certfile
    return NativeSettings(
        host="127.0.0.1" if server.host == "localhost" else server.host,
        port=server.port,
        root_path=server.root_path,
        tls_cert=None if cert is None else Path(cert),
        tls_key=None if server.ssl_keyfile is None else Path(server.ssl_keyfile),
        api_keys=() if key is None else (ApiKey("default", key),),
        ping_interval=3600.0 if server.disable_ping_events else 10.0,
        overflow_status=400,
        models=tuple(map(_native_model, models)),
    )


def _native_model(settings: ModelSettings) -> Any:
    from llama_py.compat import finder
    from llama_py.compat.llama_cpp.llama import LOADING_DEFAULTS
    from llama_py.compat.loading import native_options
    from llama_py.server.config.model_options import MODEL_OPTIONS
    from llama_py.server.config.settings import ModelSettings as NativeModelSettings

    path = settings.model
    if settings.hf_model_repo_id is not None:
        from llama_py.models.downloads import download

        path = download(settings.hf_model_repo_id, settings.model, (), None, None)
    given = {**LOADING_DEFAULTS, **arguments_of(settings)}
    options = native_options(given, {}, finder.defaults())
    if settings.chat_format is not None:
        name = _FORMATS.get(settings.chat_format, settings.chat_format)
        if name:
            options["chat_format"] = name
    if settings.clip_model_path is not None:
        options["mmproj"] = _projector(settings)
    return NativeModelSettings(
        settings.model_alias or settings.model,
        path,
        options={name: each for name, each in options.items() if name in MODEL_OPTIONS},
    )


#: Formats of models that see -> those of llama_py that are the same but for pictures; empty for
#: the template in the model's file.
_FORMATS = {
    **dict.fromkeys(vision.SERVED, ""),
    "llava-1-5": "vicuna",
    "llava-1-6": "vicuna",
    "llama-3-vision-alpha": "llama-3",
    "minicpm-v-2.6": "qwen",
    "nanollava": "chatml",
    "qwen2.5-vl": "qwen",
}


def _projector(settings: ModelSettings) -> str:
    path = str(settings.clip_model_path)
    if settings.hf_model_repo_id is None:
        return path
    from llama_py.models.downloads import download_projector

    return download_projector(settings.hf_model_repo_id, path)


# ---- what programs ask the module for --------------------------------------------------------


def set_server_settings(server_settings: ServerSettings) -> None:
    """Remember the settings for ``get_server_settings``."""
    global _server_settings
    _server_settings = server_settings


def get_server_settings() -> Iterator[ServerSettings | None]:
    """Yields the settings of the application that was made last."""
    yield _server_settings


def set_llama_proxy(model_settings: list[ModelSettings]) -> None:
    """Load a model for ``get_llama_proxy``; the application has models of its own."""
    global _llama_proxy
    _llama_proxy = LlamaProxy(models=model_settings)


async def get_llama_proxy() -> AsyncIterator[LlamaProxy | None]:
    """Yields what ``set_llama_proxy`` has made."""
    yield _llama_proxy


def set_ping_message_factory(factory: Callable[[], bytes]) -> None:
    """Without effect: ``disable_ping_events`` turns pings off."""
