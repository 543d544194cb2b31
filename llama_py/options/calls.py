"""The options of completions and chats."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from typing_extensions import TypedDict

from llama_py.options.drafters import Drafter, Speculative, read_call_speculative
from llama_py.options.marks import (
    Default,
    Doc,
    Empty,
    Flag,
    Ignored,
    NoneCounts,
    Range,
    Reads,
    SameAs,
    WithoutDefault,
)
from llama_py.options.sampling import CriteriaOptions, SamplingOptions
from llama_py.options.values import (
    LIST_OF_OBJECTS,
    TEXTS,
    ChatPolicy,
    Effort,
    SpecialTokens,
    as_is,
    read_policy,
    read_stops,
    read_stream_options,
    read_token_ids,
)

__all__ = [
    "MAX_CHOICES",
    "ChatOptions",
    "CompletionOptions",
    "PromptOptions",
    "ReplyOptions",
    "RequestOptions",
    "TurnOptions",
]

#: Most replies to generate for one prompt, and most prompts in one call.
MAX_CHOICES = 128


class ReplyOptions(SamplingOptions, CriteriaOptions, total=False):
    """How a reply comes about and when it ends: options of completions, chats and sessions."""

    max_tokens: Annotated[
        int | None,
        NoneCounts(),
        Default(None, create_completion=16),
        Flag("-n", "--max-tokens", metavar="N"),
        Doc(
            "Most tokens to generate. None, 0 and less are as many as the context has room for; "
            "with `echo`, and in the server, 0 is none."
        ),
    ]
    stop: Annotated[
        str | Sequence[str] | None,
        Reads(read_stops, TEXTS),
        Flag("--stop", metavar="TEXT"),
        Doc("Texts that end the reply, and are not part of it; the earliest one counts."),
    ]
    stop_token_ids: Annotated[
        Sequence[int] | set[int] | frozenset[int] | None,
        Reads(read_token_ids, {"type": "array", "items": {"type": "integer", "minimum": 0}}),
        Doc("Tokens that end the reply, beside the vocabulary's own."),
    ]
    ignore_eos: Annotated[
        bool | None,
        Default(False),
        Doc("Go on past the tokens that end a reply."),
    ]
    timeout: Annotated[
        float | None,
        Range(0.0),
        Doc("Seconds for the whole call; `GenerationTimeout` carries what there is by then."),
    ]
    priority: Annotated[
        int | None,
        Default(0),
        Doc("Smaller goes first when requests wait."),
    ]
    speculative: Annotated[
        Speculative | Drafter | Sequence[Drafter] | str | bool | None,
        Reads(read_call_speculative),
        WithoutDefault("that of the model"),
        Doc(
            "Drafters for speculative decoding; False disables it "
            "([speculative decoding](speculative.md))."
        ),
    ]
    reuse: Annotated[
        bool | None,
        Default(True),
        Doc(
            "False: nothing that is in memory is taken for this call, so that its whole prompt is "
            "evaluated ([why](reuse.md#a-call-without-reuse)); other conversations stay there, "
            "unless its reply needs their room."
        ),
    ]
    on_progress: Annotated[
        Callable[[int, int], Any] | None,
        Doc(
            "Called with (tokens done, tokens) while the prompt is evaluated; first with those "
            "that are reused."
        ),
    ]
    model: Annotated[
        str | None,
        WithoutDefault("the path of the model"),
        Doc("The name that the response gives."),
    ]
    metadata: Annotated[Any, Ignored(), Doc("OpenAI's; without effect.")]
    service_tier: Annotated[Any, Ignored(), Doc("OpenAI's; without effect.")]
    store: Annotated[Any, Ignored(), Doc("OpenAI's; without effect.")]


class RequestOptions(TypedDict, total=False):
    """Options of completions and chats that the turns of a session set themselves."""

    n: Annotated[
        int | None,
        Range(1, MAX_CHOICES),
        Default(1),
        Doc("Replies to generate, side by side."),
    ]
    session_id: Annotated[
        str | None,
        Doc("Names the conversation in `cache_info` and `memory_report()`."),
    ]
    user: Annotated[str | None, Empty(), Doc("Used as `session_id` if there is none.")]
    stream_options: Annotated[
        Mapping[str, bool] | None,
        Reads(
            read_stream_options,
            {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
        ),
        Doc('With `stream=True`: `{"include_usage": True}` adds a last chunk with the usage.'),
    ]


class CompletionOptions(ReplyOptions, RequestOptions, total=False):
    """Options of ``Llama.create_completion``, beside ``stream``."""

    echo: Annotated[bool | None, Default(False), Doc("The text begins with the prompt.")]
    suffix: Annotated[
        str | None,
        Empty(),
        Doc("Fill in the middle: what comes after the text. Needs a model with infill tokens."),
    ]
    logprobs: Annotated[
        int | None,
        Range(0),
        Doc("Report log-probabilities, and this many alternatives for each token."),
    ]
    best_of: Annotated[
        int | None,
        Range(1, MAX_CHOICES),
        WithoutDefault("`n`"),
        Doc("Number of replies to generate; the `n` most likely are returned."),
    ]


class PromptOptions(TypedDict, total=False):
    """The options of a chat that its prompt depends on."""

    tools: Annotated[
        Sequence[Mapping[str, Any]] | None,
        Reads(as_is, LIST_OF_OBJECTS),
        Doc(
            "Functions that the model may call, in OpenAI's form "
            "([tools](chat.md#tools-function-calling))."
        ),
    ]
    tool_choice: Annotated[
        Literal["auto", "none", "required"] | str | Mapping[str, Any] | None,
        Reads(as_is, {"type": ["string", "object"]}),
        WithoutDefault('`"auto"`'),
        Doc(
            '`"auto"`, `"none"`, `"required"`, `{"type": "function", "function": {"name": …}}`, or '
            '`{"type": "allowed_tools", "allowed_tools": {"mode": …, "tools": […]}}`: only those '
            "may be called, and the prompt stays as it is with all of them."
        ),
    ]
    parallel_tool_calls: Annotated[
        bool | None,
        WithoutDefault("what the template supports"),
        Doc(
            "Whether a reply may have several calls; a named tool is called once, unless this is "
            "True."
        ),
    ]
    json_calls: Annotated[
        bool | None,
        WithoutDefault("that of the model"),
        Doc(
            "A reply that as a whole is a call in plain JSON becomes that call "
            "([more](chat.md#calls-in-plain-json))."
        ),
    ]
    functions: Annotated[
        Sequence[Mapping[str, Any]] | None,
        Reads(as_is, LIST_OF_OBJECTS),
        Doc("The form of `tools` before 2024."),
    ]
    function_call: Annotated[
        str | Mapping[str, Any] | None,
        Reads(as_is, {"type": ["string", "object"]}),
        Doc("The form of `tool_choice` before 2024."),
    ]
    response_format: Annotated[
        Mapping[str, Any] | None,
        Reads(as_is, {"type": "object"}),
        Doc(
            "A JSON schema that the reply has to follow "
            "([structured output](structured-output.md))."
        ),
    ]
    chat_template_kwargs: Annotated[
        Mapping[str, Any] | None,
        Doc("Further variables for the template."),
    ]
    enable_thinking: Annotated[
        bool | None,
        WithoutDefault("the template's"),
        Doc("Whether a reasoning model reasons."),
    ]
    reasoning_effort: Annotated[
        Effort | None,
        WithoutDefault("the template's"),
        Doc('For templates that know it; `"none"` turns reasoning off.'),
    ]
    reasoning_budget: Annotated[
        int | None,
        Range(-1),
        Doc("Maximum reasoning tokens; 0 disables reasoning, -1 means no limit."),
    ]
    reasoning_format: Annotated[
        Literal["auto", "none", "deepseek", "deepseek-legacy"] | None,
        Default("auto"),
        Doc('`"none"` leaves the reasoning in the content.'),
    ]
    continue_final_message: Annotated[
        bool | Literal["content", "reasoning_content"] | None,
        Reads(as_is, {"enum": [True, False, "content", "reasoning_content"]}),
        Default(False),
        Doc(
            "The last message is the beginning of the reply, which goes on with it. In the server, "
            "a message of the assistant at the end is one unless this says False."
        ),
    ]
    add_generation_prompt: Annotated[
        bool | None,
        Default(True),
        Doc("The prompt ends with the opening of an assistant message."),
    ]
    special_tokens_in_content: Annotated[
        SpecialTokens | None,
        WithoutDefault("that of the model"),
        Doc(
            "The texts of special tokens in user and tool messages are text, tokens, or an error "
            "([prompt injection](prompt-injection.md))."
        ),
    ]


class TurnOptions(ReplyOptions, PromptOptions, total=False):
    """Options of a turn of a ``ChatSession``: those of a chat that the session does not set."""

    max_completion_tokens: Annotated[int | None, SameAs("max_tokens"), Doc("`max_tokens`.")]
    logprobs: Annotated[
        bool | None,
        Default(False),
        Doc("Report log-probabilities ([more](chat.md#log-probabilities))."),
    ]
    top_logprobs: Annotated[
        int | None,
        Range(0),
        Default(0),
        Doc("With `logprobs`: alternatives to report for each token."),
    ]
    overflow: Annotated[
        ChatPolicy | None,
        Reads(read_policy),
        NoneCounts(),
        WithoutDefault("that of the model"),
        Doc("What to leave out when the conversation is too long ([errors](errors.md))."),
    ]


class ChatOptions(TurnOptions, RequestOptions, total=False):
    """Options of ``Llama.create_chat_completion``, beside ``stream``."""
