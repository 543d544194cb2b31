"""Response bodies, as JSON schemas."""

from __future__ import annotations

from llama_py.dialects.openai.types import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
)
from llama_py.server.openapi.schemas import (
    BOOLEAN,
    INTEGER,
    NUMBER,
    OBJECT,
    STRING,
    Schema,
    any_of,
    listing,
    of_type,
    one_of_texts,
    record,
    reference,
    said,
)

__all__ = ["reply_schemas"]

_NULL: Schema = {"type": "null"}
_MAYBE_TEXT = any_of(STRING, _NULL)


_ERROR = record(
    {
        "message": said(STRING, "What is wrong, and what to do."),
        "type": STRING,
        "param": said(_MAYBE_TEXT, "The place in the body (`messages[2].content`)."),
        "code": said(any_of(STRING, INTEGER), "For programs."),
    },
    ["message", "type"],
)
_ANTHROPIC_ERROR = record({"type": STRING, "message": STRING}, ["type", "message"])


def reply_schemas() -> dict[str, Schema]:
    """The schemas by name."""
    return {
        "Error": record({"error": _ERROR}, ["error"]),
        "AnthropicError": record(
            {
                "type": one_of_texts("error"),
                "error": _ANTHROPIC_ERROR,
                "request_id": _MAYBE_TEXT,
            },
            ["type", "error"],
        ),
        **_OLLAMA,
        "ChatCompletion": of_type(ChatCompletion),
        "ChatCompletionChunk": of_type(ChatCompletionChunk),
        "Completion": of_type(Completion),
        "CompletionChunk": of_type(CompletionChunk),
        **_EMBEDDINGS,
        **_RESPONSES,
        "Message": _MESSAGE,
        **_MODELS,
        **_NATIVE,
        **_SESSIONS,
        **_SNAPSHOTS,
        "Transcription": record({"text": STRING, "usage": OBJECT}, ["text"]),
        "Description": OBJECT,
        "Status": record({"status": STRING}, ["status"]),
    }


def _deleted(kind: str) -> Schema:
    return record(
        {"id": STRING, "object": one_of_texts(kind), "deleted": BOOLEAN}, ["id", "object"]
    )


# ---- embeddings ----------------------------------------------------------------------------------

_COUNTED = record({"prompt_tokens": INTEGER, "total_tokens": INTEGER})
_VECTOR = said(any_of(listing(NUMBER), STRING), "Numbers, or the base64 of float32 numbers.")
_VECTORS_OF_OPENAI = record(
    {
        "object": one_of_texts("list"),
        "model": STRING,
        "data": listing(
            record({"object": one_of_texts("embedding"), "index": INTEGER, "embedding": _VECTOR})
        ),
        "usage": _COUNTED,
    },
    ["data"],
)
_VECTORS_OF_LLAMA_SERVER = listing(
    record({"index": INTEGER, "embedding": listing(listing(NUMBER))})
)
_RANKS_OF_JINA = record(
    {
        "object": one_of_texts("list"),
        "model": STRING,
        "results": listing(
            record(
                {
                    "index": INTEGER,
                    "relevance_score": NUMBER,
                    "document": record({"text": STRING}),
                }
            )
        ),
        "usage": _COUNTED,
    },
    ["results"],
)
_RANKS_OF_TEI = listing(record({"index": INTEGER, "score": NUMBER, "text": STRING}))
_EMBEDDINGS: dict[str, Schema] = {
    "Embeddings": any_of(_VECTORS_OF_OPENAI, _VECTORS_OF_LLAMA_SERVER),
    "Ranking": any_of(_RANKS_OF_JINA, _RANKS_OF_TEI),
}

# ---- OpenAI's Responses --------------------------------------------------------------------------

_RESPONSE_USAGE = record(
    {
        "input_tokens": INTEGER,
        "input_tokens_details": record({"cached_tokens": INTEGER}),
        "output_tokens": INTEGER,
        "output_tokens_details": record({"reasoning_tokens": INTEGER}),
        "total_tokens": INTEGER,
    }
)
_RESPONSES: dict[str, Schema] = {
    "Response": record(
        {
            "id": STRING,
            "object": one_of_texts("response"),
            "created_at": NUMBER,
            "status": one_of_texts("completed", "incomplete", "in_progress", "failed"),
            "model": STRING,
            "output": listing(OBJECT),
            "usage": any_of(_RESPONSE_USAGE, _NULL),
            "error": any_of(OBJECT, _NULL),
            "incomplete_details": any_of(OBJECT, _NULL),
            "previous_response_id": _MAYBE_TEXT,
        },
        ["id", "object", "created_at", "status", "model", "output"],
    ),
    "ResponseItems": record(
        {
            "object": one_of_texts("list"),
            "data": listing(OBJECT),
            "first_id": _MAYBE_TEXT,
            "last_id": _MAYBE_TEXT,
            "has_more": BOOLEAN,
        }
    ),
    "DeletedResponse": _deleted("response.deleted"),
    "CancelledResponse": record(
        {
            "id": STRING,
            "object": one_of_texts("response"),
            "status": STRING,
            "output": listing(OBJECT),
        },
        ["id", "object", "status", "output"],
    ),
    "InputTokens": record({"object": STRING, "input_tokens": INTEGER}, ["input_tokens"]),
}

# ---- Anthropic -----------------------------------------------------------------------------------

_MESSAGE = record(
    {
        "id": STRING,
        "type": one_of_texts("message"),
        "role": one_of_texts("assistant"),
        "model": STRING,
        "content": listing(reference("AnthropicBlock")),
        "stop_reason": any_of(
            one_of_texts("end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"), _NULL
        ),
        "stop_sequence": _MAYBE_TEXT,
        "usage": record(
            {
                "input_tokens": said(INTEGER, "Tokens of the prompt that were evaluated."),
                "cache_read_input_tokens": said(INTEGER, "Those that were in memory."),
                "cache_creation_input_tokens": INTEGER,
                "output_tokens": INTEGER,
            },
            ["input_tokens", "output_tokens"],
        ),
    },
    ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"],
)

# ---- Ollama --------------------------------------------------------------------------------------

_DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
_LINE = {
    "model": STRING,
    "created_at": STRING,
    "done": said(BOOLEAN, "It is the last one, and has durations (ns) and counts."),
    "done_reason": one_of_texts("stop", "length", "load", "unload"),
    **dict.fromkeys((*_DURATIONS, "prompt_eval_count", "eval_count"), INTEGER),
    "logprobs": listing(OBJECT),
}
_CARD = {
    "name": STRING,
    "model": STRING,
    "modified_at": STRING,
    "size": INTEGER,
    "digest": said(STRING, "Of the file's place, size and time."),
    "details": OBJECT,
    "expires_at": STRING,
    "size_vram": INTEGER,
    "context_length": INTEGER,
}
_OLLAMA: dict[str, Schema] = {
    "OllamaError": record({"error": STRING}, ["error"]),
    "OllamaChat": record({**_LINE, "message": OBJECT}, ["model", "message", "done"]),
    "OllamaReply": record(
        {**_LINE, "response": STRING, "thinking": STRING}, ["model", "response", "done"]
    ),
    "OllamaEmbeddings": record(
        {
            "model": STRING,
            "embeddings": listing(listing(NUMBER)),
            "total_duration": INTEGER,
            "load_duration": INTEGER,
            "prompt_eval_count": INTEGER,
        },
        ["model", "embeddings"],
    ),
    "OllamaEmbedding": record({"embedding": listing(NUMBER)}, ["embedding"]),
    "OllamaVersion": record({"version": STRING}, ["version"]),
    "OllamaModels": record(
        {"models": listing(record(_CARD, ["name", "model", "size", "details"]))}, ["models"]
    ),
    "OllamaModel": record(
        {
            "template": STRING,
            "modelfile": STRING,
            "license": STRING,
            "parameters": STRING,
            "details": OBJECT,
            "model_info": OBJECT,
            "capabilities": listing(STRING),
            "modified_at": STRING,
        },
        ["details", "model_info", "capabilities"],
    ),
}

# ---- models --------------------------------------------------------------------------------------

_SIZES = ("n_ctx", "n_ctx_train", "n_embd", "n_params", "n_vocab", "size")
_MODELS: dict[str, Schema] = {
    "Model": record(
        {
            "id": STRING,
            "object": one_of_texts("model"),
            "created": INTEGER,
            "owned_by": STRING,
            "architecture": record(
                {
                    "input_modalities": listing(one_of_texts("text", "image", "audio")),
                    "output_modalities": listing(one_of_texts("text")),
                },
                ["input_modalities", "output_modalities"],
            ),
            "aliases": listing(STRING),
            "meta": any_of(record(dict.fromkeys(_SIZES, INTEGER)), _NULL),
            "status": record(
                {
                    "value": one_of_texts("unloaded", "loading", "loaded", "unloading"),
                    "failed": BOOLEAN,
                    "reason": STRING,
                },
                ["value"],
            ),
        },
        ["id", "object", "created", "owned_by"],
    ),
    "ModelList": record(
        {
            "object": one_of_texts("list"),
            "data": listing(reference("Model")),
            "models": said(listing(OBJECT), "The same in llama-server's older form."),
        },
        ["data"],
    ),
    "ModelChanged": record({"success": BOOLEAN, "model": reference("Model")}, ["success", "model"]),
}

# ---- llama-server's own --------------------------------------------------------------------------

_TOKEN = any_of(INTEGER, record({"id": INTEGER, "piece": any_of(STRING, listing(INTEGER))}))
_NATIVE: dict[str, Schema] = {
    "NativeCompletion": record(
        {
            "content": STRING,
            "tokens": listing(INTEGER),
            "stop": BOOLEAN,
            "stop_type": STRING,
            "stopping_word": STRING,
            "tokens_evaluated": INTEGER,
            "tokens_cached": INTEGER,
            "timings": OBJECT,
        }
    ),
    "Tokens": record({"tokens": listing(_TOKEN)}, ["tokens"]),
    "Count": record({"count": INTEGER}, ["count"]),
    "ExtraText": record({"text": STRING}, ["text"]),
    "Content": record({"content": STRING}, ["content"]),
    "Prompt": record({"prompt": STRING}, ["prompt"]),
    "Properties": record({"default_generation_settings": OBJECT, "total_slots": INTEGER}),
    "Slots": listing(record({"id": INTEGER, "n_ctx": INTEGER, "is_processing": BOOLEAN})),
    "Done": OBJECT,
    "Adapters": listing(record({"id": INTEGER, "path": STRING, "scale": NUMBER})),
}

# ---- sessions ------------------------------------------------------------------------------------

_SESSIONS: dict[str, Schema] = {
    "Session": record(
        {
            "id": STRING,
            "object": one_of_texts("session"),
            "created": INTEGER,
            "last_used": INTEGER,
            "model": STRING,
            "turns": INTEGER,
            "tokens": said(INTEGER, "Of the conversation, when its last reply had ended."),
            "parent": said(_MAYBE_TEXT, "The session that it was forked from."),
            "busy": said(BOOLEAN, "A reply is being written."),
            "tokens_in_memory": INTEGER,
            "saved": said(BOOLEAN, "It is on the disk."),
            "tokens_saved": said(INTEGER, "Of these, those that are on the disk."),
        },
        ["id", "object", "created", "last_used", "model", "turns", "tokens"],
    ),
    "SessionList": record({"data": listing(reference("Session"))}, ["data"]),
    "DeletedSession": _deleted("session.deleted"),
}

_SNAPSHOT_LIST = {
    "data": listing(reference("Snapshot")),
    "slots": said(INTEGER, "Snapshots that the key may keep."),
    "slots_used": INTEGER,
    "bytes": said(INTEGER, "Bytes that they may take."),
    "bytes_used": INTEGER,
}
_SNAPSHOTS: dict[str, Schema] = {
    "Snapshot": record(
        {
            "object": one_of_texts("session.snapshot"),
            "name": STRING,
            "session": STRING,
            "model": STRING,
            "tokens": INTEGER,
            "bytes": INTEGER,
            "key": said(STRING, "A digest of the tokens and of every setting they depend on."),
            "created": INTEGER,
            "last_used": INTEGER,
            "status": one_of_texts("confirmed", "prepared"),
        },
        ["object", "name", "session", "model", "tokens", "bytes", "key", "status"],
    ),
    "SnapshotList": record(_SNAPSHOT_LIST, [*_SNAPSHOT_LIST]),
    "DeletedSnapshot": record({"name": STRING, "deleted": BOOLEAN}, ["name", "deleted"]),
    "AbortedSnapshot": record({"name": STRING, "aborted": BOOLEAN}, ["name", "aborted"]),
}
