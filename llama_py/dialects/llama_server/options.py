"""llama-server's names for the options of a completion, to ours and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from llama_py.chat.constraints import CompiledGrammar, LlamaGrammar, compile_schema
from llama_py.dialects.context import CallContext
from llama_py.dialects.fields import whole, whole_number
from llama_py.dialects.requests import read_biases, read_sampling
from llama_py.errors import ParameterError, ParameterTypeError, shown
from llama_py.options import COMPLETION
from llama_py.options.checks import check_number
from llama_py.options.values import SAMPLER_NAMES, sampler_name
from llama_py.params import GenerationParams, SamplingParams

__all__ = ["described", "read_native_sampling", "read_number", "read_stop_texts"]

#: Members that have the name of an option.
_SAME = (
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
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "adaptive_target",
    "adaptive_decay",
    "mirostat_tau",
    "mirostat_eta",
    "seed",
    "min_keep",
)
#: Members that have another name than the option.
_OTHERS = {"repeat_last_n": "penalty_last_n", "mirostat": "mirostat_mode"}
#: Where llama-server's defaults are others than those of a completion here.
_DEFAULTS = {"dry_penalty_last_n": 64}
#: What ``samplers`` may be in one word: a letter for each.
_LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typical_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
}
#: Names of ours that llama-server spells otherwise.
_SPELLED = {"typical_p": "typ_p"}


# ---- reading ---------------------------------------------------------------------------------


def read_number(body: Mapping[str, Any], *names: str, low: int, default: int) -> int:
    """The first of these members that is there, as an integer."""
    for name in names:
        value = whole_number(body.get(name))
        if value is not None:
            check_number(name, value, low, 2**63 - 1, integer=True)
            return int(value)
    return default


def read_stop_texts(body: Mapping[str, Any], most: int) -> tuple[str, ...]:
    """``stop``: a text or several. Empty ones stop nothing."""
    value = body.get("stop")
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ParameterTypeError(f"stop must be a list of strings, not {shown(value)}")
    stops = tuple(dict.fromkeys(text for text in texts if text))
    if len(stops) > most:
        raise ParameterError(f"stop has {len(stops)} strings; at most {most} are allowed")
    return stops


def read_native_sampling(context: CallContext, body: Mapping[str, Any]) -> SamplingParams:
    """How tokens are chosen.

    Raises:
        ParameterError, GrammarError: a member is wrong; the message names it.
    """
    given = {name: body[name] for name in (*_SAME, "min_tokens") if body.get(name) is not None}
    options: dict[str, Any] = {**_DEFAULTS}
    options |= {name: whole(COMPLETION[name], value) for name, value in given.items()}
    for name, ours in _OTHERS.items():
        if body.get(name) is not None:
            try:
                options[ours] = COMPLETION[ours].read(whole(COMPLETION[ours], body[name]))
            except ParameterError as error:  # it names the option, and not the member
                raise type(error)(str(error).replace(ours, name, 1)) from None
    if body.get("samplers") is not None:
        names = body["samplers"]
        if isinstance(names, str):
            names = [_LETTERS.get(letter, "") for letter in names]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ParameterTypeError(
                f"samplers must be a list of names, not {shown(body['samplers'])}"
            )
        known = [sampler_name(name) for name in names]
        options["samplers"] = [name for name in known if name in SAMPLER_NAMES]
    if body.get("logit_bias") is not None:
        options["logit_bias"] = read_biases(context, body["logit_bias"])
    read = COMPLETION.read(options)
    return read_sampling(COMPLETION, read, context, _grammar(context, body))


def _grammar(context: CallContext, body: Mapping[str, Any]) -> CompiledGrammar | None:
    """What the reply may be; an empty schema is any object."""
    text, schema = body.get("grammar"), body.get("json_schema")
    if text:
        if schema is not None:
            raise ParameterError("json_schema contradicts grammar: both say what a reply may be")
        if not isinstance(text, str):
            raise ParameterTypeError(f"grammar must be GBNF text, not {shown(text)}")
        return LlamaGrammar.from_string(text).compile(context.vocab)
    if schema is None:
        return None
    return compile_schema({"type": "object"} if schema == {} else schema, context.vocab)


# ---- describing ------------------------------------------------------------------------------


def described(
    sampling: SamplingParams,
    generation: GenerationParams,
    stream: bool,
    ends: Sequence[int] = (),
) -> dict[str, Any]:
    """The options of a completion by llama-server's names, also those that were not given.

    Args:
        ends: the tokens that end a reply; ``ignore_eos`` forbids them.
    """
    out: dict[str, Any] = {name: getattr(sampling, name) for name in _SAME}
    out["repeat_last_n"] = sampling.penalty_last_n
    out["mirostat"] = sampling.mirostat
    out["dry_sequence_breakers"] = list(sampling.dry_sequence_breakers)
    most = -1 if generation.max_tokens is None else generation.max_tokens
    forbidden = dict.fromkeys(ends if generation.ignore_eos else (), -math.inf)
    # JSON has no infinity. llama-server says null, which ``read_biases`` reads.
    biases = [
        {"token": token, "bias": bias if math.isfinite(bias) else None}
        for token, bias in {**forbidden, **sampling.logit_bias}.items()
    ]
    steps = SAMPLER_NAMES if sampling.samplers is None else sampling.samplers
    return {
        **out,
        "stop": list(generation.stop),
        "max_tokens": most,
        "n_predict": most,
        "n_keep": 0,
        "n_discard": 0,
        "ignore_eos": generation.ignore_eos,
        "stream": stream,
        "logit_bias": biases,
        "n_probs": generation.logprobs or 0,
        "grammar": sampling.grammar.gbnf if sampling.grammar is not None else "",
        "samplers": [_SPELLED.get(name, name) for name in steps],
        "lora": [],
    }
