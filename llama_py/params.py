"""Options as frozen dataclasses, checked when they are made.

``ModelParams`` and ``ContextParams`` mirror the C structs of the same names, with the defaults that
a person wants; ``SamplingParams`` is one request's way from logits to a token; ``GenerationParams``
says when that request ends and what it reports. A value out of range raises ``ParameterError`` that
names the parameter and the range, before anything native is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

from llama_py.errors import ParameterError, ParameterTypeError, shown
from llama_py.options import ContextOptions, ModelOptions, SamplingOptions, Table
from llama_py.options.checks import check_bool, check_number
from llama_py.options.values import (
    RANDOM_SEED,
    SAMPLER_NAMES,
    LogitsProcessor,
    StoppingCriteria,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "RANDOM_SEED",
    "SAMPLER_NAMES",
    "ContextParams",
    "GenerationParams",
    "GrammarSpec",
    "LogitsProcessor",
    "ModelParams",
    "ReplyWatch",
    "SamplingParams",
    "StoppingCriteria",
    "TokenConstraint",
    "check_bool",
    "check_number",
]


class TokenConstraint(Protocol):
    """Restricts the tokens of one generated sequence (for example to a JSON schema)."""

    def mask(self, logits: NDArray[np.float32]) -> None:
        """Set the logits of forbidden tokens to ``-inf``, in place. Shape ``(n_vocab,)``."""

    def accept(self, token: int) -> None:
        """Advance past a sampled token."""

    @property
    def finished(self) -> bool:
        """True when only an end-of-generation token may follow."""


class ReplyWatch(Protocol):
    """Follows one reply for a grammar sampler, which sees no more than its rules."""

    @property
    def inside(self) -> bool:
        """True while the reply is in its reasoning."""

    @property
    def ending(self) -> tuple[int, ...]:
        """The tokens with which the reasoning just ended."""

    def accept(self, token: int) -> None:
        """Advance past a sampled token."""

    def excess(self, token: int) -> bool:
        """Whether a token is too much of what the rules do not bound."""

    def trim(self, row: NDArray[np.float32], own: int) -> None:
        """Forbid what the rules allow for other replies, ``own`` being the model's own token."""


#: Characters of one stop string. As much text as the longest has may be held back from a stream.
MAX_STOP_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """The text and the settings of a grammar sampler of llama.cpp.

    Attributes:
        gbnf: the rules, in GBNF.
        root: the start symbol.
        lazy: constrain only after one of the triggers appeared.
        trigger_patterns: regular expressions matched from the start of the output.
        trigger_tokens: token ids.
        prefill: text that the grammar takes as already written (the opening of a chat reply).
        watch: makes what follows each reply, from the vocabulary. A lazy grammar does not look at
            reasoning.
        first: mask every row before a token is drawn (``grammar_first`` of llama.cpp's
            ``common_sampler_sample``), which costs milliseconds for each. Otherwise a token is
            drawn, and again from the masked row if the grammar refuses it. A seed draws
            differently.
    """

    gbnf: str
    root: str = "root"
    lazy: bool = False
    trigger_patterns: tuple[str, ...] = ()
    trigger_tokens: tuple[int, ...] = ()
    prefill: str = ""
    watch: Callable[[Any], ReplyWatch] | None = field(default=None, compare=False)
    first: bool = False


# ---- records ---------------------------------------------------------------------------------

#: Ranges and defaults are those of the options.
_MODEL, _CONTEXT = Table("Llama", ModelOptions), Table("Llama", ContextOptions)
_SAMPLING = Table("sample", SamplingOptions)
_M, _C, _S = _MODEL.defaults(), _CONTEXT.defaults(), _SAMPLING.defaults()
#: Fields of ``SamplingParams`` -> the options that they have another name as.
_OPTION_NAMES = {"mirostat": "mirostat_mode", "logits_processors": "logits_processor"}


#: Record -> name, default and reader of each field that is an option; filled at first use.
_READERS: dict[str, tuple[tuple[str, Any, Callable[[Any], Any]], ...]] = {}


def _read_fields(record: Any, table: Table[Any]) -> None:
    """Check the fields of a record that differ from their defaults, as options are checked."""
    kind = type(record)
    readers = _READERS.get(kind.__name__)
    if readers is None:
        named = [(each, _OPTION_NAMES.get(each.name, each.name)) for each in fields(kind)]
        made = tuple(
            (each.name, each.default, table[name].read)
            for each, name in named
            if name in table.options
        )
        readers = _READERS.setdefault(kind.__name__, made)
    for name, default, read in readers:
        value = getattr(record, name)
        if value is not default and value != {}:  # a mapping's default is an empty one of its own
            object.__setattr__(record, name, read(value))


@dataclass(frozen=True, slots=True)
class ModelParams:
    """How a model file is loaded (``llama_model_params``).

    Attributes:
        n_gpu_layers: layers to keep on the GPU; -1 is all of them, or with ``Llama`` as many as
            fit.
        n_cpu_moe: layers, the first ones, whose experts stay in the machine's memory; -1 is all.
        split_mode: how several GPUs share the model (0 none, 1 layer, 2 row, 3 tensor).
        main_gpu: the GPU used when ``split_mode`` is 0.
        tensor_split: proportion for each GPU, or None.
        devices: the names of those to use; None: all GPUs, and the RPC servers that were added.
        rpc_servers: endpoints, ``host:port``, to use beside the GPUs of this machine.
        override_tensors: regular expressions for names of tensors, to the devices that have them.
        vocab_only: load the vocabulary and no weights.
        use_mmap: map the file instead of reading it.
        use_mlock: keep the weights from being swapped out.
        repack: arrange quantized weights for the CPU, which copies them out of the mapped file.
        kv_overrides: metadata values to replace: ``{key: bool | int | float | str}``.
        check_tensors: look for NaN and Inf in the weights while loading.
        load_mtp: load the next-token heads as well.
    """

    n_gpu_layers: int = _M["n_gpu_layers"]
    n_cpu_moe: int = _M["n_cpu_moe"]
    split_mode: int = _M["split_mode"]
    main_gpu: int = _M["main_gpu"]
    tensor_split: tuple[float, ...] | None = None
    devices: tuple[str, ...] | None = None
    rpc_servers: tuple[str, ...] | None = None
    override_tensors: Mapping[str, str] | None = None
    vocab_only: bool = _M["vocab_only"]
    use_mmap: bool = _M["use_mmap"]
    use_mlock: bool = _M["use_mlock"]
    repack: bool = _M["repack"]
    kv_overrides: Mapping[str, bool | int | float | str] | None = None
    check_tensors: bool = _M["check_tensors"]
    load_mtp: bool = False

    def __post_init__(self) -> None:
        _read_fields(self, _MODEL)
        check_bool("load_mtp", self.load_mtp)

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> ModelParams:
        """Those of the options of ``Llama`` that are about loading the model.

        Raises:
            ParameterError: an option is given by two names.
        """
        names = [each.name for each in fields(cls) if each.name in arguments]
        given = {name: arguments[name] for name in names}
        if arguments.get("cpu_moe") is not None:
            if given.get("n_cpu_moe"):
                raise ParameterError("cpu_moe is another name of n_cpu_moe: pass one of them")
            given["n_cpu_moe"] = _MODEL["cpu_moe"].read(arguments["cpu_moe"])
        return cls(**given)


@dataclass(frozen=True, slots=True)
class ContextParams:
    """How a context is made (``llama_context_params``).

    Attributes:
        n_ctx: cells of all sequences together; 0 is the model's own length up to a memory limit.
        n_batch: most tokens in one ``llama_decode``.
        n_ubatch: most tokens computed at once.
        n_seq_max: sequences (conversations) that can be in memory side by side.
        n_threads, n_threads_batch: threads for one token / for many; None is the physical cores
            that this process may use, and one for a tiny model.
        flash_attn: True, False, or None for automatic.
        swa_full: keep a full-size cache for sliding-window layers (large, and not needed here).
        type_k, type_v: ggml types of the KV cache (for example 8 for Q8_0); None is F16.
        kv_unified: all sequences share one buffer of cells; False: each has its own, of
            ``n_ctx / n_seq_max`` cells (rounded up to 256). Of no account where there are no cells
            (recurrent models), or one sequence.
        mtp: the context computes the model's next-token heads, and not the model itself.
        moe_cache_size: bytes on the GPUs for experts of the machine's memory that were used last.
    """

    n_ctx: int = _C["n_ctx"]
    n_batch: int = _C["n_batch"]
    n_ubatch: int = _C["n_ubatch"]
    n_seq_max: int = _C["n_seq_max"]
    n_threads: int | None = None
    n_threads_batch: int | None = None
    rope_scaling_type: int = _C["rope_scaling_type"]
    pooling_type: int = _C["pooling_type"]
    attention_type: int = _C["attention_type"]
    rope_freq_base: float = _C["rope_freq_base"]
    rope_freq_scale: float = _C["rope_freq_scale"]
    yarn_ext_factor: float = _C["yarn_ext_factor"]
    yarn_attn_factor: float = _C["yarn_attn_factor"]
    yarn_beta_fast: float = _C["yarn_beta_fast"]
    yarn_beta_slow: float = _C["yarn_beta_slow"]
    yarn_orig_ctx: int = _C["yarn_orig_ctx"]
    embeddings: bool = False
    offload_kqv: bool = _C["offload_kqv"]
    op_offload: bool = _C["op_offload"]
    flash_attn: bool | None = None
    swa_full: bool = _C["swa_full"]
    kv_unified: bool = _C["kv_unified"]
    mtp: bool = False
    no_perf: bool = _C["no_perf"]
    type_k: int | None = None
    type_v: int | None = None
    moe_cache_size: int = _C["moe_cache_size"]

    def __post_init__(self) -> None:
        _read_fields(self, _CONTEXT)
        check_bool("embeddings", self.embeddings)
        check_bool("mtp", self.mtp)


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

    temperature: float = _S["temperature"]
    top_k: int = _S["top_k"]
    top_p: float = _S["top_p"]
    min_p: float = _S["min_p"]
    typical_p: float = _S["typical_p"]
    top_n_sigma: float = _S["top_n_sigma"]
    xtc_probability: float = _S["xtc_probability"]
    xtc_threshold: float = _S["xtc_threshold"]
    dynatemp_range: float = _S["dynatemp_range"]
    dynatemp_exponent: float = _S["dynatemp_exponent"]
    repeat_penalty: float = _S["repeat_penalty"]
    frequency_penalty: float = _S["frequency_penalty"]
    presence_penalty: float = _S["presence_penalty"]
    penalty_last_n: int = _S["penalty_last_n"]
    dry_multiplier: float = _S["dry_multiplier"]
    dry_base: float = _S["dry_base"]
    dry_allowed_length: int = _S["dry_allowed_length"]
    dry_penalty_last_n: int = _S["dry_penalty_last_n"]
    dry_sequence_breakers: tuple[str, ...] = _S["dry_sequence_breakers"]
    adaptive_target: float = _S["adaptive_target"]
    adaptive_decay: float = _S["adaptive_decay"]
    mirostat: int = _S["mirostat_mode"]
    mirostat_tau: float = _S["mirostat_tau"]
    mirostat_eta: float = _S["mirostat_eta"]
    seed: int = _S["seed"]
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: GrammarSpec | None = None
    constraint: Callable[[], TokenConstraint] | None = None
    logits_processors: tuple[LogitsProcessor, ...] = ()
    samplers: tuple[str, ...] | None = None
    min_tokens: int = _S["min_tokens"]
    min_keep: int = _S["min_keep"]

    def __post_init__(self) -> None:
        _read_fields(self, _SAMPLING)

    @property
    def greedy(self) -> bool:
        """True if the most likely token is always taken."""
        return self.temperature <= 0 and self.mirostat == 0

    @property
    def penalises(self) -> bool:
        """True if the tokens so far change the logits."""
        active = self.repeat_penalty != 1.0 or self.frequency_penalty or self.presence_penalty
        return bool(active) and self.penalty_last_n != 0


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
