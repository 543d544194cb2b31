"""``read_weights``: the first half of loading; ``api.loading`` has the other one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from llama_py.core import backend
from llama_py.core.host.memory_check import check_memory
from llama_py.core.model import Model
from llama_py.core.placement import gpus
from llama_py.errors import ParameterError
from llama_py.gguf.check import check_model_file
from llama_py.options.drafters import Speculative, as_speculative
from llama_py.params import ContextParams, ModelParams

__all__ = ["Weights", "context_params_of", "read_weights"]


@dataclass(frozen=True, slots=True)
class Weights:
    """A model that was read, and what is to be made on it.

    Attributes:
        model: it belongs to whoever has this.
        context_params: how its context is to be made.
        speculative: what is to draft, or None.
    """

    model: Model
    context_params: ContextParams
    speculative: Speculative | None


def read_weights(
    arguments: Mapping[str, Any], meanwhile: Iterable[Callable[[], object]] = ()
) -> Weights:
    """Check all arguments, and read the weights.

    Args:
        arguments: those of ``Llama``, as ``options.LOAD`` completed them, and ``model_path``.
        meanwhile: see ``Model``.

    Raises:
        ParameterError: an argument is wrong; nothing was read.
        ModelLoadError: see ``Llama``; nothing is left in memory.
    """
    params, context_params = ModelParams.of(arguments), context_params_of(arguments)
    one, other = arguments["speculative"], arguments["draft_model"]
    if one is not None and other is not None:
        raise ParameterError("draft_model is another name of speculative: pass one of them")
    speculative = as_speculative(other if one is None else one)
    if speculative is not None and speculative.needs_heads and not params.vocab_only:
        params = replace(params, load_mtp=True)
    backend.start(arguments["numa"])
    info = check_model_file(arguments["model_path"])
    check_memory(info, params, context_params)
    if gpus(params):
        from llama_py.core.device_memory import fitted

        params = fitted(arguments["model_path"], params, context_params)
    model = Model(
        info.path,
        params,
        info=info,
        progress=arguments["progress"],
        verbose=arguments["verbose"],
        meanwhile=meanwhile,
    )
    return Weights(model, context_params, speculative)


def context_params_of(arguments: Mapping[str, Any]) -> ContextParams:
    """Those of the arguments that are about the context."""
    names = [each.name for each in fields(ContextParams) if each.name in arguments]
    return ContextParams(**{name: arguments[name] for name in names})
