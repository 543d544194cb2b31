"""Sampling and generation parameters from keyword arguments and from the model's own defaults."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping
from functools import lru_cache
from numbers import Real
from typing import Any

from llama_py.dialects.arguments import Arguments
from llama_py.dialects.context import CallContext
from llama_py.errors import ParameterError, ParameterTypeError, shown
from llama_py.params import (
    SAMPLER_NAMES,
    GenerationParams,
    SamplingParams,
    check_number,
)

__all__ = [
    "GENERATION_PARAMETERS",
    "SAMPLING_PARAMETERS",
    "model_defaults",
    "read_generation",
    "read_sampling",
]

logger = logging.getLogger("llama_py")

#: Parameters that are fields of ``SamplingParams`` under the same name.
_PLAIN = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "dynatemp_range",
    "dynatemp_exponent",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "penalty_last_n",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "adaptive_target",
    "adaptive_decay",
    "mirostat_tau",
    "mirostat_eta",
    "seed",
    "min_tokens",
    "min_keep",
)

SAMPLING_PARAMETERS = frozenset(_PLAIN) | {
    "dry_sequence_breakers",
    "logit_bias",
    "logits_processor",
    "mirostat_mode",
    "samplers",
    "tfs_z",
}

GENERATION_PARAMETERS = frozenset(
    {"ignore_eos", "max_tokens", "stop", "stop_token_ids", "stopping_criteria", "timeout"}
)

#: Stop strings are compared at every token.
MAX_STOPS = 256

#: GGUF key -> (field of ``SamplingParams``, its type); the keys are llama.cpp's.
_MODEL_KEYS: dict[str, tuple[str, type[int] | type[float]]] = {
    "general.sampling.top_k": ("top_k", int),
    "general.sampling.top_p": ("top_p", float),
    "general.sampling.min_p": ("min_p", float),
    "general.sampling.xtc_probability": ("xtc_probability", float),
    "general.sampling.xtc_threshold": ("xtc_threshold", float),
    "general.sampling.temp": ("temperature", float),
    "general.sampling.penalty_last_n": ("penalty_last_n", int),
    "general.sampling.penalty_repeat": ("repeat_penalty", float),
    "general.sampling.mirostat": ("mirostat", int),
    "general.sampling.mirostat_tau": ("mirostat_tau", float),
    "general.sampling.mirostat_eta": ("mirostat_eta", float),
}

_SEQUENCE_KEY = "general.sampling.sequence"

_SAMPLER_ALIASES = {
    "typ_p": "typical_p",
    "typ": "typical_p",
    "typical": "typical_p",
    "nucleus": "top_p",
    "temp": "temperature",
}


# ---- defaults that a model brings along ------------------------------------------------------


def model_defaults(metadata: Mapping[str, str]) -> Mapping[str, Any]:
    """The sampling parameters that a GGUF's ``general.sampling.*`` metadata asks for.

    A value that cannot be used is left out, with a warning in the log.
    """
    keys = (*_MODEL_KEYS, _SEQUENCE_KEY)
    present = tuple((key, metadata[key]) for key in keys if key in metadata)
    return _parse_defaults(present) if present else {}


@lru_cache(maxsize=32)
def _parse_defaults(present: tuple[tuple[str, str], ...]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for key, text in present:
        if key == _SEQUENCE_KEY:
            _adopt(found, "samplers", _known_samplers(text), key)
        else:
            field, kind = _MODEL_KEYS[key]
            _adopt(found, field, _number(text, kind), key)
    return found


def _number(text: str, kind: type[int] | type[float]) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    return int(value) if kind is int else value


def _adopt(found: dict[str, Any], field: str, value: Any, key: str) -> None:
    try:
        if value is None:
            raise ParameterError("that is not a number")
        SamplingParams(**{field: value})
    except ParameterError as error:
        logger.warning("the model's %s is ignored: %s", key, error)
    else:
        found[field] = value


def _known_samplers(sequence: str) -> tuple[str, ...]:
    names = [_sampler_name(name) for name in sequence.split(";")]
    return tuple(name for name in names if name in SAMPLER_NAMES)


def _sampler_name(name: str) -> str:
    name = name.strip().replace("-", "_")
    return _SAMPLER_ALIASES.get(name, name)


# ---- SamplingParams --------------------------------------------------------------------------


def read_sampling(
    arguments: Arguments, context: CallContext, temperature: float, **fixed: Any
) -> SamplingParams:
    """The sampling parameters of a call.

    Args:
        arguments: what the caller gave; it wins over everything else.
        context: whose model may bring defaults along.
        temperature: the default of this kind of call.
        fixed: further fields of ``SamplingParams``.

    Raises:
        ParameterError: a value is out of range, has the wrong type, or contradicts another.
    """
    fields: dict[str, Any] = {
        "temperature": temperature,
        "seed": context.seed,
        "penalty_last_n": context.last_n_tokens_size,
        **model_defaults(context.metadata),
    }
    given = _given(arguments)
    if "mirostat" not in given and given.get("temperature", 1.0) <= 0:
        fields.pop("mirostat", None)  # a caller who asks for greedy sampling gets it
    _check_tfs(arguments)
    return SamplingParams(**{**fields, **given, **fixed, "logit_bias": _bias(arguments, context)})


def _given(arguments: Arguments) -> dict[str, Any]:
    given = {name: arguments.get(name) for name in _PLAIN if name in arguments}
    if "temperature" in given:
        check_number("temperature", given["temperature"])
    if "mirostat_mode" in arguments:
        given["mirostat"] = arguments.integer("mirostat_mode", low=0, high=2)
    if "samplers" in arguments:
        given["samplers"] = _samplers(arguments)
    if "dry_sequence_breakers" in arguments:
        given["dry_sequence_breakers"] = arguments.texts("dry_sequence_breakers")
    if "logits_processor" in arguments:
        given["logits_processors"] = arguments.functions("logits_processor")
    return given


def _samplers(arguments: Arguments) -> tuple[str, ...]:
    """Names in a list, or in one string with semicolons, in any of llama.cpp's spellings."""
    names = [part for text in arguments.texts("samplers") for part in text.split(";")]
    return tuple(_sampler_name(name) for name in names)


def _check_tfs(arguments: Arguments) -> None:
    value = arguments.number("tfs_z")
    if value is not None and value != 1:
        warnings.warn(
            "tfs_z has no effect: llama.cpp has no tail-free sampling any more; use min_p instead",
            DeprecationWarning,
            stacklevel=2,
        )


def _bias(arguments: Arguments, context: CallContext) -> dict[int, float]:
    bias = arguments.mapping("logit_bias") or {}
    return {
        _bias_token(key, context.vocab.n_tokens): _bias_value(key, value)
        for key, value in bias.items()
    }


def _bias_token(key: Any, n_tokens: int) -> int:
    if isinstance(key, str):
        try:
            key = int(key)
        except ValueError:
            raise ParameterError(f"logit_bias: {shown(key)} is not a token id") from None
    check_number("logit_bias: token", key, 0, n_tokens - 1, integer=True)
    return int(key)


def _bias_value(key: Any, value: Any) -> float:
    if value is False:
        return -math.inf  # llama.cpp's way to forbid a token
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ParameterTypeError(
            f"logit_bias[{shown(key)}]={shown(value)} must be a number, or False"
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isnan(number) or number == math.inf:
        raise ParameterError(
            f"logit_bias[{shown(key)}]={shown(value)} must be a finite number, or -inf"
        )
    return number


# ---- GenerationParams ------------------------------------------------------------------------


def read_generation(
    arguments: Arguments,
    context: CallContext,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: bool = False,
) -> GenerationParams:
    """When a reply ends.

    Args:
        max_tokens: most tokens to generate, None for as many as fit.
        logprobs: alternatives per token, or None.

    Raises:
        ParameterError: a value is out of range, has the wrong type, or contradicts another.
    """
    _check_min_tokens(arguments, max_tokens)
    return GenerationParams(
        max_tokens=max_tokens,
        stop=tuple(dict.fromkeys(_stops(arguments))),
        stop_tokens=_stop_tokens(arguments, context.vocab.n_tokens),
        ignore_eos=arguments.flag("ignore_eos"),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        timeout=arguments.number("timeout", low=0),
        stopping_criteria=arguments.functions("stopping_criteria"),
    )


def _stops(arguments: Arguments) -> tuple[str, ...]:
    stops = arguments.texts("stop")
    if len(stops) > MAX_STOPS:
        raise ParameterError(f"stop has {len(stops)} strings; at most {MAX_STOPS} are allowed")
    return stops


def _stop_tokens(arguments: Arguments, n_tokens: int) -> frozenset[int]:
    tokens = arguments.get("stop_token_ids", ())
    if not isinstance(tokens, (list, tuple, set, frozenset)):
        raise ParameterTypeError(f"stop_token_ids must be a list of token ids, not {shown(tokens)}")
    for token in tokens:
        check_number("stop_token_ids", token, 0, n_tokens - 1, integer=True)
    return frozenset(tokens)


def _check_min_tokens(arguments: Arguments, max_tokens: int | None) -> None:
    least = arguments.integer("min_tokens", low=0)
    if least is not None and max_tokens is not None and least > max_tokens:
        raise ParameterError(
            f"min_tokens={least} contradicts max_tokens={max_tokens}; it must not be larger"
        )
