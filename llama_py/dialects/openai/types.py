"""The shapes of OpenAI's completions API, with llama-cpp-python's names for them.

Beyond OpenAI: ``timings`` (milliseconds and rates, as llama.cpp's server reports them) and
``reasoning_content``. ``system_fingerprint`` names the build that computed a reply. Annotations are
evaluated here, so that ``__required_keys__`` is right.
"""

from typing import Any, Literal

from typing_extensions import NotRequired, TypedDict

__all__ = [
    "ChatCompletion",
    "ChatCompletionChunk",
    "ChatCompletionChunkChoice",
    "ChatCompletionDelta",
    "ChatCompletionFunctionCall",
    "ChatCompletionLogprobToken",
    "ChatCompletionLogprobs",
    "ChatCompletionMessageToolCall",
    "ChatCompletionMessageToolCallChunk",
    "ChatCompletionResponseChoice",
    "ChatCompletionResponseMessage",
    "ChatCompletionTopLogprobToken",
    "Completion",
    "CompletionChoice",
    "CompletionChunk",
    "CompletionLogprobs",
    "CompletionTokensDetails",
    "CompletionUsage",
    "CreateChatCompletionResponse",
    "CreateChatCompletionStreamResponse",
    "CreateCompletionResponse",
    "CreateCompletionStreamResponse",
    "CreateEmbeddingResponse",
    "Embedding",
    "EmbeddingUsage",
    "FinishReason",
    "PromptTokensDetails",
    "Timings",
]

#: ``"error"`` and ``"cancelled"`` are ours: a reply that failed is never reported as stopped.
FinishReason = Literal["stop", "length", "tool_calls", "function_call", "error", "cancelled"]


class PromptTokensDetails(TypedDict):
    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: int


class CompletionUsage(TypedDict):
    """Counts of tokens. ``cached_tokens`` of the prompt did not have to be evaluated."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: NotRequired[PromptTokensDetails]
    completion_tokens_details: NotRequired[CompletionTokensDetails]


class Timings(TypedDict):
    """Durations in milliseconds, rates in tokens per second; the names are llama.cpp's.

    ``cache_n`` tokens of the prompt were reused, ``prompt_n`` evaluated, ``predicted_n`` generated.
    Rates of the reply do not count its first token, which comes of the last step of the prompt;
    they are 0 for a reply of one token. With speculative decoding, ``draft_n`` were drafted, and
    ``draft_n_accepted`` were right.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: NotRequired[int]
    draft_n_accepted: NotRequired[int]


# ---- completions -----------------------------------------------------------------------------


class CompletionLogprobs(TypedDict):
    """Lists of equal length, one entry per token.

    A token that is not valid UTF-8 by itself is shown as ``bytes:\\xe4\\xbd``. ``text_offset`` is
    the number of characters before the token, counted from the beginning of the prompt.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    text_offset: list[int]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(TypedDict):
    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class CreateCompletionResponse(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: CompletionUsage
    timings: NotRequired[Timings]


class CreateCompletionStreamResponse(TypedDict):
    """A chunk. With ``include_usage`` each has a ``usage``, which is None but for the last one."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: NotRequired[CompletionUsage | None]
    timings: NotRequired[Timings]


# ---- chat ------------------------------------------------------------------------------------


class ChatCompletionTopLogprobToken(TypedDict):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatCompletionLogprobToken(ChatCompletionTopLogprobToken):
    top_logprobs: list[ChatCompletionTopLogprobToken]


class ChatCompletionLogprobs(TypedDict):
    content: list[ChatCompletionLogprobToken] | None
    refusal: list[ChatCompletionLogprobToken] | None


class ChatCompletionFunctionCall(TypedDict):
    name: str
    arguments: str


class ChatCompletionMessageToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: ChatCompletionFunctionCall


class ChatCompletionResponseMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ChatCompletionMessageToolCall]]
    function_call: NotRequired[ChatCompletionFunctionCall]


class ChatCompletionResponseChoice(TypedDict):
    index: int
    message: ChatCompletionResponseMessage
    logprobs: ChatCompletionLogprobs | None
    finish_reason: FinishReason | None


class CreateChatCompletionResponse(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatCompletionResponseChoice]
    usage: CompletionUsage
    timings: NotRequired[Timings]


class ChatCompletionFunctionCallChunk(TypedDict, total=False):
    name: str
    arguments: str


class ChatCompletionMessageToolCallChunk(TypedDict):
    """``id``, ``type`` and the name are in the first chunk of a call only."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: ChatCompletionFunctionCallChunk


class ChatCompletionDelta(TypedDict, total=False):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: str
    tool_calls: list[ChatCompletionMessageToolCallChunk]
    function_call: ChatCompletionFunctionCallChunk


class ChatCompletionChunkChoice(TypedDict):
    index: int
    delta: ChatCompletionDelta
    logprobs: ChatCompletionLogprobs | None
    finish_reason: FinishReason | None


class CreateChatCompletionStreamResponse(TypedDict):
    """A chunk. With ``include_usage`` each has a ``usage``, which is None but for the last one."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatCompletionChunkChoice]
    usage: NotRequired[CompletionUsage | None]
    timings: NotRequired[Timings]


class EmbeddingUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    """The vector of an input; one for each of its tokens, if the model does not pool them."""

    index: int
    object: Literal["embedding"]
    embedding: list[float] | list[list[float]]


class CreateEmbeddingResponse(TypedDict):
    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage


#: Any decoded JSON value.
JsonType = None | int | float | str | bool | list[Any] | dict[str, Any]

# ---- llama-cpp-python's other names for the same shapes ---------------------------------------

Completion = CreateCompletionResponse
CompletionChunk = CreateCompletionStreamResponse
ChatCompletion = CreateChatCompletionResponse
ChatCompletionChunk = CreateChatCompletionStreamResponse
