"""The options of a call to engine requests, in every dialect."""

from __future__ import annotations

import logging
import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_py.dialects.context import CallContext
from llama_py.engine.request import GenerationRequest, Prompt
from llama_py.errors import ParameterError, ParameterTypeError, shown
from llama_py.options import (
    ChatOptions,
    CompletionOptions,
    CriteriaOptions,
    ReplyOptions,
    SamplingOptions,
    Table,
)
from llama_py.options.checks import check_number
from llama_py.options.drafters import as_speculative
from llama_py.options.values import SAMPLER_NAMES, sampler_name
from llama_py.params import GenerationParams, GrammarSpec, SamplingParams

if TYPE_CHECKING:
    from llama_py.chat.constraints import CompiledGrammar
    from llama_py.chat.reasoning import Reasoning

__all__ = [
    "NO_PROMPT",
    "model_defaults",
    "most_tokens",
    "read_biases",
    "read_generation",
    "read_grammar",
    "read_request",
    "read_sampling",
    "requests_of",
    "with_biases",
]

#: Of a request whose prompt is not known yet.
NO_PROMPT = Prompt(b"")


def read_grammar(
    options: CriteriaOptions, context: CallContext, reasoning: Reasoning | None = None
) -> CompiledGrammar | None:
    """The grammar of a call: a ``LlamaGrammar``, GBNF text, or a ``GrammarSpec``; None without one.

    Args:
        reasoning: what may come before the text that the grammar is for, and is free.
    """
    grammar: object = options.get("grammar")
    if grammar is None:
        return None
    # Not before one is given: api/opening.py says why.
    from llama_py.chat.constraints import CompiledGrammar, LlamaGrammar
    from llama_py.chat.reasoning import NO_REASONING

    reasoning = reasoning or NO_REASONING
    if isinstance(grammar, GrammarSpec):
        return CompiledGrammar(reasoning.framed(grammar))
    if isinstance(grammar, str):
        grammar = LlamaGrammar.from_string(grammar)
    if isinstance(grammar, LlamaGrammar):
        return grammar.compile(context.vocab, reasoning=reasoning)
    raise ParameterTypeError(
        f"grammar must be a LlamaGrammar or GBNF text, not {type(grammar).__name__}"
    )


def read_request(
    options: CompletionOptions | ChatOptions, sampling: SamplingParams, generation: GenerationParams
) -> GenerationRequest:
    """A request with what the remaining options say, and no prompt."""
    speculative: Any = options.get("speculative")
    return GenerationRequest(
        NO_PROMPT,
        sampling,
        generation,
        session=options.get("session_id") or options.get("user") or None,
        priority=options.get("priority") or 0,
        on_progress=options.get("on_progress"),
        speculative=None if speculative is None else as_speculative(speculative),
        reuse=options.get("reuse") is not False,
    )


def requests_of(
    wanted: GenerationRequest, prompts: Sequence[Prompt], per_prompt: int
) -> list[GenerationRequest]:
    """One request for each choice; only the first one is the session's conversation."""
    many = len(prompts) > 1
    return [
        replace(
            wanted,
            prompt=prompt,
            session=None if many or number else wanted.session,
            choice=index * per_prompt + number,
        )
        for index, prompt in enumerate(prompts)
        for number in range(per_prompt)
    ]


# ---- sampling ------------------------------------------------------------------------------------
#
# From the options of a call and the defaults of its model to what the engine samples with.


logger = logging.getLogger("llama_py")

#: Option -> field of ``SamplingParams``; a grammar is compiled first.
_FIELDS = {each.name: each.name for each in fields(SamplingParams) if each.name != "grammar"} | {
    "mirostat_mode": "mirostat",
    "logits_processor": "logits_processors",
}
_PACKAGE = str(Path(__file__).parent.parent)

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
            names = [sampler_name(name) for name in text.split(";")]
            known = tuple(name for name in names if name in SAMPLER_NAMES)
            _adopt(found, "samplers", known, key)
        else:
            field, kind = _MODEL_KEYS[key]
            try:
                number = float(text)
            except ValueError:
                number = math.nan
            _adopt(found, field, kind(number) if math.isfinite(number) else None, key)
    return found


def _adopt(found: dict[str, Any], field: str, value: Any, key: str) -> None:
    try:
        if value is None:
            raise ParameterError("that is not a number")
        SamplingParams(**{field: value})
    except ParameterError as error:
        logger.warning("the model's %s is ignored: %s", key, error)
    else:
        found[field] = value


# ---- SamplingParams --------------------------------------------------------------------------


def read_sampling(
    table: Table[Any],
    options: SamplingOptions,
    context: CallContext,
    grammar: CompiledGrammar | None = None,
) -> SamplingParams:
    """The sampling parameters of a call.

    Args:
        table: the call that it is; defaults differ.
        options: what its caller gave, as ``table`` read it; it wins over everything else.
        context: whose model may bring defaults along.
        grammar: what the reply has to follow.

    Raises:
        ParameterError: a token is outside of the vocabulary.
    """
    values: dict[str, Any] = {
        "temperature": table.default_values["temperature"],
        "seed": context.seed,
        "penalty_last_n": context.last_n_tokens_size,
        **model_defaults(context.metadata),
        **context.sampling,
    }
    temperature = options.get("temperature")
    if "mirostat_mode" not in options and temperature is not None and temperature <= 0:
        values.pop("mirostat", None)  # a caller who asks for greedy sampling gets it
    values |= {_FIELDS[name]: value for name, value in options.items() if name in _FIELDS}
    if "tfs_z" in options and options["tfs_z"] != 1:
        warnings.warn(
            "tfs_z has no effect: llama.cpp has no tail-free sampling any more; use min_p instead",
            DeprecationWarning,
            stacklevel=_level_of_the_caller(),
        )
    for token in options.get("logit_bias") or ():
        check_number("logit_bias: token", token, 0, context.vocab.n_tokens - 1, integer=True)
    if grammar is not None:
        values |= {"grammar": grammar.grammar, "constraint": grammar.constraint}
    return SamplingParams(**values)


def _level_of_the_caller() -> int:
    """The number of frames from the caller up to the first one outside of this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level


def read_biases(context: CallContext, value: Any) -> dict[int, float]:
    """``logit_bias`` as llama-server has it: a list of pairs, or an object.

    A text stands for each of its tokens.

    Raises:
        ParameterError: it is neither, or a token is outside of the vocabulary.
    """
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, list):
        raise ParameterTypeError(f"logit_bias must be a list of pairs, not {shown(value)}")
    biases: dict[int, float] = {}
    for pair in pairs:
        if isinstance(pair, Mapping):  # as ``generation_settings`` shows it
            pair = [pair.get("token"), pair.get("bias")]
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise ParameterTypeError(
                f"logit_bias: {shown(pair)} is not a pair of a token and a bias"
            )
        bias = -math.inf
        if pair[1] is not False and pair[1] is not None:
            check_number("logit_bias: bias", pair[1])
            bias = float(pair[1])
        token = pair[0]
        if isinstance(value, Mapping) and isinstance(token, str):  # JSON has no other keys
            number = token.removeprefix("-").isdecimal()
            token = int(token[:20]) if number else token  # more digits are too many, too
        if isinstance(token, str):
            tokens = context.vocab.tokenize(token, add_special=False)
        else:
            check_number("logit_bias: token", token, 0, context.vocab.n_tokens - 1, integer=True)
            tokens = [int(token)]
        biases |= dict.fromkeys(tokens, bias)
    return biases


def with_biases(context: CallContext, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fields of a body in which ``logit_bias``, if it is a list, is the object that it stands for.

    Raises:
        ParameterError: see ``read_biases``.
    """
    if not isinstance(fields.get("logit_bias"), list):
        return fields
    return {**fields, "logit_bias": read_biases(context, fields["logit_bias"])}


# ---- GenerationParams ------------------------------------------------------------------------


def most_tokens(value: int | None, *, zero_counts: bool) -> int | None:
    """``max_tokens`` of a call; None is as many as there is room for, as less than 0 is.

    Args:
        zero_counts: 0 is not a token; otherwise it means no limit, as for llama-cpp-python.
    """
    if value == 0 and zero_counts:
        return 0
    return value if value is not None and value > 0 else None


def read_generation(
    options: ReplyOptions,
    context: CallContext,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: bool = False,
) -> GenerationParams:
    """When a reply ends.

    Args:
        max_tokens: most tokens to generate, None for what the context says, or as many as fit.
        logprobs: alternatives per token, or None.

    Raises:
        ParameterError: a value contradicts another, or is outside of the vocabulary.
    """
    max_tokens = context.max_tokens if max_tokens is None else max_tokens
    least = options.get("min_tokens")
    if least is not None and max_tokens is not None and least > max_tokens:
        raise ParameterError(
            f"min_tokens={least} contradicts max_tokens={max_tokens}; it must not be larger"
        )
    stop_tokens = frozenset(options.get("stop_token_ids") or ())
    for token in stop_tokens:
        check_number("stop_token_ids", token, 0, context.vocab.n_tokens - 1, integer=True)
    return GenerationParams(
        max_tokens=max_tokens,
        stop=tuple(options.get("stop") or ()),
        stop_tokens=stop_tokens,
        ignore_eos=bool(options.get("ignore_eos")),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        timeout=options.get("timeout"),
        stopping_criteria=options.get("stopping_criteria") or (),  # type: ignore[arg-type]
    )
