"""How the arguments of ``llama_cpp.Llama`` become those of ``llama_py.Llama``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

from llama_py.compat.finder import Defaults
from llama_py.errors import ContextCreationError, ModelNotFoundError, ParameterError
from llama_py.options import LOAD

__all__ = ["FailedContextError", "native_options", "open_model"]

#: What both libraries have, but with another default: llama_py's may be kept.
_OWN_DEFAULTS = {
    "n_gpu_layers": 0,
    "n_ctx": 512,
    "n_batch": 512,
    "flash_attn": False,
    "no_perf": False,
    "verbose": True,
}
#: Sequences, unless a call says another number: a batch has a token of each.
_SEQUENCES = 8
#: Handled by the ``Llama`` of this package, not by that of llama_py.
_ELSEWHERE = {"chat_format", "chat_handler", "tokenizer", "lora_base"}


class FailedContextError(ContextCreationError, ValueError):
    """There is no context with these parameters; programs catch ``ValueError`` to try others."""


def native_options(
    given: Mapping[str, Any], extra: Mapping[str, Any], defaults: Defaults
) -> dict[str, Any]:
    """The options of ``llama_py.Llama`` for the arguments of ``llama_cpp.Llama``.

    Args:
        given: the arguments that llama-cpp-python knows.
        extra: all others. Those that ``llama_py.Llama`` has are used; the rest is
            named in warnings.
        defaults: whose defaults count where both have one.
    """
    options = {name: value for name, value in given.items() if name not in _ELSEWHERE}
    if defaults == "llama_py":
        for name, value in _OWN_DEFAULTS.items():
            if options[name] == value:
                del options[name]
    _adjust(options)
    known = {name: value for name, value in extra.items() if name in LOAD.options}
    for name in sorted(set(extra) - set(known)):
        message = f"llama_cpp.Llama() ignores {name}=, an argument that it does not know"
        warnings.warn(message, stacklevel=3)
    return {**options, **known}


def _adjust(options: dict[str, Any]) -> None:
    """Values that llama-cpp-python takes, in the form that llama_py takes."""
    for name in ("n_threads", "n_threads_batch", "op_offload", "swa_full", "rope_scaling_type"):
        if not options[name] and options[name] is not False:
            if name == "rope_scaling_type" and options[name] is not None:
                continue
            del options[name]
    options["n_gpu_layers"] = max(options.get("n_gpu_layers", -1), -1)
    n_ctx, n_batch = options.get("n_ctx"), options.get("n_batch")
    if n_ctx and n_batch:
        options["n_batch"] = min(n_ctx, max(n_batch, _SEQUENCES))
    if options["seed"] is None:
        del options["seed"]
    if options["lora_path"] is None:
        options.pop("lora_scale")
    for name in [name for name, value in options.items() if value is None]:
        del options[name]


def open_model(path: str | os.PathLike[str], options: Mapping[str, Any]) -> Any:
    """A ``llama_py.Llama``.

    Raises:
        ValueError: there is no such file, or no context, in llama-cpp-python's words.
    """
    from llama_py.api.llama import Llama

    try:
        return Llama(path, **options)
    except ModelNotFoundError as error:
        if os.path.exists(path):  # noqa: PTH110 - another file, such as an adapter
            raise
        raise ModelNotFoundError(f"Model path does not exist: {os.fspath(path)}") from error
    except ContextCreationError as error:
        raise FailedContextError(f"Failed to create llama_context: {error}") from error
    except ParameterError:
        raise
