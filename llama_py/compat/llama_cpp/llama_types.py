# ruff: noqa: UP007 - "X | Y" with the name of a class in quotes is an error before Python 3.14
"""Requests and replies of OpenAI's API, as types, under llama-cpp-python's names."""

from typing import Any, Literal, Union

from typing_extensions import NotRequired, TypedDict

JsonType = Union[None, int, str, bool, list[Any], dict[str, Any]]

# ---- embeddings ------------------------------------------------------------------------------


class EmbeddingUsage(TypedDict):
    """Tokens of the texts of one call."""

    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    """The embedding of one text, or of each of its tokens."""

    index: int
    object: str
    embedding: list[float] | list[list[float]]


class CreateEmbeddingResponse(TypedDict):
    """The return value of ``create_embedding``."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage


# ---- completions -----------------------------------------------------------------------------


class CompletionLogprobs(TypedDict):
    """Log-probabilities, one member of each list for each token."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(TypedDict):
    """One continuation of a prompt."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class CompletionUsage(TypedDict):
    """Tokens of one call."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CreateCompletionResponse(TypedDict):
    """The return value of ``create_completion``, and a chunk of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[CompletionUsage]


# ---- replies of chats ------------------------------------------------------------------------


class ChatCompletionResponseFunctionCall(TypedDict):
    """The call of a function; ``arguments`` is JSON."""

    name: str
    arguments: str


class ChatCompletionMessageToolCallFunction(TypedDict):
    """The function of a tool call; ``arguments`` is JSON."""

    name: str
    arguments: str


class ChatCompletionMessageToolCall(TypedDict):
    """A tool call of a reply."""

    id: str
    type: Literal["function"]
    function: ChatCompletionMessageToolCallFunction


ChatCompletionMessageToolCalls = list[ChatCompletionMessageToolCall]


class ChatCompletionResponseMessage(TypedDict):
    """The message of a reply."""

    content: str | None
    tool_calls: NotRequired[ChatCompletionMessageToolCalls]
    role: Literal["assistant", "function"]
    function_call: NotRequired[ChatCompletionResponseFunctionCall]


class ChatCompletionTopLogprobToken(TypedDict):
    """A token that could have come, and its log-probability."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatCompletionLogprobToken(ChatCompletionTopLogprobToken):
    """A token of a reply, its log-probability, and the most likely ones in its place."""

    top_logprobs: list[ChatCompletionTopLogprobToken]


class ChatCompletionLogprobs(TypedDict):
    """Log-probabilities of a reply."""

    content: list[ChatCompletionLogprobToken] | None
    refusal: list[ChatCompletionLogprobToken] | None


class ChatCompletionResponseChoice(TypedDict):
    """One reply to a conversation."""

    index: int
    message: ChatCompletionResponseMessage
    logprobs: ChatCompletionLogprobs | None
    finish_reason: str | None


class CreateChatCompletionResponse(TypedDict):
    """The return value of ``create_chat_completion``."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatCompletionResponseChoice]
    usage: CompletionUsage


# ---- streams of chats ------------------------------------------------------------------------


class ChatCompletionMessageToolCallChunkFunction(TypedDict):
    """A part of the function of a tool call."""

    name: str | None
    arguments: str


class ChatCompletionMessageToolCallChunk(TypedDict):
    """A part of a tool call."""

    index: int
    id: NotRequired[str]
    type: Literal["function"]
    function: ChatCompletionMessageToolCallChunkFunction


class ChatCompletionStreamResponseDeltaEmpty(TypedDict):
    """The delta of the last chunk."""


class ChatCompletionStreamResponseDeltaFunctionCall(TypedDict):
    """A part of the call of a function."""

    name: str
    arguments: str


class ChatCompletionStreamResponseDelta(TypedDict):
    """The part of the message that a chunk adds."""

    content: NotRequired[str | None]
    function_call: NotRequired[ChatCompletionStreamResponseDeltaFunctionCall | None]
    tool_calls: NotRequired[list[ChatCompletionMessageToolCallChunk] | None]
    role: NotRequired[Literal["system", "user", "assistant", "tool"] | None]


class ChatCompletionStreamResponseChoice(TypedDict):
    """A chunk of one reply."""

    index: int
    delta: ChatCompletionStreamResponseDelta | ChatCompletionStreamResponseDeltaEmpty
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"] | None
    logprobs: NotRequired[ChatCompletionLogprobs | None]


class CreateChatCompletionStreamResponse(TypedDict):
    """A chunk of the stream of ``create_chat_completion``."""

    id: str
    model: str
    object: Literal["chat.completion.chunk"]
    created: int
    choices: list[ChatCompletionStreamResponseChoice]


# ---- requests of chats -----------------------------------------------------------------------


class ChatCompletionFunction(TypedDict):
    """A function that the model may call; ``parameters`` is a JSON schema."""

    name: str
    description: NotRequired[str]
    parameters: dict[str, JsonType]


class ChatCompletionFunctions(TypedDict):
    """The same as ``ChatCompletionFunction``."""

    name: str
    description: NotRequired[str]
    parameters: dict[str, JsonType]


class ChatCompletionFunctionCallOption(TypedDict):
    """The function that has to be called."""

    name: str


class ChatCompletionRequestFunctionCallOption(TypedDict):
    """The function that has to be called."""

    name: str


ChatCompletionRequestFunctionCall = Union[
    Literal["none", "auto"], ChatCompletionRequestFunctionCallOption
]


class ChatCompletionRequestResponseFormat(TypedDict):
    """The form that the reply has to have."""

    type: Literal["text", "json_object"]
    schema: NotRequired[JsonType]


class ChatCompletionRequestMessageContentPartText(TypedDict):
    """A text in a message."""

    type: Literal["text"]
    text: str


class ChatCompletionRequestMessageContentPartImageImageUrl(TypedDict):
    """Where an image is."""

    url: str
    detail: NotRequired[Literal["auto", "low", "high"]]


class ChatCompletionRequestMessageContentPartImage(TypedDict):
    """An image in a message."""

    type: Literal["image_url"]
    image_url: str | ChatCompletionRequestMessageContentPartImageImageUrl


ChatCompletionRequestMessageContentPart = Union[
    ChatCompletionRequestMessageContentPartText, ChatCompletionRequestMessageContentPartImage
]


class ChatCompletionRequestSystemMessage(TypedDict):
    """A message of the developer."""

    role: Literal["system"]
    content: str | None


class ChatCompletionRequestUserMessage(TypedDict):
    """A message of the user."""

    role: Literal["user"]
    content: str | list[ChatCompletionRequestMessageContentPart] | None


class ChatCompletionRequestAssistantMessageFunctionCall(TypedDict):
    """A call that an earlier reply made."""

    name: str
    arguments: str


class ChatCompletionRequestAssistantMessage(TypedDict):
    """An earlier reply."""

    role: Literal["assistant"]
    content: NotRequired[str]
    tool_calls: NotRequired[ChatCompletionMessageToolCalls]
    function_call: NotRequired[ChatCompletionRequestAssistantMessageFunctionCall]


class ChatCompletionRequestToolMessage(TypedDict):
    """A tool's result."""

    role: Literal["tool"]
    content: str | None
    tool_call_id: str


class ChatCompletionRequestFunctionMessage(TypedDict):
    """A function's result."""

    role: Literal["function"]
    content: str | None
    name: str


ChatCompletionRequestMessage = Union[
    ChatCompletionRequestSystemMessage,
    ChatCompletionRequestUserMessage,
    ChatCompletionRequestAssistantMessage,
    ChatCompletionRequestToolMessage,
    ChatCompletionRequestFunctionMessage,
]

ChatCompletionFunctionParameters = dict[str, JsonType]


class ChatCompletionToolFunction(TypedDict):
    """The function of a tool; ``parameters`` is a JSON schema."""

    name: str
    description: NotRequired[str]
    parameters: ChatCompletionFunctionParameters


class ChatCompletionTool(TypedDict):
    """A tool that the model may use."""

    type: Literal["function"]
    function: ChatCompletionToolFunction


class ChatCompletionNamedToolChoiceFunction(TypedDict):
    """The function that has to be called."""

    name: str


class ChatCompletionNamedToolChoice(TypedDict):
    """The tool that has to be used."""

    type: Literal["function"]
    function: ChatCompletionNamedToolChoiceFunction


ChatCompletionToolChoiceOption = Union[
    Literal["none", "auto", "required"], ChatCompletionNamedToolChoice
]

# ---- older names -----------------------------------------------------------------------------

EmbeddingData = Embedding
Completion = CompletionChunk = CreateCompletionStreamResponse = CreateCompletionResponse
ChatCompletion = CreateChatCompletionResponse
ChatCompletionChoice = ChatCompletionResponseChoice
ChatCompletionMessage = ChatCompletionResponseMessage
ChatCompletionChunk = ChatCompletionStreamResponse = CreateChatCompletionStreamResponse
ChatCompletionChunkChoice = ChatCompletionStreamResponseChoice
ChatCompletionChunkDelta = ChatCompletionStreamResponseDelta
ChatCompletionChunkDeltaEmpty = ChatCompletionStreamResponseDeltaEmpty
ChatCompletionResponseFunction = ChatCompletionFunction
ChatCompletionFunctionCall = ChatCompletionResponseFunctionCall
