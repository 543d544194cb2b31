"""Options as frozen dataclasses, checked when they are made.

``ModelParams`` and ``ContextParams`` mirror the C structs of the same names, with the defaults that
a person wants; ``SamplingParams`` is one request's way from logits to a token; ``GenerationParams``
says when that request ends and what it reports. A value out of range raises ``ParameterError`` that
names the parameter and the range, before anything native is touched.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import ParameterError, ParameterTypeError, shown

__all__ = [
    "RANDOM_SEED",
    "SPECIAL_TOKENS_IN_CONTENT",
    "ContextParams",
    "GenerationParams",
    "GrammarSpec",
    "LogitsProcessor",
    "ModelParams",
    "SamplingParams",
    "StoppingCriteria",
    "TokenConstraint",
    "as_shares",
    "check_arguments",
    "check_content_mode",
    "check_policy",
]

#: The seed that means "choose one at random" (``LLAMA_DEFAULT_SEED``).
RANDOM_SEED = 0xFFFFFFFF
#: What the texts of special tokens in user and tool messages may be: text, tokens, or an error.
SPECIAL_TOKENS_IN_CONTENT = ("text", "parse", "refuse")

#: ``(tokens so far, logits row)`` -> logits row; both shapes 1-D, logits float32 ``(n_vocab,)``.
LogitsProcessor = Callable[[NDArray[np.intc], NDArray[np.single]], NDArray[np.single]]
#: ``(tokens so far, logits row)`` -> stop here?
StoppingCriteria = Callable[[NDArray[np.intc], NDArray[np.single]], bool]


class TokenConstraint(Protocol):
    """Restricts the tokens of one generated sequence (for example to a JSON schema)."""

    def mask(self, logits: NDArray[np.float32]) -> None:
        """Set the logits of forbidden tokens to ``-inf``, in place. Shape ``(n_vocab,)``."""

    def accept(self, token: int) -> None:
        """Advance past a sampled token."""

    @property
    def finished(self) -> bool:
        """True when only an end-of-generation token may follow."""


#: Characters of one stop string. As much text as the longest has may be held back from a stream.
MAX_STOP_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """What llama.cpp's grammar sampler is made of.

    Attributes:
        gbnf: the rules, in GBNF.
        root: the start symbol.
        lazy: constrain only after one of the triggers appeared.
        trigger_patterns: regular expressions matched from the start of the output.
        trigger_tokens: token ids.
        prefill: text that the grammar takes as already written (the opening of a chat reply).
    """

    gbnf: str
    root: str = "root"
    lazy: bool = False
    trigger_patterns: tuple[str, ...] = ()
    trigger_tokens: tuple[int, ...] = ()
    prefill: str = ""


def check_number(
    name: str,
    value: Any,
    low: float | None = None,
    high: float | None = None,
    *,
    integer: bool = False,
) -> None:
    """Raise unless ``value`` is a finite number (an ``int`` if ``integer``) within [low, high]."""
    wanted: Any = (int, np.integer) if integer else (int, float, np.number)
    if isinstance(value, bool) or not isinstance(value, wanted):
        kind = "an integer" if integer else "a number"
        raise ParameterTypeError(
            f"{name} must be {kind}, not {type(value).__name__} ({shown(value)})"
        )
    too_low = low is not None and value < low
    too_high = high is not None and value > high
    if not _fits_a_float(value) or too_low or too_high:
        raise ParameterError(f"{name}={shown(value)} is out of range: {_range_text(low, high)}")


def _fits_a_float(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of more than 1024 bits
        return False


def _range_text(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"allowed is {low} to {high}"
    if low is not None:
        return f"it must be at least {low}"
    return f"it must be at most {high}" if high is not None else "it must be finite"


def check_bool(name: str, value: Any) -> None:
    """Raise unless ``value`` is a bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise ParameterTypeError(
            f"{name} must be True or False, not {type(value).__name__} ({shown(value)})"
        )


def _check_callable(name: str, value: Any) -> None:
    if not callable(value):
        raise ParameterTypeError(f"{name} must be a function, not {shown(value)}")


def _check_kind(name: str, value: Any, kinds: tuple[type, ...], what: str) -> None:
    if not isinstance(value, kinds):
        raise ParameterTypeError(
            f"{name} must be {what}, not {type(value).__name__} ({shown(value)})"
        )


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Check those arguments of ``Llama`` that belong to none of the classes below.

    Raises:
        ParameterTypeError, ParameterError: naming the argument, and what it may be.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    _check_kind("model_path", arguments.get("model_path"), (str, os.PathLike), "a path")
    if not os.fspath(arguments["model_path"]):
        raise ParameterError("model_path is empty; give the path of a GGUF file")
    for name in ("logits_all", "spm_infill", "verbose", "swa_full", "op_offload"):
        check_bool(name, given.get(name, False))
    for name in ("checkpoint_bytes", "parking_bytes", "prefix_cache_slots"):
        check_number(name, arguments.get(name, 0), 0, integer=True)
    check_number("max_waiting", arguments.get("max_waiting", 1), 1, integer=True)
    check_number("seed", given.get("seed", 0), -(2**31), 2**64 - 1, integer=True)
    check_number("last_n_tokens_size", given.get("last_n_tokens_size", 0), -1, integer=True)
    check_number("lora_scale", given.get("lora_scale", 1.0))
    check_number("numa", int(_as_number(given.get("numa", 0))), 0, 4, integer=True)
    for name in ("chat_format", "chat_template"):
        _check_kind(name, given.get(name, ""), (str,), "a string")
    check_content_mode(given.get("special_tokens_in_content", "text"))
    _check_kind("lora_path", given.get("lora_path", ""), (str, os.PathLike), "a path")
    for name in ("chat_handler", "progress"):
        _check_callable(name, given.get(name, check_arguments))
    if "tokenizer" in given and not hasattr(given["tokenizer"], "tokenize"):
        raise ParameterTypeError(f"tokenizer={shown(given['tokenizer'])} has no method tokenize()")
    check_policy(given.get("overflow"))


def check_policy(policy: Any) -> None:
    """Raise unless ``overflow=policy`` is a policy, or None."""
    if policy is None:
        return
    if isinstance(policy, type) or not (hasattr(policy, "shorten") and hasattr(policy, "reserve")):
        raise ParameterTypeError(
            f"overflow={shown(policy)} is no overflow policy (shorten() and reserve); pass "
            "TrimMessages(), or None"
        )


def check_content_mode(value: Any) -> None:
    """Raise unless ``value`` is one of ``SPECIAL_TOKENS_IN_CONTENT``."""
    _check_kind("special_tokens_in_content", value, (str,), "a string")
    if value not in SPECIAL_TOKENS_IN_CONTENT:
        expected = ", ".join(SPECIAL_TOKENS_IN_CONTENT)
        raise ParameterError(f"special_tokens_in_content={value!r}: expected one of {expected}")


def as_shares(value: Any) -> tuple[float, ...] | None:
    """``tensor_split`` as ``ModelParams`` takes it."""
    if value is None:
        return None
    _check_kind("tensor_split", value, (list, tuple, np.ndarray), "a list of numbers")
    return tuple(value)


def _as_number(value: Any) -> int:
    _check_kind("numa", value, (bool, int), "True, False or a strategy of llama.cpp (0 to 4)")
    return int(value)


@dataclass(frozen=True, slots=True)
class ModelParams:
    """How a model file is loaded (``llama_model_params``).

    Attributes:
        n_gpu_layers: layers to keep on the GPU; -1 is all of them.
        split_mode: how several GPUs share the model (0 none, 1 layer, 2 row, 3 tensor).
        main_gpu: the GPU used when ``split_mode`` is 0.
        tensor_split: proportion for each GPU, or None.
        vocab_only: load the vocabulary and no weights.
        use_mmap: map the file instead of reading it.
        use_mlock: keep the weights from being swapped out.
        kv_overrides: metadata values to replace: ``{key: bool | int | float | str}``.
        check_tensors: look for NaN and Inf in the weights while loading.
    """

    n_gpu_layers: int = -1
    split_mode: int = 1
    main_gpu: int = 0
    tensor_split: tuple[float, ...] | None = None
    vocab_only: bool = False
    use_mmap: bool = True
    use_mlock: bool = False
    kv_overrides: Mapping[str, bool | int | float | str] | None = None
    check_tensors: bool = False

    def __post_init__(self) -> None:
        check_number("n_gpu_layers", self.n_gpu_layers, -1, 2**31 - 1, integer=True)
        check_number("split_mode", self.split_mode, 0, 3, integer=True)
        check_number("main_gpu", self.main_gpu, 0, 2**15, integer=True)
        for name in ("vocab_only", "use_mmap", "use_mlock", "check_tensors"):
            check_bool(name, getattr(self, name))
        for share in self.tensor_split or ():
            check_number("tensor_split", share, 0)
        if self.kv_overrides is not None:
            _check_kind("kv_overrides", self.kv_overrides, (Mapping,), "a dictionary")
        for key, value in (self.kv_overrides or {}).items():
            _check_override(key, value)


def _check_override(key: Any, value: Any) -> None:
    if not isinstance(key, str) or len(key.encode()) > 127:
        raise ParameterError(f"kv_overrides: key {key!r} must be a string of at most 127 bytes")
    if not isinstance(value, (bool, int, float, str)):
        raise ParameterTypeError(
            f"kv_overrides[{key!r}] must be a bool, int, float or str, not {type(value).__name__}"
        )
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise ParameterError(f"kv_overrides[{key!r}]={value} does not fit into 64 bits")
    if isinstance(value, str) and len(value.encode()) > 127:
        raise ParameterError(f"kv_overrides[{key!r}] is longer than 127 bytes")


@dataclass(frozen=True, slots=True)
class ContextParams:
    """How a context is made (``llama_context_params``).

    Attributes:
        n_ctx: cells, shared by all sequences; 0 is the model's own length up to a memory limit.
        n_batch: most tokens in one ``llama_decode``.
        n_ubatch: most tokens computed at once.
        n_seq_max: sequences (conversations) that can be in memory side by side.
        n_threads, n_threads_batch: threads for one token / for many; None is the physical cores
            that this process may use, and one for a tiny model.
        flash_attn: True, False, or None for automatic.
        swa_full: keep a full-size cache for sliding-window layers (large, and not needed here).
        type_k, type_v: ggml types of the KV cache (for example 8 for Q8_0); None is F16.
        kv_unified: all sequences share one buffer of cells.
    """

    n_ctx: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    n_seq_max: int = 8
    n_threads: int | None = None
    n_threads_batch: int | None = None
    rope_scaling_type: int = -1
    pooling_type: int = -1
    attention_type: int = -1
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0
    yarn_ext_factor: float = -1.0
    yarn_attn_factor: float = 1.0
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    yarn_orig_ctx: int = 0
    embeddings: bool = False
    offload_kqv: bool = True
    op_offload: bool = True
    flash_attn: bool | None = None
    swa_full: bool = False
    kv_unified: bool = True
    no_perf: bool = True
    type_k: int | None = None
    type_v: int | None = None

    def __post_init__(self) -> None:
        check_number("n_ctx", self.n_ctx, 0, 2**31 - 1, integer=True)
        check_number("n_batch", self.n_batch, 1, 2**31 - 1, integer=True)
        check_number("n_ubatch", self.n_ubatch, 1, 2**31 - 1, integer=True)
        check_number("n_seq_max", self.n_seq_max, 1, 256, integer=True)
        for name in ("n_threads", "n_threads_batch"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 1, 512, integer=True)
        for name in ("rope_freq_base", "rope_freq_scale"):
            check_number(name, getattr(self, name), 0)
        for name in ("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow"):
            check_number(name, getattr(self, name))
        check_number("yarn_orig_ctx", self.yarn_orig_ctx, 0, 2**31 - 1, integer=True)
        check_number("rope_scaling_type", self.rope_scaling_type, -1, 3, integer=True)
        check_number("pooling_type", self.pooling_type, -1, 4, integer=True)
        check_number("attention_type", self.attention_type, -1, 1, integer=True)
        for name in ("type_k", "type_v"):
            _check_cache_type(name, getattr(self, name))
        for name in ("embeddings", "offload_kqv", "op_offload", "swa_full", "no_perf"):
            check_bool(name, getattr(self, name))
        check_bool("kv_unified", self.kv_unified)
        if self.flash_attn is not None:
            check_bool("flash_attn", self.flash_attn)


#: ggml types that a KV cache can have. llama.cpp reads past its tables for a number it has not got.
_CACHE_TYPES = {
    0: "F32",
    1: "F16",
    30: "BF16",
    8: "Q8_0",
    2: "Q4_0",
    3: "Q4_1",
    20: "IQ4_NL",
    6: "Q5_0",
    7: "Q5_1",
}


def _check_cache_type(name: str, value: Any) -> None:
    if value is None:
        return
    check_number(name, value, integer=True)
    if value not in _CACHE_TYPES:
        known = ", ".join(f"{number} ({text})" for number, text in _CACHE_TYPES.items())
        raise ParameterError(f"{name}={value} is no type of a KV cache; there are {known}")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """One request's way from logits to a token.

    The meaning and the order of the steps are llama.cpp's (``common/sampling.h``): logit bias,
    penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature, then the draw.
    ``temperature <= 0`` is greedy: the most likely token after bias, penalties and grammar.

    Attributes:
        seed: ``RANDOM_SEED`` chooses one.
        repeat_penalty, frequency_penalty, presence_penalty: over the last ``penalty_last_n`` tokens
            of prompt and reply (-1: the whole context).
        mirostat: 0 off, 1 or 2.
        logit_bias: token id -> value added to its logit; ``-inf`` forbids it.
        grammar: GBNF rules, or None.
        constraint: makes the constraint object of one generated sequence, or None.
        samplers: the order of the steps by name, or None for the order above.
        min_tokens: end-of-generation tokens are forbidden before this many tokens.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    seed: int = RANDOM_SEED
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: GrammarSpec | None = None
    constraint: Callable[[], TokenConstraint] | None = None
    logits_processors: tuple[LogitsProcessor, ...] = ()
    samplers: tuple[str, ...] | None = None
    min_tokens: int = 0
    min_keep: int = 1

    def __post_init__(self) -> None:
        for name, (low, high, integer) in _SAMPLING_RANGES.items():
            check_number(name, getattr(self, name), low, high, integer=integer)
        if self.samplers is not None:
            _check_samplers(self.samplers)
        for token, bias in self.logit_bias.items():
            check_number("logit_bias: token", token, 0, integer=True)
            number = isinstance(bias, (int, float)) and not isinstance(bias, bool)
            if not number or not (_fits_a_float(bias) or bias in (math.inf, -math.inf)):
                raise ParameterError(f"logit_bias[{token}]={shown(bias)} must be a number")

    @property
    def greedy(self) -> bool:
        """True if the most likely token is always taken."""
        return self.temperature <= 0 and self.mirostat == 0

    @property
    def penalises(self) -> bool:
        """True if the tokens so far change the logits."""
        active = self.repeat_penalty != 1.0 or self.frequency_penalty or self.presence_penalty
        return bool(active) and self.penalty_last_n != 0


#: parameter -> (low, high, integer). The ranges are those that llama.cpp's samplers take.
_SAMPLING_RANGES: dict[str, tuple[float | None, float | None, bool]] = {
    "temperature": (None, None, False),
    "top_k": (None, 2**31 - 1, True),
    "top_p": (0.0, 1.0, False),
    "min_p": (0.0, 1.0, False),
    "typical_p": (0.0, 1.0, False),
    "top_n_sigma": (None, None, False),
    "xtc_probability": (0.0, 1.0, False),
    "xtc_threshold": (0.0, 1.0, False),
    "dynatemp_range": (0.0, None, False),
    "dynatemp_exponent": (0.0, None, False),
    "repeat_penalty": (1e-6, None, False),
    "frequency_penalty": (-2.0, 2.0, False),
    "presence_penalty": (-2.0, 2.0, False),
    "penalty_last_n": (-1, 2**31 - 1, True),
    "dry_multiplier": (0.0, None, False),
    "dry_base": (0.0, None, False),
    "dry_allowed_length": (0, 2**31 - 1, True),
    "dry_penalty_last_n": (-1, 2**31 - 1, True),
    "adaptive_target": (None, 1.0, False),
    "adaptive_decay": (0.0, 0.99, False),
    "mirostat": (0, 2, True),
    "mirostat_tau": (0.0, None, False),
    "mirostat_eta": (0.0, None, False),
    "seed": (-(2**31), 2**64 - 1, True),
    "min_tokens": (0, None, True),
    "min_keep": (0, None, True),
}

#: Names that ``SamplingParams.samplers`` takes, in the default order.
SAMPLER_NAMES = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typical_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)


def _check_samplers(names: Sequence[str]) -> None:
    for name in names:
        if name not in SAMPLER_NAMES:
            raise ParameterError(f"samplers: {name!r} is not one of {', '.join(SAMPLER_NAMES)}")


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """When one request ends, and what it reports.

    Attributes:
        max_tokens: most tokens to generate; None is as many as the context has room for.
        stop: strings that end the reply; the earliest match wins, and is not part of the text.
        stop_tokens: token ids that end the reply, beside the vocabulary's own.
        ignore_eos: go on past end-of-generation tokens.
        logprobs: alternatives to report per token; None reports nothing, 0 the chosen token only.
        prompt_logprobs: report the prompt's tokens as well (``echo`` with ``logprobs``).
        timeout: seconds from submission, or None.
        stopping_criteria: called after every token.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: bool = False
    timeout: float | None = None
    stopping_criteria: tuple[StoppingCriteria, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            check_number("max_tokens", self.max_tokens, 0, integer=True)
        if self.logprobs is not None:
            check_number("logprobs", self.logprobs, 0, integer=True)
        if self.timeout is not None:
            check_number("timeout", self.timeout, 0)
        for text in self.stop:
            if not isinstance(text, str):
                raise ParameterTypeError(f"stop: {shown(text)} must be a string")
            if not text:
                raise ParameterError("stop: the empty string would end every reply at once")
            if len(text) > MAX_STOP_LENGTH:
                raise ParameterError(
                    f"a stop string has {len(text)} characters; at most {MAX_STOP_LENGTH} are "
                    "allowed"
                )
