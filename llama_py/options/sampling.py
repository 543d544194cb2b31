"""The options that say how a token is chosen."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from typing_extensions import TypedDict

from llama_py.options.marks import (
    Default,
    Doc,
    Flag,
    Ignored,
    Range,
    Reads,
    SameAs,
    WithoutDefault,
)
from llama_py.options.values import (
    RANDOM_SEED,
    TEXTS,
    CompilesToGrammar,
    LogitsProcessor,
    StoppingCriteria,
    as_is,
    read_bias,
    read_breakers,
    read_samplers,
)

__all__ = ["CriteriaOptions", "GenerateOptions", "SampleOptions", "SamplingOptions"]

_LARGEST = 2**31 - 1


class SamplingOptions(TypedDict, total=False):
    """How a token is chosen; the steps and their order are llama.cpp's (``common/sampling.h``)."""

    temperature: Annotated[
        float | None,
        Default(0.8, create_chat_completion=0.2),
        Flag("--temp", metavar="T"),
        Doc(
            "How far the choice departs from the most likely token; 0 or less always takes that "
            "([what it depends on](performance.md#what-a-result-depends-on))."
        ),
    ]
    top_k: Annotated[
        int | None,
        Range(None, _LARGEST),
        Default(40),
        Flag("--top-k", metavar="K"),
        Doc("Only the K most likely tokens; 0 or less is all of them."),
    ]
    top_p: Annotated[
        float | None,
        Range(0.0, 1.0),
        Default(0.95),
        Flag("--top-p", metavar="P"),
        Doc("Only the most likely tokens that make up this probability; 1 is all of them."),
    ]
    min_p: Annotated[
        float | None,
        Range(0.0, 1.0),
        Default(0.05),
        Flag("--min-p", metavar="P"),
        Doc("Only tokens at least P times as likely as the most likely one; 0 is all of them."),
    ]
    typical_p: Annotated[
        float | None,
        Range(0.0, 1.0),
        Default(1.0),
        Doc("Locally typical sampling: the probability to keep; 1 is off."),
    ]
    top_n_sigma: Annotated[
        float | None,
        Default(-1.0),
        Doc("Only logits within N standard deviations of the largest; 0 or less is off."),
    ]
    xtc_probability: Annotated[
        float | None,
        Range(0.0, 1.0),
        Default(0.0),
        Doc("How often XTC removes the likeliest tokens but one; 0 is off."),
    ]
    xtc_threshold: Annotated[
        float | None,
        Range(0.0, 1.0),
        Default(0.1),
        Doc("Tokens from this probability on are those that XTC may remove."),
    ]
    dynatemp_range: Annotated[
        float | None,
        Range(0.0),
        Default(0.0),
        Doc("The temperature varies by so much around `temperature`, with the entropy; 0 is off."),
    ]
    dynatemp_exponent: Annotated[
        float | None,
        Range(0.0),
        Default(1.0),
        Doc("How the entropy becomes a temperature."),
    ]
    repeat_penalty: Annotated[
        float | None,
        Range(1e-6),
        Default(1.0),
        Flag("--repeat-penalty", metavar="X"),
        Doc("Divides the logits of tokens that occurred, in prompt or reply; 1 means no penalty."),
    ]
    frequency_penalty: Annotated[
        float | None,
        Range(-2.0, 2.0),
        Default(0.0),
        Flag("--frequency-penalty", metavar="X"),
        Doc("Taken from a logit for each time that its token occurred."),
    ]
    presence_penalty: Annotated[
        float | None,
        Range(-2.0, 2.0),
        Default(0.0),
        Flag("--presence-penalty", metavar="X"),
        Doc("Taken from a logit once if its token occurred."),
    ]
    penalty_last_n: Annotated[
        int | None,
        Range(-1, _LARGEST),
        Default(64),
        WithoutDefault("`last_n_tokens_size` of the model (64)"),
        Doc(
            "How many tokens of prompt and reply the three penalties look back; -1 is the whole "
            "context, 0 none."
        ),
    ]
    dry_multiplier: Annotated[
        float | None,
        Range(0.0),
        Default(0.0),
        Doc("Strength of DRY, which penalises the continuation of repeated sequences; 0 is off."),
    ]
    dry_base: Annotated[
        float | None,
        Range(0.0),
        Default(1.75),
        Doc("How fast the penalty of DRY grows with the length of the repetition."),
    ]
    dry_allowed_length: Annotated[
        int | None,
        Range(0, _LARGEST),
        Default(2),
        Doc("Repetitions up to this many tokens are not penalised by DRY."),
    ]
    dry_penalty_last_n: Annotated[
        int | None,
        Range(-1, _LARGEST),
        Default(-1),
        Doc("How many tokens DRY looks back; -1 is the whole context, 0 none."),
    ]
    dry_sequence_breakers: Annotated[
        str | Sequence[str] | None,
        Reads(read_breakers, TEXTS),
        Default(("\n", ":", '"', "*")),
        Doc("Texts at which a repetition ends for DRY, at most 64."),
    ]
    adaptive_target: Annotated[
        float | None,
        Range(None, 1.0),
        Default(-1.0),
        Doc("Adaptive-p: the probability that chosen tokens should have on average; below 0: off."),
    ]
    adaptive_decay: Annotated[
        float | None,
        Range(0.0, 0.99),
        Default(0.9),
        Doc("How slowly adaptive-p forgets the tokens before."),
    ]
    mirostat_mode: Annotated[
        int | None,
        Range(0, 2),
        Default(0),
        Doc("Mirostat 1 or 2, in place of the steps from top-k to min-p; 0 is off."),
    ]
    mirostat_tau: Annotated[
        float | None,
        Range(0.0),
        Default(5.0),
        Doc("The surprise, in bits, that Mirostat aims at."),
    ]
    mirostat_eta: Annotated[
        float | None,
        Range(0.0),
        Default(0.1),
        Doc("How fast Mirostat adapts."),
    ]
    seed: Annotated[
        int | None,
        Range(-(2**31), 2**64 - 1),
        Default(RANDOM_SEED),
        WithoutDefault("`seed` of the model (random)"),
        Flag("--seed", metavar="N", help="of the random numbers"),
        Doc(
            "Of the random numbers; the same seed gives the same reply to the same logits "
            "([more](performance.md#what-a-result-depends-on)). 4294967295 and -1 choose one."
        ),
    ]
    logit_bias: Annotated[
        Mapping[int, float] | Mapping[str, float] | None,
        Reads(
            read_bias,
            {"type": "object", "additionalProperties": {"type": ["number", "boolean"]}},
        ),
        Doc('Token id → what is added to its logit; `float("-inf")` or False forbids the token.'),
    ]
    logits_processor: Annotated[
        LogitsProcessor | Sequence[LogitsProcessor] | None,
        Doc(
            "Functions of (tokens, logits) that return the logits to use "
            "([what they may do](threads.md#callbacks))."
        ),
    ]
    samplers: Annotated[
        str | Sequence[str] | None,
        Reads(read_samplers, TEXTS),
        WithoutDefault("llama.cpp's"),
        Doc(
            "The steps to take and their order, by name: a list, or a text with semicolons "
            '(`"top_k;top_p;temperature"`), at most 64.'
        ),
    ]
    min_tokens: Annotated[
        int | None,
        Range(0),
        Default(0),
        Doc("The reply does not end before it has this many tokens."),
    ]
    min_keep: Annotated[
        int | None,
        Range(0),
        Default(1),
        Doc("Each step that leaves out unlikely tokens keeps at least this many."),
    ]
    tfs_z: Annotated[
        float | None,
        Doc("Without effect: llama.cpp has no tail-free sampling any more. Use `min_p`."),
    ]


class CriteriaOptions(TypedDict, total=False):
    """Conditions on the tokens of a reply."""

    grammar: Annotated[
        CompilesToGrammar | str | None,
        # Compiled by whoever uses it, for the vocabulary that is loaded.
        Reads(as_is, {"type": "string"}),
        Flag("--grammar", metavar="FILE", help="GBNF rules that the reply has to follow"),
        Doc(
            "A `LlamaGrammar`, or GBNF rules as text, that the reply has to follow "
            "([structured output](structured-output.md))."
        ),
    ]
    stopping_criteria: Annotated[
        StoppingCriteria | Sequence[StoppingCriteria] | None,
        Doc("Functions of (tokens, logits), called after every token; True ends the reply."),
    ]


class SampleOptions(SamplingOptions, total=False):
    """Options of ``Llama.sample``."""

    temp: Annotated[float | None, SameAs("temperature"), Doc("`temperature`.")]
    penalize_nl: Annotated[bool | None, Ignored(), Doc("Without effect.")]


class GenerateOptions(SampleOptions, CriteriaOptions, total=False):
    """Options of ``Llama.generate``."""
