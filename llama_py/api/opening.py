"""``open_model``: the weights are read while the rest of the package is imported.

Reading weights is C, and importing hundreds of modules is Python. In a process that has just begun
they take about as long as each other, so one hides the other. That is why this module and
``llama.py`` import nothing that only calls need. What only chats need comes last: where weights are
there first, or nearly, the first chat imports it, and completions never do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_py.api.weights import read_weights
from llama_py.options.values import read_path

if TYPE_CHECKING:
    from llama_py.api.kept.model_cache import ModelCache
    from llama_py.api.port import ModelPort
    from llama_py.api.runtime import Runtime

__all__ = ["open_model"]

_FOR_CALLS = "llama_py.api.kept.model_cache"
#: In pieces: between two of them, the weights may be there.
_FOR_CHATS = (
    "jinja2",
    "llama_py.chat.templates.template",
    "llama_py.dialects.openai.chat",
    "llama_py.chat.formats",
)


def open_model(
    model_path: str | os.PathLike[str], options: Mapping[str, Any], given: dict[str, Any]
) -> tuple[Runtime, ModelCache]:
    """Load a model, and make what answers its calls.

    Args:
        options: those of ``Llama``, as ``options.LOAD`` completed them.
        given: those that somebody gave, and ``model_path``; a copy of the ``Llama`` is made with
            them.

    Raises:
        ParameterError, ModelLoadError, ContextCreationError: see ``Llama``; nothing is left in
            memory.
    """
    path = read_path("model_path", model_path)
    if not Path(path).exists():
        path, options = _by_name(path, options, given)
    arguments = {"model_path": path, **options}
    template, chat_format = _read_template(options)
    port = _loaded(arguments, given)

    from llama_py.api.kept.model_cache import ModelCache
    from llama_py.api.rendering import ChatSettings
    from llama_py.api.runtime import Runtime

    settings = ChatSettings(
        arguments["model_path"],
        seed=options["seed"],
        last_n_tokens_size=options["last_n_tokens_size"],
        spm_infill=options["spm_infill"],
        special_tokens_in_content=options["special_tokens_in_content"],
        json_calls=options["json_calls"],
        overflow=options["overflow"],
    )
    runtime = Runtime(port, arguments, given, settings, template, chat_format)
    return runtime, ModelCache(runtime, options["prefix_cache_slots"])


def _by_name(
    name: str, options: Mapping[str, Any], given: dict[str, Any]
) -> tuple[str, Mapping[str, Any]]:
    """The file of a name, and the options with the projector that came with it."""
    from llama_py.models.resolve import resolve

    found = resolve(name)
    given["model_path"] = found.path
    if found.projector is None or options["mmproj"] != "auto":
        return found.path, options
    given["mmproj"] = found.projector
    return found.path, {**options, "mmproj": found.projector}


def _loaded(arguments: Mapping[str, Any], given: dict[str, Any]) -> ModelPort:
    if arguments["isolate"]:
        from llama_py.api.isolation.isolated import load_isolated

        return load_isolated(arguments, given)
    imports = [partial(import_module, name) for name in (_FOR_CALLS, *_FOR_CHATS)]
    weights = read_weights(arguments, meanwhile=imports)

    from llama_py.api.loading import load

    return load(weights, arguments)


def _read_template(options: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The Jinja text and the name of a format that were given, checked: weights may take minutes.

    What is imported for that is needed anyway, and rarely given.
    """
    template, chat_format = options["chat_template"], options["chat_format"]
    if template or chat_format is not None:
        from llama_py.api.rendering import check_template, find_format

        if template and (named := check_template(template)):
            template, chat_format = None, chat_format or named
        find_format(chat_format)
    return template, chat_format
