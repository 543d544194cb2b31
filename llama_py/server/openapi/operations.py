"""``OPERATIONS``: what can be asked of the server, and what each path is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llama_py.dialects.failures import Kind

__all__ = ["OPERATIONS", "TAGS", "Operation", "Parameter"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the query string."""

    name: str
    text: str
    kind: str = "string"


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that clients can ask for.

    Attributes:
        method, paths: how; the first path is its own, the others are aliases.
        tag: the chapter that it belongs to.
        summary: what it does, in a few words; ``text`` says more.
        body: the schema of what it takes, or None.
        reply: the schema of the reply; None if there is none, or if it is not JSON.
        events: what a stream consists of, if ``stream`` asks for one.
        media_type: of a reply that is not JSON.
        body_type: of what it takes.
        failures: how it may fail, beside what every operation may.
        public: no key is needed.
    """

    method: str
    paths: Sequence[str]
    tag: str
    summary: str
    text: str = ""
    body: str | None = None
    reply: str | None = None
    events: str = ""
    media_type: str = "application/json"
    body_type: str = "application/json"
    failures: Sequence[Kind] = ()
    parameters: Sequence[Parameter] = ()
    public: bool = False

    @property
    def is_anthropic(self) -> bool:
        """Whether it speaks Anthropic's dialect."""
        return self.paths[0].startswith("/v1/messages")


TAGS = {
    "OpenAI": "Chats and completions as in OpenAI's API, also the Responses API.",
    "Anthropic": "Anthropic's Messages API.",
    "Models": "What is offered, and what is in memory.",
    "Sessions": "Conversations that have a name.",
    "llama-server": "The endpoints that are llama.cpp's own.",
    "Operation": "For those who run the server.",
}

#: How whatever a model answers may fail.
_ANSWERED = (
    Kind.MODEL_NOT_FOUND,
    Kind.OVERFLOW,
    Kind.QUEUE_FULL,
    Kind.CACHE_FULL,
    Kind.TIMEOUT,
)
_EMBEDDED = (Kind.MODEL_NOT_FOUND, Kind.OVERFLOW, Kind.TIMEOUT)
_ONE_MODEL = (Kind.MODEL_NOT_FOUND,)
_MODEL = Parameter("model", "The model, if there are several.")
_LIMIT = Parameter("limit", "Most models to list, up to 1000.", "integer")
_AFTER = Parameter("after_id", "Only those after this one (Anthropic's form).")
_BEFORE = Parameter("before_id", "Only those before this one (Anthropic's form).")

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "POST",
        ("/v1/chat/completions", "/chat/completions"),
        "OpenAI",
        "Answer a conversation",
        "The beginning that a conversation shares with one in memory is not evaluated again; "
        "`usage.prompt_tokens_details.cached_tokens` says how much that was. Fields that are not "
        "known are ignored.",
        "ChatCompletionRequest",
        "ChatCompletion",
        "`data:` lines with chunks of the reply (`ChatCompletionChunk`), then `data: [DONE]`. An "
        "error in the middle is a line with `error`.",
        failures=_ANSWERED,
    ),
    Operation(
        "POST",
        ("/v1/completions", "/completions"),
        "OpenAI",
        "Continue a text",
        body="CompletionRequest",
        reply="Completion",
        events="`data:` lines with `CompletionChunk`s, then `data: [DONE]`.",
        failures=_ANSWERED,
    ),
    Operation(
        "POST",
        ("/v1/audio/transcriptions", "/audio/transcriptions"),
        "OpenAI",
        "Write down a recording",
        "For models that hear: `audio` is among their `input_modalities`.",
        "TranscriptionRequest",
        "Transcription",
        "`data:` lines with `transcript.text.delta`, then `transcript.text.done` and "
        "`data: [DONE]`.",
        body_type="multipart/form-data",
        failures=_ANSWERED,
    ),
    Operation(
        "POST",
        ("/v1/responses", "/responses"),
        "OpenAI",
        "Create a response",
        "With `store`, it can be continued by `previous_response_id`, for some time.",
        "ResponsesRequest",
        "Response",
        "Named events, from `response.created` to `response.completed`, `response.incomplete` or "
        "`response.failed`, then `data: [DONE]`.",
        failures=_ANSWERED,
    ),
    Operation(
        "GET",
        ("/v1/responses/{response_id}", "/responses/{response_id}"),
        "OpenAI",
        "A stored response",
        reply="Response",
        failures=(Kind.NOT_FOUND,),
    ),
    Operation(
        "GET",
        ("/v1/responses/{response_id}/input_items", "/responses/{response_id}/input_items"),
        "OpenAI",
        "What a stored response answers",
        "The items of its input, and those of the turns that it goes on from.",
        reply="ResponseItems",
        failures=(Kind.NOT_FOUND,),
        parameters=(
            Parameter("limit", "Most items to list, up to 100 (20).", "integer"),
            Parameter("order", "`desc`, the newest first, or `asc` (`desc`)."),
            Parameter("after", "Only those after the item with this id."),
        ),
    ),
    Operation(
        "DELETE",
        ("/v1/responses/{response_id}", "/responses/{response_id}"),
        "OpenAI",
        "Forget a stored response",
        reply="DeletedResponse",
        failures=(Kind.NOT_FOUND,),
    ),
    Operation(
        "POST",
        ("/v1/responses/{response_id}/cancel", "/responses/{response_id}/cancel"),
        "OpenAI",
        "End a response that is being generated",
        "It ends as if its client had left. A stored response that has ended is returned as it is.",
        reply="CancelledResponse",
        failures=(Kind.NOT_FOUND,),
    ),
    Operation(
        "POST",
        ("/v1/responses/compact", "/responses/compact"),
        "OpenAI",
        "Compact a conversation",
        "Not there: `truncation` leaves out what does not fit.",
        body="ResponsesCountRequest",
        reply="Response",
        failures=(Kind.NOT_IMPLEMENTED,),
    ),
    Operation(
        "POST",
        ("/v1/responses/input_tokens", "/responses/input_tokens"),
        "OpenAI",
        "Count the tokens of a response's prompt",
        body="ResponsesCountRequest",
        reply="InputTokens",
        failures=_ONE_MODEL,
    ),
    Operation(
        "POST",
        ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"),
        "OpenAI",
        "Count the tokens of a conversation",
        body="ChatCompletionRequest",
        reply="InputTokens",
        failures=_ONE_MODEL,
    ),
    Operation(
        "POST",
        ("/v1/chat/completions/control",),
        "OpenAI",
        "End a reply that is being generated",
        "It ends as if its client had left.",
        "Control",
        "Done",
        failures=(Kind.NOT_FOUND,),
    ),
    Operation(
        "POST",
        ("/v1/embeddings", "/embeddings"),
        "OpenAI",
        "Embed texts",
        "`/embeddings` takes llama-server's `content` in place of `input` as well, and answers in "
        "its form then.",
        "EmbeddingRequest",
        "Embeddings",
        failures=_EMBEDDED,
    ),
    Operation(
        "POST",
        ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking"),
        "OpenAI",
        "Order documents by a query",
        "In the form of Jina and Cohere (`documents`), or that of TEI (`texts`). The model needs a "
        "classification head.",
        "RerankRequest",
        "Ranking",
        failures=_EMBEDDED,
    ),
    Operation(
        "POST",
        ("/v1/messages",),
        "Anthropic",
        "Answer a conversation",
        "`cache_control` is not needed: whatever is in memory is reused.",
        "MessagesRequest",
        "Message",
        "Named events: `message_start`, for each block `content_block_start`, "
        "`content_block_delta` and `content_block_stop`, then `message_delta` and `message_stop`; "
        "`ping` in between, and `error`.",
        failures=_ANSWERED,
    ),
    Operation(
        "POST",
        ("/v1/messages/count_tokens",),
        "Anthropic",
        "Count the tokens of a conversation",
        "The number is exact: the conversation is rendered, tools included, and tokenized.",
        "CountTokensRequest",
        "InputTokens",
        failures=_ONE_MODEL,
    ),
    Operation(
        "GET",
        ("/v1/models", "/models"),
        "Models",
        "List the models",
        "In Anthropic's form, if the header `anthropic-version` is there.",
        reply="ModelList",
        parameters=(_LIMIT, _AFTER, _BEFORE),
    ),
    Operation(
        "GET",
        ("/v1/models/{id}",),
        "Models",
        "One model",
        reply="Model",
        failures=_ONE_MODEL,
    ),
    Operation(
        "POST",
        ("/models/load",),
        "Models",
        "Load a model now",
        "Returns when it is loaded. Another one may have to go.",
        "ModelName",
        "ModelChanged",
        failures=(Kind.FORBIDDEN, *_ONE_MODEL),
    ),
    Operation(
        "POST",
        ("/models/unload",),
        "Models",
        "Unload a model",
        "Returns when the requests that use it have ended, and it is gone.",
        "ModelName",
        "ModelChanged",
        failures=(Kind.FORBIDDEN, *_ONE_MODEL),
    ),
    Operation(
        "GET",
        ("/v1/sessions",),
        "Sessions",
        "List the sessions",
        "Those of the caller's key.",
        reply="SessionList",
    ),
    Operation(
        "GET",
        ("/v1/sessions/{id}",),
        "Sessions",
        "One session",
        reply="Session",
        failures=(Kind.NOT_FOUND,),
    ),
    Operation(
        "DELETE",
        ("/v1/sessions/{id}",),
        "Sessions",
        "Forget a session",
        reply="DeletedSession",
        failures=(Kind.NOT_FOUND,),
    ),
    Operation(
        "POST",
        ("/v1/sessions/{id}/fork",),
        "Sessions",
        "Begin another session with the same past",
        body="SessionFork",
        reply="Session",
        failures=(Kind.NOT_FOUND,),
    ),
    Operation(
        "POST",
        ("/v1/sessions/{id}/save",),
        "Sessions",
        "Write a session to the disk now",
        reply="Session",
        failures=(Kind.NOT_FOUND, Kind.NOT_IMPLEMENTED),
    ),
    Operation(
        "GET",
        ("/v1/sessions/{id}/snapshots",),
        "Sessions",
        "List the snapshots of a session",
        reply="SnapshotList",
        failures=(Kind.NOT_FOUND,),
    ),
    Operation(
        "POST",
        ("/v1/sessions/{id}/snapshots",),
        "Sessions",
        "Make a snapshot of a session",
        "It takes the place of one of the same name when it is complete; with `prepare`, when it "
        "is confirmed. With `length`, it has only the first tokens, where the memory of the model "
        "can give them back; elsewhere it is refused, with the reason and the possible lengths.",
        "SnapshotMake",
        "Snapshot",
        failures=(Kind.NOT_FOUND, Kind.NOT_IMPLEMENTED, *_ONE_MODEL),
    ),
    Operation(
        "DELETE",
        ("/v1/sessions/{id}/snapshots/{name}",),
        "Sessions",
        "Forget a snapshot",
        reply="DeletedSnapshot",
        failures=(Kind.NOT_FOUND,),
    ),
    Operation(
        "POST",
        ("/v1/sessions/{id}/snapshots/{name}/confirm",),
        "Sessions",
        "Let a prepared snapshot take its place",
        reply="Snapshot",
        failures=(Kind.NOT_FOUND,),
    ),
    Operation(
        "POST",
        ("/v1/sessions/{id}/snapshots/{name}/abort",),
        "Sessions",
        "Give a prepared snapshot up",
        "What it would have replaced stays as it is.",
        reply="AbortedSnapshot",
        failures=(Kind.NOT_FOUND,),
    ),
    Operation(
        "POST",
        ("/v1/sessions/{id}/snapshots/{name}/restore",),
        "Sessions",
        "Bring a snapshot back",
        "The next request that begins with its tokens evaluates only what comes behind them.",
        reply="Snapshot",
        parameters=(_MODEL,),
        failures=(Kind.NOT_FOUND, *_ONE_MODEL),
    ),
    Operation(
        "POST",
        ("/completion",),
        "llama-server",
        "Continue a text",
        body="NativeCompletionRequest",
        reply="NativeCompletion",
        events="`data:` lines with pieces of the reply; the last one has `stop` set.",
        failures=_ANSWERED,
    ),
    Operation(
        "POST",
        ("/infill",),
        "llama-server",
        "Fill in a gap in a text",
        "Needs a model with infill tokens.",
        "InfillRequest",
        "NativeCompletion",
        "As of `/completion`.",
        failures=(*_ANSWERED, Kind.NOT_IMPLEMENTED),
    ),
    Operation(
        "POST",
        ("/tokenize",),
        "llama-server",
        "The tokens of a text",
        body="TokenizeRequest",
        reply="Tokens",
        failures=_ONE_MODEL,
    ),
    Operation(
        "POST",
        ("/detokenize",),
        "llama-server",
        "The text of tokens",
        body="DetokenizeRequest",
        reply="Content",
        failures=_ONE_MODEL,
    ),
    Operation(
        "POST",
        ("/extras/tokenize",),
        "llama-server",
        "The tokens of a text",
        "As llama-cpp-python's server has it.",
        "ExtraTokenizeRequest",
        "Tokens",
        failures=_ONE_MODEL,
    ),
    Operation(
        "POST",
        ("/extras/tokenize/count",),
        "llama-server",
        "How many tokens a text has",
        body="ExtraTokenizeRequest",
        reply="Count",
        failures=_ONE_MODEL,
    ),
    Operation(
        "POST",
        ("/extras/detokenize",),
        "llama-server",
        "The text of tokens",
        body="DetokenizeRequest",
        reply="ExtraText",
        failures=_ONE_MODEL,
    ),
    Operation(
        "POST",
        ("/apply-template",),
        "llama-server",
        "The prompt of a conversation",
        body="ApplyTemplateRequest",
        reply="Prompt",
        failures=_ONE_MODEL,
    ),
    Operation(
        "GET",
        ("/props",),
        "llama-server",
        "Facts about a model and its defaults",
        reply="Properties",
        parameters=(_MODEL,),
        failures=_ONE_MODEL,
    ),
    Operation(
        "POST",
        ("/props",),
        "llama-server",
        "Change the facts",
        "They do not change while the server runs.",
        failures=(Kind.FORBIDDEN, Kind.NOT_IMPLEMENTED),
    ),
    Operation(
        "GET",
        ("/slots",),
        "llama-server",
        "The sequences in memory",
        reply="Slots",
        parameters=(_MODEL, Parameter("fail_on_no_slot", "1: 503 if none is free.")),
        failures=(Kind.FORBIDDEN, *_ONE_MODEL),
    ),
    Operation(
        "POST",
        ("/slots/{id}",),
        "llama-server",
        "Save, restore or erase a sequence",
        body="SlotFile",
        reply="Done",
        parameters=(_MODEL, Parameter("action", "`save`, `restore` or `erase`.")),
        failures=(Kind.FORBIDDEN, Kind.NOT_FOUND, Kind.NOT_IMPLEMENTED),
    ),
    Operation(
        "GET",
        ("/lora-adapters",),
        "llama-server",
        "The adapters of a model",
        reply="Adapters",
        parameters=(_MODEL,),
        failures=_ONE_MODEL,
    ),
    Operation(
        "POST",
        ("/lora-adapters",),
        "llama-server",
        "Change the scales of adapters",
        "They do not change while a model is loaded.",
        failures=(Kind.FORBIDDEN, Kind.NOT_IMPLEMENTED),
    ),
    Operation(
        "GET", ("/health", "/v1/health"), "Operation", "Is it there?", reply="Status", public=True
    ),
    Operation("GET", ("/livez",), "Operation", "Is it alive?", reply="Status", public=True),
    Operation(
        "GET",
        ("/readyz",),
        "Operation",
        "Does it take requests?",
        "503 while a model is loaded at the start, and while the server is about to stop.",
        reply="Status",
        public=True,
    ),
    Operation(
        "GET",
        ("/metrics",),
        "Operation",
        "Counters, in the form of Prometheus",
        media_type="text/plain",
        failures=(Kind.FORBIDDEN, Kind.NOT_IMPLEMENTED),
    ),
    Operation(
        "GET",
        ("/openapi.json",),
        "Operation",
        "This description, in the form of OpenAPI",
        reply="Description",
        public=True,
    ),
)
